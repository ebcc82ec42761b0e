"""`pinned`: the same tools for any messages."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable
from weakref import WeakKeyDictionary

from ferrule.definition.tool import Tool
from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError
from ferrule.selection._checks import did_you_mean
from ferrule.selection.matching import Query, ToolSelector

_WILDCARDS = frozenset("*?[")


def pinned(*names: str, tags: Iterable[str] | None = None) -> ToolSelector:
    """Return a selector that always offers these tools, in the order of the toolset. See docs/selection.md.

        selector = chain(pinned("read_*", "search"), keyword(8))

    Args:
        names: Names, or globs of names.
        tags: Select tools with one of these tags. With names as well, both must match, as in `Toolset.only`.

    Raises:
        DefinitionError: A name or a tag is no text, or there are neither.

    Its `select` raises `DefinitionError` for a name (not a glob) without a tool; the message has the nearest.
    """
    for name in names:
        if not isinstance(name, str):
            raise DefinitionError(
                f"pinned takes names and globs one by one, such as pinned('read_*', 'x'), not {name!r}"
            )
    wanted = None if tags is None else (tags,) if isinstance(tags, str) else tuple(tags)
    if isinstance(tags, str) or not all(isinstance(tag, str) for tag in wanted or ()):
        raise DefinitionError(f"pinned: tags is a list of texts, such as tags=['core'], not {tags!r}")
    if not names and not wanted:
        raise DefinitionError("pinned() pins nothing: name tools, globs such as 'read_*', or tags=['core']")
    return _Pinned(names, None if wanted is None else frozenset(wanted))


class _Pinned:
    def __init__(self, names: tuple[str, ...], tags: frozenset[str] | None) -> None:
        self._exact = {name for name in names if _WILDCARDS.isdisjoint(name)}
        self._globs = re.compile("|".join(fnmatch.translate(name) for name in names)) if names else None
        self._found: WeakKeyDictionary[Toolset, list[Tool]] = WeakKeyDictionary()
        self._names = names
        self._tags = tags

    async def select(self, messages: Query, tools: Iterable[Tool]) -> list[Tool]:
        return self.always(tools)

    def always(self, tools: Iterable[Tool]) -> list[Tool]:
        """Return the tools that are offered for any messages."""
        found = self._found.get(tools) if isinstance(tools, Toolset) else None
        if found is None:
            found = self._pick(dict.fromkeys(tools))
            if isinstance(tools, Toolset):
                self._found[tools] = found
        return list(found)

    def _pick(self, every: Collection[Tool]) -> list[Tool]:
        if missing := self._exact.difference(tool.name for tool in every):
            name = min(missing)
            raise DefinitionError(
                f"{self!r}: there is no tool {name!r}{did_you_mean(name, (tool.name for tool in every))}"
            )
        return [tool for tool in every if self._fits(tool)]

    def _fits(self, tool: Tool) -> bool:
        if self._globs is not None and not self._globs.match(tool.name):
            return False
        return self._tags is None or not self._tags.isdisjoint(tool.tags)

    def __repr__(self) -> str:
        tags = [] if self._tags is None else [f"tags={sorted(self._tags)!r}"]
        return f"pinned({', '.join([*map(repr, self._names), *tags])})"
