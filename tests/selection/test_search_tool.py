"""The search tool: what it finds, what it says where nothing fits, and what it never offers."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterable
from typing import Any

import pytest
from rankers import Overlap

from ferrule import Runner, Tool, ToolContext, ToolResult, Toolset, deny, tool
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
    return asyncio.run(Runner([finder]).run(finder.name, {"query": query}))


def names(result: ToolResult) -> list[str]:
    return [one["name"] for one in result.metadata["found"]]


def test_it_is_one_small_tool_that_only_reads() -> None:
    finder = search_tool(MAIL, Overlap())
    assert (finder.name, finder.tags, finder.read_only, finder.destructive) == (
        "search_tools",
        ("tool_search",),
        True,
        False,
    )
    assert list(finder.input_schema["properties"]) == ["query"] and finder.input_schema["required"] == ["query"]
    assert finder.description == (
        "Find tools that you cannot call yet. What it finds can be called from your next turn on."
    )
    assert finder.input_schema["properties"]["query"]["description"].startswith("What the tool should do")


def test_it_names_what_fits_with_the_first_sentence_and_keeps_the_definitions_beside() -> None:
    result = search("send an email.")
    assert result.text.splitlines()[1] == "- send_mail: Send an email."
    (first, *_) = result.metadata["found"]
    assert first == {
        "name": "send_mail",
        "description": "Send an email. It goes out at once, to one address.\n\nMore of it.",
        "input_schema": dict(MAIL.get("send_mail").input_schema),
    }
    json.dumps(result.record())


def test_names_are_those_that_a_provider_takes() -> None:
    result = search("archive old messages")
    assert names(result) == [MAIL.get("mail.archive").wire_name] and names(result) != ["mail.archive"]
    assert names(result)[0] in result.text


@pytest.mark.parametrize("query", ["paint walls", "?!", "   ", ""])
def test_where_nothing_fits_it_says_so(query: str) -> None:
    result = search(query)
    assert result.success and result.metadata["found"] == []
    assert result.text.startswith("No tool fits") and "try other words, or answer without" in result.text
    assert query.strip() in result.text


async def test_without_a_ranker_a_tool_that_has_little_of_the_query_does_not_fit() -> None:
    query = "paint the walls of every address in blue"
    assert keyword().rank(MAIL, query) != []
    result = await Runner([search_tool(MAIL)]).run("search_tools", {"query": query})
    assert names(result) == [] and result.text.startswith("No tool fits")


def test_it_finds_no_more_than_its_limit() -> None:
    ranker = Everything()
    assert names(search("zz", ranker, limit=2)) == ["send_mail", MAIL.get("mail.archive").wire_name]
    assert ranker.asked == [(MAIL, "zz", 2)]


@pytest.mark.parametrize(
    "query",
    ["weather", "Weather", "the weather in Rome", "please call `weather`", "is there weather?", "weather, mail"],
)
def test_a_tool_that_the_query_names_comes_first(query: str) -> None:
    assert names(search(query, Everything(), limit=2))[0] == "weather"
    assert names(search(query, Nothing()))[0] == "weather"


@pytest.mark.parametrize("query", ["calendar_create", "calendarCreate", "calendar create", "CALENDAR-CREATE"])
def test_a_name_is_read_without_case_and_without_what_stands_between_its_words(query: str) -> None:
    assert names(search(query, Nothing())) == ["calendar_create", "calendar_create_event"]
    assert names(search(query, Everything(), limit=1)) == ["calendar_create"]


@pytest.mark.parametrize("query", ["calendar_", "cal", "use calendar_cr for it", "calendar cre", "mail.arch"])
def test_a_name_that_begins_with_the_query_has_a_place(query: str) -> None:
    wanted = "mail_archive" if query.startswith("mail") else "calendar_create"
    assert names(search(query, Everything(), limit=2))[0].startswith(wanted)


def test_each_name_that_is_begun_has_a_place() -> None:
    found_names = names(search("calendar_cr mail.ar", Everything(), limit=2))
    assert found_names == ["calendar_create", MAIL.get("mail.archive").wire_name]
    assert names(search("calendar_cr weather", Everything(), limit=1)) == ["weather"], "a whole name goes first"


@pytest.mark.parametrize("query", ["ca", "w", "create the event of a cal", "wea ther2"])
def test_a_common_beginning_is_no_name(query: str) -> None:
    assert names(search(query, Nothing())) == []


def test_it_searches_nothing_but_what_it_was_given_and_never_offers_itself() -> None:
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


def test_what_is_found_is_bounded() -> None:
    long = Toolset([made("long", "word " * 10_000), made("blank", " \n ")])
    result = search("zz", Everything(), long)
    assert len(result.text) < 1000 and result.text.splitlines()[-1] == "- blank"


async def test_its_own_guards_judge_it_as_any_call() -> None:
    def refuse(call: Any, context: ToolContext) -> Any:
        return deny("no searching")

    result = await Runner([search_tool(MAIL, Overlap())], guards=[refuse]).run("search_tools", {"query": "x"})
    assert result.status == "denied" and "found" not in result.metadata


async def test_searches_at_the_same_time_rank_one_after_the_other() -> None:
    class Alone(Everything):
        inside = 0
        both = threading.Event()

        def rank(self, tools: Iterable[Tool], query: Query, *, limit: int = 10) -> list[Match]:
            self.inside += 1
            if self.inside == 2:
                self.both.set()
            self.both.wait(0.2)
            self.inside -= 1
            return super().rank(tools, query, limit=limit)

    async def main() -> None:
        runner = Runner([search_tool(MAIL, ranker)])
        await asyncio.gather(*(runner.run("search_tools", {"query": "mail"}) for _ in range(2)))

    ranker = Alone()
    await main()
    assert len(ranker.asked) == 2 and not ranker.both.is_set()


@pytest.mark.parametrize("limit", [0, 51, -1, "5", 2.5])
def test_another_limit_is_refused(limit: Any) -> None:
    with pytest.raises(DefinitionError, match="limit is a whole number from 1 to 50"):
        search_tool(MAIL, Overlap(), limit=limit)


@pytest.mark.parametrize("ranker", [object(), Overlap, "keyword"])
def test_what_is_no_ranker_is_refused(ranker: Any) -> None:
    with pytest.raises(DefinitionError, match="search_tool takes rankers, which have rank"):
        search_tool(MAIL, ranker)


# What a search made callable, for a loop of one's own


def results_of(tools: Toolset, *queries: str) -> list[ToolResult]:
    runner = Runner(tools)

    async def main() -> list[ToolResult]:
        return [await runner.run("search_tools", {"query": query}) for query in queries]

    return asyncio.run(main())


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
