"""Lossless repairs: from what a model sent to arguments that fit, or to what is wrong with them.

They are tried only where strict validation of the text itself failed. Every repair is guided by what validation wants
at that very place, so a valid value is never touched; all that would be guessing is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from ferrule.arguments.absent import without_optional_nulls
from ferrule.arguments.argument_errors import ArgumentError, ArgumentErrors, Path, path_text
from ferrule.values.call import ToolCall
from ferrule.values.frozen import JsonObject
from ferrule.values.json_text import Malformed, check_digits, dumps, kind_of, loads, same

_T = TypeVar("_T")
_ROUNDS = 8
_FIRST_INEXACT = 2**53
"""The first integer that a double cannot tell from its neighbour."""
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")


def same_call(one: ToolCall, other: ToolCall) -> bool:
    """Whether a call came twice: with equal id, name and problem, and equal text or an equal mapping, as they came."""
    alike = (one.id, one.name, one.problem) == (other.id, other.name, other.problem)
    return alike and same(one.raw, other.raw)


def repair(value: dict[str, Any], read: Callable[[str], _T], schema: JsonObject) -> tuple[_T, tuple[str, ...]]:
    """Read the text of `value`, mending where nothing is lost: what was read, and the repairs.

    Where it does not fit, it is tried without the nulls of what `schema` makes optional, and as long as something can
    be mended.

    Raises:
        ArgumentErrors: what still does not fit.
    """
    repairs: list[str] = []
    for _ in range(_ROUNDS):
        text = dumps(value)
        try:
            return read(text), tuple(repairs)
        except ArgumentErrors as wrong:
            given = value
            value = without_optional_nulls(value, schema) if "null" in text else value
            if not _mend(value, wrong.errors, repairs) and value == given:
                raise
    return read(dumps(value)), tuple(repairs)


def _mend(value: dict[str, Any], errors: list[ArgumentError], repairs: list[str]) -> bool:
    wrong: dict[Path, list[ArgumentError]] = {}
    for error in errors:
        if (error.wants or error.choices) and error.sure and error.path:
            wrong.setdefault(error.path, []).append(error)
    mended = [_mend_one(value, path, found, repairs) for path, found in wrong.items()]
    return any(mended)


def _mend_one(value: Any, path: Path, errors: list[ArgumentError], repairs: list[str]) -> bool:
    wanted = {error.wants for error in errors}
    try:
        for part in path[:-1]:
            value = value[part]
        current = value[path[-1]]
    except (LookupError, TypeError):
        return False
    if isinstance(current, float) and "integer" in wanted and current.is_integer() and abs(current) < _FIRST_INEXACT:
        value[path[-1]] = int(current)
        return True
    decoded = _decoded(current) if isinstance(current, str) else None
    if decoded is None or not _is_wanted(decoded, wanted, [one for error in errors for one in error.choices]):
        return False
    value[path[-1]] = decoded
    repairs.append(f"read the string in {path_text(path)!r} as {kind_of(decoded)}")
    return True


def _is_wanted(decoded: Any, wanted: set[str | None], choices: list[Any]) -> bool:
    """Whether JSON is of a wanted type, or one of the choices. A text that is a choice itself fits, and never comes
    here."""
    kinds = {kind_of(one) for one in choices if same(decoded, one)} | wanted
    kind = kind_of(decoded)
    return kind in kinds or (kind == "integer" and "number" in kinds)


def _decoded(text: str) -> Any:
    """What the string says as JSON; numbers only with all their digits."""
    if not text or (text[0] not in "[{" and text not in {"true", "false"} and not _NUMBER.fullmatch(text)):
        return None
    try:
        check_digits(text)
        return loads(text)
    except Malformed:
        return None
