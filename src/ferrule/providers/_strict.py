"""Strict modes: a tool's schema in the subset of JSON Schema that an API can hold a model to.

What only narrows a value (`minimum`, `uniqueItems`, `not`) may be dropped: it moves into the description of its node,
as Anthropic's SDK does it, and the kernel enforces it still. What would take more or other values cannot be dropped,
and is an error. So every value that a tool takes has a form that the rewritten schema takes, but for two: keys of an
object that nobody declared, where its schema says nothing of them, and leaving out what may also be null.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, cast
from weakref import WeakKeyDictionary

from ferrule.errors import DefinitionError
from ferrule.providers import Strict
from ferrule.providers._read import strict_wanted
from ferrule.values.frozen import FrozenDict, freeze, thaw

if TYPE_CHECKING:
    from ferrule.definition.tool import Tool

Schema = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Rules:
    """The subset that one strict mode takes, and its limits."""

    provider: str
    keeps: frozenset[str]
    """What narrows a value and is held there; anything else that does goes into the description."""
    formats: frozenset[str]
    all_required: bool
    """Whether no property may be left out: one that may be is nullable then, and null means absent."""
    recursion: bool
    open: bool = False
    """Whether it takes objects with keys that nobody declared, and arrays of anything."""
    anchors: bool = True
    """Whether a pattern may say where a text begins or ends."""
    needs_required: bool = False
    """Whether one of a tool's parameters may not be left out, where it has any."""
    most_min_items: int | None = None
    most_levels: int | None = None
    most_properties: int | None = None
    most_enum_values: int | None = None
    most_characters: int | None = None
    """Of all names of properties and definitions and all values of enums, in one schema."""
    most_tools: int | None = None
    most_optional: int | None = None
    most_unions: int | None = None
    most_fields: int | None = None
    """These four: of all strict tools of a request together."""


_STRICT_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
_RANGES = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
# https://platform.openai.com/docs/guides/structured-outputs#supported-schemas
OPENAI = Rules(
    "OpenAI",
    keeps=_RANGES | {"pattern", "format", "minItems", "maxItems"},
    formats=_STRICT_FORMATS,
    all_required=True,
    recursion=True,
    most_levels=10,
    most_properties=5_000,
    most_enum_values=1_000,
    most_characters=120_000,
)
# https://docs.claude.com/en/docs/build-with-claude/structured-outputs; the SDK's lib/_parse/_transform.py
ANTHROPIC = Rules(
    "Anthropic",
    keeps=frozenset({"format", "minItems", "default"}),
    formats=_STRICT_FORMATS | {"uri"},
    all_required=False,
    recursion=False,
    most_min_items=1,
    most_tools=20,
    most_optional=24,
    most_unions=16,
)
# https://docs.aws.amazon.com/bedrock/latest/userguide/structured-output.html: the same subset, as Claude's is
BEDROCK = replace(ANTHROPIC, provider="Bedrock")
# No page lists a subset. The SDK's own helper, extra/utils/_pydantic_helper.py, closes every object and passes on the
# limits of lengths, ranges and items; what it says nothing of goes into the description.
MISTRAL = Rules(
    "Mistral",
    keeps=_RANGES | {"pattern", "format", "minLength", "maxLength", "minItems", "maxItems", "default"},
    formats=_STRICT_FORMATS | {"uri"},
    all_required=False,
    recursion=True,
)
# https://docs.cohere.com/docs/structured-outputs, "Parameter types support"; of fields and required parameters
# https://docs.cohere.com/docs/tool-use-parameter-types, "Important notes"
COHERE = Rules(
    "Cohere",
    keeps=frozenset({"pattern", "format"}),
    formats=frozenset({"date-time", "date", "time", "uuid"}),
    all_required=False,
    recursion=True,
    open=True,
    anchors=False,
    needs_required=True,
    most_fields=200,
)

