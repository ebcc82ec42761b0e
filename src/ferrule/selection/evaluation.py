"""Measure a ranker on labelled queries: recall, NDCG, confused tools, and the cost of a prompt."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ferrule.definition.decorator import build_tool
from ferrule.definition.tokens import definition_tokens
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError, ToolError
from ferrule.security.paths import read_file
from ferrule.selection._checks import as_ranker, as_tools, did_you_mean
from ferrule.selection.matching import Query, Ranker

_DEPTH = 10
"""The number of places for NDCG."""
_MOST_CASES = 100_000_000
"""The most bytes of a file of cases."""


@dataclass(frozen=True)
class LabelledQuery:
    """A request, and the right tools for it. See docs/selection.md#measuring."""

    text: str
    relevant: tuple[str, ...]
    """Names of tools, or the `id` of their rows if they come from a tools.jsonl."""
    id: str = ""
    messages: tuple[Mapping[str, Any], ...] | None = None
    """The conversation that ends with the request, or None. If present, it is ranked instead of the text."""

    @property
    def asked(self) -> Query:
        """The query for a ranker."""
        return self.text if self.messages is None else self.messages


class Ranks(NamedTuple):
    """The places of the right tools of one query. See docs/selection.md#measuring."""

    query: LabelledQuery
    places: Mapping[str, int | None]
    """For each right tool its place, from 1; `None` if it was not found."""
    found: tuple[str, ...]
    """The names of the tools found, the best first."""


class Confusion(NamedTuple):
    """A wrong tool ranked above the right one. See docs/selection.md#measuring."""

    right: str
    wrong: str
    queries: int
    """The number of queries with this confusion."""


@dataclass(frozen=True)
class Evaluation:
    """The measures of a ranker on labelled queries; all are means over the queries, from 0 to 1.

    See docs/selection.md#measuring.
    """

    tools: int
    recall: Mapping[int, float]
    """For each k, the share of a query's right tools among the first k."""
    ndcg: float
    """NDCG of the first 10, with only two grades: right and wrong."""
    ranks: tuple[Ranks, ...]
    """One for each query, in their order."""
    confusable: tuple[Confusion, ...]
    """The most frequent first. A right tool that was not found counts as below all that were."""
    tokens: int
    """An estimate of the tokens of all tools' definitions in a prompt."""
    tokens_of_first: Mapping[int, float]
    """For each k, the tokens of the first k definitions, as the mean over the queries."""


def evaluate(
    ranker: Ranker, tools: Iterable[Tool], queries: Iterable[LabelledQuery], *, k: Sequence[int] = (1, 5, 10)
) -> Evaluation:
    """Rank `tools` for each of `queries`, and return the measures. See docs/selection.md#measuring.

    Args:
        ranker: Any object with `rank(tools, query, limit=…)`.
        tools: A toolset, or any tools. If two have one name, their `id` names them.
        queries: See `read_queries`.
        k: The numbers of first places for recall and costs.

    Raises:
        DefinitionError: There is no query, a query has no right tool or names an unknown one, or `ranker` is no ranker.
    """
    ranker, offered = as_ranker("evaluate(…)", ranker), as_tools(tools)
    shown = _shown_names(offered)
    names = _names_by_label(shown)
    if not k or min(k) < 1:
        raise DefinitionError(f"evaluate(k={k!r}): give one or more numbers of places, each at least 1")
    limit = max(*k, _DEPTH)
    ranks, costs = [], []
    for query in queries:
        right = _right_names(query, names)
        found = [match.tool for match in ranker.rank(offered, query.asked, limit=limit)][:limit]
        ranks.append(_ranks(query, right, [shown.get(tool, tool.name) for tool in found]))
        costs.append([definition_tokens(tool) for tool in found])
    if not ranks:
        raise DefinitionError("evaluate(…): there are no queries")
    return Evaluation(
        tools=len(offered),
        recall={few: _mean(_recall(one, few) for one in ranks) for few in k},
        ndcg=_mean(map(_ndcg, ranks)),
        ranks=tuple(ranks),
        confusable=_count_confusions(ranks),
        tokens=sum(map(definition_tokens, offered)),
        tokens_of_first={few: _mean(sum(each[:few]) for each in costs) for few in k},
    )


def read_queries(path: str | os.PathLike[str]) -> list[LabelledQuery]:
    """Return the labelled queries of a JSONL file, one object a line. See docs/selection.md#measuring.

    `{"text": "…", "relevant": ["read_file"], "id": "q1", "messages": […]}`; `id` and `messages` are optional.

    Raises:
        DefinitionError: A line is invalid, or the file is too large. The message names file and line.
        OSError: The file cannot be read.
    """
    return [_query_of_row(row, where) for where, row in read_rows(path)]


def read_tools(path: str | os.PathLike[str]) -> list[Tool]:
    """Return the tools of a JSONL file, one definition a line, to search and not to run.

    See docs/selection.md#measuring.

    `{"id": "fs:read_file", "name": "read_file", "description": "…", "parameters": {…}}`, or any form that `build_tool`
    accepts. An `id` goes into the tool's metadata. Two tools may have one name, so the result is no toolset.

    Raises:
        DefinitionError: A line is invalid, or the file is too large. The message names file and line.
        OSError: The file cannot be read.
    """
    return [_tool_of_row(row, where) for where, row in read_rows(path)]


