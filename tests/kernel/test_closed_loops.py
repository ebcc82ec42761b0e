"""A closed loop leaves no slot, no key and no count behind."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import probe
from ferrule import Runner, Waits, tool
from ferrule.scheduling.limiter import Limiter
from gates import Blocker
from waits import BOUND, wait_until
from watched import go

SOON = 0.02
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """One that the test closes, or it is closed for it."""
    made = asyncio.new_event_loop()
    made.set_exception_handler(lambda *_: None)  # it tells of tasks that were pending when they were collected
    yield made
    made.close()


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    """Nothing comes back because somebody happened to collect."""
    gc.disable()
    yield
    gc.enable()
    gc.collect()


class Stuck:
    """A runner with one slot and one key, and handlers that outlive their deadlines."""

    def __init__(self) -> None:
        self.blocker, self.started = Blocker(), threading.Event()

        async def waits() -> None:
            self.started.set()
            await asyncio.Event().wait()

        async def quick() -> str:
            return "done"

        options: Any = {"concurrency": 1, "resources": lambda arguments: ["key"]}
        tools = [tool(one, **options) for one in (self.blocker.block, waits, quick)]
        self.runner = Runner(tools, concurrency=1, waits=Waits(slot=SOON, grace=SOON))

    def works(self) -> bool:
        """Whether there is a slot and a key again."""
        return go(self.runner.run("quick")).status == "ok"


@pytest.mark.parametrize("closes", [True, False])
def test_a_thread_that_ends_after_its_loops_last_turn_frees_its_slot_and_key(
    loop: asyncio.AbstractEventLoop, closes: bool
) -> None:
    stuck = Stuck()
    assert loop.run_until_complete(stuck.runner.run("block", timeout=SOON)).status == "timeout"
    stuck.blocker.release.set()
    wait_until(lambda: stuck.runner.left_running == 0)  # without a turn of the loop, or another call
    assert (probe.keys_held(stuck.runner), probe.slots_taken(stuck.runner)) == (0, 0)
    if closes:
        loop.close()
        assert stuck.works()


@pytest.mark.parametrize("timeout", [None, BOUND])
def test_a_runner_whose_calls_went_with_a_closed_loop_says_to_make_another(
    loop: asyncio.AbstractEventLoop, timeout: float | None
) -> None:
    stuck = Stuck()
    call = loop.create_task(stuck.runner.run("waits", timeout=timeout))
    while not stuck.started.is_set():
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()

    async def leave() -> None:
        async with stuck.runner:
            pass

    for used in (lambda: stuck.runner.run("quick"), leave):
        with pytest.raises(RuntimeError, match="make a runner anew"):
            go(used())
    with pytest.raises(RuntimeError, match="make a runner anew"):
        stuck.runner.run_sync("quick")
    coroutine = call.get_coro()
    assert not call.done() and coroutine is not None
    coroutine.close()


def full_limiter(loop: asyncio.AbstractEventLoop) -> tuple[Limiter, list[Any]]:
    """A limiter whose one slot is taken, and the task that waits for it on that loop."""
    limiter = Limiter(1)
    limiter.acquire_nowait()

    async def wait() -> None:
        await limiter.acquire(None)

    task = loop.create_task(wait())
    loop.run_until_complete(asyncio.sleep(0))
    return limiter, [task]


@pytest.mark.parametrize("collected", [False, True])
@pytest.mark.parametrize("from_there", [False, True])
def test_a_slot_that_was_handed_to_a_loop_which_ends_comes_back(
    loop: asyncio.AbstractEventLoop, collected: bool, from_there: bool
) -> None:
    limiter, tasks = full_limiter(loop)
    if from_there:
        loop.call_soon(limiter.release)
        loop.call_soon(loop.stop)
        loop.run_forever()
    else:
        limiter.release()
    assert limiter.used_slots == 1
    loop._ready.clear()
    if collected:
        tasks.clear()
        gc.collect()
    else:
        loop.close()
        tasks[0].get_coro().close()
    assert go(limiter.acquire(1)) and limiter.used_slots == 1
    limiter.release()
    assert limiter.used_slots == 0
