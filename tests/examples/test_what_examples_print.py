"""Whatever the examples print that is not their own words goes through `printable`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
PRINTING = sorted(EXAMPLES.rglob("*.py"))


def unsafe(source: str) -> Iterator[str]:
    """What is printed, or said at the end of the program, and is neither a constant nor `printable(…)`; and `print`
    where it is handed on."""
    called = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("print", "SystemExit"):
            called.add(id(node.func))
            for argument in node.args:
                if not isinstance(argument, ast.Constant) and not ast.unparse(argument).startswith(OWN):
                    yield ast.unparse(node)
        elif isinstance(node, ast.Name) and node.id == "print" and id(node) not in called:
            yield "print"


OWN = ("printable(", "main(", "asyncio.run(main(")


@pytest.mark.parametrize("file", PRINTING, ids=lambda file: file.name)
def test_an_example_prints_what_others_wrote_through_printable(file: Path) -> None:
    assert list(unsafe(file.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("line", ["print(event.text)", "raise SystemExit(f'{error}')", "show = print"])
def test_what_would_be_printed_as_it_came_is_found(line: str) -> None:
    assert list(unsafe(line))
