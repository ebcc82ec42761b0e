"""A failing task group of a handler, guard or middleware is never taken for a cancellation from outside.

Before Python 3.13 a failing group leaves `cancelling()` of its task raised.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from journals import WatchedJournal

from ferrule import Decision, Runner, ToolCall, ToolContext, ToolResult, ask, tool
from ferrule.kernel.state import RELIABLE_CANCELLING
from ferrule.middleware import after, before, retry
from waits import BOUND


async def soon_raises() -> None:
    await asyncio.sleep(0)
    raise ValueError("a child")


async def failing_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.Event().wait())
        group.create_task(soon_raises())


async def outlives(times: int) -> str:
    """Let that many groups fail, one after the other."""
    for _ in range(times):
        try:
            await failing_group()
        except ExceptionGroup:
            pass
    return "done"


async def within_a_group(times: int) -> str:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(0))
        return await outlives(times)


def plain(times: int) -> Any:
    return outlives(times)


async def goes_round(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
    await outlives(1)
    return await next(call, context)


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "observed": {"observers": [print]},
    "with a deadline": {"timeout": BOUND},
}
if RELIABLE_CANCELLING:  # before, a group of a middleware's own is a documented limit
    WAYS["with a middleware inside that has one too"] = {"inside": [goes_round]}
    WAYS["both"] = {"inside": [goes_round], "timeout": BOUND}


@pytest.mark.parametrize("handler", [outlives, within_a_group, plain])
@pytest.mark.parametrize("way", WAYS)
async def test_a_handler_outlives_its_failing_groups(handler: Any, way: str) -> None:
    runner = Runner([tool(handler)], **WAYS[way])
    await runner.run(handler.__name__, "{")  # the first call on a loop may go another way
    result = await runner.run(ToolCall("c1", handler.__name__, '{"times": 3}'))
    assert (result.status, result.output) == ("ok", "done")


async def slow_to_leave(leaving: asyncio.Event) -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        leaving.set()
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("during", ["the body of a group", "the end of a group that cancelled its body"])
async def test_a_cancellation_counts_although_groups_failed_before_or_with_it(during: str, way: str) -> None:
    reached = asyncio.Event()

    @tool
    async def swallows() -> str:
        await outlives(2)
        try:
            async with asyncio.TaskGroup() as group:
                if during == "the body of a group":
                    reached.set()
                else:
                    group.create_task(slow_to_leave(reached))
                    group.create_task(soon_raises())
                await asyncio.Event().wait()
        except (asyncio.CancelledError, ExceptionGroup):
            pass
        return "went on"

    runner = Runner([swallows], **WAYS[way])
    await runner.run("swallows", "{")
    task = asyncio.ensure_future(runner.run(ToolCall("c1", "swallows", "{}")))
    await reached.wait()
    task.cancel()
    if RELIABLE_CANCELLING or "timeout" in WAYS[way]:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, BOUND)
    else:  # a handler may swallow a cancellation there
        assert (await asyncio.wait_for(task, BOUND)).output == "went on"


async def fails(*given: Any) -> None:
    await outlives(1)


async def fails_twice(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
    result = await goes_round(call, context, next)
    await outlives(1)
    return result


async def guards_it(call: ToolCall, context: ToolContext) -> Decision:
    await outlives(1)
    return ask("?")


async def approves(call: ToolCall, decision: Decision, context: ToolContext) -> bool:
    await outlives(1)
    return True


PLACES: dict[str, dict[str, Any]] = {
    "around": {"around": [fails_twice]},
    "before": {"around": [before(lambda arguments: fails())]},
    "after": {"around": [after(lambda result: fails())]},
    "after, inside": {"inside": [after(lambda result: fails())]},
    "guard and approver": {"guards": [guards_it], "approve": approves},
    "journal": {"journal": WatchedJournal(begins=fails, ends=fails)},
}
CASES = [(place, timeout) for place in PLACES for timeout in (None, BOUND)]
if not RELIABLE_CANCELLING:  # a documented limit, except where nothing runs after it
    CASES = [(place, timeout) for place, timeout in CASES if place.startswith("after")]


@pytest.mark.parametrize(("place", "timeout"), CASES)
async def test_groups_that_fail_outside_the_handler_do_not_cancel_either(place: str, timeout: float | None) -> None:
    runner = Runner([tool(outlives)], timeout=timeout, **PLACES[place])
    result = await runner.run(ToolCall("c1", "outlives", '{"times": 1}'))
    assert (result.status, result.output) == ("ok", "done")
    task = asyncio.current_task()
    assert task is not None and (task.cancelling() == 0 or not RELIABLE_CANCELLING)


@pytest.mark.parametrize("way", WAYS)
async def test_a_failing_group_is_a_failed_call_that_is_tried_again(
    way: str,
) -> None:
    runs = []

    @tool(read_only=True, inside=[retry(3, wait=0)])
    async def fails() -> str:
        runs.append(len(runs))
        if len(runs) == 1:
            await failing_group()
        if len(runs) == 2:
            raise asyncio.CancelledError  # its own: the group before has left the count of its task raised
        return "done"

    result = await Runner([fails], **WAYS[way]).run("fails")
    assert (result.status, result.output, runs) == ("ok", "done", [0, 1, 2])
