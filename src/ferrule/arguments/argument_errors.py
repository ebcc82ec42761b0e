"""Errors in arguments: a common form for Pydantic's and JSON Schema's errors, and the text for the model."""

from __future__ import annotations

import json
import re
from ast import literal_eval
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from pydantic_core import ErrorDetails, ValidationError

from ferrule.arguments.closed_schema import CHOICES
from ferrule.security.masking import mask_credentials
from ferrule.security.similar_names import NameIndex
from ferrule.values.count import format_count
from ferrule.values.frozen import JsonObject
from ferrule.values.json_text import json_type_name

Path = tuple[str | int, ...]
_Label = tuple[Path, str]
_Key = TypeVar("_Key", int, str)

_TYPE_OF_ERROR = {
    "int_type": "integer",
    "float_type": "number",
    "bool_type": "boolean",
    **dict.fromkeys(("list_type", "tuple_type", "set_type", "frozen_set_type", "iterable_type"), "array"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type", "dataclass_type"), "object"),
    **dict.fromkeys(("string_type", "date_type", "datetime_type", "time_type", "url_type", "uuid_type"), "string"),
    "none_required": "null",
}
_MISSING_ERRORS = {"missing", "missing_argument", "missing_keyword_only_argument"}
_ARTICLES = {
    "array": "an array",
    "object": "an object",
    "integer": "an integer",
    "number": "a number",
    "string": "a string",
    "boolean": "true or false",
}
_FORMATS = {
    "date": "a date in the format YYYY-MM-DD",
    "date-time": "a date and time, such as 2026-03-01T12:30:00Z",
    "time": "a time with a zone, such as 12:30:00Z",
}
_NO_VALUE = object()
_KEY_LABEL = "[key]"
"""Pydantic's label of a wrong key."""

_SHOULD = r"(Input|String|List|Value|Tuple|Set|Data) should "
_MEMBER = r"<[\w.]+: (?P<value>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|-?[\d.]+)>"
"""A member of an enum, as `repr` writes it."""
MAX_ERRORS = 20_000
"""Errors that are read: each takes some hundredths of a millisecond."""
_MAX_SHOWN = 60
"""Characters of a path or a value in the text for the model; an expectation may have three times as many."""


class ArgumentError(NamedTuple):
    """One error in the arguments.

    Attributes:
        path: The keys and positions that lead to the value.
        expected: The expectation, in words that follow the parameter's name.
        received: The wrong value; `_NO_VALUE` if there is none, or if it would not help.
        json_type: The right JSON type, if the value has a wrong one; that of the constants, if it has another value.
        kind: `"missing"`, `"unknown"` or `"wrong"`; `"unlikely"` in a branch that the value is not meant for: it may
            be repaired, and is not told.
        certain: Whether the value must have `json_type` or be one of `choices`; not inside one branch of several.
        choices: The allowed JSON values, if they are listed.
        is_constant: Whether the value must be one of several constants.
        is_tag: Whether the value must be one constant, as the tag of a branch is.
    """

    path: Path
    expected: str
    received: object = _NO_VALUE
    json_type: str | None = None
    kind: str = "wrong"
    certain: bool = True
    choices: Sequence[Any] = ()
    is_constant: bool = False
    is_tag: bool = False


class ArgumentErrors(Exception):
    """The arguments are invalid."""

    def __init__(self, errors: Sequence[ArgumentError]) -> None:
        self.errors = list(errors)


def from_pydantic(error: ValidationError, value: object) -> list[ArgumentError]:
    """Return Pydantic's errors as argument errors, at most `MAX_ERRORS`.

    `value` is the validated JSON. It tells keys from the labels of unions, and has the wrong values: Pydantic would
    copy them into each error.
    """
    converted: list[ArgumentError] = []
    located: list[tuple[Path, list[_Label]]] = []
    branches: dict[Path, dict[str, list[ArgumentError]]] = {}
    for item in error.errors(include_url=False, include_input=False)[:MAX_ERRORS]:
        path, labels, received = _locate(item["loc"], value, item["type"] in _MISSING_ERRORS)
        found = _convert_pydantic(item, path, received)
        converted.append(found)
        located.append((path, labels))
        for above, label in labels:
            branches.setdefault(above, {}).setdefault(label, []).append(found)
    likely = {path: _find_likely(path, of_path) for path, of_path in branches.items() if len(of_path) > 1}
    for position, (path, labels) in enumerate(located) if likely else ():
        if any(above in likely and len(above) < len(path) for above, _ in labels):
            converted[position] = converted[position]._replace(certain=False)
        if any(above in likely and label not in likely[above] for above, label in labels):
            converted[position] = converted[position]._replace(kind="unlikely")
    return converted


def _find_likely(path: Path, branches: Mapping[_Key, Sequence[ArgumentError]]) -> list[_Key]:
    """Return the branches that the value at `path` may be meant for: those of its type, then of its tag, then of its
    constants."""
    likely = list(branches)
    for is_other in (_is_of_other_type, _has_other_tag, _has_other_constant):
        near = [key for key in likely if not any(is_other(path, error) for error in branches[key])]
        likely = near or likely
    return likely


def _is_of_other_type(path: Path, error: ArgumentError) -> bool:
    if error.path != path or error.kind != "wrong":
        return False
    types = {*map(json_type_name, error.choices)} or {error.json_type} - {None}
    return bool(types) and json_type_name(error.received) not in types


def _has_other_tag(path: Path, error: ArgumentError) -> bool:
    return error.is_tag and _has_other_constant(path, error)


def _has_other_constant(path: Path, error: ArgumentError) -> bool:
    return error.is_constant and len(error.path) == len(path) + 1 and error.kind == "wrong"


def _locate(location: Iterable[str | int], value: object, missing: bool) -> tuple[Path, list[_Label], object]:
    """Return the path of an error in `value`, Pydantic's labels between its parts, and the wrong value."""
    parts = tuple(location)
    if len(parts) == 1 and isinstance(value, dict) and (parts[0] in value or missing):
        return parts, [], value.get(parts[0])
    path: list[str | int] = []
    labels: list[_Label] = []
    for position, part in enumerate(parts):
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        elif missing and position == len(parts) - 1:
            value = None
        else:
            labels.append((tuple(path), str(part)))
            continue
        path.append(part)
    if path and labels and labels[-1][1] == _KEY_LABEL:
        return tuple(path), labels, path[-1]
    return tuple(path), labels, _NO_VALUE if value is None and not path else value


def _convert_pydantic(item: ErrorDetails, path: Path, received: object) -> ArgumentError:
    kind = item["type"]
    if kind in _MISSING_ERRORS:
        return ArgumentError(path, "is required", kind="missing")
    if kind in {"extra_forbidden", "unexpected_keyword_argument"}:
        return ArgumentError(path, "is not known", received, kind="unknown")
    if kind == "union_tag_invalid" and isinstance(received, dict):
        tags = _parse_tags(item["ctx"]["expected_tags"])
        for key in [name.strip("'") for name in item["ctx"]["discriminator"].split(" | ")] if tags else ():
            if key in received and received[key] not in tags:
                expected = f"must be {' or '.join(map(repr, tags))}"
                return ArgumentError((*path, key), expected, received[key], choices=tags, is_constant=True)
    choices = item.get("ctx", {}).get(CHOICES, ())
    is_constant = kind in {"literal_error", "enum"}
    json_type = "string" if is_constant and not choices else _TYPE_OF_ERROR.get(kind)
    # An author's own error may have Pydantic's name, and no context.
    is_tag = is_constant and " or " not in str(item.get("ctx", {}).get("expected", " or "))
    expected = _parse_message(item["msg"])
    return ArgumentError(path, expected, received, json_type, "wrong", True, choices, is_constant, is_tag)


def _parse_tags(text: str) -> list[Any]:
    """Return the tags of a union from Pydantic's list; an enum's as values. Returns none if one is no JSON value."""
    try:
        return list(literal_eval("[" + re.sub(_MEMBER, r"\g<value>", text) + "]"))
    except (ValueError, SyntaxError):
        return []


@lru_cache(256)
def _parse_message(message: str) -> str:
    """Return the expectation in Pydantic's message. Most messages are Pydantic's own, and come again."""
    message = message.removeprefix("Value error, ").removeprefix("Assertion failed, ")
    message = mask_credentials(message.partition(" following the rules at http")[0])
    should = re.match(_SHOULD, message)
    if should is None:
        return f"is wrong: {_shorten(message, 200)}"
    return f"must {message[should.end() :].strip()}"


def from_json_schema(errors: Iterable[Any]) -> list[ArgumentError]:
    """Return the errors of `jsonschema_rs` as argument errors: at least one for each, as no error means that all is
    right."""
    return [converted for error in errors for converted in _convert_json_schema(error) or [_convert_unknown(error)]]


def _convert_json_schema(error: Any) -> list[ArgumentError]:
    path: Path = tuple(error.instance_path)
    kind, received = error.kind, error.instance
    name = kind.name
    if name == "required":
        return [ArgumentError((*path, kind.property), "is required", kind="missing")]
    if name in {"additionalProperties", "unevaluatedProperties"} and hasattr(kind, "unexpected"):
        values = received if isinstance(received, dict) else {}
        return [ArgumentError((*path, key), "is not known", values.get(key), kind="unknown") for key in kind.unexpected]
    if name == "type":
        expected = f"must be {' or '.join(_ARTICLES.get(want, want) for want in kind.types)}"
        return [ArgumentError(path, expected, received, json_type) for json_type in kind.types]
    if name in {"anyOf", "oneOf"} and getattr(kind, "context", None):
        return _convert_branches(path, received, kind.context)
    if name == "enum":
        expected, choices = f"must be one of {_format_choices(kind.options)}", kind.options
        return [ArgumentError(path, expected, received, choices=choices, is_constant=True)]
    if name == "const":
        expected = f"must be {format_value(kind.expected_value)}"
        choices = [kind.expected_value]
        return [ArgumentError(path, expected, received, choices=choices, is_constant=True, is_tag=True)]
    if name == "format" and kind.format in _FORMATS:
        return [ArgumentError(path, f"must be {_FORMATS[kind.format]}", received)]
    return [_convert_unknown(error)]


def _convert_unknown(error: Any) -> ArgumentError:
    return ArgumentError(tuple(error.instance_path), f"is wrong: {_shorten(str(error.message), 200)}", error.instance)


def _convert_branches(path: Path, received: object, branches: Any) -> list[ArgumentError]:
    """Return the errors of a value that fits no branch, in the branches that it may be meant for.

    Errors inside one branch prove nothing for a repair, as the value may be meant for another.
    """
    found = {n: from_json_schema(branch) for n, branch in enumerate(branches)}
    if not all(found.values()):
        return [ArgumentError(path, "fits more than one of the forms it may have, and must fit exactly one", received)]
    likely = _find_likely(path, found)
    here = [(n, error) for n, errors in found.items() for error in errors if error.path == path]
    is_plain = bool(here) and all(error.json_type or error.choices for _, error in here)
    here = [(n, error if is_plain else error._replace(certain=False)) for n, error in here]
    unlikely = [error._replace(kind="unlikely") for n, error in here if n not in likely]
    told = [error for n, error in here if n in likely]
    inner = [error for n in likely for error in found[n] if error.path != path and error.kind != "unlikely"]
    if len(likely) == 1:
        return [*told, *(error._replace(certain=False) for error in inner), *unlikely]
    if not inner and all(error.json_type or error.choices for error in told):
        return [*told, *unlikely]
    texts = {error.expected for error in told if error.kind != "unlikely"}
    texts |= {f"{format_path(error.path[len(path) :])!r} {error.expected}" for error in inner}
    wanted = _shorten("; ".join(sorted(texts)), 160)
    expected = "fits none of the forms it may have" + (f" ({wanted})" if wanted else "")
    return [ArgumentError(path, expected, received), *[one._replace(kind="unlikely") for one in told], *unlikely]


def _format_choices(values: Sequence[Any]) -> str:
    shown = ", ".join(format_value(value) for value in values[:20])
    more = f", … ({len(values)} in all)" if len(values) > 20 else ""
    return _shorten(shown, 2 * _MAX_SHOWN) + more


_encode_shown = json.JSONEncoder(ensure_ascii=False, default=str).encode
"""`json.dumps` would make an encoder for each value."""


def format_value(value: object) -> str:
    """Return `value` as short JSON."""
    return _shorten(_encode_shown(value), _MAX_SHOWN)


def _shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"


def format_path(path: Path) -> str:
    """Return a path as text, such as `items[3].price`."""
    if len(path) == 1 and type(path[0]) is str and len(path[0]) <= _MAX_SHOWN:  # most are
        return path[0] or "the arguments"
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else str(part))
    return _shorten(text, _MAX_SHOWN) or "the arguments"


