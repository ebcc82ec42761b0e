"""Who waits for a slot takes turns with the others; no tool and no principal stands before all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import probe
from ferrule import ToolCall, ToolContext, Waits, tool
from ferrule.scheduling.limiter import Limiter
from ferrule.testing import ManualClock
from places import Runner, out_of_patience, where  # noqa: F401  # the fixture is for all tests here
from watched import BOUND, go


class Steps:
    """Tools whose calls are let through one at a time, in the order in which they got their slot."""

    def __init__(self) -> None:
        self.order: list[str] = []

    def named(self, name: str) -> Any:
        async def step() -> None:
            self.order.append(name)
            await asyncio.sleep(0)

        return tool(step, name=name, parallel=True, description="A step.")


async def test_a_thousand_calls_of_one_tool_do_not_stand_before_the_first_of_another() -> None:

    steps = Steps()
    runner = Runner([steps.named("slow"), steps.named("quick")], concurrency=2)
    calls = [ToolCall(f"s{n}", "slow", "{}") for n in range(1000)]
    crowd = asyncio.ensure_future(runner.run_all(calls))
    while runner.waiting < 900:
        await asyncio.sleep(0)
    before = len(steps.order)
    assert (await runner.run("quick")).success
    assert steps.order.index("quick") - before <= 4
    await crowd


async def test_principals_take_turns_too() -> None:

    steps = Steps()
    runner = Runner([steps.named("act")], concurrency=1)
    many = asyncio.ensure_future(
        runner.run_all([ToolCall(f"a{n}", "act", "{}") for n in range(100)], ToolContext(principal="many"))
    )
    while runner.waiting < 90:
        await asyncio.sleep(0)
    before = len(steps.order)
    await runner.run("act", None, ToolContext(principal="one"))
    assert len(steps.order) - before <= 4
    await many


async def test_a_principal_takes_no_more_slots_than_its_share() -> None:
    running: dict[str | None, int] = {}
    most: dict[str | None, int] = {}

    @tool(parallel=True)
    async def act(context: ToolContext) -> None:
        who = context.principal
        running[who] = running.get(who, 0) + 1
        most[who] = max(most.get(who, 0), running[who])
        while most[who] < 3:
            await asyncio.sleep(0)
        running[who] -= 1

    runner = Runner([act], concurrency=8, per_principal=3)
    batches = [
        runner.run_all([ToolCall(f"{who}{n}", "act", "{}") for n in range(20)], ToolContext(principal=who))
        for who in ("a", "b", None)
    ]
    results = await asyncio.gather(*batches)
    assert all(result.success for batch in results for result in batch)
    assert {who: count <= 3 for who, count in most.items()} == {"a": True, "b": True, None: True}
    assert most["a"] == 3
    assert probe.slots_taken(runner) == 0 and runner.waiting == 0


async def test_a_nested_call_does_not_wait_for_its_own_principals_share() -> None:
    @tool(parallel=True)
    async def inner() -> str:
        return "inner"

    @tool(parallel=True)
    async def outer(context: ToolContext) -> str:
        return str((await context.run("inner")).output)

    runner = Runner([inner, outer], concurrency=4, per_principal=1, waits=Waits(slot=BOUND))
    assert (await runner.run("outer", None, ToolContext(principal="p"))).output == "inner"


async def test_many_principals_that_come_once_leave_little_behind() -> None:

    runner = Runner([tool(_nothing)], per_principal=1)
    for n in range(500):
        await runner.run("_nothing", None, ToolContext(principal=f"p{n}"))
    assert len(probe.principal_limits(runner)) <= 1


async def _nothing() -> None:
    """Nothing."""


async def test_a_call_that_waits_too_long_is_limited_and_was_counted() -> None:

    open_, inside = asyncio.Event(), asyncio.Event()

    @tool(parallel=True)
    async def hold() -> None:
        inside.set()
        await open_.wait()

    runner = Runner([hold], concurrency=1, clock=ManualClock())
    first = asyncio.ensure_future(runner.run("hold"))
    await inside.wait()
    late = await out_of_patience(runner, runner.run("hold"))
    assert late.status == "limited" and runner.waiting == 0
    open_.set()
    assert (await first).success


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


async def test_children_together_stay_within_the_limit_that_their_parent_is_under() -> None:
    most = [0, 0]

    @tool(parallel=True)
    async def child(n: int) -> int:
        most[0] += 1
        most[1] = max(most)
        await asyncio.sleep(0)
        most[0] -= 1
        return n

    @tool(parallel=True)
    async def fan(context: ToolContext) -> int:
        results = await asyncio.gather(*(context.run("child", {"n": n}) for n in range(50)))
        return sum(result.success for result in results)

    runner = Runner([child, fan], concurrency=4, waits=Waits(slot=BOUND))
    assert (await runner.run("fan")).output == 50
    assert most[1] == 4  # three slots of their own, and the one that the parent lends
    assert probe.slots_taken(runner) == 0 and runner.waiting == 0


async def test_children_of_children_do_not_deadlock_in_a_single_slot() -> None:
    @tool(parallel=True)
    async def nested(depth: int, context: ToolContext) -> int:
        if not depth:
            return 1
        results = await asyncio.gather(*(context.run("nested", {"depth": depth - 1}) for _ in range(2)))
        return sum(result.output for result in results)

    runner = Runner([nested.replace(concurrency=1)], concurrency=1, waits=Waits(slot=BOUND))
    assert (await runner.run("nested", {"depth": 4})).output == 16


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_child_that_gives_up_waiting_leaves_no_slot_taken(cancelled: bool) -> None:

    open_, inside = asyncio.Event(), asyncio.Event()

    @tool(parallel=True)
    async def hold() -> None:
        inside.set()
        await open_.wait()

    @tool(parallel=True)
    async def fan(context: ToolContext) -> str:
        first = asyncio.ensure_future(context.run("hold"))
        await inside.wait()
        if cancelled:
            second = asyncio.ensure_future(context.run("hold"))
            while not runner.waiting:
                await asyncio.sleep(0)
            second.cancel()
            await asyncio.wait({second})
        else:
            assert (await out_of_patience(runner, context.run("hold"))).status == "limited"
        open_.set()
        return (await first).status

    runner = Runner([hold, fan], concurrency=1, clock=ManualClock())
    assert (await runner.run("fan")).output == "ok"
    assert probe.slots_taken(runner) == 0 and not probe.live_calls(runner)
    assert not asyncio.all_tasks() - {asyncio.current_task()}


async def test_slots_that_several_wait_for_two_of_do_not_go_round_for_ever() -> None:

    gates = {n: asyncio.Event() for n in range(1, 6)}
    ran: list[int] = []

    @tool(parallel=True)
    async def wait(n: int) -> int:
        ran.append(n)
        await gates[n].wait()
        return n

    async def settle() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    runner = Runner([wait], concurrency=1, per_principal=1, waits=Waits(slot=BOUND))
    going = [asyncio.ensure_future(runner.run("wait", {"n": 1}, ToolContext(principal="p")))]
    await settle()
    for n in (2, 3, 4):
        going.append(asyncio.ensure_future(runner.run("wait", {"n": n})))
        await settle()
    gates[1].set()
    await settle()
    going.append(asyncio.ensure_future(runner.run("wait", {"n": 5})))
    await settle()
    for gate in gates.values():
        gate.set()
    assert [result.status for result in await asyncio.gather(*going)] == ["ok"] * 5
    assert sorted(ran) == [1, 2, 3, 4, 5] and runner.waiting == 0
