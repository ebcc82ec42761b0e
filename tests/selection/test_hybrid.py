"""`hybrid` puts rankings together by places, with the scores that the paper gives."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import pytest
from catalogue import SHOP, made, names
from rankers import Overlap, vector

from ferrule import DefinitionError, Tool, Toolset
from ferrule.selection import Match, Query, embedding, hybrid, pinned


class Ranks:
    """Ranks by a table of scores."""

    def __init__(self, **scores: float) -> None:
        self.scores = scores
        self.limits: list[int] = []

    def rank(self, tools: Iterable[Tool], query: Query, *, limit: int = 10) -> list[Match]:
        self.limits.append(limit)
        found = [Match(tool, self.scores[tool.name]) for tool in tools if tool.name in self.scores]
        return sorted(found, key=lambda match: -match.score)[:limit]

    async def select(self, messages: Query, tools: Iterable[Tool]) -> list[Tool]:
        return [match.tool for match in self.rank(tools, messages)]


def fused(*rankers: Any, tools: Iterable[Tool] = SHOP, limit: int = 10) -> dict[str, float]:
    return {match.tool.name: match.score for match in hybrid(*rankers).rank(tools, "x", limit=limit)}


def test_a_score_is_the_sum_of_one_by_sixty_and_the_place() -> None:
    one, two = Ranks(weather=9, send_email=1), Ranks(send_email=0.3, read_order=0.2, weather=0.1)
    assert fused(one, two) == {
        "send_email": pytest.approx(1 / 62 + 1 / 61),
        "weather": pytest.approx(1 / 61 + 1 / 63),
        "read_order": pytest.approx(1 / 62),
    }
    assert list(fused(one, two)) == ["send_email", "weather", "read_order"]


def test_equal_scores_share_a_place_in_toolset_order() -> None:
    found = fused(Ranks(weather=2, send_email=2, read_order=1))
    assert found == {"send_email": 1 / 61, "weather": 1 / 61, "read_order": 1 / 63}
    assert list(found) == ["send_email", "weather", "read_order"]


def test_each_ranking_is_read_to_its_hundredth_place() -> None:
    many = Toolset(made(f"tool_{number}") for number in range(150))
    low, high = Ranks(**{f"tool_{n}": 150 - n for n in range(150)}), Ranks(tool_99=1, tool_100=0.5)
    assert list(fused(low, high, tools=many, limit=1)) == ["tool_99"]
    assert fused(low, high, tools=many, limit=120)["tool_100"] == pytest.approx(1 / 161 + 1 / 62)
    assert low.limits == [100, 120]


async def test_select_awaits_async_rankers_and_keeps_its_limit() -> None:
    threads: list[threading.Thread] = []

    async def embed(texts: list[str]) -> list[list[float]]:
        threads.append(threading.current_thread())
        return list(map(vector, texts))

    selector = hybrid(Overlap(), hybrid(embedding(embed)), limit=2)
    assert names(await selector.select("refund the order", SHOP)) == ["refund_order", "read_order"]
    assert threads == [threading.main_thread()] * 2


def test_a_match_of_a_tool_that_was_not_given_is_an_error() -> None:
    class Foreign(Ranks):
        def rank(self, tools: Iterable[Tool], query: Query, *, limit: int = 10) -> list[Match]:
            return [Match(made("other"), 1.0)]

    with pytest.raises(DefinitionError, match="not one of the tools"):
        hybrid(Foreign()).rank(SHOP, "x")


@pytest.mark.parametrize(
    ("rankers", "limit", "error"),
    [
        ([pinned("a")], 8, r"hybrid takes rankers, which have rank\(tools, query, limit=…\)"),
        ([Overlap()], 0, "hybrid: limit is a whole number from 1"),
        ([], 8, "ranks nothing"),
    ],
)
def test_wrong_arguments_are_refused(rankers: Any, limit: Any, error: str) -> None:
    with pytest.raises(DefinitionError, match=error):
        hybrid(*rankers, limit=limit)
