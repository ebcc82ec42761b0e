"""docs/testing.md: each of its programs passes in a file of its own, and the failure that it shows is a real one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ferrule import Runner, deny, tool
from ferrule.testing import Recorder

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_each_program_of_the_page_passes_in_a_file_of_its_own(tmp_path: Path) -> None:
    assert len(PROGRAMS) == 8
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for number, program in enumerate(PROGRAMS):
        (tmp_path / f"test_{number}.py").write_text(program, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    assert f"{sum(program.count('def test_') for program in PROGRAMS)} passed" in done.stdout


@tool
async def delete_note(path: str) -> None:
    """Delete a note."""


@tool
async def read_note(path: str) -> None:
    """Read a note."""


def test_a_failure_looks_as_the_page_shows_it() -> None:
    def not_of_bob(call: Any, context: Any) -> Any:
        return deny("that is somebody else's note") if "bob" in call.arguments["path"] else None

    recorder = Recorder()
    runner = Runner([delete_note, read_note], guards=[not_of_bob], observers=[recorder])
    for name, path in (("read_note", "ada/b.txt"), ("delete_note", "bob/b.txt"), ("delete_note", "ada/a.txt")):
        runner.run_sync(name, {"path": path})
    with pytest.raises(AssertionError) as caught:
        recorder.assert_called(delete_note, path="ada/b.txt")
    assert f"```text\n{caught.value}\n```\n" in PAGE
