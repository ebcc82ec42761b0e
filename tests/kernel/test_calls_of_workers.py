"""`context.run` of a handler in a worker process: the call runs in the program, as a child, with all guards there."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import isolated_tools as tools
import pytest

import probe
from ferrule import Runner, Tool, ToolCall, ToolContext, Waits, ask, deny, tool
from ferrule.executors.process.pool import DEFAULT_WORKERS
from ferrule.testing import ManualClock
from gates import Gate
from waits import until
from watched import Watch


def isolated(handler: Any, **options: Any) -> Tool:
    return tool(handler, isolation="process", **options)


@tool(parallel=True)
async def doubles(n: int) -> dict[str, int]:
    """Double it here."""
    return {"twice": n * 2, "pid": os.getpid()}


async def test_the_call_runs_in_the_program_as_a_child() -> None:
    watch = Watch()
    runner = Runner([isolated(tools.asks_for), doubles], observers=[watch])
    result = await runner.run(ToolCall("c1", "asks_for", {"name": "doubles", "count": 20}))
    assert result.output == [["ok", {"twice": n * 2, "pid": os.getpid()}, True] for n in range(20)]
    children = [event.call for event in watch.events if event.kind == "tool:post" and event.call.id != "c1"]
    assert [(call.name, call.parent) for call in children] == [("doubles", "c1")] * 20


async def test_plain_functions_can_call_other_tools_too() -> None:
    result = await Runner([isolated(tools.asks_plainly), doubles]).run("asks_plainly", {"name": "doubles"})
    assert [one["twice"] for one in result.output] == [2, 4, 6]


async def test_a_call_with_an_id_is_refused() -> None:
    result = await Runner([isolated(tools.asks_with_id), doubles]).run("asks_with_id", {"name": "doubles"})
    assert "context.run(…, id=…) is not available" in result.text


async def test_guards_and_approvers_of_the_program_judge_the_call() -> None:
    asked: list[tuple[str, int]] = []

    def guard(call: ToolCall, context: ToolContext) -> Any:
        if call.name == "doubles":
            return deny("not 1") if call.arguments["n"] == 1 else ask("sure?")
        return None

    def approve(call: ToolCall, decision: Any, context: ToolContext) -> bool:
        asked.append((call.name, os.getpid()))
        return True

    runner = Runner([isolated(tools.asks_for), doubles], guards=[guard], approve=approve)
    result = await runner.run("asks_for", {"name": "doubles", "count": 2})
    assert [one[0] for one in result.output] == ["ok", "denied"]
    assert result.output[1][2] is False and asked == [("doubles", os.getpid())]
    unknown = await runner.run("asks_for", {"name": "no_such"})
    assert unknown.output == [["not_found", None, False]]


@pytest.mark.large
async def test_the_call_ends_before_its_parent_though_the_loop_was_blocked() -> None:
    async def endless(n: int = 0) -> None:
        asyncio.get_running_loop().call_soon(time.sleep, 0.15)  # its worker is killed meanwhile
        await asyncio.Event().wait()

    runner = Runner([isolated(tools.asks_whole), endless])
    await runner.run("asks_whole", {"name": "none"})  # a worker is warm
    for _ in range(8):
        call = runner.run("asks_whole", {"name": "endless"}, timeout=0.06)
        assert (await call).status == "timeout" and not probe.live_calls(runner)


async def test_the_call_is_cancelled_with_its_parent() -> None:
    gate, watch, clock = Gate(), Watch(), ManualClock()
    runner = Runner([isolated(tools.asks_whole), gate.tool], observers=[watch], clock=clock)
    batch = runner.batch([ToolCall("c1", "asks_whole", {"name": "wait"})])
    await gate.inside.wait()
    batch.cancel(now=True)
    (result,) = await batch
    assert (result.status, result.executed) == ("cancelled", None)
    late = asyncio.ensure_future(runner.run("asks_whole", {"name": "wait"}, timeout=10))
    await until(lambda: gate.runs == 2)
    await clock.advance(10)
    assert ((await late).status, (await late).executed) == ("timeout", None)
    assert watch.ends() == ["tool:error"] * 4 and not probe.live_calls(runner)


async def test_a_handler_that_stops_waiting_cancels_the_call() -> None:
    async def endless(n: int = 0) -> None:
        await asyncio.Event().wait()

    runner = Runner([isolated(tools.asks_for), isolated(tools.leaves_a_call), endless])
    result = await runner.run("asks_for", {"name": "endless", "seconds": 0.2})
    assert result.output == ["TimeoutError()"]
    assert (await runner.run("leaves_a_call", {"name": "endless"})).output == "done"
    assert not probe.live_calls(runner)


async def test_the_call_is_refused_once_its_parent_has_ended() -> None:
    watch = Watch()
    runner = Runner([isolated(tools.leaves_a_call), isolated(tools.asks_late), doubles], observers=[watch])
    for _ in range(20):  # until one worker has had both
        await runner.run("leaves_a_call", {"name": "doubles"})
        late = await runner.run("asks_late", {"name": "doubles"})
        if late.success:
            break
    assert late.output[:2] == ["cancelled", False] and "has ended" in late.output[2]


async def test_isolated_calls_of_isolated_calls_do_not_wait_for_their_workers() -> None:
    add = isolated(tools.held_by_none, parallel=True)
    runner = Runner([isolated(tools.asks_for, parallel=True), add], waits=Waits(slot=None))
    calls = [ToolCall(f"c{n}", "asks_for", {"name": "held_by_none", "count": 2}) for n in range(DEFAULT_WORKERS)]
    for result in await runner.run_all(calls):
        assert [one[0] for one in result.output] == ["ok", "ok"], result
