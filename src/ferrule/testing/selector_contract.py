"""`SelectorContract`: tests of the promises of every selector, to run on your own."""

from __future__ import annotations

import asyncio
import copy
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from inspect import isawaitable
from typing import Any, TypeAlias

from ferrule.definition.decorator import build_tool
from ferrule.definition.tool import Tool
from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError
from ferrule.selection import Match, Query, Ranker, ToolSelector

_Ask: TypeAlias = Callable[[Query, Iterable[Tool]], list[Tool]]

_TOOLS = {
    "send_email": ("Send an email to a person.", {"to": "The address.", "text": "What it says."}),
    "read_email": ("Read the newest emails of the inbox.", {"count": "How many."}),
    "search_email": ("Find emails that hold some words.", {"words": "What to look for."}),
    "create_event": ("Put an event into the calendar.", {"title": "Its title.", "start": "When it begins."}),
    "delete_event": ("Take an event out of the calendar.", {"id": "Which one."}),
    "get_weather": ("The weather of a city.", {"city": "The city's name."}),
    "convert_currency": ("Convert an amount of money.", {"amount": "How much.", "to": "The currency, such as EUR."}),
    "refund_order": ("Give a customer the money of an order back.", {"order": "The order's number."}),
    "track_parcel": ("Where a parcel is.", {"number": "The parcel's number."}),
    "read_file": ("Read a text file.", {"path": "Where it is."}),
    "write_file": ("Write a text file.", {"path": "Where it is.", "text": "What it says."}),
    "translate": ("Übersetzt einen Text. 文章を翻訳する。", {"text": "Der Text. 文章。"}),
    "now": ("", {}),
}
_QUESTIONS = (
    "Send Ada an email about the refund of order 7",
    "What is the weather in Rome, and where is my parcel?",
    "refund_order",
    "zxqv wvut",
    "Übersetze das bitte: 文章を翻訳して 🙂 \u202e مرحبا",
)
_JUNK: tuple[Any, ...] = (
    "",
    " \n",
    "\ud800",
    "\0",
    "word " * 20_000,
    [],
    [{}],
    [{"role": "user"}],
    [{"role": "user", "content": None}],
    [{"role": "user", "content": [None, 7, {}, {"type": "text"}]}],
    [{"role": ["user"], "content": {"text": []}}],
    [{"type": "reasoning", "summary": []}],
)
_LIMITS = (1, 2, 5, 1_000)


class SelectorContract:
    """Tests of the promises of every selector. Derive a class, and pytest runs them. See docs/selection.md#your-own.

        class TestNewest(SelectorContract):
            def selector(self):
                return Newest()

    If the selector has `rank`, that is tested too. A failed test shows the query and the answer.
    """

    def selector(self) -> ToolSelector:
        """Make a new selector, in the same way each time."""
        raise DefinitionError(f"{type(self).__name__} needs a method selector(self) that makes your selector")

    def tools(self) -> Toolset:
        """Return the tools to select from. Override this for a selector that needs others, at least four."""
        return _make_catalogue()

    def test_it_has_an_async_select(self) -> None:
        selector: Any = self.selector()
        assert isinstance(selector, ToolSelector) and not isinstance(selector, type), f"{selector!r} has no select"
        answer: Any = selector.select([], self.tools())
        assert isawaitable(answer), f"select gives {answer!r}, which cannot be awaited"
        asyncio.run(_finish(answer))

    def test_it_selects_given_tools_each_once(self) -> None:
        tools = self.tools()
        for many in (tools, Toolset([*tools, *_make_thousand_tools()])):
            with _open_selector(self.selector()) as ask:
                for messages in (*_questions(), *_JUNK):
                    found = ask(messages, many)
                    assert _is_subset(found, many), f"it gave {found!r}; {_describe_query(messages)}"

    def test_no_tools_select_none(self) -> None:
        with _open_selector(self.selector()) as ask:
            for messages in _questions():
                assert (found := ask(messages, Toolset())) == [], f"it gave {found!r}; {_describe_query(messages)}"

    def test_one_tool_selects_that_tool_or_none(self) -> None:
        with _open_selector(self.selector()) as ask:
            for tool in self.tools():
                found = ask(_QUESTIONS[0], [tool])
                assert found in ([], [tool]), f"of {tool!r} alone it gave {found!r}"

    def test_the_same_query_has_the_same_answer(self) -> None:
        tools = self.tools()
        with _open_selector(self.selector()) as ask, _open_selector(self.selector()) as ask_another:
            for messages in _questions():
                first, again, another = ask(messages, tools), ask(messages, tools), ask_another(messages, tools)
                assert first == again, f"it gave {first!r}, and then {again!r}; {_describe_query(messages)}"
                assert first == another, f"it gave {first!r}, and a new one {another!r}; {_describe_query(messages)}"

    def test_concurrent_queries_have_the_same_answers_as_single_ones(self) -> None:
        tools = self.tools()

        async def at_once() -> list[list[Tool]]:
            selector = self.selector()
            return list(await asyncio.gather(*(_select(selector, messages, tools) for messages in _questions())))

        together = asyncio.run(at_once())
        with _open_selector(self.selector()) as ask:
            for messages, found in zip(_questions(), together, strict=True):
                alone = ask(messages, tools)
                assert found == alone, (
                    f"it gave {found!r} beside others, and alone {alone!r}; {_describe_query(messages)}"
                )

    def test_messages_and_tools_are_not_changed(self) -> None:
        given = list(self.tools())
        tools = list(given)
        with _open_selector(self.selector()) as ask:
            for messages in _questions():
                before = copy.deepcopy(messages)
                ask(messages, tools)
                assert messages == before, f"it changed the messages; {_describe_query(before)}"
        assert tools == given, f"it made {tools!r} of {given!r}"

    def test_tools_can_be_a_toolset_a_list_or_an_iterator(self) -> None:
        tools = self.tools()
        with _open_selector(self.selector()) as ask:
            for messages in _questions():
                expected = ask(messages, tools)
                for other in (list(tools), tuple(tools), iter(tools)):
                    found = ask(messages, other)
                    assert found == expected, f"of a {type(other).__name__} it gave {found!r}, not {expected!r}"

    def test_added_and_removed_tools_leave_no_trace(self) -> None:
        tools = list(self.tools())
        half = len(tools) // 2
        with _open_selector(self.selector()) as ask:
            for some in (tools[1:], tools, tools[:-1], [*tools[:half], *tools[half + 1 :]], tools):
                for messages in _questions():
                    with _open_selector(self.selector()) as ask_a_new_one:
                        found, expected = ask(messages, Toolset(some)), ask_a_new_one(messages, Toolset(some))
                    assert found == expected, (
                        f"it gave {found!r}, and a new one {expected!r}; {_describe_query(messages)}"
                    )

    # Selectors with `rank`

    def test_matches_are_given_tools_each_once(self) -> None:
        tools = self.tools()
        for query, matches in self._rank_all(tools):
            found = [match.tool for match in matches]
            assert _is_subset(found, tools), f"it gave {found!r}; {_describe_query(query)}"

    def test_scores_are_finite_and_descend(self) -> None:
        for query, matches in self._rank_all(self.tools()):
            scores = [match.score for match in matches]
            assert all(map(math.isfinite, scores)), (
                f"its scores are {scores!r}, and not numbers; {_describe_query(query)}"
            )
            assert scores == sorted(scores, reverse=True), f"its scores are {scores!r}; {_describe_query(query)}"

    def test_there_are_no_more_matches_than_the_limit(self) -> None:
        for limit in _LIMITS:
            for query, matches in self._rank_all(self.tools(), limit):
                assert len(matches) <= limit, f"limit={limit} gave {len(matches)}; {_describe_query(query)}"

    def test_the_order_of_the_tools_changes_no_score(self) -> None:
        tools = list(self.tools())
        shuffled = random.Random(7).sample(tools, len(tools))
        for other in (tools[::-1], shuffled):
            for (query, one), (_, two) in zip(self._rank_all(tools), self._rank_all(other), strict=True):
                same = {match.tool: round(match.score, 9) for match in one}
                found = {match.tool: round(match.score, 9) for match in two}
                assert found == same, f"in another order it gave {found!r}, not {same!r}; {_describe_query(query)}"

    def _rank_all(self, tools: Toolset | list[Tool], limit: int = 1_000) -> list[tuple[Query, list[Match]]]:
        """Return the answers to all questions; an empty list if the selector does not rank."""
        selector = self.selector()
        if not isinstance(selector, Ranker):
            return []
        return [(query, list(selector.rank(tools, query, limit=limit))) for query in (*_questions(), *_JUNK)]


