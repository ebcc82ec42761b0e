"""JSON as models write it: read strictly, repaired only where nothing is lost, written so that it can be read again.

The list of lossless repairs follows what providers and runtimes have met in the wild: one fence, one extra encoding,
raw control characters in strings, a comma before a closing bracket, the same object written twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

_FENCE = re.compile(r"```[\w-]*[ \t]*\r?\n(.*?)\r?\n?```", re.DOTALL)
STARS = "*" * 10
"""What Pydantic writes in the place of a secret."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_MANY_DIGITS = re.compile(r"[0-9][0-9.]{15}|[eE][+-]?[0-9]{3}")
"""Where a number may stand that a double does not keep; 15 digits in its range it always keeps."""
_QUOTED = r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)'
"""A string, also one that was cut off: else its every escaped quote would be looked at as the beginning of one."""
_STRING = re.compile(_QUOTED, re.DOTALL)
_STRING_OR_COMMA = re.compile(_QUOTED + r"|,(?=\s*[\]}])", re.DOTALL)
_STRING_OR_BRACKET = re.compile(_QUOTED + r"|[\[\]{}]", re.DOTALL)
DEEPEST = 200
"""Levels of arrays and objects, as many as Pydantic reads."""


class Malformed(ValueError):
    """The text is no JSON that can be trusted; the message says why, for the model."""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: dict[str, Any] = {}
        for key, value in pairs:
            if key in seen and not same(seen[key], value):
                raise Malformed(f"the key {key[:80]!r} came twice with different values")
            seen[key] = value
    return found


def without_nested(text: str, nested: Iterable[tuple[str, str, int]]) -> str | None:
    """The text of an object without what is inside its nested values: brackets, and how many values have them.

    `None` where there are more, below them or in strings: then it is not known which is which. What is left out is
    never outside of them; what is left in may be more than that.
    """
    inside = text.find("{") + 1
    for opening, closing, count in nested:
        at = text.find(opening, inside)
        while at > 0:
            following = text.find(opening, at + 1)
            end = text.find(closing, at)
            if not count or 0 < following < end:
                return None
            text = text[:at] + text[end:]
            if following < 0:
                break
            at, count = following - end + at, count - 1
    return text


def came_twice(text: str, keys: Sequence[str], *, escaped: bool = False) -> bool:
    """Whether one of the keys, each with its quotes, may be in `text` more than once.

    Escapes can hide one; with `escaped`, even where it holds no `\\u`.
    """
    if "\\" in text and (escaped or "\\u" in text):
        return True
    return any(text.find(key) != text.rfind(key) for key in keys)


def rounded(text: str) -> frozenset[float]:
    """What became of the numbers in `text` whose digits a float does not keep; those inside strings are not meant."""
    if not _MANY_DIGITS.search(text):
        return frozenset()
    outside = _STRING.sub('""', text)
    found = [number for number in _NUMBER.findall(outside) if not number.lstrip("-").isdigit()]
    return frozenset(float(number) for number in found if not _kept(number))


def _kept(number: str) -> bool:
    try:
        return Decimal(repr(float(number))) == Decimal(number)
    except InvalidOperation:  # an exponent beyond what `Decimal` has
        return False


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same; `1`, `1.0` and `true` are three."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def _constant(name: str) -> Any:
    raise Malformed(f"{name} is not a JSON number")


def _float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise Malformed(f"the number {text[:40]} is too large")
    return value


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:  # CPython's limit on digits, sys.set_int_max_str_digits
        raise Malformed(f"a number of {len(text)} digits is too long") from None


_HOOKS: dict[str, Any] = {
    "object_pairs_hook": _pairs,
    "parse_constant": _constant,
    "parse_float": _float,
    "parse_int": _int,
}
_STRICT = json.JSONDecoder(**_HOOKS)
_CONTROLS = json.JSONDecoder(strict=False, **_HOOKS)


def loads(text: str) -> Any:
    """Strict JSON.

    Raises:
        Malformed: also for NaN, infinities, keys that came twice and differ, and nesting beyond the stack.
    """
    return _decode(_STRICT, text)


def _decode(decoder: json.JSONDecoder, text: str) -> Any:
    if _too_deep(text):
        raise Malformed("the JSON is nested too deeply")
    try:
        value = decoder.decode(text)
    except json.JSONDecodeError as error:
        raise Malformed(_reason(text, error)) from None
    except RecursionError:
        raise Malformed("the JSON is nested too deeply") from None
    if not text.isascii() or _SURROGATE.search(text):
        _refuse_half_characters(value)
    return value


