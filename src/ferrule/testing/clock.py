"""`ManualClock`: a clock that stands still until a test moves it, so that nothing in a test waits."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from typing import Any


class ManualClock:
    """A clock for `clock=…` that only `advance` moves; for one event loop.

        clock = ManualClock()
        call = asyncio.create_task(runner.run("search", {...}))   # inside=[retry(clock=clock)]
        await clock.advance(30)

    Args:
        start: What `time()` says at first, in seconds.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = float(start)
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def time(self) -> float:
        """The seconds that it stands at; may be called from any thread."""
        return self._now

    async def sleep(self, seconds: float, /) -> None:
        """Wait until the clock has been moved that far; no time at all lets the others have a turn."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        entry = (self._now + seconds, next(self._order), asyncio.get_running_loop().create_future())
        heapq.heappush(self._sleepers, entry)
        try:
            await entry[2]
        finally:
            if entry in self._sleepers:
                self._sleepers.remove(entry)
                heapq.heapify(self._sleepers)

    @property
    def sleeping(self) -> tuple[float, ...]:
        """When each sleeper is due, the first first."""
        return tuple(sorted(due for due, _, future in self._sleepers if not future.done()))

    async def advance(self, seconds: float) -> None:
        """Move on by `seconds`, and let everything happen that is due on the way.

        Who sleeps is woken at the very second at which it is due, in the order of those; who is due together, in the
        order in which they fell asleep. Before each and at the end, every other task of the loop has come to where it
        waits for something.

        Raises:
            ValueError: for less than no time.
        """
        if not seconds >= 0:
            raise ValueError(f"a clock moves on by 0 seconds or more, not by {seconds!r}")
        until = self._now + seconds
        await settled()
        while self._sleepers and self._sleepers[0][0] <= until:
            due, _, future = heapq.heappop(self._sleepers)
            self._now = max(self._now, due)
            if not future.done():
                future.set_result(None)
                await settled()
        self._now = until
        await settled()

    def __repr__(self) -> str:
        return f"ManualClock({self._now!r})"


async def settled() -> None:
    """Wait until every other task of this loop waits for something: a sleep, a lock, a thread that works."""
    quiet = 0
    while quiet < _TURNS:
        await asyncio.sleep(0)
        quiet = 0 if _busy() else quiet + 1


_TURNS = 5
"""A result goes from future to future by callbacks, each a turn later; in between no task has anything to do."""


def _busy() -> bool:
    own = asyncio.current_task()
    return any(task is not own and _has_a_turn(task) for task in asyncio.all_tasks())


def _has_a_turn(task: asyncio.Task[Any]) -> bool:
    # What a task waits for has no public name; anyio's `wait_all_tasks_blocked` reads the same.
    waits_for = getattr(task, "_fut_waiter", None)
    return waits_for is None or waits_for.done()
