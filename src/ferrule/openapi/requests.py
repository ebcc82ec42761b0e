"""From the arguments of a call to the request: write values into paths, queries and bodies."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from urllib.parse import quote, unquote

from ferrule import Media, ToolError
from ferrule.openapi.arguments import Argument, Signature, fold_name
from ferrule.openapi.bodies import Encoding
from ferrule.openapi.operations import is_token, leads_elsewhere
from ferrule.openapi.uploads import choose_name_and_type, find_single_type
from ferrule.security.credentials import PRINTABLE
from ferrule.security.http_answers import is_json_type

Pair: TypeAlias = tuple[str, str]
_Names: TypeAlias = dict[tuple[str, str], str]
"""The place and name of each written value, with its argument."""

_STAYS_IN_QUERY: Final = ":/?@!$'()*,;"
"""The reserved characters allowed in a value of a query by RFC 3986, except `+`, `&`, `=` and `#`: these have a meaning
of their own in forms or URLs."""
_STAYS_IN_PATH: Final = "/%:@!$&'()*+,;=~"
_SEPARATORS: Final = {"spaceDelimited": "%20", "pipeDelimited": "%7C"}
_NO_UPLOADS: Final[Mapping[str, bytes]] = {}


@dataclass
class Request:
    """A request without its address.

    Attributes:
        path: The path, with a `/` at its beginning, written as in a URL.
        query: The pairs of the query, written as in a URL, without a `?`.
        headers: Names and values.
        cookies: The cookies as a browser would send them.
        content: The body, if it is not in parts.
        media: The type of the body, if it is not in parts.
        parts: The parts of the body: name, file name, content and type. File name and type may be missing.
    """

    method: str
    path: str
    query: list[str] = field(default_factory=list)
    headers: list[Pair] = field(default_factory=list)
    cookies: list[str] = field(default_factory=list)
    content: bytes | None = None
    media: str | None = None
    parts: list[tuple[str, str | None, bytes, str | None]] | None = None


class _NotWritable(Exception):
    """A value cannot be written in its place; the text gives the reason."""


def make_request(
    method: str,
    path: str,
    signature: Signature,
    arguments: Mapping[str, Any],
    uploads: Mapping[str, bytes] = _NO_UPLOADS,
) -> Request:
    """Return the request of a call with these arguments.

    Args:
        uploads: The content of the files that the arguments name by path.

    Raises:
        ToolError: A value cannot be written in its place.
    """
    request = Request(method, path)
    of_body: dict[str, tuple[Argument, Any]] = {}
    owners: _Names = {}
    for argument in signature.arguments:
        value = arguments.get(argument.name)
        if argument.name not in arguments or (value is None and argument.place != "body"):
            if argument.place == "path":
                raise ToolError(
                    f"{argument.name!r} is in the path and must have a value.",
                    executed=False,
                    retryable=False,
                )
            continue
        try:
            if argument.place == "body":
                of_body[argument.name] = argument, value
                continue
            before = len(request.query), len(request.cookies)
            _WRITERS[argument.place](request, argument, value)
            _check_written("query", request.query[before[0] :], argument, signature, owners)
            _check_written("cookie", request.cookies[before[1] :], argument, signature, owners)
        except (_NotWritable, UnicodeEncodeError) as error:
            raise _unwritable_error(repr(argument.name), error) from None
    request.path = _check_path(quote(request.path, safe=_STAYS_IN_PATH))
    if signature.body is not None and (of_body or signature.body.required):
        try:
            _write_body(request, signature, list(of_body.values()), owners, uploads)
        except (_NotWritable, UnicodeEncodeError) as error:
            raise _unwritable_error("the body", error) from None
    return request


def _check_written(place: str, pairs: Sequence[str], argument: Argument, signature: Signature, owners: _Names) -> None:
    """Refuse a value written under the name of another parameter or of a credential: the keys of a spread object become
    names.

    Args:
        pairs: Each `name=value`, as it is written.
        owners: Place and name of each earlier value, with its argument; this call adds to it.
    """
    own_name = fold_name(place, argument.wire)
    for pair in pairs:
        name = fold_name(place, unquote(pair.partition("=")[0]))
        is_of_another = name != own_name and (place, name) in signature.reserved
        if is_of_another or owners.setdefault((place, name), argument.name) != argument.name:
            raise _NotWritable(f"has the key {name!r:.80}, which another parameter has")


def _unwritable_error(what: str, error: Exception) -> ToolError:
    why = error if isinstance(error, _NotWritable) else "holds half of a surrogate pair, which UTF-8 cannot write"
    return ToolError(f"{what} {why}.", executed=False, retryable=False)


def _check_path(path: str) -> str:
    if leads_elsewhere(path) or "//" in path:
        text = "a value in the path is empty, '.' or '..', which would lead elsewhere."
        raise ToolError(text, executed=False, retryable=False)
    return path


# -- single values -----------------------------------------------------------------------------------------------------


def _plain_text(value: Any) -> str:
    """Return a value without parts as text.

    Raises:
        _NotWritable: The value has parts.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping | list | tuple):
        raise _NotWritable("has values within values, which cannot be written there")
    return json.dumps(value)


