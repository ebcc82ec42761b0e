"""A fair limit on how many calls run at once; it may be shared by runners on different loops and threads."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Hashable
from weakref import WeakValueDictionary

from ferrule.scheduling.clock import Timer, wait_until, wake_from_any_thread


class _SlotWaiter(asyncio.Future[None]):
    """Who waits, and whether it was handed a slot, which it may not live to see."""

    handed = False


class Limiter:
    """`limit` slots. Who waits is served in turn: each group (a tool, a principal) by one call after the other, first
    come, first served within the group, so that a thousand calls of one do not stand before the first of another.

    Tokens in a list make the free case lock-free: `list.pop` and `list.append` are atomic. A waiter registers before it
    looks again for a token, and a release puts its token back before it looks for waiters, so no wake-up is lost.

    Attributes:
        name: What it is called among all programs, where it may hold there too.
        origin: The limit that this one stands for beneath a call that holds a slot of that; `None` for any other.
        take: Take a slot, or raise `IndexError` where none is free. While others wait none is, but for the moment in
            which another thread hands one on.
    """

    __slots__ = ("__weakref__", "_lock", "_tokens", "_waiting", "limit", "name", "origin", "take")

    def __init__(self, limit: int, name: str | None = None, *, origin: Limiter | None = None) -> None:
        self.limit = limit
        self.name = name
        self.origin = origin
        self._tokens: list[None] = [None] * limit
        self.take: Callable[[], None] = self._tokens.pop
        self._waiting: dict[Hashable, deque[_SlotWaiter]] = {}  # the group whose turn it is stands first
        self._lock = threading.RLock()  # a collection may close the coroutine of a waiter at any allocation

    @property
    def running(self) -> int:
        """Slots that are taken."""
        return self.limit - len(self._tokens)

    @property
    def full(self) -> str:
        """Why there is no slot, in words."""
        return f"{self.limit} calls run already, the most that may run at once"

    async def acquire(self, until: float | None = None, group: Hashable = None, timer: Timer | None = None) -> bool:
        """Wait for a slot, at most until then by `timer` or the loop; whether there is one."""
        waiter = _SlotWaiter(loop=asyncio.get_running_loop())
        with self._lock:
            self._waiting.setdefault(group, deque()).append(waiter)
        self._hand_out()
        try:
            await wait_until(waiter, until, timer)
        except BaseException:  # a `GeneratorExit` where its loop was closed before it had what it was handed
            if self._leave(waiter, group):
                self.release()
            raise
        return self._leave(waiter, group)

    def release(self) -> None:
        """Give a slot back; from any thread."""
        self._tokens.append(None)
        if self._waiting:
            self._hand_out()

    def begin_anew(self) -> None:
        """Have all slots free, in a forked process where nothing of what took them goes on."""
        self._lock = threading.RLock()
        self._waiting.clear()
        self._tokens[:] = [None] * self.limit

    def _leave(self, waiter: _SlotWaiter, group: Hashable) -> bool:
        """It does not wait any more; whether it was handed a slot that nobody has noted yet."""
        with self._lock:
            handed, waiter.handed = waiter.handed, False
            if not handed and waiter in (queue := self._waiting.get(group, deque())):
                queue.remove(waiter)
                if not queue:
                    del self._waiting[group]
        return handed

    def _next(self) -> _SlotWaiter:
        """The first of the group whose turn it is; the next one is another group's."""
        group, queue = next(iter(self._waiting.items()))
        waiter = queue.popleft()
        del self._waiting[group]
        if queue:
            self._waiting[group] = queue
        return waiter

    def _hand_out(self) -> None:
        """Give free slots to the waiters, in their order."""
        while True:
            with self._lock:
                if not self._waiting:
                    return
                try:
                    self._tokens.pop()
                except IndexError:
                    return
                waiter = self._next()
                if waiter.done():  # given up, and not yet gone: the next one gets it
                    self._tokens.append(None)
                    continue
                waiter.handed = True
            if not wake_from_any_thread(waiter) and self._leave(waiter, None):  # closed, and its waiter with it
                self._tokens.append(None)


class PrincipalLimits:
    """A limit for each principal, so that none takes all slots; it is there as long as a call holds it or waits. Where
    they are `named`, each may hold among all programs."""

    def __init__(self, limit: int, *, named: bool = False) -> None:
        self._limit = limit
        self._named = named
        self._limiters: WeakValueDictionary[str | None, Limiter] = WeakValueDictionary()

    def of(self, principal: str | None) -> Limiter:
        """The slots of one principal; calls without one share theirs."""
        limiter = self._limiters.get(principal)
        if limiter is None:
            name = f"principal {principal!r}" if self._named else None
            limiter = self._limiters[principal] = Limiter(self._limit, name)
        return limiter
