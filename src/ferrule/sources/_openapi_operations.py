"""The operations of an OpenAPI document: which there are, what each takes, and by which names a model gives that."""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from ferrule import DefinitionError
from ferrule.arguments.names import as_seen
from ferrule.sources._openapi_document import Document, Node
from ferrule.sources._openapi_schemas import Schemas, keywords_of

Place: TypeAlias = Literal["path", "query", "querystring", "header", "cookie", "body"]
BodyKind: TypeAlias = Literal["json", "form", "multipart", "text", "octets"]

_METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch", "query")
_PLACES: Final = ("path", "query", "querystring", "header", "cookie")
_STYLES_OF_PLACES: Final[dict[str, tuple[str, ...]]] = {
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form", "cookie"),
}
"""The styles of each place, the default first: https://spec.openapis.org/oas/v3.2.0#style-values"""
_NOT_ARGUMENTS: Final = frozenset({"accept", "content-type", "authorization"})
"""Headers that are no parameters, by the specification."""
_OF_THE_CONNECTION: Final = frozenset(
    {"host", "content-length", "content-encoding", "transfer-encoding", "connection", "keep-alive", "te", "trailer"}
    | {"upgrade", "cookie", "proxy-authorization", "proxy-connection", "expect"}
)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_ARGUMENT = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""What every model API takes as the name of a parameter."""
_PLAIN_OBJECT: Final = frozenset({"type", "properties", "required", "additionalProperties"})
_IN_BRACES = re.compile(r"\{([^{}/]*)\}")
_FILE_ARGUMENT: Final = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "The file's name."},
        "mime_type": {"type": "string", "description": "Such as text/csv."},
        "text": {"type": "string", "description": "What is in it, of a text file."},
        "data": {"type": "string", "contentEncoding": "base64", "description": "Else its bytes, as base64."},
    },
    "additionalProperties": False,
    "minProperties": 1,
}
"""What a model gives of a file."""


class Operation(NamedTuple):
    """One operation as the document has it.

    Attributes:
        method: In capitals.
        path: With its parameters in braces.
        node: The operation.
        item: The path's item, which has what all its operations share.
    """

    method: str
    path: str
    node: Node
    item: Node

    @property
    def id(self) -> str:
        """Its `operationId`; empty where it has none."""
        found = self.node.value.get("operationId")
        return found if isinstance(found, str) else ""

    @property
    def tags(self) -> tuple[str, ...]:
        found = self.node.value.get("tags")
        return tuple(tag for tag in found if isinstance(tag, str)) if isinstance(found, list) else ()

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Encoding(NamedTuple):
    """How a value is written: in which style, or as a text of this type.

    Attributes:
        media: `"application/json"` or another type in place of a style.
        reserved: Whether what is reserved in URLs stays as it is.
    """

    style: str = "form"
    explode: bool = True
    media: str | None = None
    reserved: bool = False


@dataclass(frozen=True, slots=True)
class Argument:
    """What one argument of a call becomes in the request.

    Attributes:
        name: As the model gives it.
        place: Where it goes.
        wire: What it is called there; empty where it is the whole body.
        is_file: Whether it is a file, or a list of files.
    """

    name: str
    place: Place
    wire: str
    encoding: Encoding
    is_file: bool


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a request.

    Attributes:
        kind: How it is written.
        media: Its type.
        required: Whether it is sent also where there is nothing in it.
        whole: Whether it is one argument.
    """

    kind: BodyKind
    media: str
    required: bool
    whole: bool


@dataclass(frozen=True, slots=True)
class Signature:
    """What an operation takes.

    Attributes:
        schema: Of the arguments together.
        notes: What is otherwise than in the document.
    """

    arguments: tuple[Argument, ...]
    body: Body | None
    schema: dict[str, Any]
    notes: tuple[str, ...]


# -- which there are ---------------------------------------------------------------------------------------------------