_ANNOTATIONS = frozenset({"title", "description", "default", "examples"})
_NOISE = frozenset({"$schema", "$id", "$comment", "$anchor", "deprecated", "readOnly", "writeOnly", "discriminator"})
_NARROWS = (
    *("default", "examples", "format", "pattern", "minLength", "maxLength", "contentEncoding", "contentMediaType"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains"),
    *("minProperties", "maxProperties", "propertyNames", "dependentRequired", "not"),
)
_CONDITIONS = ("if", "then", "else", "dependentSchemas")
_SHAPES = frozenset({"type", "$ref", "properties", "items", "enum", "const", "anyOf", "oneOf", "allOf", "prefixItems"})
_LARGER = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains"})
_SMALLER = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains"})
_MOST_NAMED = 8
"""So many tools are named of those that have too much together."""
_NOT_REGULAR = re.compile(r"\(\?[=!<P(]|\\[1-9bBk]|[*+?}]\+")
"""Lookarounds, references back and word boundaries, which a grammar cannot hold."""
_ANCHOR = re.compile(r"[\^$]")


class _Inexpressible(Exception):
    """What cannot be expressed: the path in the schema, and the rule."""


# For as long as the tool lives.
_SCHEMAS: defaultdict[Rules, WeakKeyDictionary[Tool, FrozenDict]] = defaultdict(WeakKeyDictionary)
_COUNTS: defaultdict[tuple[Rules, str], WeakKeyDictionary[Tool, int]] = defaultdict(WeakKeyDictionary)


def strict_schema(tool: Tool, rules: Rules) -> FrozenDict:
    """The tool's schema in the subset of `rules`, rewritten once; read-only.

    Raises:
        DefinitionError: where it cannot be expressed, with the tool, the path, the provider and the rule.
    """
    known = _SCHEMAS[rules].get(tool)
    if known is not None:
        return known
    try:
        found = _rewritten(tool, rules)
    except _Inexpressible as broken:
        path, rule = broken.args
        raise DefinitionError(
            f"tool {tool.name!r} cannot be strict for {rules.provider}: at {path}, {rule}. "
            f"Change its schema, or leave the tool out of strict=..."
        ) from None
    schema = _SCHEMAS[rules][tool] = cast("FrozenDict", freeze(found))
    return schema


def broken_rule(tool: Tool, rules: Rules) -> tuple[str, str] | None:
    """The place in the tool's schema that keeps it from being strict, and the rule; `None` where it can be."""
    try:
        _rewritten(tool, rules)
    except _Inexpressible as broken:
        path, rule = broken.args
        return path, rule
    return None


def _rewritten(tool: Tool, rules: Rules) -> Schema:
    try:
        found = _Rewriting(tool.input_schema, rules).whole()
        _within_limits(found, rules)
    except RecursionError:
        raise _Inexpressible("$", "it nests too deep") from None
    return found


class _Rewriting:
    """One schema that is rewritten, with the definitions that it turns out to need."""

    def __init__(self, root: Mapping[str, Any], rules: Rules) -> None:
        self.root: Schema = thaw(root)
        self.rules = rules
        self.names: dict[str, str] = {}
        self.definitions: dict[str, Schema] = {}
        self.within: list[str] = []
        self.parts = 0

    def whole(self) -> Schema:
        found = self.node(self.root, "$", frozenset({"#"}))
        if self.rules.needs_required and found["properties"] and not found.get("required"):
            _fail("$", "of the parameters at least one has to be required")
        if self.definitions:
            found["$defs"] = self.definitions
        return found

    def node(self, given: Any, path: str, inside: frozenset[str]) -> Schema:
        """The node rewritten; `inside` are the references that are being written out around it."""
        if self.rules.most_unions is None:
            given = _wrapped(given)
        schema, inside = self.simple(given, path, inside)
        if "$ref" in schema:
            return {"$ref": self.reference(schema["$ref"], path)}
        notes: Schema = {}
        if "anyOf" in schema:
            branches = [self.node(item, f"{path}.anyOf[{n}]", inside) for n, item in enumerate(schema["anyOf"])]
            found: Schema = {"anyOf": _distinct(branches)}
        else:
            found = {"type": _types(schema, path)}
            kinds = found["type"] if isinstance(found["type"], list) else [found["type"]]
            found |= _literals(schema, path)
            if "object" in kinds:
                found |= self.object(schema, path, inside)
            if "array" in kinds:
                found |= self.array(schema, path, inside, notes)
        self.narrow(schema, found, notes, path)
        return _described(schema, found, notes)

    # What a schema says in several ways becomes one

    def simple(self, given: Any, path: str, inside: frozenset[str]) -> tuple[Schema, frozenset[str]]:
        """`given` as a lone `$ref`, as a lone `anyOf`, or as something with a type, with nothing beside the first two
        but annotations and notes; and the references that are written out in it."""
        self.parts += 1
        if self.parts > _MOST_PARTS:
            _fail("$", f"written out it has more than {_MOST_PARTS:,} parts")
        if not isinstance(given, Mapping):
            _fail(path, "a schema that takes nothing has no form" if given is False else _ANYTHING)
        schema = {key: item for key, item in given.items() if key not in _NOISE}
        if "oneOf" in schema:
            if "anyOf" in schema:
                _fail(path, "'anyOf' beside 'oneOf' cannot be one union")
            schema["anyOf"] = schema.pop("oneOf")
        for key in ("$dynamicRef", "$recursiveRef", "unevaluatedItems", "additionalItems"):
            if key in schema:
                _fail(path, f"{key!r} cannot be expressed")
        if "$ref" in schema and (len(schema) > 1 or not schema["$ref"].startswith(("#/$defs/", "#/definitions/"))):
            schema, inside = self.inlined(schema, path, inside)
        if schema.get("allOf") is not None:
            schema, inside = self.merged(schema, path, inside)
        if "anyOf" in schema and schema.keys() - _ANNOTATIONS - {"anyOf"}:
            schema = self.distributed(schema, path)
        return schema, inside

    def inlined(self, schema: Schema, path: str, inside: frozenset[str]) -> tuple[Schema, frozenset[str]]:
        reference, beside = schema["$ref"], {key: item for key, item in schema.items() if key not in ("$ref", "$defs")}
        beside.pop("definitions", None)
        if not beside and reference == "#":
            return {"$ref": reference}, inside
        if reference in inside:
            if beside.keys() <= _ANNOTATIONS:
                return {"anyOf": [{"$ref": reference}], **beside}, inside
            _fail(path, f"{reference!r} is recursive, and what stands beside it cannot be written into it")
        target = self.resolved(reference, path)
        merged = _merge(beside, {k: v for k, v in target.items() if k not in _NOISE}, path)
        return self.simple(merged, path, inside | {reference})

    def merged(self, schema: Schema, path: str, inside: frozenset[str]) -> tuple[Schema, frozenset[str]]:
        parts = schema.pop("allOf")
        for part in parts if isinstance(parts, list) else ():
            found, within = self.simple(part, path, inside)
            if "$ref" in found:
                if found["$ref"] in inside:
                    _fail(path, f"{found['$ref']!r} is recursive, and 'allOf' cannot be merged with itself")
                within |= {found["$ref"]}
                found, within = self.simple(self.resolved(found["$ref"], path), path, within)
            inside |= within
            schema = _merge(schema, found, path)
        return schema, inside

    def distributed(self, schema: Schema, path: str) -> Schema:
        """A union and what stands beside it: into each of its branches, or a note where these only narrow."""
        branches = schema["anyOf"]
        base = {key: item for key, item in schema.items() if key != "anyOf" and key not in _ANNOTATIONS}
        if all(isinstance(item, Mapping) and _SHAPES.isdisjoint(item) for item in branches):
            return {key: item for key, item in schema.items() if key != "anyOf"} | {_NOTE: branches}
        if path == "$":
            _fail(path, "'anyOf' is not allowed at the top of a schema")
        apart = {key: item for key, item in schema.items() if key in _ANNOTATIONS}
        return apart | {"anyOf": [{"allOf": [base, item]} for item in branches]}

    # References

    def resolved(self, reference: Any, path: str) -> Mapping[str, Any]:
        found: Any = self.root
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            _fail(path, f"the reference {reference!r} cannot be followed; it may begin with '#/'")
        for part in reference.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping):
            _fail(path, f"the reference {reference!r} leads nowhere")
        return found

    def reference(self, reference: str, path: str) -> str:
        """How `reference` is written, whose definition is rewritten if it was not yet."""
        if not self.rules.recursion and (reference == "#" or reference in self.within):
            _fail(path, f"{reference!r} is recursive, which is not allowed")
        if reference == "#":
            return reference
        if reference not in self.names:
            name = _free_name(reference.rpartition("/")[2], self.definitions)
            self.names[reference] = name
            self.within.append(reference)
            target = self.resolved(reference, path)
            self.definitions[name] = {}
            self.definitions[name] = self.node(target, f"$.$defs.{name}", frozenset({"#", reference}))
            self.within.pop()
        return f"#/$defs/{self.names[reference].replace('~', '~0').replace('/', '~1')}"

    # Kinds of values

    def object(self, schema: Schema, path: str, inside: frozenset[str]) -> Schema:
        properties = schema.get("properties") or {}
        others = self.others(schema, properties, path, inside)
        required = [name for name in schema.get("required", ()) if isinstance(name, str)]
        for name in required:
            if name not in properties:
                _fail(path, f"{name!r} is required and not among the properties")
        found = {name: self.node(item, f"{path}.properties.{name}", inside) for name, item in properties.items()}
        if self.rules.all_required:
            for name in found.keys() - set(required):
                found[name] = self.nullable(found[name])
            required = list(found)
        shown: Schema = {"properties": found}
        if required or self.rules.all_required:
            shown["required"] = required
        return shown | {"additionalProperties": others}

    def others(self, schema: Schema, properties: Mapping[str, Any], path: str, inside: frozenset[str]) -> Any:
        """What keys may hold that the object does not declare. One that declares some and says nothing is closed."""
        if schema.get("patternProperties"):
            _fail(path, "'patternProperties' cannot be expressed")
        others = schema.get("additionalProperties", schema.get("unevaluatedProperties"))
        if others is False or (others is None and properties):
            return False
        if not self.rules.open:
            _fail(path, "an object needs 'properties' and 'additionalProperties': false")
        return True if others in (None, True, {}) else self.node(others, f"{path}.additionalProperties", inside)

    def nullable(self, node: Schema) -> Schema:
        if self.takes_null(node):
            return node
        apart: Schema = {key: node[key] for key in ("title", "description") if key in node}
        if "anyOf" in node:
            return node | {"anyOf": [*node["anyOf"], {"type": "null"}]}
        if "$ref" in node:
            return {"anyOf": [node, {"type": "null"}]}
        if "enum" in node or "const" in node:
            bare = {key: item for key, item in node.items() if key not in ("title", "description")}
            return {"anyOf": [bare, {"type": "null"}], **apart}
        kinds = node["type"] if isinstance(node["type"], list) else [node["type"]]
        return node | {"type": [*kinds, "null"]}

    def takes_null(self, node: Schema, seen: set[str] | None = None) -> bool:
        """Whether null is among its values; `seen` are the definitions of which that is being asked already."""
        seen = set() if seen is None else seen
        if "$ref" in node:
            name = _definition_name(node["$ref"])
            known = self.definitions.get(name)
            if not known or name in seen:
                return False
            seen.add(name)
            return self.takes_null(known, seen)
        if "anyOf" in node:
            return any(self.takes_null(item, seen) for item in node["anyOf"])
        if "enum" in node or "const" in node:
            return None in node.get("enum", [node.get("const", "")])
        return "null" in (node["type"] if isinstance(node["type"], list) else [node["type"]])

    def array(self, schema: Schema, path: str, inside: frozenset[str], notes: Schema) -> Schema:
        items, first = schema.get("items"), schema.get("prefixItems")
        if isinstance(items, list):
            _fail(path, "'items' is one schema; a list of them is 'prefixItems'")
        if not first:
            if items in (None, True, {}) and self.rules.open:
                return {}
            if items is None:
                _fail(path, f"an array without 'items' has items that take anything: {_ANYTHING}")
            return {"items": self.node(items, f"{path}.items", inside)}
        notes["prefixItems"] = first
        branches = [self.node(item, f"{path}.prefixItems[{n}]", inside) for n, item in enumerate(first)]
        ends = items is False or schema.get("maxItems", len(first) + 1) <= len(first)
        if not ends:
            branches.append(self.node(items, f"{path}.items", inside))
        elif items is False:
            notes["items"] = False
        branches = _distinct(branches)
        return {"items": branches[0] if len(branches) == 1 else {"anyOf": branches}}

    def narrow(self, schema: Schema, found: Schema, notes: Schema, path: str) -> None:
        """What only narrows: kept where the API holds it, and noted otherwise."""
        for key in _NARROWS:
            if key not in schema:
                continue
            if self.holds(key, schema[key]):
                found[key] = schema[key]
            elif key != "default" or schema[key] is not None:
                notes[key] = schema[key]
        if _NOTE in schema:
            notes["anyOf"] = schema[_NOTE]
        conditions = {key: schema[key] for key in _CONDITIONS if key in schema}
        unknown = sorted(_condition_properties(conditions) - (schema.get("properties") or {}).keys())
        if unknown:
            _fail(path, f"{next(iter(conditions))!r} has properties of its own, {unknown}")
        notes |= conditions

    def holds(self, key: str, value: Any) -> bool:
        rules = self.rules
        if key not in rules.keeps:
            return False
        if key == "format":
            return value in rules.formats
        if key == "pattern":
            regular = isinstance(value, str) and not _NOT_REGULAR.search(value)
            return regular and (rules.anchors or not _ANCHOR.search(value))
        return not (key == "minItems" and rules.most_min_items is not None and value > rules.most_min_items)


