"""`before` and `after` hooks do the same wherever they stand in a chain, and what stands beside them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import probe
from ferrule import Runner, Sizes, Text, ToolCall, ToolContext, ToolResult, tool
from ferrule.middleware import after, before
from waits import BOUND
from watched import run


@tool(read_only=True)
async def double(n: int) -> int:
    """Double a number."""
    return n * 2


async def passes(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
    return await next(call, context)  # type: ignore[no-any-return]


def more(arguments: Any) -> dict[str, int]:
    return {"n": arguments["n"] + 1}


async def more_later(arguments: Any) -> dict[str, int]:
    await asyncio.sleep(0)
    return more(arguments)


def tenfold(result: ToolResult) -> Any:
    return result.output * 10 if result.success else None


async def tenfold_later(result: ToolResult) -> Any:
    await asyncio.sleep(0)
    return result.replace(output=result.output * 10)


def wrong(arguments: Any) -> Any:
    return [1]


async def wrong_later(arguments: Any) -> Any:
    return 1


def breaks(value: Any) -> Any:
    raise ValueError("inside of the program")


def leaves(value: Any) -> Any:
    raise SystemExit(3)


CHAINS = [
    ([before(more)], []),
    ([before(more), before(more_later)], []),
    ([before(more_later), after(tenfold)], [after(tenfold_later)]),
    ([after(tenfold), before(more)], [after(tenfold)]),
    ([before(wrong)], []),
    ([before(wrong_later)], []),
    ([before(breaks)], []),
    ([after(breaks)], []),
    ([], [after(breaks)]),
    ([], [after(leaves)]),
    ([before(leaves)], []),
]


def told(result: ToolResult) -> tuple[Any, ...]:
    return (result.status, result.output, result.error, result.executed, result.text, type(result.exception))


@pytest.mark.parametrize("timeout", [None, BOUND])
@pytest.mark.parametrize(("around", "inside"), CHAINS)
def test_a_hook_next_to_the_kernel_does_what_it_does_outside_another_middleware(
    around: list[Any], inside: list[Any], timeout: float | None
) -> None:
    near, seen = run(double, "double", {"n": 1}, around=around, inside=inside, timeout=timeout)
    far, others = run(double, "double", {"n": 1}, around=[*around, passes], inside=[*inside, passes], timeout=timeout)
    assert told(near) == told(far)
    assert seen.kinds() == others.kinds()


def test_what_the_first_changed_the_next_one_gets_and_what_comes_back_goes_the_other_way() -> None:
    passed: list[Any] = []

    def heard(name: str) -> Any:
        def hears(value: Any) -> Any:
            if isinstance(value, ToolResult):
                passed.append((name, value.output))
                return value.output + 1
            passed.append((name, value["n"]))
            return {"n": value["n"] + 1}

        return hears

    around = [before(heard("a")), after(heard("b")), before(heard("c")), after(heard("d"))]
    inside = [after(heard("e")), after(heard("f"))]
    result, _ = run(double, "double", {"n": 1}, around=around, inside=inside)
    assert passed == [("a", 1), ("c", 2), ("f", 6), ("e", 7), ("d", 8), ("b", 9)]
    assert result.output == 10


def test_what_an_after_hook_gives_is_bounded_and_belongs_to_the_call() -> None:
    def long(result: ToolResult) -> ToolResult:
        return ToolResult("x" * 500, content=[Text("y" * 500)])

    for where in ("around", "inside"):
        result, _ = run(double, ToolCall("c7", "double", '{"n": 1}'), sizes=Sizes(output=100), **{where: [after(long)]})
        assert (result.call_id, result.tool_name, len(result.text)) == ("c7", "double", 100)


def test_a_denied_call_passes_the_after_hooks_of_around_and_none_of_inside() -> None:
    seen: list[str] = []

    def watching(name: str) -> Any:
        def looks(result: ToolResult) -> None:
            seen.append(f"{name} {result.status}")

        return looks

    def no(call: ToolCall, context: ToolContext) -> Any:
        raise PermissionError

    run(double, "double", {"n": 1}, guards=[no], around=[after(watching("around"))], inside=[after(watching("in"))])
    assert seen == ["around denied"]


def test_a_call_denied_after_it_was_run_says_that_its_effect_may_have_happened() -> None:
    runs: list[int] = []

    @tool
    async def act() -> None:
        runs.append(1)

    def once(call: ToolCall, context: ToolContext) -> Any:
        if runs:
            raise PermissionError

    async def twice(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        await next(call, context)
        return await next(call, context)  # type: ignore[no-any-return]

    result, _ = run(act, "act", guards=[once], around=[twice])
    assert (result.status, result.executed, len(runs)) == ("denied", True, 1)
    assert "Nothing was run" not in str(result.error) and "its effect may have happened" in str(result.error)


async def test_every_attempt_that_a_middleware_abandons_is_counted_and_keeps_the_slot() -> None:
    release = threading.Event()
    began: list[int] = []

    @tool
    def stuck() -> None:
        began.append(1)
        release.wait(10)

    async def impatient(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        for attempts in (1, 2):
            attempt = asyncio.ensure_future(next(call, context))
            while len(began) < attempts:
                await asyncio.sleep(0)
            attempt.cancel()
            await asyncio.wait({attempt})
        return ToolResult("gave up")

    runner = Runner([stuck.replace(concurrency=1)], inside=[impatient])
    result = await runner.run("stuck")
    assert (result.output, runner.left_running) == ("gave up", 2)
    (made,) = runner.tools
    assert probe.slots_taken_by(made) == 1
    release.set()
    while runner.left_running:
        await asyncio.sleep(0)
    assert probe.slots_taken_by(made) == 0
