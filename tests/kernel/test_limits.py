"""Limits: how many run at once, in which order they get their turn, and that every slot comes back."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ferrule
import probe
from ferrule import Tool, ToolCall, ToolContext, ToolResult, Waits, tool
from ferrule.executors.threads import MAX_THREADS, THREAD_SLOTS
from ferrule.scheduling.limiter import Limiter
from ferrule.scheduling.locks import KeyLocks
from ferrule.testing import ManualClock
from places import Runner, out_of_patience, where  # noqa: F401  # the fixture is for all tests here
from steps import lines
from watched import BOUND, Watch, go


class Counted:
    """A tool that knows how many of it run, and the most that ever did. None ends before so many ran `together`."""

    def __init__(self, together: int = 1, **options: Any) -> None:
        self.now = 0
        self.most = 0
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


# -- how many --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 3])
async def test_a_tools_limit_is_shared_by_copies_direct_calls_and_runners(limit: int) -> None:
    counted = Counted(concurrency=limit, together=limit)
    one = counted.tool
    copies: list[Tool] = [one, one.replace(description="a copy"), one.bind(n=1).replace(name="bound")]

    async def main() -> None:
        runners = [Runner([copy]) for copy in copies]
        mounted = Runner(ferrule.Runner([one]).as_tools())
        work: list[Any] = [
            runner.run(copy.name) for runner, copy in zip(runners, copies, strict=True) for _ in range(3)
        ]
        work += [one() for _ in range(3)] + [mounted.run("work") for _ in range(3)]
        await asyncio.gather(*work)
        assert probe.slots_taken(*runners, mounted) == 0

    await main()
    assert counted.most == limit and len(counted.order) == 15


async def test_a_copy_with_another_limit_has_its_own() -> None:
    counted = Counted(concurrency=1, together=2)
    other = counted.tool.replace(concurrency=2)

    async def main() -> None:
        await asyncio.gather(*(Runner([other]).run("work") for _ in range(4)))

    await main()
    assert counted.most == 2


async def test_a_runners_limit_holds_for_all_its_tools() -> None:
    counted = Counted(together=2)

    async def main() -> None:
        runner = Runner([counted.tool, counted.tool.replace(name="again")], concurrency=2)
        await asyncio.gather(*(runner.run(name) for name in ("work", "again") * 4))

    await main()
    assert counted.most == 2


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
        assert not thread.is_alive()
    assert [result.status for result in results] == ["ok"] * 300
    assert counted.most <= 2 and probe.slots_taken_by(counted.tool) == 0


async def test_a_call_that_waits_too_long_for_its_slot_is_limited() -> None:
    started = asyncio.Event()

    @tool
    async def forever() -> None:
        started.set()
        await asyncio.Event().wait()

    watch = Watch()
    runner = Runner([forever], concurrency=1, clock=ManualClock(), observers=[watch])
    first = asyncio.create_task(runner.run(ToolCall("a", "forever")))
    await started.wait()
    result = await out_of_patience(runner, runner.run(ToolCall("b", "forever")))
    assert (result.status, result.executed) == ("limited", False)
    assert "Nothing was run" in str(result.error) and watch.ends("b") == ["tool:error"]
    first.cancel()
    await asyncio.wait([first])
    assert probe.slots_taken(runner) == 0


# -- in which order --------------------------------------------------------------------------------------------------


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
        while probe.waits_for_slot(limiter) > sum(
            fate != "late" for fate in fates
        ):  # until the late ones have given up
            await asyncio.sleep(0)
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


async def test_a_newcomer_does_not_overtake_those_that_wait() -> None:
    counted = Counted(concurrency=1)

    async def main() -> None:
        runner = Runner([counted.tool])
        tasks = []
        for n in range(10):
            tasks.append(asyncio.create_task(runner.run("work", {"n": n})))
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)

    await main()
    assert counted.order == list(range(10))


@pytest.mark.slow
async def test_thousands_that_give_up_at_once_do_not_keep_the_slot_from_the_next() -> None:
    counted = Counted(concurrency=1)

    runner = Runner([counted.tool], concurrency=None)
    tasks = [asyncio.create_task(runner.run("work", {"n": n})) for n in range(3000)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for task in tasks[:-1]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results[:-1]} == {asyncio.CancelledError}
    last: Any = results[-1]
    assert last.success and probe.slots_taken(runner) == 0


@pytest.mark.slow
def test_thousands_that_wait_cost_no_more_each_than_a_hundred() -> None:
    def cost(count: int) -> float:
        limiter = Limiter(4)

        async def one() -> None:
            await limiter.acquire(None)
            await asyncio.sleep(0)
            limiter.release()

        async def main() -> None:
            await asyncio.gather(*(one() for _ in range(count)))

        return lines(lambda: asyncio.run(main())) / count

    assert cost(4_000) < 1.2 * cost(400)


# -- nested calls ----------------------------------------------------------------------------------------------------


def recursive(**options: Any) -> Tool:
    @tool(**options)
    async def down(n: int, context: ToolContext) -> int:
        if n == 0:
            return 0
        result = await context.run("down", {"n": n - 1})
        assert result.success, result.error
        return result.output + 1  # type: ignore[no-any-return]

    return down


@pytest.mark.parametrize("timeout", [None, BOUND])
async def test_a_tool_that_calls_itself_does_not_wait_for_itself(timeout: float | None) -> None:
    down = recursive(concurrency=1, resources=lambda arguments: ["k"])
    runner = Runner([down], concurrency=1, waits=Waits(slot=BOUND), timeout=timeout)
    result = await runner.run("down", {"n": 5})
    assert result.output == 5, result.error
    assert probe.slots_taken(runner) == 0 and not probe.keys_held(runner)


def test_nested_calls_from_a_thread_and_direct_ones_do_not_wait_either() -> None:
    runner: Runner

    @tool(concurrency=1)
    def blocking(n: int) -> int:
        return n if n == 0 else runner.run_sync("blocking", {"n": n - 1}).output + 1  # type: ignore[no-any-return]

    @tool(concurrency=1)
    async def direct(n: int) -> int:
        return n if n == 0 else await direct(n=n - 1) + 1  # type: ignore[no-any-return]

    runner = Runner([blocking, direct], concurrency=1, waits=Waits(slot=BOUND))
    assert go(runner.run("blocking", {"n": 3})).output == 3
    assert go(runner.run("direct", {"n": 3})).output == 3


async def test_a_nested_call_goes_before_those_that_wait_for_its_parent() -> None:
    """They wait for the parent and the parent for its child: the child must not wait for them."""
    started, queued = asyncio.Event(), asyncio.Event()

    @tool(resources=lambda arguments: ["k"])
    async def work(nested: bool, context: ToolContext) -> str:
        if not nested:
            return "leaf"
        started.set()
        await queued.wait()
        return str((await context.run("work", {"nested": False})).status)

    runner = Runner([work], waits=Waits(slot=BOUND))
    parent = asyncio.create_task(runner.run("work", {"nested": True}))
    await started.wait()
    other = asyncio.create_task(runner.run("work", {"nested": False}))
    while probe.joined(runner) < 2:
        await asyncio.sleep(0)
    queued.set()
    assert (await parent).output == "ok"
    assert (await other).output == "leaf"
    assert not probe.keys_held(runner)


async def test_a_call_that_is_no_child_any_more_waits_like_everybody() -> None:
    later: list[asyncio.Task[ToolResult]] = []
    counted = Counted(concurrency=1)

    @tool
    async def leaves(context: ToolContext) -> None:
        async def afterwards() -> ToolResult:
            await asyncio.sleep(0.01)
            return await runner.run("work")

        later.append(asyncio.create_task(afterwards()))

    runner = Runner([leaves, counted.tool])

    assert (await runner.run("leaves")).success
    result = await later[0]
    assert result.success and result.call is not None


# -- keys ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sets(st.sampled_from("abc"), min_size=1), st.booleans(), st.integers(0, 3)), max_size=12))
def test_two_that_share_a_key_never_run_together_unless_both_share_it(wanted: list[Any]) -> None:
    async def main() -> None:
        locks = KeyLocks()
        inside: list[tuple[set[str], bool]] = []
        done: list[int] = []

        async def one(n: int, keys: set[str], shared: bool, turns: int) -> None:
            hold = locks.request(keys, shared=shared)
            assert await hold.wait(None)
            assert not any(keys & others and not (shared and beside) for others, beside in inside)
            inside.append((keys, shared))
            for _ in range(turns):
                await asyncio.sleep(0)
            inside.remove((keys, shared))
            hold.release()
            done.append(n)

        await asyncio.gather(*(one(n, *want) for n, want in enumerate(wanted)))
        assert sorted(done) == list(range(len(wanted)))
        assert not probe.keys_held(locks)

    go(main())


async def test_calls_get_a_key_in_the_order_in_which_they_came() -> None:
    counted = Counted(resources=lambda arguments: ["k"])

    async def main() -> None:
        runner = Runner([counted.tool])
        await asyncio.gather(*(runner.run("work", {"n": n}) for n in range(10)))

    await main()
    assert counted.order == list(range(10)) and counted.most == 1


@pytest.mark.parametrize("concurrency", [1, None])
async def test_a_call_that_waits_too_long_for_its_key_is_limited_and_lets_others_pass(concurrency: int | None) -> None:
    release, started = asyncio.Event(), asyncio.Event()

    @tool(resources=lambda arguments: [arguments["key"]])
    async def work(key: str, wait: bool = False) -> str:
        started.set()
        if wait:
            await release.wait()
        return key

    runner = Runner([work], clock=ManualClock(), concurrency=concurrency and 2)
    first = asyncio.create_task(runner.run("work", {"key": "a", "wait": True}))
    await started.wait()
    assert (await out_of_patience(runner, runner.run("work", {"key": "a"}))).status == "limited"
    assert (await runner.run("work", {"key": "b"})).output == "b"
    release.set()
    assert (await first).success
    assert (await runner.run("work", {"key": "a"})).success


# -- nothing leaks ---------------------------------------------------------------------------------------------------

ENDS = ["ok", "raises", "exits", "deadline", "cancelled", "blocks", "denied", "badly"]


@given(st.lists(st.sampled_from(ENDS), min_size=1, max_size=15))
def test_every_slot_and_key_comes_back(ends: list[str]) -> None:
    async def work(how: str) -> None:
        if how == "raises":
            raise ValueError
        if how == "exits":
            raise SystemExit
        if how in ("deadline", "cancelled"):
            await asyncio.Event().wait()

    def blocks(how: str) -> None: ...

    def guard(call: ToolCall, context: ToolContext) -> bool | None:
        return False if call.arguments["how"] == "denied" else None

    keyed: dict[str, Any] = {"concurrency": 2, "resources": lambda arguments: [arguments["how"]]}
    runner = Runner([tool(work, **keyed), tool(blocks, **keyed)], concurrency=3, guards=[guard])

    async def one(how: str) -> None:
        name = "blocks" if how == "blocks" else "work"
        call = runner.run(name, {"how": 5 if how == "badly" else how}, timeout=0.005 if how == "deadline" else None)
        task = asyncio.create_task(call)
        if how == "cancelled":
            await asyncio.sleep(0.001)
            task.cancel()
        await asyncio.wait([task])

    async def main() -> None:
        await asyncio.gather(*map(one, ends))
        assert (
            probe.slots_taken(runner) == 0
            and not probe.keys_held(runner)
            and not runner.left_running
            and not probe.live_calls(runner)
        )

    go(main())


async def test_each_attempt_that_is_given_up_keeps_its_slot_until_it_ends_and_then_all_come_back() -> None:
    release = threading.Event()

    @tool(parallel=True, timeout=0.02)
    def stuck() -> None:
        release.wait(BOUND)

    async def twice(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        await next(call, context)
        return await next(call, context)  # type: ignore[no-any-return]

    runner = Runner([stuck], around=[twice], concurrency=4, waits=Waits(grace=0))
    assert (await runner.run("stuck")).status == "timeout"
    assert (runner.left_running, probe.slots_taken(runner)) == (2, 4)  # the runner's, and those for threads
    release.set()
    while runner.left_running:
        await asyncio.sleep(0)
    assert probe.is_at_rest(runner)


@pytest.mark.parametrize("what", ["key", "slot"])
async def test_a_call_keeps_what_it_has_until_what_was_given_up_beneath_it_ends(what: str) -> None:
    release = threading.Event()
    inside: list[str] = []

    @tool(parallel=True, timeout=0.02)
    def stuck() -> None:
        inside.append("stuck")
        release.wait(BOUND)
        inside.remove("stuck")

    async def parent(context: ToolContext) -> str:
        return (await context.run("stuck")).status

    async def other() -> list[str]:
        return list(inside)

    keyed: dict[str, Any] = {"resources": lambda arguments: ["k"]} if what == "key" else {"parallel": True}
    runner = Runner(
        [stuck, tool(parent, **keyed), tool(other, **keyed)],
        concurrency=2 if what == "key" else 1,
        waits=Waits(grace=0),
    )
    assert (await runner.run("parent")).output == "timeout"
    assert runner.left_running == 1
    waits = asyncio.ensure_future(runner.run("other"))
    await asyncio.sleep(0.02)
    assert runner.waiting == 1
    release.set()
    assert (await waits).output == []
    assert probe.is_at_rest(runner)


async def test_who_waits_for_a_runner_holds_no_thread_that_others_want() -> None:
    async def main() -> list[str]:
        gate = asyncio.Event()

        @tool
        async def hold() -> None:
            await gate.wait()

        @tool(read_only=True)
        def plain() -> str:
            return "ok"

        busy, free = Runner([hold, plain], concurrency=1), Runner([plain], waits=Waits(slot=BOUND))
        waiting = [asyncio.create_task(busy.run(name)) for name in ("hold", *["plain"] * (MAX_THREADS + 1))]
        while busy.waiting <= MAX_THREADS:
            await asyncio.sleep(0)
        taken, other = THREAD_SLOTS.used_slots, await free.run("plain")
        gate.set()
        results = [other, *await asyncio.gather(*waiting)]
        return [str(taken), *{result.status for result in results}]

    assert (await main()) == ["0", "ok"]
