"""`disable` and `enable`, and a batch that is cancelled in two stages."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import probe
from ferrule import DefinitionError, Runner, ToolCall, ToolContext, ask, tool
from gates import Gate
from waits import until
from watched import Watch


@tool(read_only=True)
async def look() -> str:
    """Look."""
    return "seen"


@tool
async def send() -> str:
    """Send."""
    return "sent"


async def crowd(gate: Gate, calls: int = 2, **options: Any) -> tuple[Runner, Any]:
    """A runner with one slot, which the first of its calls has."""
    runner = Runner([gate.tool], **{"concurrency": 1, **options})
    batch = runner.batch([ToolCall(f"c{n}", "wait", "{}") for n in range(calls)])
    await until(lambda: runner.waiting == calls - 1 and gate.runs == 1)
    return runner, batch


async def test_a_disabled_tool_is_denied_with_the_reason_until_it_is_enabled() -> None:
    watch = Watch()
    runner = Runner([look, send], observers=[watch])
    assert (await runner.run(ToolCall("c0", "send", "{}"))).success
    runner.disable("se*", "mail is down")
    result = await runner.run(ToolCall("c1", "send", "{}"))
    assert (result.status, result.executed) == ("denied", False)
    assert result.error == "Denied: mail is down. Nothing was run."
    assert (await runner.run(ToolCall("c2", "look", "{}"))).success
    assert (await runner.decide(ToolCall("c3", "send", "{}"))).reason == "mail is down"
    runner.enable("*")
    assert (await runner.run(ToolCall("c4", "send", "{}"))).success
    assert watch.kinds("c1") == ["tool:pre", "tool:error"]


async def test_nobody_is_asked_about_a_disabled_tool() -> None:
    def approve(call: ToolCall, decision: Any, context: ToolContext) -> bool:
        raise AssertionError

    runner = Runner([send], guards=[lambda call, context: ask("?")], approve=approve)
    runner.disable("send", "not now")
    assert (await runner.run("send")).error == "Denied: not now. Nothing was run."


async def test_disabling_denies_waiting_calls_and_lets_running_ones_finish() -> None:
    gate, watch, seen = Gate(parallel=True), Watch(), []

    async def sees(call: ToolCall, context: ToolContext, next: Any) -> Any:
        result = await next(call, context)
        seen.append(result.status)
        await asyncio.sleep(0)  # the task is no longer cancelled
        return result

    runner, batch = await crowd(gate, 3, observers=[watch], around=[sees])
    runner.disable("wait", "stop")
    await until(lambda: runner.waiting == 0)
    assert gate.runs == 1 and seen == ["denied", "denied"]
    gate.open.set()
    results = await batch
    assert [result.status for result in results] == ["ok", "denied", "denied"]
    assert [result.executed for result in results] == [True, False, False]
    assert [len(watch.ends(f"c{n}")) for n in range(3)] == [1, 1, 1]
    assert probe.slots_taken(runner) == 0


async def test_a_call_that_was_just_handed_its_slot_is_denied_too() -> None:
    gate = Gate(parallel=True)

    def turn_off(event: Any) -> None:
        if event.kind == "tool:post":  # its slot was handed on already
            runner.disable("wait", "stop")

    runner, batch = await crowd(gate, observers=[turn_off])
    gate.open.set()
    assert [result.status for result in await batch] == ["ok", "denied"]
    assert gate.runs == 1


@pytest.mark.parametrize("swallows", [False, True])
async def test_disabling_denies_calls_that_wait_for_a_person_at_once(swallows: bool) -> None:
    asked, watch = asyncio.Event(), Watch()

    async def approve(call: ToolCall, decision: Any, context: ToolContext) -> bool:
        asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not swallows:
                raise
        return True

    gate = Gate()
    runner = Runner([gate.tool], guards=[lambda call, context: ask("?")], approve=approve, observers=[watch])
    going = asyncio.ensure_future(runner.run(ToolCall("c1", "wait", "{}")))
    await asked.wait()
    runner.disable("wait", "stop")
    result = await going
    assert (result.status, result.executed, gate.runs) == ("denied", False, 0)
    assert watch.ends() == ["tool:error"]


async def test_a_cancellation_from_outside_together_with_disabling_still_cancels() -> None:
    gate = Gate(parallel=True)
    runner, batch = await crowd(gate, 1)
    second = asyncio.ensure_future(runner.run("wait"))
    await until(lambda: runner.waiting == 1)
    runner.disable("wait", "stop")
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    gate.open.set()
    assert [result.status for result in await batch] == ["ok"]


async def test_a_tool_may_be_disabled_from_another_thread() -> None:
    gate = Gate(parallel=True)
    runner, batch = await crowd(gate)
    thread = threading.Thread(target=runner.disable, args=("wait", "stop"))
    thread.start()
    await until(lambda: runner.waiting == 0)
    thread.join()
    gate.open.set()
    assert [result.status for result in await batch] == ["ok", "denied"]


@pytest.mark.parametrize(("glob", "reason"), [("sned", "why"), ("send", " ")])
def test_disabling_an_unknown_tool_or_without_a_reason_is_a_mistake(glob: str, reason: str) -> None:
    with pytest.raises(DefinitionError, match="send"):
        Runner([send]).disable(glob, reason)
    with pytest.raises(DefinitionError, match="there are send"):
        Runner([send]).enable("x*")


async def test_a_call_that_was_made_and_has_not_begun_is_denied_too() -> None:
    runner = Runner([send])
    await runner.run("send")
    made, task = runner.run("send"), asyncio.ensure_future(runner.run("send"))
    runner.disable("send", "incident")
    assert [(await made).status, (await task).status] == ["denied", "denied"]


async def test_a_disabled_tool_is_off_where_it_is_mounted_under_another_name() -> None:
    inner = Runner([send, look])
    outer = Runner([*(one.replace(name=f"their_{one.name}") for one in inner.as_tools())])
    inner.disable("send", "incident")
    late = Runner(inner.as_tools())
    assert (await inner.run("send")).status == "denied"
    assert [(await one.run(name)).status for one, name in ((outer, "their_send"), (late, "send"))] == ["denied"] * 2
    assert (await outer.run("their_look")).success
    outer.disable("their_send", "here too")
    inner.enable("send")
    assert (await outer.run("their_send")).error == "Denied: here too. Nothing was run."
    outer.enable("*")
    assert (await outer.run("their_send")).success and (await late.run("send")).success


async def test_disabling_reaches_calls_that_wait_in_an_outer_runner() -> None:
    gate = Gate(parallel=True)
    inner = Runner([gate.tool])
    outer = Runner(inner.as_tools(), concurrency=1)
    first = asyncio.ensure_future(outer.run("wait"))
    await gate.inside.wait()
    second = asyncio.ensure_future(outer.run("wait"))
    await until(lambda: outer.waiting == 1)
    inner.disable("wait", "stop")
    assert (await second).status == "denied"
    gate.open.set()
    assert (await first).success


async def test_the_first_cancel_lets_running_calls_finish() -> None:
    gate, watch = Gate(parallel=True), Watch()
    runner = Runner([gate.tool, look, send], concurrency=2, observers=[watch])
    names = ["wait", "wait", "wait", "send", "look"]
    batch = runner.batch([ToolCall(f"c{n}", name, "{}") for n, name in enumerate(names)])
    await until(lambda: gate.runs == 2 and runner.waiting == 1)
    batch.cancel()
    await until(lambda: runner.waiting == 0)
    assert gate.runs == 2 and batch.results[0].status == "unknown"
    gate.open.set()
    results = await batch
    assert [result.status for result in results] == ["ok", "ok", "cancelled", "cancelled", "cancelled"]
    assert [result.executed for result in results] == [True, True, False, False, False]
    assert [len(watch.ends(f"c{n}")) for n in range(5)] == [1] * 5


@pytest.mark.parametrize("now", [False, True])
@pytest.mark.parametrize("timeout", [None, 60.0])
async def test_the_second_cancel_stops_running_calls(now: bool, timeout: float | None) -> None:
    gate, watch = Gate(), Watch()
    runner = Runner([gate.tool, send], timeout=timeout, observers=[watch])
    batch = runner.batch([ToolCall("c0", "wait", "{}"), ToolCall("c1", "send", "{}")])
    await gate.inside.wait()
    if not now:
        batch.cancel()
        await asyncio.sleep(0)
        assert batch.results[0].status == "unknown"
    batch.cancel(now=now)
    results = await batch
    assert [(result.status, result.executed) for result in results] == [("cancelled", None), ("cancelled", False)]
    assert [len(watch.ends(f"c{n}")) for n in range(2)] == [1, 1]
