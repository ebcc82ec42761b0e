"""Lock files that prove that this program lives. The supervisor of a worker holds copies while the worker has a call.

A killed program takes a moment to end its workers, and handlers still have effects in that moment. A lock is released
when its last copy is closed, so the program counts as alive until its workers have ended.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence


class LivenessFiles:
    """The descriptors of open lock files, by the object that opened them.

    Attributes:
        lock: Hold it while you open, close or send a descriptor. Otherwise a process that is forked meanwhile would
            keep a descriptor that nobody closes.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._by_owner: dict[object, tuple[int, ...]] = {}

    def replace(self, owner: object, descriptors: Sequence[int]) -> None:
        """Replace the descriptors of `owner`."""
        with self.lock:
            self._by_owner.pop(owner, None)
            if descriptors:
                self._by_owner[owner] = tuple(descriptors)

    def all_descriptors(self) -> list[int]:
        """Return the descriptors of all owners."""
        return [descriptor for descriptors in self._by_owner.values() for descriptor in descriptors]

    def reset_after_fork(self) -> None:
        """Forget all descriptors in a forked child, because they prove that its parent lives. Owners close them."""
        self.lock = threading.RLock()
        self._by_owner.clear()


LIVENESS_FILES = LivenessFiles()
"""The lock files of this process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: LIVENESS_FILES.lock.acquire(),
        after_in_parent=lambda: LIVENESS_FILES.lock.release(),
        after_in_child=LIVENESS_FILES.reset_after_fork,
    )
