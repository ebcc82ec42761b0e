"""From the schemas of an OpenAPI document to JSON Schema 2020-12, with all referenced schemas below its `$defs`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import urljoin

from ferrule import DefinitionError
from ferrule.openapi.document import Document, Node, check_length
from ferrule.security.foreign_text import clean_schema

Direction: TypeAlias = Literal["request", "response"]
"""The direction of the values: a request has no `readOnly` properties, and a response no `writeOnly` ones."""

MOST_NODES: Final = 20_000
"""Most keywords and values in the schemas of one operation, with all referenced schemas."""
_MOST_SCHEMA_TEXT: Final = 200_000
_A_NODE: Final = 20
"""The work of making a tool for each of its nodes, in microseconds."""
_MOST_DESCRIPTION: Final = 8_000
_MOST_DEEP: Final = 100
_MOST_COMPOSED: Final = 5
_NONE: Final = frozenset[str]()
_BY_NAME: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_LISTS: Final = frozenset({"anyOf", "oneOf", "prefixItems"})
_SINGLE: Final = frozenset(
    {"items", "additionalItems", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"}
    | {"unevaluatedProperties", "unevaluatedItems", "contentSchema"}
)
_PLAIN_KEYWORDS: Final = frozenset(
    {"type", "enum", "const", "format", "pattern", "required", "dependentRequired", "uniqueItems", "multipleOf"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems"}
    | {"minContains", "maxContains", "minProperties", "maxProperties", "contentEncoding", "contentMediaType"}
    | {"title", "description", "default", "deprecated"}
)
"""Keywords with values that hold no schemas. Anything else than a keyword of JSON Schema 2020-12 is left out, so a
reference to something else than a schema shows nothing of it. `examples` are left out because they cost tokens, and
`$id` because every place is written anew."""
_KEYWORDS: Final = _PLAIN_KEYWORDS | _BY_NAME | _LISTS | _SINGLE
_COMPONENT = re.compile(r"#/components/schemas/([A-Za-z0-9._-]+)")
_HIDDEN_IN: Final[dict[Direction, str]] = {"request": "readOnly", "response": "writeOnly"}


@dataclass
class Converted:
    """A schema of JSON Schema 2020-12.

    Attributes:
        schema: The schema. Its references lead to `$defs` outside of it.
        refers: The URIs of these definitions.
        nodes: The number of keywords and values in it.
        characters: The number of characters of its texts.
    """

    schema: Any = True
    refers: set[str] = field(default_factory=set)
    nodes: int = 0
    characters: int = 0


class Schemas:
    """The schemas of one document. Each referenced schema is converted once.

    Args:
        direction: The direction of the values.
    """

    def __init__(self, document: Document, direction: Direction) -> None:
        self._document = document
        self._hidden = _HIDDEN_IN[direction]
        self._shared: dict[str, Converted] = {}

    def bundle(self, *schemas: Node) -> tuple[list[Any], dict[str, Any]]:
        """Return the schemas converted, and all the `$defs` in their references.

        Raises:
            DefinitionError: A value is no schema, a reference leads nowhere, or there is too much.
        """
        converted = [self._converted(one) for one in schemas]
        waiting, needed = [uri for one in converted for uri in sorted(one.refers)], dict[str, Converted]()
        nodes = sum(one.nodes for one in converted)
        while waiting:
            uri = waiting.pop()
            if uri in needed:
                continue
            needed[uri] = shared = self._shared_at(uri)
            nodes += shared.nodes
            self._document.spend(_A_NODE * shared.nodes)
            if nodes > MOST_NODES:
                raise DefinitionError(f"its schemas have over {MOST_NODES:,} keywords, with all that they refer to")
            waiting += sorted(shared.refers - needed.keys())
        return [one.schema for one in converted], {
            _definition_name(uri, self._base): needed[uri].schema for uri in needed
        }

    @property
    def _base(self) -> str:
        return self._document.root.base

    def _shared_at(self, uri: str) -> Converted:
        if uri not in self._shared:
            self._shared[uri] = self._converted(self._document.at(uri or "#", self._base))
        return self._shared[uri]

    def _converted(self, node: Node) -> Converted:
        made = Converted()
        try:
            made.schema, _ = clean_schema(self._schema(node, made, 0, frozenset()), _MOST_DESCRIPTION)
        finally:  # also for refused schemas
            self._document.spend(_A_NODE * made.nodes)
        return made

    def _schema(self, node: Node, made: Converted, deep: int, hidden: frozenset[str]) -> Any:
        """Return the schema converted.

        Args:
            hidden: The properties hidden by other schemas of the same `allOf`.
        """
        value, base = node
        _count(made, deep)
        if isinstance(value, bool):
            return value
        if not isinstance(value, Mapping):
            raise DefinitionError(f"a {type(value).__name__} stands where a schema has to be")
        if "$dynamicRef" in value:
            raise DefinitionError("its schema has $dynamicRef, which is not read: write $ref")
        if "$ref" in value and (self._document.minor == 0 or len(value) == 1):
            return self._reference(value["$ref"], base, made)
        hidden |= self._hidden_names(node)
        found: dict[str, Any] = {}
        for key, item in value.items():
            if key == "$ref":
                found |= self._reference(item, base, made)
            elif key == "allOf" and isinstance(item, list):
                found[key] = [self._schema(Node(one, base), made, deep + 1, hidden) for one in item]
            elif key in _KEYWORDS:
                found[key] = self._keyword(key, Node(item, base), made, deep + 1)
        _refuse_hidden(found, hidden)
        return _from_3_0(value, found) if self._document.minor == 0 else found

    def _reference(self, reference: Any, base: str, made: Converted) -> dict[str, str]:
        if not isinstance(reference, str):
            raise DefinitionError(f"a {type(reference).__name__} stands where a reference has to be")
        check_length(reference)
        uri = urljoin(base, reference) if base else reference
        made.refers.add(uri)
        return {"$ref": f"#/$defs/{_definition_name(uri, self._base)}"}

    def _keyword(self, key: str, node: Node, made: Converted, deep: int) -> Any:
        value, base = node
        if key in _BY_NAME and isinstance(value, Mapping):
            return {str(name): self._schema(Node(one, base), made, deep, _NONE) for name, one in value.items()}
        if isinstance(value, list) and (key in _LISTS or key == "items"):
            return [self._schema(Node(one, base), made, deep, _NONE) for one in value]
        if key in _SINGLE:
            return self._schema(node, made, deep, _NONE)
        return _plain_json_value(value, made, deep)

    def _hidden_names(self, node: Node, seen: set[int] | None = None) -> frozenset[str]:
        """Return the properties hidden in this direction, by the schema itself and by those in its `allOf`."""
        value, base = node if seen is None else self._document.follow(node)
        seen = set() if seen is None else seen
        if not isinstance(value, Mapping) or id(value) in seen:
            return _NONE
        seen.add(id(value))
        properties, inner = value.get("properties"), value.get("allOf")
        found = properties.items() if isinstance(properties, Mapping) else ()
        names = frozenset(str(name) for name, one in found if self.is_hidden(Node(one, base)))
        for one in inner if isinstance(inner, list) else ():
            names |= self._hidden_names(Node(one, base), seen)
        return names

    def is_hidden(self, node: Node) -> bool:
        """Return whether a property is hidden in this direction."""
        for _ in range(_MOST_COMPOSED):
            if not isinstance(node.value, Mapping):
                return False
            if node.value.get(self._hidden) is True:
                return True
            inner = node.value.get("allOf")
            if "$ref" in node.value:
                node = self._document.follow(node)
            elif isinstance(inner, list) and len(inner) == 1:
                node = Node(inner[0], node.base)
            else:
                return False
        return False


def _refuse_hidden(found: dict[str, Any], hidden: frozenset[str]) -> None:
    """Remove properties from a schema, and from its required ones, and make it refuse them: an open object would take
    them like any other name. Nothing else is refused, because schemas beside it may have more properties."""
    properties = found.get("properties")
    if hidden and isinstance(properties, Mapping) and (names := sorted(hidden & properties.keys())):
        found["properties"] = {name: one for name, one in properties.items() if name not in hidden}
        if found.get("additionalProperties") is not False:
            others = {"not": {"enum": names}}
            named = found.get("propertyNames")
            found["propertyNames"] = others if named is None else {"allOf": [named, others]}
    if hidden and isinstance(required := found.get("required"), list):
        found["required"] = [name for name in required if not (isinstance(name, str) and name in hidden)]


def _plain_json_value(value: Any, made: Converted, deep: int) -> Any:
    _count(made, deep)
    if isinstance(value, Mapping):
        return {str(key): _plain_json_value(item, made, deep + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain_json_value(item, made, deep + 1) for item in value]
    if isinstance(value, str):
        made.characters += len(value)
        if made.characters > _MOST_SCHEMA_TEXT:
            raise DefinitionError(f"a schema has over {_MOST_SCHEMA_TEXT:,} characters")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return str(value)  # a date from a reader of YAML 1.1


def _count(made: Converted, deep: int) -> None:
    made.nodes += 1
    if made.nodes > MOST_NODES:
        raise DefinitionError(f"a schema has over {MOST_NODES:,} keywords")
    if deep > _MOST_DEEP:
        raise DefinitionError(f"a schema nests over {_MOST_DEEP} deep")


def _from_3_0(value: Mapping[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Convert the keywords with another form in OpenAPI 3.0: https://spec.openapis.org/oas/v3.0.4#schema-object"""
    for exclusive, bound in (("exclusiveMaximum", "maximum"), ("exclusiveMinimum", "minimum")):
        if isinstance(found.get(exclusive), bool) and found.pop(exclusive) and bound in found:
            found[exclusive] = found.pop(bound)
    if value.get("nullable") is not True:
        return found
    if isinstance(found.get("enum"), list) and None not in found["enum"]:
        found["enum"] = [*found["enum"], None]
    if isinstance(found.get("type"), str):
        return {**found, "type": [found["type"], "null"]}
    about: dict[str, Any] = {
        key: found.pop(key) for key in ("title", "description", "default", "deprecated") if key in found
    }
    return {**about, "anyOf": [found, {"type": "null"}]} if found else about


def _definition_name(uri: str, base: str) -> str:
    """Return a name for `$defs`, always the same: the name of a component of the document itself, or else one with a
    digest of the whole URI."""
    found = _COMPONENT.fullmatch(uri.removeprefix(base) if base else uri)
    if found is not None:
        return found[1]
    last = re.sub(r"[^A-Za-z0-9_.-]", "_", uri.rpartition("/")[2])[-40:]
    return f"{last}_{sha256(uri.encode()).hexdigest()[:8]}"


def keywords_of(schema: Any) -> Iterator[str]:
    """Yield the keywords at the top of a schema that decide about valid values, references among them."""
    if isinstance(schema, Mapping):
        yield from (key for key in schema if key == "$ref" or key == "allOf" or key in _KEYWORDS - _SAYS_NOTHING)


_SAYS_NOTHING: Final = frozenset({"title", "description", "deprecated", "default", "format"})
