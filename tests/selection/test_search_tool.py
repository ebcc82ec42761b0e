"""The search tool: what it finds, what it says where nothing fits, and what it never offers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from rankers import Overlap

from ferrule import Runner, Tool, ToolResult, Toolset, tool
from ferrule.errors import DefinitionError
from ferrule.selection import Match, Query, keyword, list_found_tools, search_tool
from ferrule.selection.search_tool import finds_tools


def made(name: str, description: str = "Does it.") -> Tool:
    return Tool(name, lambda place: place, description=description, read_only=True)


MAIL = Toolset(
    [
        made("send_mail", "Send an email. It goes out at once, to one address.\n\nMore of it."),
        made("mail.archive", "Archive old messages"),
        made("calendar_create_event", "Create a meeting in the calendar."),
        made("calendar_create", "Create a calendar."),
        made("weather", ""),
    ]
)


class Nothing:
    """Ranks nothing."""

    async def select(self, messages: Query, tools: Iterable[Tool]) -> list[Tool]:
        return []

    def rank(self, tools: Iterable[Tool], query: Query, *, limit: int = 10) -> list[Match]:
        return []


class Everything(Nothing):
    """Ranks all in the order of the toolset, and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Iterable[Tool], Query, int]] = []

    def rank(self, tools: Iterable[Tool], query: Query, *, limit: int = 10) -> list[Match]:
        self.asked.append((tools, query, limit))
        return [Match(tool, 1.0) for tool in tools][:limit]


def search(query: str, ranker: Any = None, tools: Toolset = MAIL, **options: Any) -> ToolResult:
    finder = search_tool(tools, ranker or Overlap(), **options)
    return Runner([finder]).run_sync(finder.name, {"query": query})


def names(result: ToolResult) -> list[str]:
    return [one["name"] for one in result.metadata["found"]]


def test_it_is_one_small_tool_that_only_reads() -> None:
    finder = search_tool(MAIL, Overlap())
    assert (finder.name, finder.tags) == ("search_tools", ("tool_search",))
    assert (finder.read_only, finder.destructive) == (True, False)
    assert list(finder.input_schema["properties"]) == ["query"] and finder.input_schema["required"] == ["query"]


def test_it_lists_found_tools_and_keeps_their_definitions() -> None:
    result = search("send an email.")
    assert result.text.splitlines()[1] == "- send_mail: Send an email."
    (first, *_) = result.metadata["found"]
    assert first == {
        "name": "send_mail",
        "description": "Send an email. It goes out at once, to one address.\n\nMore of it.",
        "input_schema": dict(MAIL.get("send_mail").input_schema),
    }
    json.dumps(result.record())
    assert names(search("archive old messages")) == [MAIL.get("mail.archive").wire_name] != ["mail.archive"]


@pytest.mark.parametrize("query", ["paint walls", ""])
def test_no_match_is_reported(query: str) -> None:
    result = search(query)
    assert result.success and result.metadata["found"] == []
    assert result.text.startswith("No tool fits") and "try other words, or answer without" in result.text
    assert query.strip() in result.text


async def test_without_a_ranker_weak_matches_do_not_fit() -> None:
    query = "paint the walls of every address in blue"
    assert keyword().rank(MAIL, query) != []
    result = await Runner([search_tool(MAIL)]).run("search_tools", {"query": query})
    assert names(result) == [] and result.text.startswith("No tool fits")


@pytest.mark.parametrize("query", ["Weather", "please call `weather`"])
def test_a_tool_that_the_query_names_comes_first(query: str) -> None:
    assert names(search(query, Everything(), limit=2))[0] == "weather"
    assert names(search(query, Nothing()))[0] == "weather"


@pytest.mark.parametrize("query", ["calendarCreate", "CALENDAR-CREATE"])
def test_a_name_is_read_without_case_and_separators(query: str) -> None:
    assert names(search(query, Nothing())) == ["calendar_create", "calendar_create_event"]
    assert names(search(query, Everything(), limit=1)) == ["calendar_create"]


@pytest.mark.parametrize("query", ["cal", "use calendar_cr for it", "mail.arch"])
def test_a_name_that_begins_with_the_query_has_a_place(query: str) -> None:
    wanted = "mail_archive" if query.startswith("mail") else "calendar_create"
    assert names(search(query, Everything(), limit=2))[0].startswith(wanted)


@pytest.mark.parametrize("query", ["ca", "create the event of a cal", "wea ther2"])
def test_a_common_beginning_is_no_name(query: str) -> None:
    assert names(search(query, Nothing())) == []


def test_it_never_finds_itself_or_a_foreign_tool() -> None:
    finder = search_tool(MAIL, Overlap())
    stranger = made("send_mail_now")

    class Foreign(Everything):
        def rank(self, tools: Iterable[Tool], query: Query, *, limit: int = 10) -> list[Match]:
            return [Match(stranger, 9.0), Match(finder, 8.0), *super().rank(tools, query, limit=limit)]

    both = MAIL.register(finder.replace(name="search_mail"))
    result = search("search_mail search_tools send_mail_now", Foreign(), both, limit=50)
    assert set(names(result)) == {tool.wire_name for tool in MAIL}


def test_a_long_query_is_cut_before_it_is_ranked() -> None:
    ranker = Everything()
    search("word " * 10_000, ranker)
    ((_, query, _),) = ranker.asked
    assert len(query) == 1000
    assert len(search("x" * 900_000, Nothing()).text) < 500
    result = search("zz", Everything(), Toolset([made("long", "word " * 10_000), made("blank", " \n ")]))
    assert len(result.text) < 1000 and result.text.splitlines()[-1] == "- blank"


@pytest.mark.parametrize("limit", [0, 51, "5"])
def test_another_limit_is_refused(limit: Any) -> None:
    with pytest.raises(DefinitionError, match="limit is a whole number from 1 to 50"):
        search_tool(MAIL, Overlap(), limit=limit)


# What a search made callable, for a loop of one's own


def results_of(tools: Toolset, *queries: str) -> list[ToolResult]:
    runner = Runner(tools)
    return [runner.run_sync("search_tools", {"query": query}) for query in queries]


def test_found_has_the_tools_of_the_results_in_order_and_once() -> None:
    tools = MAIL.register(search_tool(MAIL, Overlap()))
    results = results_of(tools, "weather", "send an email.", "weather", "nothing here")
    assert [one.name for one in list_found_tools(results, tools)][:2] == ["weather", "send_mail"]
    assert all(one is tools.get(one.name) for one in list_found_tools(results, list(tools)))


def test_found_has_nothing_that_is_not_among_the_tools() -> None:
    tools = MAIL.register(search_tool(MAIL, Overlap()))
    assert list_found_tools(results_of(tools, "weather"), tools.without("weather")) == []
    assert list_found_tools(results_of(tools, "weather"), tools.without("search_tools")) == []


def test_found_reads_no_result_but_a_search_tools() -> None:
    @tool(name="search_tools", tags=["tool_search"], read_only=True)
    def pretend(query: str) -> ToolResult:
        """Pretend."""
        return ToolResult("weather", metadata={"found": [{"name": "weather"}]})

    tools = MAIL.register(pretend)
    assert list_found_tools(results_of(tools, "weather"), tools) == [] and not finds_tools(pretend)


def test_a_search_tool_that_was_renamed_bound_or_mounted_is_one_still() -> None:
    finder = search_tool(MAIL, Overlap())
    (mounted,) = Runner([finder]).as_tools()
    assert all(map(finds_tools, [finder.replace(name="find"), finder.bind(query="mail"), mounted]))