def explain_errors(name: str, errors: Sequence[ArgumentError], properties: JsonObject) -> str:
    """Return the text for the model: each wrong parameter, its value, the expectation, and the words "Nothing was run".

    Args:
        name: The tool's name.
        properties: The schemas of the visible parameters, by name.
    """
    groups: dict[Path, list[ArgumentError]] = {}
    for error in [error for error in errors if error.kind != "unlikely"] or errors:
        groups.setdefault(error.path, []).append(error)
    lines = [_format_line(path, group, properties) for path, group in list(groups.items())[:5]]
    if len(groups) > 5:
        lines.append(format_count(len(groups) - 5, "more mistake"))
    return f"Invalid arguments for {name}: {'; '.join(lines)}. Nothing was run: correct this and call again."


def _format_line(path: Path, group: Sequence[ArgumentError], properties: JsonObject) -> str:
    first = group[0]
    if first.kind == "unknown":
        return _format_unknown(path, tuple(properties))
    if first.kind == "missing":
        node = properties.get(str(path[0])) if len(path) == 1 else None
        return f"{format_path(path)!r} is required and was not given{_format_type_hint(node)}"
    received = "" if first.received is _NO_VALUE else f", got {_format_value_with_type(first.received)}"
    return f"{format_path(path)!r} {_format_expectation(group)}{received}"


