"""Who waits for a worker process waits as for any slot: counted and bounded, without its deadline, and stoppable."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import isolated_tools as tools
import pytest
from watched import go

import probe
from ferrule import Runner, Tool, ToolCall, tool
from ferrule.isolation.pool import SLOTS

ADD: Tool = tool(tools.add, isolation="process", parallel=True)
TOUCHES: Tool = tool(tools.touches, isolation="process", parallel=True)


@pytest.fixture
def busy() -> Iterator[None]:
    """All workers are taken by others."""
    free = SLOTS.limit - SLOTS.running
    for _ in range(free):
        SLOTS.take()
    yield
    for _ in range(free):
        SLOTS.release()


async def waits(runner: Runner) -> None:
    while not runner.waiting:
        await asyncio.sleep(0)


def test_its_deadline_does_not_run_and_it_is_counted(busy: None) -> None:
    async def main() -> None:
        runner = Runner([ADD], timeout=20, queue_timeout=None)
        going = asyncio.ensure_future(runner.run("add", {"a": 1}))
        await waits(runner)
        (state,) = probe.live_calls(runner)
        attempt = state.attempt
        assert attempt.deadline is None and attempt.executed is False and runner.waiting == 1
        SLOTS.release()
        try:
            assert (await going).output == 3
        finally:
            SLOTS.take()

    go(main())


def test_it_is_limited_after_the_queue_timeout(busy: None, tmp_path: Path) -> None:
    path = tmp_path / "touched"
    result = go(Runner([TOUCHES], queue_timeout=0.01).run("touches", {"path": str(path)}))
    assert (result.status, result.executed, path.exists()) == ("limited", False, False)


def test_turning_it_off_or_cancelling_the_batch_stops_it_before_it_is_started(busy: None, tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "touched"
        runner = Runner([TOUCHES], queue_timeout=None)
        batch = runner.batch([ToolCall("c1", "touches", {"path": str(path)})])
        going = asyncio.ensure_future(_awaited(batch))
        await waits(runner)
        batch.cancel()
        (result,) = await going
        assert (result.status, result.executed) == ("cancelled", False)
        second = asyncio.ensure_future(runner.run("touches", {"path": str(path)}))
        await waits(runner)
        runner.disable("touches", "it is late")
        assert ((await second).status, (await second).executed) == ("denied", False)
        assert not path.exists() and not probe.live_calls(runner)

    go(main())


async def _awaited(batch: object) -> list[object]:
    return await batch  # type: ignore[no-any-return, misc]


def test_a_tool_that_takes_no_worker_does_not_wait_for_one(busy: None) -> None:
    @tool
    async def here() -> str:
        return "at once"

    assert go(Runner([here, ADD]).run("here")).output == "at once"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_has_all_slots_again(busy: None) -> None:
    child = os.fork()
    if not child:
        os._exit(0 if SLOTS.running == 0 and SLOTS.take() is None else 1)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
