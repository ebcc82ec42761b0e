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


class TestPinned(SelectorContract):
    def selector(self) -> ToolSelector:
        return pinned("read_*", "*_e*")


class TestEmbedding(SelectorContract):
    def selector(self) -> Ranker:
        return embedding(Embedder(), limit=5, batch=4)


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
    """`change` changes its answer; it knows the tools and how often it was asked."""

    def __init__(self, change: Callable[[list[Match], list[Tool], int], list[Match]]) -> None:
        super().__init__()
        self.change = change
        self.asked = 0

    def rank(self, tools: Iterable[Tool], query: Query, *, limit: int = 10) -> list[Match]:
        tools = list(tools)
        self.asked += 1
        return self.change(super().rank(tools, query, limit=limit), tools, self.asked)


class SelectsOtherwise(Overlap):
    """`change` sees the messages and the tools before it selects."""

    def __init__(self, change: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.change = change

    async def select(self, messages: Any, tools: Any) -> list[Tool]:
        changed = self.change(messages, tools)
        return await super().select(messages, tools) if changed is None else changed


class SharesState(Overlap):
    async def select(self, messages: Any, tools: Any) -> list[Tool]:
        self.messages = messages
        await asyncio.sleep(0)
        return await super().select(self.messages, tools)


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


NUMBERS = itertools.count()


class IsItsOwn(Overlap):
    """Every second one leaves out its first match."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped = next(NUMBERS) % 2

    async def select(self, messages: Any, tools: Any) -> list[Tool]:
        return (await super().select(messages, tools))[self.skipped :]


def read_one_form(messages: Any, tools: Any) -> None:
    messages if isinstance(messages, str) else messages[0]["content"]


def add_to_messages(messages: Any, tools: Any) -> None:
    if isinstance(messages, list):
        messages.append({"role": "user", "content": "x"})


def add_to_tools(messages: Any, tools: Any) -> None:
    if isinstance(tools, list):
        tools.append(spare)


def twist(change: Callable[[list[Match], list[Tool], int], list[Match]]) -> Callable[[], Twisted]:
    return lambda: Twisted(change)


def other(change: Callable[[Any, Any], Any]) -> Callable[[], SelectsOtherwise]:
    return lambda: SelectsOtherwise(change)


FOREIGN = twist(lambda found, tools, _: [Match(spare, 1.0)])
TWICE = twist(lambda found, tools, _: found * 2)
COPIES = twist(lambda found, tools, _: [m._replace(tool=m.tool.replace()) for m in found])
FEW = twist(lambda found, tools, _: found[: 1 // (len(tools) < 1_000)])
NOT_NUMBERS = twist(lambda found, tools, _: [m._replace(score=nan) for m in found])
FAULTS: list[tuple[str, Callable[[], Any], type[Exception], str]] = [
    ("has_an_async_select", NeverAwaited, AssertionError, "which cannot be awaited"),
    ("has_an_async_select", object, AssertionError, "has no select"),
    ("selects_given_tools", COPIES, AssertionError, "it gave [<Tool"),
    ("selects_given_tools", twist(lambda *_: [Match("a name", 1.0)]), AssertionError, "which are not tools"),
    ("selects_given_tools", TWICE, AssertionError, "it gave ["),
    ("selects_given_tools", other(read_one_form), LookupError, "content"),
    ("selects_given_tools", FEW, ZeroDivisionError, "division"),
    ("no_tools_select", twist(lambda found, *_: found or [Match(spare, 1.0)]), AssertionError, "it gave [<Tool spare"),
    ("one_tool", FOREIGN, AssertionError, "alone it gave [<Tool spare"),
    ("the_same_query", twist(lambda found, _, asked: found[asked % 2 :]), AssertionError, ", and then ["),
    ("the_same_query", IsItsOwn, AssertionError, ", and a new one ["),
    ("concurrent_queries", SharesState, AssertionError, "beside others, and alone"),
    ("are_not_changed", other(add_to_messages), AssertionError, "it changed the messages"),
    ("are_not_changed", other(add_to_tools), AssertionError, "it made ["),
    ("an_iterator", other(lambda messages, tools: None if len(tools) else []), TypeError, "has no len()"),
    ("an_iterator", other(lambda messages, tools: None if list(tools) else []), AssertionError, "it gave [], not ["),
    ("leave_no_trace", KeepsTheFirstTools, AssertionError, ", and a new one ["),
    ("matches_are_given_tools", TWICE, AssertionError, "it gave ["),
    ("descend", twist(lambda found, *_: found[::-1]), AssertionError, "its scores are [1.0, 2.0"),
    ("descend", NOT_NUMBERS, AssertionError, "and not numbers"),
    ("than_the_limit", NoLimit, AssertionError, "limit="),
    (
        "order_of_the_tools",
        twist(lambda found, tools, _: [m for m in found if m.tool != tools[0]]),
        AssertionError,
        "in another order it gave",
    ),
]
"""A part of the name of a test, a selector that breaks its law, and how that fails."""


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
