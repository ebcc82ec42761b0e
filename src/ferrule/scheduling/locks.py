"""Locks by key, for calls that touch the same thing: asked for all at once, and taken when the call runs.

    waits ──granted──▶ has its turn ──begins──▶ runs ──released──▶
      ▲                     │
      └──── put off, or a call made by another begins first ────┘

A call that nobody made waits its turn: for all before it that want one of its keys. A call that another one made waits
only for those that run, and begins before all that do not: what it was made by is not done before it is, and may be
what they wait for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import takewhile
from typing import Any


class Hold:
    """The keys that one call has, or wants.

    Attributes:
        owner: The call.
        nested: Whether another one made it.
        shared: Whether it goes beside other shared ones.
        granted: Whether it is its turn.
        runs: Whether it has begun.
    """

    __slots__ = ("_locks", "family", "granted", "keys", "nested", "owner", "runs", "shared", "turn")

    def __init__(self, locks: KeyLocks, keys: frozenset[str], owner: Any, family: set[int], *, shared: bool) -> None:
        self._locks = locks
        self.keys = keys
        self.owner = owner
        self.family = family
        self.nested = bool(family)
        self.shared = shared
        self.granted = self.runs = False
        self.turn: asyncio.Future[None] | None = None

    async def wait(self, timeout: float | None) -> bool:
        """Wait until it is its turn, at most `timeout` seconds; whether it is."""
        loop = asyncio.get_running_loop()
        self.turn = loop.create_future()
        handle = None if timeout is None else loop.call_later(timeout, _expire, self.turn)
        try:
            await self.turn
        except TimeoutError:
            return False
        finally:
            self.turn = None
            if handle is not None:
                handle.cancel()
        return True

    def try_acquire(self) -> bool:
        """Take its turn, if it may; whether it has it."""
        self.granted = self.granted or self._locks.is_free(self)
        return self.granted

    def begin(self) -> bool:
        """Take the keys for as long as the call runs; whether it still may."""
        return self._locks.begin(self)

    def put_off(self) -> None:
        """Leave its turn to others, where the call has to wait for something else."""
        self.granted = False
        self._locks.pass_on(self)

    def release(self) -> None:
        """Give the keys back, or do not want them any more."""
        self._locks.release(self)

    def in_the_way(self) -> Iterator[Hold]:
        """Those that run and have to end before a call that another one made has its turn."""
        return self._locks.running(self)


class KeyLocks:
    """Each key has a queue of holds: those that run, those of calls that others made, and the rest.

    As a hold joins all its queues at once, their orders agree, and two that wait never wait for each other. Nobody
    waits for its own ancestors. On one loop.
    """

    def __init__(self) -> None:
        self._queues: dict[str, deque[Hold]] = {}

    def join(self, keys: Iterable[str], owner: Any, ancestors: Iterable[Any], *, shared: bool) -> Hold:
        """Ask for all keys. The hold is released in the end, in any case."""
        hold = Hold(self, frozenset(keys), owner, set(map(id, ancestors)), shared=shared)
        for key in hold.keys:
            queue = self._queues.setdefault(key, deque())
            place = len(queue)
            if hold.nested:
                place = next((at for at, one in enumerate(queue) if not one.runs and not one.nested), place)
            queue.insert(place, hold)
        hold.try_acquire()
        return hold

    def running(self, hold: Hold) -> Iterator[Hold]:
        """See `Hold.in_the_way`."""
        for key in hold.keys:
            for other in self._queues[key]:
                if other.runs and _conflict(hold, other):
                    yield other

    def is_free(self, hold: Hold) -> bool:
        """Whether it is its turn."""
        if hold.nested:
            return next(self.running(hold), None) is None
        ahead = (takewhile(lambda other: other is not hold, self._queues[key]) for key in hold.keys)
        return not any(_conflict(hold, other) for before in ahead for other in before)

    def begin(self, hold: Hold) -> bool:
        """See `Hold.begin`. What has its turn, does not run and wants the same loses it."""
        hold.granted = self.is_free(hold) if hold.nested else hold.granted
        if not hold.granted:
            return False
        hold.runs = True
        for key in hold.keys:
            for other in self._queues[key]:
                if not other.runs and _conflict(other, hold):
                    other.granted = False
        return True

    def release(self, hold: Hold) -> None:
        """See `Hold.release`."""
        for key in hold.keys:
            self._queues[key].remove(hold)
        self.pass_on(hold)
        for key in hold.keys:
            if not self._queues[key]:
                del self._queues[key]

    def pass_on(self, hold: Hold) -> None:
        """Give their turns to those that wait for one of the keys of `hold`, which had them."""
        for key in hold.keys:
            for other in self._queues[key]:
                if other.runs or other is hold:
                    continue
                if not other.granted and self.is_free(other):
                    other.granted = True
                    if other.turn is not None and not other.turn.done():
                        with suppress(RuntimeError):  # its loop is closed: nobody waits any more
                            other.turn.set_result(None)
                if other.granted and not other.shared and other.turn is not None:
                    break  # it begins, or passes it on


def _conflict(hold: Hold, other: Hold) -> bool:
    """Whether `hold` waits for `other`, where that one runs or is before it."""
    return not (hold.shared and other.shared) and id(other.owner) not in hold.family


def _expire(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_exception(TimeoutError())
