"""JSON as models write it: read strictly, repaired only where nothing is lost, written so that it can be read again.

The list of lossless repairs follows what providers and runtimes have met in the wild: one fence, one extra encoding,
raw control characters in strings, a comma before a closing bracket, the same object written twice.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import PydanticSerializationError, from_json, to_json

from ferrule.values.frozen import JsonObject

_FENCE = re.compile(r"```[\w-]*[ \t]*\r?\n(.*?)\r?\n?```", re.DOTALL)
SECRET_STARS = "*" * 10
"""Pydantic's text for a secret."""
_MANY_DIGITS = re.compile(r"[0-9][0-9.]{15}|[eE][+-]?[0-9]{3}")
"""Matches a number that a double may not keep. It keeps 15 digits within its range."""
_QUOTED = r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)'
"""A string, also one that was cut off: else its every escaped quote would be looked at as the beginning of one."""
_STRING_OR_COMMA = re.compile(_QUOTED + r"|,(?=\s*[\]}])", re.DOTALL)
_STRING_OR_NUMBER = re.compile(_QUOTED + r"|[0-9][0-9.eE+-]*", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f]")
SHORT = 200
"""Characters of a text that is looked at whole."""
_MOST_LOOKED_AT = 500
_JSON_TYPES = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    Mapping: "object",
}


class Malformed(ValueError):
    """The text is no JSON that can be trusted; the message says why, for the model."""


