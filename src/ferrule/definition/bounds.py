"""The bounds of a runner: the seconds that it waits, and the sizes that it reads and returns."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ferrule.errors import DefinitionError
from ferrule.values.content import MAX_MEDIA_BYTES


@dataclass(frozen=True, kw_only=True)
class Waits:
    """The seconds that a runner waits: `Runner(tools, waits=Waits(drain=10))`. See docs/limits.md.

    Attributes:
        slot: Seconds that a call waits for a slot before it is `limited`; None for no limit. A nested call waits 60 s
            then.
        grace: Seconds that a handler has to end after its cancellation.
        drain: Seconds that leaving `async with` waits for running calls before it cancels them, by the machine's clock;
            None for no limit.
        resume: Seconds until a suspended call can no longer be resumed.

    Raises:
        DefinitionError: A value is not a number of seconds.
    """

    slot: float | None = 60.0
    grace: float = 1.0
    drain: float | None = 60.0
    resume: float = 86_400.0

    def __post_init__(self) -> None:
        _require_number("Waits(slot=…)", self.slot, "seconds", may_be_none=True)
        _require_number("Waits(grace=…)", self.grace, "seconds", may_be_zero=True)
        _require_number("Waits(drain=…)", self.drain, "seconds", may_be_none=True, may_be_zero=True)
        _require_number("Waits(resume=…)", self.resume, "seconds")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes that a runner reads and returns: `Runner(tools, sizes=Sizes(output=20_000))`. See docs/limits.md.

    Attributes:
        input: Characters of JSON that a call may have as its arguments; None for no limit.
        output: Characters of a result.
        media: Bytes of images, audio and files in a result.

    Raises:
        DefinitionError: A value is not a whole number above 0.
    """

    input: int | None = 1_000_000
    output: int = 100_000
    media: int = MAX_MEDIA_BYTES

    def __post_init__(self) -> None:
        _require_number("Sizes(input=…)", self.input, "characters", int, may_be_none=True)
        _require_number("Sizes(output=…)", self.output, "characters", int)
        _require_number("Sizes(media=…)", self.media, "bytes", int)


def _require_number(
    name: str,
    value: object,
    unit: str,
    kind: type[int] | type[float] = float,
    *,
    may_be_none: bool = False,
    may_be_zero: bool = False,
) -> None:
    if value is None and may_be_none:
        return
    if isinstance(value, int | kind) and not isinstance(value, bool) and 0 <= value < math.inf:
        if value or may_be_zero:
            return
    right = f"a {'whole' if kind is int else 'positive'} number of {unit}"
    right += ", or 0" if may_be_zero else ""
    right += ", or None for no limit" if may_be_none else ""
    raise DefinitionError(f"{name} must be {right}; not {value!r}")


WAITS = Waits()
SIZES = Sizes()
