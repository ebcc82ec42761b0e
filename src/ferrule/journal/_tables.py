"""The tables of a journal in SQLite, their file, and the upgrade of an older one.

A text that is not valid Unicode (a lone surrogate) is a BLOB, of its UTF-8 with surrogates.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import quote

from ferrule.errors import JournalError

OLDEST = (3, 37, 0)
APPLICATION_ID = 0x46657272
"""The mark of an SQLite file as a journal: "Ferr"."""
BUSY_SECONDS = 5.0
LOG_BYTES = 4 * 1024 * 1024
"""The size of the write-ahead log at which it is written back. It stays that long: overwriting it is faster."""

STEPS: tuple[str, ...] = (
    """
    CREATE TABLE calls (
        key TEXT PRIMARY KEY, reference TEXT NOT NULL, claim TEXT NOT NULL, owner INTEGER NOT NULL, state TEXT NOT NULL,
        call_id TEXT NOT NULL, tool_name TEXT NOT NULL, principal TEXT, session TEXT, parent TEXT,
        fingerprint TEXT NOT NULL, arguments TEXT NOT NULL, at REAL NOT NULL, ended_at REAL, ticket TEXT, outcome TEXT,
        run TEXT NOT NULL
    );
    CREATE INDEX calls_by_id ON calls (call_id, run);
    CREATE INDEX calls_by_reference ON calls (reference);
    CREATE INDEX calls_unfinished ON calls (at) WHERE state <> 'ended';
    CREATE INDEX calls_by_ticket ON calls (ticket) WHERE ticket IS NOT NULL;
    CREATE TABLE events (
        seq INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, call_id TEXT NOT NULL, tool_name TEXT NOT NULL,
        principal TEXT, session TEXT, parent TEXT, owner INTEGER NOT NULL, run TEXT NOT NULL,
        data TEXT NOT NULL
    );
    CREATE INDEX events_by_call ON events (call_id, run);
    CREATE TABLE owners (
        owner INTEGER PRIMARY KEY AUTOINCREMENT, pid INTEGER NOT NULL, host TEXT NOT NULL, started_at REAL NOT NULL
    );
    CREATE TABLE store (key TEXT PRIMARY KEY, value TEXT NOT NULL, expires_at REAL) WITHOUT ROWID;
    CREATE INDEX store_by_expiry ON store (expires_at) WHERE expires_at IS NOT NULL;
    """,
    """
    CREATE INDEX events_by_session ON events (session);
    CREATE INDEX events_by_principal ON events (principal) WHERE principal IS NOT NULL;
    CREATE INDEX events_by_time ON events (at);
    CREATE INDEX calls_by_end ON calls (ended_at) WHERE state = 'ended';
    """,
)
"""The statements that upgrade the tables from each version to the next. `user_version` is the number of steps done."""


def check_version(version: tuple[int, int, int] = sqlite3.sqlite_version_info) -> None:
    """Check the version of SQLite.

    Raises:
        JournalError: SQLite is too old.
    """
    if version < OLDEST:
        raise JournalError(
            f"a journal needs SQLite {_format_version(OLDEST)} or newer, not {_format_version(version)}. "
            "Use a Python that was built with a newer one, or journal.memory()"
        )


def make_file(path: str) -> bool:
    """Make the empty file of a journal, readable for nobody else, unless it exists. Return whether it was made."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_CLOEXEC", 0), 0o600)
    except FileExistsError:  # not opened here: closing it would drop SQLite's locks on it (POSIX)
        return False
    os.close(descriptor)
    if os.name != "nt":
        folder = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    return True


def connect(path: str, *, write: bool) -> sqlite3.Connection:
    """Return a connection for any thread. It makes no checkpoint by itself, and a reading one makes none at its end.

    Raises:
        sqlite3.Error: SQLite cannot open the file.
    """
    address = f"file:{quote(path)}?mode={'rw' if write else 'ro'}"
    connection = sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA wal_autocheckpoint=0")
        connection.execute("PRAGMA trusted_schema=0")
        if not write:
            connection.execute("PRAGMA query_only=1")
    except BaseException:
        connection.close()
        raise
    return connection


def prepare(connection: sqlite3.Connection, path: str, durable: str, steps: Sequence[str] = STEPS) -> None:
    """Make the file a journal of the newest version in WAL mode. It may be an older journal or an empty file.

    Raises:
        JournalError: The file is no journal, is one of a newer version, or cannot have a write-ahead log.
        sqlite3.Error: The file cannot be read or written.
    """
    application, version = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in _MARKS)
    is_used = connection.execute("SELECT EXISTS (SELECT 1 FROM sqlite_master)").fetchone() == (1,)
    if application != APPLICATION_ID and (application or version or is_used):
        raise JournalError(f"{path!r} is an SQLite file of another program, and no journal: give another path")
    if version > len(steps):
        raise JournalError(
            f"{path!r} is a journal of version {version}, written by a newer Ferrule; this one knows versions up to "
            f"{len(steps)}: update it"
        )
    mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode != "wal":
        raise JournalError(f"SQLite cannot have a write-ahead log at {path!r} (journal_mode={mode}): give a local disk")
    connection.execute(f"PRAGMA journal_size_limit={LOG_BYTES}")
    connection.execute(f"PRAGMA synchronous={durable}")
    if durable == "FULL":  # macOS alone has these: its fsync does not wait for the disk
        connection.execute("PRAGMA fullfsync=1")
        connection.execute("PRAGMA checkpoint_fullfsync=1")
    if version < len(steps):
        _migrate(connection, version, steps)


_MARKS = ("application_id", "user_version")


def _migrate(connection: sqlite3.Connection, version: int, steps: Sequence[str]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        for step in steps[version:]:
            for statement in step.split(";"):
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={len(steps)}")
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _format_version(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