def check_repeated_keys(text: str, values: JsonObject) -> None:
    """Refuse an object that has a key of the top level twice with different values.

    A short text is searched whole, a longer one up to its first bracket and from its last one. Everywhere else, and for
    keys with escapes, the last value counts, for guards and handler alike.

    Args:
        values: The values that were read from the text, perhaps with defaults.

    Raises:
        Malformed: The text names the key.
    """
    flat = text
    if len(text) > SHORT:
        most = min(len(text) // 2, _MOST_LOOKED_AT)
        head, tail = text[:most].lstrip()[1:], text[-most:].rstrip()[:-1]
        for opening, closing in ("{}", "[]"):
            head, tail = head.partition(opening)[0], tail.rpartition(closing)[2]
        flat = head + tail
    if any(flat.count(f'"{name}"') > 1 for name in values):
        _compare_repeated_keys(text)


def _compare_repeated_keys(text: str) -> None:
    root: list[tuple[str, Any]] = []

    def keep(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        root[:] = pairs  # the root's come last
        return dict(pairs)

    json.JSONDecoder(object_pairs_hook=keep, strict=False).decode(text)
    values: dict[str, Any] = {}
    for key, value in root:
        if not same(values.setdefault(key, value), value):
            raise Malformed(f"the key {key[:80]!r} came twice with different values")


def check_digits(text: str) -> None:
    """Refuse JSON in which a number has more digits than a double keeps.

    Raises:
        Malformed: with the first such number.
    """
    if not _MANY_DIGITS.search(text):
        return
    for match in _STRING_OR_NUMBER.finditer(text):
        number = match.group()
        if number[0] != '"' and not number.isdecimal() and not _is_exact(number):
            raise Malformed(
                f"{number[:40]} must be a string, since a number in floating point does not keep its digits"
            )


def _is_exact(number: str) -> bool:
    """Whether every double keeps these digits: 15 at most (DBL_DIG of IEEE 754), within its range."""
    digits = number.lower().partition("e")[0].replace(".", "").strip("0")
    try:
        return len(digits) <= 15 and (not digits or 1e-300 <= float(number) <= 1e300)
    except ValueError:  # no number
        return False


def kind_of(value: object) -> str:
    """The JSON type of `value`."""
    return next((name for kind, name in _JSON_TYPES.items() if isinstance(value, kind)), type(value).__name__)


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same. `1` and `1.0` are: a number in JSON has no type; `true` is no number."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


def loads(text: str) -> Any:
    """Strict JSON.

    Raises:
        Malformed: also for NaN, half of a surrogate pair, keys of the root that came twice and differ, and more levels
            of arrays and objects than Pydantic reads, 200.
    """
    return loads_and_rewrite(text)[0]


def loads_and_rewrite(text: str) -> tuple[Any, bytes]:
    """Strict JSON as `loads` reads it, and its text as Pydantic writes it.

    Raises:
        Malformed: as `loads` does.
    """
    try:
        value = from_json(text, allow_inf_nan=False)
        written = check_finite(value)  # 1e999 is read as an infinity
    except TypeError:  # a string that UTF-8 cannot hold
        raise Malformed("not valid JSON: it holds half of a surrogate pair, which is no character") from None
    except ValueError as error:
        cut_off = "it was cut off before its end, " if str(error).startswith("EOF") else ""
        raise Malformed(f"not valid JSON: {cut_off}{error}") from None
    if isinstance(value, dict):
        check_repeated_keys(text, value)
    return value, written


def check_finite(value: object) -> bytes:
    """Raise a `ValueError` where JSON data has a number that is none in JSON: NaN or an infinity; else their text."""
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


def loads_repaired(text: str) -> tuple[Any, tuple[str, ...]]:
    """JSON as `loads` reads it, with the lossless repairs of the text itself that were needed, each named.

    Raises:
        Malformed: where a repair would be a guess.
    """
    try:
        return loads(text), ()
    except Malformed:
        mended, repairs = text.strip(" \t\r\n"), []
    for repair, mend in _REPAIRS.items():
        before, mended = mended, mend(mended)
        if mended != before:
            repairs.append(repair)
    return loads(mended), tuple(repairs)


def _escaped(text: str) -> str:
    """`text` with the control characters in its strings written as JSON writes them."""
    return _STRING_OR_COMMA.sub(lambda match: _CONTROL.sub(lambda c: f"\\u{ord(c.group()):04x}", match.group()), text)


def _without_commas(text: str) -> str:
    return _STRING_OR_COMMA.sub(lambda match: "" if match.group() == "," else match.group(), text)


def _once(text: str) -> str:
    """The first half of a text whose halves are equal."""
    first, second = text[: len(text) // 2].strip(), text[len(text) // 2 :].strip()
    return first if first == second and first.startswith("{") else text


_REPAIRS: dict[str, Callable[[str], str]] = {
    "left out a mark before or after the JSON": lambda text: text.strip().removeprefix("\ufeff").strip(),
    "read None as no arguments": lambda text: "{}" if text == "None" else text,
    "took the JSON out of a code fence": lambda text: match[1].strip() if (match := _FENCE.fullmatch(text)) else text,
    "kept raw control characters inside a string": _escaped,
    "removed a comma before a closing bracket": _without_commas,
    "took one of two identical objects": _once,
}
"""The repairs in their order. None of them changes valid JSON."""


def to_object(
    raw: str | JsonObject | None, *, exact: bool = False, write: Callable[[Any], str] | None = None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the arguments as plain data, and the repairs of the text. `write` writes Python objects, else `dumps`.

    Raises:
        Malformed: The text is no JSON object, or a number would lose digits although `exact` is set.
    """
    if raw is None:
        return {}, ()
    if not isinstance(raw, str):
        try:
            raw = (write or dumps)(raw)
        except ValueError as error:
            raise Malformed(str(error)) from None
    if not raw.strip():
        return {}, ()
    value, repairs = loads_repaired(raw)
    if isinstance(value, str):
        raw = value
        value, more = loads_repaired(raw)
        repairs = (*repairs, "decoded arguments that were encoded twice", *more)
    if value is None:
        return {}, repairs
    if exact:
        check_digits(raw)
    if not isinstance(value, dict):
        raise Malformed(f"the arguments are {kind_of(value)} and must be one JSON object")
    return value, repairs


def unveiled(value: Any) -> Any:
    """Return `value` with the values of Pydantic's secrets in clear."""
    if hasattr(value, "get_secret_value"):
        return unveiled(value.get_secret_value())
    if hasattr(type(value), "model_fields"):
        return unveiled(value.model_dump(by_alias=True))
    if isinstance(value, Mapping):
        return {key: unveiled(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [unveiled(item) for item in value]
    return value


def dumps(value: object) -> str:
    """JSON text of arguments, Python objects as Pydantic writes them.

    Raises:
        ValueError: where something in it has no JSON form.
    """
    if not isinstance(value, dict) and isinstance(value, Mapping):
        value = dict(value)
    try:
        text = to_json(value, inf_nan_mode="constants").decode()
        return to_json(unveiled(value), inf_nan_mode="constants").decode() if SECRET_STARS in text else text
    except (PydanticSerializationError, UnicodeError, RecursionError) as error:
        # json escapes what UTF-8 cannot hold (lone surrogates); validation then names it.
        try:
            return json.dumps(value)
        except (TypeError, ValueError, RecursionError):
            raise ValueError(f"no JSON form: {error}") from None
