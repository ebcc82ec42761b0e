"""The tool, the guard and the person that many tests need."""

from __future__ import annotations

from ferrule import Decision, ToolCall, ToolContext, allow, ask, tool


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def ask_always(call: ToolCall, context: ToolContext) -> Decision:
    """A guard that asks a person about each call."""
    return ask("may it?")


class Person:
    """An approver that gives the same answer to each question.

    Attributes:
        questions: Each call that it was asked about, as the person was shown it.
    """

    def __init__(self, answer: Decision | None = None) -> None:
        self.answer = allow() if answer is None else answer
        self.questions: list[ToolCall] = []

    def __call__(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        self.questions.append(call)
        return self.answer