def _too_deep(text: str) -> bool:
    """Whether it nests deeper than `DEEPEST`. The decoder would go on to the end of the stack, where whatever a garbage
    collection runs fails too."""
    if text.count("[") + text.count("{") <= DEEPEST:
        return False
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        found = match.group()
        if found in ("[", "{"):
            depth += 1
            if depth > DEEPEST:
                return True
        elif found in ("]", "}"):
            depth -= 1
    return False


def _refuse_half_characters(value: Any) -> None:
    """Half of a surrogate pair is no character: nothing that reads UTF-8 would take it further on."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Malformed("it holds half of a surrogate pair, such as \\ud800 alone, which is no character") from None


def _reason(text: str, error: json.JSONDecodeError) -> str:
    if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
        return "the JSON was cut off before its end"
    if error.msg == "Extra data":
        return "there is more text after the JSON object"
    near = text[max(0, error.pos - 10) : error.pos + 20]
    return f"not valid JSON at character {error.pos}, near {near!r}"


def loads_repaired(text: str) -> tuple[Any, tuple[str, ...]]:
    """JSON, with the lossless repairs of the text itself that were needed, each named.

    Raises:
        Malformed: where a repair would be a guess.
    """
    try:
        return loads(text), ()
    except Malformed as first:
        reason = first
    stripped = text.strip().removeprefix("\ufeff").strip()
    repairs = () if stripped == text.strip(" \t\r\n") else ("left out a mark before or after the JSON",)
    if stripped == "None":
        return {}, ("read None as no arguments",)
    fence = _FENCE.fullmatch(stripped)
    if fence:
        stripped = fence.group(1).strip()
        repairs = (*repairs, "took the JSON out of a code fence")
    for decoder, candidate, repair in _candidates(stripped):
        try:
            return _decode(decoder, candidate), repairs + repair
        except Malformed as error:
            reason = reason if reason.args[0].startswith("the key") else error
    return _glued(stripped, reason), (*repairs, "took one of several identical objects")


def _candidates(text: str) -> list[tuple[json.JSONDecoder, str, tuple[str, ...]]]:
    """The ways to read `text`, the one with the fewest repairs first."""
    controls = "kept raw control characters inside a string"
    comma = "removed a comma before a closing bracket"
    found: list[tuple[json.JSONDecoder, str, tuple[str, ...]]] = [(_STRICT, text, ()), (_CONTROLS, text, (controls,))]
    bare = _STRING_OR_COMMA.sub(lambda match: "" if match.group() == "," else match.group(), text)
    if bare != text:
        found += [(_STRICT, bare, (comma,)), (_CONTROLS, bare, (controls, comma))]
    return found


def _glued(text: str, reason: Malformed) -> Any:
    """The one object that a text of several equal ones holds."""
    values: list[Any] = []
    position = 0
    try:
        while position < len(text):
            value, position = _STRICT.raw_decode(text, position)
            values.append(value)
            while position < len(text) and text[position] in " \t\r\n":
                position += 1
    except (ValueError, RecursionError):
        raise reason from None
    if len(values) < 2 or not isinstance(values[0], dict):
        raise reason
    if not all(same(values[0], value) for value in values[1:]):
        raise Malformed(f"{len(values)} different JSON objects came in one call; send one call for each")
    return values[0]


def _unveiled(value: Any) -> Any:
    """`value` with what Pydantic's secrets hold, which it writes as stars."""
    if hasattr(value, "get_secret_value"):
        return value.get_secret_value()
    if hasattr(type(value), "model_fields"):
        return _unveiled(value.model_dump(by_alias=True))
    if isinstance(value, Mapping):
        return {key: _unveiled(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_unveiled(item) for item in value]
    return value


def dumps(value: Any) -> str:
    """JSON text of arguments, Python objects as Pydantic writes them.

    Raises:
        ValueError: where something in it has no JSON form.
    """
    if isinstance(value, Mapping) and not isinstance(value, dict):
        value = dict(value)
    try:
        text = to_json(value, inf_nan_mode="constants").decode()
        return to_json(_unveiled(value), inf_nan_mode="constants").decode() if STARS in text else text
    except (PydanticSerializationError, UnicodeError, RecursionError) as error:
        # json escapes what UTF-8 cannot hold (lone surrogates); validation then names it.
        try:
            return json.dumps(value)
        except (TypeError, ValueError, RecursionError):
            raise ValueError(f"no JSON form: {error}") from None
