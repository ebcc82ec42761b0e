"""The locks of a journal: the process that commits now, and the processes that live.

The system releases these locks when their process ends, however it ends. They belong to an open file and not to the
process, so the process cannot drop them by opening and closing other files: POSIX drops every lock of `fcntl.lockf`
when a process closes any descriptor of the file.

On Linux they are locks of the database itself, on bytes that it never reaches: nobody can remove them and keep the
calls. Other systems have no such locks, and use a file beside the database, `PATH-lock`.

A process with a copy of the open file holds its locks. A forked child closes its copy. The supervisor of a worker gets
one while the worker has a call (`executors/liveness.py`), so a program lives until its workers have ended. For the same
reason an owner is never unlocked: Ferrule closes its descriptor, or leaves that to the system when the program ends,
because handlers in threads run until then.
"""

from __future__ import annotations

import glob
import os
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ferrule.errors import JournalError
from ferrule.executors.liveness import LIVENESS_FILES
from ferrule.stores.file_lock import try_lock, unlock

try:
    import fcntl as _fcntl
except ImportError:  # pragma: no cover
    fcntl: Any = None
else:
    fcntl = _fcntl

WAIT_SECONDS = 5.0
"""Seconds that a commit waits for other processes: less than the kernel waits for a commit."""
OPENING_SECONDS = 60.0
"""Seconds that `Journal.open` waits: programs that start together take turns, and a busy disk makes each turn long."""
_TRY_AGAIN_AFTER = 0.001  # a process that commits without a pause leaves gaps of a tenth of that
_COMMITTING = 0
_FIRST_BYTE = 1 << 62  # of the locks in a database: SQLite's own are at 2**30, and no file is as large
_LOCK_OF_LINUX = "hhqqi"  # struct flock: type, whence, start, length, process

_files: dict[tuple[int, int] | None, LockFile] = {}
_opening = threading.Lock()


class OpenFileLocks:
    """Numbered locks of one journal: 0 for commits, each further one for an owner.

    On Linux they are bytes of the database, as open file description locks. Each lock has a descriptor of its own, so a
    worker's supervisor can hold owners without blocking commits.
    """

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._held = {_COMMITTING: descriptor}

    def take(self, number: int) -> bool:
        """Try to take a lock, and return whether it was free."""
        if number in self._held:
            return self._lock(self._held[number], number)
        descriptor = self._open(number)
        if not self._lock(descriptor, number):
            os.close(descriptor)
            return False
        self._held[number] = descriptor
        return True

    def unlock_commits(self) -> None:
        """Release the lock for commits."""
        lock_open_file(self._held[_COMMITTING], fcntl.F_OFD_SETLK, fcntl.F_UNLCK, _FIRST_BYTE)

    def close(self, number: int) -> None:
        """Close the descriptor of a lock. It stays locked while a supervisor has a copy."""
        os.close(self._held.pop(number))

    def is_taken(self, number: int) -> bool:
        """Return whether somebody else has the lock."""
        return self.is_locked(_FIRST_BYTE + number, 1)

    def is_locked(self, start: int, length: int) -> bool:
        """Return whether somebody else, SQLite included, has locked some of these bytes."""
        answer = lock_open_file(self._held[_COMMITTING], fcntl.F_OFD_GETLK, fcntl.F_WRLCK, start, length)
        return bool(answer != fcntl.F_UNLCK)

    def owners(self) -> list[int]:
        """Return the descriptors of the locks of owners."""
        return [descriptor for number, descriptor in self._held.items() if number != _COMMITTING]

    def close_all(self) -> None:
        """Close all descriptors without unlocking anything."""
        while self._held:
            os.close(self._held.popitem()[1])

    def _open(self, number: int) -> int:
        return os.open(self._path, os.O_RDWR | _FLAGS)

    def _lock(self, descriptor: int, number: int) -> bool:
        try:
            lock_open_file(descriptor, fcntl.F_OFD_SETLK, fcntl.F_WRLCK, _FIRST_BYTE + number)
        except (BlockingIOError, PermissionError):
            return False
        return True


