"""Stores: one compare-and-set for all who share them, and a file that nobody changes without its key."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from ferrule.errors import DefinitionError
from ferrule.store import Memory, SealedFile, Store, StoreError

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
Make = Callable[[], Store]


@pytest.fixture(params=["memory", "file"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """What gives the same store each time: of a file, another object of the same file."""
    if request.param == "memory":
        store = Memory()
        return lambda: store
    return lambda: SealedFile(tmp_path / "kept" / "values.json", KEY)


def test_what_was_put_there_is_found_and_what_was_taken_away_is_not(make: Make) -> None:
    assert make().get("a") is None
    assert make().compare_and_set("a", None, {"n": [1, True, 1.5, "é", None]})
    assert make().get("a") == {"n": [1, True, 1.5, "é", None]}
    assert make().compare_and_set("a/b", None, 0) and make().compare_and_set("b", None, "")
    assert list(make().items()) == ["a", "a/b", "b"] and make().items("a/") == {"a/b": 0}
    assert make().compare_and_set("a", {"n": [1, True, 1.5, "é", None]}, None)
    assert make().get("a") is None and make().items() == {"a/b": 0, "b": ""}


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
        barrier.wait(30)
        return store.compare_and_set("a", 1, None)

    with ThreadPoolExecutor(50) as threads:
        assert list(threads.map(take, stores)).count(True) == 1


def test_of_several_processes_each_counts_up_and_no_count_is_lost(tmp_path: Path) -> None:
    program = f"""
from ferrule.store import SealedFile
store, done = SealedFile({str(tmp_path / "kept.json")!r}, {KEY!r}), 0
while done < 20:
    old = store.get("n")
    done += store.compare_and_set("n", old, (old or 0) + 1)
"""
    (tmp_path / "elsewhere").mkdir()
    processes = [subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path / "elsewhere") for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert SealedFile(tmp_path / "kept.json", KEY).get("n") == 60


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
    assert "not sealed with this key" in refused(file, OTHER_KEY)
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
    assert "not sealed" in refused(file.with_name("others.json"))


def test_an_earlier_copy_is_an_error_for_who_has_read_a_later_one(file: Path) -> None:
    earlier, store = file.read_bytes(), SealedFile(file, KEY)
    assert store.compare_and_set("a", {"uses": 1}, None)
    file.write_bytes(earlier)
    with pytest.raises(StoreError, match="older"):
        store.get("a")
    file.unlink()
    with pytest.raises(StoreError, match="gone"):
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
