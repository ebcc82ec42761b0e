"""A call waits for a worker process as for any slot."""

from __future__ import annotations

import asyncio
import fcntl
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import isolated_tools as tools
import pytest

import probe
from ferrule import DefinitionError, Runner, Tool, ToolCall, ToolResult, Waits, tool
from ferrule.executors.process.pool import shared_pool
from ferrule.executors.workers import Workers
from ferrule.testing import ManualClock
from waits import BOUND, until
from watched import go

SLOTS = shared_pool().slots
ADD: Tool = tool(tools.add, isolation="process", parallel=True)
TOUCHES: Tool = tool(tools.touches, isolation="process", parallel=True)


@pytest.fixture
def busy() -> Iterator[None]:
    """All workers are taken by others."""
    free = SLOTS.limit - SLOTS.used_slots
    for _ in range(free):
        SLOTS.acquire_nowait()
    yield
    for _ in range(free):
        SLOTS.release()


async def test_the_deadline_does_not_run_while_a_call_waits_for_a_worker(busy: None) -> None:
    runner = Runner([ADD], timeout=BOUND, waits=Waits(slot=None))
    going = asyncio.ensure_future(runner.run("add", {"a": 1}))
    await until(lambda: runner.waiting)
    (state,) = probe.live_calls(runner)
    attempt = state.attempt
    assert attempt.deadline is None and attempt.executed is False and runner.waiting == 1
    SLOTS.release()
    try:
        assert (await going).output == 3
    finally:
        SLOTS.acquire_nowait()


async def test_a_call_that_waits_for_a_worker_can_be_cancelled(busy: None, tmp_path: Path) -> None:
    path = tmp_path / "touched"
    runner = Runner([TOUCHES], waits=Waits(slot=None))
    batch = runner.batch([ToolCall("c1", "touches", {"path": str(path)})])
    await until(lambda: runner.waiting)
    batch.cancel()
    (result,) = await batch
    assert (result.status, result.executed) == ("cancelled", False)
    assert not path.exists() and not probe.live_calls(runner)


@pytest.mark.large
async def test_as_many_calls_run_at_once_as_there_are_workers(busy: None, tmp_path: Path) -> None:
    """All workers of `isolation="process"` are taken meanwhile, which are others."""
    workers = Workers(2)
    try:
        runner = Runner([tool(tools.waits, isolation=workers, parallel=True)], waits=Waits(slot=None))
        paths = [tmp_path / str(number) for number in range(3)]
        calls = [asyncio.ensure_future(runner.run("waits", {"path": str(path)})) for path in paths]
        await until(lambda: paths[0].exists() and paths[1].exists())
        assert runner.waiting == 1 and not paths[2].exists()
        calls[0].cancel()
        await until(paths[2].exists)
    finally:
        workers.close()
    assert [(await call).status for call in calls[1:]] == ["failed", "failed"]


async def test_tools_with_the_same_workers_share_them_across_runners() -> None:
    workers = Workers(1)
    first, second = (Runner([tool(one, isolation=workers)]) for one in (tools.pid, tools.add))
    try:
        assert (await first.run("pid")).output == (await first.run("pid")).output
        assert (await second.run("add", {"a": 1})).output == 3
    finally:
        workers.close()
    result = await second.run("add", {"a": 1})
    assert (result.status, result.executed) == ("failed", False) and "the workers were closed" in result.text


@pytest.mark.parametrize("wrong", [0, True, 1.5, None])
def test_a_wrong_number_of_workers_is_refused(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match=r"Workers\(count\)"):
        Workers(wrong)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_has_workers_of_its_own() -> None:
    workers = Workers(1)
    runner = Runner([tool(tools.pid, isolation=workers)])
    try:
        theirs = go(runner.run("pid")).output
        child = os.fork()
        if not child:
            os._exit(0 if go(runner.run("pid")).output not in (theirs, None) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert go(runner.run("pid")).output == theirs
    finally:
        workers.close()


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


async def start_call(runner: Runner, clock: ManualClock, name: str, arguments: Any = None) -> asyncio.Task[ToolResult]:
    task = asyncio.ensure_future(runner.run(ToolCall("c1", name, arguments)))
    await clock.advance(0)
    return task


async def test_a_first_call_has_all_its_time_once_its_handler_begins(slow: Slow) -> None:
    clock = ManualClock()
    runner = Runner([tool(slow.module.add, isolation="process")], timeout=1, waits=Waits(slot=60), clock=clock)
    call = await start_call(runner, clock, "add", {"a": 1})
    await clock.advance(59)
    assert not call.done()
    slow.let_go()
    result = await call
    assert result.output[0] == 2 and result.output[1] > 0


async def test_the_deadline_counts_from_the_beginning_of_the_handler(slow: Slow) -> None:
    clock = ManualClock()
    runner = Runner([tool(slow.module.waits, isolation="process")], timeout=30, clock=clock)
    call = await start_call(runner, clock, "waits")
    await clock.advance(50)
    (state,) = probe.live_calls(runner)
    slow.let_go()
    while state.context.remaining() == float("inf") or state.context.remaining() is None:
        await asyncio.sleep(0)
    await clock.advance(29)
    assert not call.done()
    await clock.advance(1)
    assert ((await call).status, (await call).executed) == ("timeout", None)


async def test_only_its_runners_clock_kills_a_worker(slow: Slow) -> None:
    clock = ManualClock()
    runner = Runner([tool(slow.module.waits_for, isolation="process")], timeout=0.01, clock=clock)
    slow.let_go()
    call = await start_call(runner, clock, "waits_for", {"pipe": str(slow.pipe)})
    pipe = os.open(slow.pipe, os.O_RDWR)
    try:
        os.write(pipe, b"go on\n")  # which the handler reads later than that
        assert (await call).output == "go on\n"
    finally:
        os.close(pipe)


@pytest.mark.large
@pytest.mark.parametrize("timeout", [1, None])
async def test_the_queue_timeout_bounds_the_start_of_a_process(slow: Slow, timeout: float | None) -> None:
    clock = ManualClock()
    runner = Runner([tool(slow.module.add, isolation="process")], timeout=timeout, waits=Waits(slot=20), clock=clock)
    call = await start_call(runner, clock, "add", {"a": 1})
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
