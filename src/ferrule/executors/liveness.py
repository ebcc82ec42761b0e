"""Open files whose locks say that this program lives. A worker's supervisor holds copies while the worker has a call.

A program that is killed takes a moment to take its workers with it, and what they do in that moment still happens. The
locks are dropped when the last copy is closed, so the program counts as alive until its workers have ended.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence


class SharedDescriptors:
    """Descriptors by who opened them. Hold `lock` while you send them, and while you open or close one: a process that
    is forked meanwhile would keep a descriptor that nobody knows of."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._by_owner: dict[object, tuple[int, ...]] = {}

    def share(self, owner: object, descriptors: Sequence[int]) -> None:
        """Put these in the place of what `owner` shared before."""
        with self.lock:
            self._by_owner.pop(owner, None)
            if descriptors:
                self._by_owner[owner] = tuple(descriptors)

    def all(self) -> list[int]:
        """All that are shared."""
        return [descriptor for shared in self._by_owner.values() for descriptor in shared]

    def forget(self) -> None:
        """In a forked child, whose parent lives by them: share nothing. Who opened them closes them."""
        self.lock = threading.RLock()
        self._by_owner.clear()


SHARED = SharedDescriptors()
"""Those of this process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: SHARED.lock.acquire(),
        after_in_parent=lambda: SHARED.lock.release(),
        after_in_child=SHARED.forget,
    )
