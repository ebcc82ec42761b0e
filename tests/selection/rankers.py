"""Rankers and embeddings of the tests' own, small enough to see what they do."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable

from ferrule import Tool
from ferrule.selection import Match, Query
from ferrule.selection._conversation import read_conversation

LENGTH = 32


def words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.casefold())


class Overlap:
    """How many words of the query a tool's name and description have."""

    def __init__(self, limit: int = 8) -> None:
        self.limit = limit

    def rank(self, tools: Iterable[Tool], query: Query, *, limit: int = 10) -> list[Match]:
        asked = set(words(read_conversation(query).user))
        matches = [Match(tool, float(len(asked & {*words(f"{tool.name} {tool.description}")}))) for tool in tools]
        return sorted((match for match in matches if match.score), key=lambda match: -match.score)[:limit]

    async def select(self, messages: Query, tools: Iterable[Tool]) -> list[Tool]:
        return [match.tool for match in self.rank(tools, messages, limit=self.limit)]


class Embedder:
    """A vector counts the words of a text, by a hash of each. `asked` has the texts of each call."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def __call__(self, texts: list[str]) -> list[list[float]]:
        self.asked.append(list(texts))
        return [vector(text) for text in texts]

    async def later(self, texts: list[str]) -> list[list[float]]:
        return self(texts)

    @property
    def texts(self) -> list[str]:
        return [text for texts in self.asked for text in texts]


def vector(text: str) -> list[float]:
    counts = [0.0] * LENGTH
    for word in words(text):
        counts[zlib.crc32(word.encode("utf-8", "replace")) % LENGTH] += 1
    return counts
