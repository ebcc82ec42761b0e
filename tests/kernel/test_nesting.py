"""Calls that are made by calls: a deadline ends what was called from under it, and nothing nests without end."""

from __future__ import annotations

import asyncio
import threading
from contextvars import copy_context
from typing import Any

import pytest

from ferrule import Runner, ToolCall, ToolContext, ToolError, ToolResult, Waits, tool
from watched import BOUND, Watch, go


def test_a_tool_that_calls_itself_ends_at_the_deadline_of_the_first_call() -> None:
    depths: list[int] = []

    @tool(timeout=0.2)
    async def again(context: ToolContext, depth: int = 0) -> str:
        depths.append(depth)
        await asyncio.sleep(0.02)
        return (await context.run("again", {"depth": depth + 1})).status

    runner = Runner([again])
    result = go(runner.run("again"))
    assert (result.status, runner.left_running) == ("timeout", 0) and 1 <= len(depths) <= 12


def test_a_blocking_tool_that_calls_itself_runs_nothing_after_its_deadline() -> None:
    late: list[bool] = []
    ended, over = threading.Event(), threading.Event()

    @tool
    def again(depth: int = 0) -> str:
        late.append(ended.is_set())
        answers = [runner.run_sync("again", {"depth": depth + 1}) for _ in range(2)]
        if depth == 0:
            over.set()
        return answers[-1].status

    runner = Runner([again], timeout=0.3, waits=Waits(slot=1.0))
    assert runner.run_sync("again").status == "timeout"
    ended.set()
    assert over.wait(BOUND) and sum(late) <= 1  # one at most had its thread already


def test_what_outlived_a_time_out_runs_nothing_more() -> None:
    goes_on, told = threading.Event(), threading.Event()
    answers: list[ToolResult] = []

    @tool(read_only=True)
    def other() -> str:
        raise AssertionError

    @tool
    def late() -> None:
        goes_on.wait(BOUND)
        answers.append(runner.run_sync("other"))
        told.set()

    watch = Watch()
    runner = Runner([late, other], timeout=0.05, waits=Waits(grace=0), observers=[watch])
    assert runner.run_sync("late").status == "timeout"
    goes_on.set()
    assert told.wait(BOUND)
    assert (answers[0].status, answers[0].executed) == ("cancelled", False)
    assert watch.kinds(answers[0].call_id) == ["tool:pre", "tool:error"]


@pytest.mark.parametrize("ends", ["ok", "timeout", "cancelled"])
async def test_a_task_that_outlives_its_call_has_calls_of_its_own_only_after_an_ordinary_end(ends: str) -> None:

    over, tasks, outcomes = asyncio.Event(), [], []

    @tool(read_only=True)
    async def other() -> str:
        return "ran"

    async def later(context: ToolContext) -> None:
        await over.wait()
        outcomes.append(await runner.run("other"))
        outcomes.extend(await runner.run_all([ToolCall("x", "other")]))
        outcomes.append(await context.run("other"))
        try:
            await other()
        except ToolError:
            outcomes.append(outcomes[0])

    @tool
    async def leaves(context: ToolContext) -> str:
        tasks.append(asyncio.create_task(later(context)))
        if ends != "ok":
            await asyncio.Event().wait()
        return "left"

    runner = Runner([leaves, other], timeout=0.05 if ends == "timeout" else None)
    batch = asyncio.create_task(runner.run_all([ToolCall("c", "leaves")]))
    while not tasks:
        await asyncio.sleep(0)
    if ends == "cancelled":
        batch.cancel()
    await asyncio.wait({batch})
    over.set()
    await tasks[0]
    ordinary = (["ok", "ok", "cancelled"], [True, True, False])
    stopped = (["cancelled"] * 4, [False] * 4)
    assert ([one.status for one in outcomes], [one.executed for one in outcomes]) == (
        ordinary if ends == "ok" else stopped
    )


@pytest.mark.parametrize("timeout", [None, 60.0])
async def test_who_made_a_call_that_was_stopped_goes_on(timeout: float | None) -> None:

    async def wait(seconds: float = 0.0) -> str:
        await asyncio.sleep(seconds)
        return "done"

    runner = Runner([wait], timeout=timeout)
    assert (await runner.run("wait", {"seconds": BOUND}, timeout=0.01)).status == "timeout"
    assert (await runner.run("wait")).success
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await runner.run("wait", {"seconds": BOUND})
    assert (await runner.run("wait")).success
    assert await wait() == "done"


@tool
async def look() -> str:
    return "seen"


@tool
async def stuck(context: ToolContext) -> str:
    await context.run("look")
    await asyncio.Event().wait()
    return "never"


async def test_who_gave_a_call_up_that_had_called_another_tool_goes_on() -> None:
    async def main() -> ToolResult:
        runner = Runner([stuck, look])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await runner.run("stuck")
        return await runner.run("look")

    result = await main()
    assert result.success, result.error


