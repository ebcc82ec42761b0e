"""What both rewritings of a tool's schema do: follow references, merge what a value has to fit together, and tell the
model what cannot stand in the schema itself."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn
from weakref import WeakKeyDictionary

from ferrule.errors import DefinitionError
from ferrule.values.frozen import FrozenDict, freeze, thaw

if TYPE_CHECKING:
    from ferrule.definition.tool import Tool

Schema = dict[str, Any]


class Names(NamedTuple):
    """The names that a tool's parameters may have.

    Attributes:
        pattern: What a whole name fits.
        words: The same for people.
    """

    pattern: re.Pattern[str]
    words: str


# "input_schema.properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'", at the top level alone:
# https://github.com/aws-solutions-library-samples/accelerated-intelligent-document-processing-on-aws/issues/709
CLAUDE_NAMES = Names(re.compile(r"[a-zA-Z0-9_.-]{1,64}"), "it takes letters, digits, '_', '.' and '-', 64 at most")


class Written(NamedTuple):
    """A schema as it is sent.

    Attributes:
        schema: Read-only.
        told: What belongs into the tool's description, as the API has no place for it in the schema.
    """

    schema: FrozenDict
    told: str = ""


@dataclass(frozen=True, eq=False, kw_only=True)
class Subset:
    """What one API takes of JSON Schema, in one mode."""

    provider: str
    names: Names | None = None
    """Those of the parameters, where they are limited; names further inside are not."""

    purpose: ClassVar[str]
    """What a tool cannot be where its schema cannot be expressed."""
    remedy: ClassVar[str]

    def write(self, root: FrozenDict) -> tuple[Mapping[str, Any], str]:
        """The schema in this subset, and what belongs into the tool's description."""
        raise NotImplementedError(type(self))


class Inexpressible(Exception):
    """What cannot be expressed: the path in the schema, and the rule."""


def fail(path: str, rule: str) -> NoReturn:
    raise Inexpressible(path, rule)


# For as long as the tool lives.
_SENT: defaultdict[Subset, WeakKeyDictionary[Tool, Written]] = defaultdict(WeakKeyDictionary)


def written(tool: Tool, rules: Subset) -> Written:
    """The tool's schema in the subset of `rules`, rewritten once; the tool's own object where nothing had to change.

    Raises:
        DefinitionError: where it cannot be expressed, with the tool, the path, the provider and the rule.
    """
    known = _SENT[rules].get(tool)
    if known is not None:
        return known
    try:
        schema, told = _write(tool, rules)
    except Inexpressible as broken:
        path, rule = broken.args
        raise DefinitionError(
            f"tool {tool.name!r} cannot be {rules.purpose} {rules.provider}: at {path}, {rule}. {rules.remedy}"
        ) from None
    found = _SENT[rules][tool] = Written(freeze(schema), told)
    return found


def broken_rule(tool: Tool, rules: Subset) -> tuple[str, str] | None:
    """The place in the tool's schema that cannot be expressed, and the rule; `None` where all can be."""
    try:
        _write(tool, rules)
    except Inexpressible as broken:
        path, rule = broken.args
        return path, rule
    return None


def _write(tool: Tool, rules: Subset) -> tuple[Mapping[str, Any], str]:
    try:
        return rules.write(tool.input_schema)
    except RecursionError:
        raise Inexpressible("$", "it nests too deep") from None