def _read_lines(path: str | os.PathLike[str]) -> list[bytes]:
    try:
        return read_file(path, _MOST_CASES).splitlines()
    except ValueError as error:
        raise DefinitionError(f"{os.fspath(path)} cannot be read: {error}") from None


def read_rows(path: str | os.PathLike[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a JSONL file, each behind a text with its file and line. Empty lines are skipped.

    Raises:
        DefinitionError: A line is invalid, or the file is too large. The message names file and line.
        OSError: The file cannot be read.
    """
    # In bytes, because a text's splitlines() also splits at U+2028, and JSON may contain that.
    for number, line in enumerate(_read_lines(path), 1):
        if not line.strip():
            continue
        where = f"{os.fspath(path)}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DefinitionError(f"{where}: this is no JSON: {error}") from None
        if not isinstance(row, dict):
            raise DefinitionError(f"{where}: a line is one JSON object, and this is {line[:80]!r}")
        yield where, row


def _tool_of_row(row: Mapping[str, Any], where: str) -> Tool:
    definition = {key: value for key, value in row.items() if key != "id"}
    if "parameters" in definition:
        definition["input_schema"] = definition.pop("parameters")
    try:
        return build_tool(definition, _only_read, metadata={"id": row["id"]} if "id" in row else {})
    except DefinitionError as error:
        raise DefinitionError(f"{where}: {error}") from None


def _only_read(**_: object) -> None:
    raise ToolError("this tool was read from a list of definitions: there is nothing that could run it")


def _query_of_row(row: Mapping[str, Any], where: str) -> LabelledQuery:
    messages = row.get("messages")
    if messages is not None and not (_is_typed_list(messages, Mapping) and messages):
        raise DefinitionError(f'{where}: "messages" is a list of messages, each an object, or is left out')
    text = row.get("text")
    if not isinstance(text, str) or not text.strip():
        raise DefinitionError(f'{where}: "text" is what a person asks for, and has to be there')
    relevant = row.get("relevant")
    if not _is_typed_list(relevant, str) or not relevant:
        raise DefinitionError(f'{where}: "relevant" is a list of one or more names of tools, not {relevant!r}')
    return LabelledQuery(
        text,
        tuple(dict.fromkeys(relevant)),
        str(row.get("id", "")) or where,
        None if messages is None else tuple(messages),
    )


def _is_typed_list(value: object, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(one, kind) for one in value)


def _shown_names(tools: Iterable[Tool]) -> dict[Tool, str]:
    """Return the name of each tool here: its own, or the `id` of its row if several tools share the name."""
    counts = Counter(tool.name for tool in tools)
    return {tool: tool.name if counts[tool.name] == 1 else _id(tool) or tool.name for tool in tools}


def _names_by_label(shown: Mapping[Tool, str]) -> dict[str, str | None]:
    """Return the names of tools here by the labels in a query.

    A label is the id of a row, the wire name, or first of all the name.

    The value is `None` for a name of several tools.
    """
    labels: dict[str, str | None] = {}
    for label in (_id, lambda tool: tool.wire_name, lambda tool: tool.name):
        labels.update((found, name) for tool, name in shown.items() if (found := label(tool)) is not None)
    labels.update((tool.name, None) for tool, name in shown.items() if labels[tool.name] != name)
    return labels


def _id(tool: Tool) -> str | None:
    found = tool.metadata.get("id")
    return found if isinstance(found, str) else None


def _right_names(query: LabelledQuery, names: Mapping[str, str | None]) -> list[str]:
    about = f"the query {query.id or query.text!r}"
    if not query.relevant:
        raise DefinitionError(f"{about} has no right tool: list one or more in `relevant`")
    right: dict[str, None] = {}
    for label in query.relevant:
        name = names.get(label)
        if name is None:
            which = "several tools are" if label in names else "no tool is"
            hint = did_you_mean(label, filter(None, names.values()))
            raise DefinitionError(f"{about} says that {label!r} is right, and {which} called so{hint}")
        right[name] = None
    return list(right)


def _ranks(query: LabelledQuery, right: Sequence[str], found: Sequence[str]) -> Ranks:
    places: dict[str, int] = {}
    for place, name in enumerate(found, 1):
        places.setdefault(name, place)
    return Ranks(query, {name: places.get(name) for name in right}, tuple(found))


def _recall(ranks: Ranks, few: int) -> float:
    return sum(1 for place in ranks.places.values() if place is not None and place <= few) / len(ranks.places)


def _ndcg(ranks: Ranks) -> float:
    gain = sum(_discount(place) for place in ranks.places.values() if place is not None and place <= _DEPTH)
    return gain / sum(_discount(place) for place in range(1, min(len(ranks.places), _DEPTH) + 1))


def _discount(place: int) -> float:
    return 1 / math.log2(place + 1)


def _count_confusions(ranks: Iterable[Ranks]) -> tuple[Confusion, ...]:
    counts: Counter[tuple[str, str]] = Counter()
    for one in ranks:
        for right, place in one.places.items():
            above = one.found if place is None else one.found[: place - 1]
            counts.update((right, wrong) for wrong in above if wrong not in one.places)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Confusion(right, wrong, count) for (right, wrong), count in ordered)


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed)