async def test_who_had_an_answer_from_another_tool_after_a_time_out_goes_on() -> None:
    async def falls_back(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        result: ToolResult = await next(call, context)
        return await context.run("look") if result.status == "timeout" else result

    async def main() -> ToolResult:
        runner = Runner([stuck, look], around=[falls_back])
        assert (await runner.run("stuck", timeout=0.05)).output == "seen"
        return await runner.run("look")

    result = await main()
    assert result.success, result.error


async def test_a_handler_that_gave_up_a_tool_which_had_called_another_goes_on() -> None:
    @tool
    async def middle() -> str:
        await look()
        await asyncio.Event().wait()
        return "never"

    @tool
    async def outer() -> str:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await middle()
        return await look()

    result = await Runner([outer]).run("outer")
    assert result.output == "seen", result.error


@pytest.mark.parametrize("who", ["made a call by its context", "ran its `next`", "shares its context variables"])
async def test_another_task_that_worked_for_a_call_which_timed_out_goes_on(who: str) -> None:

    works: asyncio.Queue[Any] = asyncio.Queue()
    over = asyncio.Event()

    async def worker() -> ToolResult:
        await (await works.get())()
        await over.wait()
        return await runner.run("look")

    async def passes(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        if call.name == "look":
            return await next(call, context)  # type: ignore[no-any-return]
        if who == "ran its `next`":
            answer = asyncio.get_running_loop().create_future()

            async def goes_on() -> None:
                answer.set_result(await next(call, context))

            works.put_nowait(goes_on)
            return await answer  # type: ignore[no-any-return]
        works.put_nowait(lambda: (runner if who.startswith("shares") else context).run("look"))
        return await next(call, context)  # type: ignore[no-any-return]

    runner = Runner([stuck, look], around=[passes])
    variables = copy_context() if who.startswith("shares") else None
    at_work = asyncio.create_task(worker(), context=variables)
    call = asyncio.create_task(runner.run("stuck", timeout=0.05), context=variables)
    assert (await call).status == "timeout"
    over.set()
    result = await at_work
    assert result.success, result.error


async def test_tasks_that_share_their_context_variables_go_on_after_one_of_their_calls_was_stopped() -> None:

    free = asyncio.Event()

    @tool
    async def waits() -> bool:
        return await free.wait()

    async def works() -> ToolResult:
        assert (await runner.run("waits")).success
        return await runner.run("look")

    runner, variables = Runner([stuck, look, waits]), copy_context()
    call = asyncio.create_task(runner.run("stuck"), context=variables)
    await asyncio.sleep(0)
    at_work = asyncio.create_task(works(), context=variables)
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait({call})
    free.set()
    result = await at_work
    assert result.success, result.error


@pytest.mark.parametrize("own", [None, 60.0])
async def test_children_have_the_nearest_deadline(own: float | None) -> None:

    seen: list[float] = []

    @tool(timeout=own)
    async def leaf(context: ToolContext) -> str:
        seen.append(context.remaining() or -1.0)
        await asyncio.Event().wait()
        return "never"

    @tool(timeout=30.0)
    async def middle(context: ToolContext) -> ToolResult:
        return await context.run("leaf")

    @tool(timeout=0.5)
    async def top(context: ToolContext) -> Any:
        return (await asyncio.shield(asyncio.ensure_future(context.run("middle")))).status

    watch = Watch()
    runner = Runner([leaf, middle, top], observers=[watch])
    assert (await runner.run("top")).status == "timeout"
    while len(watch.ends()) < 3:
        await asyncio.sleep(0)
    ends = {event.call.name: event.data["result"].status for event in watch.events if event.kind == "tool:error"}
    assert 0 < seen[0] <= 0.5 and ends["middle"] == "timeout" and ends["leaf"] in ("timeout", "cancelled")


@pytest.mark.parametrize("way", ["context", "runner", "batch", "direct"])
async def test_calls_nest_at_most_32_deep(way: str) -> None:
    depths: list[int] = []

    @tool
    async def again(context: ToolContext, depth: int = 0) -> str:
        depths.append(depth)
        arguments = {"depth": depth + 1}
        if way == "direct":
            return await again(**arguments)  # type: ignore[arg-type]
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


async def test_a_middleware_around_may_call_another_tool_after_a_time_out() -> None:
    @tool(timeout=0.02)
    async def slow() -> str:
        await asyncio.Event().wait()
        return "never"

    @tool(read_only=True)
    async def quick() -> str:
        return "instead"

    async def fallback(call: Any, context: Any, next: Any) -> ToolResult:
        result = await next(call, context)
        return await context.run("quick") if result.status == "timeout" else result

    result = await Runner([slow.replace(around=[fallback]), quick]).run("slow")
    assert (result.status, result.output) == ("ok", "instead")


async def test_a_context_runs_nothing_once_its_call_has_ended() -> None:
    kept: list[ToolContext] = []

    @tool
    async def keep(context: ToolContext) -> str:
        kept.append(context)
        return "kept"

    async def main() -> ToolResult:
        runner = Runner([keep])
        await runner.run("keep")
        return await kept[0].run("keep")

    result = await main()
    assert (result.status, result.executed, len(kept)) == ("cancelled", False, 1)
