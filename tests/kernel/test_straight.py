"""The short way of a call through the runner: it gives what the long way gives, on every Python."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ferrule import Runner, ToolCall, ToolResult, tool


async def act(n: int, how: str = "add") -> int:
    """Add, or misbehave."""
    if how == "exit":
        raise SystemExit(2)
    if how == "cancel":
        raise asyncio.CancelledError
    if how == "wrong":
        return "text"  # type: ignore[return-value]
    if how == "fail":
        raise ValueError("no")
    if how == "wait":
        await asyncio.sleep(0)
    return n + 1


def short(*, concurrency: int = 32) -> Runner:
    runner = Runner([tool(act)], concurrency=concurrency)
    assert runner._plans["act"].straight
    return runner


def long() -> Runner:
    runner = Runner([tool(act)], observers=[lambda event: None])
    assert not runner._plans["act"].straight
    return runner


def told(result: ToolResult) -> tuple[Any, ...]:
    return (
        result.status,
        result.output,
        result.error,
        result.executed,
        result.repairs,
        result.text,
        result.call_id,
        result.tool_name,
        type(result.exception),
    )


def go(make: Callable[[], Awaitable[Any]]) -> Any:
    async def bounded() -> Any:
        return await asyncio.wait_for(make(), 5)

    return asyncio.run(bounded())


HOWS = ["add", "exit", "cancel", "wrong", "fail", "wait", "other"]
ODD = ['{"n": "4"}', '{"n": 4,}', '{"n": 1, "n": 2}', '{"n": 1, "n": 1}', '{"n": true}', '{"n": 5.0}', "", "null"]
ODD += ["{", '{"n": 1, "m": 2}', '{"how": "a:b"}', '{"n": 1, "how": "a:b"}', '{"\\u006e": 1}', '{"n": NaN}', "[1]"]
TEXTS = st.one_of(
    st.builds('{{"n": {}, "how": "{}"}}'.format, st.integers(-(10**20), 10**20), st.sampled_from(HOWS)),
    st.sampled_from(ODD),
    st.fixed_dictionaries({"n": st.integers() | st.text(max_size=3) | st.booleans()}),
)


@given(TEXTS)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_short_way_gives_what_the_long_way_gives(arguments: Any) -> None:
    async def both() -> tuple[ToolResult, ToolResult]:
        call = ToolCall("c1", "act", arguments)
        runner = short()
        await runner.run(ToolCall("c0", "act", "{"))  # the first call on a loop goes the long way
        return await runner.run(call), await long().run(call)

    one, other = go(both)
    assert told(one) == told(other)


def test_the_short_way_gives_its_slot_back_whatever_happens() -> None:
    async def main() -> None:
        runner = short(concurrency=1)
        for how in HOWS:
            await runner.run(ToolCall("c1", "act", f'{{"n": 1, "how": "{how}"}}'))
        limiter = runner._plans["act"].limiters[0]
        assert (limiter.running, runner._live) == (0, set())

    go(main)


@pytest.mark.parametrize("swallows", [False, True])
def test_a_cancellation_from_outside_cancels_on_the_short_way(swallows: bool) -> None:
    entered = asyncio.Event()

    async def wait() -> str:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not swallows:
                raise
        return "swallowed"

    runner = Runner([tool(wait, read_only=True)])

    async def main() -> None:
        await runner.run(ToolCall("c0", "wait", "{"))
        batch = runner.batch([ToolCall("c1", "wait", "{}")])
        task = asyncio.ensure_future(asyncio.wait_for(batch, 5))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [result.status for result in batch.results] == ["cancelled"]
        assert runner._plans["wait"].limiters[0].running == 0

    go(main)


def test_a_nested_call_does_not_go_the_short_way_and_takes_no_slot_of_its_own() -> None:
    taken: list[int] = []

    async def inner() -> None:
        taken.append(runner._plans["inner"].limiters[0].running)

    async def outer() -> None:
        await runner.run(ToolCall("c2", "inner", "{}"))

    runner = Runner([tool(inner), tool(outer)])

    async def main() -> None:
        await runner.run(ToolCall("c0", "inner", "{"))
        await runner.run(ToolCall("c1", "outer", "{}"))
        await runner.run(ToolCall("c3", "inner", "{}"))

    go(main)
    assert taken == [1, 1]
