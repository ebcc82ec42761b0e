"""Toolsets of what is there: what cannot be a tool is told, names are as models know them, and tags choose."""

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


def test_all_that_cannot_be_a_tool_is_told_by_name_and_why(module: types.ModuleType) -> None:
    with pytest.raises(DefinitionError) as caught:
        Toolset.of(module)
    first, *lines = str(caught.value).split("\n")
    assert "2 cannot be tools" in first and "skip=True" in first
    assert [line.strip().partition(":")[0] for line in lines] == ["run", "place"]
    assert "write a list parameter for *args" in lines[0] and "leave out the /" in lines[1]


def test_the_others_are_taken_where_that_is_asked_for(module: types.ModuleType) -> None:
    assert names(Toolset.of(module, skip=True)) == ["read", "short"]
    assert names(Toolset.of(module, "my_", skip=True)) == ["my_read", "my_short"]


def test_a_module_of_which_nothing_is_left_is_an_error_still(module: types.ModuleType) -> None:
    del module.read, module.short  # type: ignore[attr-defined]
    with pytest.raises(DefinitionError, match="no public method or function"):
        Toolset.of(module, skip=True)


def test_a_module_with_tools_gives_these_alone(module: types.ModuleType) -> None:
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


def test_the_same_goes_for_instances_and_classes() -> None:
    with pytest.raises(DefinitionError, match=r"1 cannot be tools(.|\n)*run: .*\*args"):
        Toolset.of(Files())
    assert names(Toolset.of(Files(), skip=True)) == ["read", "join"]
    with pytest.raises(
        DefinitionError, match=r"2 cannot be tools(.|\n)*Files.read, a method .* Toolset.of\(instance\)"
    ):
        Toolset.of(Files)
    assert names(Toolset.of(Files, skip=True)) == ["join"]


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
        (DATABASE.cursor(), {"fetchone", "fetchmany", "fetchall"}),
        (re.compile("a"), {"match", "sub", "findall"}),
        (random.Random(), {"randint"}),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_is_written_in_c_is_found_and_each_that_cannot_be_a_tool_is_told(
    thing: Any, some: set[str], caplog: pytest.LogCaptureFixture
) -> None:
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


def test_what_has_no_signature_is_named_with_what_to_do() -> None:
    with pytest.raises(DefinitionError, match=r"execute: .*it has no signature that Python can read; wrap it in a"):
        Toolset.of(DATABASE)


@pytest.mark.parametrize("function", [math.sqrt, str.join, io.StringIO("a").read])
def test_a_function_in_c_with_nameless_parameters_is_refused(function: Any) -> None:
    with pytest.raises(DefinitionError, match="wrap a function in C in a function of your own"):
        tool(function)


class Registry(dict):  # type: ignore[type-arg]
    def look(self, name: str) -> str:
        return self[name]  # type: ignore[no-any-return]


class Odd:
    limit = 5
    partly = functools.partialmethod(lambda self, a, b: a, b=2)

    class Inner:
        pass

    @functools.lru_cache  # noqa: B019
    def cached(self, a: int) -> int:
        return a

    @functools.singledispatchmethod
    def dispatched(self, a: int) -> int:
        return a

    @property
    def read(self) -> int:
        raise SystemExit

    @functools.cached_property
    def once(self) -> int:
        raise SystemExit


def test_what_a_built_in_base_brings_is_no_tool_of_the_class_and_nothing_is_read() -> None:
    assert names(Toolset.of(Registry())) == ["look"]
    with pytest.raises(DefinitionError, match=r"1 cannot be tools(.|\n)*dispatched: "):
        Toolset.of(Odd())
    assert names(Toolset.of(Odd(), skip=True)) == ["partly", "cached"]


# read_only


@pytest.mark.parametrize("prefix", ["", "db_"])
def test_those_that_only_read_are_named_by_what_they_are_called_there(prefix: str) -> None:
    tools = Toolset.of(DATABASE.cursor(), prefix, skip=True, read_only={"fetch*"})
    reading = [one.name.removeprefix(prefix) for one in tools if one.read_only]
    assert reading == ["fetchall", "fetchmany", "fetchone"]
    assert len(tools) > 3 and not any(one.read_only for one in Toolset.of(DATABASE.cursor(), skip=True))


