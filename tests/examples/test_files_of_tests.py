"""The files of tests of the examples: each passes by the command that its head names."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from ferrule.cli import main

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "examples").rglob("tests.toml"))


def test_an_example_has_a_file_of_tests() -> None:
    assert [file.parent.name for file in FILES] == ["support_desk"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_a_file_of_tests_passes_by_the_command_in_its_head(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (command,) = re.findall(r"(?m)^#     ferrule (test .+)$", file.read_text(encoding="utf-8"))
    monkeypatch.chdir(ROOT)
    assert main(shlex.split(command)) == 0


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_without_its_policy_a_file_of_tests_fails(file: Path, tmp_path: Path) -> None:
    text = re.sub(r"(?m)^policy = .+\n", "", file.read_text(encoding="utf-8"))
    (tmp_path / "tests.toml").write_text(text.replace("agent.py", str(file.parent / "agent.py")), encoding="utf-8")
    assert main(["test", str(tmp_path / "tests.toml")]) == 1
