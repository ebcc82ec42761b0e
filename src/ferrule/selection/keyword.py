"""`keyword`: the tools with the best matching words."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from operator import is_
from threading import Lock
from typing import Any, NamedTuple
from weakref import ref

from ferrule.definition.tool import Tool
from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError
from ferrule.selection._checks import Tools, as_count, as_tools
from ferrule.selection._document import WEIGHTS, build_document, build_example_document, build_example_terms, fields_of
from ferrule.selection._index import Index, Scores, best, combine_scores, find_highest
from ferrule.selection._request import Request, build_request
from ferrule.selection._synonyms import SYNONYMS_SHARE, find_synonyms
from ferrule.selection._words import split_terms
from ferrule.selection.matching import Match, Query

_CLAUSES = 0.5
"""The share of the score for the best single part of the request. The rest is for all parts together."""
_EVENNESS = 0.8
"""How evenly the parts of the request count: 0 by their scores, 1 all the same."""
_RERANKED = 60
"""The number of the best tools to score a second time."""
_WHOLE_NAME, _INSIDE = 0.1, 0.3
"""The bonuses, as parts of the best score, for a request with the whole name of a tool, and for a request whose words
are inside the words of the name.
"""
_SHORTEST_INSIDE = 4
_WORKED = 1.2
"""The bonus, as a part of the best score, for worked examples with words of the request: the sum of the shares in
each.
"""
_MOST_WORKED = 8
_UNLIKE = 6
"""The number of unrelated examples to assume beside a tool's own: a single example proves little."""
_MOST_INDEXES = 8
_LOW = 1 / 3
_FEW_CHANGES = 16
"""The number of tools, plus one in twenty, that may come and go before a toolset gets its own index."""
_INEXACT = 1e-9


class Contribution(NamedTuple):
    """A part of a score: the share of one term in one field of a tool. See docs/selection.md#why."""

    term: str
    field: str
    score: float


class Explanation(NamedTuple):
    """A match, and the parts of its score, the largest first. See docs/selection.md#why."""

    match: Match
    parts: list[Contribution]


def keyword(limit: int = 8, *, examples: Mapping[str, Iterable[str]] | None = None, least: float = 0.0) -> Keyword:
    """Return a ranker by matching words; the default ranker. See docs/selection.md#keyword.

        matches = keyword().rank(tools, "What is the weather in Oslo?", limit=3)

    It compares names, descriptions, parameters and their possible values, tags and worked examples with the user's
    request. It learns nothing from use, and the same question has the same answer.

    Args:
        limit: The most tools from `select`.
        examples: Requests in people's own words, by the name of the right tool.
        least: The least share of the request, weighted by how distinctive its words are, that a tool must match: 0 to
            1. Above 0, tools with less than a third of the best score are left out too. It suits short requests, such
            as a model's: `search_tool` uses 0.2. In a long story, tools match less.

    Raises:
        DefinitionError: `limit` or `least` is wrong, or `examples` are not lists of texts by name.
    """
    given: Any = least
    if not isinstance(given, int | float) or not 0 <= given <= 1:
        raise DefinitionError(f"keyword: least is a share from 0 to 1, not {least!r}")
    return Keyword(as_count("keyword", "limit", limit), _as_examples({} if examples is None else examples), least)


def _as_examples(given: Any) -> dict[str, tuple[str, ...]]:
    found = {}
    for name, texts in given.items() if isinstance(given, Mapping) else [(None, given)]:
        listed = texts if isinstance(texts, str) or not isinstance(texts, Iterable) else tuple(texts)
        if not (isinstance(name, str) and isinstance(listed, tuple) and all(isinstance(one, str) for one in listed)):
            raise DefinitionError(
                "keyword: examples are lists of requests by the name of a tool, such as "
                f"{{'get_weather': ['Will it rain in Oslo?']}}, not {texts!r}" + (f" for {name!r}" if name else "")
            )
        found[name] = listed
    return found


