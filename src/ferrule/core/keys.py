"""Locks by key, for calls that touch the same thing: taken all at once, in order of arrival.

So no two calls wait for each other here. What a running call calls in turn may: that is looked for in `waiting.py`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import Any


class Hold:
    """The keys that one call holds or waits for."""

    __slots__ = ("family", "future", "granted", "keys", "locks", "owner", "shared")

    def __init__(self, locks: KeyLocks, keys: frozenset[str], owner: Any, family: set[int], *, shared: bool) -> None:
        self.locks = locks
        self.keys = keys
        self.owner = owner
        self.family = family
        self.shared = shared
        self.granted = False
        self.future: asyncio.Future[None] | None = None

    async def wait(self, timeout: float | None) -> bool:
        """Wait until it is granted, at most `timeout` seconds; whether it is."""
        loop = asyncio.get_running_loop()
        self.future = loop.create_future()
        handle = None if timeout is None else loop.call_later(timeout, _expire, self.future)
        try:
            await self.future
        except TimeoutError:
            return False
        finally:
            if handle is not None:
                handle.cancel()
        return True

    def release(self) -> None:
        """Give the keys back, or leave their queues."""
        self.locks.release(self)

    def in_the_way(self) -> Iterator[Hold]:
        """What has to be released before this one is granted: what is granted, and what waits for other keys too.

        What waits for one key alone waits for what is granted before it there, and that is told.
        """
        return self.locks.in_the_way(self)


class KeyLocks:
    """Each key has a queue of holds; a hold is granted once nothing before it, in any of its queues, is in its way.

    As a hold joins all its queues at once, their orders agree, and two holds never wait for each other. The exception
    is a call that was made by one which holds the key: it goes before those that wait for its ancestor, or each would
    wait for the other. On one loop.
    """

    def __init__(self) -> None:
        self._queues: dict[str, deque[Hold]] = {}

    def join(self, keys: Iterable[str], owner: Any, ancestors: Iterable[Any], *, shared: bool) -> Hold:
        """Ask for all keys: a hold that is granted, or is to be waited for, and is released in the end in any case.

        A shared hold goes beside other shared ones, and nobody waits for its own ancestors.
        """
        hold = Hold(self, frozenset(keys), owner, set(map(id, ancestors)), shared=shared)
        for key in hold.keys:
            self._join(self._queues.setdefault(key, deque()), hold)
        hold.granted = self._free(hold)
        return hold

    @staticmethod
    def _join(queue: deque[Hold], hold: Hold) -> None:
        place = len(queue)
        if any(other.granted and id(other.owner) in hold.family for other in queue):
            place = next((place for place, other in enumerate(queue) if not other.granted), place)
        queue.insert(place, hold)

    def _free(self, hold: Hold) -> bool:
        for key in hold.keys:
            for other in self._queues[key]:
                if other is hold:
                    break
                beside = other.shared and hold.shared
                if beside or id(other.owner) in hold.family or self._waits_for(other, hold.family):
                    continue
                return False
        return True

    def in_the_way(self, hold: Hold) -> Iterator[Hold]:
        """See `Hold.in_the_way`."""
        for key in hold.keys:
            before = list(takewhile(lambda other: other is not hold, self._queues[key]))
            exclusive = not hold.shared or any(not other.shared and not other.granted for other in before)
            for other in before:
                if id(other.owner) in hold.family:
                    continue
                if other.granted:
                    if exclusive or not other.shared:
                        yield other
                elif len(other.keys) > 1 and exclusive and not self._waits_for(other, hold.family):
                    yield other

    def _waits_for(self, other: Hold, family: set[int]) -> bool:
        """Whether `other` cannot go on before one of `family` is done, who would wait for it in turn."""
        return not other.granted and any(
            one.granted and id(one.owner) in family for key in other.keys for one in self._queues[key]
        )

    def release(self, hold: Hold) -> None:
        """Give the keys back and grant what waited for them."""
        waiting: dict[int, Hold] = {}
        for key in hold.keys:
            queue = self._queues[key]
            queue.remove(hold)
            if not queue:
                del self._queues[key]
                continue
            for other in queue:
                if not other.granted:
                    waiting[id(other)] = other
                    if not other.shared:
                        break
        for other in waiting.values():
            if self._free(other) and other.future is not None and not other.future.done():
                other.granted = True
                other.future.set_result(None)


def _expire(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())
