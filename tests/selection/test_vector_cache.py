"""The cache of `embedding` on disk: what another process finds there, what survives a crash, and what is refused."""

from __future__ import annotations

import logging
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from catalogue import SHOP, made, names
from rankers import Embedder

from ferrule import DefinitionError
from ferrule.selection import Ranker, embedding

HERE = Path(__file__).parent


def ranker(file: Path, embedder: Any, name: str = "words", **options: Any) -> Ranker:
    return embedding(embedder, cache=file, name=name, **options)


def rows(file: Path) -> list[tuple[bytes, bytes]]:
    with closing(sqlite3.connect(file)) as database:
        return database.execute("SELECT key, vector FROM vectors").fetchall()


async def test_another_ranker_finds_the_vectors_of_the_tools_on_disk(tmp_path: Path) -> None:
    file = tmp_path / "new folder" / "vectors.db"
    first, second = Embedder(), Embedder()
    expected = ranker(file, first).rank(SHOP, "the weather")
    assert ranker(file, second).rank(SHOP, "the weather") == expected
    assert second.asked == [["the weather"]]
    assert names(await ranker(file, second.later).select("the weather", SHOP))[0] == "weather"
    assert second.asked == [["the weather"]] * 2


def test_only_tools_are_stored_as_floats_under_a_hash(tmp_path: Path) -> None:
    file = tmp_path / "vectors.db"
    ranker(file, Embedder()).rank(SHOP, "my secret question")
    kept = rows(file)
    assert len(kept) == len(SHOP)
    assert {(len(key), len(vector)) for key, vector in kept} == {(32, 32 * 4)}
    assert b"secret" not in file.read_bytes() and b"weather" not in file.read_bytes()


def test_a_changed_text_and_another_model_are_embedded_anew(tmp_path: Path) -> None:
    file, embedder = tmp_path / "vectors.db", Embedder()
    ranker(file, embedder).rank(SHOP, "x")
    changed = SHOP.replace(SHOP.get("weather").replace(description="The forecast."))
    ranker(file, embedder).rank(changed, "x")
    ranker(file, embedder, name="other").rank(SHOP, "x")
    assert [len(texts) for texts in embedder.asked] == [5, 1, 1, 1, 5, 1]


def test_a_model_that_changed_its_length_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "vectors.db"
    ranker(file, Embedder()).rank(SHOP, "x")
    with pytest.raises(DefinitionError, match=r"returned a vector of 2 numbers, and of 32 before; .*another name="):
        ranker(file, lambda texts: [[1.0, 2.0] for _ in texts]).rank(SHOP, "x")


PROGRAM = """
import os, sys
from catalogue import made
from rankers import Embedder
from ferrule.selection import embedding

file, first, ends = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "ends"
embedder = Embedder()

def embed(texts):
    if ends and len(embedder.asked) == 5:
        os._exit(9)
    return embedder(texts)

tools = [made(f"tool_{number}", "A tool.") for number in range(first, first + 100)]
found = embedding(embed, cache=file, name="words", batch=10).rank(tools, f"tool {first + 50}", limit=100)
print(len(found))
"""


def started(file: Path, first: int, ends: str = "") -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    command = [sys.executable, "-c", PROGRAM, str(file), str(first), ends]
    return subprocess.Popen(command, env=environment, stdout=-1, stderr=-1, text=True)


@pytest.mark.large
def test_concurrent_processes_keep_all_vectors(tmp_path: Path) -> None:
    file = tmp_path / "vectors.db"
    programs = [started(file, first) for first in (0, 50, 100, 150)]
    said = [(*program.communicate(timeout=60), program.returncode) for program in programs]
    assert said == [("100\n", "", 0)] * 4
    assert len(rows(file)) == 250


def test_a_killed_process_leaves_its_vectors(tmp_path: Path) -> None:
    file = tmp_path / "vectors.db"
    program = started(file, 0, "ends")
    program.communicate(timeout=60)
    assert program.returncode == 9 and len(rows(file)) == 50
    embedder = Embedder()
    ranker(file, embedder).rank([made(f"tool_{number}", "A tool.") for number in range(100)], "x")
    assert [len(texts) for texts in embedder.asked] == [50, 1]


def test_another_file_is_refused_and_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("My notes. " * 100, encoding="utf-8")
    with pytest.raises(DefinitionError, match=r"the cache '.*notes.txt' cannot be used: .*; name another file"):
        ranker(file, Embedder()).rank(SHOP, "x")
    assert file.read_text(encoding="utf-8") == "My notes. " * 100


@pytest.mark.parametrize("broken", ["table", "folder"])
def test_a_cache_that_cannot_be_used_is_left_out_with_a_warning(
    broken: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "vectors.db"
    if broken == "folder":
        file.touch()
        file /= "vectors.db"
    else:
        with closing(sqlite3.connect(file)) as database:  # no such column: an error of every read and write
            database.execute("CREATE TABLE vectors (other)")
    with caplog.at_level(logging.WARNING, "ferrule"):
        assert names(match.tool for match in ranker(file, Embedder()).rank(SHOP, "weather"))[0] == "weather"
    assert f"the cache {str(file)!r} is left out" in caplog.text