_MOST_PARTS = 20_000
"""A schema of a few lines may be written out into any number: definitions that lead to two others each double it."""
_MOST_FORMS = 1_000
"""Of one value, where parts of an 'allOf' are unions: what fits both fits a pair of their branches."""
_NOTE = "\0note"
"""No keyword: where a union is kept that only narrows."""
_ANYTHING = "a schema without a type takes anything, and has to say a type, an enum or a union"


def _fail(path: str, rule: str) -> NoReturn:
    raise _Inexpressible(path, rule)


def _wrapped(given: Any) -> Any:
    """A reference with nothing but annotations beside it as a union of that reference alone, which keeps it short.

    Not where unions are counted: there it is written out.
    """
    if not isinstance(given, Mapping) or not str(given.get("$ref", "")).startswith(("#/$defs/", "#/definitions/")):
        return given
    beside = {key: item for key, item in given.items() if key != "$ref" and key not in _NOISE}
    if not beside or not beside.keys() <= _ANNOTATIONS:
        return given
    return {"anyOf": [{"$ref": given["$ref"]}], **beside}


def _definition_name(reference: str) -> str:
    """The name of the definition that a rewritten reference leads to."""
    return reference.rpartition("/")[2].replace("~1", "/").replace("~0", "~")


def _types(schema: Schema, path: str) -> Any:
    kind = schema.get("type")
    if kind is not None:
        return kind[0] if isinstance(kind, list) and len(kind) == 1 else kind
    values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema["const"]] if "const" in schema else []
    if not values:
        _fail(path, _ANYTHING)
    kinds = list(dict.fromkeys(_TYPE_OF_CLASS.get(type(value), "object") for value in values))
    return kinds[0] if len(kinds) == 1 else kinds


