"""The thread that writes a journal: it commits all waiting changes in one transaction, then answers their callers.

order(change)   a change with a waiting caller. It is in the next transaction, with all others of the same turn of
                the loop: otherwise the thread and the loop would alternate for each, at a higher cost than the work.
                If the loop blocks in that turn, or was stopped in it, the change is written like events
note(event)     without a waiting caller. It is in the next transaction, which begins at most 20 ms later

A transaction has the earlier events before its changes, or the first 256 if there are more. A failed one has changed
nothing, and every waiting caller gets an error; events, and changes with `until_done`, are tried again.
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
"""A function that reads and changes rows within a transaction.

If it fails after a change, the transaction is undone.
"""

LINGER_SECONDS = 0.02
"""Seconds that events wait for others, so one transaction has many."""
RETRY_SECONDS = 1.0
EVENTS_AT_ONCE = 256
"""The largest number of events in one transaction, so its callers do not wait for all events."""
MOST_EVENTS = 10_000
"""The largest number of waiting events. Further ones are dropped and counted."""
_CHANGE_ERRORS = (sqlite3.DataError, sqlite3.InterfaceError, OverflowError, ValueError)
_ROWS_PER_STATEMENT = (64, 8, 1)
_INSERT_EVENTS = {
    count: f"INSERT INTO events ({EVENT_COLUMNS}) VALUES {', '.join(['(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)'] * count)}"
    for count in _ROWS_PER_STATEMENT
}


class _Order:
    """A change with a waiting caller."""

    __slots__ = ("after_commit", "answer", "change", "error", "future", "loop", "until_done")

    def __init__(
        self,
        change: Change[Any],
        future: asyncio.Future[Any] | Future[Any],
        loop: asyncio.AbstractEventLoop | None,
        after_commit: Callable[[], object] | None = None,
        until_done: bool = False,
    ) -> None:
        self.change = change
        self.future = future
        self.loop = loop
        self.after_commit = after_commit
        self.until_done = until_done
        self.answer: Any = None
        self.error: Exception | None = None

    def send_answer(self) -> None:
        if self.future.done():  # the caller waits no more
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.answer)


class Writer:
    """A thread that writes through `connection`, as `owner`, until it is closed. Then it calls `at_end`."""

    def __init__(
        self, connection: sqlite3.Connection, path: str, lock: LockFile, owner: int, at_end: Callable[[], object]
    ) -> None:
        self._connection = connection
        self._path = path
        self._lock = lock
        self._files = lock.identities()
        self._orders: list[_Order] = []
        self._events: deque[Event | int | _Order] = deque()  # also counts of missing ones, and waiting orders
        self._rows: list[tuple[Any, ...]] = []  # of events that are not written yet
        self._retries: list[_Order] = []  # `until_done` orders that failed so far
        self._event_rows = EventRows(owner)
        self._at_end = at_end
        self._missing = 0
        self._checkpoint_at = LOG_BYTES
        self._changed = threading.Condition()
        self._is_awake = False
        self._is_called = False
        self._calling: set[asyncio.AbstractEventLoop] = set()  # loops with a call at the end of their turn
        self._closing = False
        self._failing = False
        self._losing = False
        self._thread = threading.Thread(target=self._run, name="ferrule journal", daemon=True)
        _writers.add(self)
        self._thread.start()

    def note(self, event: Event) -> None:
        """Write an event soon. A forked child writes none: its copy of the lock may be held forever."""
        events = self._events
        if len(events) >= MOST_EVENTS or self._closing:
            if self._lock.is_of_this_process:
                with self._changed:
                    self._missing += 1
            return
        events.append(event)
        if not self._is_awake and self._lock.is_of_this_process:
            with self._changed:
                self._is_awake = True
                self._changed.notify()

    async def order(
        self, change: Change[_T], after_commit: Callable[[], object] | None = None, *, until_done: bool = False
    ) -> _T:
        """Commit the change, and return its answer.

        Args:
            change: The change.
            after_commit: A function to call after the commit, in any thread, even if nobody waits any more.
            until_done: Whether to try the change again, before all later ones, if it cannot be committed now.

        Raises:
            JournalError: The change cannot be committed: it was not made, or not yet.
        """
        self._lock.check_process()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()
        self._take(_Order(change, future, loop, after_commit, until_done))
        return await future

    async def flush(self) -> None:
        """Wait until all earlier events are committed.

        Raises:
            JournalError: They cannot be committed yet.
        """
        self._lock.check_process()
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()
        self._events.append(_Order(_change_nothing, written, loop))
        await asyncio.gather(self.order(_change_nothing), written)  # both may fail, and the first has the reason

    def order_now(self, change: Change[_T]) -> _T:
        """Commit the change and return its answer, for a thread that may block."""
        self._lock.check_process()
        future: Future[_T] = Future()
        self._take(_Order(change, future, None))
        return future.result()

    def close(self) -> None:
        """Commit all waiting changes, and end, without a wait for it.

        A journal may be collected in a thread with locks that the writer needs for its work. In a forked child, which
        has no writer thread, this does nothing.
        """
        if self._lock.is_of_this_process:
            with self._changed:
                self._closing = True
                self._changed.notify()

    def join(self) -> None:
        """Wait for the end of the closed writer."""
        if self._lock.is_of_this_process:
            self._thread.join()

    def _take(self, order: _Order) -> None:
        with self._changed:
            if self._closing:
                raise JournalError(f"the journal {self._path!r} is closed")
            self._orders.append(order)
            if not self._is_awake:  # its loop may be stopped, or closed, before its turn is over
                self._is_awake = True
                self._changed.notify()
            if order.loop is None:
                self._call(None)
            elif order.loop not in self._calling:
                self._calling.add(order.loop)
                order.loop.call_soon(self._call, order.loop)

    def _call(self, loop: asyncio.AbstractEventLoop | None) -> None:
        with self._changed:
            self._calling.discard(loop)
            self._is_called = True
            self._changed.notify()

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            self._write_waiting()
        self._write_waiting()
        while self._events and not self._failing:
            self._write_waiting()
        self._warn_of_loss(len(self._rows) + len(self._retries) + len(self._events))
        self._at_end()

    def _write_waiting(self) -> None:
        with self._changed:
            self._wait()
            orders, self._orders = self._orders, []
            self._is_called = self._is_awake = False  # before the events are taken: a later one wakes again
            missing, self._missing = self._missing, 0
        if missing:
            self._events.append(missing)
            if not self._losing:
                self._warn_of_loss(missing)
        self._losing = bool(missing)
        orders += self._make_rows()
        self._commit([order for order in orders if order.until_done or not order.future.cancelled()])

    def _wait(self) -> None:
        changed = self._changed
        changed.wait_for(
            lambda: self._is_called or self._closing or self._is_awake or self._rows or self._retries or self._events
        )
        seconds = RETRY_SECONDS if self._failing else LINGER_SECONDS
        more = len(self._events) >= EVENTS_AT_ONCE and not self._failing
        changed.wait_for(lambda: more or self._is_called or self._closing, seconds)

    def _make_rows(self) -> list[_Order]:
        """Make the rows of the next events, after the rows still to be written.

        Return the orders that wait for these events.
        """
        events, rows, waiting = self._events, self._rows, []
        for _ in range(min(len(events), EVENTS_AT_ONCE - len(rows))):
            event = events.popleft()
            if isinstance(event, int):
                rows.append(self._event_rows.make_lost_row(event, time.time()))
            elif isinstance(event, _Order):
                waiting.append(event)
            else:
                try:
                    rows.append(self._event_rows.make_row(event))
                except Exception:
                    log.exception("a journal cannot store a %s of tool %r", event.kind, event.call.name)
                    rows.append(self._event_rows.make_lost_row(1, time.time()))
        return waiting

    def _warn_of_loss(self, count: int) -> None:
        if count:
            log.warning("the journal %r has lost %d events or outcomes", self._path, count)

    def _commit(self, orders: list[_Order]) -> None:
        if not orders and not self._rows and not self._retries:
            return
        committed = False
        try:
            with self._lock.committing():
                self._check_files()
                self._transact([*self._retries, *orders])
                committed = True
                self._on_commit(orders)
                self._checkpoint()
        except Exception as error:
            if committed:  # a later failure does not undo the commit
                log.exception("%s, after the commit", _describe_failure(self._path, error))
            else:
                self._on_failure(orders, error)

    def _on_commit(self, orders: list[_Order]) -> None:
        done, self._retries = [*self._retries, *orders], []
        self._rows, self._failing = [], False
        _send_answers(orders)
        for order in done:
            if order.after_commit is not None:
                order.after_commit()

    def _on_failure(self, orders: list[_Order], error: Exception) -> None:
        if not self._failing:
            log.error("%s; its waiting events are tried again each second", _describe_failure(self._path, error))
        self._failing = True
        for order in orders:
            order.error = self._make_error(error)
        self._retries += [order for order in orders if order.until_done][: MOST_EVENTS - len(self._retries)]
        _send_answers(orders)

    def _make_error(self, cause: Exception) -> JournalError:
        """Return a new error for each caller: they raise it in their own tasks."""
        error = JournalError(_describe_failure(self._path, cause))
        error.__cause__ = cause
        return error

    def _check_files(self) -> None:
        """Check that other processes find the same files.

        Raises:
            JournalError: A file was removed or replaced.
        """
        if self._lock.identities() != self._files:
            raise JournalError(
                f"a file of the journal {self._path!r} was removed or replaced while it was open. Restart all programs "
                "that have it open"
            )

    def _transact(self, orders: Iterable[_Order]) -> None:
        """Commit all events and changes, or nothing.

        Raises:
            Exception: The transaction failed; nothing was changed.
        """
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            _insert_events(connection, self._rows)
            for order in orders:
                before = connection.total_changes
                try:
                    order.answer, order.error = order.change(connection), None
                except _CHANGE_ERRORS as error:
                    if connection.total_changes != before:
                        raise
                    # This change wrote nothing, so the others can go on.
                    order.error = self._make_error(error)
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # SQLite itself has rolled back after some errors
                connection.execute("ROLLBACK")
            raise

    def _checkpoint(self) -> None:
        """Write a long log back into the file, so the next commit begins it anew."""
        size = os.stat(f"{self._path}-wal").st_size
        if size <= self._checkpoint_at:
            return
        try:
            _, frames, written = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error as error:
            log.warning("%s: its write-ahead log grows", _describe_failure(self._path, error))
            frames, written = 1, 0
        self._checkpoint_at = LOG_BYTES + (size if written < frames else 0)  # somebody reads an older state: later


_writers: WeakSet[Writer] = WeakSet()


@atexit.register
def _close_all() -> None:
    """At the end of the program, wait for all writers: those of unclosed journals, and those of just collected ones."""
    for writer in list(_writers):
        writer.close()
        writer.join()


def _change_nothing(connection: sqlite3.Connection) -> None:
    """A change without effect."""


def _insert_events(connection: sqlite3.Connection, rows: Sequence[Sequence[Any]]) -> None:
    """Insert the rows, many by one statement.

    After each statement this thread waits for its turn, 5 ms if the loop has no pause.
    """
    at = 0
    for count in _ROWS_PER_STATEMENT:
        while len(rows) - at >= count:
            connection.execute(_INSERT_EVENTS[count], [*chain.from_iterable(rows[at : at + count])])
            at += count


def _describe_failure(path: str, error: Exception) -> str:
    return str(error) if isinstance(error, JournalError) else f"the journal {path!r} cannot be written: {error}"


def _send_answers(orders: list[_Order]) -> None:
    """Report the results of the orders, once to each loop."""
    loops: dict[asyncio.AbstractEventLoop, list[_Order]] = {}
    for order in orders:
        if order.loop is None:
            order.send_answer()
        else:
            loops.setdefault(order.loop, []).append(order)
    for loop, loop_orders in loops.items():
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(_send_to_loop, loop_orders)


def _send_to_loop(orders: list[_Order]) -> None:
    for order in orders:
        order.send_answer()
