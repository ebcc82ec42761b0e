"""Leaving a runner, `async with runner`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from journals import WatchedJournal

import probe
from cast import add
from ferrule import Decision, Runner, ToolCall, ToolContext, ToolResult, Waits, ask, tool
from gates import Blocker, Gate
from waits import BOUND
from watched import Watch, go

LONG = 10 * BOUND
"""A `drain` that no test waits for."""


async def turns(count: int = 20) -> None:
    """Let all go on that can."""
    for _ in range(count):
        await asyncio.sleep(0)


async def leave(runner: Runner) -> None:
    async with runner:
        pass


async def start(gate: Gate, runner: Runner) -> asyncio.Task[ToolResult]:
    call = asyncio.create_task(runner.run("wait"))
    await gate.inside.wait()
    return call


async def test_leaving_takes_no_new_calls_and_waits_for_running_ones() -> None:
    gate, watch = Gate(), Watch()

    @tool
    async def work(context: ToolContext) -> list[Any]:
        await context.run("wait")
        return [(await context.run("add", {"a": 1, "b": 2})).output, (await runner.run("add", {"a": 2, "b": 2})).output]

    runner = Runner([work, gate.tool, add], observers=[watch])
    going = asyncio.create_task(runner.run("work"))
    await gate.inside.wait()
    leaving = asyncio.create_task(leave(runner))
    await turns()
    assert not leaving.done()
    refused = await runner.run(ToolCall("late", "add", {"a": 1, "b": 2}))
    assert (refused.status, refused.executed) == ("cancelled", False)
    assert "closing" in str(refused.error) and watch.kinds("late") == ["tool:pre", "tool:error"]
    gate.open.set()
    await leaving
    assert (await going).output == [3, 4]
    assert (await runner.run("add", {"a": 1, "b": 2})).status == "cancelled"


@pytest.mark.parametrize("timeout", [None, 60.0])
async def test_leaving_waits_no_longer_than_drain(timeout: float | None) -> None:
    gate, watch = Gate(), Watch()
    runner = Runner([gate.tool], waits=Waits(drain=0.01), observers=[watch], timeout=timeout)
    async with runner:
        going = await start(gate, runner)
    result = await going
    assert (result.status, result.executed) == ("cancelled", None)
    assert "its effect may have happened" in str(result.error)
    assert watch.ends() == ["tool:error"] and not probe.live_calls(runner)


async def test_leaving_a_runner_leaves_its_replacements_too() -> None:
    gate = Gate()
    runner = Runner([gate.tool, add])
    before = runner.replace(observers=[])
    async with before:
        pass
    async with runner:
        further = before.replace(tools=[gate.tool])
        going = await start(gate, further)
        asyncio.get_running_loop().call_soon(gate.open.set)
    assert going.done() and going.result().output == "through"
    for left in (before, further, runner.replace(observers=[])):
        assert (await left.run("wait")).status == "cancelled"
    async with runner:
        assert (await before.run("add", {"a": 1, "b": 2})).output == 3


async def test_two_may_leave_at_once_and_one_that_gives_up_cancels_nothing() -> None:
    gate = Gate()
    runner = Runner([gate.tool], waits=Waits(drain=LONG))
    going = await start(gate, runner)
    one, two, three = (asyncio.create_task(leave(runner)) for _ in range(3))
    await turns()
    one.cancel()
    await turns()
    assert one.cancelled() and not two.done() and not three.done() and len(probe.live_calls(runner)) == 1
    gate.open.set()
    await asyncio.gather(two, three)
    assert (await going).success and probe.is_at_rest(runner)


async def test_leaving_a_busy_runner_on_another_loop_is_an_error() -> None:
    blocker, results = Blocker(), []
    runner = Runner([blocker.tool], waits=Waits(drain=0))
    thread = threading.Thread(target=lambda: results.append(runner.run_sync("block")))
    thread.start()
    await asyncio.to_thread(blocker.inside.wait, BOUND)
    with pytest.raises(RuntimeError, match="on another event loop: leave it there, or once they ended"):
        await leave(runner)
    assert len(probe.live_calls(runner)) == 1
    blocker.release.set()
    await asyncio.to_thread(thread.join, BOUND)
    await leave(runner)
    assert results[0].output == "through" and probe.is_at_rest(runner)


def test_a_write_for_a_closed_loop_does_not_stop_leaving_on_another() -> None:
    writing = Gate()
    runner = Runner([add], journal=WatchedJournal(ends=writing.wait), waits=Waits(drain=LONG))
    loop = asyncio.new_event_loop()
    call = loop.create_task(runner.run("add", {"a": 1, "b": 2}))
    loop.run_until_complete(writing.inside.wait())
    call.cancel()
    loop.run_until_complete(asyncio.wait({call}))
    loop.close()
    go(leave(runner))
    for write in runner._state.writes:
        write._log_destroy_pending = False  # as such a loop leaves it


PLACES = ["handler", "generator", "thread", "child", "task", "around", "approver"]


@pytest.mark.parametrize("timeout", [None, BOUND])
@pytest.mark.parametrize("where", PLACES)
async def test_leaving_from_inside_a_call_is_an_error_that_says_what_to_do(where: str, timeout: float | None) -> None:
    left: list[str] = []

    async def leave_at(place: str) -> None:
        if place == where:
            with pytest.raises(RuntimeError, match="a call cannot leave the runner that runs it: leave it where"):
                await leave(runner)
            left.append(place)

    @tool(parallel=True)
    async def handler(context: ToolContext) -> str:
        await leave_at("handler")
        await asyncio.create_task(leave_at("task"))
        return str((await context.run("child")).status)

    @tool(parallel=True)
    async def child() -> None:
        await leave_at("child")

    @tool
    async def generator() -> Any:
        yield "one"
        await leave_at("generator")

    @tool
    def thread() -> None:
        asyncio.run(leave_at("thread"))

    async def around(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        await leave_at("around")
        return await next(call, context)

    async def approve(call: ToolCall, decision: Decision, context: ToolContext) -> bool:
        await leave_at("approver")
        return True

    options: dict[str, Any] = {"around": [around], "approve": approve}
    if where == "approver":
        options["guards"] = [lambda call, context: None if left else ask("?")]
    runner = Runner([handler, child, generator, thread], waits=Waits(drain=LONG), timeout=timeout, **options)
    assert (await runner.run(where if where in ("generator", "thread") else "handler")).success
    assert left and (await runner.run("handler")).status == "cancelled"  # it takes no new calls all the same
    assert probe.is_at_rest(runner)


@pytest.mark.parametrize("begin", [Runner.batch, lambda *given: asyncio.ensure_future(Runner.run_all(*given))])
async def test_leaving_waits_for_the_whole_of_a_batch_that_was_begun(begin: Callable[..., Any]) -> None:
    gate = Gate()
    gate.open.set()
    async with Runner([gate.tool], waits=Waits(drain=BOUND)) as runner:
        batch = begin(runner, [ToolCall(str(n), "wait") for n in range(3)])
        await asyncio.sleep(0)
    assert gate.runs == 3 and [result.status for result in await batch] == ["ok"] * 3
