"""The body of a request by an OpenAPI document: its type, and the arguments for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from ferrule import DefinitionError
from ferrule.openapi.document import Document, Node, list_texts
from ferrule.openapi.operations import Operation, clean_description
from ferrule.openapi.schemas import Schemas, find_constraints
from ferrule.security.http_answers import is_json_type

Place: TypeAlias = Literal["path", "query", "querystring", "header", "cookie", "body"]
BodyKind: TypeAlias = Literal["json", "form", "multipart", "text", "octets"]

STYLES: Final[dict[str, tuple[str, ...]]] = {
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form", "cookie"),
}
"""The styles of each place, the default first: https://spec.openapis.org/oas/v3.2.0#style-values"""
_PLAIN_OBJECT: Final = frozenset({"type", "properties", "required", "additionalProperties"})
_MEDIA_TYPE = re.compile(r"[\w.+*-]+/[\w.+*-]+\s*(;[\x20-\x7e]*)?", re.ASCII)
MOST_ARGUMENTS: Final = 500
_NO_FILES: Final = frozenset[str]()


class Encoding(NamedTuple):
    """The form of a value: in a style, or as a text of a type.

    Attributes:
        media: `"application/json"` or another type in place of a style.
        reserved: Whether the reserved characters of URLs stay unescaped.
    """

    style: str = "form"
    explode: bool = True
    media: str | None = None
    reserved: bool = False


