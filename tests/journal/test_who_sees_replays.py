"""Middleware, loops and observers treat replayed and unknown results in their own way."""

from __future__ import annotations

from typing import Any

import pytest
from killed import DyingJournal

from ferrule import Runner, ToolCall, ToolContext, ToolResult, tool
from ferrule.journal import memory
from ferrule.loop import run
from ferrule.middleware import breaker, budget, rate, retry
from ferrule.models import Scripted

WHO = {"session": "s1", "principal": "ann"}


def call(euros: int) -> ToolCall:
    return ToolCall(f"c{euros}", "pay", {"euros": euros})


@tool
async def pay(euros: int) -> str:
    """Pay."""
    if euros > 100:
        raise RuntimeError("so much there is not")
    return f"paid {euros}"


async def nobody_knows(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
    """A middleware to another machine, which does not answer."""
    return ToolResult(error="it may have happened", status="unknown", executed=None)


async def statuses(runner: Runner, *calls: int) -> list[str]:
    return [(await runner.run(call(euros), **WHO)).status for euros in calls]


async def test_a_replayed_call_costs_no_budget_and_no_rate() -> None:
    for costs in (budget(calls=2), budget(cost=2, reserve={"cost": 1})):
        runner = Runner([pay], journal=memory(), around=[costs])
        assert await statuses(runner, 1, 1, 1, 2, 3) == ["ok", "ok", "ok", "ok", "limited"]
        assert [*costs.used(("s1", "ann")).values()] == [2.0]
    counted = rate(2, 60)
    runner = Runner([pay], journal=memory(), around=[counted])
    assert await statuses(runner, 1, 1, 1, 2, 1, 3) == ["ok", "ok", "ok", "ok", "limited", "limited"]


async def test_a_replayed_failure_opens_no_breaker() -> None:
    runner = Runner([pay], journal=memory(), around=[breaker(2, 60)])
    assert (await statuses(runner, 500, 500, 500, 1)) == ["failed", "failed", "failed", "ok"]


async def test_a_cut_off_call_costs_no_budget() -> None:
    journal, costs = DyingJournal(), budget(calls=2)
    runner = Runner([pay], journal=journal, around=[costs])
    assert await journal.while_dying(statuses(runner, 1)) == ["ok"]
    assert await statuses(runner, 1, 1) == ["unknown", "unknown"] and costs.used(("s1", "ann")) == {"calls": 1.0}


@pytest.mark.parametrize("marks", [{}, {"idempotent": True}, {"read_only": True}], ids=str)
async def test_retry_repeats_no_unknown_outcome(marks: dict[str, bool]) -> None:
    tried: list[str] = []

    async def far_away(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        tried.append(call.id)
        return await nobody_knows(call, context, next)

    marked = pay.replace(**marks)
    assert (await statuses(Runner([marked], inside=[retry(3, wait=0), far_away]), 1)) == ["unknown"]
    assert tried == ["c1"]


@pytest.mark.parametrize(("on_failure", "status"), [("continue", "done"), ("degrade", "degraded"), ("fail", "failed")])
async def test_a_run_takes_an_unknown_outcome_for_a_failure(on_failure: Any, status: str) -> None:
    model = Scripted([[("pay", {"euros": 5})], "I do not know."])
    result = await run(model, model.user("Pay."), Runner([pay], around=[nobody_knows]), on_failure=on_failure)
    assert result.status == status and "may have happened" in str(result.messages)
    assert [one.status for one in result.results] == ["unknown"]
