"""Delete calls that ended long ago from a journal: a reader finds them, the writer deletes them.

Unfinished calls stay, however old they are: a call that runs, was cut off after it may have changed something, or is
deferred, and a question that can still be answered. A run with a key that was put aside is deleted like an ended one. A
deleted call is forgotten: if it comes again, it runs again.
"""

from __future__ import annotations

import logging
import math
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ferrule.errors import DefinitionError, JournalError
from ferrule.journal._rows import EVENT_COLUMNS, Column, column, json_text
from ferrule.journal.reading import OF_CALLS, UNFINISHED, Found, Snapshot, get_field
from ferrule.values.journal_entry import KEYED_RUN_NAME

if TYPE_CHECKING:
    from ferrule.journal.sqlite import SQLiteJournal

__all__ = ["DAY", "Expired", "Pruned", "add_pruned_row", "check_days", "delete_rows", "find_expired", "start_pruning"]

log = logging.getLogger("ferrule")
DAY = 86_400.0
PRUNED = "journal:pruned"
"""The kind of the row that reports the deletion of calls that ended `before`."""
_HOUR = 3600.0
_ROWS_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Pruned:
    """The numbers of deleted calls and events. See docs/journal.md#retention.

    Attributes:
        calls: The number of calls.
        events: The number of rows of events, both of these calls and of no call.
    """

    calls: int = 0
    events: int = 0


@dataclass(slots=True)
class Expired:
    """The rows that can be deleted.

    Attributes:
        calls: The number of calls.
        events: The places of rows.
        keys: The keys of entries in the table of calls.
    """

    calls: int = 0
    events: list[int] = field(default_factory=list)
    keys: list[Column] = field(default_factory=list)

    def parts(self) -> Iterator[tuple[Sequence[int], Sequence[Column]]]:
        """Yield parts of it, each for one short transaction that blocks nobody for long."""
        for start in range(0, max(len(self.events), len(self.keys)), _ROWS_AT_ONCE):
            yield self.events[start : start + _ROWS_AT_ONCE], self.keys[start : start + _ROWS_AT_ONCE]


def check_days(option: str, days: float) -> None:
    """Check a number of days.

    Raises:
        DefinitionError: The value is no number of days.
    """
    number: object = days
    if not isinstance(number, int | float) or number is True or not 0 <= number < math.inf:
        raise DefinitionError(f"{option} must be a number of days, such as 90, not {days!r}")


def start_pruning(journal: SQLiteJournal, days: float, closed: threading.Event) -> None:
    """Prune a journal in a thread of its own, now and once an hour, until it is closed."""
    watched = (weakref.ref(journal), days, closed)
    threading.Thread(target=_prune_until_closed, args=watched, name="ferrule journal retention", daemon=True).start()


def _prune_until_closed(journal: weakref.ref[SQLiteJournal], days: float, closed: threading.Event) -> None:
    while not closed.is_set():
        found = journal()
        if found is None:
            return
        try:
            found.prune(days)
        except JournalError as error:
            if not closed.is_set():
                log.warning("old calls are not deleted: %s", error)
        del found
        closed.wait(_HOUR)


def find_expired(look: Snapshot, before: float, now: float) -> Expired:
    """Return the rows of calls that were over before `before`. `before` and `now` are seconds since the epoch."""
    found = Expired()
    for call in look.before(before):
        if call.group.last.at < before and _has_ended(look, call, now):
            found.calls += 1
            found.events += (row.seq for row in call.group.rows)
    others = f"SELECT seq FROM events INDEXED BY events_by_time WHERE at < ? AND NOT {OF_CALLS} AND seq < ?"
    found.events += look.column(others, before, look.last())
    found.keys += look.column("SELECT key FROM calls WHERE state = 'ended' AND ended_at < ?", before)
    # `state <> 'ended'` is the condition of the index `calls_unfinished`
    runs = "SELECT key FROM calls WHERE state = 'deferred' AND state <> 'ended' AND at < ? AND tool_name = ?"
    found.keys += look.column(runs, before, column(KEYED_RUN_NAME))
    return found


def add_pruned_row(connection: sqlite3.Connection, owner: int, before: float) -> None:
    """Write a row that reports the deletion.

    It is the newest row, and stays until there is a newer one. So no place is used twice, and followers of the journal
    miss nothing.
    """
    values = (time.time(), PRUNED, "", "", None, None, None, owner, "", json_text({"before": before}))
    connection.execute(f"INSERT INTO events ({EVENT_COLUMNS}) VALUES ({', '.join('?' * len(values))})", values)


def delete_rows(connection: sqlite3.Connection, events: Sequence[int], keys: Sequence[Column]) -> None:
    """Delete a part, within a transaction of the caller's."""
    connection.executemany("DELETE FROM events WHERE seq = ?", [(seq,) for seq in events])
    # Another process may have taken over a run that was put aside.
    connection.executemany("DELETE FROM calls WHERE key = ? AND state <> 'running'", [(key,) for key in keys])


def _has_ended(look: Snapshot, found: Found, now: float) -> bool:
    """Return whether nothing more can happen to a call."""
    status, intent = look.add_status(found).status, look.read_intent(found)
    if intent is not None and intent.state != "ended":
        return False
    if status == "suspended":
        expires_at = get_field(look.read_result(found.group.last), "pending", "expires_at")
        return isinstance(expires_at, int | float) and expires_at < now
    return status not in UNFINISHED or status == "cut_off"  # cut off without an entry: it cannot have changed anything
