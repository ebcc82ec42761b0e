"""Waits for keys, in any loop of this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Waiter:
    """One waiting task, in its loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until woken, or until the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        self._woken.clear()

    def wake(self) -> None:
        """Wake it, from any thread."""
        with suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._woken.set)


class Waiters:
    """The waiting tasks, by key."""

    def __init__(self) -> None:
        self._waiters: dict[str, set[Waiter]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def register(self, key: str) -> Iterator[Waiter]:
        """Yield a waiter for `key` during this block."""
        waiter = Waiter()
        with self._lock:
            self._waiters.setdefault(key, set()).add(waiter)
        try:
            yield waiter
        finally:
            with self._lock:
                left = self._waiters[key]
                left.discard(waiter)
                if not left:
                    del self._waiters[key]

    def wake(self, key: str) -> None:
        """Wake all waiters for `key`."""
        with self._lock:
            waiters = [*self._waiters.get(key, ())]
        for waiter in waiters:
            waiter.wake()
