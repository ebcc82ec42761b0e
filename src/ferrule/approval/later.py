"""Ask nobody now: the call is suspended, and resumes after an answer. See docs/approvals.md."""

from __future__ import annotations

from typing import Final

from ferrule.approval.request import Answer, Asked, RequestApprover, add_preview
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
        return (await self.answer(Asked.of(call, decision, context))).decision

    async def answer(self, request: Asked) -> Answer:
        """Return "not now", or a deny if the preview finds that the call cannot work."""
        problem = (await add_preview(request)).problem
        return Answer(request.decision) if problem is None else request.deny(problem)


later: Final[RequestApprover] = Later()
"""An approver that suspends each call: `Runner(…, approve=approval.later)`. See docs/approvals.md."""
