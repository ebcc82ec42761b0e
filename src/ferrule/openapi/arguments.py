"""The arguments of an operation: its parameters and its body, by names for a model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from ferrule import DefinitionError
from ferrule.openapi.bodies import MOST_ARGUMENTS, STYLES, Body, Encoding, Place, RequestPart, make_body
from ferrule.openapi.document import Document, Node
from ferrule.openapi.operations import IN_BRACES, Operation, clean_description, digest, is_token
from ferrule.openapi.schemas import Schemas
from ferrule.security.foreign_text import to_one_line
from ferrule.security.http_answers import is_json_type

_PLACES: Final = ("path", "query", "querystring", "header", "cookie")
_NOT_ARGUMENTS: Final = frozenset({"accept", "content-type", "authorization"})
"""Headers that are no parameters, by the specification."""
_CONNECTION_HEADERS: Final = frozenset(
    {"host", "content-length", "content-encoding", "transfer-encoding", "connection", "keep-alive", "te", "trailer"}
    | {"upgrade", "cookie", "proxy-authorization", "proxy-connection", "expect"}
)

_KEY_HEADER: Final = "idempotency-key"
"""https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-idempotency-key-header"""
_MOST_NAME: Final = 1_000
_ARGUMENT = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""Names of parameters that every model API takes."""
_PATH_ARGUMENT: Final = {
    "type": "string",
    "format": "path",
    "description": "Else where it is, if you may read files there.",
}
_FILE_ARGUMENT: Final = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "The file's name."},
        "mime_type": {"type": "string", "description": "Such as text/csv."},
        "text": {"type": "string", "contentMediaType": "text/plain", "description": "What is in it, of a text file."},
        "data": {"type": "string", "contentEncoding": "base64", "description": "Else its bytes, as base64."},
        "path": _PATH_ARGUMENT,
    },
    "additionalProperties": False,
    "minProperties": 1,
}
_BY_PATH: Final = {
    "type": "object",
    "properties": {"path": _PATH_ARGUMENT},
    "required": ["path"],
    "additionalProperties": False,
}
_FILE_ARGUMENTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "one": _FILE_ARGUMENT,
    "many": {"type": "array", "items": _FILE_ARGUMENT},
    "bytes": {"anyOf": [{"type": "string", "contentEncoding": "base64"}, _BY_PATH]},
}
"""The schemas for a file, for a list of files, and for a body of bytes."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a call, and its place in the request.

    Attributes:
        name: The name for the model.
        place: The place in the request.
        wire: The name in that place; empty if the argument is the whole body.
        is_file: Whether it is a file, or a list of files.
    """

    name: str
    place: Place
    wire: str
    encoding: Encoding
    is_file: bool


