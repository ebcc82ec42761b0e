"""The clock that waits and deadlines use, and how a waiter is woken. Tests use a clock that they move by hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeAlias, runtime_checkable


class Cancellable(Protocol):
    """A scheduled callback that can be cancelled."""

    def cancel(self) -> object: ...


@runtime_checkable
class Clock(Protocol):
    """Tells the time and sleeps. `ferrule.testing.ManualClock` is a clock that only a test moves.

    A subclass inherits `call_at` and `now`. See docs/testing.md.
    """

    def time(self) -> float:
        """Return the seconds since an arbitrary moment. They never go back. Any thread may call this."""
        ...

    async def sleep(self, seconds: float, /) -> None:
        """Wait `seconds` by this clock."""
        ...

    def call_at(self, when: float, callback: Callable[..., object], /, *arguments: Any) -> Cancellable:
        """Call `callback` on the running loop when `time()` reaches `when`. The default uses the loop's own timer."""
        return asyncio.get_running_loop().call_later(when - self.time(), callback, *arguments)

    def now(self) -> float:
        """Return the seconds since the epoch, for dates that people read and for expiry. Any thread may call this."""
        return time.time()


class _MachineClock(Clock):
    """The clock of the machine."""

    time = staticmethod(time.monotonic)
    sleep = staticmethod(asyncio.sleep)


MONOTONIC: Clock = _MachineClock()
Timer: TypeAlias = Clock | asyncio.AbstractEventLoop
"""An object with `time` and `call_at`: a clock, or an event loop, which has its own timers."""


async def wait_until(waiter: asyncio.Future[None], deadline: float | None, timer: Timer | None = None) -> None:
    """Wait until `waiter` is woken or the deadline passes. Wait forever if the deadline is None."""
    timeout = None if deadline is None else (timer or waiter.get_loop()).call_at(deadline, wake, waiter)
    try:
        await waiter
    finally:
        if timeout is not None:
            timeout.cancel()


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def waiter_for_end(future: asyncio.Future[Any]) -> asyncio.Future[None]:
    """Return a waiter that is woken when `future` ends, or earlier by `wake`."""
    # Waiting for it costs a fifth of `asyncio.wait`.
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.add_done_callback(partial(wake, waiter))
    return waiter


def wake(waiter: asyncio.Future[None], ended: object = None) -> None:
    """Wake the waiter, unless it has been woken or cancelled already. A future that has `ended` may call it."""
    if not waiter.done():
        waiter.set_result(None)


def wake_from_any_thread(waiter: asyncio.Future[None]) -> bool:
    """Wake the waiter on its own loop. Return False if that loop is closed."""
    loop = waiter.get_loop()
    if loop is running_loop():
        wake(waiter)
        return True
    try:
        loop.call_soon_threadsafe(wake, waiter)
    except RuntimeError:
        return False
    return True


async def wait_in_real_time(futures: set[asyncio.Future[Any]], seconds: float | None) -> None:
    """Wait for all futures, for at most `seconds` by the machine's clock.

    A runner that ends waits for programs and disks, and a test's clock does not move those.
    """
    await asyncio.wait(futures, timeout=seconds)
