"""Nobody is asked now: the call is suspended, and is taken up when somebody has answered. See docs/approvals.md."""

from __future__ import annotations

from typing import Final

from ferrule.approval.asked import Answer, Asked, AskedApprover
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision


class Later:
    """What `later` is.

    Attributes:
        suspends: That a call about which it is asked waits for an answer, and is not answered at once.
    """

    suspends: Final = True

    async def __call__(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        return decision

    async def answer(self, asked: Asked) -> Answer:
        """Not now."""
        return Answer(asked.decision)


later: Final[AskedApprover] = Later()
"""An approver that suspends each call: `Runner(…, approve=approval.later)`. See docs/approvals.md."""
