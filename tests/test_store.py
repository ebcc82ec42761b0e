"""Stores share one compare-and-set, and a sealed file cannot be changed without its key."""

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


def test_a_store_returns_what_was_set(make: Make) -> None:
    assert make().get("a") is None
    assert make().compare_and_set("a", None, {"n": [1, True, 1.5, "é", None]})
    assert make().get("a") == {"n": [1, True, 1.5, "é", None]}
    assert make().compare_and_set("a/b", None, 0) and make().compare_and_set("b", None, "")
    assert list(make().items()) == ["a", "a/b", "b"] and make().items("a/") == {"a/b": 0}
    assert make().compare_and_set("a", {"n": [1, True, 1.5, "é", None]}, None)
    assert make().get("a") is None and make().items() == {"a/b": 0, "b": ""}


NOT_WRITTEN_BY_A_STORE = ["{broken", "NaN", '{"b":1,"a":1}', '{"a":1,"a":2}', "[" * 99_999]


@pytest.mark.parametrize("text", NOT_WRITTEN_BY_A_STORE, ids=lambda text: text[:9])
@pytest.mark.parametrize("make", ["journal", "postgres"], indirect=True)
def test_a_damaged_row_hides_no_other_and_can_be_replaced(make: Make, text: str, tmp_path: Path) -> None:
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


def test_a_store_that_never_changes_is_an_error() -> None:
    class Stuck(Memory):
        def compare_and_set(self, key: str, old: object, new: object) -> bool:
            return False

    with pytest.raises(StoreError, match="never true"):
        replace_row(Stuck(), "a", 1)
    for row in (float("nan"), {"a": {1}}, object(), 5, None):
        assert isinstance(read_row(row, lambda row: row["a"] + 1), BrokenRow)


@pytest.mark.parametrize(("there", "old"), [(1, None), (1, 2), (1, True), (1, 1.0), (None, 1), ({"a": 1}, {"a": 2})])
def test_a_different_old_value_changes_nothing(make: Make, there: object, old: object) -> None:
    if there is not None:
        make().compare_and_set("a", None, there)
    assert not make().compare_and_set("a", old, "new")
    assert make().get("a") == there


def test_the_store_keeps_its_own_copy(make: Make) -> None:
    given = {"list": [1]}
    make().compare_and_set("a", None, given)
    given["list"].append(2)
    make().get("a")["list"].append(3)
    assert make().get("a") == {"list": [1]}


def test_only_one_of_fifty_concurrent_writers_wins(make: Make) -> None:
    make().compare_and_set("a", None, 1)
    stores, barrier = [make() for _ in range(50)], Barrier(50)

    def take(store: Store) -> bool:
        barrier.wait(BOUND)
        return store.compare_and_set("a", 1, None)

    with ThreadPoolExecutor(50) as threads:
        assert list(threads.map(take, stores)).count(True) == 1


@pytest.mark.large
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file", "postgres"])
def test_concurrent_programs_lose_no_count(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    made, environment = f"SealedFile({str(tmp_path / 'kept.json')!r}, {KEY!r})", dict(os.environ)
    if kind == "postgres":  # the programs also make its table at once
        made, environment[DATABASE_URL] = "Postgres()", request.getfixturevalue("postgres_url")("stores")
    program = f"""
from ferrule.stores.store import Postgres, SealedFile
store, done = {made}, 0
while done < 20:
    old = store.get("n")
    done += store.compare_and_set("n", old, (old or 0) + 1)
"""
    (tmp_path / "elsewhere").mkdir()
    command = [sys.executable, "-c", program]
    processes = [subprocess.Popen(command, cwd=tmp_path / "elsewhere", env=environment) for _ in range(3)]
    assert [process.wait(BOUND) for process in processes] == [0, 0, 0]
    store = SealedFile(tmp_path / "kept.json", KEY) if kind == "file" else Postgres(environment[DATABASE_URL])
    assert store.get("n") == 60


def test_a_lost_connection_is_renewed(postgres_url: Url, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_table_may_have_its_own_name_and_schema(postgres_url: Url) -> None:
    url = postgres_url("stores")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute('CREATE SCHEMA "Own"')
    assert Postgres(url, table="Own.Kept").compare_and_set("a", None, 1)
    assert Postgres(url, table="Own.Kept").items() == {"a": 1} and Postgres(url).items() == {}


@pytest.mark.parametrize("key", ["a\x00b", "\ud800"])
def test_an_unstorable_key_is_an_error(postgres_url: Url, key: str) -> None:
    store = Postgres(postgres_url("stores"))
    with pytest.raises(StoreError):
        store.compare_and_set(key, None, 1)
    assert store.items() == {}


def test_errors_hold_no_database_password(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_the_file_and_its_folder_are_private(file: Path) -> None:
    SealedFile(file, KEY).compare_and_set("b", None, 1)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [path.name for path in file.parent.iterdir() if path.stat().st_mode & 0o077] == []


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_a_file_or_folder_that_others_may_use_is_refused(file: Path) -> None:
    for mode in (0o640, 0o604, 0o620):
        file.chmod(mode)
        assert "chmod 0600" in refused(file)
    file.chmod(0o600)
    for mode in (0o770, 0o702):
        file.parent.chmod(mode)
        assert "chmod 0700" in refused(file)


def test_another_key_is_refused_and_changes_nothing(file: Path) -> None:
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


def test_an_edited_file_is_refused(file: Path) -> None:
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


def test_an_earlier_copy_is_refused(file: Path) -> None:
    earlier, store = file.read_bytes(), SealedFile(file, KEY)
    assert store.compare_and_set("a", {"uses": 1}, None)
    file.write_bytes(earlier)
    with pytest.raises(StoreError, match="earlier copy"):
        store.get("a")
    file.unlink()
    with pytest.raises(StoreError, match="has been removed"):
        store.get("a")


@pytest.mark.skipif(os.name == "nt", reason="links need a right of their own there")
def test_the_file_may_be_no_link_but_its_folder_may(file: Path, tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(file)
    assert "link" in refused(tmp_path / "link.json")
    (tmp_path / "folder").symlink_to(file.parent)
    assert SealedFile(tmp_path / "folder" / "values.json", KEY).path == str(file)
    os.link(file, tmp_path / "state" / "second.json")
    assert "hard links" in refused(file)


def test_a_place_that_tools_may_reach_is_refused(file: Path, tmp_path: Path) -> None:
    assert "the working directory" in refused(Path("values.json"))
    assert "the working directory" in refused(tmp_path / "work" / "below" / "values.json")
    for folders in ([tmp_path / "state"], [tmp_path / "other", tmp_path], [file]):
        assert "tools may reach it" in refused(file, apart_from=folders)
    SealedFile(file, KEY, apart_from=[tmp_path / "sta"])
    if os.name != "nt":
        (tmp_path / "link").symlink_to(tmp_path / "work")
        assert "the working directory" in refused(tmp_path / "link" / "values.json")


@pytest.mark.parametrize("key", [b"k" * 31, "k" * 32])
def test_a_short_key_is_refused(file: Path, key: bytes) -> None:
    with pytest.raises(DefinitionError, match="32 bytes"):
        SealedFile(file, key)
