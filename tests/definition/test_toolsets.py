"""Toolsets of modules, classes and instances: what becomes a tool, its name, and choosing by tag."""

from __future__ import annotations

import functools
import inspect
import io
import math
import random
import re
import sqlite3
import types
from collections.abc import Iterator
from typing import Any

import pytest

from ferrule import DefinitionError, Tool, ToolHandler, Toolset, tool

MODULE = '''
from os.path import join

def read(path: str) -> str:
    """Read."""
    return path

def run(*command: str) -> str:
    return ""

def place(value: object, /) -> str:
    return ""

def _own(value: object, /) -> str:
    return ""

short = lambda path: path
LIMIT = 5
'''


@pytest.fixture
def module() -> types.ModuleType:
    made = types.ModuleType("some_tools")
    exec(MODULE, vars(made))
    return made


def names(tools: Toolset) -> list[str]:
    return [one.name for one in tools]


# of


def test_unusable_functions_of_a_module_are_listed(module: types.ModuleType) -> None:
    with pytest.raises(DefinitionError) as caught:
        Toolset.of(module)
    first, *lines = str(caught.value).split("\n")
    assert "2 cannot be tools" in first and "skip=True" in first
    assert [line.strip().partition(":")[0] for line in lines] == ["run", "place"]
    assert "write a list parameter for *args" in lines[0] and "leave out the /" in lines[1]
    assert names(Toolset.of(module, "my_", skip=True)) == ["my_read", "my_short"]
    del module.read, module.short  # type: ignore[attr-defined]
    with pytest.raises(DefinitionError, match="no public function or method"):
        Toolset.of(module, skip=True)


def test_a_module_with_tools_offers_only_these(module: types.ModuleType) -> None:
    module.made = module.again = tool(module.read, name="made")  # type: ignore[attr-defined]
    assert names(Toolset.of(module)) == ["made"]


class Files:
    def read(self, path: str) -> str:
        return path

    def run(self, *command: str) -> str:
        return ""

    @staticmethod
    def join(a: str, b: str) -> str:
        return a + b


def test_unusable_methods_of_a_class_are_listed() -> None:
    with pytest.raises(DefinitionError, match=r"1 cannot be tools(.|\n)*run: .*\*args"):
        Toolset.of(Files())
    assert names(Toolset.of(Files(), skip=True)) == ["read", "join"]
    with pytest.raises(DefinitionError, match=r"Files.read, a method .* Toolset.of\(instance\)"):
        Toolset.of(Files)


# what is written in C


DATABASE = sqlite3.connect(":memory:", check_same_thread=False)


@pytest.fixture(scope="module", autouse=True)
def _closed_at_the_end() -> Iterator[None]:
    yield
    DATABASE.close()


@pytest.mark.parametrize(
    ("thing", "some"),
    [
        (DATABASE, {"commit", "serialize"}),
        (re.compile("a"), {"match", "sub", "findall"}),
        (random.Random(), {"randint"}),
    ],
    ids=lambda one: type(one).__name__,
)
def test_functions_in_c_are_offered_or_listed(thing: Any, some: set[str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ferrule")
    found = set(names(Toolset.of(thing, skip=True)))
    assert some <= found
    routines = {name for name in dir(thing) if name[0] != "_" and inspect.isroutine(getattr(thing, name))}
    told = {line.strip().partition(":")[0] for line in caplog.text.splitlines() if line.startswith("  ")}
    assert routines == found | told
    if told:
        with pytest.raises(DefinitionError, match=f"{len(told)} cannot be tools") as caught:
            Toolset.of(thing)
        assert " at 0x" not in str(caught.value).partition("\n")[2]


@pytest.mark.parametrize("function", [math.sqrt, str.join, io.StringIO("a").read])
def test_a_function_in_c_with_nameless_parameters_is_refused(function: Any) -> None:
    with pytest.raises(DefinitionError, match="wrap a function in C in a function of your own"):
        tool(function)


class Registry(dict):  # type: ignore[type-arg]
    def look(self, name: str) -> str:
        return self[name]  # type: ignore[no-any-return]


class Odd:
    partly = functools.partialmethod(lambda self, a, b: a, b=2)

    @functools.singledispatchmethod
    def dispatched(self, a: int) -> int:
        return a

    @property
    def read(self) -> int:
        raise SystemExit


def test_inherited_builtins_and_properties_are_no_tools() -> None:
    assert names(Toolset.of(Registry())) == ["look"]
    with pytest.raises(DefinitionError, match=r"1 cannot be tools(.|\n)*dispatched: "):
        Toolset.of(Odd())
    assert names(Toolset.of(Odd(), skip=True)) == ["partly"]


# read_only


@pytest.mark.parametrize("prefix", ["", "db_"])
def test_read_only_names_the_original_methods(prefix: str) -> None:
    tools = Toolset.of(DATABASE.cursor(), prefix, skip=True, read_only={"fetch*"})
    reading = [one.name.removeprefix(prefix) for one in tools if one.read_only]
    assert reading == ["fetchall", "fetchmany", "fetchone"]
    assert len(tools) > 3 and not any(one.read_only for one in Toolset.of(DATABASE.cursor(), skip=True))


@pytest.mark.parametrize(
    ("read_only", "reason"),
    [({"fetchal"}, "there is no tool 'fetchal'; the nearest are"), ("fetch*", "read_only"), ([1], "read_only")],
)
def test_an_unknown_read_only_name_is_refused(read_only: Any, reason: str) -> None:
    with pytest.raises(DefinitionError, match=reason):
        Toolset.of(DATABASE.cursor(), skip=True, read_only=read_only)


# the name of a handler class


class WriteFile(ToolHandler):
    path: str

    async def __call__(self) -> str:
        return self.path


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("WriteFile", "write_file"),
        ("Search_Web", "search_web"),
        ("ParseHTML5Page", "parse_html5_page"),
    ],
)
def test_a_handler_class_is_named_in_snake_case(written: str, name: str) -> None:
    cls: Any = type(written, (WriteFile,), {"__module__": __name__, "__call__": WriteFile.__call__})
    assert tool(cls).name == name
    assert names(Toolset([cls])) == names(Toolset.of(cls)) == [name]
    assert tool(cls, name="WriteFile").name == Tool("WriteFile", cls).name == "WriteFile"


# only, without


TOOLS = Toolset([tool(lambda: None, name=name) for name in ("read_a", "read_b", "write_a", "plain")])


@pytest.mark.parametrize("which", ["only", "without"])
def test_an_unknown_name_is_refused_but_not_an_empty_glob(which: str) -> None:
    choose = getattr(TOOLS, which)
    with pytest.raises(DefinitionError, match=r"there is no tool 'reed_a'; the nearest are \['read_a'"):
        choose("write_a", "reed_a")
    assert len(choose("x_*", "r?", "[z]")) == (0 if which == "only" else 4)
    with pytest.raises(DefinitionError, match=r"each of globs must be a text, not"):
        choose(["read_*"])