class Keyword:
    """The ranker from `keyword`. See docs/selection.md#keyword.

    It caches an index for each of the last eight toolsets. For a toolset with nearly the same tools as one of these, it
    updates that index by the difference.
    """

    def __init__(self, limit: int, examples: dict[str, tuple[str, ...]], least: float) -> None:
        self._limit = limit
        self._examples = examples
        self._least = least
        self._catalogues: list[_Catalogue] = []
        self._lock = Lock()

    async def select(self, messages: Query, tools: Iterable[Tool]) -> list[Tool]:
        """Return the `limit` best tools, the best first. Ranks in a thread, because a first index takes long."""
        every = as_tools(tools)
        return [match.tool for match in await asyncio.to_thread(self.rank, every, messages, limit=self._limit)]

    def rank(self, tools: Iterable[Tool], query: Query, *, limit: int = 10) -> list[Match]:
        """Return the `limit` best tools, the best first; ties in the order of `tools`."""
        as_count("keyword", "limit", limit)
        request = build_request(query)
        with self._lock:
            return self._catalogue(as_tools(tools)).rank(request, limit)

    def explain(self, tools: Iterable[Tool], query: Query, *, limit: int = 10) -> list[Explanation]:
        """Return the matches of `rank`, with the parts of each score."""
        as_count("keyword", "limit", limit)
        request = build_request(query)
        with self._lock:
            catalogue = self._catalogue(as_tools(tools))
            return [Explanation(match, catalogue.parts(request, match)) for match in catalogue.rank(request, limit)]

    def _catalogue(self, tools: Tools) -> _Catalogue:
        found = next((one for one in self._catalogues if one.is_built_for(tools)), None)
        if found is None:
            listed = list(tools)
            found = next(
                (one for one in self._catalogues if one.is_near(listed)), _Catalogue(self._examples, self._least)
            )
            found.become(tools, listed)
        self._catalogues = [found, *(one for one in self._catalogues if one is not found)][:_MOST_INDEXES]
        return found

    def __repr__(self) -> str:
        return f"keyword({self._limit})"


