"""Journals: records of calls, so a call that changes something runs only once. See docs/journal.md.

    runner = Runner(tools, journal=Journal.open("calls.db"))

`memory()` makes a journal for the lifetime of its process. One of your own is a subclass of `ferrule.Journal`, and
passes `JournalContract` of `ferrule.testing`.
"""

from __future__ import annotations

from ferrule.journal.memory import MemoryJournal, memory
from ferrule.journal.sqlite import SQLiteJournal, SQLiteStore

__all__ = ["MemoryJournal", "SQLiteJournal", "SQLiteStore", "memory"]
