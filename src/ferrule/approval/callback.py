"""A function of your program answers. It gets everything that a person would see."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from ferrule.approval.request import Answer, Asked, add_preview
from ferrule.definition.handler import is_async
from ferrule.errors import DefinitionError
from ferrule.executors.threads import Raised, run_in_thread
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision

AnswerLike: TypeAlias = Answer | Decision | bool
AnswerFunction: TypeAlias = Callable[[Asked], AnswerLike | Awaitable[AnswerLike]]
"""A function for `callback`. See docs/approvals.md."""


class Callback:
    """The approver made by `callback`."""

    def __init__(self, function: AnswerFunction, own: bool) -> None:
        self.function = function
        self.own = own

    async def __call__(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        return (await self.answer(Asked.of(call, decision, context))).decision

    async def answer(self, request: Asked) -> Answer:
        """Return the function's answer to this question with its preview."""
        request = await add_preview(request)
        if request.problem is not None:
            return request.deny(request.problem)
        answer = request.to_answer(await self._call_function(request))
        if self.own or answer.decision.kind != "allow":
            return answer
        conflict = request.find_conflict(answer.decision.by)
        return answer if conflict is None else request.deny(conflict)

    async def _call_function(self, request: Asked) -> object:
        answer: Any
        if is_async(self.function):
            answer = self.function(request)
        else:
            answer = await run_in_thread(lambda: self.function(request))
            if isinstance(answer, Raised):
                raise RuntimeError("raised in its thread") from answer.error
        return await answer if inspect.isawaitable(answer) else answer


def callback(function: AnswerFunction, *, own: bool = True) -> Callback:
    """Make an approver that calls your function. See docs/approvals.md.

    An allow is bound to the question as shown, with `request.approve()` and `True` alike. If the function
    raises, the call is denied.

    Args:
        function: A function of an `Asked`. It returns an `Answer` (`request.approve(by="ann")`,
            `request.deny("why")`), a `Decision` or a bool. It may be a coroutine function. A plain function runs in its
            own thread, because it may wait for a person.
        own: Whether a principal may allow its own calls. If not, a yes must name the person: `request.approve(by=…)`,
            `allow(by=…)`.

    Raises:
        DefinitionError: `function` is not callable.
    """
    if not callable(function):
        raise DefinitionError(f"callback(function) must be a function of an Asked, not {function!r}")
    return Callback(function, own)