_TYPE_OF_CLASS = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}


def _literals(schema: Schema, path: str) -> Schema:
    found: Schema = {key: schema[key] for key in ("enum", "const") if key in schema}
    values = [*found.get("enum", ()), *([found["const"]] if "const" in found else [])]
    if any(isinstance(value, dict | list) for value in values):
        _fail(path, "an enum or const may hold texts, numbers, booleans and null only")
    if "enum" in found and "const" in found:
        if found["const"] not in found["enum"]:
            _fail(path, "'const' is none of the enum's values")
        del found["enum"]
    return found


def _condition_properties(conditions: Schema) -> set[str]:
    """The names of all properties inside conditions."""
    found: set[str] = set()
    for value in conditions.values():
        if isinstance(value, Mapping):
            inner = value.get("properties")
            found |= inner.keys() if isinstance(inner, Mapping) else set()
            found |= _condition_properties(cast("Schema", value))
    return found


def _distinct(branches: list[Schema]) -> list[Schema]:
    found: dict[str, Schema] = {}
    for branch in branches:
        for item in branch["anyOf"] if branch.keys() == {"anyOf"} else [branch]:
            found.setdefault(json.dumps(item, sort_keys=True), item)
    return list(found.values())


def _free_name(name: str, taken: Collection[str]) -> str:
    name = name.replace("~1", "/").replace("~0", "~")
    while name in taken:
        name += "_"
    return name


