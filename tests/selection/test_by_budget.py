"""`by_budget` keeps to its tokens, gives pinned tools and the search tool their place, or says why it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from catalogue import SEARCH, SHOP, names
from hypothesis import given
from hypothesis import strategies as st
from rankers import Overlap

from ferrule import DefinitionError, Tool, Toolset
from ferrule.selection import Query, ToolSelector, by_budget, chain, definition_tokens, pinned

ALL = Toolset([*SHOP, SEARCH])
COSTS = {"refund_order": 40, "read_order": 30, "read_parcel": 20, "send_email": 25, "weather": 5, "search_tools": 10}


class InOrder:
    """Gives these tools, by name."""

    def __init__(self, *names: str) -> None:
        self.names = names

    async def select(self, messages: Query, tools: Iterable[Tool]) -> list[Tool]:
        by_name = {tool.name: tool for tool in tools}
        return [by_name[name] for name in self.names]


def cost(tool: Tool) -> int:
    return COSTS[tool.name]


def selected(tokens: int, selector: ToolSelector, tools: Iterable[Tool] = ALL) -> list[str]:
    return names(asyncio.run(by_budget(tokens, selector, count=cost).select("", tools)))


def test_otherwise_the_search_tool_comes_first_then_what_fits() -> None:
    wanted = InOrder("read_order", "refund_order", "send_email", "read_parcel", "weather")
    assert selected(70, wanted) == ["search_tools", "read_order", "send_email", "weather"]
    assert selected(10, wanted) == ["search_tools"]
    assert selected(20, InOrder("weather", "search_tools")) == ["search_tools", "weather"]
    assert selected(60, wanted, SHOP) == ["read_order", "send_email", "weather"]


def test_pinned_tools_keep_their_place_and_order() -> None:
    late = chain(InOrder("send_email", "weather", "read_parcel"), pinned("read_order"))
    early = chain(pinned("weather", "read_order"), InOrder("send_email"))
    assert selected(70, early) == ["search_tools", "read_order", "weather", "send_email"]
    assert selected(70, late) == ["search_tools", "send_email", "weather", "read_order"]
    assert selected(70, chain(pinned("search_tools", "weather"))) == ["search_tools", "weather"]


def test_a_budget_below_the_pinned_tools_is_an_error() -> None:
    said = r"by_budget\(39\): .* take 40 tokens: search_tools \(10\), read_order \(30\); give at least as many, or pin"
    with pytest.raises(DefinitionError, match=said):
        selected(39, chain(pinned("read_order"), Overlap()))
    with pytest.raises(DefinitionError, match="take 60 tokens"):
        selected(50, by_budget(999, chain(InOrder(), pinned("read_*")), count=lambda tool: 1))


@given(st.permutations(names(SHOP)), st.integers(10, 130))
def test_it_keeps_to_its_tokens_and_the_order_of_the_selector(order: list[str], tokens: int) -> None:
    found = selected(tokens, InOrder(*order))
    assert sum(COSTS[name] for name in found) <= tokens
    if tokens >= 120:  # all fit
        assert found == names(SHOP)
    else:
        assert found == ["search_tools", *(name for name in order if name in found)]


async def test_each_tool_is_counted_once() -> None:
    counted: list[str] = []

    def counts(tool: Tool) -> int:
        counted.append(tool.name)
        return 30

    selector = by_budget(100, Overlap(), count=counts)
    for _ in range(3):
        await selector.select("the weather", ALL)
    assert sorted(counted) == sorted(names(ALL))


def test_without_a_count_tokens_are_estimated() -> None:
    exact = sum(map(definition_tokens, SHOP))
    assert names(asyncio.run(by_budget(exact, Overlap()).select("order", SHOP))) == names(SHOP)
    assert len(names(asyncio.run(by_budget(exact - 1, Overlap()).select("order", SHOP)))) < len(SHOP)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(DefinitionError, match="by_budget: tokens is a whole number from 1"):
        by_budget(0, Overlap())
    with pytest.raises(DefinitionError, match="by_budget takes selectors"):
        by_budget(8_000, "keyword")  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="count is a function of a tool"):
        by_budget(8_000, Overlap(), count=4)  # type: ignore[arg-type]
    for count in (-1, 2.5):
        with pytest.raises(DefinitionError, match=r"count returned .* for <Tool refund_order>"):
            asyncio.run(by_budget(5, Overlap(), count=lambda tool, count=count: count).select("", SHOP))
