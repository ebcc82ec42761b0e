"""The bounds of a runner: the seconds that it waits, and the sizes that it reads and returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ferrule.definition.options import check_count, check_seconds, is_positive, make_check
from ferrule.values.content import MAX_MEDIA_BYTES

_check_wait: Callable[..., float] = make_check(
    "a number of seconds, 0 or more", lambda value: value == 0 or is_positive(value, int | float)
)
_check_life: Callable[..., float] = make_check(
    "a positive number of seconds", lambda value: is_positive(value, int | float)
)
_check_size: Callable[..., int] = make_check("a whole number of at least 1", lambda value: is_positive(value, int))


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
        check_seconds("Waits(slot=…)", self.slot)
        _check_wait("Waits(grace=…)", self.grace)
        if self.drain is not None:
            _check_wait("Waits(drain=…)", self.drain)
        _check_life("Waits(resume=…)", self.resume)


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
        check_count("Sizes(input=…)", self.input)
        _check_size("Sizes(output=…)", self.output)
        _check_size("Sizes(media=…)", self.media)


WAITS = Waits()
SIZES = Sizes()
