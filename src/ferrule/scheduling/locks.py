"""Locks by key, for calls that touch the same thing: all keys of a call are asked for at once, first come, first
served."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable

from ferrule.scheduling.clock import Timer, wait_until, wake_from_any_thread


class _Key:
    """Who has a key, and who waits for it."""

    __slots__ = ("holders", "waiting")

    def __init__(self) -> None:
        self.holders: set[Hold] = set()
        self.waiting: deque[Hold] = deque()

    def grant(self) -> None:
        """Let those have it whose turn it is: the first, and the shared ones beside it."""
        while self.waiting:
            first = self.waiting[0]
            if self.holders and not (first.shared and next(iter(self.holders)).shared):
                break
            self.holders.add(self.waiting.popleft())
            first.grant()


class Hold:
    """The keys that one call has, or waits for.

    Attributes:
        keys: What it locks.
        shared: Whether it goes beside other shared ones.
        granted: Whether it has all of them.
    """

    __slots__ = ("_lacking", "_locks", "_turn", "keys", "shared")

    def __init__(self, locks: KeyLocks, keys: frozenset[str], *, shared: bool) -> None:
        self._locks = locks
        self._lacking = len(keys)
        self._turn: asyncio.Future[None] | None = None
        self.keys = keys
        self.shared = shared

    @property
    def granted(self) -> bool:
        return not self._lacking

    async def wait(self, until: float | None = None, timer: Timer | None = None) -> bool:
        """Wait until it has the keys, at most until then by `timer` or the loop; whether it has."""
        with self._locks.lock:
            if self.granted:
                return True
            turn = self._turn = asyncio.get_running_loop().create_future()
        await wait_until(turn, until, timer)
        return self.granted

    def grant(self) -> None:
        """Let it have one more of its keys."""
        self._lacking -= 1
        if self.granted and self._turn is not None:
            wake_from_any_thread(self._turn)

    def release(self) -> None:
        """Give the keys back, or stop waiting for them; from any thread."""
        held = self._locks.held
        with self._locks.lock:
            for name in self.keys:
                key = held[name]
                if self in key.holders:
                    key.holders.remove(self)
                else:
                    key.waiting.remove(self)
                key.grant()
                if not key.holders:
                    del held[name]


class KeyLocks:
    """Each key has a queue of holds. As a hold joins all its queues at once, their orders agree, and two that wait
    never wait for each other. Any thread may release a hold: the one that ends last, whose loop may be closed."""

    def __init__(self) -> None:
        self.held: dict[str, _Key] = {}
        self.lock = threading.RLock()  # a collection may release a hold at any allocation

    def join(self, keys: Iterable[str], *, shared: bool) -> Hold:
        """Ask for all keys. The hold is released in the end, in any case."""
        hold = Hold(self, frozenset(keys), shared=shared)
        with self.lock:
            for name in hold.keys:
                key = self.held.setdefault(name, _Key())
                key.waiting.append(hold)
                key.grant()
        return hold
