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
        return _catalogue()

    def test_it_has_an_async_select(self) -> None:
        selector: Any = self.selector()
        assert isinstance(selector, ToolSelector) and not isinstance(selector, type), f"{selector!r} has no select"
        answer: Any = selector.select([], self.tools())
        assert isawaitable(answer), f"select gives {answer!r}, which cannot be awaited"
        asyncio.run(_finish(answer))

    def test_it_gives_only_tools_that_it_was_given(self) -> None:
        tools = self.tools()
        with _asker(self.selector()) as ask:
            for messages in _questions():
                for tool in ask(messages, tools):
                    assert any(tool is one for one in tools), (
                        f"{tool!r} was not among the tools; {_asked_was(messages)}"
                    )

    def test_it_gives_no_tool_twice(self) -> None:
        with _asker(self.selector()) as ask:
            for messages in _questions():
                found = ask(messages, self.tools())
                assert len({id(tool) for tool in found}) == len(found), f"it gave {found!r}; {_asked_was(messages)}"

    def test_of_no_tools_it_gives_none(self) -> None:
        with _asker(self.selector()) as ask:
            for messages in _questions():
                assert (found := ask(messages, Toolset())) == [], f"it gave {found!r}; {_asked_was(messages)}"

    def test_of_one_tool_it_gives_that_one_or_none(self) -> None:
        with _asker(self.selector()) as ask:
            for tool in self.tools():
                found = ask(_QUESTIONS[0], [tool])
                assert found in ([], [tool]), f"of {tool!r} alone it gave {found!r}"

    def test_messages_that_say_nothing_are_no_error(self) -> None:
        tools = self.tools()
        with _asker(self.selector()) as ask:
            for messages in _JUNK:
                found = ask(messages, tools)
                assert _all_among(found, tools), f"it gave {found!r}; {_asked_was(messages)}"

    def test_the_same_question_has_the_same_answer(self) -> None:
        tools = self.tools()
        with _asker(self.selector()) as ask, _asker(self.selector()) as ask_another:
            for messages in _questions():
                first, again, another = ask(messages, tools), ask(messages, tools), ask_another(messages, tools)
                assert first == again, f"it gave {first!r}, and then {again!r}; {_asked_was(messages)}"
                assert first == another, f"it gave {first!r}, and a new one {another!r}; {_asked_was(messages)}"

    def test_two_questions_at_once_have_the_answers_that_each_has_alone(self) -> None:
        tools = self.tools()

        async def at_once() -> list[list[Tool]]:
            selector = self.selector()
            return list(await asyncio.gather(*(_selected(selector, messages, tools) for messages in _questions())))

        together = asyncio.run(at_once())
        with _asker(self.selector()) as ask:
            for messages, found in zip(_questions(), together, strict=True):
                alone = ask(messages, tools)
                assert found == alone, f"it gave {found!r} beside others, and alone {alone!r}; {_asked_was(messages)}"

    def test_messages_and_tools_stay_as_they_were(self) -> None:
        given = list(self.tools())
        tools = list(given)
        with _asker(self.selector()) as ask:
            for messages in _questions():
                before = copy.deepcopy(messages)
                ask(messages, tools)
                assert messages == before, f"it changed the messages; {_asked_was(before)}"
        assert tools == given, f"it made {tools!r} of {given!r}"

    def test_the_tools_may_come_as_a_toolset_a_list_or_one_by_one(self) -> None:
        tools = self.tools()
        with _asker(self.selector()) as ask:
            for messages in _questions():
                expected = ask(messages, tools)
                for other in (list(tools), tuple(tools), iter(tools)):
                    found = ask(messages, other)
                    assert found == expected, f"of a {type(other).__name__} it gave {found!r}, not {expected!r}"

    def test_a_tool_more_or_less_leaves_nothing_behind(self) -> None:
        tools = list(self.tools())
        half = len(tools) // 2
        with _asker(self.selector()) as ask:
            for some in (tools[1:], tools, tools[:-1], [*tools[:half], *tools[half + 1 :]], tools):
                for messages in _questions():
                    with _asker(self.selector()) as ask_a_new_one:
                        found, expected = ask(messages, Toolset(some)), ask_a_new_one(messages, Toolset(some))
                    assert found == expected, f"it gave {found!r}, and a new one {expected!r}; {_asked_was(messages)}"

    def test_a_thousand_tools_are_no_error(self) -> None:
        tools = Toolset([*self.tools(), *_a_thousand()])
        with _asker(self.selector()) as ask:
            for messages in _questions():
                found = ask(messages, tools)
                assert _all_among(found, tools), f"it gave {found!r}; {_asked_was(messages)}"

    # Selectors with `rank`

    def test_its_matches_are_tools_that_it_was_given_each_once(self) -> None:
        tools = self.tools()
        for query, matches in self._ranked(tools):
            found = [match.tool for match in matches]
            assert _all_among(found, tools), f"it gave {found!r}; {_asked_was(query)}"

    def test_its_scores_are_numbers_and_descend(self) -> None:
        for query, matches in self._ranked(self.tools()):
            scores = [match.score for match in matches]
            assert all(map(math.isfinite, scores)), f"its scores are {scores!r}, and not numbers; {_asked_was(query)}"
            assert scores == sorted(scores, reverse=True), f"its scores are {scores!r}; {_asked_was(query)}"

    def test_it_gives_no_more_matches_than_the_limit(self) -> None:
        for limit in _LIMITS:
            for query, matches in self._ranked(self.tools(), limit):
                assert len(matches) <= limit, f"limit={limit} gave {len(matches)}; {_asked_was(query)}"

    def test_the_order_of_the_tools_changes_no_score(self) -> None:
        tools = list(self.tools())
        shuffled = random.Random(7).sample(tools, len(tools))
        for other in (tools[::-1], shuffled):
            for (query, one), (_, two) in zip(self._ranked(tools), self._ranked(other), strict=True):
                same = {match.tool: round(match.score, 9) for match in one}
                found = {match.tool: round(match.score, 9) for match in two}
                assert found == same, f"in another order it gave {found!r}, not {same!r}; {_asked_was(query)}"

    def _ranked(self, tools: Toolset | list[Tool], limit: int = 1_000) -> list[tuple[Query, list[Match]]]:
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


