"""A function of the program's own answers, and is told all that a person would be shown."""

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
"""What `callback` takes. See docs/approvals.md."""


class Callback:
    """What `callback` makes."""

    def __init__(self, function: AnswerFunction, own: bool) -> None:
        self.function = function
        self.own = own

    async def __call__(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        return (await self.answer(Asked.of(call, decision, context))).decision

    async def answer(self, asked: Asked) -> Answer:
        """What the function says to this question, with its preview."""
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
    """An approver that asks a function of yours; see docs/approvals.md.

    What it allows is bound to what it was shown, by `asked.yes()` and `True` alike. Where it raises, the call is
    denied.

    Args:
        function: Gets an `Asked`, and gives an `Answer` (`asked.yes(by="ann")`, `asked.no("why")`), a `Decision` or a
            bool; a coroutine of it, or a plain function, which is called in a thread of its own, because it may wait
            for a person.
        own: Whether a principal may allow its own calls. Where it may not, a yes has to say by whom it is:
            `asked.yes(by=…)`, `allow(by=…)`.

    Raises:
        DefinitionError: for what cannot be called.
    """
    if not callable(function):
        raise DefinitionError(f"callback(…) takes a function of an Asked, not {function!r}")
    return Callback(function, own)
