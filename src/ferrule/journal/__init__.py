"""Journals: records of calls, so a call that changes something runs only once. See docs/journal.md.

    runner = Runner(tools, journal=Journal.open("calls.db"))

`memory()` makes a journal for the lifetime of its process. `Reader` reads the file of one. One of
your own is a subclass of `ferrule.Journal`, and passes `JournalContract` of `ferrule.testing`.
"""

from __future__ import annotations

from ferrule.journal.memory import MemoryJournal, memory
from ferrule.journal.reading import Filter, LoggedCall, Reader
from ferrule.journal.sqlite import SQLiteJournal, SQLiteStore

__all__ = ["Filter", "LoggedCall", "MemoryJournal", "Reader", "SQLiteJournal", "SQLiteStore", "memory"]