def has_open_file_locks(descriptor: int) -> bool:
    """Return whether the system has these locks for this file. Linux has them, but gVisor and WSL 1 do not."""
    if sys.platform != "linux":
        return False
    try:
        lock_open_file(descriptor, fcntl.F_OFD_GETLK, fcntl.F_RDLCK, _FIRST_BYTE)
    except OSError:
        return False
    return True


def lock_open_file(descriptor: int, command: int, kind: int, start: int, length: int = 1) -> int:
    """Ask Linux for an open file description lock, and return the kind of the lock in its answer.

    Raises:
        BlockingIOError: Somebody else has the lock.
        OSError: The file system has no locks.
    """
    asked = struct.pack(_LOCK_OF_LINUX, kind, os.SEEK_SET, start, length, 0)
    answer: int = struct.unpack(_LOCK_OF_LINUX, fcntl.fcntl(descriptor, command, asked))[0]
    return answer


class WholeFileLocks(OpenFileLocks):
    """The same on other systems: macOS, BSD, gVisor and Windows.

    They lock whole files: each owner has one, `PATH.OWNER`. A process that finds such a file unlocked removes it.
    """

    def unlock_commits(self) -> None:
        """Release the lock for commits."""
        unlock(self._held[_COMMITTING])

    def is_locked(self, start: int, length: int) -> bool:
        """Return False: these locks cannot see those of SQLite in the database."""
        return False

    def is_taken(self, number: int) -> bool:
        """Return whether somebody else has the lock."""
        try:
            descriptor = os.open(self._name(number), os.O_RDONLY | _FLAGS)
        except FileNotFoundError:
            return False
        try:
            return not try_lock(descriptor, shared=True)  # shared, so two simultaneous checks do not see each other
        finally:
            os.close(descriptor)

    def _name(self, number: int) -> str:
        return f"{self._path}.{number}"

    def _open(self, number: int) -> int:
        self._remove_files_of_the_dead()
        return os.open(self._name(number), os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)

    def _lock(self, descriptor: int, number: int) -> bool:
        return try_lock(descriptor)

    def _remove_files_of_the_dead(self) -> None:
        for found in glob.glob(f"{glob.escape(self._path)}.*"):
            number = found.rpartition(".")[2]
            if number.isdigit() and int(number) not in self._held and not self.is_taken(int(number)):
                with suppress(OSError):
                    os.unlink(found)


_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


def _open_locks(path: str, make: bool) -> OpenFileLocks:
    descriptor = _open_descriptor(path, make)
    if has_open_file_locks(descriptor):
        return OpenFileLocks(path, descriptor)
    os.close(descriptor)
    return WholeFileLocks(f"{path}-lock", _open_descriptor(f"{path}-lock", make))


