"""`Runner(clock=…)`: deadlines, waits, rates and expiries go by it, and one that a test moves moves them all."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from journals import WatchedJournal, forever

import ferrule
import probe
from ferrule import Clock, DefinitionError, Runner, ToolCall, ToolContext, ToolResult, Waits, allow, ask, tool
from ferrule.middleware import breaker, budget, cache, rate, retry
from ferrule.scheduling.clock import MONOTONIC
from ferrule.testing import ManualClock
from watched import Watch


async def soon(call: Awaitable[ToolResult], clock: ManualClock) -> asyncio.Task[ToolResult]:
    """A call that has come to where it waits."""
    task = asyncio.ensure_future(call)
    await clock.advance(0)
    return task  # type: ignore[return-value]


@tool(parallel=True)
async def endless() -> None:
    """Never end."""
    await asyncio.Event().wait()


async def test_a_deadline_comes_when_the_clock_says_so_and_not_before() -> None:

    clock = ManualClock(1000)
    seen: list[float | None] = []

    @tool
    async def looks(context: ToolContext) -> None:
        seen.append(context.remaining())
        await clock.sleep(10)
        seen.append(context.remaining())
        await asyncio.Event().wait()

    runner = Runner([looks], timeout=3600, clock=clock)
    call = await soon(runner.run("looks"), clock)
    await clock.advance(3599)
    assert not call.done()
    await clock.advance(1)
    assert (await call).status == "timeout" and seen == [3600, 3590]
    assert "3600 s" in str((await call).error)


async def test_a_nested_call_has_the_deadline_of_the_clock_too() -> None:

    clock = ManualClock()

    @tool
    async def outer(context: ToolContext) -> None:
        await context.run("endless")
        await context.run("endless")

    watch = Watch()
    call = await soon(Runner([outer, endless], observers=[watch], clock=clock).run("outer", timeout=60), clock)
    await clock.advance(59)
    assert not watch.ends()
    await clock.advance(1)
    await call
    statuses = [event.data["result"].status for event in watch.events if event.kind == "tool:error"]
    assert statuses[0] in ("timeout", "cancelled")  # by its own deadline or by that above, which is the same


async def test_who_swallows_its_cancellation_has_the_grace_of_the_clock() -> None:

    clock, end = ManualClock(), asyncio.Event()

    @tool
    async def stubborn() -> None:
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                continue

    runner = Runner([stubborn], timeout=5, waits=Waits(grace=30), clock=clock)
    call = await soon(runner.run("stubborn"), clock)
    await clock.advance(5)
    assert not call.done()
    await clock.advance(30)
    assert (await call).status == "timeout" and runner.left_running == 1
    end.set()
    await clock.advance(0)
    assert runner.left_running == 0


async def test_slots_and_keys_are_waited_for_by_the_clock() -> None:
    @tool(resources=lambda arguments: ["one"])
    async def keyed() -> None:
        await asyncio.Event().wait()

    for made, options in ((endless, {"concurrency": 1}), (keyed, {})):
        clock = ManualClock()
        runner = Runner([made], waits=Waits(slot=120), clock=clock, **options)  # type: ignore[arg-type]
        first = await soon(runner.run(made.name), clock)
        second = await soon(runner.run(made.name), clock)
        await clock.advance(119)
        assert runner.waiting == 1
        await clock.advance(1)
        assert (await second).status == "limited" and not first.done()
        first.cancel()
        await asyncio.wait({first})


async def test_a_guard_and_a_journal_have_their_ten_seconds_by_the_clock() -> None:
    async def slow(call: ToolCall, context: ToolContext) -> None:
        await asyncio.Event().wait()

    clock = ManualClock()
    guarded = await soon(Runner([endless], guards=[slow], clock=clock).run("endless"), clock)
    await clock.advance(9)
    assert not guarded.done()
    await clock.advance(1)
    assert (await guarded).status == "denied"
    journal = WatchedJournal(begins=forever)
    noted = await soon(Runner([endless], journal=journal, clock=clock).run("endless"), clock)
    await clock.advance(9)
    assert not noted.done()
    await clock.advance(1)
    assert ((await noted).status, (await noted).executed) == ("failed", False)


async def test_a_suspended_call_expires_by_the_time_of_day_of_the_clock() -> None:
    @tool
    async def done() -> str:
        return "done"

    clock = ManualClock(now=1_000_000)
    later: Any = lambda call, decision, context: decision  # noqa: E731
    guards: Any = [lambda call, context: ask("?")]
    runner = Runner([done], guards=guards, approve=later, waits=Waits(resume=600), clock=clock)
    records = [(await runner.run("done")).record() for _ in range(2)]
    assert [record["pending"]["expires_at"] for record in records] == [1_000_600] * 2
    await clock.advance(599)
    assert (await runner.resume(records[0], allow())).output == "done"
    again = await runner.resume(records[0], allow())
    assert again.status == "invalid" and "already" in str(again.error)
    await clock.advance(1)
    late = await runner.resume(records[1], allow())
    assert late.status == "invalid" and "too late" in str(late.error)


async def test_middleware_without_a_clock_goes_by_the_runners() -> None:
    runs: list[str] = []

    @tool(read_only=True)
    async def fails() -> None:
        runs.append("fails")
        raise ValueError("no")

    @tool(read_only=True)
    async def works() -> int:
        runs.append("works")
        return len(runs)

    clock = ManualClock()
    call = await soon(Runner([fails], inside=[retry(2, wait=30, jitter=0)], clock=clock).run("fails"), clock)
    assert clock.sleeping == (30,) and runs == ["fails"]
    await clock.advance(30)
    assert (await call).status == "failed" and runs == ["fails"] * 2
    limited = Runner([works], inside=[rate(1, 60)], clock=clock)
    assert [(await limited.run("works")).status for _ in range(2)] == ["ok", "limited"]
    await clock.advance(60)
    assert (await limited.run("works")).status == "ok"
    cached = Runner([works], inside=[cache(300)], clock=clock)
    first = (await cached.run("works")).output
    await clock.advance(299)
    assert (await cached.run("works")).output == first
    await clock.advance(1)
    assert (await cached.run("works")).output == first + 1
    broken = Runner([fails], inside=[breaker(1, seconds=60)], clock=clock)
    assert [(await broken.run("fails")).status for _ in range(2)] == ["failed", "limited"]
    await clock.advance(60)
    assert (await broken.run("fails")).status == "failed"


async def test_seconds_of_a_budget_are_the_clocks() -> None:

    clock = ManualClock()

    @tool
    async def waits() -> None:
        await clock.sleep(40)

    runner = Runner([waits], inside=[budget(seconds=80, reserve={"seconds": 40})], clock=clock)
    for status in ("ok", "ok", "limited"):
        call = await soon(runner.run("waits"), clock)
        await clock.advance(40)
        assert (await call).status == status


async def test_a_clock_of_a_middlewares_own_wins() -> None:
    @tool
    async def works() -> str:
        return "done"

    clock, own = ManualClock(), ManualClock()
    runner = Runner([works], inside=[rate(1, 60, clock=own)], clock=clock)
    await runner.run("works")
    await clock.advance(3600)
    assert (await runner.run("works")).status == "limited"
    await own.advance(60)
    assert (await runner.run("works")).status == "ok"


async def test_the_clock_is_told_to_middleware_of_others_and_pauses_by_itself() -> None:

    clock, seen = ManualClock(), []

    async def pauses(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        seen.append(context.clock)
        assert await context.pause(50)
        return await next(call, context)  # type: ignore[no-any-return]

    @tool
    async def works() -> str:
        return "done"

    call = await soon(Runner([works], inside=[pauses], clock=clock).run("works"), clock)
    await clock.advance(49)
    assert not call.done()
    await clock.advance(1)
    assert (await call).success and seen == [clock] and ToolContext().clock is None


async def test_without_one_the_loop_counts_the_time_of_calls() -> None:
    @tool
    async def works(context: ToolContext) -> bool:
        return context.clock is MONOTONIC

    runner = Runner([works])
    assert (await runner.run("works")).output is True
    assert probe.timer(runner) is asyncio.get_running_loop()


class Halved(Clock):
    """One of somebody's own, at half the speed; the rest is there already."""

    def time(self) -> float:
        return MONOTONIC.time() / 2

    async def sleep(self, seconds: float, /) -> None:
        await asyncio.sleep(seconds * 2)