ANNOTATIONS = frozenset({"title", "description", "default", "examples"})
NOISE = frozenset({"$schema", "$id", "$comment", "$anchor", "deprecated", "readOnly", "writeOnly", "discriminator"})
DEFINITIONS = frozenset({"$defs", "definitions"})
ANYTHING = "a schema without a type takes anything, and has to say a type, an enum or a union"
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", *DEFINITIONS})
_LISTED = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_LONE = frozenset(
    [
        *("items", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else"),
        *("unevaluatedItems", "unevaluatedProperties"),
    ]
)
_MAY_BE_BARE = frozenset({"additionalProperties", "unevaluatedProperties", "unevaluatedItems"})
"""Where `true` and `false` are no schemas to the APIs, but settings."""
_MOST_PARTS = 20_000
"""A schema of a few lines may be written out into any number: definitions that lead to two others each double it."""
_MOST_FORMS = 1_000
"""Of one value, where parts of an 'allOf' are unions: what fits both fits a pair of their branches."""
_LARGER = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains"})
_SMALLER = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains"})


def with_inner(schema: Mapping[str, Any], path: str, change: Callable[[Any, str], Any]) -> Schema:
    """A copy, with `change(schema, path)` of each schema that stands directly in it."""
    found = dict(schema)
    for key, value in schema.items():
        at = f"{path}.{key}"
        if key in _NAMED and isinstance(value, Mapping):
            found[key] = {name: change(item, f"{at}.{name}") for name, item in value.items()}
        elif key in _LISTED and isinstance(value, list):
            found[key] = [change(item, f"{at}[{n}]") for n, item in enumerate(value)]
        elif key in _LONE and (isinstance(value, Mapping) or (value in (True, False) and key not in _MAY_BE_BARE)):
            found[key] = change(value, at)
    return found


def _modern(given: Any, path: str = "$", bare_references: bool = True) -> Any:
    """An older draft as draft 2020-12, which the APIs check against or take for granted.

    `bare_references`: up to draft 7 nothing counts that stands beside a `$ref`.
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
    return with_inner(schema, path, lambda item, at: _modern(item, at, bare_references))


def children(schema: Mapping[str, Any]) -> list[Any]:
    """The schemas that stand in one that was rewritten, without its definitions and without `true` and `false`."""
    lone = [schema[key] for key in ("items", "additionalProperties") if key in schema]
    found = [*schema.get("properties", {}).values(), *lone, *schema.get("anyOf", ()), *schema.get("oneOf", ())]
    return [item for item in found if isinstance(item, Mapping)]


class Walk:
    """One schema that is rewritten, with the definitions that it turns out to need."""

    def __init__(self, root: Mapping[str, Any], rules: Subset) -> None:
        self.root: Schema = thaw(root)
        draft = self.root.get("$schema", "2020-12")
        if "2020-12" not in draft:
            del self.root["$schema"]
            self.root = _modern(self.root, bare_references="2019-09" not in draft)
        self.subset = rules
        self.names: dict[str, str] = {}
        self.definitions: dict[str, Schema] = {}
        self.within: list[str] = []
        self.parts = 0

    def node(self, given: Any, path: str, inside: frozenset[str]) -> Any:
        """The node rewritten; `inside` are the references that are being written out around it."""
        raise NotImplementedError(type(self))

    def count_part(self) -> None:
        self.parts += 1
        if self.parts > _MOST_PARTS:
            fail("$", f"written out it has more than {_MOST_PARTS:,} parts")

    def check_names(self, properties: Mapping[str, Any], path: str) -> None:
        names = self.subset.names
        for name in properties if names else ():
            if names and not names.pattern.fullmatch(name):
                fail(f"{path}.properties.{name}", f"the parameter {name!r} has a name that is not taken: {names.words}")

    def resolved(self, reference: Any, path: str) -> Mapping[str, Any]:
        found: Any = self.root
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            fail(path, f"the reference {reference!r} cannot be followed; it may begin with '#/'")
        for part in reference.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping):
            fail(path, f"the reference {reference!r} leads nowhere")
        return found

    def reference(self, reference: str, path: str) -> str:
        """How `reference` is written, whose definition is rewritten if it was not yet."""
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

    def flattened(
        self, given: Any, path: str, inside: frozenset[str], notes: Schema | None = None
    ) -> tuple[Schema, frozenset[str]]:
        """`given` with what it refers to and all parts of `allOf` written into it; and `inside` with these references.
        What cannot be merged fails, or goes into `notes`."""
        self.count_part()
        if isinstance(given, bool):
            return {} if given else {"not": {}}, inside
        schema = {key: item for key, item in given.items() if key not in NOISE | DEFINITIONS}
        if "oneOf" in schema and "anyOf" not in schema:
            schema["anyOf"] = schema.pop("oneOf")
        parts = schema.pop("allOf", [])
        reference = schema.pop("$ref", None)
        if reference is not None:
            ended = self.is_written_out(reference, inside)
            parts = [self.circle(reference, path) if ended else self.resolved(reference, path), *parts]
            inside |= {reference}
        for part in parts:
            try:
                found, inside = self.flattened(part, path, inside, notes)
                schema = merge(schema, found, path)
            except Inexpressible:
                if notes is None:
                    raise
                notes.setdefault("allOf", []).append(part)
        return schema, inside

    def is_written_out(self, reference: str, inside: frozenset[str]) -> bool:
        """Whether `reference` is not to be written out once more."""
        return reference in inside

    def circle(self, reference: str, path: str) -> Schema:
        """What is written where `reference` leads back to what is being written out."""
        fail(path, f"{reference!r} is recursive, and what stands beside it cannot be written into it")

    def items(self, schema: Schema, path: str, inside: frozenset[str], notes: Schema) -> Any:
        """One schema for all items of an array; that those at the beginning have their own goes into `notes`."""
        first, rest = schema.get("prefixItems"), schema.get("items", {})
        if not first:
            return self.node(rest, f"{path}.items", inside)
        notes["prefixItems"] = first
        branches = [self.node(item, f"{path}.prefixItems[{n}]", inside) for n, item in enumerate(first)]
        if rest is False:
            notes["items"] = False
        elif schema.get("maxItems", len(first) + 1) > len(first):
            branches.append(self.node(rest, f"{path}.items", inside))
        return one_of(branches)


def definition_name(reference: str) -> str:
    """The name of the definition that a rewritten reference leads to."""
    return reference.rpartition("/")[2].replace("~1", "/").replace("~0", "~")


def kinds_of(schema: Mapping[str, Any], default: str = "") -> list[str]:
    """The types that a schema names."""
    kinds = schema.get("type", default)
    return list(kinds) if isinstance(kinds, list) else [kinds]


def types_of_values(schema: Schema) -> Any:
    """The types of the values that a schema lists; `None` where it lists none."""
    values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema["const"]] if "const" in schema else []
    kinds = list(dict.fromkeys(_TYPE_OF_CLASS.get(type(value), "object") for value in values))
    return kinds[0] if len(kinds) == 1 else kinds or None


_TYPE_OF_CLASS = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null", list: "array"}


def distinct(branches: list[Any]) -> list[Any]:
    """The branches of a union without those that say the same, and without unions directly in it."""
    found: dict[str, Any] = {}
    for branch in branches:
        for item in branch["anyOf"] if isinstance(branch, Mapping) and branch.keys() == {"anyOf"} else [branch]:
            found.setdefault(json.dumps(item, sort_keys=True), item)
    return list(found.values())


def one_of(branches: list[Any]) -> Any:
    """What takes all that one of the branches takes."""
    branches = distinct(branches)
    return branches[0] if len(branches) == 1 else {"anyOf": branches}


def described(schema: Schema, found: Schema, notes: Schema) -> Schema:
    """`found` with the words of `schema` and with `notes`, as Anthropic's SDK writes what it drops."""
    for key in ("title", "description"):
        if isinstance(schema.get(key), str):
            found[key] = schema[key]
    if notes:
        noted = ", ".join(
            f"{key}: {value if isinstance(value, str) else as_json(value)}" for key, value in notes.items()
        )
        found["description"] = f"{found['description']}\n\n{{{noted}}}" if "description" in found else f"{{{noted}}}"
    return found


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _free_name(name: str, taken: Collection[str]) -> str:
    name = name.replace("~1", "/").replace("~0", "~")
    while name in taken:
        name += "_"
    return name


# Merging: a value has to fit both


def merge(one: Mapping[str, Any], other: Mapping[str, Any], path: str) -> Schema:
    """What takes a value that both take; the words of `one` come first."""
    found = dict(one)
    for key, value in other.items():
        if key not in found:
            found[key] = value
        elif found[key] != value and key not in ANNOTATIONS and key != "additionalProperties":
            found[key] = _merged_keyword(key, found[key], value, path)
    _keep_closed(found, one, other, path)
    return found


def _merged_keyword(key: str, one: Any, other: Any, path: str) -> Any:
    if key in ("properties", "$defs", "definitions"):
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
    if key in ("uniqueItems", "unevaluatedProperties"):
        return one or other if key == "uniqueItems" else one and other
    if key == "anyOf":
        if len(one) * len(other) > _MOST_FORMS:
            fail(path, f"'allOf' of unions makes more than {_MOST_FORMS:,} forms")
        return [{"allOf": [first, second]} for first in one for second in other]
    fail(path, f"'allOf' cannot be merged: two parts say {key!r}")


def _both_fields(one: Any, other: Any, path: str) -> Any:
    """Merged where no keyword is in question, and else left for later."""
    if one == other:
        return one
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if all(one[key] == other[key] for key in (one.keys() & other.keys()) - ANNOTATIONS):
            return merge(one, other, path)
    return {"allOf": [one, other]}


def _common_types(one: Any, other: Any, path: str) -> Any:
    first, second = ([kinds] if isinstance(kinds, str) else list(kinds) for kinds in (one, other))
    found = [kind for kind in first if kind in second or (kind == "integer" and "number" in second)]
    found += [kind for kind in second if kind == "integer" and "number" in first and "integer" not in found]
    if not found:
        fail(path, "'allOf' leaves no type")
    return found[0] if len(found) == 1 else found


def _keep_closed(found: Schema, one: Mapping[str, Any], other: Mapping[str, Any], path: str) -> None:
    """Where one part is closed, what only the other declares can never be there."""
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
