"""`memory`: a journal for the lifetime of its process, for tests and for programs that need no more."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections import deque
from typing import Any

from ferrule.journal._claims import Claims
from ferrule.journal._rows import OPEN, find_state, find_ticket, json_text
from ferrule.journal._waiting import Waiters
from ferrule.stores.store import Memory
from ferrule.types import Begun, Journal
from ferrule.values.event import Event
from ferrule.values.frozen import JsonObject
from ferrule.values.journal_entry import Intent, JournalEntry, is_unknown

__all__ = ["MemoryJournal", "memory"]

_MOST_EVENTS = 10_000
_POLL_SECONDS = 0.2
"""Seconds between checks, because a closed loop sends no signal."""


def memory(*, most: int | None = None) -> MemoryJournal:
    """Return a journal in the memory of this process, for any of its threads and loops. See docs/journal.md.

    Args:
        most: The number of ended calls to keep, the newest; `None` for all.
    """
    return MemoryJournal(most)


class MemoryJournal(Journal):
    """The journal of `memory`. It grows with each call that changes something, up to its bound. See docs/journal.md.

    Attributes:
        events: The newest ten thousand events.
    """

    def __init__(self, most: int | None = None) -> None:
        self._limit = most
        self._ended: deque[tuple[str, str]] = deque()  # keys and references, the oldest first
        self.events: deque[Event] = deque(maxlen=_MOST_EVENTS)
        self._calls: dict[str, JournalEntry] = {}
        self._keys_by_reference: dict[str, set[str]] = {}
        self._resumed: dict[str, float] = {}
        self._store = Memory()
        self._waiters = Waiters()
        self._claims = Claims()
        self._lock = threading.Lock()

    @property
    def store(self) -> Memory:
        """Other values of the journal, with compare-and-set."""
        return self._store

    def cut_off(self) -> None:
        """Cut off the running calls, as though the process had died and another had begun.

        For tests of the recovery.
        """
        with self._lock:
            running = [key for key, entry in self._calls.items() if entry.state == "running"]
            self._calls |= {key: dataclasses.replace(self._calls[key], state="cut_off") for key in running}
        for key in running:
            self._waiters.wake(key)

    def note(self, event: Event) -> None:
        """Record an event."""
        self.events.append(event)

    async def find(self, key: str, *, wait: bool = False) -> JournalEntry | None:
        """Return the entry of this key. With `wait`, wait first until the call has ended or was cut off."""
        with self._waiters.register(key) as changed:
            while True:
                entry = self._read_entry(key)
                if not wait or entry is None or entry.state != "running":
                    return entry and _copy(entry)
                await changed.wait(_POLL_SECONDS)

    async def begin(self, intent: Intent, *, after: JournalEntry | None = None) -> Begun:
        """Record that a call is about to run, unless its key is there."""
        new = _copy(JournalEntry(intent=intent, state="running"))
        key = intent.key
        with self._lock:
            same = self._keys_by_reference.setdefault(intent.reference, set())
            other = not same <= {key}
            entry = self._read_entry(key)
            if entry is not None and entry.intent.claim != intent.claim and not _is_unchanged(entry, after):
                return Begun(_copy(entry), other)
            self._calls[key] = new
            self._claims.add(intent.claim)
            same.add(key)
            return Begun(None, other)

    async def end(self, intent: Intent, outcome: JsonObject | None) -> None:
        """Record the outcome of the call, if the entry has its claim."""
        ended = outcome and _make_ended_entry(intent, outcome)
        self._claims.remove(intent.claim)
        with self._lock:
            entry = self._calls.get(intent.key)
            if entry is None or entry.intent.claim != intent.claim:
                return
            if ended:
                self._calls[intent.key] = dataclasses.replace(ended, intent=entry.intent)
                self._forget_oldest(intent)
            else:
                self._forget(intent.key, intent.reference)
        self._waiters.wake(intent.key)

    async def unfinished(self, *, ticket: str | None = None) -> list[JournalEntry]:
        """Return the calls that were cut off or are deferred, the oldest first; with `ticket`, only the one with it."""
        with self._lock:
            open_calls = [entry for key in self._calls if (entry := self._read_entry(key)) and entry.state in OPEN]
        if ticket is not None:
            open_calls = [entry for entry in open_calls if entry.outcome and find_ticket(entry.outcome) == ticket]
        return [_copy(entry) for entry in sorted(open_calls, key=lambda entry: (entry.intent.at, entry.intent.key))]

    async def settle(self, entry: JournalEntry, outcome: JsonObject | None) -> bool:
        """See `Journal.settle`."""
        ended = None if outcome is None else _make_ended_entry(entry.intent, outcome)
        key = entry.intent.key
        with self._lock:
            found = self._read_entry(key)
            if found is None or not _is_unchanged(found, entry):
                return False
            if ended is None:
                self._forget(key, found.intent.reference)
            else:
                self._calls[key] = dataclasses.replace(ended, intent=found.intent)
                self._forget_oldest(found.intent)
        self._waiters.wake(key)
        return True

    async def take(self, key: str, expires_at: float) -> bool:
        """Mark the suspended call of this key as resumed, and return whether it was not marked before."""
        with self._lock:
            now = time.time()
            self._resumed = {name: until for name, until in self._resumed.items() if until > now}
            if key in self._resumed:
                return False
            self._resumed[key] = expires_at
            return True

    def _forget_oldest(self, intent: Intent) -> None:
        """Forget the oldest ended call if there are too many. A deferred call has not ended."""
        if self._limit is None or self._calls[intent.key].state != "ended":
            return
        self._ended.append((intent.key, intent.reference))
        if len(self._ended) > self._limit:
            self._forget(*self._ended.popleft())

    def _forget(self, key: str, reference: str) -> None:
        self._calls.pop(key, None)
        same = self._keys_by_reference.get(reference, set())
        same.discard(key)
        if not same:
            self._keys_by_reference.pop(reference, None)

    def _read_entry(self, key: str) -> JournalEntry | None:
        """Return the entry of a call. If its loop was closed before it ended, it is cut off, and may go on."""
        entry = self._calls.get(key)
        if entry is None or entry.state != "running" or not self._claims.is_abandoned(entry.intent.claim):
            return entry
        return dataclasses.replace(entry, state="cut_off", may_go_on=True)


def _is_unchanged(found: JournalEntry, entry: JournalEntry | None) -> bool:
    """Return whether a call that may be settled is unchanged since `entry` was read."""
    if entry is None or found.state != entry.state or not (found.state in OPEN or is_unknown(found)):
        return False
    return found.intent.claim == entry.intent.claim and json_text(found.outcome) == json_text(entry.outcome)


def _make_ended_entry(intent: Intent, outcome: JsonObject) -> JournalEntry:
    return JournalEntry(intent=intent, state=find_state(outcome), outcome=_plain_copy(outcome))


def _copy(entry: JournalEntry) -> JournalEntry:
    """Return a copy that shares no mutable value with the entry."""
    intent = dataclasses.replace(entry.intent, arguments=_plain_copy(entry.intent.arguments))
    return dataclasses.replace(entry, intent=intent, outcome=entry.outcome and _plain_copy(entry.outcome))


def _plain_copy(value: JsonObject) -> Any:
    return json.loads(json_text(value))