def _item_texts(value: Sequence[Any]) -> list[str]:
    return [_plain_text(item) for item in value if item is not None]


def _flat_texts(value: Any) -> list[str]:
    """Return the texts of a plain value, of the items of a list, or of the names and values of an object in turn."""
    if isinstance(value, Mapping):
        return [text for pair in _field_pairs(value) for text in pair]
    return _item_texts(value) if isinstance(value, list | tuple) else [_plain_text(value)]


def _field_pairs(value: Mapping[str, Any]) -> list[Pair]:
    return [(str(key), _plain_text(item)) for key, item in value.items() if item is not None]


def _join_apart(texts: Sequence[str], separator: str) -> str:
    """Join written texts, so that the server can split them again.

    Raises:
        _NotWritable: A text contains the separator.
    """
    if any(separator in text for text in texts):
        raise _NotWritable(f"has {unquote(separator)!r} in a value, and it separates the values there")
    return separator.join(texts)


def _format_value(media: str, value: Any) -> str:
    """Return the value as a text of a type: JSON, a form, or the plain value."""
    if is_json_type(media):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if media == "application/x-www-form-urlencoded" and isinstance(value, Mapping):
        return "&".join(_form_pairs(value))
    return _plain_text(value)


# -- path, query, headers, cookies -------------------------------------------------------------------------------------


def _write_path(request: Request, argument: Argument, value: Any) -> None:
    encoding = argument.encoding
    text = (
        quote(_format_value(encoding.media, value), safe="")
        if encoding.media
        else _format_path_value(encoding, argument.wire, value)
    )
    if not text:
        raise _NotWritable("is in the path and must have a value")
    request.path = request.path.replace(f"{{{argument.wire}}}", text)


def _format_path_value(encoding: Encoding, name: str, value: Any) -> str:
    """Write the styles simple, label and matrix: https://spec.openapis.org/oas/v3.2.0#style-examples"""
    prefix, explode_separator = {"simple": ("", ","), "label": (".", "."), "matrix": (";", ";")}[encoding.style]
    is_matrix = encoding.style == "matrix"
    if encoding.explode and isinstance(value, Mapping):
        pairs = [f"{_percent_encode(key)}={_percent_encode(item)}" for key, item in _field_pairs(value)]
        return f"{prefix}{_join_apart(pairs, explode_separator)}"
    texts = [_percent_encode(text) for text in _flat_texts(value)]
    if encoding.explode and is_matrix and isinstance(value, list | tuple):
        return "".join(f";{_percent_encode(name)}={text}" for text in texts)
    separator = explode_separator if encoding.explode and not is_matrix else ","
    text = _join_apart(texts, separator) if isinstance(value, list | tuple | Mapping) else texts[0]
    return f"{prefix}{_percent_encode(name)}={text}" if is_matrix else f"{prefix}{text}"