def operations_of(document: Document) -> tuple[list[Operation], list[tuple[str, str]]]:
    """All of them, in the document's order; and what cannot be read, each with the reason.

    Raises:
        DefinitionError: where there is no object of paths.
    """
    paths = document.root.value.get("paths")
    if not isinstance(paths, Mapping):
        raise DefinitionError(f"{document.name} has no paths, and so no operations")
    found: list[Operation] = []
    left_out: list[tuple[str, str]] = []
    for path, value in paths.items():
        if str(path).startswith("x-"):
            continue
        try:
            item = document.follow(Node(value, document.root.base))
            _check_path(path, item.value)
            for method, one in _methods_of(item.value):
                operation = document.follow(Node(one, item.base))
                if not isinstance(operation.value, Mapping):
                    raise DefinitionError(f"its {method} is no object")
                found.append(Operation(method, path, operation, item))
            if "trace" in item.value:
                left_out.append((f"TRACE {path}", "it sends back what was sent, with the credentials"))
        except DefinitionError as error:
            left_out.append((str(path), str(error)))
    return found, left_out


def _methods_of(item: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from ((method.upper(), item[method]) for method in _METHODS if method in item)
    more = item.get("additionalOperations", {})
    for method, one in more.items() if isinstance(more, Mapping) else ():
        if not _TOKEN.fullmatch(str(method)) or method.upper() in {"TRACE", "CONNECT"}:
            raise DefinitionError(f"{method!r:.50} is no method that is sent")
        yield method, one


def _check_path(path: Any, item: Any) -> None:
    if not isinstance(path, str) or not path.startswith("/"):
        raise DefinitionError("a path begins with '/'")
    if re.search(r"[?#\\\s\x00-\x1f]", path) or "//" in path:
        raise DefinitionError("a path has no '?', '#', '\\', '//' or space: what it asks for are parameters")
    if any(part.replace("%2e", ".").replace("%2E", ".") in {".", ".."} for part in path.split("/")):
        raise DefinitionError("its path has a part '.' or '..', which leads elsewhere")
    if not isinstance(item, Mapping):
        raise DefinitionError("its item is no object")


def chosen(operations: Iterable[Operation], only: Iterable[str]) -> list[Operation]:
    """Those that one of the patterns names.

    Raises:
        DefinitionError: for a pattern that names none.
    """
    operations, patterns = list(operations), list(only)
    matched = {
        pattern: {one for one, operation in enumerate(operations) if _pattern_names(pattern, operation)}
        for pattern in patterns
    }
    if (empty := next((pattern for pattern, found in matched.items() if not found), None)) is not None:
        known = sorted({tag for operation in operations for tag in operation.tags})[:20]
        raise DefinitionError(
            f"only={empty!r} names no operation; it is a method (GET), a path (/pets/*), both (GET /pets/*), a tag "
            f"(tag:pets) or an operationId (list*); the tags are {known}"
        )
    taken = set().union(*matched.values())
    return [operation for one, operation in enumerate(operations) if one in taken]


def _pattern_names(pattern: str, operation: Operation) -> bool:
    if pattern.startswith("tag:"):
        return any(fnmatch.fnmatchcase(tag, pattern[4:].strip()) for tag in operation.tags)
    method, _, path = pattern.rpartition(" ")
    if path.startswith("/"):
        return method.upper() in ("", operation.method) and fnmatch.fnmatchcase(operation.path, path)
    return pattern == operation.method or fnmatch.fnmatchcase(operation.id, pattern)


def names_of(operations: Sequence[Operation]) -> list[str]:
    """A name for each: from its id, or else from method and path. It is the same however the document is ordered: where
    two would have one, both are named by method and path."""
    names = [_safe(operation.id) or _by_path(operation) for operation in operations]
    for make in (_by_path, _by_digest):
        often = Counter(map(as_seen, names))
        names = [make(one) if often[as_seen(name)] > 1 else name for name, one in zip(names, operations, strict=True)]
    return names


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_-")[:128]


def _by_path(operation: Operation) -> str:
    path = _IN_BRACES.sub(r"by_\1", operation.path.strip("/"))
    return _safe(f"{operation.method.lower()}_{path}") or _by_digest(operation)


def _by_digest(operation: Operation) -> str:
    return f"{_safe(operation.path)[:100]}_{_digest(str(operation))}".lstrip("_-")


# -- what one takes ----------------------------------------------------------------------------------------------------


class _RequestPart(NamedTuple):
    """What goes into a request, before it has a name that nothing else has."""

    place: Place
    wire: str
    schema: Node
    required: bool
    description: str
    encoding: Encoding
    is_file: bool = False


def signature_of(
    operation: Operation, document: Document, schemas: Schemas, hidden: frozenset[tuple[str, str]]
) -> Signature:
    """What an operation takes.

    Args:
        hidden: Place and name of what credentials are put in, which nobody gives as arguments.

    Raises:
        DefinitionError: for what cannot be read, or not be written.
    """
    notes: list[str] = []
    wanted = [
        one for one in _declared_parameters(operation, document, notes) if (one.place, one.wire.lower()) not in hidden
    ]
    wanted = [one for one in wanted if _is_writable(one, document, notes)]
    _check_path_parameters(operation, wanted)
    body, of_body = _body(operation, document, schemas, {one.wire for one in wanted})
    wanted += of_body
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
    arguments = tuple(
        Argument(name, one.place, one.wire, one.encoding, one.is_file) for name, one in zip(names, wanted, strict=True)
    )
    return Signature(arguments, body, {**schema, **({"$defs": defs} if defs else {})}, tuple(notes))


def _property(schema: Any, one: _RequestPart, name: str) -> dict[str, Any]:
    """The schema of an argument. A default is told and not filled in: it is the server's, and in a PATCH it would
    change what nobody wanted to change."""
    if one.is_file:
        made: dict[str, Any] = {"type": "array", "items": _FILE_ARGUMENT} if _is_list(schema) else dict(_FILE_ARGUMENT)
    else:
        made = dict(schema) if isinstance(schema, Mapping) else {} if schema else {"not": {}}
    said = [one.description or str(made.get("description", ""))]
    if one.wire and name != one.wire and one.place != "body":
        said.insert(0, f"{one.wire!r} in the {one.place}.")
    if "default" in made:
        said.append(f"{'Usually' if one.required else 'Left out, it is'} {made.pop('default')!r}.")
    if text := " ".join(filter(None, said)):
        made["description"] = text
    return made


def _is_list(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "array"


def _declared_parameters(operation: Operation, document: Document, notes: list[str]) -> Iterator[_RequestPart]:
    """Those of the path and of the operation, which has the last word."""
    found: dict[tuple[str, str], _RequestPart] = {}
    for owner in (operation.item, operation.node):
        listed = owner.value.get("parameters", [])
        if not isinstance(listed, list):
            raise DefinitionError("its parameters are no list")
        for one in listed:
            node = document.follow(Node(one, owner.base))
            wanted = _parameter(node, notes)
            if wanted is not None:
                found[wanted.place, wanted.wire] = wanted
    yield from found.values()


def _parameter(node: Node, notes: list[str]) -> _RequestPart | None:
    value, base = node
    if not isinstance(value, Mapping):
        raise DefinitionError("a parameter is no object")
    place, wire = value.get("in"), value.get("name")
    if place not in _PLACES or not isinstance(wire, str) or not wire:
        raise DefinitionError(f"a parameter {wire!r:.50} in {place!r:.50} is none of {', '.join(_PLACES)}")
    if place == "header" and wire.lower() in _NOT_ARGUMENTS:
        return None
    if place == "header" and not may_be_header(wire):
        notes.append(f"the header {wire!r} is left out: the connection writes it")
        return None
    if place == "cookie" and not is_token(wire):
        raise DefinitionError(f"{wire!r} is no name of a cookie")
    schema, encoding = _schema_and_encoding(value, place, wire)
    required = place == "path" or value.get("required") is True
    description = value.get("description")
    return _RequestPart(
        place, wire, Node(schema, base), required, description if isinstance(description, str) else "", encoding
    )


def is_token(name: str) -> bool:
    """Whether it can be the name of a header or a cookie, RFC 9110."""
    return _TOKEN.fullmatch(name) is not None


def may_be_header(name: str) -> bool:
    """Whether a document may name it; the others are the connection's."""
    return is_token(name) and name.lower() not in _OF_THE_CONNECTION


def _schema_and_encoding(value: Mapping[str, Any], place: str, wire: str) -> tuple[Any, Encoding]:
    if (content := value.get("content")) is not None:
        if not isinstance(content, Mapping) or len(content) != 1:
            raise DefinitionError(f"the content of the parameter {wire!r} has to be of one type")
        media, about = next(iter(content.items()))
        if not (is_json(media) or media == "application/x-www-form-urlencoded" or media.startswith("text/")):
            raise DefinitionError(f"the parameter {wire!r} is of the type {media!r:.80}, which is not written")
        schema = about.get("schema", {}) if isinstance(about, Mapping) else {}
        return schema, Encoding(media=media)
    if place == "querystring":
        raise DefinitionError(f"the parameter {wire!r} is the whole query string, and has no content that says how")
    styles = _STYLES_OF_PLACES[place]
    style = value.get("style", styles[0])
    if style not in styles:
        raise DefinitionError(
            f"the parameter {wire!r} has the style {style!r:.50}; of a {place} it is {', '.join(styles)}"
        )
    explode = value.get("explode", style in {"form", "cookie"})
    return value.get("schema", {}), Encoding(style, explode is True, None, value.get("allowReserved") is True)


def _is_writable(one: _RequestPart, document: Document, notes: list[str]) -> bool:
    """Whether its style says how its values are written; one that may be left out is, with a note.

    Raises:
        DefinitionError: for one that is required.
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


def _check_path_parameters(operation: Operation, wanted: list[_RequestPart]) -> None:
    named = set(_IN_BRACES.findall(operation.path))
    given = {one.wire for one in wanted if one.place == "path"}
    if named != given:
        unlike = sorted(named ^ given)
        raise DefinitionError(f"{unlike[0]!r} is in the path or among the path's parameters, and not in both")
    if "{" in _IN_BRACES.sub("", operation.path) or "}" in _IN_BRACES.sub("", operation.path):
        raise DefinitionError("its path has a brace that no parameter is in")


def _argument_names(wanted: list[_RequestPart]) -> list[str]:
    """The names by which a model gives them: their own where every API takes these, with their place before it where
    two places have one, and with a digest where it is what is left of several."""
    names = [_argument_name(one.wire) for one in wanted]
    often = Counter(names)
    names = [
        f"{name}_{_digest(one.wire)}" if often[name] > 1 and name != one.wire and one.wire else name
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
    return kept if kept and len(kept) <= 50 else f"{kept[:50]}_{_digest(wire)}"


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:8]


# -- its body ----------------------------------------------------------------------------------------------------------


def is_json(media: str) -> bool:
    kind = media.partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def _body_kind(media: str) -> BodyKind:
    kind = media.partition(";")[0].strip().lower()
    if is_json(kind):
        return "json"
    if kind == "application/x-www-form-urlencoded":
        return "form"
    if kind == "multipart/form-data":
        return "multipart"
    return "text" if kind.startswith("text/") or kind.endswith(("+xml", "/xml")) else "octets"


_PREFERRED: Final[tuple[BodyKind, ...]] = ("json", "form", "multipart", "text", "octets")


def _body(
    operation: Operation, document: Document, schemas: Schemas, taken: set[str]
) -> tuple[Body | None, list[_RequestPart]]:
    if (given := operation.node.value.get("requestBody")) is None:
        return None, []
    node = document.follow(Node(given, operation.node.base))
    content = node.value.get("content") if isinstance(node.value, Mapping) else None
    if not isinstance(content, Mapping) or not content:
        raise DefinitionError("its body has no content")
    media = min(map(str, content), key=lambda one: _PREFERRED.index(_body_kind(one)))
    kind = _body_kind(media)
    about = document.follow(Node(content[media], node.base))
    if not isinstance(about.value, Mapping):
        raise DefinitionError(f"its body of the type {media!r:.80} is no object")
    required, description = node.value.get("required") is True, node.value.get("description")
    if "*" in media:
        media = "application/octet-stream" if kind == "octets" else "text/plain"
    if kind in ("text", "octets"):
        schema = about.value.get("schema", {}) if kind == "text" else {"type": "string", "contentEncoding": "base64"}
        whole = _RequestPart(
            "body", "", Node(schema or {"type": "string"}, about.base), required, description or "", Encoding()
        )
        return Body(kind, media, required, True), [whole]
    schema = Node(about.value.get("schema", {}), about.base)
    properties = _properties_of_body(schema, document, schemas)
    if properties is None or (kind == "json" and taken & properties.keys()):
        if kind == "multipart":
            raise DefinitionError("its multipart body is no plain object, so that its parts are not known")
        whole = _RequestPart("body", "", schema, required, description or "", Encoding(media=media))
        return Body(kind, media, required, True), [whole]
    encodings = about.value.get("encoding", {})
    needed = document.follow(schema).value.get("required", []) if required or kind != "json" else []
    wanted = [
        _body_property(name, one, name in needed and required, encodings, kind, document)
        for name, one in properties.items()
    ]
    return Body(kind, media, required, False), wanted


def _properties_of_body(schema: Node, document: Document, schemas: Schemas) -> dict[str, Node] | None:
    """The properties of a body that is an object with these and no others; `None` of any other."""
    value, base = document.follow(schema)
    if not isinstance(value, Mapping) or not isinstance(value.get("properties"), Mapping):
        return None
    closed = value.get("additionalProperties", False) is False and value.get("type", "object") == "object"
    if not closed or value.get("nullable") is True or set(keywords_of(value)) - _PLAIN_OBJECT:
        return None
    found = {str(name): Node(one, base) for name, one in value["properties"].items()}
    return {name: one for name, one in found.items() if not schemas.is_hidden(one)}


def _body_property(
    name: str, schema: Node, required: bool, encodings: Any, kind: BodyKind, document: Document
) -> _RequestPart:
    value = document.follow(schema).value
    inner = document.follow(Node(value["items"], schema.base)).value if _is_list(value) and "items" in value else value
    about = encodings.get(name) if isinstance(encodings, Mapping) else None
    about = about if isinstance(about, Mapping) else {}
    is_file = kind == "multipart" and _is_file(inner)
    if "style" in about or "explode" in about:
        style = about.get("style", "form")
        if style not in _STYLES_OF_PLACES["query"]:
            raise DefinitionError(f"the part {name!r} of its body has the style {style!r:.50}")
        encoding = Encoding(
            style, about.get("explode", style == "form") is True, None, about.get("allowReserved") is True
        )
    else:
        media = about.get("contentType")
        is_object = isinstance(inner, Mapping) and (inner.get("type") in ("object", "array") or "properties" in inner)
        encoding = Encoding(media=media if isinstance(media, str) else "application/json" if is_object else None)
    return _RequestPart("body", name, schema, required, "", encoding, is_file)


def _is_file(schema: Any) -> bool:
    """https://spec.openapis.org/oas/v3.0.4#considerations-for-file-uploads and, since 3.1, `contentMediaType` without
    `contentEncoding`."""
    if not isinstance(schema, Mapping) or schema.get("type", "string") != "string" or "contentEncoding" in schema:
        return False
    return schema.get("format") == "binary" or "contentMediaType" in schema
