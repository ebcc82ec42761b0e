"""Shared code of both rewritings of a tool's schema: follow references, merge the parts of `allOf`, and describe to the
model the parts that the schema itself cannot have."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, NoReturn, TypeVar

from pydantic_core import from_json, to_json

from ferrule.arguments.schema_content import BOOLEAN_SETTINGS, SCHEMA_FORMS, SchemaContent
from ferrule.errors import DefinitionError
from ferrule.values.frozen import FrozenDict

if TYPE_CHECKING:
    from ferrule.definition.tool import Tool

Schema = dict[str, Any]


class Names(NamedTuple):
    """The names that a tool's parameters may have.

    Attributes:
        pattern: The pattern of a whole name.
        words: The same for people.
    """

    pattern: re.Pattern[str]
    words: str


# "input_schema.properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'", at the top level alone:
# https://github.com/aws-solutions-library-samples/accelerated-intelligent-document-processing-on-aws/issues/709
CLAUDE_NAMES = Names(re.compile(r"[a-zA-Z0-9_.-]{1,64}"), "it takes letters, digits, '_', '.' and '-', 64 at most")


class Written(NamedTuple):
    """A schema in the form for a request.

    Attributes:
        schema: The schema; read-only.
        told: A text for the tool's description, because the API has no place for it in the schema.
        counts: The amounts that a request limits for all tools together.
    """

    schema: FrozenDict
    told: str = ""
    counts: Mapping[str, int] = {}


@dataclass(frozen=True, eq=False, kw_only=True)
class Subset:
    """The part of JSON Schema that one API accepts, in one mode."""

    provider: str
    names: Names | None = None
    """The allowed names of the parameters, if they are limited; names further inside are not."""

    purpose: ClassVar[str]
    """The words for the mode in errors: a tool "cannot be {purpose} {provider}"."""
    remedy: ClassVar[str]

    def write(self, root: FrozenDict, content: SchemaContent | None = None) -> Written:
        """Return the schema in this subset. `content` is its content, if that is known."""
        raise NotImplementedError(type(self))


class Inexpressible(Exception):
    """A part that cannot be expressed: its path in the schema, and the rule."""


def fail(path: str, rule: str) -> NoReturn:
    raise Inexpressible(path, rule)


def written(tool: Tool, rules: Subset) -> Written:
    """Return the tool's schema in the subset of `rules`, rewritten once; the tool's own object if nothing had to
    change.

    Raises:
        DefinitionError: The schema cannot be expressed. The text has the tool, the path, the provider and the rule.
    """
    try:
        return _write(tool, rules)
    except Inexpressible as broken:
        path, rule = broken.args
        raise DefinitionError(
            f"tool {tool.name!r} cannot be {rules.purpose} {rules.provider}: at {path}, {rule}. {rules.remedy}"
        ) from None


def find_broken_rule(tool: Tool, rules: Subset) -> tuple[str, str] | None:
    """Return the place in the tool's schema that cannot be expressed, and the rule; `None` if the whole schema can."""
    try:
        _write(tool, rules)
    except Inexpressible as broken:
        path, rule = broken.args
        return path, rule
    return None


def _write(tool: Tool, rules: Subset) -> Written:
    parameters = tool.handling.parameters
    found: Written | None = parameters.written.get(rules)
    if found is None:
        try:
            found = parameters.written[rules] = rules.write(parameters.exported, parameters.content)
        except RecursionError:
            raise Inexpressible("$", "it nests too deep") from None
    return found


ANNOTATIONS = frozenset({"title", "description", "default", "examples"})
DEFINITIONS = frozenset({"$defs", "definitions"})
# "Grammar error: failed to compile JSON schema" of $id and $schema: https://github.com/BerriAI/litellm/issues/13389
ADDRESSES = DEFINITIONS | {"$schema", "$id", "$anchor", "$dynamicAnchor", "discriminator"}
"""Targets of references: these are written anew."""
NOISE = ADDRESSES | {"$comment", "deprecated", "readOnly", "writeOnly"}
ANYTHING = "a schema without a type takes anything, and has to say a type, an enum or a union"
_LEADS_TO = (b'"$id"', b'"$anchor"', b'"$dynamicAnchor"')
_MOST_PARTS = 20_000
"""A short schema may be written out into any number of parts: each definition that leads to two others doubles it."""
_MOST_FORMS = 1_000
"""The most forms of one value, if parts of an 'allOf' are unions: a value of both fits a pair of their branches."""
_LARGER = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})
_SMALLER = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})
CONDITIONAL = {"if": ("then", "else"), "contains": ("minContains", "maxContains"), "not": ()}
"""Keywords that mean something else, and perhaps accept less, if their schema accepts more; and the keywords that
depend on them."""