def _percent_encode(text: str) -> str:
    return quote(text, safe="")


def _write_query(request: Request, argument: Argument, value: Any) -> None:
    request.query += _query_pairs(argument.encoding, argument.wire, value)


def _write_query_string(request: Request, argument: Argument, value: Any) -> None:
    media = argument.encoding.media or ""
    text = _format_value(media, value)
    request.query.append(
        text if media == "application/x-www-form-urlencoded" and isinstance(value, Mapping) else _percent_encode(text)
    )


def _query_pairs(encoding: Encoding, name: str, value: Any) -> Iterator[str]:
    """Yield the styles form, spaceDelimited, pipeDelimited and deepObject, as `name=value` each, written as in a
    URL."""
    safe = _STAYS_IN_QUERY if encoding.reserved else ""

    def pair(key: str, text: str) -> str:
        return f"{_percent_encode(key)}={quote(text, safe=safe)}"

    if encoding.media is not None:
        yield pair(name, _format_value(encoding.media, value))
    elif encoding.style == "deepObject" and isinstance(value, Mapping | list | tuple):
        yield from (pair(key, text) for key, text in _deep_pairs(name, value))
    elif isinstance(value, Mapping) and encoding.explode:
        yield from (pair(key, text) for key, text in _field_pairs(value))
    elif isinstance(value, list | tuple) and encoding.explode:
        yield from (pair(name, text) for text in _item_texts(value))
    elif isinstance(value, Mapping | list | tuple):
        texts = [quote(text, safe=safe) for text in _flat_texts(value)]
        yield f"{_percent_encode(name)}={_join_apart(texts, _SEPARATORS.get(encoding.style, ','))}"
    else:
        yield pair(name, _plain_text(value))


