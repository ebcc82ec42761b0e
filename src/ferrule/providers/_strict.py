"""Strict modes: a tool's schema in the subset of JSON Schema to which an API can hold a model.

A keyword that only narrows a value (`minimum`, `uniqueItems`, `not`) may be dropped: it moves into the description of
its node, as in Anthropic's SDK, and the kernel still enforces it. A keyword cannot be dropped if the schema would then
accept more or other values: that is an error. So every value that a tool accepts has a form that the rewritten schema
accepts. There are two exceptions: undeclared keys of an object if its schema does not mention them, and leaving out a
property that may also be null.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from ferrule.arguments.schema_content import SchemaContent
from ferrule.errors import DefinitionError
from ferrule.providers import WHERE_POSSIBLE, Strict
from ferrule.providers import _schemas as schemas
from ferrule.providers._schemas import Schema, Subset, Walk, Written
from ferrule.providers._wire import make_named_test
from ferrule.values.frozen import FrozenDict, freeze

if TYPE_CHECKING:
    from ferrule.definition.tool import Tool


@dataclass(frozen=True, eq=False, kw_only=True)
class Rules(Subset):
    """The subset that one strict mode accepts, and its limits."""

    keeps: frozenset[str]
    """The narrowing keywords that the API enforces; the others go into the description."""
    formats: frozenset[str]
    all_required: bool
    """Whether every property is required: an optional one becomes nullable then, and null means absent."""
    recursion: bool
    open: bool = False
    """Whether it accepts objects with undeclared keys, and arrays of anything."""
    anchors: bool = True
    """Whether a pattern may have anchors, for the beginning or the end of a text."""
    needs_required: bool = False
    """Whether at least one of a tool's parameters has to be required, if it has any."""
    most_min_items: int | None = None
    most: Mapping[str, int] = field(default_factory=dict)
    """The limits for one schema, by the name of the count."""
    most_together: Mapping[str, int] = field(default_factory=dict)
    """The limits for all strict tools of a request, by the name of the count."""
    all_or_none: bool = False
    """Whether it is strict for all tools of a request or for none."""

    purpose = "strict for"
    remedy = "Change the schema, or leave strict out for that tool"

    def write(self, root: FrozenDict, content: SchemaContent | None = None) -> Written:
        found = _Rewriting(root, self).rewrite()
        for what, most in self.most.items():
            if (count := _COUNTS[what](found)) > most:
                schemas.fail(
                    "$", f"the schema has {count} {what}, and {most} are the most: split the tool into several"
                )
        return Written(freeze(found), counts={what: _COUNTS[what](found) for what in self.most_together})


_STRICT_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
_MIXED_TYPES = "parameters of several types in strict tools"
_RANGES = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
# https://platform.openai.com/docs/guides/structured-outputs#supported-schemas
OPENAI = Rules(
    provider="OpenAI",
    keeps=_RANGES | {"pattern", "format", "minItems", "maxItems"},
    formats=_STRICT_FORMATS,
    all_required=True,
    recursion=True,
    most={
        "levels of nesting": 10,
        "properties": 5_000,
        "enum values": 1_000,
        "characters of names and enums": 120_000,
    },
)
# https://docs.claude.com/en/docs/build-with-claude/structured-outputs; the SDK's lib/_parse/_transform.py
ANTHROPIC = Rules(
    provider="Anthropic",
    keeps=frozenset({"format", "minItems", "default"}),
    formats=_STRICT_FORMATS | {"uri"},
    all_required=False,
    recursion=False,
    names=schemas.CLAUDE_NAMES,
    most_min_items=1,
    most_together={"strict tools": 20, "optional parameters in strict tools": 24, _MIXED_TYPES: 16},
)
# https://docs.aws.amazon.com/bedrock/latest/userguide/structured-output.html: the same subset as Claude's
BEDROCK = replace(ANTHROPIC, provider="Bedrock")
# No page lists a subset. The SDK's own helper, extra/utils/_pydantic_helper.py, closes every object and passes on the
# limits of lengths, ranges and items; other keywords go into the description.
MISTRAL = Rules(
    provider="Mistral",
    keeps=_RANGES | {"pattern", "format", "minLength", "maxLength", "minItems", "maxItems", "default"},
    formats=_STRICT_FORMATS | {"uri"},
    all_required=False,
    recursion=True,
)
# https://docs.cohere.com/docs/structured-outputs, "Parameter types support"; for fields and required parameters
# https://docs.cohere.com/docs/tool-use-parameter-types, "Important notes"
COHERE = Rules(
    provider="Cohere",
    keeps=frozenset({"pattern", "format"}),
    formats=frozenset({"date-time", "date", "time", "uuid"}),
    all_required=False,
    recursion=True,
    open=True,
    anchors=False,
    needs_required=True,
    most_together={"fields in strict tools": 200},
    all_or_none=True,
)

