"""Calls that are made by calls."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from ferrule import Runner, ToolCall, ToolContext, ToolError, ToolResult, Waits, tool
from ferrule.testing import ManualClock
from waits import BOUND, until
from watched import Watch


@tool(read_only=True)
async def look() -> str:
    return "seen"


@pytest.mark.parametrize("way", ["context", "runner", "batch", "direct"])
async def test_calls_nest_at_most_32_deep(way: str) -> None:
    depths: list[int] = []

    @tool
    async def again(context: ToolContext, depth: int = 0) -> str:
        depths.append(depth)
        arguments = {"depth": depth + 1}
        if way == "direct":
            return await again(**arguments)
        if way == "context":
            result = await context.run("again", arguments)
        elif way == "runner":
            result = await runner.run("again", arguments)
        else:
            (result,) = await runner.run_all([ToolCall("", "again", arguments)])
        return f"{result.status}: {result.error}" if not result.success else str(result.output)

    runner = Runner([again])
    result = await runner.run("again")
    assert "at most 32 deep" in (result.error or result.text) and len(depths) == 33


@pytest.mark.parametrize("own", [None, 60.0])
async def test_children_have_the_nearest_deadline(own: float | None) -> None:
    clock, watch, seen = ManualClock(), Watch(), []

    @tool(timeout=own)
    async def leaf(context: ToolContext) -> None:
        seen.append(context.remaining())
        await asyncio.Event().wait()

    @tool(timeout=30.0)
    async def middle(context: ToolContext) -> ToolResult:
        return await context.run("leaf")

    @tool(timeout=10.0)
    async def top(context: ToolContext) -> Any:
        return (await asyncio.shield(asyncio.ensure_future(context.run("middle")))).status

    call = asyncio.ensure_future(Runner([leaf, middle, top], observers=[watch], clock=clock).run("top"))
    await clock.advance(10)
    assert (await call).status == "timeout" and seen == [10]
    await until(lambda: len(watch.ends()) == 3)
    ends = {event.call.name: event.data["result"].status for event in watch.events if event.kind == "tool:error"}
    assert ends["middle"] == "timeout" and ends["leaf"] in ("timeout", "cancelled")


async def test_a_thread_that_outlived_its_deadline_runs_nothing_more() -> None:
    begun, goes_on, answered = threading.Event(), threading.Event(), threading.Event()
    answers: list[ToolResult] = []

    @tool
    def late() -> None:
        begun.set()
        goes_on.wait(BOUND)
        answers.append(runner.run_sync("look"))
        answered.set()

    clock, watch = ManualClock(), Watch()
    runner = Runner([late, look], timeout=10, waits=Waits(grace=0), observers=[watch], clock=clock)
    call = asyncio.ensure_future(runner.run("late"))
    await until(begun.is_set)
    await clock.advance(10)
    assert (await call).status == "timeout"
    goes_on.set()
    await until(answered.is_set)
    assert (answers[0].status, answers[0].executed) == ("cancelled", False)
    assert watch.kinds(answers[0].call_id) == ["tool:pre", "tool:error"]


@pytest.mark.parametrize("ends", ["ok", "timeout", "cancelled"])
async def test_a_task_that_outlives_its_call_calls_only_after_an_ordinary_end(ends: str) -> None:
    over, tasks, outcomes = asyncio.Event(), [], []

    async def later(context: ToolContext) -> None:
        await over.wait()
        outcomes.append(await runner.run("look"))
        outcomes.extend(await runner.run_all([ToolCall("x", "look")]))
        outcomes.append(await context.run("look"))
        try:
            await look()
        except ToolError:
            outcomes.append(outcomes[0])

    @tool
    async def leaves(context: ToolContext) -> str:
        tasks.append(asyncio.create_task(later(context)))
        if ends != "ok":
            await asyncio.Event().wait()
        return "left"

    runner = Runner([leaves, look], timeout=0.05 if ends == "timeout" else None)
    batch = asyncio.create_task(runner.run_all([ToolCall("c", "leaves")]))
    while not tasks:
        await asyncio.sleep(0)
    if ends == "cancelled":
        batch.cancel()
    await asyncio.wait({batch})
    over.set()
    await tasks[0]
    found = [(one.status, one.executed) for one in outcomes]
    assert found == ([("ok", True)] * 2 if ends == "ok" else [("cancelled", False)] * 3) + [("cancelled", False)]
