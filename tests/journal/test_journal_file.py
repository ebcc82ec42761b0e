"""The file of a journal: who may read it, where it may lie, which files it is not, and older and newer ones."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import stat
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from processes import intent, program

from ferrule import Journal
from ferrule.errors import DefinitionError, JournalError
from ferrule.journal import _tables
from ferrule.journal._tables import STEPS, check_version, connect, prepare


async def test_what_it_makes_is_for_its_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        journal = Journal.open(tmp_path / "calls.db")
        await journal.begin(intent("one"))
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    journal.close()
    assert modes == dict.fromkeys(("calls.db", "calls.db-wal", "calls.db-shm"), 0o600)


def test_a_folder_that_is_missing_is_told_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"the folder '.*/kept' of the journal .* does not exist. Make it first"):
        Journal.open(tmp_path / "kept" / "calls.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["", ":memory:"])
def test_a_journal_in_memory_is_another_one(path: str) -> None:
    with pytest.raises(JournalError, match="memory"):
        Journal.open(path)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "calls.db").mkdir()
    with pytest.raises(JournalError, match="Is a directory"):
        Journal.open(tmp_path / "calls.db")


def test_there_are_two_ways_to_be_durable(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="durable must be 'full' or 'normal', not 'off'"):
        Journal.open(tmp_path / "calls.db", durable="off")
    assert list(tmp_path.iterdir()) == []


def test_a_text_is_no_journal_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    text = b"These are notes of somebody.\n" * 100
    path.write_bytes(text)
    with pytest.raises(JournalError, match="is no SQLite file: give another path"):
        Journal.open(path)
    assert path.read_bytes() == text


def test_the_database_of_another_program_is_no_journal_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE calls (key TEXT)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(JournalError, match="is an SQLite file of another program, and no journal"):
        Journal.open(path)
    assert path.read_bytes() == before


def test_a_journal_of_a_newer_version_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    Journal.open(path).close()
    newer = sqlite3.connect(path)
    newer.execute(f"PRAGMA user_version={len(STEPS) + 1}")
    newer.close()
    with pytest.raises(JournalError, match=rf"version {len(STEPS) + 1}, written by a newer Ferrule; .* update it"):
        Journal.open(path)


async def test_an_older_journal_becomes_the_newest_with_all_that_it_has(tmp_path: Path) -> None:
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


def test_a_step_that_fails_leaves_the_journal_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    Journal.open(path).close()
    connection = connect(str(path), write=True)
    with pytest.raises(sqlite3.Error, match="nowhere"):
        prepare(connection, str(path), "FULL", (*STEPS, "CREATE TABLE places (name TEXT); DROP TABLE nowhere"))
    assert connection.execute("PRAGMA user_version").fetchone() == (len(STEPS),)
    assert connection.execute("SELECT name FROM sqlite_master WHERE name = 'places'").fetchall() == []
    connection.close()
    Journal.open(path).close()


def test_a_damaged_journal_says_so(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    journal = Journal.open(path)
    for n in range(50):
        asyncio.run(journal.begin(intent(f"k{n}", arguments={"text": "x" * 1000})))
    journal.close()
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)

    async def find() -> None:
        await Journal.open(path).find("k1")

    with pytest.raises(JournalError, match=r"is damaged \(.*\)\. Move it away for a new one"):
        asyncio.run(find())


def test_a_place_where_nothing_may_be_written_says_so() -> None:
    text = """
import ferrule.journal.sqlite
if os.geteuid() == 0: os.seteuid(65534)
try: Journal.open(path)
except JournalError as error: say(error)
"""
    with TemporaryDirectory() as folder:  # not pytest's, which is for its user alone
        Path(folder).chmod(0o555)
        with program(text, Path(folder, "calls.db")) as other:
            assert "cannot be opened: Permission denied" in other.rest()
        Path(folder).chmod(0o755)


def test_an_sqlite_that_is_too_old_is_told_with_what_to_do() -> None:
    check_version((3, 37, 0))
    with pytest.raises(JournalError, match=r"needs SQLite 3\.37\.0 or newer, not 3\.36\.9\. Use a Python"):
        check_version((3, 36, 9))


def test_its_real_path_is_what_a_link_leads_to(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "real" / "calls.db")
    one = Journal.open(tmp_path / "link.db")
    other = Journal.open(tmp_path / "real" / "calls.db")
    assert one.path == other.path == str(tmp_path / "real" / "calls.db")
    asyncio.run(one.begin(intent("one")))
    found = asyncio.run(other.find("one"))
    assert found is not None and found.state == "running"
    one.close()
    other.close()


async def test_a_path_may_have_characters_that_addresses_have_not(tmp_path: Path) -> None:
    path = tmp_path / "calls ?mode=memory&x=%41#é.db"
    journal = Journal.open(path)
    await journal.begin(intent("one"))
    journal.close()
    assert sorted(found.name for found in tmp_path.iterdir()) == [path.name]


def test_no_connection_makes_checkpoints_by_itself(tmp_path: Path) -> None:
    path = str(tmp_path / "calls.db")
    Journal.open(path).close()
    for write in (True, False):
        connection = connect(path, write=write)
        assert connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)
        connection.close()


def test_who_only_reads_writes_nothing_back_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    text = "journal = Journal.open(path); asyncio.run(journal.begin(intent('one'))); say('begun'); wait()"
    with program(text, path) as other:
        assert other.heard() == "begun"
        other.kill()
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir() if not file.name.endswith("-shm")}
    assert len(before["calls.db-wal"]) > 4096
    connection = connect(str(path), write=False)
    assert connection.execute("SELECT key FROM calls").fetchall() == [("one",)]
    with pytest.raises(sqlite3.Error, match=r"readonly|read-only"):
        connection.execute("DELETE FROM calls")
    connection.close()
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


def test_the_application_id_is_the_one_that_readers_look_for(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    Journal.open(path).close()
    assert path.read_bytes()[68:72] == b"Ferr" == _tables.APPLICATION_ID.to_bytes(4, "big")


@pytest.mark.parametrize("end", ["", "-wal", "-shm"])
@pytest.mark.parametrize("is_replaced", [False, True], ids=["removed", "replaced"])
async def test_where_a_file_of_the_journal_is_removed_or_replaced_nothing_is_begun_in_what_nobody_else_finds(
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
