"""`journal.store`: what is kept beside the calls, in the same file."""

from __future__ import annotations

from pathlib import Path

from ferrule import Journal


def test_a_store_keeps_its_journal_open_for_as_long_as_somebody_has_it(tmp_path: Path) -> None:
    store = Journal.open(tmp_path / "calls.db").store
    assert store.compare_and_set("a", None, 1) and store.get("a") == 1
    assert Journal.open(tmp_path / "calls.db").store.items() == {"a": 1}