def _described(schema: Schema, found: Schema, notes: Schema) -> Schema:
    for key in ("title", "description"):
        if isinstance(schema.get(key), str):
            found[key] = schema[key]
    if notes:
        noted = ", ".join(
            f"{key}: {value if isinstance(value, str) else _as_json(value)}" for key, value in notes.items()
        )
        found["description"] = f"{found['description']}\n\n{{{noted}}}" if "description" in found else f"{{{noted}}}"
    return found


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# Merging: a value has to fit both


def _merge(one: Mapping[str, Any], other: Mapping[str, Any], path: str) -> Schema:
    found = dict(one)
    for key, value in other.items():
        if key not in found:
            found[key] = value
        elif found[key] != value and key not in _ANNOTATIONS and key != "additionalProperties":
            found[key] = _merged_keyword(key, found[key], value, path)
    _keep_closed(found, one, other, path)
    return found


def _merged_keyword(key: str, one: Any, other: Any, path: str) -> Any:
    if key in ("properties", "$defs", "definitions"):
        common = {
            name: {"allOf": [one[name], other[name]]} for name in one if name in other and one[name] != other[name]
        }
        return {**one, **other, **common}
    if key == "required":
        return list(dict.fromkeys([*one, *other]))
    if key == "type":
        return _common_types(one, other, path)
    if key == "enum":
        return [value for value in one if value in other] or _fail(path, "'allOf' leaves no value of the enums")
    if key in _LARGER or key in _SMALLER:
        return max(one, other) if key in _LARGER else min(one, other)
    if key == "items":
        return {"allOf": [one, other]}
    if key in ("uniqueItems", "unevaluatedProperties"):
        return one or other if key == "uniqueItems" else one and other
    if key == "anyOf":
        if len(one) * len(other) > _MOST_FORMS:
            _fail(path, f"'allOf' of unions makes more than {_MOST_FORMS:,} forms")
        return [{"allOf": [first, second]} for first in one for second in other]
    _fail(path, f"'allOf' cannot be merged: two parts say {key!r}")


