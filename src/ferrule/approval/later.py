"""Ask nobody now: the call is suspended, and resumes after an answer. See docs/approvals.md."""

from __future__ import annotations

from typing import Final

from ferrule.approval.request import Answer, Asked, RequestApprover
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision


class Later:
    """The approver behind `later`.

    Attributes:
        suspends: Always true: a call in question waits for an answer instead of getting one at once.
    """

    suspends: Final = True

    async def __call__(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        return decision

    async def answer(self, request: Asked) -> Answer:
        """Return "not now"."""
        return Answer(request.decision)


later: Final[RequestApprover] = Later()
"""An approver that suspends each call: `Runner(…, approve=approval.later)`. See docs/approvals.md."""
