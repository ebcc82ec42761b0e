"""A middleware that lets a run go on, or begins one, after its call has its result."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ferrule import DefinitionError, Runner, ToolResult, Waits, tool
from waits import BOUND
from watched import Watch


@pytest.mark.parametrize("timeout", [None, 0.05])
@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_slot_is_held_until_a_handler_that_was_shielded_ends(timeout: float | None, stubborn: bool) -> None:

    finish, runs = asyncio.Event(), []

    @tool(concurrency=1)
    async def work() -> str:
        runs.append(1)
        await finish.wait()
        return "done"

    async def shielding(call: Any, context: Any, next: Any) -> ToolResult:
        before = len(runs)
        inner = asyncio.ensure_future(next(call, context))
        if timeout is None:
            while len(runs) == before:
                await asyncio.sleep(0)
            return ToolResult("at once")
        try:
            return await asyncio.shield(inner)
        except asyncio.CancelledError:
            if stubborn:
                return await inner
            raise

    watch = Watch()
    runner = Runner([work], inside=[shielding], timeout=timeout, waits=Waits(grace=0, slot=0.05), observers=[watch])
    first = await runner.run("work")
    assert first.status == ("ok" if timeout is None else "timeout") and runner.left_running == 1
    if timeout is not None:
        assert "is still running" in (first.error or "")
    second = await runner.run("work")
    assert (second.status, second.executed, len(runs)) == ("limited", False, 1)
    finish.set()
    while runner.left_running:
        await asyncio.sleep(0)
    assert (await runner.run("work")).executed is True and len(runs) == 2
    assert len(watch.ends()) == 3


@pytest.mark.parametrize("place", ["inside", "around"])
@pytest.mark.parametrize("begun", [False, True])
async def test_next_after_the_result_runs_nothing(place: str, begun: bool) -> None:

    late: list[Any] = []
    runs: list[int] = []

    @tool
    async def work() -> str:
        runs.append(1)
        return "done"

    async def leaving(call: Any, context: Any, next: Any) -> ToolResult:
        late.append(asyncio.ensure_future(next(call, context)) if begun else lambda: next(call, context))
        return ToolResult("at once")

    runner = Runner([work], **{place: [leaving]})  # type: ignore[arg-type]
    assert (await runner.run("work")).output == "at once"
    with pytest.raises(DefinitionError, match="`next`"):
        await (late[0] if begun else late[0]())
    assert (runs, runner.left_running, runner.waiting) == ([], 0, 0)


@pytest.mark.parametrize("timeout", [None, BOUND])
async def test_a_middleware_inside_that_waits_when_its_call_ends_starts_nothing(timeout: float | None) -> None:

    waiting, free = asyncio.Event(), asyncio.Event()
    left: list[asyncio.Future[Any]] = []
    runs: list[int] = []

    @tool
    async def work() -> str:
        runs.append(1)
        return "done"

    async def waits(call: Any, context: Any, next: Any) -> ToolResult:
        waiting.set()
        await free.wait()
        return await next(call, context)  # type: ignore[no-any-return]

    async def leaving(call: Any, context: Any, next: Any) -> ToolResult:
        left.append(asyncio.ensure_future(next(call, context)))
        await waiting.wait()
        return ToolResult("at once")

    runner = Runner([work], around=[leaving], inside=[waits], timeout=timeout)
    assert (await runner.run("work")).output == "at once"
    free.set()
    with pytest.raises(DefinitionError, match="after its result"):
        await left[0]
    assert (runs, runner.left_running) == ([], 0)


async def test_a_run_that_waits_when_its_call_ends_does_not_start() -> None:

    asked, answer = asyncio.Event(), asyncio.Event()
    late: list[Any] = []
    runs: list[int] = []

    @tool
    async def work() -> str:
        runs.append(1)
        return "done"

    async def slow_guard(call: Any, context: Any) -> None:
        asked.set()
        await answer.wait()

    async def leaving(call: Any, context: Any, next: Any) -> ToolResult:
        late.append(asyncio.ensure_future(next(call, context)))
        await asked.wait()
        return ToolResult("at once")

    runner = Runner([work], around=[leaving], guards=[slow_guard])
    assert (await runner.run("work")).output == "at once"
    answer.set()
    with pytest.raises(DefinitionError, match="ended before"):
        await late[0]
    assert not runs
