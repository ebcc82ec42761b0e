"""Check the inputs of composed selectors, and the answers of the selectors inside."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, TypeAlias

from ferrule.definition.tool import Tool
from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError
from ferrule.security.similar_names import NameIndex
from ferrule.selection.matching import Match, Query, Ranker, ToolSelector

Tools: TypeAlias = Toolset | list[Tool] | tuple[Tool, ...]
"""Tools that can be read twice. A toolset stays the same object, because rankers cache data about it."""


def as_tools(tools: Iterable[Tool]) -> Tools:
    """Return the tools themselves if they can be read twice, else a list of them."""
    return tools if isinstance(tools, Toolset | list | tuple) else list(tools)


def as_count(owner: str, name: str, value: object) -> int:
    """Return `value` if it is a whole number above 0.

    Raises:
        DefinitionError: It is no whole number above 0.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise DefinitionError(f"{owner}: {name} is a whole number from 1, not {value!r}")
    return value


def as_selector(owner: str, selector: object) -> ToolSelector:
    """Return `selector` if it is a selector.

    Raises:
        DefinitionError: It is no selector, or a class instead of an instance.
    """
    if isinstance(selector, type) or not isinstance(selector, ToolSelector):
        raise DefinitionError(f"{owner} takes selectors, such as pinned('read_*') or keyword(8), not {selector!r}")
    return selector


def as_ranker(owner: str, selector: object) -> Ranker:
    """Return `selector` if it is a ranker.

    Raises:
        DefinitionError: It is no ranker.
    """
    if isinstance(selector, type) or not isinstance(selector, Ranker):
        raise DefinitionError(
            f"{owner} takes rankers, which have rank(tools, query, limit=…), such as keyword(), not {selector!r}"
        )
    return selector


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a suggestion like `; did you mean 'a' or 'b'?`; empty if no name is near."""
    near = NameIndex(known).find_nearest(name)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def list_always_offered(selector: object, tools: Tools) -> list[Tool]:
    """Return the tools that a selector offers for any messages, such as the pinned ones of `pinned`."""
    always = getattr(selector, "always", None)
    return list(always(tools)) if callable(always) else []


async def ask_selector(selector: ToolSelector, messages: Query, tools: Tools) -> list[Tool]:
    """Return the answer of a selector, each tool once.

    Raises:
        DefinitionError: The answer has something else than tools, or a tool that is not among `tools`.
    """
    asked: Any = selector.select(messages, tools)
    if not inspect.isawaitable(asked):
        raise DefinitionError(f"{selector!r} returned {repr(asked)[:200]}: write select as `async def`")
    answer: Any = await asked
    return _check_tools(selector, answer, tools)


async def ask_ranker(ranker: Ranker, tools: Tools, query: Query, limit: int) -> list[Match]:
    """Return the matches of a ranker, by `rank_async` if it has one.

    Raises:
        DefinitionError: As for `checked_matches`.
    """
    rank_async = getattr(ranker, "rank_async", None)
    if rank_async is None:
        return checked_matches(ranker, ranker.rank(tools, query, limit=limit), tools)
    return checked_matches(ranker, await rank_async(tools, query, limit=limit), tools)


def checked_matches(ranker: Ranker, matches: Iterable[Match], tools: Tools) -> list[Match]:
    """Return a ranker's answer, each tool once.

    Raises:
        DefinitionError: It has a tool that is not among `tools`.
    """
    found: dict[Tool, Match] = {}
    for match in matches:
        found.setdefault(match.tool, match)
    return [found[tool] for tool in _check_tools(ranker, found, tools)]


def _check_tools(selector: object, answer: Any, tools: Tools) -> list[Tool]:
    if isinstance(answer, str) or not isinstance(answer, Iterable):
        raise DefinitionError(
            f"{selector!r} returned {repr(answer)[:200]}; a selector returns some of the tools that it got"
        )
    known = set(tools)
    found: dict[Tool, None] = {}
    for tool in answer:
        if not isinstance(tool, Tool) or tool not in known:
            raise DefinitionError(
                f"{selector!r} returned {repr(tool)[:200]}, which is not one of the tools that it got"
            )
        found[tool] = None
    return list(found)
