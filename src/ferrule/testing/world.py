"""The tools that `AdapterContract` runs. They count their effects outside."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ferrule.definition.decorator import tool
from ferrule.definition.tool import Tool
from ferrule.guards import ask_before_changes
from ferrule.runner import Runner
from ferrule.testing.framework import ScriptedCall
from ferrule.values.content import Media, Text
from ferrule.values.context import ToolContext
from ferrule.values.result import ToolResult

PNG = b"\x89PNG\r\n\x1a\n"
PAY = ScriptedCall("c1", "pay", {"to": "ada", "euros": 5})


class World:
    """Tools that change something outside, with a record of their effects.

    Attributes:
        paid: How often each payment was made, such as `{"ada 5": 1}`.
        deps: The `context.deps` of `look`, call by call.
        sessions: The sessions of those calls.
        principals: The principals of those calls.
        released: The event that lets `hold` end.
        entered: The event that is set when `wait` begins.
        cancelled: How many calls of `wait` were cancelled.
        both: The barrier at which two calls of `meet` wait for each other.
    """

    def __init__(self) -> None:
        self.paid: Counter[str] = Counter()
        self.deps: list[object] = []
        self.sessions: set[str | None] = set()
        self.principals: set[str | None] = set()
        self.released = asyncio.Event()
        self.entered = asyncio.Event()
        self.cancelled = 0
        self.both = asyncio.Barrier(2)

    def expect_paid(self, expected: Mapping[str, int]) -> None:
        """Fail if anything else was paid, or not as often."""
        assert self.paid == Counter(expected), f"paid was {dict(self.paid)}, and not {dict(expected)}"

    def runner(self, **options: Any) -> Runner:
        """Return a runner that asks before changes, with these options."""
        return Runner(
            [*self._changing(), *self._quick(), *self._waiting()],
            **{"guards": [ask_before_changes], "timeout": 20, **options},
        )

    def _changing(self) -> list[Tool]:
        @tool
        async def pay(to: str, euros: int = 1) -> str:
            """Pay.

            Args:
                to: Whom.
                euros: How much.
            """
            self.paid[f"{to} {euros}"] += 1
            return f"paid {euros} EUR to {to}"

        return [pay]

    def _quick(self) -> list[Tool]:
        @tool(read_only=True)
        async def look(name: str, context: ToolContext) -> str:
            """Look."""
            self.deps.append(context.deps)
            self.sessions.add(context.session)
            self.principals.add(context.principal)
            return f"saw {name}"

        @tool(read_only=True)
        async def picture() -> ToolResult:
            """A picture."""
            return ToolResult("a dot", content=[Text("a dot"), Media("image", PNG, "image/png")])

        @tool(read_only=True)
        def count(to: int, context: ToolContext) -> str:
            """Count, in a thread."""
            for step in range(1, to + 1):
                context.progress(step, to, f"step {step}")
            return threading.current_thread().name

        @tool(read_only=True)
        async def explode() -> str:
            """Raises."""
            raise RuntimeError("the secret inside")

        return [look, picture, count, explode]

    def _waiting(self) -> list[Tool]:
        @tool(read_only=True)
        async def meet(name: str) -> str:
            """Ends where two of it run at once."""
            await self.both.wait()
            return f"met {name}"

        @tool(read_only=True)
        async def wait() -> str:
            """Wait."""
            self.entered.set()
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            return "never"

        @tool(read_only=True, timeout=0.05)
        async def late() -> str:
            """Outlives its deadline."""
            await asyncio.get_running_loop().create_future()
            return "never"

        @tool(read_only=True)
        async def hold() -> str:
            """Keeps its slot until it is released."""
            await self.released.wait()
            return "held"

        return [meet, wait, late, hold]
