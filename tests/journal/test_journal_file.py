"""The file of a journal: who may read it, where it may lie, which files are refused, and older and newer versions."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import intent

from ferrule import Journal
from ferrule.errors import DefinitionError, JournalError
from ferrule.journal._tables import STEPS, check_version, connect, make_file, prepare
from ferrule.journal.reading import Reader


async def test_only_the_owner_may_read_the_files(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        journal = Journal.open(tmp_path / "calls.db")
        await journal.begin(intent("one"))
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    journal.close()
    assert modes == dict.fromkeys(("calls.db", "calls.db-wal", "calls.db-shm"), 0o600)


@pytest.mark.parametrize(
    ("path", "options", "error", "said"),
    [
        ("kept/calls.db", {}, JournalError, r"the folder '.*/kept' of the journal .* does not exist. Make it first"),
        ("", {}, JournalError, "Is a directory"),
        ("calls.db", {"durable": "off"}, DefinitionError, "durable must be 'full' or 'normal', not 'off'"),
    ],
)
def test_a_journal_that_cannot_be_opened_makes_no_file(
    tmp_path: Path, path: str, options: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        Journal.open(tmp_path / path, **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["", ":memory:"])
def test_a_path_in_memory_is_refused(path: str) -> None:
    with pytest.raises(JournalError, match="memory"):
        Journal.open(path)


def write_text(path: Path) -> None:
    path.write_bytes(b"These are notes of somebody.\n" * 100)


def make_other_database(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE calls (key TEXT)")
    other.close()


def make_newer_journal(path: Path) -> None:
    Journal.open(path).close()
    newer = sqlite3.connect(path)
    newer.execute(f"PRAGMA user_version={len(STEPS) + 1}")
    newer.close()


def read_calls(path: Path) -> None:
    list(Reader(path).calls())


@pytest.mark.parametrize("use", [Journal.open, read_calls])
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (write_text, "is no (SQLite file: give another path|journal)"),
        (make_other_database, "an SQLite file of another program"),
        (make_newer_journal, rf"version {len(STEPS) + 1}, written by a newer Ferrule.*update it"),
    ],
)
def test_a_file_that_is_no_journal_is_refused_and_unchanged(
    tmp_path: Path, use: Callable[[Path], object], make: Callable[[Path], None], said: str
) -> None:
    path = tmp_path / "calls.db"
    make(path)
    before = path.read_bytes()
    with pytest.raises(JournalError, match=said):
        use(path)
    assert path.read_bytes() == before


def test_a_journal_of_each_older_version_is_opened(tmp_path: Path) -> None:
    for version in range(1, len(STEPS)):
        path = tmp_path / f"{version}.db"
        assert make_file(str(path))
        connection = connect(str(path), write=True)
        prepare(connection, str(path), "FULL", STEPS[:version])
        connection.close()
        with pytest.raises(JournalError, match=r"open it once with Journal\.open"):
            Reader(path).newest()
        Journal.open(path).close()
        assert Reader(path).newest() == []


async def test_an_older_journal_is_upgraded_with_all_its_calls(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    journal = Journal.open(path)
    await journal.begin(intent("one"))
    journal.close()
    steps = (*STEPS, "ALTER TABLE calls ADD COLUMN place TEXT; CREATE TABLE places (name TEXT)")
    connection = connect(str(path), write=True)
    prepare(connection, str(path), "FULL", steps)
    assert connection.execute("PRAGMA user_version").fetchone() == (len(steps),)
    assert connection.execute("SELECT key, place FROM calls").fetchall() == [("one", None)]
    prepare(connection, str(path), "FULL", steps)  # and once is enough
    connection.close()


def test_a_failed_upgrade_leaves_the_journal_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    Journal.open(path).close()
    connection = connect(str(path), write=True)
    with pytest.raises(sqlite3.Error, match="nowhere"):
        prepare(connection, str(path), "FULL", (*STEPS, "CREATE TABLE places (name TEXT); DROP TABLE nowhere"))
    assert connection.execute("PRAGMA user_version").fetchone() == (len(STEPS),)
    assert connection.execute("SELECT name FROM sqlite_master WHERE name = 'places'").fetchall() == []
    connection.close()
    Journal.open(path).close()


async def test_a_damaged_journal_says_so(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    journal = Journal.open(path)
    await asyncio.gather(*(journal.begin(intent(f"k{n}", arguments={"text": "x" * 1000})) for n in range(50)))
    journal.close()
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    with pytest.raises(JournalError, match=r"is damaged \(.*\)\. Move it away for a new one"):
        await Journal.open(path).find("k1")
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(JournalError, match="calls"):
        read_calls(path)


def test_an_old_sqlite_is_refused_with_the_remedy() -> None:
    check_version((3, 37, 0))
    with pytest.raises(JournalError, match=r"needs SQLite 3\.37\.0 or newer, not 3\.36\.9\. Use a Python"):
        check_version((3, 36, 9))


@pytest.mark.parametrize("end", ["", "-wal", "-shm"])
@pytest.mark.parametrize("is_replaced", [False, True], ids=["removed", "replaced"])
async def test_a_journal_whose_file_was_removed_or_replaced_begins_nothing(
    tmp_path: Path, end: str, is_replaced: bool
) -> None:
    journal = Journal.open(tmp_path / "calls.db")
    await journal.begin(intent("one"))
    file = tmp_path / f"calls.db{end}"
    if is_replaced:
        shutil.copy(file, tmp_path / "copy")
        (tmp_path / "copy").rename(file)
    else:
        file.unlink()
    with pytest.raises(JournalError, match="was removed or replaced while it was open"):
        await journal.begin(intent("two"))
    journal.close()
