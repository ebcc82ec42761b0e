"""JSON as models write it: read strictly, repaired only where nothing is lost, written so that it can be read again.

The list of lossless repairs follows what providers and runtimes have met in the wild: one fence, one extra encoding,
raw control characters in strings, a comma before a closing bracket, the same object written twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from json.encoder import encode_basestring
from typing import Any, NoReturn

from pydantic_core import PydanticSerializationError, to_json

from ferrule.values.frozen import JsonObject

_FENCE = re.compile(r"```[\w-]*[ \t]*\r?\n(.*?)\r?\n?```", re.DOTALL)
SECRET_STARS = "*" * 10
"""What Pydantic writes in the place of a secret."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_MANY_DIGITS = re.compile(r"[0-9][0-9.]{15}|[eE][+-]?[0-9]{3}")
"""Where a number may stand that a double does not keep; 15 digits in its range it always keeps."""
_QUOTED = r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)'
"""A string, also one that was cut off: else its every escaped quote would be looked at as the beginning of one."""
_STRING_OR_COMMA = re.compile(_QUOTED + r"|,(?=\s*[\]}])", re.DOTALL)
_STRING_OR_BRACKET = re.compile(_QUOTED + r"|[\[\]{}]", re.DOTALL)
_LONG = 1000
_MOST_SEARCHED = 64
"""Keys that are looked for one by one: each time the whole text is read."""
DEEPEST = 200
"""Levels of arrays and objects, as many as Pydantic reads."""


class Malformed(ValueError):
    """The text is no JSON that can be trusted; the message says why, for the model."""


def check_repeated_keys(text: str, values: JsonObject, given: int, quoted: Mapping[str, str]) -> None:
    """Refuse an object in which a key of the top level came twice; `values` are what was read from it, by name.

    So many of them were `given`; `quoted` has the keys with their quotes where they are not the names. What has quotes
    stands inside no string, since these have a backslash there. A key with escapes, or beside brackets in strings, may
    be missed: then the last one counts, for guards and for the handler, as it always does further down.

    Raises:
        Malformed: where the two values differ.
    """
    if len(values) > _MOST_SEARCHED or _repeats_key(text, values, given, quoted):
        _compare_repeated_keys(text)


def _repeats_key(text: str, values: JsonObject, given: int, quoted: Mapping[str, str]) -> bool:
    for name, value in values.items():
        if type(value) is str and len(value) > _LONG:
            text = _without_string(text, quoted.get(name) or f'"{name}"', value)
    text = _emptied(_emptied(text, "[", "]"), "{", "}")
    if text.count(",") < given:
        return False
    for name in values:
        key = quoted.get(name) or f'"{name}"'
        if text.find(key, text.find(key) + len(key)) >= 0:
            return True
    return False


def _without_string(text: str, key: str, value: str) -> str:
    """`text` without most of the string behind a key: to look for keys in 100 KB takes longer than to validate them."""
    at = text.find(key)
    start = text.find('"', at + len(key)) + 1
    begin = encode_basestring(value[:8])[1:-1]
    return text[:start] + text[start + len(value) :] if at >= 0 and text.startswith(begin, start) else text


def _emptied(text: str, opening: str, closing: str) -> str:
    """The text of an object without what is between brackets in it, as long as these are few for its length.

    It goes by `find`: `count` takes as long for a character as `find` for a hundred.
    """
    kept, kept_to = [], 0
    most = 16 + len(text) // 64
    opened = text.find(opening, text.find("{") + 1)
    while opened >= 0:
        kept.append(text[kept_to:opened])
        closed, depth = opened, 1
        opened = text.find(opening, opened + 1)
        while depth:
            closed = text.find(closing, closed + 1)
            most -= 1
            if closed < 0 or most < 0:
                return text
            while 0 <= opened < closed:
                depth += 1
                opened = text.find(opening, opened + 1)
            depth -= 1
        kept_to = closed
    kept.append(text[kept_to:])
    return "".join(kept)


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