async def _selected(selector: ToolSelector, messages: Query, tools: Iterable[Tool]) -> list[Tool]:
    found = list(await selector.select(messages, tools))
    assert all(isinstance(tool, Tool) for tool in found), (
        f"it gave {found!r}, which are not tools; {_asked_was(messages)}"
    )
    return found


@contextmanager
def _asker(selector: ToolSelector) -> Iterator[_Ask]:
    """Yield a function that asks a selector, in one loop: its clients may keep connections."""
    with asyncio.Runner() as runner:
        yield lambda messages, tools: runner.run(_selected(selector, messages, tools))


def _all_among(found: Sequence[Tool], tools: Iterable[Tool]) -> bool:
    return len(set(found)) == len(found) and set(found) <= set(tools)


def _asked_was(messages: object) -> str:
    return f"asked was {messages!r:.200}"


def _tool(name: str, description: str, parameters: Mapping[str, str]) -> Tool:
    properties = {key: {"type": "string", "description": said} for key, said in parameters.items()}
    schema = {"type": "object", "properties": properties}
    return build_tool({"name": name, "description": description, "input_schema": schema}, _execute)


async def _execute(arguments: Mapping[str, Any]) -> str:
    return "nothing"


@cache
def _catalogue() -> Toolset:
    return Toolset(_tool(name, *rest) for name, rest in _TOOLS.items())


@cache
def _a_thousand() -> Toolset:
    verbs = ("list", "count", "archive", "share", "rename")
    nouns = ("invoice", "photo", "ticket", "branch", "sensor", "playlist", "recipe", "flight")
    return Toolset(
        _tool(
            f"{verbs[at % 5]}_{nouns[at % 8]}_{at}",
            f"{verbs[at % 5]} the {nouns[at % 8]}s of group {at}.",
            {"id": "Which."},
        )
        for at in range(1_000)
    )
