"""A ranker that is small enough to be seen through: how many words of the query a name or a description has."""

from __future__ import annotations

from collections.abc import Iterable

from ferrule import Tool
from ferrule.selection import Match, Query


class ByWords:
    """Ranks by words in common; with none it finds nothing."""

    async def select(self, messages: Query, tools: Iterable[Tool]) -> list[Tool]:
        return [match.tool for match in self.rank(tools, messages)]

    def rank(self, tools: Iterable[Tool], query: Query, *, limit: int = 10) -> list[Match]:
        text = query if isinstance(query, str) else " ".join(str(message.get("content")) for message in query)
        words = set(text.lower().split())
        found = [Match(tool, len(words & set(f"{tool.name} {tool.description}".lower().split()))) for tool in tools]
        return sorted((match for match in found if match.score), key=lambda match: -match.score)[:limit]
