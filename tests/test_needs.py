"""A test whose need is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(os.name == "nt", reason="the programs are scripts of a shell of Unix")
BROWSER_TEST = "tests/examples/test_support_desk.py::test_a_person_answers_in_a_real_browser"


@pytest.mark.large
def test_a_test_without_its_need_is_skipped_or_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "env").symlink_to(str(shutil.which("env")))
    monkeypatch.setenv("PATH", str(tmp_path))
    for needs, code, said in (("", 0, "1 skipped"), ("all", 1, "1 error")):
        monkeypatch.setenv("FERRULE_NEEDS", needs)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", BROWSER_TEST]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == code and said in done.stdout and "To have it, install chromium" in done.stdout


def test_ci_requires_all_needs() -> None:
    ci, made = ((ROOT / name).read_text(encoding="utf-8") for name in (".ci/run", "Makefile"))
    assert "\nexport FERRULE_NEEDS=all\n" in ci and "verb=test-all\n" in ci
    assert "\ntest: needs\n" in made and "\ntest-all: test rest\n" in made