class RequestPart(NamedTuple):
    """A part of a request, before it has a unique name."""

    place: Place
    wire: str
    schema: Node
    required: bool
    description: str
    encoding: Encoding
    files: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a request.

    Attributes:
        kind: The way it is written.
        media: Its type.
        required: Whether it is sent even if it is empty.
        whole: Whether it is one argument.
    """

    kind: BodyKind
    media: str
    required: bool
    whole: bool


def _body_kind(media: str) -> BodyKind:
    kind = media.partition(";")[0].strip().lower()
    if is_json_type(kind):
        return "json"
    if kind == "application/x-www-form-urlencoded":
        return "form"
    if kind == "multipart/form-data":
        return "multipart"
    return "text" if kind.startswith("text/") or kind.endswith(("+xml", "/xml")) else "octets"


_PREFERRED: Final[tuple[BodyKind, ...]] = ("json", "form", "multipart", "text", "octets")


def make_body(
    operation: Operation, document: Document, schemas: Schemas, taken: set[str], notes: list[str]
) -> tuple[Body | None, list[RequestPart]]:
    """Return the body of an operation, and its parts.

    Args:
        taken: The names of parameters. A JSON body with such a property stays one argument.
        notes: The list of differences from the document, to add to.

    Raises:
        DefinitionError: A part cannot be read, or cannot be written into a request.
    """
    if (declared := operation.node.value.get("requestBody")) is None:
        return None, []
    node = document.follow(Node(declared, operation.node.base))
    content = node.value.get("content") if isinstance(node.value, Mapping) else None
    if not isinstance(content, Mapping) or not content:
        raise DefinitionError("its body needs 'content'")
    media, about = _choose_type(Node(content, node.base), document)
    kind, required, description = _body_kind(media), node.value.get("required") is True, node.value.get("description")
    description = clean_description(description)
    schema = Node(about.value.get("schema", {}), about.base)
    media_type = _replace_star(media, kind)
    if kind in ("text", "octets"):
        plain = schema if kind == "text" and schema.value else Node(_PLAIN_SCHEMAS[kind], about.base)
        files = frozenset({"bytes"}) if kind == "octets" else _NO_FILES
        whole = RequestPart("body", "", plain, required, description, Encoding(), files)
        return Body(kind, media_type, required, True), [whole]
    properties = _find_properties(schema, document, schemas)
    if properties is None or (kind == "json" and taken & properties.keys()):
        if kind == "multipart":
            raise DefinitionError("its multipart body must be a plain object, so that its parts are known")
        whole = RequestPart("body", "", schema, required, description, Encoding(media=media_type))
        return Body(kind, media_type, required, True), [whole]
    required_names = document.follow(schema).value.get("required")
    document.spend(len(properties) + (len(required_names) if isinstance(required_names, list) else 0))
    needed = {name for name in list_texts(required_names) if name in properties}
    if needed and not required:
        notes.append(f"its body is optional in the document and required here, because it requires {min(needed)!r}")
    encodings = about.value.get("encoding", {})
    wanted = [_make_part(name, one, name in needed, encodings, kind, document) for name, one in properties.items()]
    return Body(kind, media_type, required or bool(needed), False), wanted


_PLAIN_SCHEMAS: Final[Mapping[str, Any]] = {
    "text": {"type": "string"},
    "octets": {"type": "string", "contentEncoding": "base64"},
}


def _choose_type(content: Node, document: Document) -> tuple[str, Node]:
    """Return the type to send, and its description. JSON is preferred, unless it holds a file for which a multipart
    form is possible."""
    document.spend(10 * len(content.value))
    listed = {str(media): document.follow(Node(one, content.base)) for media, one in content.value.items()}
    listed = {media: one for media, one in listed.items() if isinstance(one.value, Mapping)}
    unsupported = [media for media in listed if not _MEDIA_TYPE.fullmatch(media) or _is_other_multipart(media)]
    supported = [media for media in listed if media not in unsupported]
    if not supported:
        raise DefinitionError(
            f"its body is of the type {(unsupported or [*content.value])[0]!r:.80}, which is not supported"
        )
    first, *others = sorted(supported, key=lambda one: (_PREFERRED.index(_body_kind(one)), one != "application/json"))
    parts = next((media for media in others if _body_kind(media) == "multipart"), None)
    if parts is not None and _body_kind(first) == "json" and _has_files(listed[first], document):
        first = parts
    return first, listed[first]


def _is_other_multipart(media: str) -> bool:
    return media.lower().startswith("multipart/") and _body_kind(media) != "multipart"


def _has_files(about: Node, document: Document) -> bool:
    value, base = document.follow(Node(about.value.get("schema", {}), about.base))
    properties = value.get("properties") if isinstance(value, Mapping) else None
    found = properties.values() if isinstance(properties, Mapping) else ()
    return any(_find_files(Node(one, base), document) for one in found)


def _replace_star(media: str, kind: BodyKind) -> str:
    if "*" not in media:
        return media
    return {"json": "application/json", "text": "text/plain"}.get(kind, "application/octet-stream")


def _find_properties(schema: Node, document: Document, schemas: Schemas) -> dict[str, Node] | None:
    """Return the properties of a body that is an object with these and no others; `None` for any other body."""
    value, base = document.follow(schema)
    if not isinstance(value, Mapping) or not isinstance(value.get("properties"), Mapping):
        return None
    if value is not schema.value and document.minor > 0 and set(find_constraints(schema.value)) - {"$ref"}:
        return None  # a keyword beside a reference counts as well
    closed = value.get("additionalProperties", False) is False and value.get("type", "object") == "object"
    if not closed or value.get("nullable") is True or set(find_constraints(value)) - _PLAIN_OBJECT:
        return None
    if len(value["properties"]) > MOST_ARGUMENTS:
        return None
    found = {str(name): Node(one, base) for name, one in value["properties"].items()}
    return {name: one for name, one in found.items() if not schemas.is_hidden(one)}


def _make_part(
    name: str, schema: Node, required: bool, encodings: Any, kind: BodyKind, document: Document
) -> RequestPart:
    value, base = document.follow(schema)
    is_list = isinstance(value, Mapping) and value.get("type") == "array" and "items" in value
    inner = document.follow(Node(value["items"], base)).value if is_list else value
    about = encodings.get(name) if isinstance(encodings, Mapping) else None
    about = about if isinstance(about, Mapping) else {}
    files = _find_files(schema, document) if kind == "multipart" else _NO_FILES
    if "style" in about or "explode" in about:
        style = about.get("style", "form")
        if style not in STYLES["query"]:
            raise DefinitionError(f"the part {name!r} of its body has the unknown style {style!r:.50}")
        encoding = Encoding(
            style, about.get("explode", style == "form") is True, None, about.get("allowReserved") is True
        )
    else:
        media = about.get("contentType")
        if media is not None and not (
            isinstance(media, str) and all(map(_MEDIA_TYPE.fullmatch, re.split(r"\s*,\s*", media)))
        ):
            raise DefinitionError(f"the part {name!r:.80} of its body has an invalid type, {media!r:.80}")
        is_object = isinstance(inner, Mapping) and (inner.get("type") in ("object", "array") or "properties" in inner)
        encoding = Encoding(media=media if isinstance(media, str) else "application/json" if is_object else None)
    return RequestPart("body", name, schema, required, "", encoding, files)


def _find_files(node: Node, document: Document, seen: set[int] | None = None) -> frozenset[str]:
    """Return whether a property is a file (`"one"`), or a list of files (`"many"`), or may be either. A file is a
    binary text, https://spec.openapis.org/oas/v3.0.4#considerations-for-file-uploads, or since 3.1 one with a
    `contentMediaType` and without a `contentEncoding`."""
    value, base = document.follow(node)
    seen = set() if seen is None else seen
    if not isinstance(value, Mapping) or id(value) in seen:
        return _NO_FILES
    seen.add(id(value))
    found = _NO_FILES
    for key in ("anyOf", "oneOf", "allOf"):
        for one in value[key] if isinstance(value.get(key), list) else ():
            found |= _find_files(Node(one, base), document, seen)
    kinds = value.get("type", [] if found else ["string"])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list):
        return found
    if "string" in kinds and "contentEncoding" not in value:
        if value.get("format") == "binary" or "contentMediaType" in value:
            return found | {"one"}
    if "array" in kinds and "items" in value and "one" in _find_files(Node(value["items"], base), document, seen):
        return found | {"many"}
    return found
