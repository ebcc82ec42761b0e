"""The file beside a journal whose bytes are locked: byte 0 by whoever commits, and each further one by who lives.

The system lets go of such a lock when its process ends, however it ends. It belongs to the process and not to a
descriptor, and closing any descriptor of the file lets go of all (POSIX, `fcntl`): so a process has one descriptor for
each such file, however many journals are on it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ferrule.errors import JournalError

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

_files: dict[tuple[int, int] | None, LockFile] = {}
_opening = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_opening.release)


class LockFile:
    """The locks of one file, as this process has them; made by `open_lock_file`."""

    def __init__(self, path: str, descriptor: int, identity: tuple[int, int]) -> None:
        self.path = path
        self._descriptor = descriptor
        self._identity = identity
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
        """For one thread of one process at a time.

        Raises:
            JournalError: where others are at it for too long.
        """
        ends = time.monotonic() + WAIT_SECONDS
        if not self._committing.acquire(timeout=WAIT_SECONDS):
            raise JournalError(f"{self.path!r}: another journal of this process is at it for {WAIT_SECONDS:g} s")
        try:
            while not self._lock(_COMMITTING):
                if time.monotonic() > ends:
                    raise JournalError(f"{self.path!r}: another process keeps it locked for {WAIT_SECONDS:g} s")
                time.sleep(_TRY_AGAIN_AFTER)
            try:
                yield
            finally:
                self._unlock(_COMMITTING)
        finally:
            self._committing.release()

    def own(self, owner: int) -> None:
        """Live as `owner`, from now on. Nobody else may have heard of this number."""
        if not self._lock(owner):
            raise JournalError(f"{self.path!r}: byte {owner} is locked by another process, which is not to know of it")
        self._owned.add(owner)

    def disown(self, owner: int) -> None:
        """Live as `owner` no longer."""
        self._owned.discard(owner)
        self._unlock(owner)

    def lives(self, owner: int) -> bool:
        """Whether a process lives as `owner`."""
        if owner in self._owned:
            return True
        if not self._lock(owner, shared=True):  # shared, so that two who look do not see each other
            return True
        self._unlock(owner)
        return False

    def open(self) -> LockFile:
        """Use it once more."""
        self._users += 1
        return self

    def close(self) -> None:
        """Use it once less; at the last, the locks are gone."""
        with _opening:
            self._users -= 1
            if self._users == 0 and self.is_of_this_process:
                _files.pop(self._identity, None)
                os.close(self._descriptor)

    def _lock(self, byte: int, *, shared: bool = False) -> bool:
        try:
            _lock_byte(self._descriptor, byte, shared)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _unlock(self, byte: int) -> None:
        _unlock_byte(self._descriptor, byte)


def identity(path: str) -> tuple[int, int] | None:
    """Which file lies there; `None` where none does."""
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
    flags = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
    try:
        return os.open(path, os.O_RDWR | flags | (os.O_CREAT if make else 0), 0o600)
    except PermissionError:
        if make:
            raise
        return os.open(path, os.O_RDONLY | flags)  # enough to see who lives


_lock_byte: Callable[[int, int, bool], None]
_unlock_byte: Callable[[int, int], None]

if fcntl is not None:

    def _lock_byte(descriptor: int, byte: int, shared: bool) -> None:
        fcntl.lockf(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB, 1, byte)

    def _unlock_byte(descriptor: int, byte: int) -> None:
        fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, byte)

else:  # pragma: no cover  # Windows, whose locks are never shared
    import msvcrt as _msvcrt

    msvcrt: Any = _msvcrt
    _seeking = threading.Lock()

    def _lock_byte(descriptor: int, byte: int, shared: bool) -> None:
        with _seeking:
            os.lseek(descriptor, byte, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

    def _unlock_byte(descriptor: int, byte: int) -> None:
        with _seeking:
            os.lseek(descriptor, byte, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)
