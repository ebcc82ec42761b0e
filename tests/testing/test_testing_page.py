"""docs/testing.md and docs/contracts.md: each of their programs passes in a file of its own, and the failure that is
shown is a real one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ferrule import Runner, deny, tool
from ferrule.testing import MiddlewareContract, Recorder

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "testing.md").read_text(encoding="utf-8")
CONTRACTS = (DOCS / "contracts.md").read_text(encoding="utf-8")
KITS = (MiddlewareContract,)
"""Those that the page has a program for."""


def programs_of(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def names_of(kit: type) -> list[str]:
    return [name for name in vars(kit) if name.startswith("test_")]


def summary_of(programs: list[str], folder: Path) -> str:
    """What pytest says of these programs, each in a file of its own, none of which fails."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    for number, program in enumerate(programs):
        (folder / f"test_{number}.py").write_text(program, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()[-1]


def test_each_program_of_the_page_passes(tmp_path: Path) -> None:
    programs = programs_of(PAGE)
    assert len(programs) == 4
    assert summary_of(programs, tmp_path).startswith(f"{sum(one.count('def test_') for one in programs)} passed in")


def test_each_program_of_the_contracts_page_passes(tmp_path: Path) -> None:
    programs = programs_of(CONTRACTS)
    assert len(programs) == len(KITS)
    assert summary_of(programs, tmp_path).startswith(f"{sum(len(names_of(kit)) for kit in KITS)} passed in")


@tool
async def delete_note(path: str) -> None:
    """Delete a note."""


@tool
async def read_note(path: str) -> None:
    """Read a note."""


def test_the_page_shows_a_real_failure_of_a_recorder() -> None:
    def not_of_bob(call: Any, context: Any) -> Any:
        return deny("that is somebody else's note") if "bob" in call.arguments["path"] else None

    recorder = Recorder()
    runner = Runner([delete_note, read_note], guards=[not_of_bob], observers=[recorder])
    for name, path in (("read_note", "ada/b.txt"), ("delete_note", "bob/b.txt"), ("delete_note", "ada/a.txt")):
        runner.run_sync(name, {"path": path})
    with pytest.raises(AssertionError) as caught:
        recorder.assert_called(delete_note, path="ada/b.txt")
    assert f"```text\n{caught.value}\n```\n" in PAGE
