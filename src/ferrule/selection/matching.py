"""The shapes of a selector, a ranker and a ranker's match."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from ferrule.definition.tool import Tool

Query: TypeAlias = str | Sequence[Mapping[str, Any]]
"""The request to find tools for: a text, or the messages of a conversation in any API's form. See docs/selection.md."""


class Match(NamedTuple):
    """A tool found by a ranker, and its score. See docs/selection.md."""

    tool: Tool
    score: float
    """More is better. It compares the tools of one answer, and says nothing across queries or rankers."""


@runtime_checkable
class ToolSelector(Protocol):
    """A selector: it chooses the tools to offer to a model. See docs/selection.md."""

    async def select(self, messages: Query, tools: Iterable[Tool]) -> Iterable[Tool]:
        """Return those of `tools` to offer for these messages, the best first; never others."""
        ...


@runtime_checkable
class Ranker(ToolSelector, Protocol):
    """A selector that can also score each tool. See docs/selection.md."""

    def rank(self, tools: Iterable[Tool], query: Query, *, limit: int = 10) -> list[Match]:
        """Return the `limit` best tools, the best first; fewer if fewer fit at all."""
        ...
