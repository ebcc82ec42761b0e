"""Limits: how many calls run at once, and in which order they get their turn."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ferrule
import probe
from cast import call_twice
from ferrule import Tool, ToolCall, ToolContext, ToolResult, Waits, tool
from ferrule.executors.threads import MAX_THREADS, THREAD_SLOTS
from ferrule.scheduling.limiter import Limiter
from ferrule.testing import ManualClock
from gates import Blocker, Gate
from places import Runner, out_of_patience, where  # noqa: F401  # the fixture is for all tests here
from waits import BOUND, until
from watched import go


class Counted:
    """A tool that knows how many of it run, and the most that ever did. None ends before so many ran `together`."""

    def __init__(self, together: int = 1, **options: Any) -> None:
        self.now = self.most = 0
        self.order: list[int] = []
        lock = threading.Lock()

        async def work(n: int = 0) -> int:
            with lock:
                self.now += 1
                self.most = max(self.most, self.now)
                self.order.append(n)
            for _ in range(3):
                await asyncio.sleep(0)
            while self.most < together:
                await asyncio.sleep(0)
            with lock:
                self.now -= 1
            return n

        self.tool = tool(work, **options)


@pytest.mark.parametrize("limit", [1, 3])
async def test_copies_direct_calls_and_runners_share_a_tools_limit(limit: int) -> None:
    counted = Counted(concurrency=limit, together=limit)
    one = counted.tool
    copies: list[Tool] = [one, one.replace(description="a copy"), one.bind(n=1).replace(name="bound")]
    runners = [*(Runner([copy]) for copy in copies), Runner(ferrule.Runner([one]).as_tools())]
    work: list[Any] = [runner.run(next(iter(runner.tools)).name) for runner in runners for _ in range(3)]
    await asyncio.gather(*work, *(one() for _ in range(3)))
    assert probe.slots_taken(*runners) == 0
    assert counted.most == limit and len(counted.order) == 15


def test_a_tools_limit_holds_across_loops_in_several_threads() -> None:
    counted = Counted(concurrency=2)
    results: list[ToolResult] = []

    async def main() -> None:
        runner = Runner([counted.tool])
        results.extend(await asyncio.gather(*(runner.run("work") for _ in range(100))))

    threads = [threading.Thread(target=go, args=(main(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND)
    assert [result.status for result in results] == ["ok"] * 300
    assert counted.most <= 2 and probe.slots_taken_by(counted.tool) == 0


async def test_a_call_that_waits_too_long_is_limited_and_was_counted() -> None:
    gate = Gate(parallel=True)
    runner = Runner([gate.tool], concurrency=1, clock=ManualClock())
    first = asyncio.ensure_future(runner.run("wait"))
    await gate.inside.wait()
    late = await out_of_patience(runner, runner.run("wait"))
    assert (late.status, late.executed, runner.waiting) == ("limited", False, 0)
    assert "Nothing was run" in str(late.error)
    gate.open.set()
    assert (await first).success and gate.runs == 1


async def test_a_principal_takes_no_more_slots_than_its_share() -> None:
    counted = {who: Counted(together=3, parallel=True) for who in ("a", "b", None)}
    tools = [one.tool.replace(name=f"for_{who}") for who, one in counted.items()]
    runner = Runner(tools, concurrency=9, per_principal=3)
    calls = [runner.run(f"for_{who}", {"n": n}, principal=who) for n in range(20) for who in counted]
    assert all(result.success for result in await asyncio.gather(*calls))
    assert [one.most for one in counted.values()] == [3, 3, 3]
    assert probe.slots_taken(runner) == 0 and runner.waiting == 0


@pytest.mark.large
@pytest.mark.parametrize("by", ["tool", "principal"])
async def test_a_thousand_calls_hold_up_nobody_else(by: str) -> None:
    order: list[str] = []

    @tool(parallel=True)
    async def step(whose: str) -> None:
        order.append(whose)
        await asyncio.sleep(0)

    runner = Runner([step, step.replace(name="other")], concurrency=2)
    calls = [ToolCall(f"c{n}", "step", {"whose": "crowd"}) for n in range(1000)]
    crowd = asyncio.ensure_future(runner.run_all(calls, ToolContext(principal="many")))
    while runner.waiting < 900:
        await asyncio.sleep(0)
    before = len(order)
    name, who = ("other", "many") if by == "tool" else ("step", "one")
    assert (await runner.run(name, {"whose": "one"}, ToolContext(principal=who))).success
    assert order.index("one") - before <= 4
    await crowd


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers()), max_size=30))
def test_groups_take_turns_and_each_keeps_its_order(entries: list[tuple[str, int]]) -> None:
    order = []

    async def main() -> None:
        limiter = Limiter(1)
        limiter.acquire_nowait()

        async def one(entry: tuple[str, int]) -> None:
            assert await limiter.acquire(None, entry[0])
            order.append(entry)
            limiter.release()

        waiting = [asyncio.create_task(one(entry)) for entry in entries]
        await asyncio.sleep(0)
        limiter.release()
        await asyncio.gather(*waiting)

    go(main())
    assert {g: [e for e in order if e[0] == g] for g in "abc"} == {g: [e for e in entries if e[0] == g] for g in "abc"}
    for place, (group, _) in enumerate(order):
        others = {e[0] for e in order[place:]} - {group}
        if others and place + 1 < len(order):
            assert order[place + 1][0] != group


@given(st.integers(1, 4), st.lists(st.sampled_from(["stay", "cancel", "late"]), min_size=1, max_size=25))
def test_slots_are_given_out_first_come_first_served(limit: int, fates: list[str]) -> None:
    async def main() -> None:
        limiter = Limiter(limit)
        served: list[int] = []

        async def one(n: int, fate: str) -> None:
            if await limiter.acquire(0 if fate == "late" else None):
                served.append(n)
                await asyncio.sleep(0)
                limiter.release()

        for _ in range(limit):
            limiter.acquire_nowait()
        tasks = [asyncio.create_task(one(n, fate)) for n, fate in enumerate(fates)]
        await asyncio.sleep(0)
        stay = sum(fate != "late" for fate in fates)
        await until(lambda: probe.waits_for_slot(limiter) <= stay)  # the late ones have given up
        for task, fate in zip(tasks, fates, strict=True):
            if fate == "cancel":
                task.cancel()
        for _ in range(limit):
            limiter.release()
        await asyncio.wait(tasks)
        assert served == sorted(served)
        assert set(served) == {n for n, fate in enumerate(fates) if fate == "stay"}
        assert limiter.used_slots == 0 and not probe.waits_for_slot(limiter)

    go(main())


async def test_a_tool_that_calls_itself_does_not_wait_for_itself() -> None:
    runner: Runner
    limits: dict[str, Any] = {"concurrency": 1, "resources": lambda arguments: ["k"]}

    @tool(**limits)
    async def through_its_context(n: int, context: ToolContext) -> int:
        return n and (await context.run("through_its_context", {"n": n - 1})).output + 1

    @tool(**limits)
    def in_a_thread(n: int) -> int:
        return n and runner.run_sync("in_a_thread", {"n": n - 1}).output + 1

    @tool(**limits)
    async def directly(n: int) -> int:
        return n and await directly(n=n - 1) + 1

    for timeout in (None, BOUND):
        options: dict[str, Any] = {"concurrency": 1, "per_principal": 1, "timeout": timeout, "waits": Waits(slot=BOUND)}
        for one in (through_its_context, in_a_thread, directly):
            runner = Runner([one], **options)
            assert (await runner.run(one.name, {"n": 3})).output == 3
            assert probe.is_at_rest(runner)


async def test_children_together_stay_within_their_parents_limit() -> None:
    counted = Counted(parallel=True)

    @tool(parallel=True)
    async def fan(context: ToolContext) -> int:
        results = await asyncio.gather(*(context.run("work", {"n": n}) for n in range(50)))
        return sum(result.success for result in results)

    runner = Runner([counted.tool, fan], concurrency=4, waits=Waits(slot=BOUND))
    assert (await runner.run("fan")).output == 50
    assert counted.most == 4  # three slots of their own, and the one that the parent lends
    assert probe.slots_taken(runner) == 0 and runner.waiting == 0


async def test_each_abandoned_attempt_keeps_its_slot_until_it_ends() -> None:
    clock, blocker = ManualClock(), Blocker(parallel=True, timeout=10)
    runner = Runner([blocker.tool], around=[call_twice], concurrency=4, waits=Waits(grace=0), clock=clock)
    call = asyncio.ensure_future(runner.run("block"))
    for _ in range(2):
        await until(blocker.inside.is_set)
        blocker.inside.clear()
        await clock.advance(10)
    assert (await call).status == "timeout"
    assert (runner.left_running, probe.slots_taken(runner)) == (2, 4)  # the runner's, and those for threads
    blocker.release.set()
    await until(lambda: not runner.left_running)
    assert probe.is_at_rest(runner)


@pytest.mark.parametrize("held", ["key", "slot"])
async def test_a_call_keeps_its_slot_and_key_until_abandoned_calls_beneath_it_end(held: str) -> None:
    clock, blocker, ended = ManualClock(), Blocker(parallel=True, timeout=10), []

    async def parent(context: ToolContext) -> str:
        return (await context.run("block")).status

    async def other() -> None:
        ended.append(blocker.release.is_set())

    async def of_another_runner() -> str:
        return (await runner.run("parent")).output

    keyed: dict[str, Any] = {"resources": lambda arguments: ["k"]} if held == "key" else {"parallel": True}
    tools = [blocker.tool, tool(parent, **keyed), tool(other, **keyed)]
    runner = Runner(tools, concurrency=2 if held == "key" else 1, waits=Waits(grace=0), clock=clock)
    call = asyncio.ensure_future(ferrule.Runner([tool(of_another_runner)]).run("of_another_runner"))
    await until(blocker.inside.is_set)
    await clock.advance(10)
    assert (await call).output == "timeout"
    assert runner.left_running == 1
    waits = asyncio.ensure_future(runner.run("other"))
    await until(lambda: runner.waiting == 1)
    blocker.release.set()
    assert (await waits).success and ended == [True]
    assert probe.is_at_rest(runner)


async def test_a_call_that_waits_for_its_runner_holds_no_thread() -> None:
    gate = Gate()

    @tool(read_only=True)
    def plain() -> str:
        return "ok"

    busy, free = Runner([gate.tool, plain], concurrency=1), Runner([plain], waits=Waits(slot=BOUND))
    waiting = [asyncio.create_task(busy.run(name)) for name in ("wait", *["plain"] * (MAX_THREADS + 1))]
    while busy.waiting <= MAX_THREADS:
        await asyncio.sleep(0)
    assert THREAD_SLOTS.used_slots == 0 and (await free.run("plain")).success
    gate.open.set()
    assert all(result.success for result in await asyncio.gather(*waiting))
