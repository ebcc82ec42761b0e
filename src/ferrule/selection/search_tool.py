"""`search_tool`: one small tool that finds the others for a model."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import islice
from threading import Lock

from ferrule.definition.tool import Tool
from ferrule.definition.toolset import SEARCH_TAG, Toolset
from ferrule.errors import DefinitionError
from ferrule.security.similar_names import fold_name
from ferrule.selection._checks import as_ranker
from ferrule.selection.keyword import keyword
from ferrule.selection.matching import Ranker
from ferrule.values.content import clean_text, truncate_text
from ferrule.values.frozen import thaw
from ferrule.values.result import ToolResult

_MOST_FOUND = 50
_LONGEST_QUERY = 1000
_LONGEST_SENTENCE = 300
_SHORTEST_BEGINNING = 3
_LEAST_SHARE = 0.2
"""For queries about tools of another catalogue, the best match scores less in one half of the cases; for queries about
one of these tools, the right one scores less in one of thirty.
"""
_NAME_WORD = re.compile(r"[\w.-]*\w")
_WRITTEN_AS_NAME = re.compile(r"[\w]*[_.-]\w")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s|\n\s*\n")


def search_tool(
    toolset: Toolset | Iterable[Tool], ranker: Ranker | None = None, *, name: str = "search_tools", limit: int = 5
) -> Tool:
    """Return a tool that finds others by words; see docs/selection.md#the-search-tool.

        tools = Toolset([*catalogue, search_tool(catalogue)])
        await run(model, messages, Runner(tools), selector=keyword(8))

    It has one parameter, `query`. A tool always gets a place if the query contains its name, or a beginning of it. If
    nothing fits, the result says so. The result's `metadata["found"]` is a list of `{"name", "description",
    "input_schema"}`, and `list_found_tools` returns the tools themselves.

    Args:
        toolset: The tools to search. Search tools among them are ignored.
        ranker: The ranker, called in a thread, one query at a time; `keyword(least=0.2)` by default.
        name: Its name. OpenAI's Responses API gets a tool with the name `search_tools` as its own tool search.
        limit: The most tools to find: 1 to 50.

    Raises:
        DefinitionError: `toolset` is no toolset, `ranker` is no ranker, or `name` or `limit` is wrong.
    """
    if limit not in range(1, _MOST_FOUND + 1):
        raise DefinitionError(f"search_tool: limit is a whole number from 1 to {_MOST_FOUND}, not {limit!r}")
    ranker = keyword(least=_LEAST_SHARE) if ranker is None else as_ranker("search_tool", ranker)
    given = toolset if isinstance(toolset, Toolset) else Toolset(toolset)  # raises if it is wrong
    searched = Toolset(tool for tool in given if not finds_tools(tool)) if any(map(finds_tools, given)) else given
    handler = SearchTools(searched, ranker, limit)
    return Tool(name, handler, read_only=True, idempotent=True, open_world=False, tags=[SEARCH_TAG])


def finds_tools(tool: Tool) -> bool:
    """Return whether `search_tool` made this tool, even if it was renamed, bound or mounted since.

    See docs/selection.md.
    """
    return isinstance(tool.handler, SearchTools)


def list_searched_tools(tool: Tool) -> Iterable[Tool]:
    """Return the tools that a search tool searches; nothing for any other tool."""
    return tool.handler.toolset if isinstance(tool.handler, SearchTools) else ()


def list_found_tools(results: Iterable[ToolResult], tools: Toolset | Iterable[Tool]) -> list[Tool]:
    """Return the tools that search tools among `tools` found and so made callable, in the order of `results`.

    For a loop of your own: `offered = Toolset([*offered, *list_found_tools(results, runner.tools)])`, without the tools
    offered already. Results of other tools are ignored, and so is a name that is not among `tools`, or that the
    search tool does not search. See docs/selection.md#the-search-tool.
    """
    known = tools if isinstance(tools, Toolset) else Toolset(tools)
    return list(dict.fromkeys(tool for result in results for tool in _list_found(result, known)))


def _list_found(result: ToolResult, known: Toolset) -> Iterator[Tool]:
    searching = known.find(result.tool_name)
    if searching is None or not isinstance(searching.handler, SearchTools) or not result.success:
        return
    for one in result.metadata.get("found", ()):
        tool = known.find(one["name"])
        if tool is not None and searching.handler.toolset.find(one["name"]) is not None:
            yield tool


class SearchTools:
    # No docstring: models read the one of `__call__`.

    def __init__(self, toolset: Toolset, ranker: Ranker, limit: int) -> None:
        self.toolset = toolset
        self._ranker = ranker
        self._limit = limit
        self._lock = Lock()

    def __call__(self, query: str) -> ToolResult:
        """Find tools that you cannot call yet. What it finds can be called from your next turn on.

        Args:
            query: What the tool should do, in a few words, or its name.
        """
        query = clean_text(query)[:_LONGEST_QUERY]
        with self._lock:
            tools = self._search(query)
        if not tools:
            asked = truncate_text(" ".join(query.split()), 200)
            return ToolResult(f"No tool fits {asked!r}; try other words, or answer without.", metadata={"found": []})
        lines = [f"- {tool.wire_name}: {_first_sentence(tool)}".rstrip(": ") for tool in tools]
        which = "This tool fits, and" if len(tools) == 1 else f"These {len(tools)} tools fit, and"
        return ToolResult(
            "\n".join([f"{which} can be called from your next turn on:", *lines]),
            metadata={"found": [_definition(tool) for tool in tools]},
        )

    def _search(self, query: str) -> list[Tool]:
        words = _NAME_WORD.findall(query)
        if not words:
            return []
        ask_ranker = (match.tool for match in self._ranker.rank(self.toolset, query, limit=self._limit))
        named = self._names.find_whole(words)
        begun = self._names.find_by_beginning(words, self._limit)
        first, rest = [tools[0] for tools in begun], [tool for tools in begun for tool in tools[1:]]
        order = [*named, *first, *(tool for tool in ask_ranker if tool in self.toolset), *rest]
        return list(islice(dict.fromkeys(order), self._limit))

    @cached_property
    def _names(self) -> _ByName:
        return _ByName(self.toolset)


class _ByName:
    """The tools by their names. Case, and separators between words, are ignored."""

    def __init__(self, toolset: Toolset) -> None:
        self._tools: dict[str, list[Tool]] = {}
        for tool in toolset:
            for key in dict.fromkeys(map(_squeeze_name, (tool.name, tool.wire_name))):
                self._tools.setdefault(key, []).append(tool)
        self._sorted = sorted(self._tools)

    def find_whole(self, words: list[str]) -> list[Tool]:
        """Return the tools whose whole name is one of the words, or all of them together."""
        keys = dict.fromkeys(map(_squeeze_name, ("".join(words), *words)))
        return [tool for key in keys for tool in self._tools.get(key, ())]

    def find_by_beginning(self, words: list[str], most: int) -> list[list[Tool]]:
        """Return lists of tools whose names begin with all the words together, or with a word in the form of a name.

        No list is empty.
        """
        written = ("".join(words), *(word for word in words if _WRITTEN_AS_NAME.match(word)))
        keys = [key for key in dict.fromkeys(map(_squeeze_name, written)) if len(key) >= _SHORTEST_BEGINNING]
        begun = ([tool for name in self._find_beginnings(key, most) for tool in self._tools[name]] for key in keys)
        return [tools for tools in begun if tools]

    def _find_beginnings(self, key: str, most: int) -> list[str]:
        """Return names that begin with `key`, the shortest first."""
        at = bisect_left(self._sorted, key)
        names = [name for name in self._sorted[at : at + 20 * most] if name.startswith(key)]
        return sorted(names, key=len)[:most]


def _squeeze_name(name: str) -> str:
    return fold_name(name).replace("_", "").replace(".", "")


def _first_sentence(tool: Tool) -> str:
    return truncate_text(
        " ".join(_SENTENCE_END.split(tool.description.strip(), 1)[0].split()), _LONGEST_SENTENCE, "head"
    )


def _definition(tool: Tool) -> dict[str, object]:
    """Return the parts of a definition that a provider needs in a result."""
    return {"name": tool.wire_name, "description": tool.description, "input_schema": thaw(tool.input_schema)}
