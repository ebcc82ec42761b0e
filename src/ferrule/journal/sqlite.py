"""`SQLiteJournal`: a journal in an SQLite file, for all processes of one machine."""

from __future__ import annotations

import logging
import os
import socket
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

from ferrule.errors import DefinitionError, JournalError
from ferrule.journal._claims import Claims
from ferrule.journal._lockfile import OPENING_SECONDS, LockFile, open_lock_file
from ferrule.journal._open_files import OpenFiles, check_name, open_files
from ferrule.journal._rows import (
    CALL_COLUMNS,
    OPEN,
    Row,
    column,
    entry_from_row,
    find_state,
    find_ticket,
    intent_row,
    json_text,
    read_column,
)
from ferrule.journal._tables import check_version, connect, make_file, prepare
from ferrule.journal._waiting import Waiters
from ferrule.journal._writer import Writer
from ferrule.journal.reading import Reader
from ferrule.journal.retention import DAY, Pruned, add_pruned_row, check_days, delete_rows, find_expired, start_pruning
from ferrule.security.paths import contains
from ferrule.stores.store import JsonValue, StoreError, read_json, row_text
from ferrule.types import Begun, Journal
from ferrule.values.event import Event
from ferrule.values.frozen import JsonObject
from ferrule.values.journal_entry import Intent, JournalEntry, is_unknown

__all__ = ["SQLiteJournal", "SQLiteStore"]

log = logging.getLogger("ferrule")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.2
_NEW_CALL = f"INSERT INTO calls ({CALL_COLUMNS}) VALUES ({', '.join('?' * 15)}) ON CONFLICT (key) DO NOTHING"
_PUT_CALL = f"INSERT OR REPLACE INTO calls ({CALL_COLUMNS}) VALUES ({', '.join('?' * 15)})"
_GET_CALL = f"SELECT {CALL_COLUMNS} FROM calls WHERE key = ?"
_IS_OTHER = "SELECT EXISTS (SELECT 1 FROM calls WHERE reference = ? AND key <> ?)"
_END_CALL = "UPDATE calls SET state = ?, ended_at = ?, ticket = ?, outcome = ? WHERE key = ? AND claim = ?"
_GO_ON = "UPDATE events SET run = ? WHERE call_id = ? AND run = ?"
_FORGET_CALL = "DELETE FROM calls WHERE key = ? AND claim = ?"
_UNFINISHED = f"SELECT {CALL_COLUMNS} FROM calls WHERE state <> 'ended' ORDER BY at, key"
_GET_TICKET = f"SELECT {CALL_COLUMNS} FROM calls WHERE ticket = ? AND state <> 'ended' ORDER BY at, key"
_STORE_ITEMS = """
    SELECT key, value FROM store
    WHERE expires_at IS NULL AND key >= ?1 AND (substr(key, 1, length(?1)) = ?1 OR typeof(key) = 'blob')
"""
_TAKEN, _STORED = "taken/", "stored/"  # a key of the one cannot be one of the other