def map_inner(schema: Mapping[str, Any], path: str, change: Callable[..., Any], *more: Any) -> Schema:
    """Return a copy, with `change(schema, path, *more)` of each schema directly in it."""
    found = dict(schema)
    for key, value in schema.items():
        holds = SCHEMA_FORMS.get(key)
        if holds is None:
            continue
        at = f"{path}.{key}"
        if holds == "named" and isinstance(value, dict):
            found[key] = {name: change(item, f"{at}.{name}", *more) for name, item in value.items()}
        elif holds == "listed" and isinstance(value, list):
            found[key] = [change(item, f"{at}[{n}]", *more) for n, item in enumerate(value)]
        elif holds == "lone" and (isinstance(value, dict) or (value in (True, False) and key not in BOOLEAN_SETTINGS)):
            found[key] = change(value, at, *more)
    return found


def inner(schema: Mapping[str, Any], path: str = "$") -> list[tuple[str, Any]]:
    """Return the schemas directly in one, with their paths."""
    found: list[tuple[str, Any]] = []
    map_inner(schema, path, lambda item, at: found.append((at, item)))
    return found


def bare(given: Mapping[str, Any], without: Collection[str]) -> Schema:
    """Return a copy without some keywords and with `anyOf` as its only union, because a value may fit two forms after
    these are loosened."""
    schema = {key: item for key, item in given.items() if key not in without}
    if "oneOf" in schema:
        forms = schema.pop("oneOf")
        if "anyOf" in schema:
            schema["allOf"] = [*schema.get("allOf", ()), {"anyOf": forms}]
        else:
            schema["anyOf"] = forms
    return schema


def _modernize(given: Any, bare_references: bool) -> Any:
    """Return an older draft as draft 2020-12, because the APIs check against that or assume it.

    Args:
        bare_references: Whether keywords beside a `$ref` are ignored, as up to draft 7.
    """
    if not isinstance(given, Mapping):
        return given
    schema = dict(given)
    if bare_references and "$ref" in schema:
        schema = {key: item for key, item in schema.items() if key in ANNOTATIONS | DEFINITIONS | {"$ref"}}
    if isinstance(schema.get("items"), list):
        first, rest = schema.pop("items"), schema.pop("additionalItems", None)
        schema |= ({"prefixItems": first} if first else {}) | ({} if rest is None else {"items": rest})
    for key, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(schema.get(key), bool) and schema.pop(key) and limit in schema:
            schema[key] = schema.pop(limit)
    if bare_references and isinstance(schema.get("dependencies"), Mapping):
        needs = schema.pop("dependencies")
        for key, listed in (("dependentRequired", True), ("dependentSchemas", False)):
            if some := {name: item for name, item in needs.items() if isinstance(item, list) is listed}:
                schema[key] = some
    return map_inner(schema, "$", lambda item, at: _modernize(item, bare_references))


def children(schema: Mapping[str, Any]) -> list[Any]:
    """Return the schemas in a rewritten one, without its definitions and without `true` and `false`."""
    return [item for _, item in inner({**schema, "$defs": None}) if isinstance(item, Mapping)]


def _collect_addresses(node: Any, base: str, found: dict[str, Any]) -> None:
    """Collect the possible targets of references in `found`, and write references that begin with `#` beneath an `$id`
    relative to that."""
    if not isinstance(node, dict):
        return
    address = node.get("$id", "")
    if address and not address.startswith("#"):
        base, address = address.removesuffix("#"), ""
    for place in (address, *(f"#{node[key]}" for key in ("$anchor", "$dynamicAnchor") if key in node)):
        found.setdefault(base + place, node)
    if str(node.get("$ref")).startswith("#"):
        node["$ref"] = base + node["$ref"]
    for _, item in inner(node):
        _collect_addresses(item, base, found)


RulesT = TypeVar("RulesT", bound=Subset)


