"""The tool, the guard, the approver and the middleware that many tests need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ferrule import Decision, ToolCall, ToolContext, ToolResult, allow, ask, tool


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def ask_always(call: ToolCall, context: ToolContext) -> Decision:
    """A guard that asks a person about each call."""
    return ask("may it?")


def put_off(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
    """An approver that answers later."""
    return decision


async def passes(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
    """A middleware that changes nothing."""
    result: ToolResult = await next(call, context)
    return result


async def call_twice(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
    """A middleware that runs the rest of the call two times."""
    await next(call, context)
    return await passes(call, context, next)


class Unreadable(Mapping[str, Any]):
    """Arguments that raise when they are read."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def breaks(self, *args: object) -> Any:
        raise self.error

    __getitem__ = __iter__ = __len__ = breaks


class Person:
    """An approver that gives the same answer to each question.

    Attributes:
        questions: Each call that it was asked about, as the person was shown it.
        decisions: The questions themselves.
    """

    def __init__(self, answer: Decision | None = None) -> None:
        self.answer = allow() if answer is None else answer
        self.questions: list[ToolCall] = []
        self.decisions: list[Decision] = []

    def __call__(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        self.questions.append(call)
        self.decisions.append(decision)
        return self.answer