def _common_types(one: Any, other: Any, path: str) -> Any:
    first, second = ([kinds] if isinstance(kinds, str) else list(kinds) for kinds in (one, other))
    found = [kind for kind in first if kind in second or (kind == "integer" and "number" in second)]
    found += [kind for kind in second if kind == "integer" and "number" in first and "integer" not in found]
    if not found:
        _fail(path, "'allOf' leaves no type")
    return found[0] if len(found) == 1 else found


def _keep_closed(found: Schema, one: Mapping[str, Any], other: Mapping[str, Any], path: str) -> None:
    """Where one part is closed, what only the other declares can never be there."""
    for closed, beside in ((one, other), (other, one)):
        if closed.get("additionalProperties") is False:
            for name in (beside.get("properties") or {}).keys() - (closed.get("properties") or {}).keys():
                if name in found.get("required", ()):
                    _fail(path, f"'allOf' requires {name!r} in one part and refuses it in another")
                found["properties"] = {key: item for key, item in found["properties"].items() if key != name}
            found["additionalProperties"] = False
    both = [part["additionalProperties"] for part in (one, other) if "additionalProperties" in part]
    if len(both) == 2 and False not in both and both[0] != both[1]:
        _fail(path, "'allOf' cannot be merged: two parts say 'additionalProperties'")


# Limits


def _within_limits(schema: Schema, rules: Rules) -> None:
    limits: tuple[tuple[str, int | None, Callable[[Mapping[str, Any]], int]], ...] = (
        ("levels of nesting", rules.most_levels, lambda schema: _levels(schema, schema, {})),
        ("properties", rules.most_properties, _count_properties),
        ("enum values", rules.most_enum_values, lambda schema: sum(len(n.get("enum", ())) for n in _nodes(schema))),
        ("characters of names and enums", rules.most_characters, lambda schema: sum(map(_characters, _nodes(schema)))),
    )
    for what, most, count in limits:
        if most is not None and (found := count(schema)) > most:
            _fail("$", f"the schema has {found} {what}, and {most} are the most")


