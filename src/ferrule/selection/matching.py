"""The shapes: what selects tools, what ranks them, and what a ranker finds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from ferrule.definition.tool import Tool

Query: TypeAlias = str | Sequence[Mapping[str, Any]]
"""What tools are looked for: a text, or the messages of a conversation in any API's form. See docs/selection.md."""


class Match(NamedTuple):
    """A tool that was found, and how well it fits. See docs/selection.md."""

    tool: Tool
    score: float
    """More is better. It compares the tools of one answer, and says nothing across queries or rankers."""


@runtime_checkable
class ToolSelector(Protocol):
    """What chooses the tools that a model is offered. See docs/selection.md."""

    async def select(self, messages: Query, tools: Iterable[Tool]) -> Iterable[Tool]:
        """Those of `tools` to offer for these messages, the best first; never others."""
        ...


@runtime_checkable
class Ranker(ToolSelector, Protocol):
    """A selector that can also say how well each tool fits. See docs/selection.md."""

    def rank(self, tools: Iterable[Tool], query: Query, *, limit: int = 10) -> list[Match]:
        """The `limit` tools that fit best, the best first; fewer where fewer fit at all."""
        ...