async def test_a_clock_of_ones_own_has_what_it_does_not_say_itself() -> None:
    result = await Runner([endless], clock=Halved()).run("endless", timeout=0.01)
    assert result.status == "timeout"


@pytest.mark.parametrize("clock", [ManualClock, 5, object()])
def test_what_is_no_clock_is_refused(clock: Any) -> None:
    with pytest.raises(DefinitionError, match="clock must be a clock, which has time"):
        Runner([endless], clock=clock)
    with pytest.raises(DefinitionError, match=r"rate\(clock\) must be a clock, which has time"):
        rate(1, clock=clock)


def counts_by_itself(text: str) -> bool:
    """Whether code counts seconds by something else than the runner's timer; what a call took is the machine's."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            if {one.name for one in node.names} != {"perf_counter"}:
                return True
        if isinstance(node, ast.Attribute):
            if node.attr in {"call_later", "wait_for", "monotonic"} or ast.unparse(node).endswith("loop().time"):
                return True
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "asyncio.wait":
            if "timeout" in {keyword.arg for keyword in node.keywords}:
                return True
    return False


def test_nothing_on_the_way_of_a_call_counts_seconds_by_anything_else() -> None:
    files = sorted((Path(ferrule.__file__).parent / "kernel").glob("*.py"))
    assert [file.name for file in files if counts_by_itself(file.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    "line",
    ["x = get_running_loop().time()", "loop.call_later(1, f)", "asyncio.wait({f}, timeout=1)", "from time import time"],
)
def test_code_that_would_is_found(line: str) -> None:
    assert counts_by_itself(line) and not counts_by_itself("asyncio.wait({f})")