def _nodes(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Every node of a schema that was rewritten."""
    yield schema
    for inner in _children(schema):
        yield from _nodes(inner)
    for inner in schema.get("$defs", {}).values():
        yield from _nodes(inner)


def _children(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    lone = [schema[key] for key in ("items", "additionalProperties") if isinstance(schema.get(key), Mapping)]
    return [*schema.get("properties", {}).values(), *lone, *schema.get("anyOf", ())]


def _levels(node: Mapping[str, Any], root: Mapping[str, Any], known: dict[str, int]) -> int:
    """How deep it nests; `known` are those of the definitions. A reference back to what is around it adds none."""
    reference = node.get("$ref")
    if reference == "#":
        return 0
    if reference is not None:
        if reference not in known:
            known[reference] = 0
            known[reference] = _levels(root["$defs"][_definition_name(reference)], root, known)
        return known[reference]
    below = max((_levels(inner, root, known) for inner in _children(node)), default=0)
    return below + ("properties" in node or "items" in node)


def _characters(node: Mapping[str, Any]) -> int:
    values = [*node.get("enum", ()), *([node["const"]] if "const" in node else [])]
    names = [*node.get("properties", ()), *node.get("$defs", ())]
    return sum(len(value) for value in [*values, *names] if isinstance(value, str))


def _count_properties(schema: Mapping[str, Any]) -> int:
    return sum(len(node.get("properties", ())) for node in _nodes(schema))


def _optional(schema: Mapping[str, Any]) -> int:
    return sum(len(node.get("properties", {}).keys() - set(node.get("required", ()))) for node in _nodes(schema))


def _unions(schema: Mapping[str, Any]) -> int:
    return sum("anyOf" in node or isinstance(node.get("type"), list) for node in _nodes(schema))


def check_request(tools: Sequence[Tool], rules: Rules) -> None:
    """Whether the strict `tools` of one request are within its limits together.

    Raises:
        DefinitionError: where they are not, with the count and who has most of it; where one cannot be strict.
    """
    for over in over_limits(tools, rules):
        raise DefinitionError(f"{over}. Leave some tools out of strict=...")


def over_limits(tools: Sequence[Tool], rules: Rules) -> Iterator[str]:
    """What the strict `tools` of one request have too much of together, with the count and who has most of it."""
    limits: tuple[tuple[str, int | None, Callable[[Mapping[str, Any]], int]], ...] = (
        ("strict tools", rules.most_tools, lambda schema: 1),
        ("optional parameters in strict tools", rules.most_optional, _optional),
        ("parameters of several types in strict tools", rules.most_unions, _unions),
        ("fields in strict tools", rules.most_fields, _count_properties),
    )
    for what, most, count in limits:
        if most is None:
            continue
        found = {tool.name: _counted(tool, rules, what, count) for tool in tools}
        total = sum(found.values())
        if total > most:
            most_of_it = sorted(found, key=lambda name: -found[name])[:_MOST_NAMED]
            each = ", ".join(f"{name!r} {found[name]}" for name in most_of_it if found[name])
            each += f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
            yield f"{rules.provider} takes at most {most} {what} in one request, and these are {total}: {each}"


def _counted(tool: Tool, rules: Rules, what: str, count: Callable[[Mapping[str, Any]], int]) -> int:
    counts = _COUNTS[rules, what]
    found = counts.get(tool)
    if found is None:
        found = counts[tool] = count(strict_schema(tool, rules))
    return found


def refuse_strict(tools: Sequence[Tool], strict: Strict, provider: str, instead: str = "") -> None:
    """For an API without a strict mode for single tools.

    Raises:
        DefinitionError: where `strict` wants one, or names a tool that is not there.
    """
    wanted = strict_wanted(tools, strict)
    for tool in tools if strict else ():
        if wanted(tool):
            raise DefinitionError(
                f"tool {tool.name!r} cannot be strict for {provider}: it has no strict mode for single tools. "
                f"Leave strict=... out{instead}"
            )
