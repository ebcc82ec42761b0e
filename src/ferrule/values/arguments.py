"""The arguments of a call, as everybody but the handler sees them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from ferrule.values.frozen import FrozenDict, freeze
from ferrule.values.json_text import Malformed, loads_repaired


class Shape(Protocol):
    """What `Arguments` need of the parameters that validated them.

    Attributes:
        direct: The names whose validated value is their JSON value.
        defaults: The JSON values of what may be left out.
    """

    @property
    def direct(self) -> frozenset[str]: ...

    @property
    def defaults(self) -> Mapping[str, Any]: ...


class Arguments(Mapping[str, Any]):
    """Read-only JSON values by name, built only when somebody reads them.

    With a `shape`, `raw` is text that was validated, and `given` are the values; without, it is what came. What is
    `direct` is read off these, so that a guard which reads one number of a large order does not pay for the order.
    """

    __slots__ = ("_full", "_given", "_raw", "_shape")

    def __init__(self, raw: str | Mapping[str, Any] | None, given: Any = None, shape: Shape | None = None) -> None:
        self._raw = raw
        self._given = given
        self._shape = shape
        self._full: FrozenDict | None = None

    def _load(self) -> FrozenDict:
        full = self._full
        if full is None:
            shape = self._shape
            if shape is None:
                full = decoded(self._raw)
            else:
                full = validated(self._raw)
                missing = {name: value for name, value in shape.defaults.items() if name not in full}
                full = FrozenDict({**full, **missing}) if missing else full
            self._full = full
        return full

    def __getitem__(self, name: str) -> Any:
        if self._full is None and self._shape is not None and name in self._shape.direct and name in self._given:
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
