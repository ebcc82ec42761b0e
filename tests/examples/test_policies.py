"""The policies that one may start from: each holds by its own tests, for the tools that its head names."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from ferrule.cli import main

ROOT = Path(__file__).parents[2]
POLICIES = sorted((ROOT / "examples/policies").glob("*.toml"))
COMMANDS = [
    pytest.param(command.partition("ferrule ")[2], id=command)
    for file in POLICIES
    for command in re.findall(r"(?m)^#     (ferrule .+)$", file.read_text())
]


def test_there_are_four_policies_and_each_says_how_it_is_checked_and_tested() -> None:
    assert [file.stem for file in POLICIES] == ["analyst", "coding_agent", "invoice_desk", "support_desk"]
    assert len(COMMANDS) == 8


@pytest.mark.parametrize("command", COMMANDS)
def test_a_policy_passes_what_its_head_says(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert main(shlex.split(command)) == 0


@pytest.mark.parametrize("file", POLICIES, ids=lambda file: file.stem)
def test_a_policy_passes_its_tests_without_tools(file: Path) -> None:
    assert main(["policy", "test", str(file)]) == 0
