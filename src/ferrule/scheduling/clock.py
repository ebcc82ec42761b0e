"""The clock of whatever waits or counts by time, and how who waits is woken; tests put in a clock that they move by
hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, runtime_checkable


class Cancellable(Protocol):
    """What is to happen, and need not."""

    def cancel(self) -> object: ...


@runtime_checkable
class Clock(Protocol):
    """Tells the time and waits. `ferrule.testing.ManualClock` is one that stands still until a test moves it. One that
    is derived from this has `call_at` and `now` already. See docs/testing.md."""

    def time(self) -> float:
        """Seconds since any moment; they never go back. May be called from any thread."""
        ...

    async def sleep(self, seconds: float, /) -> None:
        """Wait that long by this clock."""
        ...

    def call_at(self, when: float, callback: Callable[..., object], /, *arguments: Any) -> Cancellable:
        """Call `callback` on the running loop once `time()` says `when`; the loop's own timer where nothing else is
        said."""
        return asyncio.get_running_loop().call_later(when - self.time(), callback, *arguments)

    def now(self) -> float:
        """Seconds since the epoch, for what others read and what expires; may be called from any thread."""
        return time.time()


class _Monotonic(Clock):
    """The clock of the machine."""

    time = staticmethod(time.monotonic)
    sleep = staticmethod(asyncio.sleep)


MONOTONIC: Clock = _Monotonic()
Timer: TypeAlias = Clock | asyncio.AbstractEventLoop
"""What counts the time of a call, and wakes who waits: a loop does so by itself."""


async def wait_until(waiter: asyncio.Future[None], until: float | None, timer: Timer | None = None) -> None:
    """Wait until somebody wakes `waiter`, at most until then; `None` for as long as it takes."""
    late = None if until is None else (timer or waiter.get_loop()).call_at(until, wake, waiter)
    try:
        await waiter
    finally:
        if late is not None:
            late.cancel()


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs in this thread; `None` where none does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def end_of(future: asyncio.Future[Any]) -> asyncio.Future[None]:
    """What is woken when `future` ends, and may be woken before; to wait for it costs a fifth of `asyncio.wait`."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.add_done_callback(lambda _: wake(waiter))
    return waiter


def wake(waiter: asyncio.Future[None]) -> None:
    """Let whoever waits look again."""
    if not waiter.done():
        waiter.set_result(None)


def wake_from_any_thread(waiter: asyncio.Future[None]) -> bool:
    """Let whoever waits look again, on its own loop. Return whether that loop is open."""
    loop = waiter.get_loop()
    if loop is running_loop():
        wake(waiter)
        return True
    try:
        loop.call_soon_threadsafe(wake, waiter)
    except RuntimeError:
        return False
    return True


async def wait_by_machine(futures: set[asyncio.Future[Any]], seconds: float | None) -> None:
    """Wait for all of them, at most so long by the machine's clock: whoever leaves a runner waits for programs and
    disks, which a clock of a test does not move."""
    await asyncio.wait(futures, timeout=seconds)
