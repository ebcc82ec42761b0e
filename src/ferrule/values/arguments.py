"""The arguments of a call, as everybody but the handler sees them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from pydantic_core import from_json

from ferrule.values.frozen import FrozenDict, JsonObject, freeze
from ferrule.values.json_text import Malformed, to_object


class Shape(Protocol):
    """What `Arguments` need of the parameters that validated them.

    Attributes:
        direct: The names whose validated value is their JSON value.
        defaults: The JSON values of what may be left out.
    """

    @property
    def direct(self) -> frozenset[str]: ...

    @property
    def defaults(self) -> JsonObject: ...


if TYPE_CHECKING:
    _Mapping = JsonObject
else:

    class _Mapping:
        """What `Mapping` has; a class that is registered as one is made at half the cost of one that is derived."""

        __slots__ = ()
        __contains__, __eq__, __hash__ = Mapping.__contains__, Mapping.__eq__, None
        get, items, keys, values = Mapping.get, Mapping.items, Mapping.keys, Mapping.values


class Arguments(_Mapping):
    """Read-only JSON values by name, built only when somebody reads them.

    With a `shape`, `raw` is text that was validated, and `validated` are the values; without, it is what came. What is
    `direct` is read off these, so that a guard which reads one number of a large order does not pay for the order.

    Attributes:
        validated: The values that were read from the text, for the handler's first run.
    """

    __slots__ = ("_json", "_raw", "_shape", "validated")
    validated: Any

    def __init__(self, raw: str | JsonObject | None, validated: Any = None, shape: Shape | None = None) -> None:
        self._raw = raw
        self.validated = validated
        self._shape = shape
        self._json: FrozenDict | None = None

    def _read(self) -> FrozenDict:
        """The JSON values, read once."""
        read = self._json
        if read is None:
            read = self._json = _received(self._raw) if self._shape is None else _judged(self._raw, self._shape)
        return read

    def __getitem__(self, name: str) -> Any:
        if self._json is None and self._shape is not None and name in self._shape.direct and name in self.validated:
            return self.validated[name]
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __repr__(self) -> str:
        return repr(self._read())

    def __deepcopy__(self, memo: dict[int, object]) -> dict[str, Any]:
        return self._read().__deepcopy__(memo)

    def __reduce__(self) -> tuple[object, ...]:
        return (Arguments, (self._read(),))


Mapping.register(Arguments)


def _judged(raw: Any, shape: Shape) -> FrozenDict:
    """What text that was validated says, of keys that came twice the last, as the handler has it; and the defaults."""
    try:
        values = from_json(raw)
    except (TypeError, ValueError):  # a mapping, or text that nobody validated
        return _received(raw)
    for name, value in shape.defaults.items():
        if name not in values:
            values[name] = value
    return FrozenDict(values)


def _received(raw: str | JsonObject | None) -> FrozenDict:
    """What `raw` says; nothing where it does not decode to an object."""
    if isinstance(raw, Mapping):
        return freeze(raw)  # type: ignore[no-any-return]
    try:
        return FrozenDict(to_object(raw)[0])
    except Malformed:
        return FrozenDict()
