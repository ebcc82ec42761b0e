"""`Runner(clock=…)`: deadlines, waits, rates and expiries go by it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from ferrule import Clock, DefinitionError, Runner, ToolCall, ToolContext, ToolResult, tool
from ferrule.middleware import breaker, cache, rate, retry
from ferrule.scheduling.clock import MONOTONIC
from ferrule.testing import ManualClock
from watched import Watch


async def start(call: Awaitable[ToolResult], clock: ManualClock) -> asyncio.Task[ToolResult]:
    """Start a call, and let it come to where it waits."""
    task = asyncio.ensure_future(call)
    await clock.advance(0)
    return task


@tool(parallel=True)
async def endless() -> None:
    """Never end."""
    await asyncio.Event().wait()


@tool(read_only=True)
async def works() -> str:
    return "done"


async def test_a_deadline_follows_the_clock() -> None:
    clock, watch = ManualClock(1000), Watch()
    seen: list[float | None] = []

    @tool
    async def looks(context: ToolContext) -> None:
        seen.append(context.remaining())
        await clock.sleep(10)
        seen.append(context.remaining())
        await asyncio.Event().wait()

    runner = Runner([looks], timeout=3600, clock=clock, observers=[watch])
    call = await start(runner.run("looks"), clock)
    await clock.advance(3599)
    assert not call.done()
    await clock.advance(1)
    result = await call
    assert (result.status, result.executed, seen) == ("timeout", None, [3600, 3590])
    assert "3600 s" in str(result.error)
    assert watch.kinds() == ["tool:pre", "tool:error"] and runner.left_running == 0


async def test_middleware_without_a_clock_goes_by_the_runners() -> None:
    runs: list[str] = []

    @tool(read_only=True)
    async def fails() -> None:
        runs.append("fails")
        raise ValueError("no")

    @tool(read_only=True)
    async def counts() -> int:
        runs.append("counts")
        return len(runs)

    clock = ManualClock()
    call = await start(Runner([fails], inside=[retry(2, wait=30, jitter=0)], clock=clock).run("fails"), clock)
    assert clock.sleeping == (30,) and runs == ["fails"]
    await clock.advance(30)
    assert (await call).status == "failed" and runs == ["fails"] * 2
    for made, middleware, seconds, statuses in (
        (counts, rate(1, 60), 60, ["ok", "limited", "ok"]),
        (fails, breaker(1, seconds=60), 60, ["failed", "limited", "failed"]),
    ):
        runner = Runner([made], inside=[middleware], clock=clock)
        found = [(await runner.run(made.name)).status for _ in range(2)]
        await clock.advance(seconds)
        assert [*found, (await runner.run(made.name)).status] == statuses
    cached = Runner([counts], inside=[cache(300)], clock=clock)
    first = (await cached.run("counts")).output
    await clock.advance(299)
    assert (await cached.run("counts")).output == first
    await clock.advance(1)
    assert (await cached.run("counts")).output == first + 1


async def test_middleware_can_read_the_clock_and_pause_by_it() -> None:
    clock, seen = ManualClock(), []

    async def pauses(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        seen.append(context.clock)
        assert await context.pause(50)
        return await next(call, context)

    call = await start(Runner([works], inside=[pauses], clock=clock).run("works"), clock)
    await clock.advance(49)
    assert not call.done()
    await clock.advance(1)
    assert (await call).success and seen == [clock] and ToolContext().clock is None


async def test_a_clock_need_only_say_the_time_and_sleep() -> None:
    class Halved(Clock):
        def time(self) -> float:
            return MONOTONIC.time() / 2

        async def sleep(self, seconds: float, /) -> None:
            await asyncio.sleep(seconds * 2)

    result = await Runner([endless], clock=Halved()).run("endless", timeout=0.01)
    assert result.status == "timeout"


@pytest.mark.parametrize("clock", [ManualClock, 5])
def test_an_object_that_is_no_clock_is_refused(clock: Any) -> None:
    with pytest.raises(DefinitionError, match="clock must be a clock, which has time"):
        Runner([endless], clock=clock)
    with pytest.raises(DefinitionError, match=r"rate\(clock\) must be a clock, which has time"):
        rate(1, clock=clock)
