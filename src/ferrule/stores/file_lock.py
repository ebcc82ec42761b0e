"""Locks of whole files among processes. The system releases a lock when its descriptor is closed."""

from __future__ import annotations

import sys

if sys.platform == "win32":  # pragma: no cover
    import msvcrt
else:
    import fcntl


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Try to lock the file of this descriptor, and return whether it was free. On Windows no lock is shared.

    Raises:
        OSError: The file system has no locks.
    """
    try:
        if sys.platform == "win32":  # pragma: no cover
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def unlock(descriptor: int) -> None:
    """Release the lock of this descriptor."""
    if sys.platform == "win32":  # pragma: no cover
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
