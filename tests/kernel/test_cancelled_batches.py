"""A batch that is cancelled in two stages."""

from __future__ import annotations

import asyncio

import pytest

from ferrule import Runner, ToolCall, tool
from gates import Gate
from waits import until
from watched import Watch


@tool(read_only=True)
async def look() -> str:
    """Look."""
    return "seen"


@tool
async def send() -> str:
    """Send."""
    return "sent"


async def test_the_first_cancel_lets_running_calls_finish() -> None:
    gate, watch = Gate(parallel=True), Watch()
    runner = Runner([gate.tool, look, send], concurrency=2, observers=[watch])
    names = ["wait", "wait", "wait", "send", "look"]
    batch = runner.batch([ToolCall(f"c{n}", name, "{}") for n, name in enumerate(names)])
    await until(lambda: gate.runs == 2 and runner.waiting == 1)
    batch.cancel()
    await until(lambda: runner.waiting == 0)
    assert gate.runs == 2 and batch.results[0].status == "unknown"
    gate.open.set()
    results = await batch
    assert [result.status for result in results] == ["ok", "ok", "cancelled", "cancelled", "cancelled"]
    assert [result.executed for result in results] == [True, True, False, False, False]
    assert [len(watch.ends(f"c{n}")) for n in range(5)] == [1] * 5


@pytest.mark.parametrize("now", [False, True])
@pytest.mark.parametrize("timeout", [None, 60.0])
async def test_the_second_cancel_stops_running_calls(now: bool, timeout: float | None) -> None:
    gate, watch = Gate(), Watch()
    runner = Runner([gate.tool, send], timeout=timeout, observers=[watch])
    batch = runner.batch([ToolCall("c0", "wait", "{}"), ToolCall("c1", "send", "{}")])
    await gate.inside.wait()
    assert [result.status for result in batch.results] == ["unknown", "cancelled"], "if it ended now"
    if not now:
        batch.cancel()
        await asyncio.sleep(0)
        assert batch.results[0].status == "unknown"
    batch.cancel(now=now)
    results = await batch
    assert [(result.status, result.executed) for result in results] == [("cancelled", None), ("cancelled", False)]
    assert [len(watch.ends(f"c{n}")) for n in range(2)] == [1, 1]
