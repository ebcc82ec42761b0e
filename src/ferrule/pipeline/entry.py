"""A call's place in its batch."""

from __future__ import annotations

import asyncio

from ferrule.pipeline.state import CallState
from ferrule.types import Observer
from ferrule.values.call import ToolCall
from ferrule.values.result import ToolResult


class Entry:
    """A call's place in its batch.

    Attributes:
        call: The call, with an id.
        observers: See the events of this batch only.
        twin: The entry of the same call, where it came before; the call runs once.
        reused: Whether another call came before under the same id; then this one is answered, and never run.
        beside: Whether the arguments as sent are why the call runs beside others.
        started: Whether it has been.
        state: The state of the call, once it has begun.
        task: Where it runs.
        result: What it came to.
    """

    __slots__ = ("beside", "call", "observers", "result", "reused", "started", "state", "task", "twin")

    def __init__(self, call: ToolCall, observers: tuple[Observer, ...]) -> None:
        self.call = call
        self.observers = observers
        self.twin: Entry | None = None
        self.reused = self.beside = self.started = False
        self.state: CallState | None = None
        self.task: asyncio.Task[ToolResult] | None = None
        self.result: ToolResult | None = None

    @property
    def runs(self) -> bool:
        """Whether the call has come to its handler."""
        return self.state is not None and self.state.executed is not False

    def outcome(self) -> ToolResult | None:
        """The result that was kept when the call was cut off, or that its task came to; `None` before its end."""
        if self.result is None:
            task = self.task
            if task is not None and task.done() and not task.cancelled() and task.exception() is None:
                self.result = task.result()
        return self.result
