"""`Deferred` and `WaitingFor`: return values of a handler that has not ended."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

from ferrule.errors import DefinitionError
from ferrule.values.content import to_json_text, truncate_text
from ferrule.values.result import Suspending, ToolResult

_LONGEST_SHOWN = 300
"""Characters of a nested call's arguments in a question."""


@final
@dataclass(frozen=True, slots=True)
class Deferred(Suspending):
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
    waits = "is under way, do not repeat it"

    def __post_init__(self) -> None:
        ticket: object = self.ticket
        if not isinstance(ticket, str) or not ticket.strip():
            raise DefinitionError(f"Deferred(ticket) is the id of the work, a text, not {ticket!r}")
        for name, value in (("poll_after", self.poll_after), ("expires_in", self.expires_in)):
            if value is not None and not _is_seconds(value):
                raise DefinitionError(f"Deferred({name}=…) is a number of seconds, or None, not {value!r}")
        if not isinstance(self.reason, str):
            raise DefinitionError(f"Deferred(reason=…) is a text, not {self.reason!r}")


@final
@dataclass(frozen=True, slots=True)
class WaitingFor(Suspending):
    """The return value of a handler whose nested call was suspended. Its own call is suspended with it.

    When the call is resumed, the handler runs with `context.answer.state`. It makes the nested call again, with the
    same `id`: that call goes on with the person's answer. See docs/approvals.md#a-question-of-a-nested-call.

    Args:
        result: The suspended result of the nested call, which `context.run(…, id=…)` returned.
        state: JSON that the handler gets back, in another process too. The record seals it, but does not hide it.

    Raises:
        DefinitionError: The result waits for no person, or the state has no JSON form.
    """

    result: ToolResult
    state: Any = None
    waits = "waits for a person"

    def __post_init__(self) -> None:
        given: object = self.result
        pending = given.pending if isinstance(given, ToolResult) else None
        if pending is None or pending["kind"] not in ("approval", "input"):
            raise DefinitionError(f"WaitingFor(result) is a suspended result that waits for a person, not {given!r}")
        self._freeze_state(self.state)

    @property
    def reason(self) -> str:
        """The question, with the call that it is about."""
        pending: Any = self.result.pending
        if pending.get("question") is not None:  # the call waits for another one, which the question names already
            return str(pending["reason"])
        arguments = truncate_text(to_json_text(pending["arguments"]), _LONGEST_SHOWN)
        return f"{pending['call']['name']}({arguments}): {pending['reason']}"


def _is_seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
