"""The lock file beside a journal: who commits now, and which processes live.

The system lets go of these locks when their process ends, however it ends. They belong to an open file and not to the
process, so that nothing else that the process opens and closes can drop them: POSIX drops every lock of `fcntl.lockf`
when a process closes any descriptor of the file.

Whoever holds a copy of the open file holds its locks. A forked child closes its copy. The supervisor of a worker gets
one (`executors/liveness.py`), so that a program whose workers still run lives for the journal.
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
from ferrule.executors.liveness import SHARED

try:
    import fcntl as _fcntl
except ImportError:  # pragma: no cover
    fcntl: Any = None
else:
    fcntl = _fcntl

WAIT_SECONDS = 5.0
"""How long a commit waits for other processes: less than what the kernel waits for a commit."""
_TRY_AGAIN_AFTER = 0.001  # a process that commits without a pause leaves gaps of a tenth of that
_COMMITTING = 0
_LOCK_OF_LINUX = "hhqqi"  # struct flock: type, whence, start, length, process

_files: dict[tuple[int, int] | None, LockFile] = {}
_opening = threading.Lock()


class OpenFileLocks:
    """Numbered locks of one lock file: 0 for commits, each further one for an owner. On Linux they are bytes of the
    file, as open file description locks.

    Each lock has a descriptor of its own, so that a worker's supervisor can hold owners without holding up commits.
    """

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._held = {_COMMITTING: descriptor}

    def take(self, number: int) -> bool:
        """Take a lock; whether nobody else had it."""
        if number in self._held:
            return self._lock(self._held[number], number)
        descriptor = self._open(number)
        if not self._lock(descriptor, number):
            os.close(descriptor)
            return False
        self._held[number] = descriptor
        return True

    def release(self, number: int) -> None:
        """Let go of a lock, whoever else holds a copy of its descriptor."""
        self._unlock(self._held[number], number)
        if number != _COMMITTING:
            os.close(self._held.pop(number))

    def is_taken(self, number: int) -> bool:
        """Whether somebody else has the lock."""
        answer = lock_open_file(self._held[_COMMITTING], fcntl.F_OFD_GETLK, fcntl.F_WRLCK, number)
        return bool(answer != fcntl.F_UNLCK)

    def owners(self) -> list[int]:
        """The descriptors of the locks of owners."""
        return [descriptor for number, descriptor in self._held.items() if number != _COMMITTING]

    def abandon(self) -> None:
        """Close all descriptors, and unlock nothing."""
        while self._held:
            os.close(self._held.popitem()[1])

    def _open(self, number: int) -> int:
        return os.open(self._path, os.O_RDWR | _FLAGS)

    def _lock(self, descriptor: int, number: int) -> bool:
        try:
            lock_open_file(descriptor, fcntl.F_OFD_SETLK, fcntl.F_WRLCK, number)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _unlock(self, descriptor: int, number: int) -> None:
        lock_open_file(descriptor, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, number)


def has_open_file_locks(descriptor: int) -> bool:
    """Whether the system has them, for a file that lies there: Linux, but gVisor and WSL 1 have not."""
    if sys.platform != "linux":
        return False
    try:
        lock_open_file(descriptor, fcntl.F_OFD_GETLK, fcntl.F_RDLCK, _COMMITTING)
    except OSError:
        return False
    return True


def lock_open_file(descriptor: int, command: int, kind: int, start: int, length: int = 1) -> int:
    """Ask Linux for an open file description lock; the kind of the lock in its answer.

    Raises:
        BlockingIOError: where somebody else has the lock.
        OSError: where the file system has no locks.
    """
    asked = struct.pack(_LOCK_OF_LINUX, kind, os.SEEK_SET, start, length, 0)
    answer: int = struct.unpack(_LOCK_OF_LINUX, fcntl.fcntl(descriptor, command, asked))[0]
    return answer


class WholeFileLocks(OpenFileLocks):
    """The same by `flock`, on macOS, BSD and gVisor. It locks a whole file: each owner has one, `PATH.OWNER`."""

    def is_taken(self, number: int) -> bool:
        """Whether somebody else has the lock."""
        try:
            descriptor = os.open(self._name(number), os.O_RDONLY | _FLAGS)
        except FileNotFoundError:
            return False
        try:
            return not _flock(descriptor, fcntl.LOCK_SH)  # shared, so that two who look do not see each other
        finally:
            os.close(descriptor)

    def _name(self, number: int) -> str:
        return f"{self._path}.{number}"

    def _open(self, number: int) -> int:
        self._remove_files_of_the_dead()
        return os.open(self._name(number), os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)

    def _lock(self, descriptor: int, number: int) -> bool:
        return _flock(descriptor, fcntl.LOCK_EX)

    def _unlock(self, descriptor: int, number: int) -> None:
        if number != _COMMITTING:
            with suppress(OSError):
                os.unlink(self._name(number))
        fcntl.flock(descriptor, fcntl.LOCK_UN)

    def _remove_files_of_the_dead(self) -> None:
        for found in glob.glob(f"{glob.escape(self._path)}.*"):
            number = found.rpartition(".")[2]
            if number.isdigit() and int(number) not in self._held and not self.is_taken(int(number)):
                with suppress(OSError):
                    os.unlink(found)


def _flock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class WindowsLocks:  # pragma: no cover
    """The same as bytes of the file, which Windows drops with the handle that took them, and with no other."""

    def __init__(self, path: str, descriptor: int) -> None:
        import msvcrt

        self._descriptor = descriptor
        self._system: Any = msvcrt
        self._seeking = threading.Lock()

    def take(self, number: int) -> bool:
        """Take a lock; whether nobody else had it."""
        try:
            self._lock(number, self._system.LK_NBLCK)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def release(self, number: int) -> None:
        """Let go of a lock."""
        self._lock(number, self._system.LK_UNLCK)

    def is_taken(self, number: int) -> bool:
        """Whether somebody else has the lock."""
        if not self.take(number):
            return True
        self.release(number)
        return False

    def owners(self) -> list[int]:
        """The descriptors of the locks of owners: there are no workers here to hold them."""
        return []

    def abandon(self) -> None:
        """Windows does not fork."""

    def _lock(self, number: int, kind: int) -> None:
        with self._seeking:
            os.lseek(self._descriptor, number, os.SEEK_SET)
            self._system.locking(self._descriptor, kind, 1)


_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


def _locks_of(path: str, descriptor: int) -> OpenFileLocks | WholeFileLocks | WindowsLocks:
    if fcntl is None:
        return WindowsLocks(path, descriptor)
    return OpenFileLocks(path, descriptor) if has_open_file_locks(descriptor) else WholeFileLocks(path, descriptor)


class LockFile:
    """The locks that this process has in one lock file; made by `open_lock_file`."""

    def __init__(self, path: str, descriptor: int, identity: tuple[int, int]) -> None:
        self.path = path
        self._descriptor = descriptor
        self._identity = identity
        self._locks = _locks_of(path, descriptor)
        self._process = os.getpid()
        self._users = 0
        self._owned: set[int] = set()
        self._committing = threading.Lock()

    @property
    def is_of_this_process(self) -> bool:
        """Whether this process has the locks, and not the one that it was forked from."""
        return os.getpid() == self._process

    def check_process(self) -> None:
        """Raises:
        JournalError: in a process that was forked from the one that has the locks.
        """
        if not self.is_of_this_process:
            raise JournalError(
                f"the journal of {self.path!r} was open when this process was forked, and belongs to its parent: "
                "SQLite cannot be used on both sides of a fork. Open it after the fork, or start processes by 'spawn'"
            )

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Let one thread of one process in at a time.

        Raises:
            JournalError: where others are at it for too long.
        """
        ends = time.monotonic() + WAIT_SECONDS
        if not self._committing.acquire(timeout=WAIT_SECONDS):
            raise JournalError(f"{self.path!r}: another journal of this process is at it for {WAIT_SECONDS:g} s")
        try:
            while not self._locks.take(_COMMITTING):
                if time.monotonic() > ends:
                    raise JournalError(f"{self.path!r}: another process keeps it locked for {WAIT_SECONDS:g} s")
                time.sleep(_TRY_AGAIN_AFTER)
            try:
                yield
            finally:
                self._locks.release(_COMMITTING)
        finally:
            self._committing.release()

    def own(self, owner: int) -> None:
        """Live as `owner` from now on. Called while committing, with a number that nobody else has heard of."""
        if not self._locks.take(owner):
            raise JournalError(f"{self.path!r}: lock {owner} is held by another process, which cannot know of it")
        self._owned.add(owner)
        SHARED.share(self, self._locks.owners())

    def disown(self, owner: int) -> None:
        """Stop living as `owner`."""
        self._owned.discard(owner)
        with SHARED.lock:
            self._locks.release(owner)
            SHARED.share(self, self._locks.owners())

    def lives(self, owner: int) -> bool:
        """Whether a process lives as `owner`."""
        return owner in self._owned or self._locks.is_taken(owner)

    def open(self) -> LockFile:
        """Count one more user."""
        self._users += 1
        return self

    def close(self) -> None:
        """Count one user less; the last one lets go of the locks."""
        with _opening:
            self._users -= 1
            if self._users == 0 and self.is_of_this_process:
                _files.pop(self._identity, None)
                for owner in list(self._owned):  # of a journal that could not be opened
                    self.disown(owner)
                os.close(self._descriptor)

    def abandon(self) -> None:
        """In a forked child: close its copies of what the locks belong to, or they would outlive the parent."""
        self._locks.abandon()


def _abandon_locks() -> None:
    _opening.release()
    for file in _files.values():
        file.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_abandon_locks)


def identity(path: str) -> tuple[int, int] | None:
    """The device and the number of the file at a path; `None` where there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def open_lock_file(path: str, *, make: bool = True) -> LockFile:
    """The lock file at `path`; one that is missing is made, with mode 0600.

    Raises:
        FileNotFoundError: where it is missing and is not to be made.
        OSError: where it cannot be opened.
        JournalError: where it was open when this process was forked.
    """
    with _opening:
        there = identity(path)
        if there in _files:
            known = _files[there]
            known.check_process()
            return known.open()
        descriptor = _locking_descriptor(path, make)
        opened = os.fstat(descriptor)
        made = (opened.st_dev, opened.st_ino)
        file = _files[made] = LockFile(path, descriptor, made)
        return file.open()


def _locking_descriptor(path: str, make: bool) -> int:
    try:
        return os.open(path, os.O_RDWR | _FLAGS | (os.O_CREAT if make else 0), 0o600)
    except PermissionError:
        if make:
            raise
        return os.open(path, os.O_RDONLY | _FLAGS)  # enough to see who lives
