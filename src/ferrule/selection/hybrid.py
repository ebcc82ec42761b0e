"""`hybrid`: several rankings as one, by a tool's places in them."""

from __future__ import annotations

from collections.abc import Iterable
from math import fsum

from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError
from ferrule.selection._checks import Tools, as_count, as_ranker, as_tools, ask_ranker, checked_matches
from ferrule.selection.matching import Match, Query, Ranker

_K = 60
_DEPTH = 100
"""The least number of tools to read from each ranking: a tool that is low in one may be high in another."""


def hybrid(*rankers: Ranker, limit: int = 8) -> Ranker:
    """Return a ranker for tools that are high in several rankings, by reciprocal rank fusion.

    See docs/selection.md.

        selector = hybrid(keyword(), embedding(embed), limit=8)

    A score is the sum of 1 / (60 + place) over the rankings that have the tool; scores of different rankers are not
    compared. Tools with equal scores in a ranking share the place of the first of them; in the answer, ties are in the
    order of the toolset.

    Args:
        rankers: Each returns its first 100. A ranker that has to wait also has `async rank_async(tools, query, *,
            limit)`, and `select` awaits it.
        limit: The most tools from `select`.

    Raises:
        DefinitionError: An argument is no ranker, there is none, or `limit` is wrong.
    """
    if not rankers:
        raise DefinitionError("hybrid() ranks nothing: give it rankers, such as hybrid(keyword(), embedding(embed))")
    return _Hybrid(tuple(as_ranker("hybrid", one) for one in rankers), as_count("hybrid", "limit", limit))


class _Hybrid:
    def __init__(self, rankers: tuple[Ranker, ...], limit: int) -> None:
        self._rankers = rankers
        self._limit = limit

    async def select(self, messages: Query, tools: Iterable[Tool]) -> list[Tool]:
        return [match.tool for match in await self.rank_async(tools, messages, limit=self._limit)]

    def rank(self, tools: Iterable[Tool], query: Query, *, limit: int = 10) -> list[Match]:
        every, depth = as_tools(tools), max(_DEPTH, limit)
        lists = [checked_matches(one, one.rank(every, query, limit=depth), every) for one in self._rankers]
        return _fuse(every, lists, limit)

    async def rank_async(self, tools: Iterable[Tool], query: Query, *, limit: int = 10) -> list[Match]:
        """Return the same as `rank`, without blocking the loop."""
        every, depth = as_tools(tools), max(_DEPTH, limit)
        return _fuse(every, [await ask_ranker(one, every, query, depth) for one in self._rankers], limit)

    def __repr__(self) -> str:
        return f"hybrid({', '.join(map(repr, self._rankers))}, limit={self._limit})"


def _fuse(tools: Tools, lists: list[list[Match]], limit: int) -> list[Match]:
    shares: dict[Tool, list[float]] = {}
    for matches in lists:
        place, last = 0, None
        for position, match in enumerate(matches, 1):
            if match.score != last:
                place, last = position, match.score
            shares.setdefault(match.tool, []).append(1 / (_K + place))
    # fsum: the same places give one score in any order of the rankings; before Python 3.12 `sum` does not.
    fused = [Match(tool, fsum(shares[tool])) for tool in dict.fromkeys(tools) if tool in shares]
    return sorted(fused, key=lambda match: -match.score)[:limit]
