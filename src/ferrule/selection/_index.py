"""An index of weighted terms. Documents are added and removed one by one.

The score of a document is BM25's sum over the terms of a request, with the length of the whole document as its norm:

    weight of the term in the request · idf · w / (w + K · length / mean length)

`w` is the weight of the term in the document. Robertson and Zaragoza, "The probabilistic relevance framework: BM25 and
beyond", 2009; b is 1.

numpy does the same sums in the same order, so scores are the same numbers with it and without it.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from heapq import nlargest
from math import inf, log
from typing import Any, TypeAlias

from ferrule.selection._document import Document
from ferrule.selection._numeric import numpy

_K = 30.0
"""In tenths, like the weights; by the benchmark, 22 and 40 are half a point worse in one of the means."""
_FEWEST = 300
"""The number of documents that makes numpy faster. With fewer, its calls take longer than the sums."""
_MOST_WEIGHT = 65_535
_MOST_CACHED_PARTS = 500_000
Scores: TypeAlias = Any
"""A list of floats, or an array of numpy's."""


class Index:
    """Documents by number, in the order of their addition."""

    def __init__(self) -> None:
        self.terms: dict[str, int] = {}
        self._documents: list[array[int]] = []
        self._postings: list[array[int]] = []
        self._weights: list[array[int]] = []
        self._holding: list[int] = []
        self._lengths = array("d")
        self._total = 0
        self.count = 0
        self._known_idf: dict[str, float] = {}
        self._cached_parts: dict[str, tuple[Any, Any]] = {}
        self._cached_size = 0

    def __len__(self) -> int:
        """Return how many numbers exist, including those of removed documents."""
        return len(self._lengths)

    def add(self, document: Document) -> int:
        """Add a document, and return its number."""
        number = len(self._lengths)
        terms = array("I")
        for term, weight in document.terms.items():
            at = self.terms.get(term)
            if at is None:
                at = self.terms[term] = len(self._postings)
                self._postings.append(array("I"))
                self._weights.append(array("H"))
                self._holding.append(0)
            terms.append(at)
            self._postings[at].append(number)
            self._weights[at].append(min(weight, _MOST_WEIGHT))
            self._holding[at] += 1
        self._documents.append(terms)
        self._lengths.append(document.length)
        self._total += document.length
        self.count += 1
        self._clear_caches()
        return number

    def remove(self, number: int) -> None:
        """Remove a document. Its remaining postings are never found, because its length is infinite."""
        for at in self._documents[number]:
            self._holding[at] -= 1
        self._documents[number] = array("I")
        self._total -= int(self._lengths[number])
        self._lengths[number] = inf
        self.count -= 1
        self._clear_caches()

    def idf(self, term: str) -> float:
        """Return how distinctive a term is. An unknown term counts like a term in no document."""
        found = self._known_idf.get(term)
        if found is None:
            at = self.terms.get(term)
            holding = 0 if at is None else self._holding[at]
            found = self._known_idf[term] = log(1 + (self.count - holding + 0.5) / (holding + 0.5))
        return found

    def has(self, number: int, term: str) -> bool:
        """Return whether a document has a term."""
        at = self.terms.get(term)
        return at is not None and at in self._documents[number]

    def get_share(self, term: str, number: int) -> float:
        """Return the share of one unit of a request's term in the score of a document."""
        found = self._parts(term)
        numbers = [] if found is None else list(found[0])
        return float(found[1][numbers.index(number)]) if found and number in numbers else 0.0

    def _norm(self) -> float:
        return _K * self.count / self._total if self._total else 0.0

    def scores(self, requests: Sequence[Mapping[str, float]]) -> list[Scores]:
        """Return the scores of all documents for each request, by document number.

        Args:
            requests: Terms with their weights. The first request has all the terms of the others.
        """
        np = self._numpy()
        add, empty = (_add_by_numpy, np.zeros) if np else (_add, _zeros)
        found = [empty(len(self)) for _ in requests]
        for term in requests[0]:
            if listed := self._parts(term):
                for scores, asked in zip(found, requests, strict=True):
                    if weight := asked.get(term):
                        add(scores, weight, *listed)
        return found

    def _numpy(self) -> Any:
        return numpy() if len(self) >= _FEWEST else None

    def _parts(self, term: str) -> tuple[Any, Any] | None:
        """Return the documents with a term, and the share of one unit of it in their scores.

        The result is cached for the most recent terms until the index changes.
        """
        cached = self._cached_parts
        if (found := cached.pop(term, None)) is None:
            at = self.terms.get(term)
            if at is None or not self._holding[at]:
                return None
            found = self._weigh(self.idf(term), self._postings[at], self._weights[at])
            self._cached_size += len(found[0])
        cached[term] = found  # now the most recent
        while self._cached_size > _MOST_CACHED_PARTS and len(cached) > 1:
            self._cached_size -= len(cached.pop(next(iter(cached)))[0])
        return found

    def _weigh(self, idf: float, numbers: Any, weights: Any) -> tuple[Any, Any]:
        lengths, norm = self._lengths, self._norm()
        np = self._numpy()
        if np is None:
            return numbers, [idf * w / (w + norm * lengths[n]) for n, w in zip(numbers, weights, strict=True)]
        copied = np.array(numbers, dtype=np.uint32)  # numpy's view of an array would keep it from growing
        weighed = np.array(weights, dtype=np.float64)
        return copied, idf * weighed / (weighed + norm * np.array(lengths)[copied])

    def _clear_caches(self) -> None:
        self._known_idf.clear()
        self._cached_parts.clear()
        self._cached_size = 0


def _zeros(count: int) -> list[float]:
    return [0.0] * count


def _add(scores: Any, weight: float, numbers: Any, parts: Any) -> None:
    for number, part in zip(numbers, parts, strict=True):
        scores[number] += weight * part


def _add_by_numpy(scores: Any, weight: float, numbers: Any, parts: Any) -> None:
    scores[numbers] += weight * parts


def combine_scores(lists: Sequence[Scores], factors: Sequence[float], share: float) -> Scores:
    """Return `(1 - share)` of the first list, and `share` of the highest of the others times their factors."""
    first, *others = lists
    if not isinstance(first, list):
        np = numpy()
        highest: Any = np.maximum.reduce([scores * factor for scores, factor in zip(others, factors, strict=True)])
        return (1 - share) * first + share * highest
    scaled = [[score * factor for score in scores] for scores, factor in zip(others, factors, strict=True)]
    highest = map(max, *scaled) if len(scaled) > 1 else scaled[0]
    return [(1 - share) * one + share * high for one, high in zip(first, highest, strict=True)]


def find_highest(scores: Scores) -> float:
    """Return the highest score; 0 if there is none."""
    return max(scores, default=0.0) if isinstance(scores, list) else float(scores.max())


def best(scores: Scores, most: int) -> list[int]:
    """Return the numbers of at least `most` documents with the highest scores above 0.

    All ties with the last one are included.

    Returns fewer if fewer have such a score.
    """
    if isinstance(scores, list):
        found = [number for number, score in enumerate(scores) if score > 0]
        if len(found) > most:
            least = nlargest(most, [scores[number] for number in found])[-1]
            found = [number for number in found if scores[number] >= least]
        return found
    np = numpy()
    numbers: Any = np.flatnonzero(scores > 0)
    if len(numbers) > most:
        least = np.partition(scores[numbers], len(numbers) - most)[len(numbers) - most]
        numbers = numbers[scores[numbers] >= least]
    return numbers.tolist()  # type: ignore[no-any-return]
