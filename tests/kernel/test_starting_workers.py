"""Starting a worker process, and importing the handler's module there, does not count against the deadline."""

from __future__ import annotations

import asyncio
import fcntl
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import probe
from ferrule import Runner, ToolCall, ToolResult, Waits, tool
from ferrule.testing import ManualClock

SLOW = """
import fcntl, os, signal, time
from ferrule import ToolContext

if os.getpid() != {pid}:  # a worker waits here as long as the test holds the lock
    with open({lock!r}) as held:
        fcntl.flock(held, fcntl.LOCK_SH)


def add(a: int, context: ToolContext) -> list:
    return [a + 1, context.remaining()]


def waits() -> None:
    signal.pause()


def waits_for(pipe: str) -> str:
    until = time.monotonic() + 0.05
    while time.monotonic() < until:
        pass
    with open(pipe) as end:
        return end.readline()
"""


class Slow(NamedTuple):
    """A module that no worker can import before it is let go."""

    module: Any
    lock: Any
    pipe: Path

    def let_go(self) -> None:
        fcntl.flock(self.lock, fcntl.LOCK_UN)


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    name, lock = f"slow_to_import_{tmp_path.name}", tmp_path / "lock"
    (tmp_path / f"{name}.py").write_text(SLOW.format(pid=os.getpid(), lock=str(lock)))
    monkeypatch.syspath_prepend(str(tmp_path))
    with open(lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        os.mkfifo(tmp_path / "pipe")
        yield Slow(importlib.import_module(name), held, tmp_path / "pipe")
    del sys.modules[name]


async def waiting(runner: Runner, clock: ManualClock, name: str, arguments: Any = None) -> asyncio.Task[ToolResult]:
    task = asyncio.ensure_future(runner.run(ToolCall("c1", name, arguments)))
    await clock.advance(0)
    return task


async def test_a_first_call_has_all_its_time_once_its_handler_begins(slow: Slow) -> None:

    clock = ManualClock()
    runner = Runner([tool(slow.module.add, isolation="process")], timeout=1, waits=Waits(slot=60), clock=clock)
    call = await waiting(runner, clock, "add", {"a": 1})
    await clock.advance(59)
    assert not call.done()
    slow.let_go()
    result = await call
    assert result.output[0] == 2 and result.output[1] > 0


async def test_its_deadline_is_counted_from_there(slow: Slow) -> None:

    clock = ManualClock()
    runner = Runner([tool(slow.module.waits, isolation="process")], timeout=30, clock=clock)
    call = await waiting(runner, clock, "waits")
    await clock.advance(50)
    (state,) = probe.live_calls(runner)
    slow.let_go()
    while state.context.remaining() == float("inf") or state.context.remaining() is None:
        await asyncio.sleep(0)
    await clock.advance(29)
    assert not call.done()
    await clock.advance(1)
    assert ((await call).status, (await call).executed) == ("timeout", None)


async def test_a_worker_is_killed_by_the_clock_of_its_runner_alone(slow: Slow) -> None:

    clock = ManualClock()
    runner = Runner([tool(slow.module.waits_for, isolation="process")], timeout=0.01, clock=clock)
    slow.let_go()
    call = await waiting(runner, clock, "waits_for", {"pipe": str(slow.pipe)})
    pipe = os.open(slow.pipe, os.O_RDWR)
    try:
        os.write(pipe, b"go on\n")  # which the handler reads later than that
        assert (await call).output == "go on\n"
    finally:
        os.close(pipe)


@pytest.mark.parametrize("timeout", [1, None])
async def test_the_queue_timeout_is_the_bound_of_the_start(slow: Slow, timeout: float | None) -> None:

    clock = ManualClock()
    runner = Runner([tool(slow.module.add, isolation="process")], timeout=timeout, waits=Waits(slot=20), clock=clock)
    call = await waiting(runner, clock, "add", {"a": 1})
    await clock.advance(19)
    assert not call.done()
    await clock.advance(1)
    result = await call
    assert (result.status, result.executed) == ("limited", False)
    assert "no process was ready for it in time. Nothing was run" in str(result.error)


async def test_a_call_that_is_cancelled_while_its_process_starts_ends_at_once(slow: Slow) -> None:

    clock = ManualClock()
    runner = Runner([tool(slow.module.add, isolation="process")], timeout=1, clock=clock)
    batch = runner.batch([ToolCall("c1", "add", {"a": 1})])
    await clock.advance(5)
    batch.cancel(now=True)
    (result,) = await batch
    assert result.status == "cancelled" and not probe.live_calls(runner)
