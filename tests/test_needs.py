"""scripts/needs.py with its own programs on the PATH, and a test whose need is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts" / "needs.py"
pytestmark = pytest.mark.skipif(os.name == "nt", reason="the programs are scripts of a shell of Unix")
BROWSER_TEST = "tests/examples/test_support_desk.py::test_a_person_answers_in_a_real_browser"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one folder on the PATH, with what a system has before anything is installed."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("env", "chmod"):
        there = shutil.which(name)
        assert there is not None
        (folder / name).symlink_to(there)
    write(folder, "sudo", '[ "$1" = -n ] && shift; exec "$@"')
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("FERRULE_NEEDS", raising=False)
    return folder


def write(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    (folder / name).chmod(0o755)


def ended(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("apt", "why"),
    [(None, "there is no apt-get"), ("echo no such package; exit 100", "no such package"), ("", "is not there")],
)
def test_a_need_that_cannot_be_had_fails_only_if_required(
    programs: Path, monkeypatch: pytest.MonkeyPatch, apt: str | None, why: str
) -> None:
    if apt is not None:
        write(programs, "apt-get", apt)
    done = ended(str(SCRIPT), "browser")
    assert done.returncode == 0 and "SKIPPED: browser is not there" in done.stderr and why in done.stderr
    assert "apt-get install chromium chromium-driver" in done.stderr
    monkeypatch.setenv("FERRULE_NEEDS", "all")
    done = ended(str(SCRIPT), "browser")
    assert done.returncode == 1 and "FAILED: browser is not there" in done.stderr


@pytest.mark.large
@pytest.mark.usefixtures("programs")
def test_a_test_without_its_need_is_skipped_or_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ("-m", "pytest", "-q", "-p", "no:cacheprovider", BROWSER_TEST)
    done = ended(*run)
    assert done.returncode == 0 and "1 skipped" in done.stdout and "To have it, install chromium" in done.stdout
    monkeypatch.setenv("FERRULE_NEEDS", "all")
    done = ended(*run)
    assert done.returncode == 1 and "1 error" in done.stdout and "To have it, install chromium" in done.stdout


def test_ci_requires_all_needs() -> None:
    ci, made = ((ROOT / name).read_text(encoding="utf-8") for name in (".ci/run", "Makefile"))
    assert "\nexport FERRULE_NEEDS=all\n" in ci and "verb=test-all\n" in ci
    assert "\ntest: needs\n" in made and "\ntest-all: test rest\n" in made
