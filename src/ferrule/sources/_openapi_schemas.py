"""From the schemas of an OpenAPI document to JSON Schema 2020-12, with all that one refers to below its `$defs`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import urljoin

from ferrule import DefinitionError
from ferrule.sources._openapi_document import Document, Node

Direction: TypeAlias = Literal["request", "response"]
"""Which way the values go: of a request `readOnly` properties are no part, and of a response those that are
`writeOnly`."""

MOST_NODES: Final = 20_000
"""Keywords and values in the schemas of one operation, with all that they refer to."""
_MOST_DEEP: Final = 100
_BY_NAME: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SINGLE: Final = frozenset(
    {"items", "additionalItems", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"}
    | {"unevaluatedProperties", "unevaluatedItems", "contentSchema"}
)
_SAYS_NOTHING_OF_VALUES: Final = frozenset(
    {"example", "examples", "discriminator", "xml", "externalDocs", "nullable", "readOnly", "writeOnly", "$comment"}
    | {"$id", "id", "$schema", "$anchor", "$dynamicAnchor", "$vocabulary", "$recursiveAnchor", "$recursiveRef"}
)
"""What says nothing of which values are taken, or names a place: every place is written anew. `$recursiveRef` is none
of the dialect, and some documents have it."""
_COMPONENT = re.compile(r"#/components/schemas/([A-Za-z0-9._-]+)")
_HIDDEN_IN: Final[dict[Direction, str]] = {"request": "readOnly", "response": "writeOnly"}


@dataclass
class Converted:
    """A schema of JSON Schema 2020-12.

    Attributes:
        schema: It, whose references lead to `$defs` that it has not.
        refers: The URIs of what these are.
        nodes: How many keywords and values there are in it.
    """

    schema: Any = True
    refers: set[str] = field(default_factory=set)
    nodes: int = 0


class Schemas:
    """The schemas of one document, each of which that others refer to is converted once.

    Args:
        direction: Which way the values go.
    """

    def __init__(self, document: Document, direction: Direction) -> None:
        self._document = document
        self._hidden = _HIDDEN_IN[direction]
        self._shared: dict[str, Converted] = {}

    def bundle(self, *schemas: Node) -> tuple[list[Any], dict[str, Any]]:
        """The schemas converted, and the `$defs` that they all refer to.

        Raises:
            DefinitionError: for what is no schema, a reference that leads nowhere, and too much.
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
        made.schema = self._schema(node, made, 0)
        return made

    def _schema(self, node: Node, made: Converted, deep: int) -> Any:
        value, base = node
        _count(made, deep)
        if isinstance(value, bool):
            return value
        if not isinstance(value, Mapping):
            raise DefinitionError(f"{value!r:.100} stands where a schema has to be")
        if "$dynamicRef" in value:
            raise DefinitionError("its schema has $dynamicRef, which is not read: write $ref")
        if "$ref" in value and (self._document.minor == 0 or len(value) == 1):
            return self._reference(value["$ref"], base, made)
        found: dict[str, Any] = {}
        for key, item in value.items():
            if key == "$ref":
                found |= self._reference(item, base, made)
            elif key not in _SAYS_NOTHING_OF_VALUES and not str(key).startswith("x-"):
                found[str(key)] = self._keyword(str(key), Node(item, base), made, deep + 1)
        self._hide(value, base, found)
        return _from_3_0(value, found) if self._document.minor == 0 else found

    def _reference(self, reference: Any, base: str, made: Converted) -> dict[str, str]:
        if not isinstance(reference, str):
            raise DefinitionError(f"{reference!r:.100} stands where a reference has to be")
        uri = urljoin(base, reference) if base else reference
        made.refers.add(uri)
        return {"$ref": f"#/$defs/{_definition_name(uri, self._base)}"}

    def _keyword(self, key: str, node: Node, made: Converted, deep: int) -> Any:
        value, base = node
        if key in _BY_NAME and isinstance(value, Mapping):
            return {str(name): self._schema(Node(one, base), made, deep) for name, one in value.items()}
        if isinstance(value, list) and (key in _LISTS or key == "items"):
            return [self._schema(Node(one, base), made, deep) for one in value]
        if key in _SINGLE:
            return self._schema(node, made, deep)
        return _plain_json_value(value, made, deep)

    def _hide(self, value: Mapping[str, Any], base: str, found: dict[str, Any]) -> None:
        """Take out the properties that do not go this way."""
        properties = value.get("properties")
        if not isinstance(properties, Mapping):
            return
        gone = {str(name) for name, one in properties.items() if self.is_hidden(Node(one, base))}
        if gone:
            found["properties"] = {name: one for name, one in found["properties"].items() if name not in gone}
            if isinstance(required := found.get("required"), list):
                found["required"] = [name for name in required if name not in gone]

    def is_hidden(self, node: Node) -> bool:
        """Whether a property does not go this way."""
        value = node.value
        if isinstance(value, Mapping) and "$ref" in value and value.get(self._hidden) is not True:
            value = self._document.follow(node).value
        return isinstance(value, Mapping) and value.get(self._hidden) is True


def _plain_json_value(value: Any, made: Converted, deep: int) -> Any:
    _count(made, deep)
    if isinstance(value, Mapping):
        return {str(key): _plain_json_value(item, made, deep + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain_json_value(item, made, deep + 1) for item in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return str(value)  # a date that a reader of YAML 1.1 made


def _count(made: Converted, deep: int) -> None:
    made.nodes += 1
    if made.nodes > MOST_NODES:
        raise DefinitionError(f"a schema has over {MOST_NODES:,} keywords")
    if deep > _MOST_DEEP:
        raise DefinitionError(f"a schema nests over {_MOST_DEEP} deep")


def _from_3_0(value: Mapping[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """What OpenAPI 3.0 writes otherwise: https://spec.openapis.org/oas/v3.0.4#schema-object"""
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
    """A name for `$defs`, the same wherever it is made: that of a component of the document itself, and else one with a
    digest of the whole."""
    found = _COMPONENT.fullmatch(uri.removeprefix(base) if base else uri)
    if found is not None:
        return found[1]
    last = re.sub(r"[^A-Za-z0-9_.-]", "_", uri.rpartition("/")[2])[-40:]
    return f"{last}_{sha256(uri.encode()).hexdigest()[:8]}"


def keywords_of(schema: Any) -> Iterator[str]:
    """The keywords at the top of a schema that decide which values are taken."""
    if isinstance(schema, Mapping):
        yield from (
            key for key in schema if key not in _SAYS_NOTHING_OF_VALUES and key not in _SAYS_NOTHING and key[:2] != "x-"
        )


_SAYS_NOTHING: Final = frozenset({"title", "description", "deprecated", "default", "format"})
