"""The open files of a journal in this process, and their protection from the process itself.

SQLite holds locks for as long as it has a file open: on the database, so nobody deletes the write-ahead log, and on the
shared memory, so nobody begins it anew. They are POSIX locks. The process drops them when it closes any other
descriptor of these files: after a tool has read the folder, for instance. Then another process at its end takes itself
for the last one, and deletes the log although this one goes on writing to it. So:

- Ferrule's own file tools do not open these files (`paths.RESERVED_FILES`).
- If the system has open file description locks, this process holds the same two locks a second time in that form.
  SQLite in other processes respects them, and closing another descriptor does not drop them.

Locks that SQLite takes for the time of one read can still be lost: see docs/promises.md#not-promised.
"""

from __future__ import annotations

import os
import time

from ferrule.errors import JournalError
from ferrule.journal._lockfile import LockFile, fcntl, has_open_file_locks, lock_open_file
from ferrule.security.paths import RESERVED_FILES

_IN_USE = (0x40000002, 510)  # SHARED_FIRST and SHARED_SIZE: SQLite locks these in each open database
_HELD_BY_SQLITE = (("", _IN_USE), ("-shm", (128, 1)))  # and UNIX_SHM_DMS
_WAIT_SECONDS = 0.5
"""Seconds that a reading program, such as `sqlite3`, may take between its lock and making or removing its files."""

_open: dict[str, OpenFiles] = {}


class OpenFiles:
    """The files of one journal, for all its users in this process. Use it while committing.

    Args:
        path: The database. SQLite has it open, and the log and the shared memory too.
    """

    def __init__(self, path: str, lock: LockFile) -> None:
        self._path = path
        self._users = 0
        self._identities = set(filter(None, lock.identities()))
        self._locked: list[int] = []
        try:
            for end, place in _HELD_BY_SQLITE if fcntl is not None else ():
                descriptor = os.open(f"{path}{end}", os.O_RDONLY | os.O_CLOEXEC)
                self._locked.append(descriptor)  # not closed before SQLite's: that would drop its locks
                if has_open_file_locks(descriptor):
                    lock_open_file(descriptor, fcntl.F_OFD_SETLK, fcntl.F_RDLCK, *place)
        except BaseException:
            self.abandon()
            raise
        RESERVED_FILES.update(self._identities)

    def open(self) -> OpenFiles:
        """Count one more user."""
        self._users += 1
        return self

    def close(self) -> bool:
        """Count one user less. Return whether it was the last, so SQLite may close its last connection and tidy up.

        Call `end` after that: closing a descriptor earlier would drop the locks of SQLite.
        """
        self._users -= 1
        if self._users:
            return False
        if self._locked and has_open_file_locks(self._locked[0]):
            lock_open_file(self._locked[0], fcntl.F_OFD_SETLK, fcntl.F_UNLCK, *_IN_USE)
        return True

    def end(self) -> None:
        """Release the files."""
        del _open[self._path]
        RESERVED_FILES.difference_update(self._identities)
        self.abandon()

    def abandon(self) -> None:
        """Close the lock descriptors. In a forked child they would outlive the parent."""
        locked, self._locked = self._locked, []
        for descriptor in locked:
            os.close(descriptor)


def check_name(path: str, lock: LockFile) -> None:
    """Check that no program has the database open under another name. Call it while committing.

    SQLite finds the write-ahead log by the name of the database. Under another name it would miss commits.

    Raises:
        JournalError: A program has it open, and the log is not there.
    """
    ends = time.monotonic() + _WAIT_SECONDS
    while lock.has_sqlite(*_IN_USE) and not all(os.path.exists(f"{path}{end}") for end in ("-wal", "-shm")):
        if time.monotonic() > ends:
            raise JournalError(
                f"a program has the journal {path!r} open, but the files {path}-wal and {path}-shm are missing: they "
                "were removed, or the program opened it by another name. End the program first"
            )
        time.sleep(0.001)


def open_files(path: str, lock: LockFile) -> OpenFiles:
    """Return the open files of the journal at a path. SQLite must have them open."""
    if path not in _open:
        _open[path] = OpenFiles(path, lock)
    return _open[path].open()


def _abandon_files() -> None:
    for files in _open.values():
        files.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_files)
