"""`ferrule run --select`: a part of the tools is offered, and the others are found."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.test_cli import ferrule, refused

pytestmark = pytest.mark.slow

TOOLS = """
from ferrule import tool


@tool(read_only=True)
def shout(text: str) -> str:
    "Say it loudly."
    return text.upper()


@tool(read_only=True)
def count(text: str) -> int:
    "Count the letters."
    return len(text)


@tool(read_only=True)
def turn(text: str) -> str:
    "Turn it round."
    return text[::-1]
"""
CHOICE = """
from ferrule.selection import Match


class Shout:
    "Selects one, and ranks by words in common."

    async def select(self, messages, tools):
        return [tools.get("shout")]

    def rank(self, tools, query, *, limit=10):
        words = set(query.lower().split())
        return [Match(tool, 1.0) for tool in tools if words & set(tool.description.lower().split())][:limit]


class Foreign(Shout):
    async def select(self, messages, tools):
        return ["shout"]
"""
STEPS = """
steps = [
    [("turn", {"text": "no"}), ("search_tools", {"query": "the"})],
    [("shout", {"text": "a"}), ("count", {"text": "four"})],
    "Done.",
]
"""
RUN = ("run", "Look around", "--tools", "tools.py", "--model", "scripted:steps.py")


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with tools.py, choice.py and steps.py."""
    (tmp_path / "tools.py").write_text(TOOLS, encoding="utf-8")
    (tmp_path / "choice.py").write_text(CHOICE, encoding="utf-8")
    (tmp_path / "steps.py").write_text(STEPS, encoding="utf-8")
    return tmp_path


def test_a_part_of_the_tools_is_offered_and_what_is_found_runs(shop: Path) -> None:
    done = ferrule(*RUN, "--select", "choice:Shout", cwd=shop)
    assert done.returncode == 0, done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines.index("tools 2 of 4 offered: shout, search_tools") < lines.index("turn 1")
    assert "tools shout, count, turn" not in lines
    ended = [line.split()[1:3] for line in lines if line[:2] in ("1 ", "2 ", "3 ", "4 ")]
    assert ended == [["turn", "not_found"], ["search_tools", "ok"], ["shout", "ok"], ["count", "ok"]]


@pytest.mark.parametrize("place", ["choice.py:Shout", "./choice.py:Shout", "inner/other.py:Shout"])
def test_a_selector_may_stand_in_a_file(shop: Path, place: str) -> None:
    (shop / "inner").mkdir()
    (shop / "inner" / "other.py").write_text(CHOICE, encoding="utf-8")
    done = ferrule(*RUN, "--select", place, cwd=shop)
    assert "tools  2 of 4 offered: shout, search_tools" in done.stdout, done.stderr


def test_a_file_that_is_not_there_is_named(shop: Path) -> None:
    assert "there is no file 'choise.py'" in refused(ferrule(*RUN, "--select", "choise.py:Shout", cwd=shop))


def test_without_it_all_are_offered_and_there_is_no_search_tool(shop: Path) -> None:
    done = ferrule(*RUN, cwd=shop)
    assert "tools  shout, count, turn\n" in done.stdout and "offered:" not in done.stdout


def test_a_search_tool_that_is_there_is_not_doubled(shop: Path) -> None:
    own = "\nfrom choice import Shout\nfrom ferrule.selection import search_tool\n"
    more = own + "find = search_tool([shout, count, turn], Shout(), name='search_tools')\n"
    (shop / "tools.py").write_text(TOOLS + more, encoding="utf-8")
    done = ferrule(*RUN, "--select", "choice:Shout", cwd=shop)
    assert done.returncode == 0, done.stderr
    assert "tools  2 of 4 offered: shout, search_tools" in done.stdout


def test_beside_a_tool_that_has_its_name_the_search_tool_has_another(shop: Path) -> None:
    taken = '\n\n@tool\ndef search_tools(shop: str) -> str:\n    "Find hammers."\n    return "none"\n'
    (shop / "tools.py").write_text(TOOLS + taken, encoding="utf-8")
    done = ferrule(*RUN, "--select", "choice:Shout", cwd=shop)
    assert "tools  2 of 5 offered: shout, search_all_tools" in done.stdout, done.stderr


def test_a_selector_that_there_is_not_is_named(shop: Path) -> None:
    error = refused(ferrule(*RUN, "--select", "choise:Shout", cwd=shop))
    assert error.startswith("ferrule: --select: ") and "there is no module 'choise'" in error


def test_a_selector_that_gives_what_is_no_tool_ends_the_run(shop: Path) -> None:
    done = ferrule(*RUN, "--select", "choice:Foreign", cwd=shop)
    assert done.returncode == 2 and "returned 'shout', which is not one of the tools that it got" in done.stderr
