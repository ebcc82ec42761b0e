"""The thread that writes a journal: all that waits is committed in one transaction, and then told.

order(change)   a change that somebody waits for; it is in the next transaction, with all that come in the same turn of
                its loop: else the thread and the loop would take turns for each, which costs more than the work.
                Where the loop stands still in that turn, or was stopped in it, it is written as events are
note(event)     nobody waits; it is in the next transaction, which begins at most 20 ms later

A transaction has the events that were noted before its changes, or the first 256 where there are more. One that fails
has changed nothing, and everybody who waited is told; events, and what was to be written `surely`, are tried again.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import chain
from typing import Any, TypeAlias, TypeVar
from weakref import WeakSet

from ferrule.errors import JournalError
from ferrule.journal._lockfile import LockFile
from ferrule.journal._rows import EVENT_COLUMNS, EventRows
from ferrule.journal._tables import LOG_BYTES
from ferrule.values.event import Event

log = logging.getLogger("ferrule")
_T = TypeVar("_T")
Change: TypeAlias = Callable[[sqlite3.Connection], _T]
"""Reads and changes rows, within a transaction. Where it fails once it has changed something, all of that is undone."""

LINGER_SECONDS = 0.02
"""How long events wait for others, so that a transaction has many."""
RETRY_SECONDS = 1.0
EVENTS_AT_ONCE = 256
"""How many are in one transaction at most: who waits for that does not wait for all of them."""
MOST_EVENTS = 10_000
"""How many events wait at most; what comes on top is not kept, and counted."""
_OF_ONE_CHANGE = (sqlite3.DataError, sqlite3.InterfaceError, OverflowError, ValueError)
_BY_ONE_STATEMENT = (64, 8, 1)
_INSERT_EVENTS = {
    count: f"INSERT INTO events ({EVENT_COLUMNS}) VALUES {', '.join(['(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)'] * count)}"
    for count in _BY_ONE_STATEMENT
}


class _Order:
    """A change that somebody waits for."""

    __slots__ = ("answer", "change", "error", "future", "loop", "surely", "then")

    def __init__(
        self,
        change: Change[Any],
        future: asyncio.Future[Any] | Future[Any],
        loop: asyncio.AbstractEventLoop | None,
        then: Callable[[], object] | None = None,
        surely: bool = False,
    ) -> None:
        self.change = change
        self.future = future
        self.loop = loop
        self.then = then
        self.surely = surely
        self.answer: Any = None
        self.error: Exception | None = None

    def tell(self) -> None:
        if self.future.done():  # who waited has gone
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.answer)


class Writer:
    """Writes through `connection`, as `owner`, from a thread of its own, until it is closed; then it calls `at_end`."""

    def __init__(
        self, connection: sqlite3.Connection, path: str, lock: LockFile, owner: int, at_end: Callable[[], object]
    ) -> None:
        self._connection = connection
        self._path = path
        self._lock = lock
        self._files = lock.identities()
        self._orders: list[_Order] = []
        self._events: deque[Event | int | _Order] = deque()  # and how many are missing here, and who waits for them
        self._rows: list[tuple[Any, ...]] = []  # of events that are not written yet
        self._again: list[_Order] = []  # what was to be written surely, and could not be yet
        self._event_rows = EventRows(owner)
        self._at_end = at_end
        self._missing = 0
        self._checkpoint_at = LOG_BYTES
        self._changed = threading.Condition()
        self._stirred = False
        self._called = False
        self._calling: set[asyncio.AbstractEventLoop] = set()  # which call once their turn is over
        self._closing = False
        self._failing = False
        self._losing = False
        self._thread = threading.Thread(target=self._run, name="ferrule journal", daemon=True)
        _writers.add(self)
        self._thread.start()

    def note(self, event: Event) -> None:
        """Write an event, soon. In a forked child nobody writes it, and its lock may be held for ever."""
        events = self._events
        if len(events) >= MOST_EVENTS or self._closing:
            if self._lock.is_of_this_process:
                with self._changed:
                    self._missing += 1
            return
        events.append(event)
        if not self._stirred and self._lock.is_of_this_process:
            with self._changed:
                self._stirred = True
                self._changed.notify()

    async def order(self, change: Change[_T], then: Callable[[], object] | None = None, *, surely: bool = False) -> _T:
        """What the change gives, once it is committed.

        Args:
            change: What is changed.
            then: Called once it is committed, in any thread, whether or not somebody still waits.
            surely: Try it again, before all that comes later, where it cannot be committed now.

        Raises:
            JournalError: where it cannot be committed: it was not made, or not yet.
        """
        self._lock.check_process()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()
        self._take(_Order(change, future, loop, then, surely))
        return await future

    async def flush(self) -> None:
        """Wait until all events that were noted are committed.

        Raises:
            JournalError: where they cannot be yet.
        """
        self._lock.check_process()
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()
        self._events.append(_Order(_changes_nothing, written, loop))
        await asyncio.gather(self.order(_changes_nothing), written)  # both may fail, and the first says why

    def order_now(self, change: Change[_T]) -> _T:
        """The same, for a thread that waits."""
        self._lock.check_process()
        future: Future[_T] = Future()
        self._take(_Order(change, future, None))
        return future.result()

    def close(self) -> None:
        """Have it commit what waits, and end. Nobody waits: a journal may be collected in a thread that has locks which
        the writer needs for that. In a forked child, which has no such thread, nothing is done."""
        if self._lock.is_of_this_process:
            with self._changed:
                self._closing = True
                self._changed.notify()

    def join(self) -> None:
        """Wait until it has ended; it was closed."""
        if self._lock.is_of_this_process:
            self._thread.join()

    def _take(self, order: _Order) -> None:
        with self._changed:
            if self._closing:
                raise JournalError(f"the journal {self._path!r} is closed")
            self._orders.append(order)
            if not self._stirred:  # its loop may be stopped, or closed, before its turn is over
                self._stirred = True
                self._changed.notify()
            if order.loop is None:
                self._call(None)
            elif order.loop not in self._calling:
                self._calling.add(order.loop)
                order.loop.call_soon(self._call, order.loop)

    def _call(self, loop: asyncio.AbstractEventLoop | None) -> None:
        with self._changed:
            self._calling.discard(loop)
            self._called = True
            self._changed.notify()

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            self._write_what_waits()
        self._write_what_waits()
        while self._events and not self._failing:
            self._write_what_waits()
        self._tell_of_lost(len(self._rows) + len(self._again) + len(self._events))
        self._at_end()

    def _write_what_waits(self) -> None:
        with self._changed:
            self._wait()
            orders, self._orders = self._orders, []
            self._called = self._stirred = False  # before the events are taken: one that comes later wakes again
            missing, self._missing = self._missing, 0
        if missing:
            self._events.append(missing)
            if not self._losing:
                self._tell_of_lost(missing)
        self._losing = bool(missing)
        orders += self._make_rows()
        self._commit([order for order in orders if order.surely or not order.future.cancelled()])

    def _wait(self) -> None:
        changed = self._changed
        changed.wait_for(
            lambda: self._called or self._closing or self._stirred or self._rows or self._again or self._events
        )
        seconds = RETRY_SECONDS if self._failing else LINGER_SECONDS
        more = len(self._events) >= EVENTS_AT_ONCE and not self._failing
        changed.wait_for(lambda: more or self._called or self._closing, seconds)

    def _make_rows(self) -> list[_Order]:
        """The rows of the next events, beside those that are still to be written; and who waits for these events."""
        events, rows, waiting = self._events, self._rows, []
        for _ in range(min(len(events), EVENTS_AT_ONCE - len(rows))):
            event = events.popleft()
            if isinstance(event, int):
                rows.append(self._event_rows.lost(event, time.time()))
            elif isinstance(event, _Order):
                waiting.append(event)
            else:
                try:
                    rows.append(self._event_rows.row(event))
                except Exception:
                    log.exception("a journal cannot keep a %s of %r", event.kind, event.call.name)
                    rows.append(self._event_rows.lost(1, time.time()))
        return waiting

    def _tell_of_lost(self, count: int) -> None:
        if count:
            log.warning("the journal %r has not kept %d events or outcomes that it was told of", self._path, count)

    def _commit(self, orders: list[_Order]) -> None:
        if not orders and not self._rows and not self._again:
            return
        committed = False
        try:
            with self._lock.committing():
                self._check_files()
                self._transact([*self._again, *orders])
                committed = True
                self._tell_committed(orders)
                self._checkpoint()
        except Exception as error:
            if committed:  # what went wrong after that changes nothing about it
                log.exception("%s, after a commit that is in it", _why_unwritten(self._path, error))
            else:
                self._tell_failed(orders, error)

    def _tell_committed(self, orders: list[_Order]) -> None:
        done, self._again = [*self._again, *orders], []
        self._rows, self._failing = [], False
        _tell_loops(orders)
        for order in done:
            if order.then is not None:
                order.then()

    def _tell_failed(self, orders: list[_Order], error: Exception) -> None:
        if not self._failing:
            log.error("%s; what was noted is tried again each second", _why_unwritten(self._path, error))
        self._failing = True
        for order in orders:
            order.error = self._error_of(error)
        self._again += [order for order in orders if order.surely][: MOST_EVENTS - len(self._again)]
        _tell_loops(orders)

    def _error_of(self, cause: Exception) -> JournalError:
        """Return the error for one of those who wait: they raise it in their own tasks."""
        error = JournalError(_why_unwritten(self._path, cause))
        error.__cause__ = cause
        return error

    def _check_files(self) -> None:
        """Raises:
        JournalError: where the files that are written are not those that other processes find.
        """
        if self._lock.identities() != self._files:
            raise JournalError(
                f"a file of the journal {self._path!r} was removed or replaced while it was open: what is written "
                "would be found by nobody. End the programs that have it open, and begin them again"
            )

    def _transact(self, orders: Iterable[_Order]) -> None:
        """Commit all events and changes, or nothing.

        Raises:
            Exception: where it could not be; nothing was changed.
        """
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            _insert_events(connection, self._rows)
            for order in orders:
                before = connection.total_changes
                try:
                    order.answer, order.error = order.change(connection), None
                except _OF_ONE_CHANGE as error:
                    if connection.total_changes != before:
                        raise
                    # Nothing of it was written: it is no reason to write no other.
                    order.error = self._error_of(error)
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # SQLite itself has rolled back after some errors
                connection.execute("ROLLBACK")
            raise

    def _checkpoint(self) -> None:
        """Write the log back into the file where it is long, so that the next commit begins it anew."""
        size = os.stat(f"{self._path}-wal").st_size
        if size <= self._checkpoint_at:
            return
        try:
            _, frames, written = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error as error:
            log.warning("%s: its write-ahead log grows", _why_unwritten(self._path, error))
            frames, written = 1, 0
        self._checkpoint_at = LOG_BYTES + (size if written < frames else 0)  # somebody reads an older state: later


_writers: WeakSet[Writer] = WeakSet()


@atexit.register
def _end_all() -> None:
    """At the end of the program, wait for all: those of journals that nobody closed, and of those just collected."""
    for writer in list(_writers):
        writer.close()
        writer.join()


def _changes_nothing(connection: sqlite3.Connection) -> None:
    """A change that is none."""


def _insert_events(connection: sqlite3.Connection, rows: Sequence[Sequence[Any]]) -> None:
    """Many by one statement: after each, this thread waits for its turn, 5 ms where the loop has no pause."""
    at = 0
    for count in _BY_ONE_STATEMENT:
        while len(rows) - at >= count:
            connection.execute(_INSERT_EVENTS[count], [*chain.from_iterable(rows[at : at + count])])
            at += count


def _why_unwritten(path: str, error: Exception) -> str:
    return str(error) if isinstance(error, JournalError) else f"the journal {path!r} cannot be written: {error}"


def _tell_loops(orders: list[_Order]) -> None:
    """Say what came of them, to each loop at once."""
    loops: dict[asyncio.AbstractEventLoop, list[_Order]] = {}
    for order in orders:
        if order.loop is None:
            order.tell()
        else:
            loops.setdefault(order.loop, []).append(order)
    for loop, told in loops.items():
        with suppress(RuntimeError):  # it is closed: nobody waits
            loop.call_soon_threadsafe(_tell_loop, told)


def _tell_loop(orders: list[_Order]) -> None:
    for order in orders:
        order.tell()
