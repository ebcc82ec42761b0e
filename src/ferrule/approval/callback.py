"""A function of your program answers. It gets everything that a person would see."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from ferrule.approval.asked import Answer, Asked, previewed
from ferrule.definition.handler import is_async
from ferrule.errors import DefinitionError
from ferrule.executors.threads import Raised, run_in_thread
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision

Said: TypeAlias = Answer | Decision | bool
AnswerFunction: TypeAlias = Callable[[Asked], Said | Awaitable[Said]]
"""A function for `callback`. See docs/approvals.md."""


class Callback:
    """The approver made by `callback`."""

    def __init__(self, function: AnswerFunction, own: bool) -> None:
        self.function = function
        self.own = own

    async def __call__(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        return (await self.answer(Asked.of(call, decision, context))).decision

    async def answer(self, asked: Asked) -> Answer:
        """Return the function's answer to this question with its preview."""
        asked = await previewed(asked)
        if asked.problem is not None:
            return asked.no(asked.problem)
        answer = asked.answered(await self._said(asked))
        barred = None if self.own or answer.decision.kind != "allow" else asked.barred(answer.decision.by)
        return answer if barred is None else asked.no(barred)

    async def _said(self, asked: Asked) -> object:
        said: Any
        if is_async(self.function):
            said = self.function(asked)
        else:
            said = await run_in_thread(lambda: self.function(asked))
            if isinstance(said, Raised):
                raise RuntimeError("raised in its thread") from said.error
        return await said if inspect.isawaitable(said) else said


def callback(function: AnswerFunction, *, own: bool = True) -> Callback:
    """Make an approver that calls your function. See docs/approvals.md.

    An allow is bound to the question as shown, with `asked.yes()` and `True` alike. If the function raises, the call is
    denied.

    Args:
        function: A function of an `Asked`. It returns an `Answer` (`asked.yes(by="ann")`, `asked.no("why")`), a
            `Decision` or a bool. It may be a coroutine function. A plain function runs in its own thread, because it
            may wait for a person.
        own: Whether a principal may allow its own calls. If not, a yes must name the person: `asked.yes(by=…)`,
            `allow(by=…)`.

    Raises:
        DefinitionError: `function` is not callable.
    """
    if not callable(function):
        raise DefinitionError(f"callback(…) takes a function of an Asked, not {function!r}")
    return Callback(function, own)
