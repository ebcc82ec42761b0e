"""A tool means the same in a list of a program, in a file, in a plug-in and on the command line."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferrule import DefinitionError, Runner, Toolset
from ferrule.cli.runners import join_tools
from ferrule.cli.usage import UsageError
from ferrule.sources import plugins, python

CODE = '''
from typing import Any
from ferrule import Decision, ToolContext, ToolHandler, Toolset, deny, tool

SCHEMA = {"type": "object", "properties": {"disk": {"type": "string"}}, "required": ["disk"]}


def never(payload: dict[str, Any], context: ToolContext) -> Decision:
    return deny("never")


class Wipe:
    name = "wipe"
    input_schema = SCHEMA

    def is_read_only(self) -> bool:
        return False

    def execute(self, payload: dict[str, Any]) -> str:
        return "wiped"

    def check_permissions(self, payload: dict[str, Any], context: ToolContext) -> Decision:
        return never(payload, context)


class StaticWipe:
    name = "wipe"
    execute = staticmethod(lambda payload: "wiped")
    check_permissions = staticmethod(never)


class ForeignTool:
    """A tool of a framework, which only its adapter can call."""

    __module__ = "langchain_core.tools"
    name = "wipe"

    def invoke(self, disk: str) -> str:
        return "wiped"


class Handler(ToolHandler):
    """Wipe a disk."""

    disk: str

    async def __call__(self) -> str:
        return "wiped"


@tool
def marked(disk: str) -> str:
    """Wipe a disk."""
    return "wiped"


def function(disk: str) -> str:
    """Wipe a disk."""
    return "wiped"


object_ = Wipe()
object_class = StaticWipe
foreign_object = ForeignTool()
definition = {"name": "wipe", "input_schema": SCHEMA, "execute": lambda p: "wiped", "check_permissions": never}
handler_class = Handler
'''
FORMS = ("object_", "object_class", "foreign_object", "definition", "nested", "marked", "function", "handler_class")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, with a package `pack` that offers each form, and one `TOOLS` for each form."""
    info = tmp_path / "pack-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pack\nVersion: 1.2\n")
    points = [f"{form} = pack:{form}\nlist_{form} = pack_{form}" for form in FORMS]
    (info / "entry_points.txt").write_text("\n".join(["[ferrule.tools]", *points]))
    (tmp_path / "pack.py").write_text(f"{CODE}\nnested = Toolset([Wipe()])\n")
    for form in FORMS:
        item = "Toolset([Wipe()])" if form == "nested" else form
        (tmp_path / f"pack_{form}.py").write_text(f"{CODE}\nTOOLS = [{item}]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ferrule.security.import_path.IMPORT_PATH", (str(tmp_path),))
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("pack")]:
        del sys.modules[name]


def load_plug_in(name: str) -> Toolset:
    """Return the tools of a plug-in, which must be usable."""
    tools = plugins(name)
    if tools.report.left_out:
        raise DefinitionError(str(tools.report))
    return tools


def answers(load: Callable[[], Any]) -> list[tuple[object, ...]] | None:
    """Return what each tool is and answers, or None if they are refused."""
    try:
        tools = Toolset(load())
    except (DefinitionError, UsageError):
        return None
    results = [(tool, Runner([tool]).run_sync(tool.name, {"disk": "sda"})) for tool in tools]
    return [(tool.name, tool.read_only, tool.input_schema, result.status, result.text) for tool, result in results]


@pytest.mark.parametrize("form", FORMS)
def test_a_form_of_a_tool_is_the_same_from_everywhere(form: str, folder: Path) -> None:
    here = answers(lambda: [getattr(importlib.import_module("pack"), form)])
    assert (here is None) == (form in ("object_class", "foreign_object"))
    ways: dict[str, Callable[[], Any]] = {
        "file": lambda: join_tools([f"pack.py:{form}"]).tools,
        "module": lambda: join_tools([f"pack:{form}"]).tools,
        "plug-in": lambda: load_plug_in(form),
        "list in a file": lambda: join_tools([f"pack_{form}.py"]).tools,
        "list in a module": lambda: join_tools([f"pack_{form}"]).tools,
        "list in a source": lambda: python(f"pack_{form}.py"),
        "list in a folder's module": lambda: python(f"pack_{form}"),
        "list in a plug-in": lambda: load_plug_in(f"list_{form}"),
    }
    assert {way: answers(load) for way, load in ways.items()} == dict.fromkeys(ways, here)


def test_a_list_of_tools_hides_the_other_functions_of_its_module(folder: Path) -> None:
    (folder / "pack_several.py").write_text(f"{CODE}\nTOOLS = [marked, object_]\n")
    (folder / "pack_none.py").write_text(f"{CODE}\nTOOLS = []\n")
    (folder / "pack_set.py").write_text(f"{CODE}\nTOOLS = Toolset([marked, object_]).only('marked')\n")
    assert [tool.name for tool in python("pack_set.py")] == ["marked"]
    assert [tool.name for tool in python("pack_several.py")] == ["marked", "wipe"]
    assert [tool.name for tool in join_tools(["pack_several.py"]).tools] == ["marked", "wipe"]
    assert not python("pack_none.py") and not join_tools(["pack_none.py"]).tools