class Walk(Generic[RulesT]):
    """One schema to rewrite, with the definitions for it."""

    def __init__(self, root: Mapping[str, Any], rules: RulesT) -> None:
        text = to_json(root, inf_nan_mode="constants")
        self.root: Schema = from_json(text)  # the quickest copy
        draft = self.root.get("$schema", "2020-12")
        if "2020-12" not in draft:
            del self.root["$schema"]
            self.root = _modernize(self.root, "2019-09" not in draft)
        self.rules = rules
        self.addresses: dict[str, Any] = {"": self.root, self.root.pop("$id", ""): self.root}
        if any(key in text for key in _LEADS_TO):  # next to no schema has one
            _collect_addresses(self.root, "", self.addresses)
        self.names: dict[str, str] = {}
        self.definitions: dict[str, Schema] = {}
        self.within: list[str] = []
        self.parts = 0

    def node(self, given: Any, path: str, inside: frozenset[str]) -> Any:
        """Return the rewritten node. `inside` are the references that are being written out around it."""
        raise NotImplementedError(type(self))

    def count_part(self) -> None:
        self.parts += 1
        if self.parts > _MOST_PARTS:
            fail("$", f"written out it has more than {_MOST_PARTS:,} parts")

    def check_names(self, properties: Mapping[str, Any], path: str) -> None:
        names = self.rules.names
        for name in properties:
            if names and not names.pattern.fullmatch(name):
                fail(
                    f"{path}.properties.{name}", f"the parameter {name!r} has a name that is not allowed: {names.words}"
                )

    def resolve(self, reference: Any, path: str) -> Mapping[str, Any]:
        base, _, place = str(reference).partition("#")
        found = follow_pointer(self.addresses.get(reference if place and place[0] != "/" else base), place)
        if not isinstance(found, Mapping):
            fail(path, f"the reference {reference!r} leads nowhere")
        return found

    def reference(self, reference: str, path: str) -> str:
        """Return the rewritten form of `reference`, and rewrite its definition if that is not done yet."""
        if reference == "#":
            return reference
        if reference not in self.names:
            self.resolve(reference, path)
            name = definition_name(reference).strip("#")
            while name in self.definitions:
                name += "_"
            self.names[reference], self.definitions[name] = name, {}
            self.define(reference)
        return f"#/$defs/{self.names[reference].replace('~', '~0').replace('/', '~1')}"

    def define(self, reference: str) -> None:
        name = self.names[reference]
        target = self.resolve(reference, f"$.$defs.{name}")
        self.within.append(reference)
        self.definitions[name] = self.node(target, f"$.$defs.{name}", frozenset({"#", reference}))
        self.within.pop()

    def flatten(
        self, given: Any, path: str, inside: frozenset[str], notes: Schema | None = None
    ) -> tuple[Schema, frozenset[str]]:
        """Return `given` with its reference and all parts of `allOf` merged into it; and `inside` with these
        references. A part that cannot be merged fails, or goes into `notes`."""
        self.count_part()
        if isinstance(given, bool):
            return {} if given else {"not": {}}, inside
        schema = bare(given, NOISE)
        parts = schema.pop("allOf", [])
        reference = schema.pop("$ref", None)
        if reference is not None:
            ended = self.is_circular(reference, inside)
            parts = [self.end_circle(reference, path) if ended else self.resolve(reference, path), *parts]
            inside |= {reference}
        for part in parts:
            try:
                found, inside = self.flatten(part, path, inside, notes)
                schema = merge(schema, found, path)
            except Inexpressible:
                if notes is None:
                    raise
                notes.setdefault("allOf", []).append(part)
        return schema, inside

    def is_circular(self, reference: str, inside: frozenset[str]) -> bool:
        """Return whether `reference` is not to be written out once more."""
        return reference in inside

    def end_circle(self, reference: str, path: str) -> Schema:
        """Return the replacement for a `reference` that leads back to a schema being written out."""
        fail(path, f"{reference!r} is recursive, and what stands beside it cannot be written into it")

    def items(self, schema: Schema, path: str, inside: frozenset[str], notes: Schema) -> Any:
        """Return one schema for all items of an array. The separate schemas of its first items go into `notes`."""
        first, rest = schema.get("prefixItems"), schema.get("items", {})
        if not first:
            return self.node(rest, f"{path}.items", inside)
        notes["prefixItems"] = first
        branches = [self.node(item, f"{path}.prefixItems[{n}]", inside) for n, item in enumerate(first)]
        if rest is False:
            notes["items"] = False
        elif schema.get("maxItems", len(first) + 1) > len(first):
            branches.append(self.node(rest, f"{path}.items", inside))
        return make_union(branches)


def definition_name(reference: str) -> str:
    """Return the last name in a reference: the name of the definition in a rewritten schema."""
    return reference.rpartition("/")[2].replace("~1", "/").replace("~0", "~")


def follow_pointer(root: Any, pointer: str) -> Any:
    """Return the target of a JSON pointer; `None` if there is none."""
    for part in pointer.split("/")[1:]:
        root = root.get(definition_name(part)) if isinstance(root, Mapping) else None
    return root


def list_types(schema: Mapping[str, Any], default: str = "") -> list[str]:
    """Return the types that a schema names."""
    kinds = schema.get("type", default)
    return list(kinds) if isinstance(kinds, list) else [kinds]


def list_values(schema: Mapping[str, Any]) -> list[Any]:
    """Return the values that a schema lists."""
    return schema["enum"] if "enum" in schema else [schema["const"]] if "const" in schema else []


def infer_types(schema: Schema) -> Any:
    """Return the types of the values that a schema lists; `None` if it lists none."""
    kinds = list(dict.fromkeys(_TYPE_OF_CLASS.get(type(value), "object") for value in list_values(schema)))
    return kinds[0] if len(kinds) == 1 else kinds or None


