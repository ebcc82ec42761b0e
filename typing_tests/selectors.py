"""What selectors look like to a type checker: those of Ferrule, and one's own. It is checked and never run."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import assert_type

from ferrule import Tool, Toolset, tool
from ferrule.selection import (
    Embed,
    Match,
    Query,
    Ranker,
    ToolSelector,
    by_budget,
    chain,
    embedding,
    hybrid,
    pinned,
    selector_from_name,
)
from ferrule.testing import SelectorContract


@tool
async def weather(city: str) -> str:
    """The weather."""
    return city


class Newest:
    async def select(self, messages: Query, tools: Iterable[Tool]) -> list[Tool]:
        return list(tools)[-3:]


class Longest:
    def rank(self, tools: Iterable[Tool], query: Query, *, limit: int = 10) -> list[Match]:
        return [Match(one, float(len(one.description))) for one in tools][:limit]

    async def select(self, messages: Query, tools: Iterable[Tool]) -> Iterable[Tool]:
        return (match.tool for match in self.rank(tools, messages))


def embed(texts: list[str]) -> list[list[float]]:
    return [[float(len(text))] for text in texts]


async def embed_later(texts: list[str]) -> list[list[float]]:
    return embed(texts)


def embed_as_arrays(texts: list[str]) -> list[array[float]]:
    return [array("f", row) for row in embed(texts)]


async def embed_as_tuples(texts: list[str]) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, embed(texts)))


def count(tool: Tool) -> int:
    return len(tool.name)


forms: list[Embed] = [embed, embed_later, embed_as_arrays, embed_as_tuples]
rankers: list[Ranker] = [
    embedding(embed, limit=4, batch=16),
    embedding(embed_later, cache="vectors.db", name="a-model"),
    embedding(embed_as_arrays, cache=Path("vectors.db"), name="a-model"),
    Longest(),
    hybrid(Longest(), embedding(embed_as_tuples), limit=5),
]
selectors: list[ToolSelector] = [
    *rankers,
    Newest(),
    pinned("read_*", "weather", tags=["core"]),
    chain(pinned(tags={"core"}), Newest(), hybrid(*rankers)),
    by_budget(8_000),
    by_budget(8_000, Newest(), count=count),
    selector_from_name("pinned:weather"),
]


class TestNewest(SelectorContract):
    def selector(self) -> ToolSelector:
        return Newest()

    def tools(self) -> Toolset:
        return Toolset([weather])


async def used() -> None:
    for selector in selectors:
        offered = Toolset(await selector.select("the weather", Toolset([weather])))
        assert_type(await selector.select([{"role": "user", "content": "x"}], [weather, *offered]), Iterable[Tool])
    for ranker in rankers:
        for found, score in ranker.rank([weather], "the weather", limit=3):
            assert_type(found.name, str)
            assert_type(score, float)
