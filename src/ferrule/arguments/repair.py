"""The ladder of lossless repairs: from what a model sent to arguments that fit, or to a text that says why not.

It is climbed only where strict validation of the text itself failed. Every repair is guided by what validation wants
at that very place, so a valid value is never touched; all that would be guessing is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any

from ferrule.arguments.argument_errors import Mistake, Mistakes, Path, kind_of, path_text
from ferrule.values.call import ToolCall
from ferrule.values.json_text import Malformed, dumps, loads, loads_repaired, rounded, same

_ROUNDS = 8
_EXACT = 2**53  # the first integer that a double cannot tell from its neighbour
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_FITS = {
    "array": {"array"},
    "object": {"object"},
    "boolean": {"boolean"},
    "integer": {"integer"},
    "number": {"integer", "number"},
}


def to_object(
    raw: str | Mapping[str, Any] | None, lost: set[float] | None = None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What came as plain data, with the repairs of the text itself that it took.

    To `lost` are added the floats that are no more what was written.

    Raises:
        Malformed: where it is no JSON object.
    """
    if raw is None:
        return {}, ()
    if not isinstance(raw, str):
        try:
            raw = dumps(raw)
        except ValueError as error:
            raise Malformed(str(error)) from None
    if not raw.strip():
        return {}, ()
    value, repairs = loads_repaired(raw)
    if lost is not None:
        lost |= rounded(value if isinstance(value, str) else raw)
    if isinstance(value, str):
        value, more = loads_repaired(value)
        repairs = (*repairs, "decoded arguments that were encoded twice", *more)
    if value is None:
        return {}, repairs
    if not isinstance(value, dict):
        raise Malformed(f"the arguments are {kind_of(value)} and must be one JSON object")
    return value, repairs


def same_call(one: ToolCall, other: ToolCall) -> bool:
    """Whether a call came twice: same name and arguments. Text that does not decode is the same only as itself."""
    if one.name != other.name or one.problem != other.problem:
        return False
    if isinstance(one.raw, str) and isinstance(other.raw, str) and one.raw == other.raw:
        return True
    try:
        return same(to_object(one.raw)[0], to_object(other.raw)[0])
    except Malformed:
        return False


def climb(
    value: dict[str, Any],
    validate: Callable[[str], Any],
    declares: Callable[..., bool],
    decoded: Callable[[str], None] = lambda text: None,
) -> tuple[Any, str, tuple[str, ...]]:
    """Validate `value`, mending where nothing is lost: the validated values, the text they were read from, the repairs.

    `declares` tells a parameter or field, for which null may mean absent, from a key that is data (with `always=True`,
    whichever of several forms is meant); `decoded` is told each string that is read as JSON.

    Raises:
        Mistakes: what still does not fit.
    """
    repairs: list[str] = []
    nulls: dict[Path, Mistake] = {}
    for _ in range(_ROUNDS):
        text = dumps(value)
        try:
            return validate(text), text, tuple(repairs)
        except Mistakes as mistakes:
            nulls.update({mistake.path: mistake for mistake in mistakes.found if mistake.got is None})
            if _mend(value, mistakes.found, repairs, declares, decoded):
                continue
            if not _read_nulls(value, mistakes.found, validate, declares):
                raise Mistakes([nulls.get(m.path, m) if m.kind == "missing" else m for m in mistakes.found]) from None
    raise Mistakes([Mistake((), "still do not fit after repairs")])


def _mend(
    value: dict[str, Any],
    mistakes: list[Mistake],
    repairs: list[str],
    declares: Callable[[Path], bool],
    decoded: Callable[[str], None],
) -> bool:
    wants: dict[Path, set[str]] = {}
    for mistake in mistakes:
        if mistake.wants and mistake.sure:
            wants.setdefault(mistake.path, set()).add(mistake.wants)
        elif mistake.got is None and mistake.kind == "wrong" and mistake.sure:
            wants.setdefault(mistake.path, set())
    changed = False
    for path, wanted in wants.items():
        changed = _mend_one(value, path, wanted, repairs, declares, decoded) or changed
    return changed


def _read_nulls(
    value: dict[str, Any],
    mistakes: list[Mistake],
    validate: Callable[[str], Any],
    declares: Callable[..., bool],
) -> bool:
    """Take nulls for absent where several forms may be meant: by the first reading that then fits.

    Only by a whole one: half of a reading would change the value and leave it wrong.
    """
    waiting: dict[Path, list[frozenset[Path]]] = {}
    for choice in (mistake.choice for mistake in mistakes if mistake.choice):
        readings = [absent for absent in choice.readings if all(declares(path, always=True) for path in absent)]
        waiting[choice.path] = readings
    changed = False
    for rank in range(max(map(len, waiting.values()), default=0)):
        tried = {path: readings[rank] for path, readings in waiting.items() if rank < len(readings)}
        wrong = _wrong_without(value, tried.values(), validate)
        for path in tried.keys() - {place[:end] for place in wrong for end in range(len(place) + 1)}:
            _drop(value, tried[path])
            del waiting[path]
            changed = True
    return changed


def _wrong_without(
    value: dict[str, Any], readings: Iterable[frozenset[Path]], validate: Callable[[str], Any]
) -> list[Path]:
    """Where something is still wrong without the nulls of `readings`."""
    found = deepcopy(value)
    for absent in readings:
        _drop(found, absent)
    try:
        validate(dumps(found))
    except Mistakes as mistakes:
        return [mistake.path for mistake in mistakes.found]
    return []


def _drop(value: Any, paths: Iterable[Path]) -> None:
    for path in paths:
        found = value
        for part in path[:-1]:
            found = found[part]
        del found[path[-1]]


def _mend_one(
    value: Any,
    path: Path,
    wanted: set[str],
    repairs: list[str],
    declares: Callable[[Path], bool],
    decoded: Callable[[str], None],
) -> bool:
    if not path:
        return False
    try:
        for part in path[:-1]:
            value = value[part]
        current = value[path[-1]]
    except (LookupError, TypeError):
        return False
    if current is None and isinstance(path[-1], str) and declares(path):
        del value[path[-1]]  # null for what is optional means absent; where it is required, validation says so
        return True
    if isinstance(current, float) and "integer" in wanted and current.is_integer() and abs(current) < _EXACT:
        value[path[-1]] = int(current)
        return True
    if isinstance(current, str):
        found = _decoded(current, wanted)
        if found is not None:
            value[path[-1]] = found
            decoded(current)
            repairs.append(f"read the string in {path_text(path)!r} as {kind_of(found)}")
            return True
    return False


def _decoded(text: str, wanted: set[str]) -> Any:
    """What the string says as JSON, where that is of a wanted type; numbers only in exact form."""
    if not text or (text[0] not in "[{" and text not in {"true", "false"} and not _NUMBER.fullmatch(text)):
        return None
    try:
        found = loads(text)
    except Malformed:
        return None
    kind = kind_of(found)
    return found if any(kind in _FITS.get(want, ()) for want in wanted) else None