class LockFile:
    """The locks of this process on one journal, made by `open_lock_file`."""

    def __init__(self, path: str, make: bool) -> None:
        self.path = path
        self._locks = _open_locks(path, make)
        self._endings = ("", "-wal", "-shm") if type(self._locks) is OpenFileLocks else ("", "-wal", "-shm", "-lock")
        self._identity = identity(path)
        self._process = os.getpid()
        self._users = 0
        self._owned: set[int] = set()
        self._committing = threading.Lock()

    @property
    def is_of_this_process(self) -> bool:
        """Whether the locks belong to this process, and not to its parent before a fork."""
        return os.getpid() == self._process

    def check_process(self) -> None:
        """Check that this process was not forked from the owner of the locks.

        Raises:
            JournalError: It was.
        """
        if not self.is_of_this_process:
            raise JournalError(
                f"the journal of {self.path!r} was open when this process was forked, and belongs to its parent: "
                "SQLite cannot be used on both sides of a fork. Open it after the fork, or start processes by 'spawn'"
            )

    @contextmanager
    def committing(self, seconds: float | None = None) -> Iterator[None]:
        """Let one thread of one process in at a time.

        Args:
            seconds: How long to wait for the others; None for `WAIT_SECONDS`.

        Raises:
            JournalError: Others hold the lock for too long.
        """
        seconds = WAIT_SECONDS if seconds is None else seconds
        ends = time.monotonic() + seconds
        if not self._committing.acquire(timeout=seconds):
            raise JournalError(f"{self.path!r}: another journal of this process has locked it for {seconds:g} s")
        try:
            while not self._locks.take(_COMMITTING):
                if time.monotonic() > ends:
                    raise JournalError(f"{self.path!r}: another process has locked it for {seconds:g} s")
                time.sleep(_TRY_AGAIN_AFTER)
            try:
                yield
            finally:
                self._locks.unlock_commits()
        finally:
            self._committing.release()

    def own(self, owner: int) -> None:
        """Live as `owner` from now on. Call it while committing, with a number unknown to all others."""
        with LIVENESS_FILES.lock:
            if not self._locks.take(owner):
                raise JournalError(f"{self.path!r}: another process has lock {owner}, which is new")
            self._owned.add(owner)
            LIVENESS_FILES.replace(self, self._locks.owners())

    def disown(self, owner: int) -> None:
        """Stop living as `owner`. At the end of the program the system does it, with all threads."""
        self._owned.discard(owner)
        if not _is_ending():
            with LIVENESS_FILES.lock:
                self._locks.close(owner)
                LIVENESS_FILES.replace(self, self._locks.owners())

    def lives(self, owner: int) -> bool:
        """Return whether a process lives as `owner`."""
        return owner in self._owned or self._locks.is_taken(owner)

    def identities(self) -> list[tuple[int, int] | None]:
        """Return the identities of the journal's files at its path now.

        SQLite and the locks hold each as long as it is open.
        """
        return [identity(f"{self.path}{end}") for end in self._endings]

    def has_sqlite(self, start: int, length: int) -> bool:
        """Return whether somebody has locked some of these bytes of the database."""
        return self._locks.is_locked(start, length)

    def open(self) -> LockFile:
        """Count one more user."""
        self._users += 1
        return self

    def close(self) -> None:
        """Count one user less. The last one closes the locks."""
        with _opening:
            self._users -= 1
            if self._users == 0 and self.is_of_this_process:
                _files.pop(self._identity, None)
                for owner in list(self._owned):  # of a journal that could not be opened
                    self.disown(owner)
                if not _is_ending():
                    self._locks.close_all()

    def abandon(self) -> None:
        """Close this forked child's copies of the lock descriptors. They would outlive the parent."""
        self._locks.close_all()


def _is_ending() -> bool:
    """Return whether the program is at its end: its `atexit` functions run, and handlers in daemon threads still do."""
    return all(thread.daemon for thread in threading.enumerate() if thread.is_alive())


def _abandon_locks() -> None:
    _opening.release()
    for file in _files.values():
        file.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_abandon_locks)


def identity(path: str) -> tuple[int, int] | None:
    """Return the device and the number of the file at a path, or None if there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def open_lock_file(path: str, *, make: bool = True) -> LockFile:
    """Return the locks of the journal at `path`. A missing file is made, with mode 0600, unless `make` is False.

    Raises:
        FileNotFoundError: The file is missing and `make` is False.
        OSError: The file cannot be opened.
        JournalError: The file was open when this process was forked.
    """
    with _opening:
        there = identity(path)
        if there in _files:
            known = _files[there]
            known.check_process()
            return known.open()
        file = LockFile(path, make)
        _files[file._identity] = file
        return file.open()


def _open_descriptor(path: str, make: bool) -> int:
    try:
        return os.open(path, os.O_RDWR | _FLAGS | (os.O_CREAT if make else 0), 0o600)
    except OSError:  # another user owns it, or the file system is read-only
        if make:
            raise
        return os.open(path, os.O_RDONLY | _FLAGS)  # enough to see the living processes