def _deep_pairs(name: str, value: Any) -> Iterator[Pair]:
    """Yield `name[key]=value`. The specification has only one level. Deeper levels and lists follow the servers that
    take such parameters: `name[key][inner]`, `name[]` for each plain item, `name[0][key]` for objects."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _deep_pairs(f"{name}[{key}]", item)
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            inner = str(place) if isinstance(item, Mapping | list | tuple) else ""
            yield from _deep_pairs(f"{name}[{inner}]", item)
    elif value is not None:
        yield name, _plain_text(value)


def _write_header(request: Request, argument: Argument, value: Any) -> None:
    encoding = argument.encoding
    if encoding.media is not None:
        text = json.dumps(value) if is_json_type(encoding.media) else _format_value(encoding.media, value)
    elif isinstance(value, Mapping) and encoding.explode:
        text = _join_apart([f"{key}={item}" for key, item in _field_pairs(value)], ",")
    elif isinstance(value, Mapping | list | tuple):
        text = _join_apart(_flat_texts(value), ",")
    else:
        text = _plain_text(value)
    if text and not PRINTABLE.fullmatch(text):
        raise _NotWritable("goes into a header, which takes only printable ASCII")
    request.headers.append((argument.wire, text))


def _write_cookie(request: Request, argument: Argument, value: Any) -> None:
    encoding = argument.encoding
    if encoding.style != "cookie" or encoding.media is not None:
        request.cookies += _query_pairs(encoding, argument.wire, value)
        return
    if isinstance(value, Mapping):
        pairs = _field_pairs(value)
    else:
        pairs = [(argument.wire, text) for text in _flat_texts(value)]
    if not all(is_token(name) for name, _ in pairs):
        raise _NotWritable("has a key that is not a valid cookie name")
    if any(re.search(r"[^\x21-\x7e]|[\",;\\]", text) for _, text in pairs):
        raise _NotWritable("goes into a cookie, which takes no space, comma, semicolon, quote or backslash")
    request.cookies += [f"{name}={text}" for name, text in pairs]


_WRITERS: Final = {
    "path": _write_path,
    "query": _write_query,
    "querystring": _write_query_string,
    "header": _write_header,
    "cookie": _write_cookie,
}


# -- the body ----------------------------------------------------------------------------------------------------------


def _write_body(
    request: Request,
    signature: Signature,
    values: list[tuple[Argument, Any]],
    owners: _Names,
    uploads: Mapping[str, bytes],
) -> None:
    body = signature.body
    assert body is not None
    request.media = body.media
    whole = values[0][1] if body.whole and values else None
    if body.kind == "json":
        value = whole if body.whole else {argument.wire: item for argument, item in values}
        request.content = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    elif body.kind == "text":
        request.content = _plain_text("" if whole is None else whole).encode()
        request.media = body.media if "charset" in body.media.lower() else f"{body.media}; charset=utf-8"
    elif body.kind == "octets":
        by_path = isinstance(whole, Mapping)
        request.content = b"" if whole is None else uploads[whole["path"]] if by_path else _decode_base64(whole)
    elif body.kind == "form":
        texts = _form_pairs(whole or {}) if body.whole else _write_form(values, signature, owners)
        request.content = "&".join(texts).encode()
    else:
        request.media, request.parts = (
            None,
            [part for argument, item in values for part in _body_parts(argument, item, uploads)],
        )


def _write_form(values: Iterable[tuple[Argument, Any]], signature: Signature, owners: _Names) -> Iterator[str]:
    for argument, value in values:
        if value is None:
            continue
        listed = argument.encoding.media is not None and isinstance(value, list | tuple)
        for one in value if listed else [value]:
            pairs = [*_query_pairs(argument.encoding, argument.wire, one)]
            _check_written("body", pairs, argument, signature, owners)
            yield from pairs


def _form_pairs(value: Any) -> Iterator[str]:
    if not isinstance(value, Mapping):
        raise _NotWritable("has to be an object, to be written as a form")
    for key, item in value.items():
        nested = isinstance(item, Mapping) or (
            isinstance(item, list | tuple) and any(isinstance(one, Mapping | list | tuple) for one in item)
        )
        encoding = Encoding(media="application/json") if nested else Encoding()
        yield from () if item is None else _query_pairs(encoding, str(key), item)


def _body_parts(
    argument: Argument, value: Any, uploads: Mapping[str, bytes]
) -> Iterator[tuple[str, str | None, bytes, str | None]]:
    for one in value if isinstance(value, list | tuple) else [] if value is None else [value]:
        if argument.is_file:
            media = _make_file(one, argument.encoding.media, uploads)
            yield argument.wire, media.name or "file", media.data or b"", media.mime_type
        else:
            type_of = argument.encoding.media or ("application/json" if isinstance(one, Mapping | list) else None)
            text = _format_value(type_of, one) if type_of else _plain_text(one)
            yield argument.wire, None, text.encode(), type_of


def _make_file(file: Mapping[str, Any], media: str | None, uploads: Mapping[str, bytes]) -> Media:
    """Return the file from a model.

    Raises:
        _NotWritable: The file does not have one of text, bytes and path, or its type is invalid.
    """
    text, data, path = file.get("text"), file.get("data"), file.get("path")
    if sum(one is not None for one in (text, data, path)) != 1:
        raise _NotWritable("has a file that has to have one of text, data and path")
    content = uploads[path] if path is not None else text.encode() if isinstance(text, str) else _decode_base64(data)
    name, kind = choose_name_and_type(file, find_single_type(media))
    try:
        return Media("file", content, kind, name=name)
    except TypeError as error:
        raise _NotWritable(f"has a file that is none: {error}") from None


def _decode_base64(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise _NotWritable("is no base64") from None
