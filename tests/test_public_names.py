"""Code around the kernel uses only the public names of the kernel."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from test_rings import PACKAGE, folder, name_of, ring

OWN = {"self", "cls"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def defined(tree: ast.AST) -> Iterator[str]:
    """The names that a file gives to something: functions, classes, attributes, variables and slots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node.value):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "__slots__":
            yield from (slot.value for slot in ast.walk(node.value) if isinstance(slot, ast.Constant))


def is_own(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in OWN


def reached(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The lines and names of private attributes of other objects: read, named as text for `getattr`, or passed."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not is_own(node.value):
            yield node.lineno, node.attr
        elif isinstance(node, ast.keyword) and node.arg is not None:
            yield node.lineno, node.arg
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("attr"):
            yield from ((node.lineno, arg.value) for arg in node.args[1:2] if isinstance(arg, ast.Constant))


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The lines and names of private names that are imported from the kernel."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("ferrule") and ring(str(node.module)) == 1:
            yield from ((node.lineno, alias.name) for alias in node.names)


def private_uses(package: Path) -> list[str]:
    """Where a file of rings 2 and 3 uses a private name that the kernel defines, and its own folder does not."""
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in sorted(package.rglob("*.py"))}
    modules = {file: name_of(file, package.parent) for file in trees}
    names: dict[str, set[str]] = {}
    for file, module in modules.items():
        room = folder(module) if ring(module) > 1 else "the kernel"
        names.setdefault(room, set()).update(filter(is_private, defined(trees[file])))
    found = []
    for file, module in modules.items():
        if ring(module) > 1:
            theirs = names["the kernel"] - names[folder(module)]
            uses = {use for use in reached(trees[file]) if use[1] in theirs}
            uses.update(use for use in imported(trees[file]) if is_private(use[1]))
            found += [f"{file.relative_to(package)}:{line} {name}" for line, name in sorted(uses)]
    return found


def test_code_around_the_kernel_uses_public_names_only() -> None:
    assert private_uses(PACKAGE) == []


KERNEL = """
class Tool:
    __slots__ = ("_handling",)
    def _with(self): ...
"""


def package(folder: Path, **files: str) -> Path:
    """A package `ferrule` with a kernel, and a file in each of the named folders."""
    for room, text in {"definition": KERNEL, **files}.items():
        (folder / "ferrule" / room).mkdir(parents=True)
        (folder / "ferrule" / room / "one.py").write_text(text, encoding="utf-8")
    return folder / "ferrule"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("x = tool._handling", ["_handling"]),
        ("x = getattr(tool, '_handling')", ["_handling"]),
        ("tool.copy(_handling=1)", ["_handling"]),
        ("from ferrule.definition.tool import _alone", ["_alone"]),
        ("from ferrule.guards.other import _shared", []),
        ("class Mine:\n def __init__(self): self._with = 1\n def same(self, other): return other._with", []),
    ],
)
def test_a_private_name_of_the_kernel_is_found(tmp_path: Path, line: str, found: list[str]) -> None:
    assert [use.split()[-1] for use in private_uses(package(tmp_path, guards=line))] == found
