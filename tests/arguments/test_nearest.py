"""The nearest names: the same few that a person would think of, among many too."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import Runner, Toolset, tool
from ferrule.security.similar_names import NameIndex
from steps import steps

FEW = NameIndex(["search_notes", "read_note", "Write-Note", "add", "delete_everything"])
VERBS = ("search", "read", "write", "delete", "list", "archive", "rename", "share", "count", "export")
MANY = [
    f"{verb}_{what}_{number}" for verb in VERBS for what in ("note", "mail", "task", "file") for number in range(250)
]


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("serch_notes", "search_notes"),
        ("SEARCH-NOTES", "search_notes"),
        ("write_note", "Write-Note"),
        ("add_two_numbers_together", "add"),
        ("everything", "delete_everything"),
    ],
)
def test_the_name_that_was_meant_comes_first(name: str, first: str) -> None:
    assert FEW.find_nearest(name)[0] == first


def test_a_name_like_none_has_no_neighbours() -> None:
    assert FEW.find_nearest("xyzzy") == [] and NameIndex([]).find_nearest("x") == []


@given(st.sampled_from(MANY), st.integers(1, 30), st.sampled_from(["", "x", "_"]))
def test_what_is_found_among_many_begins_or_ends_like_what_was_written(name: str, at: int, instead: str) -> None:
    typed = name[:at] + instead + name[at + 1 :]
    near = NameIndex(MANY).find_nearest(typed)
    assert len(near) == 3
    assert all(one[0] == typed[0] or one[-1] == typed[-1] for one in near), near


def test_a_toolset_names_the_nearest_of_its_tools() -> None:
    def read_note() -> None: ...

    def write_note() -> None: ...

    tools = Toolset([tool(read_note), tool(write_note)])
    assert tools.find_nearest("raed_note")[0] == "read_note"
    with pytest.raises(KeyError, match="the nearest are"):
        tools.get("raed_note")
    assert "write_note" in tools.register(tool(lambda: None, name="write_notes")).find_nearest("wirte_note")


@pytest.mark.parametrize(
    ("name", "is_offered"),
    [("read_mail_77", False), ("Read-Mail_7", True), ("functions.no_tool", False), ("xyzzy", True)],
)
def test_an_unknown_name_is_as_little_work_among_many_tools_as_among_few(name: str, is_offered: bool) -> None:
    base = tool(lambda: None, name="base")

    def work(number: int) -> int:
        """Of the first such call, with everything that is made for it."""
        tools = Toolset(base.replace(name=one) for one in MANY[:number])
        runner = Runner(tools)
        asyncio.run(runner.run(tools.get(MANY[0]).name))
        offered = tools.without(MANY[1]) if is_offered else None
        return steps(lambda: asyncio.run(runner.run(name, offered=offered)))

    assert work(9_000) < 2 * work(100) + 500


async def test_no_tool_is_named_that_was_offered_and_is_not_the_runners() -> None:
    base = tool(lambda: None, name="base")
    runner, offered = (Toolset(base.replace(name=name) for name in names) for names in (["a1", "a2"], ["a2", "a3"]))
    result = await Runner(runner).run("a4", offered=runner.only("a2") + offered.only("a3"))
    assert result.error == "'a4' was not offered. Did you mean 'a2'? Nothing was run."
