"""`rate` admits no more calls than its limit in any window."""

from __future__ import annotations

import asyncio
import gc
import math
import sys
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from two_threads import let_through

from ferrule import DefinitionError, Runner, ToolCall, ToolContext, middleware, tool
from ferrule.journal import memory
from ferrule.stores.limits import SharedLimits
from ferrule.testing import ManualClock
from ferrule.values.result import ToolResult
from places import now, where  # noqa: F401  # the fixture is for all tests here
from watched import go, plain


def rate(*arguments: Any, **options: Any) -> Any:
    return middleware.rate(*arguments, **{"limits": now(), **options})


@tool(read_only=True)
async def look(n: int = 0) -> int:
    return n


@tool(read_only=True)
async def other(n: int = 0) -> int:
    return n


def calls(count: int, name: str = "look") -> list[ToolCall]:
    return [ToolCall(f"c{n}", name, {"n": n}) for n in range(count)]


@pytest.mark.large
@given(st.integers(1, 4), st.integers(1, 8), st.lists(st.integers(0, 5), max_size=40))
def test_any_window_admits_exactly_the_limit(most: int, seconds: int, pauses: list[int]) -> None:
    async def main() -> None:
        clock = ManualClock()
        runner = Runner([look], inside=[rate(most, seconds, clock=clock)])
        through: list[float] = []
        for pause in pauses:
            await clock.advance(pause)
            inside = [time for time in through if time > clock.time() - seconds]
            result = await runner.run("look")
            assert result.success == (len(inside) < most)
            if result.success:
                through.append(clock.time())
            else:  # as soon as there is room again
                assert result.metadata["retry_after"] == inside[0] + seconds - clock.time()

    go(main())


async def started(clock: ManualClock, call: Coroutine[Any, Any, ToolResult]) -> asyncio.Task[ToolResult]:
    """The task of a call that has ended or waits for its turn."""
    sleeping, task = clock.sleeping, asyncio.ensure_future(call)
    while not task.done() and clock.sleeping == sleeping:
        await asyncio.sleep(0)
    return task


@pytest.mark.large
@settings(max_examples=25)
@given(st.integers(1, 3), st.integers(1, 5), st.lists(st.integers(0, 4), min_size=1, max_size=10))
def test_waiting_calls_run_in_order_as_soon_as_the_rate_allows(most: int, seconds: int, pauses: list[int]) -> None:
    clock, began = ManualClock(), []

    @tool(read_only=True)
    async def act(n: int) -> None:
        began.append((n, clock.time()))

    async def main() -> tuple[list[float], list[ToolResult]]:
        runner = Runner([act], inside=[rate(most, seconds, wait=math.inf)], clock=clock, timeout=0.5, concurrency=None)
        came: list[float] = []
        running: list[asyncio.Task[ToolResult]] = []
        for n, pause in enumerate(pauses):
            await clock.advance(pause)
            came.append(clock.time())
            running.append(await started(clock, runner.run("act", {"n": n})))
        await clock.advance(seconds * len(pauses))
        return came, await asyncio.gather(*running)

    came, results = go(main())
    turns: list[float] = []
    for at in came:
        turns.append(at if len(turns) < most else max(at, turns[-most] + seconds))
    assert all(result.success for result in results)  # a wait is no part of the deadline
    assert [n for n, _ in began] == list(range(len(pauses)))
    assert [at for _, at in began] == pytest.approx(turns)


async def test_a_call_that_would_wait_too_long_is_limited() -> None:
    clock = ManualClock()

    runner = Runner([look], inside=[rate(1, 20, wait=30, clock=clock)], clock=clock)
    tasks = [await started(clock, runner.run("look", {"n": n})) for n in range(3)]
    await clock.advance(20)
    tasks.append(await started(clock, runner.run("look")))  # 20 s after the second, not after the third
    await clock.advance(20)
    assert [(await task).status for task in tasks] == ["ok", "ok", "limited", "ok"]


def by_key(call: ToolCall, context: ToolContext[Any]) -> str:
    return str(context.metadata["key"])