_NARROWS = (
    *("default", "examples", "format", "pattern", "minLength", "maxLength", "contentEncoding", "contentMediaType"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains"),
    *("minProperties", "maxProperties", "propertyNames", "dependentRequired", "not"),
)
_CONDITIONS = ("if", "then", "else", "dependentSchemas")
_SHAPES = frozenset({"type", "$ref", "properties", "items", "enum", "const", "anyOf", "oneOf", "allOf", "prefixItems"})
_PAIRS = "make it a list of pairs, each an object with 'key' and 'value', such as list[Pair] for dict[str, str]"
_FLAT_TREE = "make it a list of nodes, each with the name of its parent"
_MOST_NAMED = 8
"""The most tools that an error names if the tools exceed a limit together."""
_NOT_REGULAR = re.compile(r"\(\?[=!<P(]|\\[1-9bBk]|[*+?}]\+")
"""Lookarounds, backreferences and word boundaries: a grammar cannot express them."""
_ANCHOR = re.compile(r"[\^$]")


class _Rewriting(Walk[Rules]):
    """One schema to make strict."""

    def rewrite(self) -> Schema:
        found = self.node(self.root, "$", frozenset({"#"}))
        if "properties" not in found:
            schemas.fail("$", "the top of a schema has to be one object: make it a parameter of one")
        if self.rules.needs_required and found["properties"] and not found.get("required"):
            schemas.fail("$", "of the parameters at least one has to be required: take the default of one away")
        self.check_names(found["properties"], "$")
        if self.definitions:
            found["$defs"] = self.definitions
        return found

    def node(self, given: Any, path: str, inside: frozenset[str]) -> Schema:
        schema, inside = self.simplify(given, path, inside)
        if "$ref" in schema:
            if not self.rules.recursion and (schema["$ref"] == "#" or schema["$ref"] in self.within):
                schemas.fail(path, f"{schema['$ref']!r} is recursive, which is not allowed: {_FLAT_TREE}")
            return {"$ref": self.reference(schema["$ref"], path)}
        notes: Schema = {}
        if "anyOf" in schema:
            branches = [self.node(item, f"{path}.anyOf[{n}]", inside) for n, item in enumerate(schema["anyOf"])]
            found: Schema = {"anyOf": schemas.remove_duplicates(branches)}
        else:
            found = {"type": _types(schema, path)}
            kinds = schemas.list_types(found)
            found |= _literals(schema, path)
            if "object" in kinds:
                found |= self.object(schema, path, inside)
            if "array" in kinds:
                found |= self.array(schema, path, inside, notes)
        self.add_narrowing(schema, found, notes, path)
        return schemas.add_description(schema, found, notes)

    # One form for each meaning

    def simplify(self, given: Any, path: str, inside: frozenset[str]) -> tuple[Schema, frozenset[str]]:
        """Return `given` as a lone `$ref`, as a lone `anyOf`, or as a schema with a type; and the references written
        out in it. The first two have only annotations and notes beside them."""
        if not isinstance(given, Mapping):
            schemas.fail(
                path, "a schema that takes nothing has no form: leave it out" if given is False else schemas.ANYTHING
            )
        schema = {key: item for key, item in given.items() if key not in schemas.NOISE}
        reference = schema.get("$ref")
        if schema.keys() == {"$ref"} and (reference in inside or _is_definition(reference)):
            return schema, inside
        short = _MIXED_TYPES not in self.rules.most_together and _is_definition(reference)
        if schema.keys() <= schemas.ANNOTATIONS | {"$ref"} and (reference in inside or short):
            schema["anyOf"] = [{"$ref": schema.pop("$ref")}]  # if unions are counted, the reference is written out
        schema, inside = self.flatten(schema, path, inside)
        for key in ("$dynamicRef", "$recursiveRef", "unevaluatedItems"):
            if key in schema:
                schemas.fail(path, f"{key!r} cannot be expressed: write out what it means")
        if "anyOf" in schema and schema.keys() - schemas.ANNOTATIONS - {"anyOf"}:
            schema = self.distribute(schema, path)
        return schema, inside

    def distribute(self, schema: Schema, path: str) -> Schema:
        """Move the keywords beside a union into each of its branches. If the branches only narrow, the union becomes a
        note."""
        branches = schema["anyOf"]
        base = {key: item for key, item in schema.items() if key != "anyOf" and key not in schemas.ANNOTATIONS}
        if all(isinstance(item, Mapping) and _SHAPES.isdisjoint(item) for item in branches):
            return {key: item for key, item in schema.items() if key != "anyOf"} | {_NOTE: branches}
        if path == "$":
            schemas.fail(path, "'anyOf' is not allowed at the top of a schema: make the union a parameter")
        apart = {key: item for key, item in schema.items() if key in schemas.ANNOTATIONS}
        return apart | {"anyOf": [{"allOf": [base, item]} for item in branches]}

    # Kinds of values

    def object(self, schema: Schema, path: str, inside: frozenset[str]) -> Schema:
        properties = schema.get("properties") or {}
        others = self.write_others(schema, properties, path, inside)
        required = list(schema.get("required", ()))
        for name in required:
            if name not in properties:
                schemas.fail(path, f"{name!r} is required and not among the properties: declare it there")
        found = {name: self.node(item, f"{path}.properties.{name}", inside) for name, item in properties.items()}
        if self.rules.all_required:
            for name in found.keys() - set(required):
                found[name] = self.make_nullable(found[name])
            required = list(found)
        shown: Schema = {"properties": found}
        if required or self.rules.all_required:
            shown["required"] = required
        return shown | {"additionalProperties": others}

    def write_others(self, schema: Schema, properties: Mapping[str, Any], path: str, inside: frozenset[str]) -> Any:
        """Return the schema for undeclared keys. An object with some properties and no keyword for others is closed."""
        if schema.get("patternProperties"):
            schemas.fail(path, f"'patternProperties' cannot be expressed: {_PAIRS}")
        others = schema.get("additionalProperties", schema.get("unevaluatedProperties"))
        if others is False or (others is None and properties):
            return False
        if not self.rules.open:
            if properties:
                schemas.fail(
                    path, "an object may have no other keys than its properties: say 'additionalProperties': false"
                )
            schemas.fail(path, f"an object has to name its keys: {_PAIRS}")
        return True if others in (None, True, {}) else self.node(others, f"{path}.additionalProperties", inside)

    def make_nullable(self, node: Schema) -> Schema:
        if self.is_nullable(node):
            return node
        apart: Schema = {key: node[key] for key in ("title", "description") if key in node}
        if "anyOf" in node:
            return node | {"anyOf": [*node["anyOf"], {"type": "null"}]}
        if node.keys() & {"$ref", "enum", "const"}:
            bare = {key: item for key, item in node.items() if key not in ("title", "description")}
            return {"anyOf": [bare, {"type": "null"}], **apart}
        return node | {"type": [*schemas.list_types(node), "null"]}

    def is_nullable(self, node: Schema, seen: set[str] | None = None) -> bool:
        """Return whether null is among its values. `seen` are the definitions that are being checked already."""
        seen = set() if seen is None else seen
        if "$ref" in node:
            name = schemas.definition_name(node["$ref"])
            known = self.definitions.get(name)
            if not known or name in seen:
                return False
            seen.add(name)
            return self.is_nullable(known, seen)
        if "anyOf" in node:
            return any(self.is_nullable(item, seen) for item in node["anyOf"])
        if "enum" in node or "const" in node:
            return None in schemas.list_values(node)
        return "null" in schemas.list_types(node)

    def array(self, schema: Schema, path: str, inside: frozenset[str], notes: Schema) -> Schema:
        if not schema.get("prefixItems"):
            if self.rules.open and schema.get("items") in (None, True, {}):
                return {}
            if "items" not in schema:
                schemas.fail(path, "an array without 'items' takes anything: say what its items are, as list[str] does")
        return {"items": self.items(schema, path, inside, notes)}

    def add_narrowing(self, schema: Schema, found: Schema, notes: Schema, path: str) -> None:
        """Keep the narrowing keywords that the API enforces, and note the others."""
        for key in _NARROWS:
            if key not in schema:
                continue
            if self.is_enforced(key, schema[key]):
                found[key] = schema[key]
            elif key != "default" or schema[key] is not None:
                notes[key] = schema[key]
        if _NOTE in schema:
            notes["anyOf"] = schema[_NOTE]
        conditions = {key: schema[key] for key in _CONDITIONS if key in schema}
        unknown = sorted(_condition_properties(conditions) - (schema.get("properties") or {}).keys())
        if unknown:
            schemas.fail(
                path, f"{next(iter(conditions))!r} has properties of its own, {unknown}: declare them beside it"
            )
        notes |= conditions

    def is_enforced(self, key: str, value: Any) -> bool:
        rules = self.rules
        if key not in rules.keeps:
            return False
        if key == "format":
            return value in rules.formats
        if key == "pattern":
            regular = isinstance(value, str) and not _NOT_REGULAR.search(value)
            return regular and (rules.anchors or not _ANCHOR.search(value))
        return not (key == "minItems" and rules.most_min_items is not None and value > rules.most_min_items)


_NOTE = "\0note"
"""No keyword: the place of a union that only narrows."""


def _is_definition(reference: Any) -> bool:
    return str(reference).startswith(("#/$defs/", "#/definitions/"))


def _types(schema: Schema, path: str) -> Any:
    kind = schema.get("type") or schemas.infer_types(schema) or schemas.fail(path, schemas.ANYTHING)
    return kind[0] if isinstance(kind, list) and len(kind) == 1 else kind


def _literals(schema: Schema, path: str) -> Schema:
    found: Schema = {key: schema[key] for key in ("enum", "const") if key in schema}
    if len(found) == 2 and found["const"] not in found.pop("enum"):
        schemas.fail(path, "'const' is none of the enum's values: leave one of the two out")
    if any(isinstance(value, dict | list) for value in schemas.list_values(found)):
        schemas.fail(
            path, "an enum or const may hold texts, numbers, booleans and null only: give each value a name instead"
        )
    return found


def _condition_properties(conditions: Schema) -> set[str]:
    """Return the names of all properties inside conditions."""
    found: set[str] = set()
    for value in conditions.values():
        if isinstance(value, Mapping):
            inner = value.get("properties")
            found |= inner.keys() if isinstance(inner, Mapping) else set()
            found |= _condition_properties(cast("Schema", value))
    return found


# Limits


def _nodes(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield every node of a rewritten schema."""
    yield schema
    for inner in schemas.children(schema):
        yield from _nodes(inner)
    for inner in schema.get("$defs", {}).values():
        yield from _nodes(inner)


def _levels(node: Mapping[str, Any], root: Mapping[str, Any], known: dict[str, int]) -> int:
    """Return the depth of the nesting. `known` are the depths of the definitions. A reference back to a schema around
    it adds none."""
    reference = node.get("$ref")
    if reference == "#":
        return 0
    if reference is not None:
        if reference not in known:
            known[reference] = 0
            known[reference] = _levels(root["$defs"][schemas.definition_name(reference)], root, known)
        return known[reference]
    below = max((_levels(inner, root, known) for inner in schemas.children(node)), default=0)
    return below + ("properties" in node or "items" in node)


def _characters(node: Mapping[str, Any]) -> int:
    words = [*schemas.list_values(node), *node.get("properties", ()), *node.get("$defs", ())]
    return sum(len(word) for word in words if isinstance(word, str))


def _field_count(schema: Mapping[str, Any]) -> int:
    return sum(len(node.get("properties", ())) for node in _nodes(schema))


def _optional(node: Mapping[str, Any]) -> int:
    return len(node.get("properties", {}).keys() - set(node.get("required", ())))


_COUNTS: dict[str, Callable[[Mapping[str, Any]], int]] = {
    "levels of nesting": lambda schema: _levels(schema, schema, {}),
    "properties": _field_count,
    "enum values": lambda schema: sum(len(node.get("enum", ())) for node in _nodes(schema)),
    "characters of names and enums": lambda schema: sum(map(_characters, _nodes(schema))),
    "strict tools": lambda schema: 1,
    "optional parameters in strict tools": lambda schema: sum(map(_optional, _nodes(schema))),
    _MIXED_TYPES: lambda schema: sum("anyOf" in node or isinstance(node.get("type"), list) for node in _nodes(schema)),
    "fields in strict tools": _field_count,
}


def check_request(tools: Sequence[Tool], rules: Rules) -> None:
    """Check that the `tools` of one request can be strict, and are within its limits together.

    Raises:
        DefinitionError: Some tools cannot be strict (the text has all of them), or exceed a limit together (the text
            has the limit, the count and the tools with the largest shares).
    """
    broken = [(tool.name, *found) for tool in tools if (found := schemas.find_broken_rule(tool, rules)) is not None]
    if len(broken) > 1:  # a single problem is reported when the tool is written
        places: dict[str, list[str]] = {}
        for name, path, rule in broken:
            places.setdefault(rule, []).append(f"{name!r} at {path}")
        each = "; ".join(f"{', '.join(places[rule])}: {rule}" for rule in places)
        raise DefinitionError(f"{len(broken)} tools cannot be strict for {rules.provider}: {each}. {rules.remedy}")
    for over in find_exceeded_limits(tools, rules):
        raise DefinitionError(f"{over}. Leave strict out for some of them")


def find_exceeded_limits(tools: Sequence[Tool], rules: Rules) -> Iterator[str]:
    """Yield the exceeded limits of the strict `tools` of one request, each with the count and the tools with the
    largest shares."""
    for what, most in rules.most_together.items():
        found = {tool.name: schemas.written(tool, rules).counts[what] for tool in tools}
        total = sum(found.values())
        if total > most:
            most_of_it = sorted(found, key=lambda name: -found[name])[:_MOST_NAMED]
            each = ", ".join(f"{name!r} {found[name]}" for name in most_of_it if found[name])
            each += f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
            yield f"{rules.provider} takes at most {most} {what} in one request, and these are {total}: {each}"


def make_strict_test(tools: Sequence[Tool], strict: Strict, rules: Rules | None) -> Callable[[Tool], bool]:
    """Return a function that tells which tools of a request are strict.

    Raises:
        DefinitionError: `strict` names a missing tool.
    """
    if strict != WHERE_POSSIBLE:
        return make_named_test(tools, strict)
    plain = explain_left_plain(tools, rules)
    return lambda tool: tool.name not in plain


def explain_left_plain(tools: Sequence[Tool], rules: Rules | None) -> dict[str, str]:
    """Return the tools that `strict="where possible"` leaves plain, by name, and why.

    Earlier tools go first, as far as the limits of one request allow: adding a tool at the end changes none of them.
    """
    if rules is None:
        return {tool.name: "it has no strict mode for single tools" for tool in tools}
    found: dict[str, str] = {}
    total = dict.fromkeys(rules.most_together, 0)
    for tool in tools:
        why = _find_hindrance(tool, rules, total)
        if why:
            found[tool.name] = why
    if not (found and rules.all_or_none):
        return found
    first = next(iter(found))
    others = f"{first!r} cannot be, and {rules.provider} is strict for all tools of a request or for none"
    return {tool.name: found.get(tool.name, others) for tool in tools}


def _find_hindrance(tool: Tool, rules: Rules, total: dict[str, int]) -> str:
    """Return why the tool cannot be strict beside those already counted in `total`. If it can be, return an empty text
    and count it in `total`."""
    broken = schemas.find_broken_rule(tool, rules)
    if broken is not None:
        return f"at {broken[0]}, {broken[1]}"
    counts = schemas.written(tool, rules).counts
    for what, most in rules.most_together.items():
        if total[what] + counts[what] > most:
            return f"with it the request would have {total[what] + counts[what]} {what}, and takes {most}"
    total |= {what: total[what] + counts[what] for what in counts}
    return ""


def refuse_strict(tools: Sequence[Tool], wanted: Callable[[Tool], bool], provider: str, instead: str = "") -> None:
    """Refuse strict tools, for an API without a strict mode for single tools.

    Raises:
        DefinitionError: A tool is to be strict.
    """
    for tool in tools:
        if wanted(tool):
            raise DefinitionError(
                f"tool {tool.name!r} cannot be strict for {provider}: it has no strict mode for single tools. "
                f"Leave strict out{instead}"
            )
