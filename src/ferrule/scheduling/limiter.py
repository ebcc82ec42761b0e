"""A fair limit on how many calls run at once; it may be shared by runners on different loops and threads."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Hashable
from weakref import WeakSet, WeakValueDictionary

from ferrule.scheduling.fair_queue import FairQueue


class _Waiter:
    """Who waits: a future of its loop, and whether it was handed a slot, which it may not live to see."""

    __slots__ = ("__weakref__", "future", "group", "handed", "loop")

    def __init__(self, group: Hashable, loop: asyncio.AbstractEventLoop) -> None:
        self.group = group
        self.loop = loop
        self.handed = False
        self.future: asyncio.Future[None] = loop.create_future()


class Limiter:
    """`limit` slots. Who waits is served in turn: each group (a tool, a principal) by one call after the other, first
    come, first served within the group, so that a thousand calls of one do not stand before the first of another.

    Tokens in a list make the free case lock-free: `list.pop` and `list.append` are atomic. A waiter registers before it
    looks again for a token, and a release puts its token back before it looks for waiters, so no wake-up is lost.

    Attributes:
        origin: The limit that this one stands for beneath a call that holds a slot of that; `None` for any other.
        take: Take a slot, or raise `IndexError` where none is free. While others wait none is, but for the moment in
            which another thread hands one on.
    """

    __slots__ = ("__weakref__", "_handed", "_lock", "_tokens", "_waiters", "_waiting", "limit", "origin", "take")

    def __init__(self, limit: int, origin: Limiter | None = None) -> None:
        self.limit = limit
        self.origin = origin
        self._tokens: list[None] = [None] * limit
        self.take: Callable[[], None] = self._tokens.pop
        self._waiters: FairQueue[_Waiter] = FairQueue()
        self._waiting = self._waiters.groups  # whether anybody waits is asked at every release
        self._handed: WeakSet[_Waiter] | None = None  # those who were handed a slot and perhaps have not seen it yet
        self._lock = threading.RLock()  # a collection may close the coroutine of a waiter at any allocation
        _LIMITERS.add(self)

    @property
    def running(self) -> int:
        """Slots that are taken."""
        self._recover()
        return self.limit - len(self._tokens)

    def try_acquire(self) -> bool:
        """Take a slot if one is free and nobody waits."""
        if self._waiters:
            return False
        try:
            self._tokens.pop()
        except IndexError:
            return False
        return True

    async def acquire(self, timeout: float | None, group: Hashable = None) -> bool:
        """Wait for a slot, at most `timeout` seconds; whether there is one."""
        if self.try_acquire():
            return True
        loop = asyncio.get_running_loop()
        waiter = _Waiter(group, loop)
        with self._lock:
            self._waiters.put(group, waiter)
        self._recover()
        self._hand_out()
        handle = None if timeout is None else loop.call_later(timeout, _expire, waiter.future)
        try:
            await waiter.future
        except BaseException as error:  # a `GeneratorExit` where its loop was closed before it had what it was handed
            self._forget(waiter)
            if isinstance(error, TimeoutError):
                return False
            raise
        finally:
            if handle is not None:
                handle.cancel()
        with self._lock:
            self._seen(waiter)
        return True

    def release(self) -> None:
        """Give a slot back; from any thread."""
        self._tokens.append(None)
        if self._waiting:
            self._hand_out()

    def begin_anew(self) -> None:
        """Have all slots free, in a forked process where nothing of what took them goes on."""
        self._lock = threading.RLock()
        self._waiters.clear()
        self._handed = None
        self._tokens[:] = [None] * self.limit

    def _forget(self, waiter: _Waiter) -> None:
        """It does not wait any more; what it was handed meanwhile goes to the next."""
        with self._lock:
            self._waiters.remove(waiter.group, waiter)
            handed = self._seen(waiter)
        if handed:
            self.release()

    def _seen(self, waiter: _Waiter) -> bool:
        """Take note that it knows, or never will; whether it was handed a slot."""
        handed, waiter.handed = waiter.handed, False
        if handed and self._handed is not None:
            self._handed.discard(waiter)
        return handed

    def _recover(self) -> None:
        """Give back what was handed to those whose loop was closed before they saw it."""
        if self._handed:
            with self._lock:
                lost = [waiter for waiter in self._handed if waiter.loop.is_closed()]
            for waiter in lost:
                self._forget(waiter)

    def _hand_out(self) -> None:
        """Give free slots to the waiters, in their order."""
        while True:
            with self._lock:
                if not self._waiters or not self._tokens:
                    return
                try:
                    self._tokens.pop()
                except IndexError:
                    return
                waiter = self._waiters.take()
                if waiter.future.done():  # given up, and not yet forgotten: the next one gets it
                    self._tokens.append(None)
                    continue
                waiter.handed = True
                if self._handed is None:
                    self._handed = WeakSet()
                self._handed.add(waiter)
            try:
                running = asyncio.get_running_loop()
            except RuntimeError:
                running = None
            if running is waiter.loop:
                waiter.future.set_result(None)
                continue
            try:
                waiter.loop.call_soon_threadsafe(_wake, waiter.future)
            except RuntimeError:  # that loop is closed, and its waiter with it
                with self._lock:
                    if self._seen(waiter):
                        self._tokens.append(None)


class PrincipalLimits:
    """A limit for each principal, so that none takes all slots; it is there as long as a call holds it or waits."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._limiters: WeakValueDictionary[str | None, Limiter] = WeakValueDictionary()

    def of(self, principal: str | None) -> Limiter:
        """The slots of one principal; calls without one share theirs."""
        limiter = self._limiters.get(principal)
        if limiter is None:
            limiter = self._limiters[principal] = Limiter(self._limit)
        return limiter


_LIMITERS: WeakSet[Limiter] = WeakSet()


def _after_fork() -> None:
    for limiter in list(_LIMITERS):
        limiter.begin_anew()


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_after_fork)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _expire(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())