def _questions() -> list[Any]:
    """Return texts and messages, new each time: a selector may spoil them."""
    results = [{"type": "tool_result", "tool_use_id": "1", "content": "It is sunny."}]
    conversation = [
        {"role": "system", "content": "You help in a shop."},
        {"role": "user", "content": _QUESTIONS[1]},
        {"role": "assistant", "content": [{"type": "text", "text": "I look."}, {"type": "tool_use", "id": "1"}]},
        {"role": "user", "content": results},
    ]
    in_parts = [{"role": "user", "parts": [{"text": _QUESTIONS[3]}]}]
    return [*_QUESTIONS, [{"role": "user", "content": _QUESTIONS[0]}], conversation, in_parts]


async def _finish(answer: Any) -> Any:
    return await answer


async def _select(selector: ToolSelector, messages: Query, tools: Iterable[Tool]) -> list[Tool]:
    found = list(await selector.select(messages, tools))
    assert all(isinstance(tool, Tool) for tool in found), (
        f"it gave {found!r}, which are not tools; {_describe_query(messages)}"
    )
    return found


@contextmanager
def _open_selector(selector: ToolSelector) -> Iterator[_Ask]:
    """Yield a function that asks a selector, in one loop: its clients may keep connections."""
    with asyncio.Runner() as runner:
        yield lambda messages, tools: runner.run(_select(selector, messages, tools))


def _is_subset(found: Sequence[Tool], tools: Iterable[Tool]) -> bool:
    return len(set(found)) == len(found) and set(found) <= set(tools)


def _describe_query(messages: object) -> str:
    return f"asked was {messages!r:.200}"


def _make_tool(name: str, description: str, parameters: Mapping[str, str]) -> Tool:
    properties = {key: {"type": "string", "description": said} for key, said in parameters.items()}
    schema = {"type": "object", "properties": properties}
    return build_tool({"name": name, "description": description, "input_schema": schema}, _execute)


async def _execute(arguments: Mapping[str, Any]) -> str:
    return "nothing"


@cache
def _make_catalogue() -> Toolset:
    return Toolset(_make_tool(name, *rest) for name, rest in _TOOLS.items())


@cache
def _make_thousand_tools() -> Toolset:
    verbs = ("list", "count", "archive", "share", "rename")
    nouns = ("invoice", "photo", "ticket", "branch", "sensor", "playlist", "recipe", "flight")
    return Toolset(
        _make_tool(
            f"{verbs[at % 5]}_{nouns[at % 8]}_{at}",
            f"{verbs[at % 5]} the {nouns[at % 8]}s of group {at}.",
            {"id": "Which."},
        )
        for at in range(1_000)
    )
