"""What a loop that was closed leaves behind: no slot, no key, no count, and not the loop itself."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import probe
from ferrule import Runner, ToolTimeoutError, Waits, tool
from ferrule.executors.threads import THREAD_SLOTS
from ferrule.scheduling.limiter import Limiter
from waits import wait_until
from watched import BOUND, Watch, go

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
        self.started, self.release, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.watch = Watch()

        def blocks() -> None:
            self.started.set()
            self.release.wait(BOUND)
            self.ended.set()

        async def ignores() -> None:
            self.started.set()
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    pass

        async def waits() -> None:
            self.started.set()
            await asyncio.Event().wait()

        async def quick() -> str:
            return "done"

        options: Any = {"concurrency": 1, "resources": lambda arguments: ["key"]}
        self.runner = Runner(
            [tool(one, **options) for one in (blocks, ignores, waits, quick)],
            concurrency=1,
            waits=Waits(slot=SOON, grace=SOON),
            observers=[self.watch],
        )

    def works(self) -> bool:
        """Whether there is a slot and a key again."""
        return go(self.runner.run("quick")).status == "ok"

    def slots(self) -> int:
        return probe.slots_taken(self.runner)


# -- what was abandoned ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("closes", [True, False])
def test_a_thread_that_ends_after_the_last_turn_of_its_loop_gives_back_what_it_held(
    loop: asyncio.AbstractEventLoop, closes: bool
) -> None:
    stuck = Stuck()
    assert loop.run_until_complete(stuck.runner.run("blocks", timeout=SOON)).status == "timeout"
    stuck.release.set()
    wait_until(lambda: stuck.runner.left_running == 0)  # without a turn of the loop, or another call
    assert (probe.keys_held(stuck.runner), stuck.slots()) == (0, 0)
    if closes:
        loop.close()
        assert stuck.works()


def test_a_thread_that_outlives_the_loop_keeps_its_slot_until_it_ends(loop: asyncio.AbstractEventLoop) -> None:
    stuck = Stuck()
    assert loop.run_until_complete(stuck.runner.run("blocks", timeout=SOON)).status == "timeout"
    loop.close()
    assert not stuck.works() and stuck.runner.left_running == 1
    stuck.release.set()
    wait_until(lambda: stuck.runner.left_running == 0)
    assert stuck.works() and stuck.slots() == 0


def test_a_handler_that_ignored_its_cancellation_gives_back_what_it_held_when_its_loop_is_closed(
    loop: asyncio.AbstractEventLoop,
) -> None:
    stuck = Stuck()
    assert loop.run_until_complete(stuck.runner.run("ignores", timeout=SOON)).status == "timeout"
    assert stuck.runner.left_running == 1
    loop.close()
    assert stuck.works()
    assert (stuck.runner.left_running, stuck.slots()) == (0, 0)


def test_a_tool_that_is_called_directly_has_its_slot_again_when_the_loop_is_closed(
    loop: asyncio.AbstractEventLoop,
) -> None:
    loops = []

    @tool(concurrency=1, timeout=SOON)
    async def ignores_at_first() -> str:
        loops.append(asyncio.get_running_loop())
        while len(loops) == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
        return "done"

    async def call() -> Any:
        return await ignores_at_first()

    with pytest.raises(ToolTimeoutError):
        loop.run_until_complete(call())
    loop.close()
    assert go(call()) == "done"


# -- what was under way ------------------------------------------------------------------------------------------------


async def begun(started: threading.Event) -> None:
    while not started.is_set():
        await asyncio.sleep(0)


@pytest.mark.parametrize("timeout", [None, BOUND])
def test_a_runner_whose_calls_went_with_a_closed_loop_says_to_make_another(
    loop: asyncio.AbstractEventLoop, timeout: float | None
) -> None:
    stuck = Stuck()
    call = loop.create_task(stuck.runner.run("waits", timeout=timeout))
    loop.run_until_complete(begun(stuck.started))
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


# -- who waits ---------------------------------------------------------------------------------------------------------


async def waiter(limiter: Limiter) -> None:
    await limiter.acquire(None)


@pytest.mark.parametrize("collected", [False, True])
@pytest.mark.parametrize("from_there", [False, True])
def test_a_slot_that_was_handed_to_a_loop_which_ends_comes_back_with_its_waiter(
    loop: asyncio.AbstractEventLoop, collected: bool, from_there: bool
) -> None:
    limiter = Limiter(1)
    limiter.acquire_nowait()
    tasks: list[Any] = [loop.create_task(waiter(limiter))]
    loop.run_until_complete(asyncio.sleep(0))
    if from_there:
        loop.call_soon(limiter.release)
        loop.call_soon(loop.stop)
        loop.run_forever()
    else:
        limiter.release()
    assert limiter.used_slots == 1
    loop._ready.clear()  # type: ignore[attr-defined]
    if collected:
        tasks.clear()
        gc.collect()
    else:
        loop.close()
        tasks[0].get_coro().close()
    assert go(limiter.acquire(1)) and limiter.used_slots == 1
    limiter.release()
    assert limiter.used_slots == 0


def test_a_waiter_that_gives_up_with_a_slot_on_its_way_passes_it_on(loop: asyncio.AbstractEventLoop) -> None:
    limiter = Limiter(1)
    limiter.acquire_nowait()
    task = loop.create_task(waiter(limiter))
    loop.run_until_complete(asyncio.sleep(0))
    limiter.release()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    assert limiter.used_slots == 0


def test_a_waiter_that_is_collected_while_its_limiter_is_at_work_does_not_stop_it(
    loop: asyncio.AbstractEventLoop,
) -> None:
    limiter = Limiter(1)
    limiter.acquire_nowait()
    tasks: list[Any] = [loop.create_task(waiter(limiter))]
    loop.run_until_complete(asyncio.sleep(0))
    limiter.release()
    loop.close()

    def collect() -> None:
        with probe.locked(limiter):
            tasks.clear()
            gc.collect()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(BOUND / 2)
    assert not thread.is_alive() and limiter.used_slots == 0


# -- the loop itself ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [None, BOUND])
def test_no_loop_but_the_last_is_kept_because_a_tool_was_called_directly_on_it(timeout: float | None) -> None:
    @tool(timeout=timeout)
    async def quick() -> str:
        await asyncio.sleep(0)
        return "done"

    @tool(timeout=timeout)
    def blocks() -> str:
        return "done"

    loops: list[weakref.ref[Any]] = []

    async def call() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        assert [await quick(), await blocks()] == ["done", "done"]

    for _ in range(5):
        asyncio.run(call())
    wait_until(lambda: gc.collect() is not None and not any(loop() for loop in loops[:-1]))


def test_a_thread_that_ends_while_its_loop_stands_still_gives_back_its_slot(loop: asyncio.AbstractEventLoop) -> None:
    release = threading.Event()

    @tool(timeout=0.01, read_only=True)
    def slow() -> None:
        release.wait(BOUND)

    before = THREAD_SLOTS.used_slots
    assert loop.run_until_complete(Runner([slow], waits=Waits(grace=0)).run("slow")).status == "timeout"
    assert THREAD_SLOTS.used_slots == before + 1
    release.set()
    wait_until(lambda: THREAD_SLOTS.used_slots == before)
