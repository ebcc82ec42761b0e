"""The nearest names are the ones a person would think of, among many too."""

from __future__ import annotations

import asyncio
from difflib import get_close_matches

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import Runner, Toolset, tool
from ferrule.security.similar_names import NameIndex
from steps import steps

VERBS = ("search", "read", "write", "delete", "list", "archive", "rename", "share", "count", "export")
MANY = [
    f"{verb}_{what}_{number}" for verb in VERBS for what in ("note", "mail", "task", "file") for number in range(250)
]


names = st.text("abc_", min_size=1, max_size=8)


@given(names, st.lists(names, min_size=1, max_size=6))
def test_every_name_that_difflib_finds_is_found(name: str, known: list[str]) -> None:
    found = get_close_matches(name, list(dict.fromkeys(known)), n=3, cutoff=0.5)
    assert NameIndex(known).find_nearest(name)[: len(found)] == found


@pytest.mark.large
@pytest.mark.parametrize(
    ("name", "is_offered"),
    [("read_mail_77", False), ("Read-Mail_7", True), ("functions.no_tool", False), ("xyzzy", True)],
)
def test_an_unknown_name_takes_few_steps_among_many_tools(name: str, is_offered: bool) -> None:
    base = tool(lambda: None, name="base")

    def work(number: int) -> int:
        """Of the first such call, with everything that is made for it."""
        tools = Toolset(base.replace(name=one) for one in MANY[:number])
        runner = Runner(tools)
        asyncio.run(runner.run(tools.get(MANY[0]).name))
        offered = tools.without(MANY[1]) if is_offered else None
        return steps(lambda: asyncio.run(runner.run(name, offered=offered)))

    assert work(9_000) < 2 * work(100) + 500
