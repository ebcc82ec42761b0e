"""Batches: one result for each call, in call order; calls overlap if they may, and a batch can be cancelled."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journals import WatchedJournal, forever

import probe
from cast import ask_always
from ferrule import DefinitionError, Runner, Tool, ToolCall, ToolContext, ToolResult, ask, deny, tool
from watched import Watch, go


class Order:
    """A tool that logs when each call begins and ends, and lets others run in between."""

    def __init__(self, **options: Any) -> None:
        self.log: list[str] = []

        async def work(name: str, key: str = "", write: bool = False) -> str:
            self.log.append(f"+{name}")
            for _ in range(5):
                await asyncio.sleep(0)
            self.log.append(f"-{name}")
            return name

        self.tool = tool(work, **options)

    async def run(self, *names: str, **options: Any) -> list[ToolResult]:
        """Run a call of each `name` or `name:key`; an upper-case name is a writer."""
        calls = []
        for name, _, key in (one.partition(":") for one in names):
            calls.append(ToolCall(name, "work", {"name": name, "key": key, "write": name.isupper()}))
        return await Runner([self.tool], **options).run_all(calls)

    def overlap(self, one: str, other: str) -> bool:
        at = self.log.index
        return at(f"+{one}") < at(f"-{other}") and at(f"+{other}") < at(f"-{one}")


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"c{n}", name) for n, name in enumerate(names)]


def reads(arguments: Any) -> bool:
    return not arguments["write"]


def by_key(arguments: Any) -> list[str]:
    return arguments["key"].split("+")


@pytest.mark.parametrize("wrong", [ToolCall("1", "act"), ["act"], None])
async def test_a_batch_takes_a_list_of_calls(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match="a batch takes a list of calls"):
        Runner([]).batch(wrong)
    with pytest.raises(DefinitionError, match="a batch takes a list of calls"):
        await Runner([]).run_all(wrong)


async def test_a_call_that_is_not_parallel_runs_alone_and_in_its_place() -> None:
    order = Order(parallel=reads)
    await order.run("a", "b", "W", "c", "d", "X", "e")
    assert order.overlap("a", "b") and order.overlap("c", "d")
    at = order.log.index
    assert (at("-W"), at("-X")) == (at("+W") + 1, at("+X") + 1)
    assert max(at("-a"), at("-b")) < at("+W") < min(at("+c"), at("+d"))
    assert max(at("-c"), at("-d")) < at("+X") < at("+e")


async def test_resources_narrow_a_barrier_to_the_calls_that_share_a_key() -> None:
    order = Order(resources=by_key)
    await order.run("a:x", "b:y", "c:x", "d:y")
    assert order.overlap("a", "b") and order.overlap("c", "d")
    assert not order.overlap("a", "c") and not order.overlap("b", "d")
    assert order.log.index("-a") < order.log.index("+c")


@pytest.mark.parametrize("marks", [{}, {"parallel": True}, {"read_only": True, "parallel": False}])
async def test_calls_wait_for_their_keys_unless_they_only_read(marks: Any) -> None:
    order = Order(resources=by_key, **marks)
    await order.run("a:x", "b:y", "c:x")
    assert order.overlap("a", "b") and not order.overlap("a", "c")
    order.log.clear()
    calls = [ToolCall(name, "work", {"name": name, "key": "x"}) for name in "ab"]
    runner = Runner([order.tool])
    await asyncio.gather(*[runner.run(call) for call in calls])
    assert not order.overlap("a", "b")


async def test_calls_that_only_read_share_their_keys() -> None:
    order = Order(resources=by_key, read_only=reads)
    watch = Watch()
    await order.run("a", "b", "W", "c", "d", observers=[watch, lambda e: order.log.append(f"{e.kind} {e.call.id}")])
    assert order.overlap("a", "b") and order.overlap("c", "d")
    at = order.log.index
    assert max(at("-a"), at("-b")) < at("tool:pre W") and at("-W") < at("tool:pre c")
    order.log.clear()
    await order.run("a", "W:other")
    assert order.overlap("a", "W")


@pytest.mark.parametrize("error", [ValueError(), SystemExit(1)])
async def test_resources_that_raise_fail_their_call_alone(error: BaseException) -> None:
    def broken(arguments: Any) -> list[str]:
        if arguments["name"] == "a":
            raise error
        return ["x"]

    watch = Watch()
    results = await Order(resources=broken).run("a", "b", observers=[watch])
    assert [result.status for result in results] == ["failed", "ok"]
    assert results[0].executed is False and len(watch.ends("a")) == 1


async def test_a_writer_whose_key_a_guard_changes_still_waits_for_the_readers() -> None:
    def elsewhere(call: ToolCall, context: ToolContext) -> dict[str, Any] | None:
        return None if call.arguments["key"] else {**call.arguments, "key": call.arguments["name"]}

    order = Order(resources=by_key, read_only=reads)
    await order.run("a", "W", "b", guards=[elsewhere])
    assert order.log == ["+a", "-a", "+W", "-W", "+b", "-b"]


class Gates:
    """A tool whose calls each end when their gate is opened."""

    def __init__(self, *names: str) -> None:
        self.gates = {name: asyncio.Event() for name in names}
        self.calls = [ToolCall(f"call_{name}", "wait_for", {"name": name}) for name in names]
        self.begun: list[str] = []
        self.tool = tool(self.wait_for, read_only=True)

    async def wait_for(self, name: str) -> str:
        self.begun.append(name)
        await self.gates[name].wait()
        return name

    def batch(self, **options: Any) -> Any:
        return Runner([self.tool], **options).batch(self.calls)


def test_a_batch_without_a_loop_says_what_is_missing_and_runs_nothing() -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        Runner([Order().tool]).batch([ToolCall("1", "work")])


async def test_iterating_gives_the_results_in_the_order_in_which_the_calls_end() -> None:
    gates = Gates("a", "b", "c")
    batch = gates.batch()
    came = []
    gates.gates["b"].set()
    async for result in batch:
        came.append(result.output)
        gates.gates["c" if len(came) == 1 else "a"].set()
    assert [result.output for result in await batch] == ["a", "b", "c"]
    assert came == ["b", "c", "a"] and len([result async for result in batch]) == 3


async def test_cancelling_an_iteration_cancels_the_calls_and_waits_for_them() -> None:
    gates = Gates("a", "b")
    batch = gates.batch()
    came: list[ToolResult] = []

    async def iterate() -> None:
        async for result in batch:
            came.append(result)

    task = asyncio.ensure_future(iterate())
    gates.gates["a"].set()
    while not came:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [result.status for result in batch.results] == ["ok", "cancelled"]


@pytest.mark.parametrize("by", ["handler", "resources", "parallel"])
async def test_a_call_that_cancels_its_own_batch_as_it_begins_is_cancelled(by: str) -> None:
    batches: list[Any] = []

    def cancel(where: str, value: Any) -> Any:
        if where == by:
            batches[0].cancel(now=True)
        return value

    async def stop() -> None:
        cancel("handler", None)
        await asyncio.Event().wait()

    watch = Watch()
    options: dict[str, Any] = {"parallel": lambda arguments: cancel("parallel", True)}
    if by == "resources":
        options["resources"] = lambda arguments: cancel("resources", ["k"])
    batches.append(Runner([tool(stop, **options)], observers=[watch]).batch(calls("stop", "stop", "stop")))
    results = await batches[0]
    assert [result.status for result in results] == ["cancelled"] * 3
    assert [result.executed for result in results[1:]] == [False, False] or by == "handler"
    assert [len(watch.ends(f"c{n}")) for n in range(3)] == [1, 1, 1]


async def test_a_cancellation_while_the_journal_writes_makes_no_second_end() -> None:
    reached, watch = asyncio.Event(), Watch()

    async def slow() -> None:
        reached.set()
        await forever()

    runner = Runner([Order().tool], observers=[watch], journal=WatchedJournal(ends=slow))
    batch = runner.batch([ToolCall("1", "work", {"name": "a"})])
    await reached.wait()
    batch.cancel(now=True)
    assert [result.status for result in await batch] == ["ok"]
    assert watch.kinds() == ["tool:pre", "tool:post"]


async def test_an_unwritten_outcome_of_a_cancelled_call_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reached, goes_on = asyncio.Event(), asyncio.Event()

    async def breaks_late() -> None:
        reached.set()
        await goes_on.wait()
        raise OSError("disk full")

    async with Runner([Order().tool], journal=WatchedJournal(ends=breaks_late)) as runner:
        going = asyncio.ensure_future(runner.run("work", {"name": "a"}))
        await reached.wait()
        going.cancel()
        await asyncio.wait({going})
        goes_on.set()
    assert "outcome of a cancelled call could not be written" in caplog.text and "disk full" in caplog.text


@pytest.mark.parametrize("timeout", [None, 30.0])
@pytest.mark.parametrize("where", ["approve", "around", "inside", "journal"])
async def test_swallowing_a_cancellation_before_the_handler_does_not_let_it_run(where: str, timeout: Any) -> None:
    here, order = asyncio.Event(), Order()

    async def swallows(*given: Any) -> bool:
        here.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return True

    async def middleware(call: ToolCall, context: Any, next: Any) -> ToolResult:
        await swallows()
        return await next(call, context)

    options: dict[str, Any] = {
        "approve": {"guards": [ask_always], "approve": swallows},
        "around": {"around": [middleware]},
        "inside": {"inside": [middleware]},
        "journal": {"journal": WatchedJournal(begins=swallows)},
    }[where]
    batch = Runner([order.tool], timeout=timeout, **options).batch([ToolCall("1", "work", {"name": "a"})])
    await here.wait()
    batch.cancel()
    (result,) = await batch
    assert (result.status, result.executed, order.log) == ("cancelled", False, [])


KINDS = ["read", "write", "keyed", "fails", "exits", "denied", "asked", "missing", "malformed", "slow", "blocks"]


def zoo() -> list[Tool]:
    async def read() -> str:
        await asyncio.sleep(0)
        return "read"

    async def fails() -> None:
        raise ValueError

    async def exits() -> None:
        raise SystemExit

    async def slow() -> None:
        await asyncio.Event().wait()

    def blocks() -> str:
        return "blocks"

    return [
        tool(read, read_only=True),
        tool(read, name="write"),
        tool(read, name="keyed", resources=lambda arguments: ["k"], concurrency=1),
        tool(fails, parallel=True),
        tool(exits),
        tool(read, name="denied", guards=[lambda call, context: deny("no")]),
        tool(read, name="asked", guards=[lambda call, context: ask("?")], read_only=True),
        tool(slow, timeout=0.005, parallel=True),
        tool(blocks),
    ]


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=10), st.integers(0, 8), st.booleans())
def test_a_batch_cancelled_at_any_moment_is_complete_and_leaves_nothing(
    names: list[str], turns: int, from_outside: bool
) -> None:
    watch = Watch()
    runner = Runner(zoo(), observers=[watch], concurrency=2)
    sent = [ToolCall(f"c{n}", "read" if name == "malformed" else name, None) for n, name in enumerate(names)]

    async def main() -> None:
        batch = runner.batch(sent)
        going = asyncio.ensure_future(batch)
        for _ in range(turns):
            await asyncio.sleep(0)
        going.cancel() if from_outside else batch.cancel(now=True)
        try:
            await going
        except asyncio.CancelledError:
            assert from_outside
        if turns or not from_outside:
            assert "unknown" not in [result.status for result in batch.results]
            assert [len(watch.ends(call.id)) for call in sent] == [1] * len(sent)
        while runner.left_running:  # a thread that was under way ends by itself
            await asyncio.sleep(0)

    go(main())
    while runner.left_running:  # one that was cancelled with the loop, before its batch was waited for
        time.sleep(0)
    assert probe.slots_taken(runner) == 0
    assert not probe.keys_held(runner)