class _Catalogue:
    """The index of some tools."""

    def __init__(self, examples: dict[str, tuple[str, ...]], least: float) -> None:
        self._examples = examples
        self._least = least
        self._clear()

    def _clear(self) -> None:
        self._index = Index()
        self._numbers: dict[Tool, int] = {}
        self._tools: list[Tool | None] = []
        self._names: list[tuple[tuple[str, ...], str]] = []
        self._example_index = Index()
        self._example_owners: list[int] = []
        self._examples_by_tool: dict[int, range] = {}
        self._places: dict[Tool, int] = {}
        self._order: list[Tool] = []
        self._get_toolset: Callable[[], object] = _no_toolset

    def __len__(self) -> int:
        return len(self._numbers)

    def is_built_for(self, tools: Tools) -> bool:
        if isinstance(tools, Toolset):
            return self._get_toolset() is tools
        return len(tools) == len(self._order) and all(map(is_, tools, self._order))

    def is_near(self, tools: list[Tool]) -> bool:
        """Return whether the difference between these tools and the own ones is small."""
        if tools[: len(self._order)] == self._order and self._order:
            changes = len(tools) - len(self._order)
        else:
            changes = len(tools) + len(self) - 2 * sum(tool in self._numbers for tool in tools)
        return changes <= _FEW_CHANGES + len(tools) // 20

    def become(self, given: Tools, tools: list[Tool]) -> None:
        """Change the index to these tools, by adding and removing the difference."""
        before = len(self._order)
        if not before or tools[:before] != self._order:  # a look at each of 100,000 tools takes 50 ms
            before, wanted = 0, set(tools)
            for tool in [tool for tool in self._numbers if tool not in wanted]:
                self.remove(tool)
            if len(self._index) > 2 * len(wanted) + _RERANKED:
                self._clear()
            self._places.clear()
        for place, tool in enumerate(tools[before:], before):
            if tool not in self._numbers:
                self.add(tool)
            self._places.setdefault(tool, place)
        self._order = tools
        self._get_toolset = ref(given) if isinstance(given, Toolset) else _no_toolset

    def add(self, tool: Tool) -> None:
        examples = self._examples.get(tool.name, ())
        number = self._numbers[tool] = self._index.add(build_document(tool, examples))
        if examples:
            numbers = [self._example_index.add(build_example_document(text)) for text in examples]
            self._examples_by_tool[number] = range(numbers[0], numbers[-1] + 1)
            self._example_owners += [number] * len(numbers)
        self._tools.append(tool)
        self._names.append((tuple(dict.fromkeys(split_terms(tool.name))), _letters(tool.name)))

    def remove(self, tool: Tool) -> None:
        number = self._numbers.pop(tool)
        self._index.remove(number)
        for worked in self._examples_by_tool.pop(number, ()):
            self._example_index.remove(worked)
        self._tools[number] = None

    def rank(self, request: Request, limit: int) -> list[Match]:
        scores = self._scores(request)
        again = self._rerank(request, scores, best(scores, _RERANKED))
        if limit > _RERANKED:
            again = {number: float(scores[number]) for number in best(scores, limit)} | again
        if self._least:
            low = _LOW * max(again.values(), default=0.0)
            again = {n: score for n, score in again.items() if score >= low and self._fits(request, n)}
        order = sorted(again, key=lambda number: (-again[number], self._place(number)))
        return [Match(self._tool(number), again[number]) for number in order[:limit]]

    def _tool(self, number: int) -> Tool:
        tool = self._tools[number]
        assert tool is not None
        return tool

    def _place(self, number: int) -> int:
        return self._places[self._tool(number)]

    def _lists(self, request: Request) -> tuple[list[Scores], list[float]]:
        """Return the scores for the whole request and for each part of it, and the factors for the parts."""
        lists = self._index.scores([request.whole, *request.clauses])
        return lists, _factors(list(map(find_highest, lists)))

    def _score_words(self, request: Request) -> Scores:
        lists, factors = self._lists(request)
        return combine_scores(lists, factors, _CLAUSES) if factors else lists[0]

    def _scores(self, request: Request) -> Scores:
        scores = self._score_words(request)
        top = find_highest(scores)
        for number, share in self._score_examples(request).items():
            scores[number] += top * share
        return scores

    def _score_examples(self, request: Request) -> dict[int, float]:
        """Return the bonuses of tools with worked examples like the request, as parts of the best score."""
        asked = dict.fromkeys(request.terms, 1.0)
        if not asked or not self._example_index.count:
            return {}
        (alike,), whole = self._example_index.scores([asked]), sum(map(self._example_index.idf, asked))
        found: dict[int, list[float]] = {}
        for number in best(alike, _RERANKED):
            found.setdefault(self._example_owners[number], []).append(float(alike[number]) / whole)
        return {
            number: _WORKED * self._share(number) * sum(sorted(one)[-_MOST_WORKED:]) for number, one in found.items()
        }

    def _share(self, number: int) -> float:
        own = len(self._examples_by_tool[number])
        return own / (own + _UNLIKE)

    def _rerank(self, request: Request, scores: Scores, numbers: list[int]) -> dict[int, float]:
        """Return the scores of some tools, with the bonuses for their names."""
        top = max((float(scores[number]) for number in numbers), default=0.0)
        telling = {term: self._index.idf(term) for term in request.terms}
        total = sum(sorted(telling.values(), reverse=True)[:8])
        inside = [(term, value) for term, value in telling.items() if len(term) >= _SHORTEST_INSIDE]
        found = {}
        for number in numbers:
            terms, letters = self._names[number]
            named = sum([telling[term] for term in terms if term in telling])
            share = _WHOLE_NAME * named / sum(map(self._index.idf, terms)) if named else 0.0
            if within := sum([value for term, value in inside if term in letters and term not in terms]):
                share += _INSIDE * within / total
            found[number] = float(scores[number]) + top * share
        return found

    def _fits(self, request: Request, number: int) -> bool:
        """Return whether a tool has enough of the request's terms, or of their synonyms."""
        whole = held = 0.0
        for term in request.terms:
            value = self._index.idf(term)
            whole += value
            if self._index.has(number, term):
                held += value
            elif any(self._index.has(number, other) for other in find_synonyms(term)[0]):
                held += SYNONYMS_SHARE * value
        return held >= self._least * whole

    def parts(self, request: Request, match: Match) -> list[Contribution]:
        """Return the parts of a score: each term by the fields with it, the name, and the worked examples."""
        number = self._numbers[match.tool]
        by_term = self._score_terms(request, number, self._lists(request)[1])
        weights = self._weights(match.tool, by_term)
        found = [part for term, score in by_term.items() for part in _split_share(term, score, weights[term])]
        alike = self._score_examples(request).get(number, 0.0) * find_highest(self._score_words(request))
        if alike:
            found.append(Contribution("", "worked examples", alike))
        rest = match.score - sum(by_term.values()) - alike
        if rest > _INEXACT * match.score:
            found.append(Contribution("", "whole name", rest))
        return sorted(found, key=lambda part: -part.score)

    def _score_terms(self, request: Request, number: int, factors: list[float]) -> dict[str, float]:
        one = {term: self._index.get_share(term, number) for term in request.whole}
        whole = {term: weight * one[term] for term, weight in request.whole.items() if one[term]}
        if not factors:
            return whole
        asked = [
            {term: factor * weight * one[term] for term, weight in clause.items()}
            for clause, factor in zip(request.clauses, factors, strict=True)
        ]
        best_clause = max(asked, key=lambda parts: sum(parts.values()))
        return {term: (1 - _CLAUSES) * score + _CLAUSES * best_clause.get(term, 0.0) for term, score in whole.items()}

    def _weights(self, tool: Tool, terms: Iterable[str]) -> dict[str, dict[str, int]]:
        """Return the weights of terms in a tool, by its fields."""
        fields = [(field, split_terms(text)) for field, text in fields_of(tool)]
        asked = build_example_terms(self._examples.get(tool.name, ()))
        return {
            term: {field: WEIGHTS[field] * listed.count(term) for field, listed in fields}
            | {"worked examples": asked.get(term, 0)}
            for term in terms
        }


def _factors(highest: list[float]) -> list[float]:
    """Return the factors for the scores of each clause, so that each has its say."""
    whole, *clauses = highest
    return [(whole / one) ** _EVENNESS if one else 0.0 for one in clauses]


def _no_toolset() -> None:
    return None


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def _split_share(term: str, score: float, weights: dict[str, int]) -> list[Contribution]:
    """Split a term's share of a score among the fields with the term."""
    whole = sum(weights.values())
    return [Contribution(term, field, score * weight / whole) for field, weight in weights.items() if weight]
