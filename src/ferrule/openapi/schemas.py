"""From the schemas of an OpenAPI document to JSON Schema 2020-12, with all referenced schemas below its `$defs`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final
from urllib.parse import urljoin

from ferrule import DefinitionError
from ferrule.openapi.document import Document, Node, check_reference_length
from ferrule.security.foreign_text import clean_schema

MOST_NODES: Final = 20_000
"""Most keywords and values in the schemas of one operation, with all referenced schemas."""
_MOST_SCHEMA_TEXT: Final = 200_000
_NODE_COST: Final = 20
"""The work of making a tool for each of its nodes, in microseconds."""
_MOST_DESCRIPTION: Final = 8_000
_MOST_DEEP: Final = 100
_MOST_COMPOSED: Final = 5
_NO_NAMES: Final = frozenset[str]()
_SCHEMAS_BY_NAME: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_SCHEMA_LISTS: Final = frozenset({"anyOf", "oneOf", "prefixItems"})
_SINGLE_SCHEMAS: Final = frozenset(
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
_KEYWORDS: Final = _PLAIN_KEYWORDS | _SCHEMAS_BY_NAME | _SCHEMA_LISTS | _SINGLE_SCHEMAS
_COMPONENT = re.compile(r"#/components/schemas/([A-Za-z0-9._-]+)")


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
    """The schemas of one document, for requests: without `readOnly` properties. Each referenced schema is converted
    once."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._shared: dict[str, Converted] = {}

    def bundle(self, *schemas: Node) -> tuple[list[Any], dict[str, Any]]:
        """Return the schemas converted, and all the `$defs` in their references.

        Raises:
            DefinitionError: A value is no schema, a reference leads nowhere, or there is too much.
        """
        converted = [self._convert(one) for one in schemas]
        waiting, needed = [uri for one in converted for uri in sorted(one.refers)], dict[str, Converted]()
        nodes = sum(one.nodes for one in converted)
        while waiting:
            uri = waiting.pop()
            if uri in needed:
                continue
            needed[uri] = shared = self._convert_shared(uri)
            nodes += shared.nodes
            self._document.spend(_NODE_COST * shared.nodes)
            if nodes > MOST_NODES:
                raise DefinitionError(f"its schemas have over {MOST_NODES:,} keywords, including their references")
            waiting += sorted(shared.refers - needed.keys())
        return [one.schema for one in converted], {
            _definition_name(uri, self._base): needed[uri].schema for uri in needed
        }

    @property
    def _base(self) -> str:
        return self._document.root.base

    def _convert_shared(self, uri: str) -> Converted:
        if uri not in self._shared:
            self._shared[uri] = self._convert(self._document.resolve(uri or "#", self._base))
        return self._shared[uri]

    def _convert(self, node: Node) -> Converted:
        converted = Converted()
        try:
            schema = self._convert_schema(node, converted, 0, frozenset())
            converted.schema, _ = clean_schema(schema, _MOST_DESCRIPTION)
        finally:  # also for refused schemas
            self._document.spend(_NODE_COST * converted.nodes)
        return converted

    def _convert_schema(self, node: Node, converted: Converted, depth: int, hidden: frozenset[str]) -> Any:
        """Return the schema converted.

        Args:
            hidden: The properties hidden by other schemas of the same `allOf`.
        """
        value, base = node
        _count(converted, depth)
        if isinstance(value, bool):
            return value
        if not isinstance(value, Mapping):
            raise DefinitionError(f"a {type(value).__name__} is not a schema")
        if "$dynamicRef" in value:
            raise DefinitionError("its schema has $dynamicRef, which is not supported: write $ref")
        if "$ref" in value and (self._document.minor == 0 or len(value) == 1):
            return self._convert_reference(value["$ref"], base, converted)
        hidden |= self._hidden_names(node)
        found: dict[str, Any] = {}
        for key, item in value.items():
            if key == "$ref":
                found |= self._convert_reference(item, base, converted)
            elif key == "allOf" and isinstance(item, list):
                found[key] = [self._convert_schema(Node(one, base), converted, depth + 1, hidden) for one in item]
            elif key in _KEYWORDS:
                found[key] = self._convert_keyword(key, Node(item, base), converted, depth + 1)
        _refuse_hidden(found, hidden)
        return _convert_from_3_0(value, found) if self._document.minor == 0 else found

    def _convert_reference(self, reference: Any, base: str, converted: Converted) -> dict[str, str]:
        if not isinstance(reference, str):
            raise DefinitionError(f"a {type(reference).__name__} is not a reference")
        check_reference_length(reference)
        uri = urljoin(base, reference) if base else reference
        converted.refers.add(uri)
        return {"$ref": f"#/$defs/{_definition_name(uri, self._base)}"}

    def _convert_keyword(self, key: str, node: Node, converted: Converted, depth: int) -> Any:
        value, base = node
        if key in _SCHEMAS_BY_NAME and isinstance(value, Mapping):
            return {
                str(name): self._convert_schema(Node(schema, base), converted, depth, _NO_NAMES)
                for name, schema in value.items()
            }
        if isinstance(value, list) and (key in _SCHEMA_LISTS or key == "items"):
            return [self._convert_schema(Node(one, base), converted, depth, _NO_NAMES) for one in value]
        if key in _SINGLE_SCHEMAS:
            return self._convert_schema(node, converted, depth, _NO_NAMES)
        return _plain_json_value(value, converted, depth)

    def _hidden_names(self, node: Node, seen: set[int] | None = None) -> frozenset[str]:
        """Return the `readOnly` properties of the schema itself and of those in its `allOf`."""
        value, base = node if seen is None else self._document.follow(node)
        seen = set() if seen is None else seen
        if not isinstance(value, Mapping) or id(value) in seen:
            return _NO_NAMES
        seen.add(id(value))
        properties, inner = value.get("properties"), value.get("allOf")
        found = properties.items() if isinstance(properties, Mapping) else ()
        names = frozenset(str(name) for name, one in found if self.is_hidden(Node(one, base)))
        for one in inner if isinstance(inner, list) else ():
            names |= self._hidden_names(Node(one, base), seen)
        return names

    def is_hidden(self, node: Node) -> bool:
        """Return whether a property is `readOnly`."""
        for _ in range(_MOST_COMPOSED):
            if not isinstance(node.value, Mapping):
                return False
            if node.value.get("readOnly") is True:
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


