"""Read JSON from models strictly, with lossless repairs, and write it.

The repairs are for mistakes of real models: one fence, one extra encoding, raw control characters in strings, a comma
before a closing bracket, the same object written twice.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import PydanticSerializationError, from_json, to_json

from ferrule.values.frozen import JsonObject

_FENCE = r"(?s)\A```[\w-]*[ \t]*\r?\n(.*?)\r?\n?```\Z"
SECRET_STARS = "*" * 10
"""Pydantic's text for a secret."""
MASK = "***"
"""The text in place of a credential that was found by its form."""
_STRING_OR_COMMA = r'(?s)"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|,(?=\s*[\]}])'
"""The string may be cut off. Otherwise each escaped quote in it would look like the start of a string."""
_ESCAPED_CONTROLS = {code: f"\\u{code:04x}" for code in range(0x20)}
_JSON_TYPES = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    Mapping: "object",
}


class Malformed(ValueError):
    """The text is not JSON, or cannot be trusted. The message gives the model the reason."""


def json_type_name(value: object) -> str:
    """Return the name of the JSON type of `value`."""
    for kind in type(value).__mro__:
        if kind in _JSON_TYPES:
            return _JSON_TYPES[kind]
    return type(value).__name__


def is_same_json(one: Any, other: Any) -> bool:
    """Return whether two JSON values are the same. `1` and `1.0` are the same number; `true` is not a number."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same_json(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same_json, one, other))
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


def parse_json(text: str) -> Any:
    """Parse strict JSON.

    Raises:
        Malformed: The text is not JSON. NaN, half of a surrogate pair, and more than 200 levels of arrays and objects
            are refused too.
    """
    try:
        value = from_json(text, allow_inf_nan=False)
        format_finite_json(value)  # raises for an infinity, such as 1e999
    except TypeError:  # UTF-8 cannot hold a string in it
        raise Malformed("not valid JSON: it holds half of a surrogate pair, which is no character") from None
    except ValueError as error:
        cut_off = "it was cut off before its end, " if str(error).startswith("EOF") else ""
        raise Malformed(f"not valid JSON: {cut_off}{error}") from None
    return value


def format_finite_json(value: object) -> bytes:
    """Return the JSON text of data.

    Raises:
        ValueError: A number in it is NaN or an infinity.
    """
    text = to_json(value, inf_nan_mode="constants")
    if b"NaN" in text or b"Infinity" in text:  # perhaps in a string
        json.dumps(value, allow_nan=False)
    return text


def loads_finite(text: str) -> Any:
    """Return the value of a JSON text that was stored or typed.

    Raises:
        ValueError: for no JSON, and for NaN, an infinity, a number beyond a float, or too many levels in it.
    """
    try:
        return json.loads(text, parse_float=_read_finite, parse_constant=_read_finite)
    except RecursionError:
        raise ValueError("it has too many levels") from None


def _read_finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:40]} is no number of JSON")
    return number


def json_or_text(text: str) -> Any:
    """Return the value of a text that was typed, as `loads_finite` reads it, or the text itself if it is no JSON."""
    try:
        return loads_finite(text)
    except ValueError:
        return text


def repair_and_parse_json(text: str) -> tuple[Any, tuple[str, ...]]:
    """JSON as `loads` reads it, with the lossless repairs of the text itself that were needed, each named.

    Raises:
        Malformed: A repair would be a guess.
    """
    try:
        return parse_json(text), ()
    except Malformed:
        mended, repairs = text.strip(" \t\r\n"), []
    for repair, mend in _REPAIRS.items():
        before, mended = mended, mend(mended)
        if mended != before:
            repairs.append(repair)
    return parse_json(mended), tuple(repairs)


def _escape_control_characters(text: str) -> str:
    """Return `text` with the control characters in its strings escaped."""
    return re.sub(_STRING_OR_COMMA, lambda match: match.group().translate(_ESCAPED_CONTROLS), text)


def _remove_trailing_commas(text: str) -> str:
    return re.sub(_STRING_OR_COMMA, lambda match: "" if match.group() == "," else match.group(), text)


def _remove_repetition(text: str) -> str:
    """Return the first half of a text if both halves are the same object."""
    first, second = text[: len(text) // 2].strip(), text[len(text) // 2 :].strip()
    return first if first == second and first.startswith("{") else text


_REPAIRS: dict[str, Callable[[str], str]] = {
    "left out a mark before or after the JSON": lambda text: text.strip().removeprefix("\ufeff").strip(),
    "read None as no arguments": lambda text: "{}" if text == "None" else text,
    "took the JSON out of a code fence": lambda text: re.sub(_FENCE, lambda match: match[1].strip(), text),
    "kept raw control characters inside a string": _escape_control_characters,
    "removed a comma before a closing bracket": _remove_trailing_commas,
    "took one of two identical objects": _remove_repetition,
}
"""The repairs, in their order. They do not change valid JSON."""


def format_json(value: object) -> str:
    """Return the JSON text of a value, with Python objects as Pydantic writes them.

    Raises:
        ValueError: A part of the value has no JSON form.
    """
    if not isinstance(value, dict) and isinstance(value, Mapping):
        value = dict(value)
    try:
        return to_json(value, inf_nan_mode="constants").decode()
    except (PydanticSerializationError, UnicodeError, RecursionError) as error:
        try:  # json escapes lone surrogates, so that validation can name them
            return json.dumps(value)
        except (TypeError, ValueError, RecursionError):
            raise ValueError(f"no JSON form: {error}") from None


def reveal_secrets(value: Any) -> Any:
    """Return Python data with the plain values of Pydantic's secrets.

    Raises:
        ValueError: A secret is inside another object.
    """
    if hasattr(value, "get_secret_value"):
        return reveal_secrets(value.get_secret_value())
    if isinstance(value, Mapping):
        return {key: reveal_secrets(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [reveal_secrets(item) for item in value]
    if not isinstance(value, str) and SECRET_STARS in format_json(value):
        raise ValueError(f"no JSON form: a {type(value).__name__} holds a secret; give its fields as a dict")
    return value


def format_arguments(value: object) -> str:
    """Return the JSON text of Python objects as arguments, with secrets in clear.

    Raises:
        ValueError: A part of the value has no JSON form.
    """
    text = format_json(value)
    return format_json(reveal_secrets(value)) if SECRET_STARS in text else text


def parse_json_object(raw: str | JsonObject | None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the arguments as plain data, and the repairs of the text.

    Raises:
        Malformed: The text is not a JSON object.
    """
    if raw is None:
        return {}, ()
    if not isinstance(raw, str):
        try:
            raw = format_arguments(raw)
        except ValueError as error:
            raise Malformed(str(error)) from None
    if not raw.strip():
        return {}, ()
    value, repairs = repair_and_parse_json(raw)
    if isinstance(value, str):
        value, more = repair_and_parse_json(value)
        repairs = (*repairs, "decoded arguments that were encoded twice", *more)
    if value is None:
        return {}, repairs
    if not isinstance(value, dict):
        raise Malformed(f"the arguments are {json_type_name(value)} and must be one JSON object")
    return value, repairs