@dataclass(frozen=True, slots=True)
class KeyHeader:
    """The header for the idempotency key of a call. It is no argument.

    Attributes:
        name: The name as in the document.
        is_uuid: Whether its schema has the format of a UUID.
    """

    name: str
    is_uuid: bool

    def pair(self, key: str) -> tuple[str, str]:
        """Return name and value."""
        return self.name, str(UUID(hex=key, version=4)) if self.is_uuid else key  # some servers want random ones


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments of an operation, and their way into a request.

    Attributes:
        schema: The schema of the arguments together.
        notes: The differences from the document.
        reserved: The places and names of arguments and credentials. No key of an object written in such a place may
            have such a name.
    """

    arguments: tuple[Argument, ...]
    body: Body | None
    schema: dict[str, Any]
    notes: tuple[str, ...] = ()
    reserved: frozenset[tuple[str, str]] = frozenset()
    key_header: KeyHeader | None = None


def make_signature(
    operation: Operation, document: Document, schemas: Schemas, hidden: frozenset[tuple[str, str]]
) -> Signature:
    """Return the signature of an operation.

    Args:
        hidden: Place and name of each credential. Nobody gives credentials as arguments.

    Raises:
        DefinitionError: A part cannot be read, or cannot be written into a request.
    """
    notes: list[str] = []
    parts = []
    key_header = None
    for part in declared_parameters(operation, document, notes):
        if (part.place, fold_name(part.place, part.wire)) in hidden:
            notes.append(f"the {part.place} parameter {part.wire!r} is left out: a credential goes there")
        elif part.place == "header" and part.wire.lower() == _KEY_HEADER:
            schema = document.follow(part.schema).value
            key_header = KeyHeader(part.wire, isinstance(schema, Mapping) and schema.get("format") == "uuid")
            notes.append(f"the header {part.wire!r} gets the idempotency key of the call, and is not an argument")
        else:
            parts.append(part)
    parts = [part for part in parts if _is_writable(part, document, notes)]
    _check_path_parameters(operation, parts)
    body, body_parts = make_body(operation, document, schemas, {part.wire for part in parts}, notes)
    parts += body_parts
    if len(parts) > MOST_ARGUMENTS:
        raise DefinitionError(f"it takes {len(parts):,} arguments, and at most {MOST_ARGUMENTS} are allowed")
    names = _argument_names(parts)
    converted, defs = schemas.bundle(*(part.schema for part in parts))
    properties: dict[str, Any] = {}
    for name, part, schema in zip(names, parts, converted, strict=True):
        properties[name] = _make_schema(schema, part, name)
        if part.wire and name != part.wire:
            notes.append(f"the argument {name!r} is {part.wire!r} in the {part.place}")
    required = [name for name, part in zip(names, parts, strict=True) if part.required]
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    if not required:
        del schema["required"]
    notes = [to_one_line(note, _MOST_NAME) for note in notes]
    arguments = tuple(
        Argument(name, part.place, part.wire, part.encoding, bool(part.files))
        for name, part in zip(names, parts, strict=True)
    )
    reserved = hidden | {(part.place, fold_name(part.place, part.wire)) for part in parts}
    return Signature(
        arguments, body, {**schema, **({"$defs": defs} if defs else {})}, tuple(notes), reserved, key_header
    )


def _make_schema(schema: Any, part: RequestPart, name: str) -> dict[str, Any]:
    """Return the schema of an argument. A default is described and not filled in: it is the server's, and in a PATCH it
    would change fields that nobody wanted to change."""
    if part.files:
        forms = [dict(_FILE_ARGUMENTS[kind]) for kind in sorted(part.files)]
        described: dict[str, Any] = forms[0] if len(forms) == 1 else {"anyOf": forms}
    else:
        described = dict(schema) if isinstance(schema, Mapping) else {} if schema else {"not": {}}
    sentences = [part.description or str(described.get("description", ""))]
    if part.wire and name != part.wire and part.place != "body":
        sentences.insert(0, f"{part.wire!r} in the {part.place}.")
    if "default" in described:
        sentences.append(f"{'Usually' if part.required else 'Left out, it is'} {described.pop('default')!r:.200}.")
    if text := " ".join(filter(None, sentences)):
        described["description"] = text
    return described


def declared_parameters(operation: Operation, document: Document, notes: list[str]) -> Iterator[RequestPart]:
    """Yield the parameters of the path and of the operation. The operation's replace the path's."""
    found: dict[tuple[str, str], RequestPart] = {}
    for owner in (operation.item, operation.node):
        declared = owner.value.get("parameters", [])
        if not isinstance(declared, list):
            raise DefinitionError("'parameters' must be a list")
        document.spend(20 * len(declared))
        if len(declared) > MOST_ARGUMENTS:
            raise DefinitionError(f"it takes {len(declared):,} arguments, and at most {MOST_ARGUMENTS} are allowed")
        for value in declared:
            parameter = _parameter(document.follow(Node(value, owner.base)), document, notes)
            if parameter is not None:
                found[parameter.place, parameter.wire] = parameter
    yield from found.values()


def _parameter(node: Node, document: Document, notes: list[str]) -> RequestPart | None:
    value = node.value
    if not isinstance(value, Mapping):
        raise DefinitionError("a parameter must be an object")
    place, wire = value.get("in"), value.get("name")
    if place not in _PLACES or not isinstance(wire, str) or not 0 < len(wire) <= _MOST_NAME:
        shown = wire if isinstance(wire, str) else ""
        raise DefinitionError(
            f"a parameter {shown[:50]!r} in {str(place)[:50]!r} must be in one of {', '.join(_PLACES)}"
        )
    if place == "header" and wire.lower() in _NOT_ARGUMENTS:
        return None
    if place == "header" and not can_be_header(wire):
        notes.append(f"the header {wire!r} is left out: the connection writes it")
        return None
    if place == "cookie" and not is_token(wire):
        raise DefinitionError(f"{wire!r} is not a valid cookie name")
    schema, encoding = _read_encoding(node, place, document)
    required = place == "path" or value.get("required") is True
    return RequestPart(place, wire, schema, required, clean_description(value.get("description")), encoding)


def fold_name(place: str, name: str) -> str:
    """Return a name as servers compare it: headers without case, and with `-` for `_`, as for some servers."""
    return name.lower().replace("_", "-") if place == "header" else name


def can_be_header(name: str) -> bool:
    """Return whether a document may name this header; the others are the connection's."""
    return is_token(name) and name.lower() not in _CONNECTION_HEADERS


