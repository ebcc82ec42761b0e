"""`dbos.step()` and `dbos.workflows()`: programs that run DBOS themselves, die, and are started again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from workers import HERE, SECONDS, environment

DIED = 9


@pytest.fixture(params=["postgresql", "sqlite"])
def url(request: pytest.FixtureRequest, databases: Callable[[str], str], tmp_path: Path) -> str:
    return databases("program") if request.param == "postgresql" else f"sqlite:///{tmp_path}/program.sqlite"


def program(mode: str, url: str, folder: Path) -> Any:
    """What it printed, or its exit code where it died."""
    command = [sys.executable, str(HERE / "durable_program.py"), mode, str(folder)]
    done = subprocess.run(command, env=environment(url), capture_output=True, text=True, timeout=SECONDS)
    if done.returncode == DIED:
        return DIED
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def test_a_finished_step_does_not_run_again(url: str, tmp_path: Path) -> None:
    (tmp_path / "between.die").touch()
    assert program("step", url, tmp_path) == DIED
    assert lines(tmp_path / "effect") == ["changed"]
    changed, looked = program("step", url, tmp_path)
    assert changed == ["ok", "changed", True, True] and looked == ["ok", "seen", True, False]
    assert lines(tmp_path / "effect") == ["changed"]


def test_reordered_calls_do_not_swap_outcomes(url: str, tmp_path: Path) -> None:
    assert program("order", url, tmp_path) == DIED
    ann, bob = program("order", url, tmp_path)
    assert {ann[0], bob[0]} == {"unknown"} and (ann[1], bob[1]) == (None, None)
    assert (lines(tmp_path / "ann"), lines(tmp_path / "bob")) == (["ann"], ["bob"])


def test_a_workflow_gives_its_outcome_to_another_process(url: str, tmp_path: Path) -> None:
    first = program("workflows", url, tmp_path)
    assert [one[:3] for one in first] == [["ok", "changed", True], ["ok", "seen", True]]
    assert program("workflows", url, tmp_path) == first
    assert (lines(tmp_path / "effect"), lines(tmp_path / "seen")) == (["changed"], ["seen"])


@pytest.mark.parametrize("mode", ["step", "workflows"])
def test_a_killed_changing_call_is_unknown(mode: str, url: str, tmp_path: Path) -> None:
    (tmp_path / "effect.die").touch()
    assert program(mode, url, tmp_path) == DIED
    changed, looked = program(mode, url, tmp_path)
    assert changed[:3] == ["unknown", None, None] and looked[:2] == ["ok", "seen"]
    assert lines(tmp_path / "effect") == ["changed"]


@pytest.mark.parametrize("mode", ["step", "workflows"])
def test_a_killed_read_only_call_runs_again(mode: str, url: str, tmp_path: Path) -> None:
    (tmp_path / "seen.die").touch()
    assert program(mode, url, tmp_path) == DIED
    changed, looked = program(mode, url, tmp_path)
    assert changed[:2] == ["ok", "changed"] and looked[:2] == ["ok", "seen"]
    assert (lines(tmp_path / "effect"), lines(tmp_path / "seen")) == (["changed"], ["seen", "seen"])
