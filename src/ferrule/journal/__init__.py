"""Where calls are kept, so that none that changes something is run twice: in memory, or in an SQLite file."""

from __future__ import annotations

from ferrule.journal.memory import MemoryJournal

__all__ = ["MemoryJournal", "memory"]


def memory() -> MemoryJournal:
    """A journal in the memory of this process, for all runners, loops and threads in it. See docs/journal.md."""
    return MemoryJournal()