def has_many_digits(text: str) -> bool:
    """Whether a number in `text` may have more digits than a double keeps."""
    return _MANY_DIGITS.search(text) is not None


def _exact_float(text: str) -> float:
    try:
        if Decimal(repr(float(text))) == Decimal(text):
            return float(text)
    except InvalidOperation:  # an infinity, or an exponent beyond what `Decimal` has
        pass
    raise Malformed(f"{text[:40]} must be a string, since a number in floating point does not keep all its digits")


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same; `1`, `1.0` and `true` are three."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def refuse_constant(name: str) -> NoReturn:
    """NaN and the infinities, which Python writes and reads, are no JSON."""
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


_HOOKS: dict[str, Any] = {"parse_constant": refuse_constant, "parse_int": _int}
_DECODERS = {
    (controls, exact): json.JSONDecoder(strict=not controls, parse_float=_exact_float if exact else _float, **_HOOKS)
    for controls in (False, True)
    for exact in (False, True)
}
"""By whether raw control characters may stand in strings, and whether all digits must be kept."""


def loads(text: str, *, exact: bool = False) -> Any:
    """Strict JSON.

    Raises:
        Malformed: also for NaN, infinities, keys of the root that came twice and differ, nesting beyond `DEEPEST`, and
            where it must be `exact`, numbers whose digits a double does not keep.
    """
    return _decode(_DECODERS[False, exact], text)


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
    if isinstance(value, dict):
        check_repeated_keys(text, value, len(value), {})
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


def _refuse_half_characters(value: object) -> None:
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


def loads_repaired(text: str, *, exact: bool = False) -> tuple[Any, tuple[str, ...]]:
    """JSON as `loads` reads it, with the lossless repairs of the text itself that were needed, each named.

    Raises:
        Malformed: where a repair would be a guess.
    """
    try:
        return loads(text, exact=exact), ()
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
    for controls, candidate, repair in _candidates(stripped):
        try:
            return _decode(_DECODERS[controls, exact], candidate), repairs + repair
        except Malformed as error:
            reason = reason if reason.args[0].startswith("the key") else error
    return _one_of_equal(stripped, reason, exact), (*repairs, "took one of several identical objects")


def _candidates(text: str) -> list[tuple[bool, str, tuple[str, ...]]]:
    """The ways to read `text`, the one with the fewest repairs first: whether raw control characters are taken, the
    text, the repairs."""
    controls = "kept raw control characters inside a string"
    comma = "removed a comma before a closing bracket"
    ways: list[tuple[bool, str, tuple[str, ...]]] = [(False, text, ()), (True, text, (controls,))]
    bare = _STRING_OR_COMMA.sub(lambda match: "" if match.group() == "," else match.group(), text)
    if bare != text:
        ways += [(False, bare, (comma,)), (True, bare, (controls, comma))]
    return ways


def _one_of_equal(text: str, reason: Malformed, exact: bool) -> Any:
    """The one object that a text of several equal ones holds."""
    values: list[Any] = []
    end = 0
    try:
        while end < len(text):
            start = end
            _, end = _DECODERS[False, exact].raw_decode(text, start)
            values.append(loads(text[start:end], exact=exact))
            while end < len(text) and text[end] in " \t\r\n":
                end += 1
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


def dumps(value: object) -> str:
    """JSON text of arguments, Python objects as Pydantic writes them.

    Raises:
        ValueError: where something in it has no JSON form.
    """
    if isinstance(value, Mapping) and not isinstance(value, dict):
        value = dict(value)
    try:
        text = to_json(value, inf_nan_mode="constants").decode()
        return to_json(_unveiled(value), inf_nan_mode="constants").decode() if SECRET_STARS in text else text
    except (PydanticSerializationError, UnicodeError, RecursionError) as error:
        # json escapes what UTF-8 cannot hold (lone surrogates); validation then names it.
        try:
            return json.dumps(value)
        except (TypeError, ValueError, RecursionError):
            raise ValueError(f"no JSON form: {error}") from None
