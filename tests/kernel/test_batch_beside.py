"""A call that runs beside others because of its arguments may not become one that runs alone."""

from __future__ import annotations

from typing import Any

from ferrule import Runner, ToolCall, ToolContext, allow, tool
from watched import go


@tool(parallel=lambda arguments: not arguments["write"])
async def page(number: int, write: bool = False) -> int:
    """Read or write a page."""
    return number


def writes_the_second(call: ToolCall, context: ToolContext) -> Any:
    return allow({**call.arguments, "write": True}) if call.arguments["number"] == 2 else None


async def test_a_guard_that_makes_a_parallel_call_one_to_run_alone_stops_it() -> None:
    runner = Runner([page], guards=[writes_the_second])
    results = await runner.run_all([ToolCall(f"c{n}", "page", {"number": n}) for n in (1, 2, 3)])
    assert [result.status for result in results] == ["ok", "limited", "ok"]
    assert results[1].executed is False and "Send it alone" in str(results[1].error)


async def test_alone_the_same_call_runs() -> None:
    assert (await Runner([page], guards=[writes_the_second]).run("page", {"number": 2})).success


def test_a_call_that_was_to_run_alone_may_be_changed_as_it_likes() -> None:
    def reads(call: ToolCall, context: ToolContext) -> Any:
        return allow({**call.arguments, "write": False})

    calls = [ToolCall(f"c{n}", "page", {"number": n, "write": True}) for n in (1, 2)]
    assert [result.status for result in go(Runner([page], guards=[reads]).run_all(calls))] == ["ok", "ok"]


async def test_a_call_that_leaves_out_what_says_that_it_is_parallel_goes_by_the_default() -> None:
    @tool(parallel=lambda given: given["dry"])
    async def act(dry: bool = True) -> str:
        return "done"

    results = await Runner([act]).run_all([ToolCall("c1", "act", "{}"), ToolCall("c2", "act", "{}")])
    assert [result.output for result in results] == ["done", "done"]
