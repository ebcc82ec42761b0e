"""`by_budget`: as many tools as there are tokens for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from weakref import WeakKeyDictionary

from ferrule.definition.tokens import definition_tokens
from ferrule.definition.tool import Tool
from ferrule.definition.toolset import SEARCH_TAG
from ferrule.errors import DefinitionError
from ferrule.selection._checks import as_count, as_selector, as_tools, ask_selector, list_always_offered
from ferrule.selection.keyword import keyword
from ferrule.selection.matching import Query, ToolSelector

_MOST_RANKED = 200
"""The number of tools from the default selector, before the budget is applied."""


def by_budget(
    tokens: int, selector: ToolSelector | None = None, *, count: Callable[[Tool], int] | None = None
) -> ToolSelector:
    """Return a selector for tools with definitions of at most `tokens` tokens. See docs/selection.md#by_budget.

        selector = by_budget(8_000, chain(pinned("read_*"), keyword(50)))

    If all tools fit, it offers all in the order of the toolset, and no search tool (one with the tag `tool_search`).
    Otherwise the search tools come first, then the tools of `selector`, in its order. A tool that is too large for the
    rest is skipped, and smaller ones behind it may fit. Search tools, and the tools that `pinned` pins in a `chain`,
    always have their place.

    Args:
        tokens: The most tokens of all definitions together.
        selector: The selector of the first tools to offer; `keyword()` by default.
        count: Return the tokens of a tool's definition; `definition_tokens` by default. Called once for each tool.

    Raises:
        DefinitionError: `tokens` is wrong, `selector` is no selector, or `count` cannot be called.

    Its `select` raises `DefinitionError` if the search tools and the pinned ones alone take more than `tokens`, if
    `selector` returns a tool from outside, and if `count` returns no whole number from 0.
    """
    if count is not None and not callable(count):
        raise DefinitionError(f"by_budget: count is a function of a tool that gives its tokens, not {count!r}")
    inner = keyword(_MOST_RANKED) if selector is None else as_selector("by_budget", selector)
    return _ByBudget(as_count("by_budget", "tokens", tokens), inner, count or definition_tokens)


class _ByBudget:
    def __init__(self, tokens: int, selector: ToolSelector, count: Callable[[Tool], int]) -> None:
        self._tokens = tokens
        self._selector = selector
        self._count = count
        self._counted: WeakKeyDictionary[Tool, int] = WeakKeyDictionary()

    async def select(self, messages: Query, tools: Iterable[Tool]) -> list[Tool]:
        every = as_tools(tools)
        offered = {tool: None for tool in every if SEARCH_TAG in tool.tags}
        others = [tool for tool in dict.fromkeys(every) if tool not in offered]
        if sum(map(self._count_tokens, others)) <= self._tokens:
            return others
        reserved = offered | dict.fromkeys(list_always_offered(self._selector, every))
        left = self._reserve_tokens(list(reserved))
        for tool in await ask_selector(self._selector, messages, every):
            if tool not in reserved:
                if self._count_tokens(tool) > left:
                    continue
                left -= self._count_tokens(tool)
            offered[tool] = None
        return list(offered)

    def always(self, tools: Iterable[Tool]) -> list[Tool]:
        """Return the tools that are offered for any messages."""
        return list_always_offered(self._selector, as_tools(tools))

    def _reserve_tokens(self, reserved: list[Tool]) -> int:
        needed = sum(map(self._count_tokens, reserved))
        if needed > self._tokens:
            which = ", ".join(f"{tool.name} ({self._count_tokens(tool):,})" for tool in reserved[:10])
            more = f" and {len(reserved) - 10} more" if len(reserved) > 10 else ""
            raise DefinitionError(
                f"by_budget({self._tokens}): the search tools and those that are pinned take {needed:,} tokens: "
                f"{which}{more}; give at least as many, or pin fewer"
            )
        return self._tokens - needed

    def _count_tokens(self, tool: Tool) -> int:
        tokens = self._counted.get(tool)
        if tokens is None:
            tokens = self._count(tool)
            if not isinstance(tokens, int) or tokens < 0:  # type: ignore[redundant-expr]
                raise DefinitionError(
                    f"by_budget: count returned {tokens!r} for {tool!r}; it returns a whole number from 0"
                )
            self._counted[tool] = tokens
        return tokens

    def __repr__(self) -> str:
        return f"by_budget({self._tokens}, {self._selector!r})"