@pytest.mark.parametrize(
    ("by", "same", "another"),
    [
        ("tool", ("look", ToolContext(principal="a")), ("other", ToolContext())),
        ("principal", ("other", ToolContext()), ("look", ToolContext(principal="a"))),
        (("tool", "session"), ("look", ToolContext(principal="a")), ("look", ToolContext(session="s"))),
        (by_key, ("other", ToolContext(metadata={"key": "x"})), ("look", ToolContext(metadata={"key": "y"}))),
    ],
)
async def test_each_key_has_its_own_count(by: Any, same: Any, another: Any) -> None:
    first = ToolContext(metadata={"key": "x"})

    runner = Runner([look, other], inside=[rate(1, by=by, clock=ManualClock())])
    await runner.run("look", None, first)
    assert [(await runner.run(name, None, context)).status for name, context in (same, another)] == ["limited", "ok"]


async def test_another_principal_has_its_own_count_by_default() -> None:
    runner = Runner([look, other], inside=[rate(1, clock=ManualClock())])
    callers = [("look", "ada"), ("look", "eve"), ("other", "ada"), ("look", "ada")]
    found = [(await runner.run(name, principal=who)).status for name, who in callers]
    assert found == ["ok", "ok", "ok", "limited"]


async def test_forget_begins_anew() -> None:
    limit = rate(1, by="session", clock=ManualClock())
    runner = Runner([look], inside=[limit])
    found = [(await runner.run("look", session="s")).status for _ in range(2)]
    limit.forget("s")
    assert [*found, (await runner.run("look", session="s")).status] == ["ok", "limited", "ok"]


class Later:
    def __call__(self, call: ToolCall, context: ToolContext[Any]) -> Any:
        found: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        return found


@pytest.mark.parametrize(
    "by", [lambda call, context: [1], lambda call, context: 1 / 0, lambda call, context: float("nan"), Later()]
)
async def test_an_invalid_key_fails_the_call(by: Any) -> None:
    ran = []

    @tool
    async def act() -> None:
        ran.append(1)

    result = await Runner([act], inside=[rate(5, by=by)]).run("act")
    assert (result.status, result.executed, ran) == ("failed", False, [])
    assert "Nothing was run." in plain(result)


@pytest.mark.large
def test_unused_keys_are_forgotten() -> None:
    async def main(limits: SharedLimits | None, keys: int) -> int:
        clock = ManualClock()
        limit = rate(1, 1, by="session", clock=clock, limits=limits)
        runner = Runner([look], inside=[limit])
        for n in range(keys):
            clock._now += 0.01
            assert (await runner.run("look", None, ToolContext(session=str(n)))).success
        return len(limit._windows) if limits is None else len(limits.store.items(f"{limits.name}/rate/"))

    limits = now()
    assert go(main(limits, 5000)) <= 1000 if limits is None else go(main(limits, 1000)) <= 500


@pytest.mark.parametrize("where", ["process"], indirect=True)
async def test_passed_turns_of_a_used_key_are_forgotten() -> None:
    clock = ManualClock()
    runner = Runner([look], inside=[rate(10**6, 5, clock=clock)])

    async def run_many(count: int) -> int:
        for _ in range(count):
            clock._now += 1
            assert (await runner.run("look")).success
        gc.collect()
        return sys.getallocatedblocks()

    before = await run_many(200)
    assert await run_many(2_000) - before < 500


@pytest.mark.parametrize("where", ["process"], indirect=True)
async def test_a_turn_given_back_after_a_replay_breaks_no_later_key() -> None:
    journal, ran = memory(), list[int]()

    @tool
    async def pay() -> None:
        ran.append(1)

    for _ in range(2):  # the second runner has counted no turn of this session but the one that it gives back
        runner = Runner([pay, look], around=[rate(1, 60, by="session")], journal=journal)
        assert (await runner.run(ToolCall("c1", "pay"), session="first")).success and ran == [1]
    for n in range(1_100):  # enough to look for forgotten keys
        assert (await runner.run("look", {}, session=str(n))).success


@pytest.mark.slow
@pytest.mark.parametrize("where", ["process"], indirect=True)  # of programs: tests/limits
def test_loops_in_two_threads_share_one_count() -> None:
    assert let_through(rate(1, 3600, by="session")) == 300


@pytest.mark.parametrize(
    "wrong",
    [{"calls": 0}, {"calls": 1.5}, {"seconds": float("inf")}, {"seconds": 10**400}, {"by": "user"}, {"clock": 5}],
)
def test_wrong_parameters_are_refused(wrong: Any) -> None:
    with pytest.raises(DefinitionError):
        rate(**{"calls": 1, **wrong})
