"""CI reports a flaky test without failing, and a test that hangs fails alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PASSES = "def test_passes(): pass\n"
FLAKY = """
from pathlib import Path
def test_flaky():
    runs = Path(__file__).with_suffix(".runs")
    runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
    assert len(runs.read_text()) not in {failing}
"""
HANGS = """
import asyncio, pytest
async def wait_for_nothing():
    await asyncio.Event().wait()
@pytest.mark.time_limit(0.2)
def test_hangs():
    asyncio.run(wait_for_nothing())
@pytest.mark.time_limit(0.2)
def test_catches_everything():
    while True:
        try:
            asyncio.run(wait_for_nothing())
        except BaseException:
            break
"""

pytestmark = pytest.mark.slow


def run_pytest(folder: Path, source: str, **environment: str) -> subprocess.CompletedProcess[str]:
    file = folder / "test_it.py"
    file.write_text(source, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "failed_tests", "-p", "time_limit", "-p", "no:cacheprovider"]
    plugins = {"PYTHONPATH": os.fspath(ROOT / "tests" / "support"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [*command, os.fspath(file)],
        cwd=folder,
        env={**os.environ, **plugins, **environment},
        capture_output=True,
        text=True,
    )


def rerun(folder: Path) -> subprocess.CompletedProcess[str]:
    script = os.fspath(ROOT / "scripts" / "rerun_failed.py")
    return subprocess.run([sys.executable, script, os.fspath(folder)], capture_output=True, text=True)


@pytest.mark.large
@pytest.mark.parametrize(
    ("failing", "last_line", "code"),
    [({1}, "FLAKY: test_it.py::test_flaky", 0), ({1, 4}, "FAILED: test_it.py::test_flaky", 1)],
)
def test_a_failed_test_must_pass_three_times_alone(
    tmp_path: Path, failing: set[int], last_line: str, code: int
) -> None:
    records = tmp_path / "records"
    records.mkdir()
    first = run_pytest(tmp_path, PASSES + FLAKY.replace("{failing}", str(failing)), FERRULE_FAILED=os.fspath(records))
    assert first.returncode == 0, first.stdout
    again = rerun(records)
    assert again.returncode == code, again.stdout
    assert again.stdout.splitlines()[-1] == last_line


def test_a_run_without_failed_tests_leaves_nothing_to_run_again(tmp_path: Path) -> None:
    records = tmp_path / "records"
    records.mkdir()
    assert run_pytest(tmp_path, PASSES, FERRULE_FAILED=os.fspath(records)).returncode == 0
    assert not list(records.iterdir())
    assert rerun(records).stdout == ""


@pytest.mark.large
def test_only_failed_tests_are_forgiven(tmp_path: Path) -> None:
    folder = os.fspath(tmp_path)
    assert run_pytest(tmp_path, "import a_module_that_is_not_there", FERRULE_FAILED=folder).returncode == 2
    assert run_pytest(tmp_path, "def test_it(): import os; os._exit(1)", FERRULE_FAILED=folder).returncode == 1
    assert run_pytest(tmp_path, "def test_it(): assert False").returncode == 1


def test_a_test_that_hangs_fails_alone_and_shows_its_tasks(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, HANGS + PASSES)
    assert done.returncode == 1
    assert "2 failed, 1 passed" in done.stdout
    assert "test_hangs ran longer than 0.2 seconds" in done.stdout
    assert "thread MainThread:" in done.stdout
    assert "await asyncio.Event().wait()" in done.stdout
