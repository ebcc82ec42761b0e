"""Locks by key, for calls that touch the same thing. A call requests all its keys at once, and the first to request
is the first to get them."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable

from ferrule.scheduling.clock import Timer, wait_until, wake_from_any_thread


class _KeyQueue:
    """The holders of one key, and the queue for it."""

    __slots__ = ("holders", "waiting")

    def __init__(self) -> None:
        self.holders: set[Hold] = set()
        self.waiting: deque[Hold] = deque()

    def grant_next(self) -> None:
        """Grant the key to the first in the queue if it is free. Shared holds at the front get it together."""
        while self.waiting:
            first = self.waiting[0]
            if self.holders and not (first.shared and next(iter(self.holders)).shared):
                break
            self.holders.add(self.waiting.popleft())
            first.grant_key()


class Hold:
    """The keys that one call holds or waits for.

    Attributes:
        keys: The keys.
        shared: Whether other shared holds may have the same keys at the same time.
        outer: Always None; only a `Limiter` has one.
    """

    outer = None
    __slots__ = ("_locks", "_missing", "_waiter", "keys", "shared")

    def __init__(self, locks: KeyLocks, keys: frozenset[str], *, shared: bool) -> None:
        self._locks = locks
        self._missing = len(keys)
        self._waiter: asyncio.Future[None] | None = None
        self.keys = keys
        self.shared = shared

    @property
    def is_granted(self) -> bool:
        """Whether all keys are held."""
        return not self._missing

    async def wait(self, deadline: float | None = None, timer: Timer | None = None) -> bool:
        """Wait for the keys until the deadline of `timer`, or of the loop. Return whether all are held."""
        with self._locks.lock:
            if self.is_granted:
                return True
            waiter = self._waiter = asyncio.get_running_loop().create_future()
        await wait_until(waiter, deadline, timer)
        return self.is_granted

    def grant_key(self) -> None:
        """Count one more key as held, and wake the waiter when none is missing."""
        self._missing -= 1
        if self.is_granted and self._waiter is not None:
            wake_from_any_thread(self._waiter)

    def release(self) -> None:
        """Release the keys, or leave their queues. Any thread may call this."""
        queues = self._locks.queues
        with self._locks.lock:
            for key in self.keys:
                queue = queues[key]
                if self in queue.holders:
                    queue.holders.remove(self)
                else:
                    queue.waiting.remove(self)
                queue.grant_next()
                if not queue.holders:
                    del queues[key]


class KeyLocks:
    """A queue of holds for each key.

    A hold joins all its queues at once. So the queues agree on the order, and two holds never wait for each other. Any
    thread may release a hold, because the last job of a call may end in a thread whose loop is closed.
    """

    def __init__(self) -> None:
        self.queues: dict[str, _KeyQueue] = {}
        self.lock = threading.RLock()  # garbage collection may release a hold at any allocation

    def request(self, keys: Iterable[str], *, shared: bool) -> Hold:
        """Join the queue of every key. The caller must release the hold in the end, granted or not."""
        hold = Hold(self, frozenset(keys), shared=shared)
        with self.lock:
            for key in hold.keys:
                queue = self.queues.setdefault(key, _KeyQueue())
                queue.waiting.append(hold)
                queue.grant_next()
        return hold
