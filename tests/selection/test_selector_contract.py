"""Every selector keeps the contract; and the contract finds each fault that it is about."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable, Iterable
from math import nan
from typing import Any

import pytest
from rankers import Embedder, Overlap

from ferrule import DefinitionError, Tool, tool
from ferrule.selection import Match, Query, Ranker, ToolSelector, by_budget, chain, embedding, hybrid, pinned
from ferrule.testing import SelectorContract


class TestOverlap(SelectorContract):
    def selector(self) -> Ranker:
        return Overlap()


class TestPinned(SelectorContract):
    def selector(self) -> ToolSelector:
        return pinned("read_*", "*_e*")


class TestEmbedding(SelectorContract):
    def selector(self) -> Ranker:
        return embedding(Embedder(), limit=5, batch=4)


class TestAsyncEmbedding(SelectorContract):
    def selector(self) -> Ranker:
        return embedding(Embedder().later)


class TestCachedEmbedding(SelectorContract):
    @pytest.fixture(autouse=True)
    def _a_file(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self.file = tmp_path_factory.mktemp("cache") / "vectors.db"

    def selector(self) -> Ranker:
        return embedding(Embedder(), cache=self.file, name="words")


class TestHybrid(SelectorContract):
    def selector(self) -> Ranker:
        return hybrid(Overlap(), embedding(Embedder()), limit=4)


class TestByBudget(SelectorContract):
    def selector(self) -> ToolSelector:
        return by_budget(200, Overlap(50))


class TestChain(SelectorContract):
    def selector(self) -> ToolSelector:
        return chain(pinned("read_*"), by_budget(150, hybrid(Overlap(), embedding(Embedder()))))


@tool
async def spare() -> None:
    """A tool that nobody was given."""


class Twisted(Overlap):
    """`twist` changes its answer, which knows the tools and how often it was asked."""

    def __init__(self, twist: Callable[[list[Match], list[Tool], int], list[Match]]) -> None:
        super().__init__()
        self.twist = twist
        self.asked = 0

    def rank(self, tools: Iterable[Tool], query: Query, *, limit: int = 10) -> list[Match]:
        tools = list(tools)
        self.asked += 1
        return self.twist(super().rank(tools, query, limit=limit), tools, self.asked)


class ReadsOneForm(Overlap):
    async def select(self, messages: Any, tools: Any) -> list[Tool]:
        return await super().select(messages if isinstance(messages, str) else messages[0]["content"], tools)


class AddsToMessages(Overlap):
    async def select(self, messages: Any, tools: Any) -> list[Tool]:
        if isinstance(messages, list):
            messages.append({"role": "user", "content": "x"})
        return await super().select(messages, tools)


class SharesState(Overlap):
    async def select(self, messages: Any, tools: Any) -> list[Tool]:
        self.messages = messages
        await asyncio.sleep(0)
        return await super().select(self.messages, tools)


class NeedsLength(Overlap):
    async def select(self, messages: Any, tools: Any) -> list[Tool]:
        return await super().select(messages, tools) if len(tools) else []


class KeepsTheFirstTools(Overlap):
    known: list[Tool] | None = None

    async def select(self, messages: Any, tools: Any) -> list[Tool]:
        tools = list(tools)
        self.known = self.known or tools
        return [found for found in await super().select(messages, tools) if found in self.known]


class NeverAwaited(Overlap):
    def select(self, messages: Any, tools: Any) -> Any:
        return list(tools)


class NoLimit(Overlap):
    def rank(self, tools: Iterable[Tool], query: Query, *, limit: int = 10) -> list[Match]:
        return super().rank(tools, query, limit=99)


class AddsToTools(Overlap):
    async def select(self, messages: Any, tools: Any) -> list[Tool]:
        if isinstance(tools, list):
            tools.append(spare)
        return await super().select(messages, tools)


class ReadsThemTwice(Overlap):
    async def select(self, messages: Any, tools: Any) -> list[Tool]:
        return await super().select(messages, tools) if list(tools) else []


NUMBERS = itertools.count()


class IsItsOwn(Overlap):
    """Every second one leaves out what it has found first."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped = next(NUMBERS) % 2

    async def select(self, messages: Any, tools: Any) -> list[Tool]:
        return (await super().select(messages, tools))[self.skipped :]


def twisted(twist: Callable[[list[Match], list[Tool], int], list[Match]]) -> Callable[[], Twisted]:
    return lambda: Twisted(twist)


