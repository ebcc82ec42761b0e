"""`chain`: the tools of several selectors, one selector after the other."""

from __future__ import annotations

from collections.abc import Iterable

from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError
from ferrule.selection._checks import as_selector, as_tools, ask_selector, list_always_offered
from ferrule.selection.matching import Query, ToolSelector


def chain(*selectors: ToolSelector) -> ToolSelector:
    """Return a selector for the tools of each of these, in their order, each tool once. See docs/selection.md.

        selector = chain(pinned("read_*"), keyword(8))

    Raises:
        DefinitionError: An argument is no selector, or there is none.

    Its `select` raises `DefinitionError` if a selector returns a tool from outside.
    """
    if not selectors:
        raise DefinitionError("chain() selects nothing: give it selectors, such as chain(pinned('read_*'), keyword(8))")
    return _Chain(tuple(as_selector("chain", one) for one in selectors))


class _Chain:
    def __init__(self, selectors: tuple[ToolSelector, ...]) -> None:
        self._selectors = selectors

    async def select(self, messages: Query, tools: Iterable[Tool]) -> list[Tool]:
        every = as_tools(tools)
        found: dict[Tool, None] = {}
        for selector in self._selectors:
            found.update(dict.fromkeys(await ask_selector(selector, messages, every)))
        return list(found)

    def always(self, tools: Iterable[Tool]) -> list[Tool]:
        """Return the tools that are offered for any messages."""
        every = as_tools(tools)
        return list(dict.fromkeys(tool for one in self._selectors for tool in list_always_offered(one, every)))

    def __repr__(self) -> str:
        return f"chain({', '.join(map(repr, self._selectors))})"
