"""Calls and exceptions that nobody should make are answered, and break nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from ferrule import Runner, ToolCall, ToolContext, ToolResult, allow, ask, tool
from ferrule.errors import NotStartedError
from watched import run


@tool(read_only=True)
async def pay(n: int) -> int:
    """Pay."""
    return n


def test_a_problem_that_a_middleware_finds_is_answered_and_nothing_runs() -> None:
    async def blocks(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        return await next(call.replace(problem="blocked by policy"), context)  # type: ignore[no-any-return]

    result, _ = run(pay, "pay", {"n": 1}, around=[blocks])
    assert (result.status, result.executed, result.error) == ("invalid", False, "blocked by policy Nothing was run.")


@pytest.mark.parametrize(("id", "name"), [("c", None), (["c"], "pay"), (1, "pay")])
def test_a_call_whose_id_or_name_is_no_text_cannot_be_made(id: Any, name: Any) -> None:
    with pytest.raises(TypeError, match="texts"):
        ToolCall(id, name)


class Broken(Mapping[str, Any]):
    """A mapping that raises when it is read."""

    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("broken")

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("broken")

    def __len__(self) -> int:
        return 1


async def test_arguments_that_cannot_be_read_are_answered_beside_those_that_can() -> None:
    calls = [ToolCall("c1", "pay", {"n": 1}), ToolCall("c2", "pay", Broken())]
    results = await Runner([pay]).run_all(calls)
    assert [result.status for result in results] == ["ok", "invalid"]


@pytest.mark.parametrize("seconds", [True, float("nan"), float("inf"), -1, 10**400, "soon"])
def test_a_time_to_try_again_that_is_none_is_left_out_and_the_failure_stays(seconds: Any) -> None:
    class Busy(ValueError):
        retry_after = seconds

    @tool
    async def fails() -> None:
        raise Busy("try later")

    result, _ = run(fails, "fails")
    assert "Busy: try later" in str(result.error) and "retry_after" not in result.metadata


def test_a_time_to_try_again_is_on_the_result() -> None:
    from ferrule import ToolError

    @tool
    async def fails() -> None:
        raise ToolError("busy", retry_after=3)

    assert run(fails, "fails")[0].metadata == {"retry_after": 3.0}


def test_what_does_not_fit_is_said_of_who_changed_it_and_not_as_the_models_mistake() -> None:
    def changes(call: ToolCall, context: ToolContext) -> Any:
        return allow({"n": "x"})

    def edits(call: ToolCall, decision: Any, context: ToolContext) -> Any:
        return allow({"n": "x"})

    by_guard, _ = run(pay, "pay", {"n": 1}, guards=[changes])
    by_person, _ = run(pay, "pay", {"n": 1}, guards=[lambda call, context: ask("?")], approve=edits)
    for result, start in (
        (by_guard, "Denied: a guard's arguments do not fit: "),
        (by_person, "Denied: the answer's arguments do not fit: "),
    ):
        assert str(result.error).startswith(start)
        assert str(result.error).count("Nothing was run") == 1 and "call again" not in str(result.error)


def test_a_middleware_that_breaks_after_the_run_does_not_say_that_nothing_could_be_run() -> None:
    async def breaks(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        await next(call, context)
        raise RuntimeError

    result, _ = run(pay, "pay", {"n": 1}, around=[breaks])
    assert "could not be run" not in str(result.error) and "It had been started" in str(result.error)


def test_a_handler_that_raises_what_the_kernel_raises_for_a_failed_start_was_run() -> None:
    @tool
    async def sends() -> None:
        raise NotStartedError("of another call")

    result, _ = run(sends, "sends")
    assert (result.status, result.executed) == ("failed", True)
    assert "Nothing was run" not in str(result.error)


@pytest.mark.parametrize("how", ["batch", "disable", "leave"])
async def test_no_further_attempt_is_started_once_its_batch_its_tool_or_its_runner_is_stopped(how: str) -> None:

    ran: list[int] = []
    between, go_on = asyncio.Event(), asyncio.Event()

    @tool(idempotent=True)
    async def flaky() -> None:
        ran.append(1)
        raise ValueError("no")

    async def again(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        await next(call, context)
        between.set()
        await go_on.wait()
        return await next(call, context)  # type: ignore[no-any-return]

    runner = Runner([flaky], inside=[again])
    async with runner:
        batch = runner.batch([ToolCall("c1", "flaky", "{}")])
        going = asyncio.ensure_future(_awaited(batch))
        await between.wait()
        if how == "batch":
            batch.cancel()
        elif how == "disable":
            runner.disable("flaky", "off")
        else:
            asyncio.get_running_loop().call_soon(go_on.set)
            await runner.__aexit__()
        go_on.set()
        (result,) = await going
    assert (result.status, result.executed, ran) == ("denied" if how == "disable" else "cancelled", True, [1])
    assert "may have happened" in str(result.error)


async def _awaited(batch: Any) -> Any:
    return await batch
