"""The arguments of a call, as everybody but the handler sees them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ferrule.core.frozen import FrozenDict, freeze
from ferrule.core.jsontext import Malformed, loads_repaired

_NONE: Mapping[str, Any] = FrozenDict()
_NO_NAMES: frozenset[str] = frozenset()


class Arguments(Mapping[str, Any]):
    """Read-only JSON values by name, built only when somebody reads them.

    With `defaults`, even with none in them, `raw` is text that was validated; without, it is what came.

    `given` are the validated values and `direct` the names among them whose validated value is their JSON value, so
    that a guard which reads one number of a large order does not pay for the order.
    """

    __slots__ = ("_defaults", "_direct", "_full", "_given", "_raw")

    def __init__(
        self,
        raw: str | Mapping[str, Any] | None,
        given: Mapping[str, Any] = _NONE,
        direct: frozenset[str] = _NO_NAMES,
        defaults: Mapping[str, Any] = _NONE,
    ) -> None:
        self._raw = raw
        self._given = given
        self._direct = direct
        self._defaults = defaults
        self._full: FrozenDict | None = None

    def _load(self) -> FrozenDict:
        full = self._full
        if full is None:
            values = decoded(self._raw) if self._defaults is _NONE else validated(self._raw)
            missing = {name: value for name, value in self._defaults.items() if name not in values}
            full = self._full = FrozenDict({**values, **missing}) if missing else values
        return full

    def __getitem__(self, name: str) -> Any:
        if self._full is None and name in self._direct and name in self._given:
            return self._given[name]
        return self._load()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._load())

    def __len__(self) -> int:
        return len(self._load())

    def __repr__(self) -> str:
        return repr(dict(self._load()))

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return self._load().__deepcopy__(memo)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Arguments, (self._load(),))


def validated(raw: str | Mapping[str, Any] | None) -> FrozenDict:
    """What text that was validated says: of keys that came twice further down the last, as the handler has it."""
    try:
        return freeze(json.loads(raw))  # type: ignore[arg-type, no-any-return]
    except (TypeError, ValueError):
        return decoded(raw)


def decoded(raw: str | Mapping[str, Any] | None) -> FrozenDict:
    """What `raw` says, read-only; nothing where it does not decode to an object."""
    if isinstance(raw, Mapping):
        return freeze(raw)  # type: ignore[no-any-return]
    if raw is None or not raw.strip():
        return FrozenDict()
    try:
        value = loads_repaired(raw)[0]
        if isinstance(value, str):
            value = loads_repaired(value)[0]
    except Malformed:
        return FrozenDict()
    return freeze(value) if isinstance(value, dict) else FrozenDict()
