"""The arguments of an operation: its parameters and its body, by names for a model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from ferrule import DefinitionError
from ferrule.openapi.bodies import MOST_ARGUMENTS, STYLES, Body, Encoding, Place, RequestPart, body_of, is_json
from ferrule.openapi.document import Document, Node
from ferrule.openapi.operations import IN_BRACES, Operation, digest, is_token, told_text
from ferrule.openapi.schemas import Schemas
from ferrule.security.foreign_text import to_one_line

_PLACES: Final = ("path", "query", "querystring", "header", "cookie")
_NOT_ARGUMENTS: Final = frozenset({"accept", "content-type", "authorization"})
"""Headers that are no parameters, by the specification."""
_OF_THE_CONNECTION: Final = frozenset(
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


def signature_of(
    operation: Operation, document: Document, schemas: Schemas, hidden: frozenset[tuple[str, str]]
) -> Signature:
    """Return the signature of an operation.

    Args:
        hidden: Place and name of each credential. Nobody gives credentials as arguments.

    Raises:
        DefinitionError: A part cannot be read, or cannot be written into a request.
    """
    notes: list[str] = []
    wanted = []
    key_header = None
    for one in declared_parameters(operation, document, notes):
        if (one.place, folded_name(one.place, one.wire)) in hidden:
            notes.append(f"the {one.place} parameter {one.wire!r} is left out: a credential goes there")
        elif one.place == "header" and one.wire.lower() == _KEY_HEADER:
            schema = document.follow(one.schema).value
            key_header = KeyHeader(one.wire, isinstance(schema, Mapping) and schema.get("format") == "uuid")
            notes.append(f"the header {one.wire!r} gets the idempotency key of the call, and is no argument")
        else:
            wanted.append(one)
    wanted = [one for one in wanted if _is_writable(one, document, notes)]
    _check_path_parameters(operation, wanted)
    body, of_body = body_of(operation, document, schemas, {one.wire for one in wanted}, notes)
    wanted += of_body
    if len(wanted) > MOST_ARGUMENTS:
        raise DefinitionError(f"it takes {len(wanted):,} arguments, and at most {MOST_ARGUMENTS} are taken")
    names = _argument_names(wanted)
    converted, defs = schemas.bundle(*(one.schema for one in wanted))
    properties: dict[str, Any] = {}
    for name, one, schema in zip(names, wanted, converted, strict=True):
        properties[name] = _property(schema, one, name)
        if one.wire and name != one.wire:
            notes.append(f"the argument {name!r} is {one.wire!r} in the {one.place}")
    required = [name for name, one in zip(names, wanted, strict=True) if one.required]
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    if not required:
        del schema["required"]
    notes = [to_one_line(note, _MOST_NAME) for note in notes]
    arguments = tuple(
        Argument(name, one.place, one.wire, one.encoding, bool(one.files))
        for name, one in zip(names, wanted, strict=True)
    )
    reserved = hidden | {(one.place, folded_name(one.place, one.wire)) for one in wanted}
    return Signature(
        arguments, body, {**schema, **({"$defs": defs} if defs else {})}, tuple(notes), reserved, key_header
    )


def _property(schema: Any, one: RequestPart, name: str) -> dict[str, Any]:
    """Return the schema of an argument. A default is described and not filled in: it is the server's, and in a PATCH it
    would change fields that nobody wanted to change."""
    if one.files:
        forms = [dict(_FILE_ARGUMENTS[kind]) for kind in sorted(one.files)]
        made: dict[str, Any] = forms[0] if len(forms) == 1 else {"anyOf": forms}
    else:
        made = dict(schema) if isinstance(schema, Mapping) else {} if schema else {"not": {}}
    said = [one.description or str(made.get("description", ""))]
    if one.wire and name != one.wire and one.place != "body":
        said.insert(0, f"{one.wire!r} in the {one.place}.")
    if "default" in made:
        said.append(f"{'Usually' if one.required else 'Left out, it is'} {made.pop('default')!r:.200}.")
    if text := " ".join(filter(None, said)):
        made["description"] = text
    return made


def declared_parameters(operation: Operation, document: Document, notes: list[str]) -> Iterator[RequestPart]:
    """Yield the parameters of the path and of the operation. The operation's replace the path's."""
    found: dict[tuple[str, str], RequestPart] = {}
    for owner in (operation.item, operation.node):
        listed = owner.value.get("parameters", [])
        if not isinstance(listed, list):
            raise DefinitionError("its parameters are no list")
        document.spend(20 * len(listed))
        if len(listed) > MOST_ARGUMENTS:
            raise DefinitionError(f"it takes {len(listed):,} arguments, and at most {MOST_ARGUMENTS} are taken")
        for one in listed:
            wanted = _parameter(document.follow(Node(one, owner.base)), document, notes)
            if wanted is not None:
                found[wanted.place, wanted.wire] = wanted
    yield from found.values()


def _parameter(node: Node, document: Document, notes: list[str]) -> RequestPart | None:
    value = node.value
    if not isinstance(value, Mapping):
        raise DefinitionError("a parameter is no object")
    place, wire = value.get("in"), value.get("name")
    if place not in _PLACES or not isinstance(wire, str) or not 0 < len(wire) <= _MOST_NAME:
        shown = wire if isinstance(wire, str) else ""
        raise DefinitionError(f"a parameter {shown[:50]!r} in {str(place)[:50]!r} is none of {', '.join(_PLACES)}")
    if place == "header" and wire.lower() in _NOT_ARGUMENTS:
        return None
    if place == "header" and not may_be_header(wire):
        notes.append(f"the header {wire!r} is left out: the connection writes it")
        return None
    if place == "cookie" and not is_token(wire):
        raise DefinitionError(f"{wire!r} is no name of a cookie")
    schema, encoding = _schema_and_encoding(node, place, document)
    required = place == "path" or value.get("required") is True
    return RequestPart(place, wire, schema, required, told_text(value.get("description")), encoding)


def folded_name(place: str, name: str) -> str:
    """Return a name as servers compare it: headers without case, and with `-` for `_`, as for some servers."""
    return name.lower().replace("_", "-") if place == "header" else name


def may_be_header(name: str) -> bool:
    """Return whether a document may name this header; the others are the connection's."""
    return is_token(name) and name.lower() not in _OF_THE_CONNECTION