class SQLiteJournal(Journal):
    """A journal in an SQLite file, for all processes of one machine. See docs/journal.md.

        journal = Journal.open("calls.db")
        runner = Runner(tools, journal=journal)

    One thread writes, and commits all waiting changes together. Reads run in the calling thread.

    Args:
        path: The file, on a local disk. A missing one is made, readable for nobody else; its folder must exist. Beside
            it lie `PATH-wal` and `PATH-shm`, which are SQLite's, and outside Linux `PATH-lock`.
        durable: `"full"`: commits survive a loss of power. `"normal"`: they survive the end of the process alone, and
            the last ones may be missing after a loss of power; commits do not wait for the disk.
        keep: Days until an ended call is deleted, as by `prune`: now, and once an hour.
        within_reach: Whether a runner may use the journal though its `within` lets tools write to the file's folder. A
            writer there can claim that a payment was made, and can read all arguments and results.

    Raises:
        DefinitionError: `durable` or `keep` is not valid.
        JournalError: The file cannot be made, read or written, is no journal or that of a newer Ferrule, or was open
            when this process was forked; or SQLite is older than 3.37.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durable: Literal["full", "normal"] = "full",
        keep: float | None = None,
        within_reach: bool = False,
    ) -> None:
        if durable not in ("full", "normal"):
            raise DefinitionError(f"durable must be 'full' or 'normal', not {durable!r}")
        if keep is not None:
            check_days("keep", keep)
        check_version()
        self._path = _resolve_file(path)
        self._within_reach = within_reach
        self._waiters = Waiters()
        self._claims = Claims()
        self._dead: set[int] = set()  # owners that do not live, and never will again
        with _as_journal_errors(self._path):
            make_file(self._path)
            self._lock = open_lock_file(self._path)
            try:
                connection, self._reads, self._owner, files = _open_connections(self._path, self._lock, durable.upper())
            except BaseException:
                self._lock.close()
                raise
        at_end = partial(_close_files, connection, self._reads, files, self._lock, self._owner)
        self._writer = Writer(connection, self._path, self._lock, self._owner, at_end)
        closed = threading.Event()
        self._close = weakref.finalize(self, _stop_writing, self._writer, closed)
        if keep is not None:
            start_pruning(self, keep, closed)

    @property
    def path(self) -> str:
        """The real path of the file."""
        return self._path

    @property
    def store(self) -> SQLiteStore:
        """Other values in the same file, with compare-and-set."""
        return SQLiteStore(self, self._reads, self._writer)

    def check_reach(self, roots: Iterable[str]) -> None:
        """Raise `DefinitionError` if the file lies in one of `roots`, unless it was opened with `within_reach=True`."""
        root = next((root for root in roots if contains(root, self._path)), None)
        if root is not None and not self._within_reach:
            raise DefinitionError(
                f"the journal {self._path!r} lies inside {root!r}, where within(…) lets tools read and write. Move "
                "it elsewhere, such as to ~/.local/state, or pass Journal.open(…, within_reach=True) if tools may read "
                "and change the record of all calls"
            )

    def note(self, event: Event) -> None:
        """Write an event within about 20 ms.

        If the disk is slower than events come, ten thousand wait. The number of further ones is a row of its own, of
        the kind `journal:lost`.
        """
        self._writer.note(event)

    async def find(self, key: str, *, wait: bool = False) -> JournalEntry | None:
        """Return the entry of this key. With `wait`, wait first until its living process has ended it or died."""
        entry = self._read_entry(key)
        if not wait or entry is None or entry.state != "running":
            return entry
        pause = _FIRST_PAUSE  # it may run in another process, which sends no signal
        with self._waiters.register(key) as changed:
            while (entry := self._read_entry(key)) is not None and entry.state == "running":
                await changed.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        return entry

    async def begin(self, intent: Intent, *, after: JournalEntry | None = None) -> Begun:
        """Commit that a call is about to run, unless its key is there."""
        row = (*intent_row(intent), None, "running", self._owner, intent.run)

        def change(connection: sqlite3.Connection) -> Begun:
            other = connection.execute(_IS_OTHER, (row[1], row[0])).fetchone() == (1,)
            if connection.execute(_NEW_CALL, row).rowcount == 0:
                found = connection.execute(_GET_CALL, row[:1]).fetchone()
                if read_column(found[2]) != intent.claim and not self._is_unchanged(found, after):
                    return Begun(self._read_row(found), other)
                connection.execute(_PUT_CALL, row)
                if found[14] != intent.run:  # the call that was cut off goes on as this one
                    connection.execute(_GO_ON, (intent.run, found[3], found[14]))
            return Begun(None, other)

        self._claims.add(intent.claim)  # first: a cancelled caller ends the call without the answer
        begun = await self._writer.order(change)
        if begun.earlier is not None:
            self._claims.remove(intent.claim)
        return begun

    async def end(self, intent: Intent, outcome: JsonObject | None) -> None:
        """Commit the outcome of the call, if the entry has its claim.

        If that cannot be written, it raises, and is tried again each second as long as the journal is open.
        """
        identity: tuple[Any, ...] = (column(intent.key), column(intent.claim))
        statement, values = _make_end_statement(outcome, identity)

        def change(connection: sqlite3.Connection) -> None:
            connection.execute(statement, values)

        self._claims.remove(intent.claim)  # the call runs until that is written, even if nobody waits for it any more
        await self._writer.order(change, partial(self._waiters.wake, intent.key), until_done=True)

    async def unfinished(self, *, ticket: str | None = None) -> list[JournalEntry]:
        """Return the calls that were cut off or are deferred, the oldest first; with `ticket`, only the one with it."""
        query, values = (_UNFINISHED, ()) if ticket is None else (_GET_TICKET, (column(ticket),))
        while True:
            rows = self._reads.rows(query, values)
            dead = {row[13] for row in rows if row[12] == "running" and row[13] not in self._dead}
            dead = {owner for owner in dead if not self._lock.lives(owner)}
            if not dead:
                break
            self._dead |= dead  # the next read sees their last commits
        entries = list[JournalEntry]()
        for row in rows:
            try:
                entries.append(self._read_row(row, lives=row[13] not in self._dead))
            except (ValueError, TypeError) as error:
                log.error("the row of a call of tool %r cannot be read: %s", read_column(row[4]), error)
        return [call for call in entries if call.state != "running"]

    async def settle(self, entry: JournalEntry, outcome: JsonObject | None) -> bool:
        """See `Journal.settle`."""
        intent = entry.intent
        identity = (column(intent.key), column(intent.claim))
        statement, values = _make_end_statement(outcome, identity)

        def change(connection: sqlite3.Connection) -> bool:
            found = connection.execute(_GET_CALL, identity[:1]).fetchone()
            if found is None or not self._is_unchanged(found, entry):
                return False
            connection.execute(statement, values)
            return True

        return await self._writer.order(change, partial(self._waiters.wake, intent.key))

    async def take(self, key: str, expires_at: float) -> bool:
        """Mark the suspended call of this key as resumed, and return whether it was not marked before."""
        name = column(_TAKEN + key)

        def change(connection: sqlite3.Connection) -> bool:
            connection.execute("DELETE FROM store WHERE expires_at <= ?", (time.time(),))
            row = (name, "true", expires_at)
            return connection.execute("INSERT OR IGNORE INTO store VALUES (?, ?, ?)", row).rowcount == 1

        return await self._writer.order(change)

    def prune(self, days: float) -> Pruned:
        """Delete the calls that ended longer ago than that, and return the numbers. See docs/journal.md#retention.

        It blocks. Other writes meanwhile wait for a few hundred deletions at most.

        Raises:
            DefinitionError: `days` is no number of days.
            JournalError: The file cannot be read or written.
        """
        check_days("prune", days)
        now = time.time()
        before = now - days * DAY
        found = Reader(self._path).look(partial(find_expired, before=before, now=now))
        if found.events:
            self._writer.order_now(partial(add_pruned_row, owner=self._owner, before=before))
        for events, keys in found.parts():
            self._writer.order_now(partial(delete_rows, events=events, keys=keys))
        return Pruned(found.calls, len(found.events))

    async def flush(self) -> None:
        """Wait until all earlier events are committed."""
        await self._writer.flush()

    def close(self) -> None:
        """Commit all waiting changes, and release the file. Running calls count as cut off. It may be closed twice."""
        self._close()
        self._writer.join()

    def _is_unchanged(self, row: Row, entry: JournalEntry | None) -> bool:
        """Return whether a call that may be settled is unchanged since `entry` was read.

        Call it within a transaction.
        """
        if entry is None or not (entry.state in OPEN or is_unknown(entry)) or read_column(row[2]) != entry.intent.claim:
            return False
        found = self._read_row(row)
        return found.state == entry.state and json_text(found.outcome) == json_text(entry.outcome)

    def _read_entry(self, key: str) -> JournalEntry | None:
        while True:
            rows = self._reads.rows(_GET_CALL, (column(key),))
            if not rows:
                return None
            owner, lives = rows[0][13], True
            if rows[0][12] == "running":
                is_known = owner in self._dead
                lives = not is_known and self._lock.lives(owner)
                if not lives and not is_known:
                    self._dead.add(owner)
                    continue  # it may have ended the call before it died
            return self._read_row(rows[0], lives=lives)

    def _read_row(self, row: Row, *, lives: bool | None = None) -> JournalEntry:
        """Return the call of a row. Without `lives`, check whether its process lives."""
        lives = self._lock.lives(row[13]) if lives is None else lives
        return entry_from_row(row, lives=lives, is_abandoned=self._claims.is_abandoned(read_column(row[2])))


class SQLiteStore:
    """The store of an `SQLiteJournal`, in the same file. See docs/journal.md."""

    def __init__(self, journal: SQLiteJournal, reads: _Reads, writer: Writer) -> None:
        self._journal = journal  # keeps the journal open: it is closed once nobody refers to it
        self._reads = reads
        self._writer = writer

    def get(self, key: str) -> JsonValue:
        """Return a copy of the value, or `None`.

        Raises:
            StoreError: The file cannot be read.
        """
        with _as_store_errors():
            rows = self._reads.rows("SELECT value FROM store WHERE key = ?", (column(_STORED + key),))
        return read_json(rows[0][0]) if rows else None

    def compare_and_set(self, key: str, old: JsonValue, new: JsonValue) -> bool:
        """Replace `old` with `new` in spite of other processes, and return whether `old` was there.

        Raises:
            StoreError: The file cannot be read or written.
        """
        name, before, after = column(_STORED + key), row_text(old), row_text(new)

        def change(connection: sqlite3.Connection) -> bool:
            found = connection.execute("SELECT value FROM store WHERE key = ?", (name,)).fetchone()
            if (found[0] if found else "null") != before:
                return False
            if new is None:
                connection.execute("DELETE FROM store WHERE key = ?", (name,))
            else:
                connection.execute("INSERT OR REPLACE INTO store VALUES (?, ?, NULL)", (name, after))
            return True

        with _as_store_errors():
            return self._writer.order_now(change)

    def items(self, prefix: str = "") -> dict[str, JsonValue]:
        """Return all values at one moment under keys with this prefix, in the order of the keys.

        Raises:
            StoreError: The file cannot be read.
        """
        with _as_store_errors():
            start = prefix if prefix.isascii() and prefix.isprintable() else ""
            rows = self._reads.rows(_STORE_ITEMS, (_STORED + start,))
        found = {read_column(name)[len(_STORED) :]: value for name, value in rows}
        return {name: read_json(found[name]) for name in sorted(found) if name.startswith(prefix)}


class _Reads:
    """A connection that reads the file, from any thread, beside the writer."""

    def __init__(self, path: str, lock: LockFile) -> None:
        self._path = path
        self._lock = lock
        self._alone = threading.Lock()
        self._connection: sqlite3.Connection | None = connect(path, write=False)

    def rows(self, query: str, values: tuple[Any, ...]) -> list[Row]:
        self._lock.check_process()
        try:
            with self._alone:
                if self._connection is None:
                    raise JournalError(f"the journal {self._path!r} is closed")
                return self._connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise JournalError(f"the journal {self._path!r} {_describe_error(error)}") from error

    def close(self) -> None:
        with self._alone:
            if self._connection is not None:
                self._connection.close()
            self._connection = None


def _stop_writing(writer: Writer, closed: threading.Event) -> None:
    closed.set()
    writer.close()


def _resolve_file(path: str | os.PathLike[str]) -> str:
    """Return the real path, because SQLite names the files beside it by that."""
    written = os.fspath(path)
    if written in ("", ":memory:"):
        raise JournalError(f"{written!r} is no path for a journal. Use ferrule.journal.memory() for one in memory")
    place = os.path.realpath(written)
    folder = os.path.dirname(place)
    if not os.path.isdir(folder):
        raise JournalError(f"the folder {folder!r} of the journal {written!r} does not exist. Make it first")
    return place


def _open_connections(path: str, lock: LockFile, durable: str) -> tuple[sqlite3.Connection, _Reads, int, OpenFiles]:
    """Open the file.

    Return the writing connection, the reads, the new owner number of this journal, and the open files.
    """
    with lock.committing(OPENING_SECONDS):
        check_name(path, lock)
        connection = connect(path, write=True)
        try:
            prepare(connection, path, durable)
            connection.execute("BEGIN IMMEDIATE")
            new = (os.getpid(), socket.gethostname(), time.time())
            made = connection.execute("INSERT INTO owners (pid, host, started_at) VALUES (?, ?, ?)", new)
            owner = int(made.lastrowid or 0)
            lock.own(owner)
            connection.execute("COMMIT")
            reads = _Reads(path, lock)
            try:
                files = open_files(path, lock)
            except BaseException:
                reads.close()
                raise
        except BaseException:
            connection.close()
            raise
        return connection, reads, owner, files


def _close_files(connection: sqlite3.Connection, reads: _Reads, files: OpenFiles, lock: LockFile, owner: int) -> None:
    try:
        with lock.committing():  # the last connection of all makes a checkpoint when it is closed
            _close_all(connection, reads, files)
    except JournalError as error:
        log.warning("the journal is closed without a checkpoint: %s", error)
        _close_all(connection, reads, files)  # the lock's holder has the file open, so this is not the last one
    finally:
        lock.disown(owner)
        lock.close()


def _close_all(connection: sqlite3.Connection, reads: _Reads, files: OpenFiles) -> None:
    reads.close()
    is_last = files.close()
    connection.close()
    if is_last:
        files.end()


def _make_end_statement(outcome: JsonObject | None, identity: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """Return the statement and values that end the call of a key and a claim, or forget it."""
    if outcome is None:
        return _FORGET_CALL, identity
    state = find_state(outcome)
    ended_at = time.time() if state == "ended" else None
    return _END_CALL, (state, ended_at, column(find_ticket(outcome)), json_text(outcome), *identity)


@contextmanager
def _as_journal_errors(path: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise JournalError(f"the journal {path!r} {_describe_error(error)}") from error
    except OSError as error:
        raise JournalError(f"the journal {path!r} cannot be opened: {error.strerror or error}") from error


def _describe_error(error: sqlite3.Error) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the lowest byte is the kind
    if code == sqlite3.SQLITE_NOTADB:
        return "is no SQLite file: give another path"
    if code == sqlite3.SQLITE_CORRUPT:
        return f"is damaged ({error}). Move it away for a new one; `sqlite3 FILE .recover` saves the readable rows"
    return f"cannot be used: {error}"


@contextmanager
def _as_store_errors() -> Iterator[None]:
    try:
        yield
    except JournalError as error:
        raise StoreError(str(error)) from error