def _format_expectation(group: Sequence[ArgumentError]) -> str:
    """Join the expectations of all errors at one path, each in its share of the text."""
    if len(group) == 1:
        return _shorten(group[0].expected, 3 * _MAX_SHOWN)
    texts = list(dict.fromkeys(error.expected for error in group))[:4]
    first, *more = (_shorten(text, 3 * _MAX_SHOWN // len(texts)) for text in texts)
    return " or ".join([first, *(text.removeprefix("must be ").removeprefix("must ") for text in more)])


def _format_value_with_type(value: object) -> str:
    kind = "" if value is None or isinstance(value, bool) else f"{json_type_name(value)} "
    return kind + format_value(value)


def _format_type_hint(node: object) -> str:
    """Return the type or the choices of a missing parameter."""
    if not isinstance(node, dict):
        return ""
    if isinstance(node.get("enum"), list):
        return f": one of {_format_choices(node['enum'])}"
    kind = node.get("type")
    return f": {_ARTICLES.get(kind, kind)}" if isinstance(kind, str) else ""


_get_name_index = lru_cache(64)(NameIndex)


def _format_unknown(path: Path, known: tuple[str, ...]) -> str:
    shown = format_path(path)
    if len(path) > 1:
        return f"{shown!r} is not known there"
    near = _get_name_index(known).find_nearest(str(path[0]))
    if near:
        return f"{shown!r} is not a parameter (did you mean {_shorten(near[0], _MAX_SHOWN)!r}?)"
    names = ", ".join(map(repr, known[:12])) or "none"
    return f"{shown!r} is not a parameter; the parameters are: {_shorten(names, 2 * _MAX_SHOWN)}"