def _schema_and_encoding(node: Node, place: str, document: Document) -> tuple[Node, Encoding]:
    value, wire = node.value, node.value["name"]
    if (content := value.get("content")) is not None:
        if not isinstance(content, Mapping) or len(content) != 1:
            raise DefinitionError(f"the content of the parameter {wire!r} has to be of one type")
        media, one = next(iter(content.items()))
        if not (is_json(media) or media == "application/x-www-form-urlencoded" or media.startswith("text/")):
            raise DefinitionError(f"the parameter {wire!r} is of the type {media!r:.80}, which is not written")
        about = document.follow(Node(one, node.base))
        return Node(about.value.get("schema", {}) if isinstance(about.value, Mapping) else {}, about.base), Encoding(
            media=media
        )
    if place == "querystring":
        raise DefinitionError(f"the parameter {wire!r} is the whole query string, and has no content that says how")
    styles = STYLES[place]
    style = value.get("style", styles[0])
    if style not in styles:
        raise DefinitionError(
            f"the parameter {wire!r} has the style {style!r:.50}; of a {place} it is {', '.join(styles)}"
        )
    explode = value.get("explode", style in {"form", "cookie"})
    reserved = place == "query" and value.get("allowReserved") is True
    return Node(value.get("schema", {}), node.base), Encoding(style, explode is True, None, reserved)


def _is_writable(one: RequestPart, document: Document, notes: list[str]) -> bool:
    """Return whether the parameter's style can write its values. If not, an optional parameter is left out, with a
    note.

    Raises:
        DefinitionError: The parameter is required.
    """
    if one.encoding.media is not None or one.encoding.style == "deepObject":
        return True
    schema = document.follow(one.schema).value
    inner = schema.get("items") if isinstance(schema, Mapping) else None
    item = document.follow(Node(inner, one.schema.base)).value if inner is not None else None
    if not isinstance(item, Mapping) or item.get("type") not in ("object", "array"):
        return True
    what = f"the {one.place} parameter {one.wire!r} is a list of {item['type']}s, which its style cannot write"
    if one.required:
        raise DefinitionError(what)
    notes.append(f"{what}: it is left out")
    return False


def _check_path_parameters(operation: Operation, wanted: list[RequestPart]) -> None:
    named = set(IN_BRACES.findall(operation.path))
    given = {one.wire for one in wanted if one.place == "path"}
    if named != given:
        unlike = sorted(named ^ given)
        raise DefinitionError(f"{unlike[0]!r} is in the path or among the path's parameters, and not in both")
    if "{" in IN_BRACES.sub("", operation.path) or "}" in IN_BRACES.sub("", operation.path):
        raise DefinitionError("its path has a brace that no parameter is in")


def _argument_names(wanted: list[RequestPart]) -> list[str]:
    """Return the names for a model: a parameter's own name if every API takes it. If names collide, one that was
    changed gets a digest, and then names of different places get their place as a prefix."""
    names = [_argument_name(one.wire) for one in wanted]
    often = Counter(names)
    names = [
        f"{name}_{digest(one.wire)}" if often[name] > 1 and name != one.wire and one.wire else name
        for name, one in zip(names, wanted, strict=True)
    ]
    often = Counter(names)
    names = [
        f"{one.place}_{name}"[:64] if often[name] > 1 and one.wire else name
        for name, one in zip(names, wanted, strict=True)
    ]
    if len(set(names)) < len(names):
        double = next(name for name, count in Counter(names).items() if count > 1)
        raise DefinitionError(f"two of its parameters would be called {double!r}")
    return names


def _argument_name(wire: str) -> str:
    if not wire:
        return "body"
    if _ARGUMENT.fullmatch(wire):
        return wire
    kept = re.sub(r"[^A-Za-z0-9_.-]+", "_", wire).strip("_")
    return kept if kept and len(kept) <= 50 else f"{kept[:50]}_{digest(wire)}"
