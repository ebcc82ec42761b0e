"""Repair arguments without loss after strict validation refused them.

A repair changes a value only at the path of an error, and only to the expected type or choice. So a valid value
is never touched, and nothing is guessed. Repairs of the JSON text itself are in `values/json_text.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ferrule.arguments.argument_errors import ArgumentError, ArgumentErrors, Path, format_path
from ferrule.arguments.optional_nulls import drop_optional_nulls
from ferrule.values.call import ToolCall
from ferrule.values.frozen import JsonObject
from ferrule.values.json_text import Malformed, format_json, is_same_json, json_type_name, parse_json

_T = TypeVar("_T")
_MAX_ROUNDS = 8
_FIRST_INEXACT = 2**53
"""The first integer that a double cannot tell from its neighbour."""


def is_same_call(one: ToolCall, other: ToolCall) -> bool:
    """Return whether a call came twice: equal id, name and problem, and the same arguments as received."""
    is_alike = (one.id, one.name, one.problem) == (other.id, other.name, other.problem)
    return is_alike and is_same_json(one.raw, other.raw)


def repair_arguments(
    value: dict[str, Any], validate: Callable[[str, Any], _T], schema: JsonObject
) -> tuple[_T, tuple[str, ...]]:
    """Return the result of `validate` for the text of `value` and for `value` itself, and the repairs.

    If the text does not fit, nulls of optional properties are dropped, and other errors repaired one round at a time.

    Raises:
        ArgumentErrors: The remaining errors.
    """
    repairs: list[str] = []
    for _ in range(_MAX_ROUNDS):
        text = format_json(value)
        try:
            return validate(text, value), tuple(repairs)
        except ArgumentErrors as wrong:
            given = value
            value = drop_optional_nulls(value, schema) if "null" in text else value
            if not _repair_errors(value, wrong.errors, repairs) and value == given:
                raise
    return validate(format_json(value), value), tuple(repairs)


def _repair_errors(value: dict[str, Any], errors: list[ArgumentError], repairs: list[str]) -> bool:
    by_path: dict[Path, list[ArgumentError]] = {}
    for error in errors:
        if (error.json_type or error.choices) and error.certain and error.path:
            by_path.setdefault(error.path, []).append(error)
    repaired = [_repair_value(value, path, found, repairs) for path, found in by_path.items()]
    return any(repaired)


def _repair_value(value: Any, path: Path, errors: list[ArgumentError], repairs: list[str]) -> bool:
    wanted = {error.json_type for error in errors}
    try:
        for part in path[:-1]:
            value = value[part]
        current = value[path[-1]]
    except (LookupError, TypeError):
        return False
    if isinstance(current, float) and "integer" in wanted and current.is_integer() and abs(current) < _FIRST_INEXACT:
        value[path[-1]] = int(current)
        return True
    parsed = _parse_string(current) if isinstance(current, str) else None
    if parsed is None or not _is_wanted(parsed, wanted, [choice for error in errors for choice in error.choices]):
        return False
    value[path[-1]] = parsed
    repairs.append(f"read the string in {format_path(path)!r} as {json_type_name(parsed)}")
    return True


def _is_wanted(parsed: Any, wanted: set[str | None], choices: list[Any]) -> bool:
    """Return whether JSON has a wanted type or is one of the choices."""
    kinds = {json_type_name(choice) for choice in choices if is_same_json(parsed, choice)} | wanted
    kind = json_type_name(parsed)
    return kind in kinds or (kind == "integer" and "number" in kinds)


def _parse_string(text: str) -> Any:
    """Return the JSON in a string, or None."""
    if text[:1] not in "[{-0123456789" and text not in {"true", "false"}:
        return None
    try:
        return parse_json(text)
    except Malformed:
        return None
