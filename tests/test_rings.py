"""Imports go one way: by rings, by the order of the kernel's rooms, and without cycles."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
PACKAGE = SOURCE / "ferrule"
ROOMS = (
    "errors",
    "values",
    "security",
    "types",
    "arguments",
    "scheduling",
    "definition",
    "executors",
    "worker processes",
    "kernel",
    "runner",
)
"""The kernel: each imports those before it. One module of the kernel alone imports the worker processes."""
SEAM = "ferrule.kernel.plan"
WORKER_PROCESSES = ("ferrule.executors.process", "ferrule.executors.workers")
BACK = {
    "ferrule": "ferrule.mcp.serve",
    "ferrule.definition.forms": "ferrule.adapters",
    "ferrule.definition.tool": "ferrule.runner",
    "ferrule.definition.toolset": "ferrule.policy.lock",
    "ferrule.types": "ferrule.journal.sqlite",
}
"""The edges back, each imported where it is used: to the forms of others, around the kernel, to the runner of a tool
that is called by itself, to the file that tools are compared with, to the journal that is opened by its path, and from
the root to a name for users."""
LEAVES = {
    "plugins": {"security", "errors", "types"},
    "policy": {"errors", "values", "security", "types", "definition", "stores"},
    "stores": {"errors", "values", "security", "types", "scheduling"},
}
"""No room of the kernel, and the rooms that each may import."""
AROUND = {
    "guards",
    "middleware",
    "providers",
    "openapi",
    "sources",
    "adapters",
    "mcp",
    "selection",
    "journal",
    "approval",
    "tools",
    "models",
    "remote",
}
PROGRAMS = {"loop", "testing", "cli", "web", "__main__"}
MAY_ALSO_USE = {
    "models": {"providers"},
    "adapters": {"journal", "mcp"},
    "mcp": {"approval", "journal", "middleware"},
    "openapi": {"sources"},
    "sources": {"mcp", "openapi"},
    "tools": {"middleware", "selection"},
}

Graph = dict[str, set[str]]


def ring(module: str) -> int:
    """The ring of `ferrule.x.y`: 1 the kernel (and the root, which exports it), 2 around it, 3 programs."""
    part = folder(module)
    return 2 if part in AROUND else 3 if part in PROGRAMS else 1


def folder(module: str) -> str:
    """The `x` of `ferrule.x.y`; empty for the root."""
    return f"{module}.".split(".")[1]


def room_of(module: str) -> str:
    """The room of the kernel that a module is in: its folder, but for the worker processes inside `executors`."""
    return "worker processes" if module.startswith(WORKER_PROCESSES) else folder(module)


def name_of(file: Path, source: Path) -> str:
    parts = file.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).split(".")[-1] == "TYPE_CHECKING"


def statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Every import below `node`, those in functions too, without those for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif isinstance(child, ast.If) and is_type_checking(child):
            for other in child.orelse:
                yield from statements(ast.Module([other], []))
        else:
            yield from statements(child)


def imported(statement: ast.Import | ast.ImportFrom, modules: set[str]) -> Iterator[str]:
    """The modules of the package that one statement names; `from a import b` is `a.b` where that is a module."""
    if isinstance(statement, ast.Import):
        yield from (alias.name for alias in statement.names if alias.name in modules)
        return
    assert statement.level == 0, f"a relative import, line {statement.lineno}: write it in full"
    for alias in statement.names:
        inner = f"{statement.module}.{alias.name}"
        if inner in modules:
            yield inner
        elif statement.module in modules:
            yield str(statement.module)


def graph_of(source: Path) -> Graph:
    files = {name_of(file, source): file for file in sorted((source / "ferrule").rglob("*.py"))}
    graph: Graph = {}
    for module, file in files.items():
        tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
        graph[module] = {name for found in statements(tree) for name in imported(found, set(files))} - {module}
        graph[module].discard(BACK.get(module, ""))
    return graph


def against_the_rings(graph: Graph) -> list[str]:
    wrong = []
    for module, uses in sorted(graph.items()):
        for used in sorted(uses):
            here, there = ring(module), ring(used)
            if there > here:
                wrong.append(f"{module} (ring {here}) imports {used} (ring {there})")
            elif used == "ferrule" and here == 1:
                wrong.append(f"{module} (ring {here}) imports the root package, which imports it")
            elif here == there == 2 and folder(module) != folder(used):
                if folder(used) not in MAY_ALSO_USE.get(folder(module), ()):
                    wrong.append(f"{module} imports {used}: folders of ring 2 do not import each other")
    return wrong


def against_the_rooms(graph: Graph) -> list[str]:
    """Imports within the kernel that run against the order of its rooms."""
    wrong = []
    for module, uses in sorted(graph.items()):
        room = room_of(module)
        for used in sorted(uses):
            other = room_of(used)
            if room == other or ring(used) != 1 or not {room, other} <= {*ROOMS, *LEAVES}:
                continue
            if room in LEAVES:
                right = other in LEAVES[room]
            elif other in LEAVES:
                right = False
            elif other == "worker processes":
                right = module == SEAM
            else:
                right = ROOMS.index(other) < ROOMS.index(room)
            if not right:
                wrong.append(f"{module} imports {used}: against the order of the rooms")
    return wrong


def cycles(graph: Graph) -> list[str]:
    found: list[str] = []
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> None:
        if module in path:
            found.append(" → ".join([*path[path.index(module) :], module]))
        elif module not in done:
            for used in sorted(graph[module]):
                visit(used, [*path, module])
            done.add(module)

    for module in sorted(graph):
        visit(module, [])
    return found


def package(source: Path, files: dict[str, str]) -> Path:
    """A package `ferrule` of `files`, whose keys are paths without `.py`."""
    for name, text in {"__init__": "", **files}.items():
        file = source / "ferrule" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return source


@pytest.fixture(scope="module")
def graph() -> Graph:
    """Of Ferrule itself."""
    return graph_of(SOURCE)


def test_imports_follow_the_rings(graph: Graph) -> None:
    assert against_the_rings(graph) == []


def test_imports_follow_the_order_of_the_rooms(graph: Graph) -> None:
    assert against_the_rooms(graph) == []


def test_imports_have_no_cycle(graph: Graph) -> None:
    assert cycles(graph) == []


def test_every_folder_has_a_ring() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders <= AROUND | PROGRAMS | {*ROOMS, *LEAVES}


def test_every_module_of_the_root_is_a_room_a_leaf_or_a_program() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert modules <= PROGRAMS | {*ROOMS, *LEAVES}


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("values/call", "def f():\n    from ferrule.guards import within"),
        ("guards/within", "from ferrule import middleware"),
    ],
)
def test_an_outward_import_is_reported(tmp_path: Path, module: str, text: str) -> None:
    source = package(tmp_path, {**dict.fromkeys(["guards/within", "middleware"], ""), module: text})
    assert len(against_the_rings(graph_of(source))) == 1


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("errors", "from ferrule.values import call"),
        ("kernel/state", "from ferrule.executors.process import pool"),
        ("plugins", "from ferrule.values import call"),
    ],
)
def test_an_import_against_the_order_of_the_rooms_is_reported(tmp_path: Path, module: str, text: str) -> None:
    assert len(against_the_rooms(graph_of(package(tmp_path, {**rooms(), module: text})))) == 1


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("kernel/state", "from ferrule.executors import threads\nfrom ferrule import types"),
        ("guards/within", "from ferrule import plugins"),
    ],
)
def test_an_import_in_order_is_not_reported(tmp_path: Path, module: str, text: str) -> None:
    assert against_the_rooms(graph_of(package(tmp_path, {**rooms(), module: text}))) == []


def rooms() -> dict[str, str]:
    """A module of each room, and what stands beside them."""
    names = "errors types plugins values/call kernel/plan kernel/state guards/within"
    processes = "executors/__init__ executors/threads executors/process/__init__ executors/process/pool"
    return dict.fromkeys(f"{names} {processes}".split(), "")


def test_a_cycle_at_run_time_is_reported(tmp_path: Path) -> None:
    for_types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ferrule.values import b"
    files = {"values/a": for_types, "values/b": "import ferrule.values.c", "values/c": "from ferrule.values.a import x"}
    assert cycles(graph_of(package(tmp_path, files))) == []
    package(tmp_path, {"values/a": "from ferrule.values import b"})
    assert cycles(graph_of(tmp_path)) == ["ferrule.values.a → ferrule.values.b → ferrule.values.c → ferrule.values.a"]


def test_importing_ferrule_loads_nothing_optional() -> None:
    code = "import asyncio, pydantic, sys; from pydantic import BaseModel, TypeAdapter; before = {*sys.modules}; "
    code += "import ferrule; print(*{*sys.modules} - before)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "ferrule.runner" in loaded and "ferrule.adapters" not in loaded
    later = {"difflib", "hashlib", "hmac", "urllib.parse"}
    later |= {"annotated_types", "pydantic.types", "pydantic.functional_serializers"}
    assert not later & {*loaded}
    assert not {leaf for leaf in LEAVES if f"ferrule.{leaf}" in loaded}
