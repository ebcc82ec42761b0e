"""Locks by key, for calls that touch the same thing: all keys of a call are asked for at once, first come, first
served."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from contextlib import suppress


class Hold:
    """The keys that one call has, or waits for.

    Attributes:
        keys: What it locks.
        shared: Whether it goes beside other shared ones.
        granted: Whether it has them.
    """

    __slots__ = ("_locks", "_turn", "granted", "keys", "shared")

    def __init__(self, locks: KeyLocks, keys: frozenset[str], *, shared: bool) -> None:
        self._locks = locks
        self._turn: asyncio.Future[None] | None = None
        self.keys = keys
        self.shared = shared
        self.granted = False

    async def wait(self, timeout: float | None) -> bool:
        """Wait until it has the keys, at most `timeout` seconds; whether it has."""
        if not self.granted:
            self._turn = asyncio.get_running_loop().create_future()
            await asyncio.wait({self._turn}, timeout=timeout)
        return self.granted

    def release(self) -> None:
        """Give the keys back, or do not wait for them any more."""
        self._locks.release(self)

    def grant(self) -> None:
        """Let it go on."""
        self.granted = True
        if self._turn is not None and not self._turn.done():
            with suppress(RuntimeError):  # its loop is closed: nobody waits any more
                self._turn.set_result(None)


class KeyLocks:
    """Each key has a queue of holds. As a hold joins all its queues at once, their orders agree, and two that wait
    never wait for each other. On one loop."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[Hold]] = {}

    def __len__(self) -> int:
        return len(self._queues)

    def join(self, keys: Iterable[str], *, shared: bool) -> Hold:
        """Ask for all keys. The hold is released in the end, in any case."""
        hold = Hold(self, frozenset(keys), shared=shared)
        for key in hold.keys:
            self._queues.setdefault(key, deque()).append(hold)
        if self._is_first(hold):
            hold.grant()
        return hold

    def release(self, hold: Hold) -> None:
        """See `Hold.release`."""
        for key in hold.keys:
            self._queues[key].remove(hold)
        for key in hold.keys:
            self._grant_next(self._queues[key])
            if not self._queues[key]:
                del self._queues[key]

    def _grant_next(self, queue: Iterable[Hold]) -> None:
        for waiting in queue:
            if not waiting.granted and self._is_first(waiting):
                waiting.grant()
            if not waiting.shared:  # nobody goes past it
                break

    def _is_first(self, hold: Hold) -> bool:
        """Whether nobody before it, in any of its queues, stands in its way."""
        for key in hold.keys:
            for before in self._queues[key]:
                if before is hold:
                    break
                if not (before.shared and hold.shared):
                    return False
        return True
