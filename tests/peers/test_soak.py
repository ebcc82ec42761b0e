"""Ten thousand calls over one stdio connection and over HTTP, 64 at once, with servers killed in between: nothing
hangs, nothing is lost or mixed up, and no process or task is left."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from ferrule import Runner, ToolResult, Toolset, mcp

ROOT = Path(__file__).parent.parent.parent
SERVER = Path(__file__).parent / "soak_server.py"
CALLS = 10_000 if os.environ.get("FERRULE_TESTS") == "all" else 1_000
AT_ONCE = 64
KILLS = 5
SECONDS = 600.0

pytestmark = [pytest.mark.slow, pytest.mark.large, pytest.mark.time_limit(SECONDS)]


def serve(*options: str) -> list[str]:
    return [sys.executable, "-m", "ferrule", "serve", str(SERVER), *options]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}


async def soak(tools: Toolset, kill: Any) -> tuple[Counter[str], set[int]]:
    """Make all calls, killing the server that answered last now and then; how they ended, and which processes did."""
    ends: Counter[str] = Counter()
    pids: dict[int, None] = {}
    numbers = iter(range(CALLS))
    runner = Runner(tools, concurrency=None)

    async def call(number: int) -> ToolResult:
        return await runner.run("soak__say", {"number": number, "text": f"text {number}"})

    async def go_on() -> None:
        for number in numbers:
            if number % (CALLS // KILLS) == CALLS // KILLS // 2:
                kill([*pids][-1])
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


def is_there(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


async def ended(pids: set[int]) -> None:
    while any(map(is_there, pids)):
        await asyncio.sleep(0.05)


async def test_over_one_stdio_connection() -> None:
    async def main() -> None:
        before = asyncio.all_tasks()
        target = mcp.Stdio(serve()[0], serve()[1:], env=environment(), name="soak")
        async with mcp.connect(target) as tools:
            ends, pids = await soak(tools, lambda pid: os.kill(pid, signal.SIGKILL))
        assert ends["ok True"] == CALLS and len(pids) == KILLS + 1
        await ended(pids)
        assert asyncio.all_tasks() == before

    await asyncio.wait_for(main(), SECONDS)


@asynccontextmanager
async def http_server(port: int) -> AsyncIterator[list[subprocess.Popen[str]]]:
    """A server at that port, which is started again by hand where it was killed: the list holds all that there were."""
    started: list[subprocess.Popen[str]] = []
    try:
        yield started
    finally:
        for server in started:
            end(server)


def end(server: subprocess.Popen[str]) -> None:
    if server.poll() is None:
        server.kill()
        server.communicate()


def start(port: int) -> subprocess.Popen[str]:
    server = subprocess.Popen(serve("--http", str(port)), stderr=subprocess.PIPE, text=True, env=environment())
    assert server.stderr is not None
    said = ""
    while not re.search(r"http://\S+/mcp", said):
        line = server.stderr.readline()
        assert line, said
        said += line
    return server


async def test_over_http_with_many_at_once() -> None:
    async def main() -> None:
        before = asyncio.all_tasks()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        async with http_server(port) as started:
            started.append(start(port))

            def kill(pid: int) -> None:
                end(started[-1])
                started.append(start(port))

            async with mcp.connect(mcp.Http(f"http://127.0.0.1:{port}/mcp", name="soak")) as tools:
                ends, pids = await soak(tools, kill)
            assert ends["ok True"] == CALLS and len(pids) == KILLS + 1
        assert asyncio.all_tasks() == before

    await asyncio.wait_for(main(), SECONDS)
