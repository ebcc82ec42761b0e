"""`ManualClock`: a clock that a test moves by hand, so nothing in the test waits."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from functools import partial
from time import time as wall_time
from typing import Any

from ferrule.scheduling.clock import wake


class ManualClock:
    """A clock that only `advance` moves; for one event loop.

        clock = ManualClock()
        runner = Runner(tools, timeout=30, inside=[retry()], clock=clock)
        call = asyncio.create_task(runner.run("search", {...}))
        await clock.advance(30)

    Args:
        start: The first value of `time()`, in seconds.
        now: The first value of `now()`, in seconds since the epoch; the time of the machine if left out.
    """

    def __init__(self, start: float = 0.0, *, now: float | None = None) -> None:
        self._now = float(start)
        self._epoch = (wall_time() if now is None else now) - self._now
        self._order = itertools.count()
        self._timers: list[_Timer] = []

    def time(self) -> float:
        """Return the current seconds. Any thread may call it."""
        return self._now

    def now(self) -> float:
        """Return the current time of day, in seconds since the epoch."""
        return self._epoch + self._now

    def call_at(self, when: float, callback: Callable[..., object], /, *arguments: Any) -> _Timer:
        """Call `callback` once the clock reaches `when`; soon, if it is there already."""
        timer = _Timer(when, next(self._order), partial(callback, *arguments))
        if when <= self._now:
            asyncio.get_running_loop().call_soon(timer.run)
        else:
            heapq.heappush(self._timers, timer)
        return timer

    async def sleep(self, seconds: float, /) -> None:
        """Wait until the clock has moved on by `seconds`. No time at all lets the others have a turn."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()
        timer = self.call_at(self._now + seconds, wake, woken)
        timer.sleeps = True
        try:
            await woken
        finally:
            timer.cancel()

    @property
    def sleeping(self) -> tuple[float, ...]:
        """The due time of each sleeper, the earliest first. Deadlines and the bounds of waits are not included."""
        return tuple(sorted(timer.due for timer in self._timers if timer.sleeps and timer.callback is not None))

    async def advance(self, seconds: float) -> None:
        """Move on by `seconds`, and let everything happen that is due on the way.

        Each event happens at the very second at which it is due, in the order of these; events due together happen in
        the order of their requests. Before each and at the end, every other task of the loop waits for something,
        perhaps for a thread: a journal that is still writing then seems late. Wait for its call to start first.

        Raises:
            ValueError: The time is negative.
        """
        if not seconds >= 0:
            raise ValueError(f"a clock moves on by 0 seconds or more, not by {seconds!r}")
        until = self._now + seconds
        await wait_until_idle()
        while self._timers and self._timers[0].due <= until:
            timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                self._now = max(self._now, timer.due)
                timer.run()
                await wait_until_idle()
        self._now = until
        await wait_until_idle()

    def __repr__(self) -> str:
        return f"ManualClock({self._now!r})"


class _Timer:
    """A timer and its callback."""

    __slots__ = ("callback", "due", "place", "sleeps")

    def __init__(self, due: float, place: int, callback: Callable[[], object]) -> None:
        self.due = due
        self.place = place
        self.callback: Callable[[], object] | None = callback
        self.sleeps = False

    def run(self) -> None:
        callback, self.callback = self.callback, None
        if callback is not None:
            callback()

    def cancel(self) -> None:
        self.callback = None

    def __lt__(self, other: _Timer) -> bool:
        return (self.due, self.place) < (other.due, other.place)


async def wait_until_idle() -> None:
    """Wait until every other task of this loop waits for something: a sleep, a lock, a thread that works."""
    quiet = 0
    while quiet < _TURNS:
        await asyncio.sleep(0)
        quiet = 0 if _is_busy() else quiet + 1


_TURNS = 5
"""A result goes from future to future by callbacks, each a turn later; in between no task has anything to do."""


def _is_busy() -> bool:
    own = asyncio.current_task()
    return any(task is not own and _is_ready(task) for task in asyncio.all_tasks())


def _is_ready(task: asyncio.Task[Any]) -> bool:
    # The future that a task waits for has no public name; anyio's `wait_all_tasks_blocked` reads the same.
    waits_for = getattr(task, "_fut_waiter", None)
    return waits_for is None or waits_for.done()
