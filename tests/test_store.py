"""Stores: one compare-and-set for all who share them, and a file that nobody changes without its key."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import ferrule.stores.store as stores
from ferrule import Journal
from ferrule.errors import DefinitionError
from ferrule.stores.store import (
    DATABASE_URL,
    BrokenRow,
    Memory,
    Postgres,
    SealedFile,
    Store,
    StoreError,
    read_row,
    replace_row,
)
from waits import BOUND

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
Make = Callable[[], Store]
Url = Callable[[str], str]


@pytest.fixture(params=["memory", "file", "journal", "postgres"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """What gives the same store each time: of a file or a database, another object of the same one."""
    if request.param == "memory":
        store = Memory()
        return lambda: store
    if request.param == "journal":
        return lambda: Journal.open(tmp_path / "calls.db").store
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")("stores")
        return lambda: Postgres(url)
    return lambda: SealedFile(tmp_path / "kept" / "values.json", KEY)


def test_what_was_put_there_is_found_and_what_was_taken_away_is_not(make: Make) -> None:
    assert make().get("a") is None
    assert make().compare_and_set("a", None, {"n": [1, True, 1.5, "é", None]})
    assert make().get("a") == {"n": [1, True, 1.5, "é", None]}
    assert make().compare_and_set("a/b", None, 0) and make().compare_and_set("b", None, "")
    assert list(make().items()) == ["a", "a/b", "b"] and make().items("a/") == {"a/b": 0}
    assert make().compare_and_set("a", {"n": [1, True, 1.5, "é", None]}, None)
    assert make().get("a") is None and make().items() == {"a/b": 0, "b": ""}


NOT_WRITTEN_BY_A_STORE = ["{broken", "NaN", "-1e999", '{"a": 1}', '{"b":1,"a":1}', '{"a":1,"a":2}', "[" * 99_999]


@pytest.mark.parametrize("text", NOT_WRITTEN_BY_A_STORE, ids=lambda text: text[:9])
@pytest.mark.parametrize("make", ["journal", "postgres"], indirect=True)
def test_a_row_that_no_store_has_written_hides_no_other_and_can_be_replaced(
    make: Make, text: str, tmp_path: Path
) -> None:
    assert make().compare_and_set("a", None, 1) and make().compare_and_set("b", None, 2)
    store = make()
    if isinstance(store, Postgres):
        with store._execute("UPDATE {table} SET value = %s WHERE key = %s", (text, "a")):
            pass
    else:
        with sqlite3.connect(tmp_path / "calls.db") as connection:
            connection.execute("UPDATE store SET value = ? WHERE key LIKE '%a'", (text,))
    assert store.items() == {"a": text, "b": 2} and store.get("a") == text
    assert isinstance(read_row(store.get("a"), str), BrokenRow)
    assert not store.compare_and_set("a", str(text), None)
    replace_row(store, "a", 3)
    assert store.items() == {"a": 3, "b": 2}


def test_a_store_that_changes_nothing_is_an_error_and_no_endless_loop() -> None:
    class Stuck(Memory):
        def compare_and_set(self, key: str, old: object, new: object) -> bool:
            return False

    with pytest.raises(StoreError, match="never true"):
        replace_row(Stuck(), "a", 1)


@pytest.mark.parametrize("row", [float("nan"), [-float("inf")], {"a": {1}}, object(), 5, None])
def test_nothing_in_one_row_raises(row: object) -> None:
    assert isinstance(read_row(row, lambda row: row["a"] + 1), BrokenRow)
    assert read_row({"a": 1}, lambda row: row["a"] + 1) == 2


@pytest.mark.parametrize(("there", "old"), [(1, None), (1, 2), (1, True), (1, 1.0), (None, 1), ({"a": 1}, {"a": 2})])
def test_what_is_not_the_old_value_changes_nothing(make: Make, there: object, old: object) -> None:
    if there is not None:
        make().compare_and_set("a", None, there)
    assert not make().compare_and_set("a", old, "new")
    assert make().get("a") == there


def test_a_value_that_is_changed_afterwards_is_not_changed_in_the_store(make: Make) -> None:
    given = {"list": [1]}
    make().compare_and_set("a", None, given)
    given["list"].append(2)
    make().get("a")["list"].append(3)
    assert make().get("a") == {"list": [1]}


def test_of_fifty_at_once_one_sets_it(make: Make) -> None:
    make().compare_and_set("a", None, 1)
    stores, barrier = [make() for _ in range(50)], Barrier(50)

    def take(store: Store) -> bool:
        barrier.wait(BOUND)
        return store.compare_and_set("a", 1, None)

    with ThreadPoolExecutor(50) as threads:
        assert list(threads.map(take, stores)).count(True) == 1


def test_of_several_processes_each_counts_up_and_no_count_is_lost(tmp_path: Path) -> None:
    program = f"""