def _read_encoding(node: Node, place: str, document: Document) -> tuple[Node, Encoding]:
    value, wire = node.value, node.value["name"]
    if (content := value.get("content")) is not None:
        if not isinstance(content, Mapping) or len(content) != 1:
            raise DefinitionError(f"the content of the parameter {wire!r} must have exactly one type")
        media, value = next(iter(content.items()))
        if not (is_json_type(media) or media == "application/x-www-form-urlencoded" or media.startswith("text/")):
            raise DefinitionError(f"the parameter {wire!r} is of the type {media!r:.80}, which is not supported")
        about = document.follow(Node(value, node.base))
        return Node(about.value.get("schema", {}) if isinstance(about.value, Mapping) else {}, about.base), Encoding(
            media=media
        )
    if place == "querystring":
        raise DefinitionError(f"the parameter {wire!r} is the whole query string and needs 'content' to describe it")
    styles = STYLES[place]
    style = value.get("style", styles[0])
    if style not in styles:
        raise DefinitionError(
            f"the parameter {wire!r} has the style {style!r:.50}; the styles for {place} are {', '.join(styles)}"
        )
    explode = value.get("explode", style in {"form", "cookie"})
    reserved = place == "query" and value.get("allowReserved") is True
    return Node(value.get("schema", {}), node.base), Encoding(style, explode is True, None, reserved)


def _is_writable(part: RequestPart, document: Document, notes: list[str]) -> bool:
    """Return whether the parameter's style can write its values. If not, an optional parameter is left out, with a
    note.

    Raises:
        DefinitionError: The parameter is required.
    """
    if part.encoding.media is not None or part.encoding.style == "deepObject":
        return True
    schema = document.follow(part.schema).value
    item_schema = schema.get("items") if isinstance(schema, Mapping) else None
    item = document.follow(Node(item_schema, part.schema.base)).value if item_schema is not None else None
    if not isinstance(item, Mapping) or item.get("type") not in ("object", "array"):
        return True
    problem = f"the {part.place} parameter {part.wire!r} is a list of {item['type']}s, which its style cannot write"
    if part.required:
        raise DefinitionError(problem)
    notes.append(f"{problem}: it is left out")
    return False


def _check_path_parameters(operation: Operation, parts: list[RequestPart]) -> None:
    braced_names = set(IN_BRACES.findall(operation.path))
    path_names = {part.wire for part in parts if part.place == "path"}
    if braced_names != path_names:
        mismatched = sorted(braced_names ^ path_names)
        raise DefinitionError(f"{mismatched[0]!r} must be both in the path and among its path parameters")
    if "{" in IN_BRACES.sub("", operation.path) or "}" in IN_BRACES.sub("", operation.path):
        raise DefinitionError("its path has a brace without a parameter")


def _argument_names(parts: list[RequestPart]) -> list[str]:
    """Return the names for a model: a parameter's own name if every API takes it. If names collide, one that was
    changed gets a digest, and then names of different places get their place as a prefix."""
    names = [_argument_name(part.wire) for part in parts]
    counts = Counter(names)
    names = [
        f"{name}_{digest(part.wire)}" if counts[name] > 1 and name != part.wire and part.wire else name
        for name, part in zip(names, parts, strict=True)
    ]
    counts = Counter(names)
    names = [
        f"{part.place}_{name}"[:64] if counts[name] > 1 and part.wire else name
        for name, part in zip(names, parts, strict=True)
    ]
    if len(set(names)) < len(names):
        duplicate = next(name for name, count in Counter(names).items() if count > 1)
        raise DefinitionError(f"two of its parameters would have the name {duplicate!r}")
    return names


def _argument_name(wire: str) -> str:
    if not wire:
        return "body"
    if _ARGUMENT.fullmatch(wire):
        return wire
    safe_name = re.sub(r"[^A-Za-z0-9_.-]+", "_", wire).strip("_")
    return safe_name if safe_name and len(safe_name) <= 50 else f"{safe_name[:50]}_{digest(wire)}"