def test_a_tool_that_says_so_itself_stays_one_that_only_reads(module: types.ModuleType) -> None:
    module.made = tool(module.read, name="made", read_only=True)  # type: ignore[attr-defined]
    module.other = tool(module.read, name="other")  # type: ignore[attr-defined]
    assert [one.read_only for one in Toolset.of(module, read_only=[])] == [True, False]


@pytest.mark.parametrize(
    ("read_only", "reason"),
    [({"fetchal"}, "there is no tool 'fetchal'; the nearest are"), ("fetch*", "read_only"), ([1], "read_only")],
)
def test_names_of_those_that_only_read_which_are_none_are_a_mistake(read_only: Any, reason: str) -> None:
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
        ("HTTPGet", "http_get"),
        ("GetHTTP", "get_http"),
        ("S3Upload", "s3_upload"),
        ("Search", "search"),
        ("search_web", "search_web"),
        ("Search_Web", "search_web"),
        ("ParseHTML5Page", "parse_html5_page"),
    ],
)
def test_a_handler_class_is_named_in_snake_case(written: str, name: str) -> None:
    cls: Any = type(written, (WriteFile,), {"__module__": __name__, "__call__": WriteFile.__call__})
    assert tool(cls).name == name
    assert names(Toolset([cls])) == names(Toolset.of(cls)) == [name]


def test_a_name_that_is_given_goes_first_and_a_function_keeps_its_own() -> None:
    def readFile(path: str) -> str:
        return path

    assert tool(WriteFile, name="WriteFile").name == Tool("WriteFile", WriteFile).name == "WriteFile"
    assert tool(readFile).name == "readFile"


# only, without


def of(name: str, *tags: str) -> Tool:
    return tool(lambda: None, name=name, tags=tags)


TAGGED = Toolset([of("read_a", "disk"), of("read_b", "web", "slow"), of("write_a", "disk", "slow"), of("plain")])


@pytest.mark.parametrize(
    ("globs", "tags", "only", "without"),
    [
        ((), ["disk"], ["read_a", "write_a"], ["read_b", "plain"]),
        ((), ["disk", "web"], ["read_a", "read_b", "write_a"], ["plain"]),
        (("read_*",), ["disk"], ["read_a"], ["plain"]),
        (("read_*",), None, ["read_a", "read_b"], ["write_a", "plain"]),
        (("read_*", "plain"), ("slow",), ["read_b"], []),
        ((), {"none"}, [], ["read_a", "read_b", "write_a", "plain"]),
        ((), [], [], ["read_a", "read_b", "write_a", "plain"]),
        ((), None, [], ["read_a", "read_b", "write_a", "plain"]),
    ],
)
def test_globs_and_tags_choose_together(globs: tuple[str, ...], tags: Any, only: list[str], without: list[str]) -> None:
    assert names(TAGGED.only(*globs, tags=tags)) == only
    assert names(TAGGED.without(*globs, tags=tags)) == without


@pytest.mark.parametrize("which", ["only", "without"])
def test_a_name_that_no_tool_has_is_refused_with_the_nearest_and_a_glob_that_fits_none_is_not(which: str) -> None:
    choose = getattr(TAGGED, which)
    with pytest.raises(DefinitionError, match=r"there is no tool 'reed_a'; the nearest are \['read_a'"):
        choose("write_a", "reed_a")
    with pytest.raises(DefinitionError, match=r"no tool 'zzz'; there are \['read_a', 'read_b', 'write_a', 'plain'\]"):
        choose("zzz", tags=["disk"])
    assert len(choose("x_*", "r?", "[z]")) == (0 if which == "only" else 4)


@pytest.mark.parametrize("which", ["only", "without"])
def test_tags_are_a_list_and_globs_stand_one_by_one(which: str) -> None:
    choose = getattr(TAGGED, which)
    with pytest.raises(DefinitionError, match="tags must be a list, such as tags="):
        choose(tags="disk")
    with pytest.raises(DefinitionError, match=r"each of globs must be a text, not"):
        choose(["read_*"])
