"""What a handler returns whose work goes on elsewhere, and ends later."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

from ferrule.errors import DefinitionError
from ferrule.values.input import InputRequired


@final
@dataclass(frozen=True, slots=True)
class Deferred:
    """What a handler returns that has handed its work to somebody else: the call is suspended, and ends once it is
    known what came of that. See docs/long-work.md#work-that-ends-elsewhere.

    Args:
        ticket: What the work is known by over there; not empty.
        poll_after: Seconds after which it is worth a look; left out, somebody else says when it has ended.
        expires_in: Seconds after which nobody waits for it any more; left out, the runner's `resume_within`.
        reason: What is waited for, for people.

    Raises:
        DefinitionError: for anything else.
    """

    ticket: str
    poll_after: float | None = None
    expires_in: float | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        ticket: object = self.ticket
        if not isinstance(ticket, str) or not ticket.strip():
            raise DefinitionError(f"Deferred(ticket) is what the work is known by, a text, not {ticket!r}")
        for name, value in (("poll_after", self.poll_after), ("expires_in", self.expires_in)):
            if value is not None and not _is_seconds(value):
                raise DefinitionError(f"Deferred({name}=…) is a number of seconds, or None, not {value!r}")
        if not isinstance(self.reason, str):
            raise DefinitionError(f"Deferred(reason=…) is a text, not {self.reason!r}")


PUT_OFF = (InputRequired, Deferred)
"""What a handler returns that has no output yet."""


def _is_seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
