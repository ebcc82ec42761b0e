"""One row of marks for each principal and session, in the store of the runner's journal."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

from ferrule.stores.store import Memory, Store, StoreError
from ferrule.types import Journal

Marks: TypeAlias = dict[str, Any]
"""The marks of a session, as JSON values by name."""
Change: TypeAlias = Callable[[Marks], Marks]

log = logging.getLogger("ferrule")
_WRITE_TRIES = 100


class SessionRows:
    """The marks of sessions, changed by compare-and-set. Its methods block.

    The journal of the newest runner stores them, or the memory of this process without one.

    Args:
        owner: The owner of the rows, such as `"flow"`: the beginning of their keys.
        store: The store to use in place of the journal's.
    """

    def __init__(self, owner: str, store: Store | None = None) -> None:
        self._owner = owner
        self._store: Store = Memory() if store is None else store
        self._follows_journal = store is None
        self._journal: Journal | None = None
        self._unsaved: dict[str, Marks] = {}
        self._lock = threading.Lock()

    def follow(self, journal: Journal | None) -> None:
        """Use the store of this journal from now on. This process remembers the marks of the earlier one."""
        if not self._follows_journal or journal is None or journal is self._journal:
            return
        with suppress(StoreError):  # a closed journal: mostly, the new one has the same file
            self._unsaved |= self._store.items(f"{self._owner}/")
        self._journal, self._store = journal, journal.store

    def make_key(self, *scope: str | None) -> str:
        """Return the key of a row, such as that of a principal and a session."""
        return f"{self._owner}/{json.dumps(scope)}"

    def read(self, key: str) -> Marks:
        """Return the marks of a row.

        Raises:
            StoreError: The store cannot be read.
        """
        return {**self._unsaved.get(key, {}), **(self._store.get(key) or {})}

    def change(self, key: str, change: Change) -> None:
        """Replace the marks of a row by `change(marks)`. Other changes at the same time are not lost.

        Raises:
            StoreError: The store cannot be read or changed.
        """
        with self._lock:
            for _ in range(_WRITE_TRIES):
                stored = self._store.get(key)
                marks = change({**self._unsaved.get(key, {}), **(stored or {})})
                if marks == (stored or {}) or self._store.compare_and_set(key, stored, marks or None):
                    self._unsaved.pop(key, None)
                    return
        raise StoreError("compare_and_set(key, get(key), …) of the store is never true")

    def record(self, key: str, change: Change) -> None:
        """Change the marks of a row. If the store fails, this process remembers them, and tries again."""
        try:
            self.change(key, change)
        except Exception:
            self._unsaved[key] = change(self._unsaved.get(key, {}))
            log.exception("%s: this process alone knows a change of %s", self._owner, key)
