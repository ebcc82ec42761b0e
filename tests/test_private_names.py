"""A private name means one thing: what one folder defines, no other folder defines for something else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from test_public_names import is_private
from test_rings import PACKAGE, folder, name_of

Doubles = dict[str, set[str]]
"""The folders that define a name."""


def defined(tree: ast.Module) -> Iterator[str]:
    """The functions, classes and constants of a module, without type variables."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign) and not is_type_variable(node.value):
            names = (name for name in ast.walk(node) if isinstance(name, ast.Name))
            yield from (name.id for name in names if isinstance(name.ctx, ast.Store))


def is_type_variable(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func).split(".")[-1] in {"TypeVar", "ParamSpec"}


def doubles(package: Path) -> Doubles:
    """The private names that several folders define; a module beside the folders counts as one."""
    folders: Doubles = {}
    for file in sorted(package.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
        for name in filter(is_private, defined(tree)):
            folders.setdefault(name, set()).add(folder(name_of(file, package.parent)))
    return {name: found for name, found in sorted(folders.items()) if len(found) > 1}


def test_no_private_name_is_defined_in_two_folders() -> None:
    assert doubles(PACKAGE) == {}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def _name(): ...", "async def _name(): ..."),
        ("class _name: ...", "_name = 1"),
        ("_name: int = 1", "first, _name = 1, 2"),
    ],
)
def test_a_private_name_of_two_folders_is_found(tmp_path: Path, one: str, other: str) -> None:
    assert doubles(package(tmp_path, **{"guards/within": one, "loop": other})) == {"_name": {"guards", "loop"}}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def name(): ...", "def name(): ..."),
        ("_T = TypeVar('_T')", "_T = typing.TypeVar('_T')"),
        ("_name = 1", "def f():\n _name = 1"),
        ("_name = 1", "class C:\n def _name(self): ..."),
        ("_name = 1", "from ferrule.guards.within import _name"),
    ],
)
def test_what_is_public_or_belongs_to_something_else_is_not(tmp_path: Path, one: str, other: str) -> None:
    assert doubles(package(tmp_path, **{"guards/within": one, "loop": other})) == {}


def test_the_files_of_one_folder_may_share_a_name(tmp_path: Path) -> None:
    assert doubles(package(tmp_path, **{"models/one": "def _client(): ...", "models/two": "def _client(): ..."})) == {}


def package(place: Path, **files: str) -> Path:
    """A package `ferrule` of `files`, whose keys are paths without `.py`."""
    for name, text in files.items():
        file = place / "ferrule" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return place / "ferrule"
