"""Both journals keep what every journal promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferrule import Journal
from ferrule.journal import MemoryJournal, SQLiteJournal, memory
from ferrule.testing import JournalContract


class TestMemory(JournalContract):
    def make(self) -> Journal:
        return memory()

    def second(self, journal: Journal) -> Journal:
        return journal

    def reopen(self, journal: Journal) -> Journal:
        assert isinstance(journal, MemoryJournal)
        journal.cut_off()
        return journal


class TestSQLite(JournalContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "calls.db"

    def make(self) -> Journal:
        return Journal.open(self.path, durable="normal")

    def second(self, journal: Journal) -> Journal:
        return SQLiteJournal(self.path)

    def reopen(self, journal: Journal) -> Journal:
        journal.close()
        return Journal.open(self.path)


def test_a_store_keeps_its_journal_open(tmp_path: Path) -> None:
    store = Journal.open(tmp_path / "calls.db").store
    assert store.compare_and_set("a", None, 1) and store.get("a") == 1
    assert Journal.open(tmp_path / "calls.db").store.items() == {"a": 1}