from ferrule.stores.store import SealedFile
store, done = SealedFile({str(tmp_path / "kept.json")!r}, {KEY!r}), 0
while done < 20:
    old = store.get("n")
    done += store.compare_and_set("n", old, (old or 0) + 1)
"""
    (tmp_path / "elsewhere").mkdir()
    processes = [subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path / "elsewhere") for _ in range(3)]
    assert [process.wait(BOUND) for process in processes] == [0, 0, 0]
    assert SealedFile(tmp_path / "kept.json", KEY).get("n") == 60


@pytest.mark.slow
def test_programs_that_begin_at_once_make_one_table_and_no_count_is_lost(postgres_url: Url) -> None:
    program = """
from ferrule.stores.store import Postgres
store, done = Postgres(), 0
while done < 50:
    old = store.get("n")
    done += store.compare_and_set("n", old, (old or 0) + 1)
"""
    url = postgres_url("stores")
    environment = {**os.environ, DATABASE_URL: url}
    processes = [subprocess.Popen([sys.executable, "-c", program], env=environment) for _ in range(3)]
    assert [process.wait(BOUND) for process in processes] == [0, 0, 0]
    assert Postgres(url).get("n") == 150


def test_a_connection_that_was_lost_is_made_anew(postgres_url: Url, monkeypatch: pytest.MonkeyPatch) -> None:
    url = postgres_url("stores")
    store = Postgres(url)
    store.compare_and_set("a", None, 1)
    kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'ferrule'"
    with psycopg.connect(url, autocommit=True) as other:
        monkeypatch.setattr(stores, "_IDLE_SECONDS", 1e9)
        other.execute(kill)
        with pytest.raises(StoreError, match="terminating connection"):
            store.get("a")  # it was in use a moment ago
        assert store.get("a") == 1
        monkeypatch.setattr(stores, "_IDLE_SECONDS", 0.0)
        other.execute(kill)
        assert store.get("a") == 1 and store.compare_and_set("a", 1, 2)
    store.close()
    assert store.get("a") == 2


def test_a_table_may_have_a_name_and_a_schema_of_its_own(postgres_url: Url) -> None:
    url = postgres_url("stores")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute('CREATE SCHEMA "Own"')
    assert Postgres(url, table="Own.Kept").compare_and_set("a", None, 1)
    assert Postgres(url, table="Own.Kept").items() == {"a": 1} and Postgres(url).items() == {}


def test_who_may_not_make_tables_uses_one_that_is_there(postgres_url: Url) -> None:
    url = postgres_url("stores")
    assert Postgres(url).compare_and_set("a", None, 1)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("REVOKE CREATE ON SCHEMA public FROM public")
        connection.execute("DROP ROLE IF EXISTS clerk")
        connection.execute("CREATE ROLE clerk LOGIN")
        connection.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ferrule_store TO clerk")
        clerk = make_conninfo(url, user="clerk")
        assert Postgres(clerk).compare_and_set("a", 1, 2)
        with pytest.raises(StoreError, match="permission denied"):
            Postgres(clerk, table="another").get("a")
        connection.execute("DROP OWNED BY clerk")


@pytest.mark.parametrize("key", ["a\x00b", "\ud800", "".join(map(chr, range(33, 8000)))])
def test_a_key_that_no_table_takes_is_an_error_and_nothing_is_kept(postgres_url: Url, key: str) -> None:
    store = Postgres(postgres_url("stores"))
    with pytest.raises(StoreError):
        store.compare_and_set(key, None, 1)
    assert store.items() == {}


def test_what_is_said_of_a_database_holds_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("postgresql://ann:hunter2@127.0.0.1:1/db", "host=127.0.0.1 port=1 password=hunter2 user=hunter2"):
        with pytest.raises(StoreError) as error:
            Postgres(url).get("a")
        assert "hunter2" not in str(error.value) and "127.0.0.1" in str(error.value)
        assert error.value.__cause__ is None and "hunter2" not in repr(Postgres(url))
    with pytest.raises(DefinitionError) as wrong:
        Postgres("postgresql://ann:hunter2@host/db?nothing=1")
    assert "hunter2" not in str(wrong.value)
    monkeypatch.delenv(DATABASE_URL, raising=False)
    with pytest.raises(DefinitionError, match=DATABASE_URL):
        Postgres()


def test_without_psycopg_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(DefinitionError, match=r"pip install ferrule\[postgres\]"):
        Postgres("postgresql://here/db")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sealed file, and a working directory beside its folder."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    place = tmp_path / "state" / "values.json"
    SealedFile(place, KEY).compare_and_set("a", None, {"uses": 1})
    return place


def refused(file: Path, key: bytes = KEY, **options: list[Path]) -> str:
    with pytest.raises(StoreError) as error:
        SealedFile(file, key, **options)  # type: ignore[arg-type]
    return str(error.value)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_the_file_is_its_owners_alone_and_so_is_its_folder(file: Path) -> None:
    SealedFile(file, KEY).compare_and_set("b", None, 1)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [path.name for path in file.parent.iterdir() if path.stat().st_mode & 0o077] == []


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_that_others_may_read_or_write_is_not_believed(file: Path, mode: int) -> None:
    file.chmod(mode)
    assert "chmod 0600" in refused(file)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_folder_that_others_may_write_to_is_refused(file: Path, mode: int) -> None:
    file.parent.chmod(mode)
    assert "chmod 0700" in refused(file)


def test_another_key_is_an_error_and_the_file_stays_as_it_is(file: Path) -> None:
    before = file.read_bytes()
    assert "sealed with another key" in refused(file, OTHER_KEY)
    assert file.read_bytes() == before


def edits(text: str) -> list[str]:
    """The file with one edit in each of its places."""
    kept = json.loads(text)
    others = [text[: len(text) // 2], "", "[]", "{}", "null", '{"seal": "", "sealed": {}}', "[" * 100_000]
    others.append('{"seal": "", "sealed": {"writes": 1e400, "values": {}}}')
    for seal in ("", "0" * 64, kept["seal"][:-1], "é"):
        others.append(json.dumps({**kept, "seal": seal}))
    for name, value in (("writes", 2), ("version", 2), ("values", {}), ("values", {"a": {"uses": 2}}), ("more", 1)):
        others.append(json.dumps({**kept, "sealed": {**kept["sealed"], name: value}}))
    return others


def test_an_edit_anywhere_is_an_error_and_never_an_empty_store(file: Path) -> None:
    text, store = file.read_text(), SealedFile(file, KEY)
    for edited in edits(text):
        file.write_text(edited)
        assert "sealed" in refused(file)
        for use in (lambda: store.get("a"), store.items, lambda: store.compare_and_set("a", {"uses": 1}, None)):
            with pytest.raises(StoreError):
                use()
        assert file.read_text() == edited
    file.write_text(text)
    assert store.get("a") == {"uses": 1}


def test_a_file_of_another_name_is_not_taken_for_it(file: Path) -> None:
    os.replace(file, file.with_name("others.json"))
    assert "sealed with another key" in refused(file.with_name("others.json"))


def test_an_earlier_copy_is_an_error_for_who_has_read_a_later_one(file: Path) -> None:
    earlier, store = file.read_bytes(), SealedFile(file, KEY)
    assert store.compare_and_set("a", {"uses": 1}, None)
    file.write_bytes(earlier)
    with pytest.raises(StoreError, match="earlier copy"):
        store.get("a")
    file.unlink()
    with pytest.raises(StoreError, match="has been removed"):
        store.get("a")


@pytest.mark.skipif(os.name == "nt", reason="links need a right of their own there")
def test_a_link_is_refused_as_the_file_and_followed_above_it(file: Path, tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(file)
    assert "link" in refused(tmp_path / "link.json")
    (tmp_path / "folder").symlink_to(file.parent)
    assert SealedFile(tmp_path / "folder" / "values.json", KEY).path == str(file)
    os.link(file, tmp_path / "state" / "second.json")
    assert "hard links" in refused(file)


def test_a_place_that_tools_may_reach_is_refused_by_its_real_path(file: Path, tmp_path: Path) -> None:
    assert "the working directory" in refused(Path("values.json"))
    assert "the working directory" in refused(tmp_path / "work" / "below" / "values.json")
    assert "tools may reach it" in refused(file, apart_from=[tmp_path / "state"])
    assert "tools may reach it" in refused(file, apart_from=[tmp_path / "other", tmp_path])
    assert "tools may reach it" in refused(file, apart_from=[file])
    SealedFile(file, KEY, apart_from=[tmp_path / "sta"])
    if os.name != "nt":
        (tmp_path / "link").symlink_to(tmp_path / "work")
        assert "the working directory" in refused(tmp_path / "link" / "values.json")


@pytest.mark.parametrize("key", [b"", b"k" * 31, "k" * 32, None])
def test_a_key_that_is_too_short_is_refused(file: Path, key: bytes) -> None:
    with pytest.raises(DefinitionError, match="32 bytes"):
        SealedFile(file, key)
