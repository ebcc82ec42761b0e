"""Who waits for a worker process waits as for any slot: counted and bounded, without its deadline, and stoppable."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import isolated_tools as tools
import pytest

import probe
from ferrule import DefinitionError, Runner, Tool, ToolCall, Waits, tool
from ferrule.executors.process.pool import shared_pool
from ferrule.executors.workers import Workers
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


async def waits(runner: Runner) -> None:
    while not runner.waiting:
        await asyncio.sleep(0)


async def test_its_deadline_does_not_run_and_it_is_counted(busy: None) -> None:

    runner = Runner([ADD], timeout=BOUND, waits=Waits(slot=None))
    going = asyncio.ensure_future(runner.run("add", {"a": 1}))
    await waits(runner)
    (state,) = probe.live_calls(runner)
    attempt = state.attempt
    assert attempt.deadline is None and attempt.executed is False and runner.waiting == 1
    SLOTS.release()
    try:
        assert (await going).output == 3
    finally:
        SLOTS.acquire_nowait()


async def test_it_is_limited_after_the_queue_timeout(busy: None, tmp_path: Path) -> None:
    path = tmp_path / "touched"
    result = await Runner([TOUCHES], waits=Waits(slot=0.01)).run("touches", {"path": str(path)})
    assert (result.status, result.executed, path.exists()) == ("limited", False, False)


async def test_turning_it_off_or_cancelling_the_batch_stops_it_before_it_is_started(busy: None, tmp_path: Path) -> None:

    path = tmp_path / "touched"
    runner = Runner([TOUCHES], waits=Waits(slot=None))
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


async def _awaited(batch: object) -> list[object]:
    return await batch  # type: ignore[no-any-return, misc]


async def test_a_tool_that_takes_no_worker_does_not_wait_for_one(busy: None) -> None:
    @tool
    async def here() -> str:
        return "at once"

    assert (await Runner([here, ADD]).run("here")).output == "at once"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_has_all_slots_again(busy: None) -> None:
    child = os.fork()
    if not child:
        os._exit(0 if SLOTS.used_slots == 0 and SLOTS.acquire_nowait() is None else 1)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise


# -- Workers ---------------------------------------------------------------------------------------------------------


async def test_so_many_calls_run_at_once_as_there_are_to_be_workers(busy: None, tmp_path: Path) -> None:
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


def test_tools_of_the_same_workers_share_them_across_runners() -> None:
    workers = Workers(1)
    first, second = (Runner([tool(one, isolation=workers)]) for one in (tools.pid, tools.add))
    try:
        assert go(first.run("pid")).output == go(first.run("pid")).output
        assert go(second.run("add", {"a": 1})).output == 3
        assert first.tools.get("pid").isolation is second.tools.get("add").isolation
    finally:
        workers.close()
    result = go(second.run("add", {"a": 1}))
    assert (result.status, result.executed) == ("failed", False) and "the workers were closed" in result.text


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "2", None])
def test_a_number_of_workers_that_is_none_is_a_mistake_at_once(wrong: Any) -> None:
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
