"""The arguments of a call, as everybody but the handler sees them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pydantic_core import from_json

from ferrule.values.frozen import FrozenDict, JsonObject, freeze, thaw
from ferrule.values.json_text import SECRET_STARS, Malformed, parse_json_object

Place: TypeAlias = tuple[str | int, ...]
"""The keys and positions that lead to a value in arguments, such as `("files", 0, "to")`."""


class FoundPath(NamedTuple):
    """A path in the arguments of a call."""

    place: Place
    text: str
    is_key: bool
    """Whether it is the key that ends `place`, and not the value under it."""


class Places(NamedTuple):
    """The places of paths in the arguments of a call."""

    paths: tuple[FoundPath, ...]
    unnamed: frozenset[Place]
    """Those of the keys that no schema names: a model has made them up."""


if TYPE_CHECKING:
    from ferrule.arguments.parameters import Parameters

    _Mapping = JsonObject
else:

    class _Mapping:
        """The methods of `Mapping`. A registered class is made at half the cost of a derived one."""

        __slots__ = ()
        __contains__, __eq__, __hash__ = Mapping.__contains__, Mapping.__eq__, None
        get, items, keys, values = Mapping.get, Mapping.items, Mapping.keys, Mapping.values


class Arguments(_Mapping):
    """Read-only JSON values by name, built only when somebody reads them.

    With `parameters`, `raw` is the judged text, and `validated` are the handler's values. Without, `raw` is as it was
    sent. A guard that reads one number of a large order reads it from `validated`, without parsing the text.

    Attributes:
        raw: The arguments as they were sent: text, a mapping, or nothing; once judged, the judged text.
        validated: The values of that text, for the handler's first run.
    """

    __slots__ = ("_json", "_parameters", "_places", "raw", "validated")
    raw: Any
    validated: Any

    def __init__(self, raw: Any, validated: Any = None, parameters: Parameters | None = None) -> None:
        self.raw = raw
        self.validated = validated
        self._parameters = parameters
        self._json: FrozenDict | None = None
        self._places: Places | None = None

    @property
    def places(self) -> Places | None:
        """Return the places of paths, or `None` if nothing was validated yet.

        Raises:
            Exception: The places cannot be found.
        """
        if self._places is None and self._parameters is not None:
            self._places = self._parameters.find_places(self)
        return self._places

    def _read(self) -> FrozenDict:
        """The JSON values, read once."""
        read = self._json
        if read is None:
            read = self._json = (
                _parse_received(self.raw) if self._parameters is None else self._parse_judged(self._parameters)
            )
        return read

    def _parse_judged(self, parameters: Parameters) -> FrozenDict:
        """The values of the judged text and the defaults, in the order of the schema. If a key came twice, its last
        value counts, as for the handler."""
        values = {**parameters.defaults, **from_json(self.raw)}
        ordered = {name: values.pop(name) for name in parameters.schema.get("properties", ()) if name in values}
        return FrozenDict(ordered | values)

    def to_dict(self) -> dict[str, Any]:
        """A plain copy, in a fifth of the time of one by way of the mapping."""
        found: dict[str, Any] = thaw(self._read())
        return found

    def __getitem__(self, name: str) -> Any:
        known = self._parameters
        if self._json is None and known is not None and name in known.plain and name in self.validated:
            return self.validated[name]
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    @property
    def hidden(self) -> frozenset[str]:
        """The hidden parameters, if the tool is known."""
        return frozenset() if self._parameters is None else self._parameters.hidden

    def __repr__(self) -> str:
        return repr(redact_hidden(self._read(), self.hidden))

    def __deepcopy__(self, memo: dict[int, object]) -> dict[str, Any]:
        return self._read().__deepcopy__(memo)

    def __reduce__(self) -> tuple[object, ...]:
        return (Arguments, (self._read(),))


Mapping.register(Arguments)


def redact_hidden(arguments: JsonObject, hidden: Collection[str]) -> JsonObject:
    """Arguments as they are written down: stars in the place of what is bound or private."""
    return {**arguments, **{name: SECRET_STARS for name in hidden if name in arguments}}


def _parse_received(raw: str | JsonObject | None) -> FrozenDict:
    """Return the object that `raw` decodes to; empty if it does not decode to one."""
    if isinstance(raw, Mapping):
        return freeze(raw)  # type: ignore[no-any-return]
    try:
        return FrozenDict(parse_json_object(raw)[0])
    except Malformed:
        return FrozenDict()
