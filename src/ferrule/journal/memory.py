"""A journal in the memory of one process: once for each call, as long as the process lives."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from threading import Lock

from ferrule.store import Memory
from ferrule.types import Begun, Journal
from ferrule.values.event import Event
from ferrule.values.frozen import JsonObject, freeze
from ferrule.values.kept import Intent, Kept, KeptState

_MOST_EVENTS = 10_000


class MemoryJournal(Journal):
    """What `memory` makes. See docs/journal.md.

    Attributes:
        events: The newest events, at most 10,000.
    """

    def __init__(self) -> None:
        self.events: deque[Event] = deque(maxlen=_MOST_EVENTS)
        self._calls: OrderedDict[str, Kept] = OrderedDict()
        self._references: dict[str, set[str]] = {}
        self._taken: dict[str, float] = {}
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._lock = Lock()
        self._store = Memory()

    def note(self, event: Event) -> None:
        """Keep an event."""
        self.events.append(event)

    async def find(self, key: str, *, wait: bool = False) -> Kept | None:
        """What is kept of the call of this key; with `wait`, once it has ended."""
        while True:
            with self._lock:
                kept = self._calls.get(key)
                if not wait or kept is None or kept.state != "running":
                    return kept
                changed = self._when_changed(key)
            await changed

    def _when_changed(self, key: str) -> asyncio.Future[None]:
        """A future that is done once the call of this key has ended, whichever thread says so."""
        loop = asyncio.get_running_loop()
        changed: asyncio.Future[None] = loop.create_future()

        def done() -> None:
            if not changed.done():
                changed.set_result(None)

        def tell() -> None:
            with suppress(RuntimeError):  # its loop is closed: nobody waits any more
                loop.call_soon_threadsafe(done)

        self._waiting.setdefault(key, []).append(tell)
        return changed

    async def begin(self, intent: Intent, *, after: Kept | None = None) -> Begun:
        """Note that a call is about to run, unless its key is there."""
        with self._lock:
            kept = self._calls.get(intent.key)
            if kept is not None and kept.intent.claim != intent.claim and kept != after:
                return Begun(kept)
            others = self._references.setdefault(intent.reference, set())
            other_arguments = bool(others - {intent.key})
            others.add(intent.key)
            self._put(intent, "running", None)
            return Begun(None, other_arguments)

    def _put(self, intent: Intent, state: KeptState, outcome: JsonObject | None) -> None:
        self._calls[intent.key] = Kept(intent=intent, state=state, outcome=outcome)

    async def end(self, intent: Intent, outcome: JsonObject | None) -> None:
        """Note what the call came to, or forget it."""
        with self._lock:
            kept = self._calls.get(intent.key)
            if kept is None or kept.intent.claim != intent.claim:
                return
            if outcome is None:
                del self._calls[intent.key]
                self._references[intent.reference].discard(intent.key)
            else:
                self._keep(kept.intent, outcome)
            self._tell(intent.key)

    def _keep(self, intent: Intent, outcome: JsonObject) -> None:
        self._put(intent, "deferred" if outcome["status"] == "suspended" else "ended", freeze(outcome))

    def _tell(self, key: str) -> None:
        for tell in self._waiting.pop(key, ()):
            tell()

    async def unfinished(self, *, ticket: str | None = None) -> list[Kept]:
        """The calls that are deferred; nothing is cut off where a process remembers it."""
        with self._lock:
            found = [kept for kept in self._calls.values() if kept.state in ("deferred", "cut_off")]
        return [kept for kept in found if ticket is None or _ticket_of(kept) == ticket]

    async def settle(self, kept: Kept, outcome: JsonObject) -> bool:
        """Note the outcome of a deferred call, where it still is as `kept` says."""
        with self._lock:
            if self._calls.get(kept.intent.key) != kept:
                return False
            self._keep(kept.intent, outcome)
            self._tell(kept.intent.key)
            return True

    def cut_off(self) -> None:
        """Take all calls that run for cut off, as a crash would have left them: for tests."""
        with self._lock:
            for kept in [*self._calls.values()]:
                if kept.state == "running":
                    self._calls[kept.intent.key] = replace(kept, state="cut_off")
                    self._tell(kept.intent.key)

    async def take(self, key: str, expires_at: float) -> bool:
        """Note that a suspended call is taken up; whether it had not been."""
        with self._lock:
            now = time.time()
            for old in [one for one, ends in self._taken.items() if ends <= now]:
                del self._taken[old]
            if key in self._taken:
                return False
            self._taken[key] = expires_at
            return True

    @property
    def store(self) -> Memory:
        """What else is kept here."""
        return self._store


def _ticket_of(kept: Kept) -> str | None:
    pending = (kept.outcome or {}).get("pending") or {}
    ticket: str | None = (pending.get("state") or {}).get("ticket")
    return ticket