FAULTS: list[tuple[str, Callable[[], Any], type[Exception], str]] = [
    ("has_an_async_select", NeverAwaited, AssertionError, "which cannot be awaited"),
    ("has_an_async_select", object, AssertionError, "has no select"),
    ("has_an_async_select", lambda: Overlap, AssertionError, "has no select"),
    (
        "selects_given_tools",
        twisted(lambda found, tools, _: [m._replace(tool=m.tool.replace()) for m in found]),
        AssertionError,
        "it gave [<Tool",
    ),
    (
        "selects_given_tools",
        twisted(lambda found, tools, _: [Match("a name", 1.0)]),
        AssertionError,
        "which are not tools",
    ),  # type: ignore[arg-type]
    ("selects_given_tools", twisted(lambda found, tools, _: found * 2), AssertionError, "it gave ["),
    (
        "no_tools_select",
        twisted(lambda found, tools, _: found or [Match(spare, 1.0)]),
        AssertionError,
        "it gave [<Tool spare",
    ),
    (
        "one_tool",
        twisted(lambda found, tools, _: [Match(spare, 1.0)]),
        AssertionError,
        "alone it gave [<Tool spare",
    ),
    ("selects_given_tools", ReadsOneForm, LookupError, "content"),
    (
        "selects_given_tools",
        twisted(lambda found, tools, _: [Match(spare, 1.0)]),
        AssertionError,
        "it gave [<Tool spare",
    ),
    ("the_same_query", twisted(lambda found, tools, asked: found[asked % 2 :]), AssertionError, ", and then ["),
    ("the_same_query", IsItsOwn, AssertionError, ", and a new one ["),
    ("concurrent_queries", SharesState, AssertionError, "beside others, and alone"),
    ("are_not_changed", AddsToMessages, AssertionError, "it changed the messages"),
    ("are_not_changed", AddsToTools, AssertionError, "it made ["),
    ("an_iterator", NeedsLength, TypeError, "has no len()"),
    ("an_iterator", ReadsThemTwice, AssertionError, "it gave [], not ["),
    ("leave_no_trace", KeepsTheFirstTools, AssertionError, ", and a new one ["),
    (
        "selects_given_tools",
        twisted(lambda found, tools, _: found[: 1 // (len(tools) < 1_000)]),
        ZeroDivisionError,
        "division",
    ),
    ("selects_given_tools", twisted(lambda found, tools, _: found * 2), AssertionError, "it gave ["),
    ("matches_are_given_tools", twisted(lambda found, tools, _: found * 2), AssertionError, "it gave ["),
    ("descend", twisted(lambda found, tools, _: found[::-1]), AssertionError, "its scores are [1.0, 2.0"),
    (
        "descend",
        twisted(lambda found, tools, _: [m._replace(score=nan) for m in found]),
        AssertionError,
        "and not numbers",
    ),
    ("than_the_limit", NoLimit, AssertionError, "limit="),
    (
        "order_of_the_tools",
        twisted(lambda found, tools, _: [m for m in found if m.tool != tools[0]]),
        AssertionError,
        "in another order it gave",
    ),
]
"""A part of the name of a test, a selector that breaks what it is about, and how that fails."""


@pytest.mark.parametrize(("law", "make", "error", "said"), FAULTS)
def test_the_contract_finds_a_fault(law: str, make: Callable[[], Any], error: type[Exception], said: str) -> None:
    class Theirs(SelectorContract):
        def selector(self) -> Any:
            return make()

    (name,) = (name for name in dir(Theirs) if name.startswith("test_") and law in name)
    with pytest.raises(error, match=re.escape(said)):
        getattr(Theirs(), name)()


def test_each_law_has_a_fault_that_breaks_it() -> None:
    laws = [name for name in dir(SelectorContract) if name.startswith("test_")]
    assert [name for name in laws if not any(law in name for law, *_ in FAULTS)] == []


def test_a_class_without_a_selector_says_what_is_missing() -> None:
    with pytest.raises(DefinitionError, match=r"SelectorContract needs a method selector\(self\)"):
        SelectorContract().test_no_tools_select_none()


def test_a_failure_says_what_was_asked_and_what_was_given() -> None:
    class Theirs(SelectorContract):
        def selector(self) -> ToolSelector:
            return Twisted(lambda found, tools, _: found * 2)

    with pytest.raises(AssertionError, match=r"it gave \[<Tool refund_order>.*asked was 'Send Ada an email"):
        Theirs().test_it_selects_given_tools_each_once()
