"""The programs of docs/beyond-one-machine.md and of examples/places run, each as a reader starts it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from workers import SECONDS, environment, worker

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "beyond-one-machine.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
NAMED = {found[1]: text for text in PROGRAMS if (found := re.match(r"# (\w+\.py)\n", text))}
EXAMPLE = ROOT / "examples" / "places"
RAY = {"RAY_AUTH_MODE": "disabled"}


@pytest.fixture
def url(databases: Callable[[str], str]) -> str:
    return databases("page")


def run(file: Path, url: str, **given: str) -> str:
    """What it printed."""
    command, there = [sys.executable, file.name], {**environment(url), **given}
    done = subprocess.run(command, cwd=file.parent, env=there, capture_output=True, text=True, timeout=2 * SECONDS)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert {"my_tools.py", "program.py", "cluster_tools.py", "cluster_program.py"} == {*NAMED}
    for name, text in NAMED.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    [other] = [text for text in PROGRAMS if text not in NAMED.values()]
    (tmp_path / "agent.py").write_text(other, encoding="utf-8")
    return tmp_path


def test_the_program_of_the_page_sends_to_its_worker(folder: Path, url: str) -> None:
    with worker(url, place="my_tools:TOOLS", folder=folder):
        run(folder / "program.py", url)


def test_the_other_programs_of_the_page_run(folder: Path, url: str) -> None:
    run(folder / "agent.py", url)
    run(EXAMPLE / "one_process.py", url)
    run(folder / "cluster_program.py", url, **RAY, PYTHONPATH=os.pathsep.join([str(ROOT / "src"), str(folder)]))


@pytest.mark.parametrize("place", ["program", "processes", "dbos", "ray"])
def test_the_example_runs_in_each_place(place: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", place)
    if place == "dbos":
        at = {"place": "place_tools:TOOLS", "folder": EXAMPLE}
        with worker(url, **at), worker(url, **at):  # type: ignore[arg-type]
            said = run(EXAMPLE / "program.py", url)
    else:
        paths = os.pathsep.join([str(ROOT / "src"), str(EXAMPLE)])
        said = run(EXAMPLE / "program.py", url, **RAY, PYTHONPATH=paths)
    where = "here" if place == "program" else "elsewhere"
    assert said.splitlines()[0] == f"90 words were counted {{{where!r}: 12}}"
    assert said.splitlines()[1] == "36 progress reports"
    assert "denied: Denied: there is nothing to publish" in said and "ok: 'Three', 3 words, is published" in said
