"""`memory`: a journal that lasts as long as its process, for tests and for programs that need no more."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections import deque
from typing import Any

from ferrule.journal._claims import Claims
from ferrule.journal._rows import OPEN, json_text, state_of, ticket_of
from ferrule.journal._waiting import Waiting
from ferrule.stores.store import Memory
from ferrule.types import Begun, Journal
from ferrule.values.event import Event
from ferrule.values.frozen import JsonObject
from ferrule.values.journal_entry import Intent, JournalEntry, is_unknown

__all__ = ["MemoryJournal", "memory"]

_MOST_EVENTS = 10_000
_LOOK_AFTER = 0.2
"""Seconds, as nobody tells that a loop was closed."""


def memory(*, most: int | None = None) -> MemoryJournal:
    """A journal in the memory of this process, for any of its threads and loops. See docs/journal.md.

    Args:
        most: How many calls that have ended it keeps, the newest; `None` for all.
    """
    return MemoryJournal(most)


class MemoryJournal(Journal):
    """What `memory` makes. It grows with each call that changes something, up to its bound. See docs/journal.md.

    Attributes:
        events: The newest ten thousand events that it was told of.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._ended: deque[tuple[str, str]] = deque()  # keys and references, the oldest first
        self.events: deque[Event] = deque(maxlen=_MOST_EVENTS)
        self._calls: dict[str, JournalEntry] = {}
        self._of_reference: dict[str, set[str]] = {}
        self._taken: dict[str, float] = {}
        self._store = Memory()
        self._waiting = Waiting()
        self._claims = Claims()
        self._lock = threading.Lock()

    @property
    def store(self) -> Memory:
        """What else is kept, by compare-and-set."""
        return self._store

    def cut_off(self) -> None:
        """As though the process had died and another had begun: what runs is cut off. For tests of what comes then."""
        with self._lock:
            running = [key for key, entry in self._calls.items() if entry.state == "running"]
            self._calls |= {key: dataclasses.replace(self._calls[key], state="cut_off") for key in running}
        for key in running:
            self._waiting.wake(key)

    def note(self, event: Event) -> None:
        """Keep an event."""
        self.events.append(event)

    async def find(self, key: str, *, wait: bool = False) -> JournalEntry | None:
        """What is kept of the call of this key. With `wait`, no earlier than it has ended or was cut off."""
        with self._waiting.of(key) as changed:
            while True:
                entry = self._kept(key)
                if not wait or entry is None or entry.state != "running":
                    return entry and _copy(entry)
                await changed.wait(_LOOK_AFTER)

    async def begin(self, intent: Intent, *, after: JournalEntry | None = None) -> Begun:
        """Keep that a call is about to run, unless its key is there."""
        new = _copy(JournalEntry(intent=intent, state="running"))
        key = intent.key
        with self._lock:
            same = self._of_reference.setdefault(intent.reference, set())
            other = not same <= {key}
            entry = self._kept(key)
            if entry is not None and entry.intent.claim != intent.claim and not _is_still(entry, after):
                return Begun(_copy(entry), other)
            self._calls[key] = new
            self._claims.add(intent.claim)
            same.add(key)
            return Begun(None, other)

    async def end(self, intent: Intent, outcome: JsonObject | None) -> None:
        """Keep what the call came to, where what is there has its claim."""
        ended = outcome and _kept_end(intent, outcome)
        self._claims.remove(intent.claim)
        with self._lock:
            entry = self._calls.get(intent.key)
            if entry is None or entry.intent.claim != intent.claim:
                return
            if ended:
                self._calls[intent.key] = dataclasses.replace(ended, intent=entry.intent)
                self._note_ended(intent)
            else:
                self._forget(intent.key, intent.reference)
        self._waiting.wake(intent.key)

    async def unfinished(self, *, ticket: str | None = None) -> list[JournalEntry]:
        """The calls that were cut off and those that are deferred, the oldest first; of one ticket, that one."""
        with self._lock:
            open_calls = [entry for key in self._calls if (entry := self._kept(key)) and entry.state in OPEN]
        if ticket is not None:
            open_calls = [entry for entry in open_calls if entry.outcome and ticket_of(entry.outcome) == ticket]
        return [_copy(entry) for entry in sorted(open_calls, key=lambda entry: (entry.intent.at, entry.intent.key))]

    async def settle(self, entry: JournalEntry, outcome: JsonObject | None) -> bool:
        """See `Journal.settle`."""
        ended = None if outcome is None else _kept_end(entry.intent, outcome)
        key = entry.intent.key
        with self._lock:
            found = self._kept(key)
            if found is None or not _is_still(found, entry):
                return False
            if ended is None:
                self._forget(key, found.intent.reference)
            else:
                self._calls[key] = dataclasses.replace(ended, intent=found.intent)
                self._note_ended(found.intent)
        self._waiting.wake(key)
        return True

    async def take(self, key: str, expires_at: float) -> bool:
        """Note that the suspended call of this key is taken up; whether it had not been."""
        with self._lock:
            now = time.time()
            self._taken = {name: until for name, until in self._taken.items() if until > now}
            if key in self._taken:
                return False
            self._taken[key] = expires_at
            return True

    def _note_ended(self, intent: Intent) -> None:
        """Forget the oldest call that has ended, where there are too many; a deferred one has not."""
        if self._most is None or self._calls[intent.key].state != "ended":
            return
        self._ended.append((intent.key, intent.reference))
        if len(self._ended) > self._most:
            self._forget(*self._ended.popleft())

    def _forget(self, key: str, reference: str) -> None:
        self._calls.pop(key, None)
        same = self._of_reference.get(reference, set())
        same.discard(key)
        if not same:
            self._of_reference.pop(reference, None)

    def _kept(self, key: str) -> JournalEntry | None:
        """What is kept of a call; it is cut off where its loop was closed under it, and may go on."""
        entry = self._calls.get(key)
        if entry is None or entry.state != "running" or not self._claims.is_left(entry.intent.claim):
            return entry
        return dataclasses.replace(entry, state="cut_off", may_go_on=True)


def _is_still(found: JournalEntry, entry: JournalEntry | None) -> bool:
    """Whether a call that may be settled is as it was when `entry` was read."""
    if entry is None or found.state != entry.state or not (found.state in OPEN or is_unknown(found)):
        return False
    return found.intent.claim == entry.intent.claim and json_text(found.outcome) == json_text(entry.outcome)


def _kept_end(intent: Intent, outcome: JsonObject) -> JournalEntry:
    return JournalEntry(intent=intent, state=state_of(outcome), outcome=_plain_copy(outcome))


def _copy(entry: JournalEntry) -> JournalEntry:
    """One that shares nothing with it that could be changed."""
    intent = dataclasses.replace(entry.intent, arguments=_plain_copy(entry.intent.arguments))
    return dataclasses.replace(entry, intent=intent, outcome=entry.outcome and _plain_copy(entry.outcome))


def _plain_copy(value: JsonObject) -> Any:
    return json.loads(json_text(value))
