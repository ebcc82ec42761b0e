"""Waking those who wait at their deadlines, with one timer of the loop for all that wait equally long."""

from __future__ import annotations

import asyncio
from typing import TypeAlias

_Waiter: TypeAlias = "asyncio.Future[None]"


class Timer:
    """Wakes each waiter `seconds` after it was added, unless it is removed before.

    Waiters become due in the order in which they came, so only the first needs a timer of the loop. The loop keeps its
    timers in a heap, and with one for each of a thousand calls the comparisons there cost more than the calls.

    Attributes:
        loop: The loop of all who wait.
        seconds: How long each waits.
    """

    __slots__ = ("_armed", "_handle", "_waiting", "loop", "seconds")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self.loop = loop
        self.seconds = seconds
        self._waiting: dict[_Waiter, float] = {}
        self._handle: asyncio.TimerHandle | None = None
        self._armed = 0.0

    def add(self, waiter: _Waiter) -> None:
        """Wake `waiter` in `seconds`."""
        due = self._waiting[waiter] = self.loop.time() + self.seconds
        if self._handle is None:
            self._arm(due)

    def remove(self, waiter: _Waiter) -> None:
        """Do not wake `waiter` any more."""
        self._waiting.pop(waiter, None)
        if not self._waiting and self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self, due: float) -> None:
        self._armed = due
        self._handle = self.loop.call_at(due, self._ring)

    def _ring(self) -> None:
        now = max(self.loop.time(), self._armed)  # a loop may round its time, and come early by its own count
        self._handle = None
        come: list[_Waiter] = []
        for waiter, due in self._waiting.items():
            if due > now:
                self._arm(due)
                break
            come.append(waiter)
        for waiter in come:
            del self._waiting[waiter]
            wake(waiter)


def wake(waiter: _Waiter) -> None:
    """Let whoever waits look again."""
    if not waiter.done():
        waiter.set_result(None)