_TYPE_OF_CLASS = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null", list: "array"}


def remove_duplicates(branches: Iterable[Any]) -> list[Any]:
    """Return the branches of a union without duplicates, and without unions directly in it."""
    found: dict[str, Any] = {}
    for branch in branches:
        for item in branch["anyOf"] if isinstance(branch, Mapping) and branch.keys() == {"anyOf"} else [branch]:
            found.setdefault(json.dumps(item, sort_keys=True), item)
    return list(found.values())


def make_union(branches: list[Any]) -> Any:
    """Return a schema that accepts the values of any branch."""
    branches = remove_duplicates(branches)
    return branches[0] if len(branches) == 1 else {"anyOf": branches}


def add_description(schema: Schema, found: Schema, notes: Schema) -> Schema:
    """Return `found` with the title and description of `schema` and with `notes`."""
    for key in ("title", "description"):
        if isinstance(schema.get(key), str):
            found[key] = schema[key]
    return add_notes(found, notes)


def add_notes(found: Schema, notes: Schema) -> Schema:
    """Return `found` with `notes` in its description, in the form of Anthropic's SDK for dropped keywords."""
    if notes:
        told = ", ".join(
            f"{key}: {value if isinstance(value, str) else format_json(value)}" for key, value in notes.items()
        )
        found["description"] = f"{found['description']}\n\n{{{told}}}" if "description" in found else f"{{{told}}}"
    return found


def format_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# Merging: a value has to fit both


def merge(one: Mapping[str, Any], other: Mapping[str, Any], path: str) -> Schema:
    """Return a schema for the values that both accept. The annotations of `one` win."""
    for key, beside in CONDITIONAL.items():
        said = [{word: part[word] for word in (key, *beside) if word in part} for part in (one, other)]
        if all(said) and said[0] != said[1]:
            fail(path, f"'allOf' cannot be merged: two parts say {key!r}")
    found = dict(one)
    for key, value in other.items():
        if key not in found:
            found[key] = value
        elif found[key] != value and key not in ANNOTATIONS and key != "additionalProperties":
            found[key] = _merged_keyword(key, found[key], value, path)
    _close_object(found, one, other, path)
    return found


def _merged_keyword(key: str, one: Any, other: Any, path: str) -> Any:
    if key == "properties":
        return {**one, **other, **{name: _both_fields(one[name], other[name], path) for name in one if name in other}}
    if key == "required":
        return list(dict.fromkeys([*one, *other]))
    if key == "type":
        return _common_types(one, other, path)
    if key == "enum":
        return [value for value in one if value in other] or fail(path, "'allOf' leaves no value of the enums")
    if key in _LARGER or key in _SMALLER:
        return max(one, other) if key in _LARGER else min(one, other)
    if key == "items":
        return {"allOf": [one, other]}
    if key == "uniqueItems":
        return one or other
    if key == "unevaluatedProperties":
        return {}
    if key == "anyOf":
        if len(one) * len(other) > _MOST_FORMS:
            fail(path, f"'allOf' of unions makes more than {_MOST_FORMS:,} forms")
        return [{"allOf": [first, second]} for first in one for second in other]
    fail(path, f"'allOf' cannot be merged: two parts say {key!r}")


def _both_fields(one: Any, other: Any, path: str) -> Any:
    """Merge two schemas of a property; if they cannot be merged yet, return an `allOf`."""
    if one == other:
        return one
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        with suppress(Inexpressible):
            return merge(one, other, path)
    return {"allOf": [one, other]}


def _common_types(one: Any, other: Any, path: str) -> Any:
    first, second = ([kinds] if isinstance(kinds, str) else list(kinds) for kinds in (one, other))
    found = [kind for kind in first if kind in second or (kind == "integer" and "number" in second)]
    found += [kind for kind in second if kind == "integer" and "number" in first and "integer" not in found]
    if not found:
        fail(path, "'allOf' leaves no type")
    return found[0] if len(found) == 1 else found


def _close_object(found: Schema, one: Mapping[str, Any], other: Mapping[str, Any], path: str) -> None:
    """If one part is closed, drop the properties that only the other declares."""
    for closed, beside in ((one, other), (other, one)):
        if closed.get("additionalProperties") is False:
            for name in (beside.get("properties") or {}).keys() - (closed.get("properties") or {}).keys():
                if name in found.get("required", ()):
                    fail(path, f"'allOf' requires {name!r} in one part and refuses it in another")
                found["properties"] = {key: item for key, item in found["properties"].items() if key != name}
            found["additionalProperties"] = False
    both = [part["additionalProperties"] for part in (one, other) if "additionalProperties" in part]
    if len(both) == 2 and False not in both and both[0] != both[1]:
        fail(path, "'allOf' cannot be merged: two parts say 'additionalProperties'")
