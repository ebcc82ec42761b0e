"""The policies, test files and programs of the examples: each passes the commands in its head, and prints safely."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferrule.cli import main

EXAMPLES = Path(__file__).parents[2] / "examples"
POLICIES = sorted((EXAMPLES / "policies").glob("*.toml"))
TEST_FILES = sorted(EXAMPLES.rglob("tests.toml"))
COMMANDS = [
    pytest.param(command.partition("ferrule ")[2], id=command)
    for file in (*POLICIES, *TEST_FILES)
    for command in re.findall(r"(?m)^#     (ferrule .+)$", file.read_text(encoding="utf-8"))
]
SAFE = ("printable(", "main(", "asyncio.run(main(")


def test_each_policy_and_test_file_names_its_commands() -> None:
    assert [file.stem for file in POLICIES] == ["analyst", "coding_agent", "invoice_desk", "support_desk"]
    assert [file.parent.name for file in TEST_FILES] == ["support_desk"]
    assert len(COMMANDS) == 8 + 1


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_in_the_head_of_a_file_succeeds(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES.parent)
    assert main(shlex.split(command)) == 0


def find_unsafe_prints(source: str) -> Iterator[str]:
    """Yield each `print` or `SystemExit` of something that is neither a constant nor `printable(…)`."""
    called = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("print", "SystemExit"):
            called.add(id(node.func))
            for argument in node.args:
                if not isinstance(argument, ast.Constant) and not ast.unparse(argument).startswith(SAFE):
                    yield ast.unparse(node)
        elif isinstance(node, ast.Name) and node.id == "print" and id(node) not in called:
            yield "print"


@pytest.mark.parametrize("file", sorted(EXAMPLES.rglob("*.py")), ids=lambda file: file.name)
def test_examples_print_foreign_text_through_printable(file: Path) -> None:
    assert list(find_unsafe_prints(file.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("line", ["print(event.text)", "raise SystemExit(f'{error}')", "show = print"])
def test_an_unsafe_print_is_found(line: str) -> None:
    assert list(find_unsafe_prints(line))
