"""The arguments of a call, as everybody but the handler sees them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pydantic_core import from_json

from ferrule.values.frozen import FrozenDict, JsonObject, freeze, thaw
from ferrule.values.json_text import SECRET_STARS, Malformed, parse_json_object

if TYPE_CHECKING:
    from ferrule.arguments.parameters import Parameters

Place: TypeAlias = tuple[str | int, ...]
"""The keys and positions of a value in arguments, such as `("files", 0, "to")`."""


class FoundPath(NamedTuple):
    """A path in the arguments of a call."""

    place: Place
    text: str
    is_key: bool
    """Whether the path is the last key of `place`, and not the value under it."""


class Places(NamedTuple):
    """The places of paths in the arguments of a call."""

    paths: tuple[FoundPath, ...]
    unnamed: frozenset[Place]
    """The keys without a name in the schema: a model has made them up."""


class Arguments(Mapping[str, Any]):
    """Read-only JSON values by name, parsed when they are first read.

    With `parameters`, `raw` is the judged text, and `validated` are the handler's values. Without, `raw` is as it was
    sent. If a guard reads one number of a large order, it comes from `validated`, and the text is not parsed.

    Attributes:
        raw: The arguments as they were sent: text, a mapping, or nothing; once judged, the judged text.
        validated: The values of that text, for the handler's first run.
    """

    __slots__ = ("_json", "_parameters", "_places", "raw", "validated")

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
        """Return the JSON values, parsed once."""
        values = self._json
        if values is None:
            parameters = self._parameters
            values = _parse_received(self.raw) if parameters is None else self._parse_judged(parameters)
            self._json = values
        return values

    def _parse_judged(self, parameters: Parameters) -> FrozenDict:
        """Return the values of the judged text and the defaults, in the order of the schema.

        If a key came twice, its last value counts, as for the handler.
        """
        values = {**parameters.ordered_defaults, **from_json(self.raw)}
        return FrozenDict({name: value for name, value in values.items() if value is not ...})

    def to_dict(self) -> dict[str, Any]:
        """Return a plain copy. This takes a fifth of the time of `dict(arguments)`."""
        values: dict[str, Any] = thaw(self._read())
        return values

    def __getitem__(self, name: str) -> Any:
        parameters = self._parameters
        if self._json is None and parameters is not None and name in parameters.plain and name in self.validated:
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


def redact_hidden(arguments: JsonObject, hidden: Collection[str]) -> JsonObject:
    """Return the arguments with stars for bound and private values."""
    return {**arguments, **{name: SECRET_STARS for name in hidden if name in arguments}}


def _parse_received(raw: str | JsonObject | None) -> FrozenDict:
    """Return the object that `raw` decodes to; empty if it does not decode to one."""
    if isinstance(raw, Mapping):
        return freeze(raw)  # type: ignore[no-any-return]
    try:
        return FrozenDict(parse_json_object(raw)[0])
    except Malformed:
        return FrozenDict()
