"""A fair limit on how many calls run at once. Runners on different loops and threads may share one."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Hashable
from weakref import WeakValueDictionary

from ferrule.scheduling.clock import Timer, wait_until, wake_from_any_thread
from ferrule.values.count import pluralize


class _SlotWaiter(asyncio.Future[None]):
    """A waiter, and whether it was given a slot. Its task may be cancelled before it can use the slot."""

    has_slot = False


class Limiter:
    """A number of slots that groups of waiting calls take in turn.

    A group is the calls of one tool by one principal. Each turn serves one call, the first to come within its group. So
    a thousand waiting calls of one tool do not hold up the first call of another.

    Attributes:
        limit: The number of slots.
        name: The limiter's name in leases, if other programs share the limit.
        outer: The limiter in whose place this one is used below a call that holds a slot of `outer`; else None.
        acquire_nowait: Take a slot, or raise `IndexError` if none is free.
    """

    # Tokens in a list make the free case lock-free, because `list.pop` and `list.append` are atomic. A waiter registers
    # before it looks for a token again, and a release returns its token before it looks for waiters. So no wake-up is
    # lost.

    __slots__ = ("__weakref__", "_lock", "_tokens", "_waiting", "acquire_nowait", "limit", "name", "outer")

    def __init__(self, limit: int, name: str | None = None, *, outer: Limiter | None = None) -> None:
        self.limit = limit
        self.name = name
        self.outer = outer
        self._tokens: list[None] = [None] * limit
        self.acquire_nowait: Callable[[], None] = self._tokens.pop
        self._waiting: dict[Hashable, deque[_SlotWaiter]] = {}  # the first group has the next turn
        self._lock = threading.RLock()  # garbage collection may close a waiter's coroutine at any allocation

    @property
    def used_slots(self) -> int:
        """The number of slots that are taken."""
        return self.limit - len(self._tokens)

    @property
    def busy_reason(self) -> str:
        """The reason why no slot is free, for a message."""
        return f"{self.limit} {pluralize(self.limit, 'call runs', 'calls run')} already, the most that may run at once"

    async def acquire(self, deadline: float | None = None, group: Hashable = None, timer: Timer | None = None) -> bool:
        """Wait for a slot until the deadline of `timer`, or of the loop. Return whether a slot was acquired."""
        waiter = _SlotWaiter(loop=asyncio.get_running_loop())
        with self._lock:
            self._waiting.setdefault(group, deque()).append(waiter)
        self._grant_free_slots()
        try:
            await wait_until(waiter, deadline, timer)
        except BaseException:  # includes `GeneratorExit`, if the loop was closed before the task could use its slot
            if self._stop_waiting(waiter, group):
                self.release()
            raise
        return self._stop_waiting(waiter, group)

    def release(self) -> None:
        """Return a slot. Any thread may call this."""
        self._tokens.append(None)
        if self._waiting:
            self._grant_free_slots()

    def reset_after_fork(self) -> None:
        """Free all slots in a forked process, because the calls that took them run in its parent."""
        self._lock = threading.RLock()
        self._waiting.clear()
        self._tokens[:] = [None] * self.limit

    def _stop_waiting(self, waiter: _SlotWaiter, group: Hashable) -> bool:
        """Take the waiter out of its queue. Return whether it got a slot, which now belongs to the caller."""
        with self._lock:
            has_slot, waiter.has_slot = waiter.has_slot, False
            if not has_slot and waiter in (queue := self._waiting.get(group, deque())):
                queue.remove(waiter)
                if not queue:
                    del self._waiting[group]
        return has_slot

    def _pop_next_waiter(self) -> _SlotWaiter:
        """Remove and return the first waiter of the group that has the next turn, and put that group last."""
        group, queue = next(iter(self._waiting.items()))
        waiter = queue.popleft()
        del self._waiting[group]
        if queue:
            self._waiting[group] = queue
        return waiter

    def _grant_free_slots(self) -> None:
        """Give the free slots to the waiters in turn."""
        while True:
            with self._lock:
                if not self._waiting:
                    return
                try:
                    self._tokens.pop()
                except IndexError:
                    return
                waiter = self._pop_next_waiter()
                if waiter.done():  # cancelled, but its task has not run since
                    self._tokens.append(None)
                    continue
                waiter.has_slot = True
            if not wake_from_any_thread(waiter) and self._stop_waiting(waiter, None):  # its loop is closed
                self._tokens.append(None)


class PrincipalLimits:
    """One limiter for each principal, so that no principal takes all slots.

    A limiter exists as long as a call holds it or waits for it. Limiters have names if `named`, so that other programs
    can share them.
    """

    def __init__(self, limit: int, *, named: bool = False) -> None:
        self._limit = limit
        self._named = named
        self._limiters: WeakValueDictionary[str | None, Limiter] = WeakValueDictionary()

    def get_limiter(self, principal: str | None) -> Limiter:
        """Return the limiter of a principal. All calls without a principal share one."""
        limiter = self._limiters.get(principal)
        if limiter is None:
            name = f"principal {principal!r}" if self._named else None
            limiter = self._limiters[principal] = Limiter(self._limit, name)
        return limiter
