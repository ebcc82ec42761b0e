"""`disable` and `enable`; leaving the runner within a bound; a batch that is cancelled in two stages."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import probe
from ferrule import DefinitionError, Runner, ToolCall, ToolContext, Waits, ask, tool
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


class Gate:
    """A tool that waits to be let through."""

    def __init__(self) -> None:
        self.inside = asyncio.Event()
        self.open = asyncio.Event()
        self.runs = 0

    async def wait(self) -> str:
        """Wait."""
        self.runs += 1
        self.inside.set()
        await self.open.wait()
        return "through"


# -- disable and enable ------------------------------------------------------------------------------------------------


async def test_a_tool_that_is_turned_off_is_denied_with_the_reason_until_it_is_turned_on() -> None:

    watch = Watch()
    runner = Runner([look, send])
    watched = Runner([look, send], observers=[watch])
    for one in (runner, watched):
        assert (await one.run(ToolCall("c0", "send", "{}"))).success
        one.disable("se*", "mail is down")
        result = await one.run(ToolCall("c1", "send", "{}"))
        assert (result.status, result.executed) == ("denied", False)
        assert result.error == "Denied: mail is down. Nothing was run."
        assert (await one.run(ToolCall("c2", "look", "{}"))).success
        assert (await one.decide(ToolCall("c3", "send", "{}"))).reason == "mail is down"
        one.enable("*")
        assert (await one.run(ToolCall("c4", "send", "{}"))).success
    assert watch.kinds("c1") == ["tool:pre", "tool:error"]


async def test_nobody_is_asked_about_a_tool_that_is_turned_off() -> None:
    asked: list[str] = []

    def approve(call: ToolCall, decision: Any, context: ToolContext) -> bool:
        asked.append(call.name)
        return True

    runner = Runner([send], guards=[lambda call, context: ask("?")], approve=approve)
    runner.disable("send", "not now")
    assert (await runner.run("send")).status == "denied" and not asked


async def test_turning_off_denies_at_once_what_waits_for_a_slot_and_lets_finish_what_runs() -> None:

    gate, watch = Gate(), Watch()
    runner = Runner([tool(gate.wait, name="wait", parallel=True)], concurrency=1, observers=[watch])
    batch = asyncio.ensure_future(runner.run_all([ToolCall(f"c{n}", "wait", "{}") for n in range(3)]))
    await until(lambda: runner.waiting == 2 and gate.runs == 1)
    runner.disable("wait", "stop")
    await until(lambda: runner.waiting == 0)
    assert gate.runs == 1 and not batch.done()
    gate.open.set()
    results = await batch
    assert [result.status for result in results] == ["ok", "denied", "denied"]
    assert [result.executed for result in results] == [True, False, False]
    assert [len(watch.ends(f"c{n}")) for n in range(3)] == [1, 1, 1]
    assert probe.slots_taken(runner) == 0


async def test_what_had_its_slot_in_the_moment_of_turning_off_does_not_begin() -> None:

    gate = Gate()

    def turn_off(event: Any) -> None:
        if event.kind == "tool:post":  # its slot was handed on already
            runner.disable("wait", "stop")

    runner = Runner([tool(gate.wait, name="wait", parallel=True)], concurrency=1, observers=[turn_off])
    both = asyncio.ensure_future(runner.run_all([ToolCall(f"c{n}", "wait", "{}") for n in range(2)]))
    await until(lambda: runner.waiting == 1 and gate.runs == 1)
    gate.open.set()
    assert [result.status for result in await both] == ["ok", "denied"]
    assert gate.runs == 1


@pytest.mark.parametrize("swallows", [False, True])
async def test_turning_off_denies_at_once_what_waits_for_a_person(swallows: bool) -> None:

    asked = asyncio.Event()

    async def approve(call: ToolCall, decision: Any, context: ToolContext) -> bool:
        asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not swallows:
                raise
        return True

    ran: list[int] = []

    @tool
    async def act() -> None:
        ran.append(1)

    watch = Watch()
    runner = Runner([act], guards=[lambda call, context: ask("?")], approve=approve, observers=[watch])
    going = asyncio.ensure_future(runner.run(ToolCall("c1", "act", "{}")))
    await asked.wait()
    runner.disable("act", "stop")
    result = await going
    assert (result.status, result.executed, ran) == ("denied", False, [])
    assert watch.ends() == ["tool:error"]


async def test_around_sees_the_denial_of_a_call_that_was_turned_off_while_it_waited() -> None:

    gate, seen = Gate(), []

    async def sees(call: ToolCall, context: ToolContext, next: Any) -> Any:
        result = await next(call, context)
        seen.append(result.status)
        await asyncio.sleep(0)  # the task is no longer cancelled
        return result

    runner = Runner([tool(gate.wait, name="wait", parallel=True)], concurrency=1, around=[sees])
    batch = asyncio.ensure_future(runner.run_all([ToolCall(f"c{n}", "wait", "{}") for n in range(2)]))
    await until(lambda: runner.waiting == 1 and gate.runs == 1)
    runner.disable("wait", "stop")
    await until(lambda: seen)
    gate.open.set()
    await batch
    assert seen == ["denied", "ok"]


async def test_a_cancellation_from_outside_together_with_turning_off_still_cancels() -> None:

    gate = Gate()
    runner = Runner([tool(gate.wait, name="wait", parallel=True)], concurrency=1)
    first = asyncio.ensure_future(runner.run("wait"))
    await gate.inside.wait()
    second = asyncio.ensure_future(runner.run("wait"))
    await until(lambda: runner.waiting == 1)
    runner.disable("wait", "stop")
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    gate.open.set()
    assert (await first).success


async def test_a_tool_may_be_turned_off_from_another_thread() -> None:

    gate = Gate()
    runner = Runner([tool(gate.wait, name="wait", parallel=True)], concurrency=1)
    first = asyncio.ensure_future(runner.run("wait"))
    await gate.inside.wait()
    second = asyncio.ensure_future(runner.run("wait"))
    await until(lambda: runner.waiting == 1)
    thread = threading.Thread(target=runner.disable, args=("wait", "stop"))
    thread.start()
    assert (await second).status == "denied"
    thread.join()
    gate.open.set()
    assert (await first).success


@pytest.mark.parametrize(("glob", "reason"), [("sned", "why"), ("send", ""), ("send", " ")])
def test_turning_off_what_is_not_there_or_without_a_reason_is_a_mistake(glob: str, reason: str) -> None:
    with pytest.raises(DefinitionError, match="send"):
        Runner([send]).disable(glob, reason)
    with pytest.raises(DefinitionError, match="there are send"):
        Runner([send]).enable("x*")


# -- leaving -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [None, 60.0])
async def test_leaving_waits_no_longer_than_its_bound_and_gives_every_call_its_result(timeout: float | None) -> None:

    gate, watch = Gate(), Watch()
    runner = Runner([tool(gate.wait, name="wait")], waits=Waits(drain=0.01), observers=[watch], timeout=timeout)
    async with runner:
        going = asyncio.ensure_future(runner.run(ToolCall("c1", "wait", "{}")))
        await gate.inside.wait()
    result = await going
    assert (result.status, result.executed) == ("cancelled", None)
    assert "its effect may have happened" in str(result.error)
    assert watch.ends() == ["tool:error"] and not probe.live_calls(runner)


async def test_leaving_does_not_wait_for_a_handler_that_ignores_its_cancellation() -> None:

    inside, leave = asyncio.Event(), asyncio.Event()

    @tool
    async def stubborn() -> str:
        inside.set()
        while not leave.is_set():
            try:
                await leave.wait()
            except asyncio.CancelledError:
                pass
        return "at last"

    runner = Runner([stubborn], waits=Waits(drain=0.01, grace=0.01))
    async with runner:
        going = asyncio.ensure_future(runner.run("stubborn"))
        await inside.wait()
    assert not going.done()
    leave.set()
    assert (await going).output == "at last"


async def test_leaving_waits_for_what_ends_in_time() -> None:

    gate = Gate()
    runner = Runner([tool(gate.wait, name="wait")])
    async with runner:
        going = asyncio.ensure_future(runner.run("wait"))
        await gate.inside.wait()
        asyncio.get_running_loop().call_soon(gate.open.set)
    assert going.done() or (await going).success
    assert (await going).output == "through"


# -- a batch in two stages ---------------------------------------------------------------------------------------------


def gated(gate: Gate, **options: Any) -> Runner:
    return Runner([tool(gate.wait, name="wait", parallel=True), look, send], **options)


async def test_the_first_cancel_lets_finish_what_runs_and_starts_nothing_new() -> None:

    gate, watch = Gate(), Watch()
    runner = gated(gate, concurrency=2, observers=[watch])
    names = ["wait", "wait", "wait", "send", "look"]
    batch = runner.batch([ToolCall(f"c{n}", name, "{}") for n, name in enumerate(names)])
    going = asyncio.ensure_future(runs(batch))
    await until(lambda: gate.runs == 2 and runner.waiting == 1)
    batch.cancel()
    await until(lambda: runner.waiting == 0)
    assert not going.done() and gate.runs == 2
    gate.open.set()
    results = await going
    assert [result.status for result in results] == ["ok", "ok", "cancelled", "cancelled", "cancelled"]
    assert [result.executed for result in results] == [True, True, False, False, False]
    assert [len(watch.ends(f"c{n}")) for n in range(5)] == [1] * 5


@pytest.mark.parametrize("now", [False, True])
@pytest.mark.parametrize("timeout", [None, 60.0])
async def test_the_second_cancel_stops_what_runs(now: bool, timeout: float | None) -> None:

    gate, watch = Gate(), Watch()
    runner = gated(gate, timeout=timeout, observers=[watch])
    batch = runner.batch([ToolCall("c0", "wait", "{}"), ToolCall("c1", "send", "{}")])
    going = asyncio.ensure_future(runs(batch))
    await gate.inside.wait()
    if not now:
        batch.cancel()
        await asyncio.sleep(0)
        assert not going.done()
    batch.cancel(now=now)
    results = await going
    assert [(result.status, result.executed) for result in results] == [("cancelled", None), ("cancelled", False)]
    assert [len(watch.ends(f"c{n}")) for n in range(2)] == [1, 1]


async def test_a_call_that_waits_for_a_person_is_not_started_by_a_batch_that_is_cancelled() -> None:

    asked = asyncio.Event()

    async def approve(call: ToolCall, decision: Any, context: ToolContext) -> bool:
        asked.set()
        await asyncio.Event().wait()
        return True

    runner = Runner([send], guards=[lambda call, context: ask("?")], approve=approve)
    batch = runner.batch([ToolCall("c0", "send", "{}")])
    going = asyncio.ensure_future(runs(batch))
    await asked.wait()
    batch.cancel()
    assert [(result.status, result.executed) for result in await going] == [("cancelled", False)]


async def runs(batch: Any) -> Any:
    return await batch


# -- where `run` was called before, and where tools are mounted --------------------------------------------------------


async def test_a_call_that_was_made_and_has_not_begun_is_denied_too() -> None:

    ran: list[int] = []

    @tool
    async def pay(n: int) -> None:
        ran.append(n)

    runner = Runner([pay])
    await runner.run(ToolCall("c0", "pay", '{"n": 0}'))
    made = runner.run(ToolCall("c1", "pay", '{"n": 1}'))
    task = asyncio.ensure_future(runner.run(ToolCall("c2", "pay", '{"n": 2}')))
    runner.disable("pay", "incident")
    assert [(await made).status, (await task).status, ran] == ["denied", "denied", [0]]


async def test_a_tool_that_is_turned_off_is_off_where_it_is_mounted_under_another_name_too() -> None:

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


async def test_turning_off_reaches_what_waits_in_the_runner_that_a_tool_is_mounted_in() -> None:

    gate = Gate()
    inner = Runner([tool(gate.wait, name="wait", parallel=True)])
    outer = Runner(inner.as_tools(), concurrency=1)
    first = asyncio.ensure_future(outer.run("wait"))
    await gate.inside.wait()
    second = asyncio.ensure_future(outer.run("wait"))
    await until(lambda: outer.waiting == 1)
    inner.disable("wait", "stop")
    assert (await second).status == "denied"
    gate.open.set()
    assert (await first).success
