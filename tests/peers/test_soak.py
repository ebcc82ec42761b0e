"""Ten thousand calls over one stdio connection, 64 at once, with servers killed in between: nothing hangs, nothing is
lost or mixed up, and no process or task is left."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from peer_programs import environment

from ferrule import Runner, ToolResult, Toolset, mcp

SERVER = Path(__file__).parent / "soak_server.py"
CALLS = 10_000 if os.environ.get("FERRULE_TESTS") == "all" else 1_000
AT_ONCE = 64
KILLS = 5
SECONDS = 600.0

pytestmark = [pytest.mark.slow, pytest.mark.large, pytest.mark.time_limit(SECONDS)]


async def soak(tools: Toolset) -> tuple[Counter[str], set[int]]:
    """Make all calls, and kill the server that answered last now and then. Return how the calls ended, and the ids of
    the processes."""
    ends: Counter[str] = Counter()
    pids: dict[int, None] = {}
    numbers = iter(range(CALLS))
    runner = Runner(tools, concurrency=None)

    async def call(number: int) -> ToolResult:
        return await runner.run("soak__say", {"number": number, "text": f"text {number}"})

    async def go_on() -> None:
        for number in numbers:
            if number % (CALLS // KILLS) == CALLS // KILLS // 2:
                os.kill([*pids][-1], signal.SIGKILL)
            while True:
                result = await call(number)
                ends[f"{result.status} {result.executed}"] += 1
                if result.success:
                    break
                assert result.status == "failed" and result.executed is not True, result.error
                await asyncio.sleep(result.metadata.get("retry_after", 0.0))
            assert (result.output["number"], result.output["text"]) == (number, f"text {number}")
            pids[result.output["pid"]] = None

    await asyncio.gather(*(go_on() for _ in range(AT_ONCE)))
    return ends, set(pids)


def is_running(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


async def wait_for_end(pids: set[int]) -> None:
    while any(map(is_running, pids)):
        await asyncio.sleep(0.05)


async def test_many_calls_over_one_stdio_connection() -> None:
    before = asyncio.all_tasks()
    target = mcp.Stdio(sys.executable, ["-m", "ferrule", "serve", str(SERVER)], env=environment(), name="soak")
    async with mcp.connect(target) as tools:
        ends, pids = await soak(tools)
    assert ends["ok True"] == CALLS and len(pids) == KILLS + 1
    await wait_for_end(pids)
    assert asyncio.all_tasks() == before
