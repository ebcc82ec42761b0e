"""`Deferred`: the return value of a handler whose work goes on elsewhere."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

from ferrule.errors import DefinitionError
from ferrule.values.input import InputRequired


@final
@dataclass(frozen=True, slots=True)
class Deferred:
    """The return value of a handler that has handed its work to another system. The call is suspended until it ends.

    See docs/long-work.md#work-that-ends-elsewhere.

    Args:
        ticket: The id of the work in the other system; not empty.
        poll_after: Seconds until the handler should look. Without it, the other system reports the end.
        expires_in: Seconds until nobody waits any more. Without it, the runner's `waits.resume`.
        reason: The reason of the wait, for people.

    Raises:
        DefinitionError: An argument is not valid.
    """

    ticket: str
    poll_after: float | None = None
    expires_in: float | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        ticket: object = self.ticket
        if not isinstance(ticket, str) or not ticket.strip():
            raise DefinitionError(f"Deferred(ticket) is the id of the work, a text, not {ticket!r}")
        for name, value in (("poll_after", self.poll_after), ("expires_in", self.expires_in)):
            if value is not None and not _is_seconds(value):
                raise DefinitionError(f"Deferred({name}=…) is a number of seconds, or None, not {value!r}")
        if not isinstance(self.reason, str):
            raise DefinitionError(f"Deferred(reason=…) is a text, not {self.reason!r}")


SUSPENDING_TYPES = (InputRequired, Deferred)
"""The types of values with which a handler asks or defers, in place of an output."""


def _is_seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
