"""What the kernel's tests share: an observer that remembers, and a small way to run things."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, TypeVar

from ferrule import Event, Runner, Text, ToolCall, ToolResult
from waits import BOUND

T = TypeVar("T")
TERMINAL = ("tool:post", "tool:error")


class Watch:
    """An observer that remembers every event."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def kinds(self, call_id: str | None = None) -> list[str]:
        """What happened, but for `tool:started`, which has tests of its own."""
        events = [event for event in self.events if call_id is None or event.call.id == call_id]
        return [event.kind for event in events if event.kind != "tool:started"]

    def ends(self, call_id: str | None = None) -> list[str]:
        """The terminal events."""
        return [kind for kind in self.kinds(call_id) if kind in TERMINAL]


def go(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` on a loop of its own, at most `BOUND` seconds."""

    async def bounded() -> T:
        async with asyncio.timeout(BOUND):  # not wait_for: on 3.11 that is a task of its own
            return await work

    return asyncio.run(bounded())


def run(tools: Any, call: ToolCall | str, arguments: Any = None, **options: Any) -> tuple[ToolResult, Watch]:
    """One call on a runner of its own: its result, and what an observer saw."""
    watch = Watch()
    observers = [*options.pop("observers", ()), watch]
    runner = Runner(tools if isinstance(tools, list) else [tools], observers=observers, **options)
    sent = call if isinstance(call, ToolCall) else ToolCall("c1", call, arguments)
    return go(runner.run(sent)), watch


def plain(result: ToolResult) -> str:
    """The result's text, which must be UTF-8; and its record, which must be JSON."""
    json.dumps(result.record(), allow_nan=False).encode()
    text = "\n".join(block.text for block in result.content if isinstance(block, Text))
    text.encode()
    return text
