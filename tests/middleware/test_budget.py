"""`budget` bounds what all calls of a session use, concurrent ones too."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from two_threads import let_through

from ferrule import DefinitionError, Runner, ToolCall, ToolContext, ToolResult, middleware, tool
from ferrule.middleware import cache, retry
from ferrule.middleware._limits import make_limited_result
from ferrule.testing import ManualClock
from places import now, where  # noqa: F401  # the fixture is for all tests here
from watched import BOUND, go, plain

S = ToolContext(session="s")
KEY = ("s", None)


def budget(*arguments: Any, **options: Any) -> Any:
    return middleware.budget(*arguments, **{"limits": now(), **options})


@tool(read_only=True)
async def think(uses: float = 0, waits: int = 0) -> ToolResult:
    """Use as many tokens as it is told to, after a few turns of the loop."""
    for _ in range(waits):
        await asyncio.sleep(0)
    return ToolResult("thought", metadata={"usage": {"tokens": uses, "cost": uses / 100}})


def calls(*arguments: Any) -> list[ToolCall]:
    return [ToolCall(f"c{n}", "think", given) for n, given in enumerate(arguments)]


def statuses(results: list[ToolResult]) -> list[str]:
    return [result.status for result in results]


@pytest.mark.large
@given(
    st.integers(1, 100),
    st.integers(1, 20),
    st.lists(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3)), max_size=8), max_size=5),
)
def test_no_batches_exceed_the_budget(tokens: int, most: int, batches: list[list[tuple[int, int]]]) -> None:
    limit = budget(tokens=tokens, reserve={"tokens": most})
    running = used = 0

    async def watched(call: ToolCall, context: ToolContext[Any], next: Any) -> ToolResult:
        nonlocal running, used
        running += 1
        assert used + running * most <= tokens  # also if each of them uses all that it may
        result = await next(call, context)
        running -= 1
        used += result.metadata["usage"]["tokens"]
        return result  # type: ignore[no-any-return]

    async def main() -> None:
        runner = Runner([think], inside=[limit, watched])
        for batch in batches:
            given = [{"uses": min(uses, most), "waits": waits} for uses, waits in batch]
            results = await runner.run_all(calls(*given), S)
            assert set(statuses(results)) <= {"ok", "limited"}
        assert limit.used(KEY) == {"tokens": used}
        last = await runner.run("think", {"uses": 0}, S)
        assert last.success == (used + most <= tokens)

    go(main())


async def test_a_call_over_the_budget_does_not_run() -> None:
    results = await Runner([think], inside=[budget(calls=2)]).run_all(calls({}, {}, {}), S)
    assert statuses(results) == ["ok", "ok", "limited"]
    assert (results[2].executed, dict(results[2].metadata)) == (False, {})


async def test_a_call_blocked_by_reservations_may_retry() -> None:
    runner = Runner([think], inside=[budget(tokens=100, reserve={"tokens": 60})])
    first, second = await runner.run_all(calls({"uses": 10, "waits": 3}, {"uses": 10}), S)
    assert first.success
    assert "60 of 100 tokens are used or reserved, and this call may use 60" in plain(second)
    assert second.metadata["retry_after"] == 1.0
    assert (await runner.run("think", {"uses": 40}, S)).success  # 10 are used, and it may use 60
    third = await runner.run("think", {}, S)
    assert (third.status, "retry_after" in third.metadata) == ("limited", False)


@pytest.mark.parametrize(
    ("usage", "used"),
    [
        *((usage, 30) for usage in (5, {"tokens": "5"}, {"tokens": -5}, {"tokens": float("nan")})),
        ({"tokens": 7, "cost": None}, 7),
        ({"total_tokens": 7}, 7),
        ({"input_tokens": 3, "output_tokens": 4}, 7),
    ],
)
async def test_usage_is_read_or_the_reservation_is_charged(usage: Any, used: int) -> None:
    limit = budget(tokens=100, reserve={"tokens": 30})

    async def says(call: ToolCall, context: ToolContext[Any], next: Any) -> ToolResult:
        return (await next(call, context)).replace(metadata={"usage": usage})  # type: ignore[no-any-return]

    await Runner([think], inside=[limit, says]).run("think", {}, S)
    assert limit.used(KEY) == {"tokens": used}


async def test_a_usage_function_that_raises_keeps_the_reservation() -> None:
    limit = budget(tokens=100, reserve={"tokens": 60}, usage=lambda result: 1 / 0)
    assert (await Runner([think], inside=[limit]).run("think", {}, S)).output == "thought"
    assert limit.used(KEY) == {"tokens": 60}


@pytest.mark.parametrize(
    "options",
    [
        *({"cost": 1, "reserve": lambda *_, wrong=wrong: wrong} for wrong in ({"costs": 1}, 5, {"cost": -1})),
        {"calls": 1, "by": lambda call, context: []},
    ],
)
async def test_an_invalid_reservation_or_key_fails_the_call(options: Any) -> None:
    result = await Runner([think], inside=[budget(**options)]).run("think", {}, S)
    assert (result.status, result.executed) == ("failed", False)


@pytest.mark.parametrize("free", [{}, {"cost": 0}])
async def test_a_free_call_runs_when_the_budget_is_used_up(free: dict[str, int]) -> None:
    limit = budget(cost=1, calls=4, reserve=lambda call, context: {"cost": 1} if call.arguments["uses"] else free)
    runner = Runner([think], inside=[limit])
    sent: list[dict[str, int]] = [{"uses": uses} for uses in (0, 100, 100, 0)]
    results = [await runner.run("think", arguments, S) for arguments in sent]
    assert statuses(results) == ["ok", "ok", "limited", "ok"] and limit.used(KEY)["cost"] == 1.0


async def test_ten_times_a_tenth_is_one() -> None:
    limit = budget(cost=1, reserve={"cost": 0.1}, usage=lambda result: {"cost": 0.1})
    results = await Runner([think], inside=[limit]).run_all(calls(*[{}] * 11), S)
    assert statuses(results) == ["ok"] * 10 + ["limited"]
    assert limit.used(KEY) == {"cost": 1.0}


@pytest.mark.large
@pytest.mark.slow
@pytest.mark.parametrize("limits", [{"calls": 100_000}, {"calls": 100_000, "tokens": 1_000_000}])
@given(
    st.lists(st.tuples(st.integers(0, 1), st.booleans(), st.integers(0, 2)), min_size=1, max_size=12),
    st.lists(st.booleans(), min_size=1, max_size=8),
    st.sampled_from([None, BOUND]),
)
def test_exactly_the_executed_calls_are_charged(
    limits: Any, steps: list[tuple[int, bool, int]], fails: list[bool], timeout: float | None
) -> None:
    ran = 0

    @tool(read_only=True)
    async def act(n: int, turns: int) -> None:
        nonlocal ran
        failing = fails[ran % len(fails)]
        ran += 1
        for _ in range(turns):
            await asyncio.sleep(0)
        if failing:
            raise ValueError

    async def main() -> None:
        limit = budget(**limits, reserve={"tokens": 10}, by="all")
        inside = [retry(wait=0, per_minute=1000), limit, cache()]
        runner = Runner([act], inside=inside, concurrency=4, timeout=timeout)
        tasks = []
        for n, cancelled, turns in steps:
            tasks.append(asyncio.ensure_future(runner.run("act", {"n": n, "turns": turns})))
            if cancelled:
                await asyncio.sleep(0)
                tasks[n % len(tasks)].cancel()
        await asyncio.wait(tasks)
        assert limit.used() == {unit: ran * (10 if unit == "tokens" else 1) for unit in limits}
        assert all(account.running == 0 for account in limit._accounts.values())

    go(main())


@pytest.mark.parametrize("end", ["raises", "is limited", "cancelled"])
async def test_a_call_that_ended_before_it_ran_costs_nothing(end: str) -> None:
    never: list[asyncio.Event] = []

    async def first(call: ToolCall, context: ToolContext[Any], next: Any) -> ToolResult:
        if never:
            return await next(call, context)  # type: ignore[no-any-return]
        never.append(asyncio.Event())
        if end == "raises":
            raise ValueError
        if end == "cancelled":
            await never[0].wait()
        return make_limited_result("Full.")

    clock = ManualClock()
    limit = budget(calls=1, tokens=10, seconds=50, reserve={"tokens": 10, "seconds": 1}, clock=clock)
    runner = Runner([think], inside=[limit, first])
    task = asyncio.ensure_future(runner.run("think", {}, S))
    while not never:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert [(await runner.run("think", {}, S)).status for _ in range(2)] == ["ok", "limited"]


@pytest.mark.parametrize(
    ("timeout", "side_by_side"), [(None, ["ok", "limited"]), (4, ["ok", "ok"]), (6, ["ok", "limited"])]
)
async def test_seconds_default_to_the_deadline_or_the_whole_budget(
    timeout: float | None, side_by_side: list[str]
) -> None:
    runner = Runner([think], inside=[budget(seconds=10, clock=ManualClock())], timeout=timeout)
    assert statuses(await runner.run_all(calls({"waits": 3}, {"waits": 3}), S)) == side_by_side


@pytest.mark.parametrize(
    ("by", "another"),
    [
        ("session", ToolContext(session="t")),
        (("session", "principal"), ToolContext(session="s", principal="p")),
        (lambda call, context: context.metadata.get("k"), ToolContext(session="s", metadata={"k": 1})),
    ],
)
async def test_each_key_has_its_own_budget(by: Any, another: ToolContext) -> None:
    runner = Runner([think], inside=[budget(calls=1, by=by)])
    assert [(await runner.run("think", {}, context)).status for context in (S, S, another)] == ["ok", "limited", "ok"]


async def test_two_principals_with_one_session_id_share_no_budget() -> None:
    runner = Runner([think], inside=[budget(calls=1)])
    callers = [("ada", "c1"), ("eve", "c1"), ("ada", "c2"), ("ada", "c1")]
    found = [(await runner.run("think", {}, principal=who, session=session)).status for who, session in callers]
    assert found == ["ok", "ok", "ok", "limited"]


async def test_forget_closes_the_account() -> None:
    limit = budget(calls=1)

    runner = Runner([think], inside=[limit])
    found = []
    for _ in range(2):
        found += [(await runner.run("think", {}, S)).status for _ in range(2)]
        limit.forget(KEY)
    assert found == ["ok", "limited", "ok", "limited"]
    assert not limit._accounts


@pytest.mark.large
@pytest.mark.slow
@pytest.mark.parametrize("where", ["process"], indirect=True)  # of programs: tests/limits
@pytest.mark.parametrize("limits", [{"calls": 1}, {"tokens": 1, "reserve": {"tokens": 1}}])
def test_loops_in_two_threads_share_one_budget(limits: Any) -> None:
    assert let_through(budget(**limits)) == 300


@pytest.mark.parametrize(
    "arguments",
    [
        *({}, {"calls": 0}, {"calls": 1.5}, {"tokens": 5}, {"seconds": float("inf")}),
        *({"cost": 5, "reserve": reserve} for reserve in ({"tokens": 5}, {"costs": 5}, 5, {"cost": 0})),
        *({"calls": 5, "by": "me"}, {"calls": 5, "usage": 5}, {"calls": 5, "clock": object()}),
    ],
)
def test_wrong_parameters_are_refused(arguments: Any) -> None:
    with pytest.raises(DefinitionError):
        budget(**arguments)