def _plain_json_value(value: Any, converted: Converted, depth: int) -> Any:
    _count(converted, depth)
    if isinstance(value, Mapping):
        return {str(key): _plain_json_value(item, converted, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain_json_value(item, converted, depth + 1) for item in value]
    if isinstance(value, str):
        converted.characters += len(value)
        if converted.characters > _MOST_SCHEMA_TEXT:
            raise DefinitionError(f"a schema has over {_MOST_SCHEMA_TEXT:,} characters")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return str(value)  # a date from a reader of YAML 1.1


def _count(converted: Converted, depth: int) -> None:
    converted.nodes += 1
    if converted.nodes > MOST_NODES:
        raise DefinitionError(f"a schema has over {MOST_NODES:,} keywords")
    if depth > _MOST_DEEP:
        raise DefinitionError(f"a schema is nested more than {_MOST_DEEP} deep")


def _convert_from_3_0(value: Mapping[str, Any], found: dict[str, Any]) -> dict[str, Any]:
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


def find_constraints(schema: Any) -> Iterator[str]:
    """Yield the keywords at the top of a schema that decide about valid values, references among them."""
    if isinstance(schema, Mapping):
        yield from (key for key in schema if key == "$ref" or key == "allOf" or key in _KEYWORDS - _ANNOTATIONS)


_ANNOTATIONS: Final = frozenset({"title", "description", "deprecated", "default", "format"})
