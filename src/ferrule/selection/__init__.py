"""Selection: offer a model a few tools out of many. Each file is one selector.

A selector is any object of this shape. A ranker also has `rank`:

    class Newest:
        async def select(self, messages, tools):
            return list(tools)[-10:]

Selectors compose: a selector around other selectors is one again.

    chain(pinned("read_*"), keyword(8))                    these always, and those that fit best
    by_budget(8_000, hybrid(keyword(), embedding(embed)))  as many as there are tokens for
"""

from __future__ import annotations

from ferrule.definition.tokens import definition_tokens
from ferrule.selection.by_budget import by_budget
from ferrule.selection.chain import chain
from ferrule.selection.embedding import Embed, embedding
from ferrule.selection.evaluation import LabelledQuery, evaluate, read_queries, read_tools
from ferrule.selection.hybrid import hybrid
from ferrule.selection.keyword import keyword
from ferrule.selection.matching import Match, Query, Ranker, ToolSelector
from ferrule.selection.pinned import pinned
from ferrule.selection.search_tool import list_found_tools, search_tool
from ferrule.selection.selector_names import discover_selectors, selector_from_name

__all__ = [
    "Embed",
    "LabelledQuery",
    "Match",
    "Query",
    "Ranker",
    "ToolSelector",
    "by_budget",
    "chain",
    "definition_tokens",
    "discover_selectors",
    "embedding",
    "evaluate",
    "list_found_tools",
    "hybrid",
    "keyword",
    "selector_from_name",
    "pinned",
    "read_queries",
    "read_tools",
    "search_tool",
]
