"""A fair limit on how many calls run at once; it may be shared by runners on different loops and threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable
from typing import TypeAlias
from weakref import WeakValueDictionary

from ferrule.core.turns import Turns

_Waiter: TypeAlias = tuple[Hashable, asyncio.AbstractEventLoop, asyncio.Future[None]]


class Limiter:
    """`limit` slots. Who waits is served in turn: each group (a tool, a principal) by one call after the other, first
    come, first served within the group, so that a thousand calls of one do not stand before the first of another.

    Tokens in a list make the free case lock-free: `list.pop` and `list.append` are atomic. A waiter registers before it
    looks again for a token, and a release puts its token back before it looks for waiters, so no wake-up is lost.

    Attributes:
        take: Take a slot, or raise `IndexError` where none is free. While others wait none is, but for the moment in
            which another thread hands one on.
    """

    __slots__ = ("__weakref__", "_lock", "_tokens", "_waiters", "limit", "take")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._tokens: list[None] = [None] * limit
        self.take: Callable[[], None] = self._tokens.pop
        self._waiters: Turns[_Waiter] = Turns()
        self._lock = threading.Lock()

    @property
    def running(self) -> int:
        """Slots that are taken."""
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
        future: asyncio.Future[None] = loop.create_future()
        entry = (group, loop, future)
        with self._lock:
            self._waiters.put(group, entry)
        self._hand_out()
        handle = None if timeout is None else loop.call_later(timeout, _expire, future)
        try:
            await future
            return True
        except TimeoutError:
            self._forget(entry)
            return False
        except BaseException:
            self._forget(entry)
            if future.done() and not future.cancelled() and future.exception() is None:
                self.release()
            raise
        finally:
            if handle is not None:
                handle.cancel()

    def release(self) -> None:
        """Give a slot back; from any thread."""
        self._tokens.append(None)
        if self._waiters:
            self._hand_out()

    def refill(self) -> None:
        """Begin anew, in a forked process where nothing of what took the slots goes on."""
        self._lock = threading.Lock()
        self._waiters.clear()
        self._tokens[:] = [None] * self.limit

    def _forget(self, entry: _Waiter) -> None:
        with self._lock:
            self._waiters.remove(entry[0], entry)

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
                _, loop, future = self._waiters.take()
            try:
                running = asyncio.get_running_loop()
            except RuntimeError:
                running = None
            if running is loop:
                if future.done():  # given up, and not yet forgotten: the next one gets it, without a call per waiter
                    self._tokens.append(None)
                else:
                    future.set_result(None)
            else:
                try:
                    loop.call_soon_threadsafe(self._wake, future)
                except RuntimeError:  # that loop is closed, and its waiter with it
                    self._tokens.append(None)

    def _wake(self, future: asyncio.Future[None]) -> None:
        if future.done():
            self.release()
        else:
            future.set_result(None)


class Shares:
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


def _expire(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())
