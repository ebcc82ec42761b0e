"""Turn a tool's own texts into weighted terms, to compare them with a request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ferrule.definition.tool import Tool
from ferrule.selection._words import split_terms

WEIGHTS = {
    "name": 30,
    "first sentence": 14,
    "description": 12,
    "parameter names": 10,
    "parameter descriptions": 8,
    "values": 10,
    "tags": 20,
    "examples": 8,
    "worked examples": 6,
}
"""In tenths, by field: with whole numbers, sums are equal in every order. Found by coordinate ascent on the data of
`benchmarks/selection.py`; 0.7 or 1.4 times one of them changes the means by less than half a point.
"""
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_LONGEST_FIELD = 20_000
_MOST_NODES = 2_000
_MOST_NESTED = 8
_LONGEST_VALUE = 100
_MOST_ALIKE = 8
"""The most often that a term counts if it appears in several worked examples of one tool."""
_EXAMPLES_IN_LENGTH = 0.75
"""The share of the worked examples in the length of a tool. With the whole, tools with many examples would be
punished.
"""
_ALTERNATIVES = frozenset({"anyOf", "oneOf", "allOf"})


def fields_of(tool: Tool) -> Iterator[tuple[str, str]]:
    """Yield each field with a weight: its name, and its text."""
    yield "name", tool.name
    description = tool.description[:_LONGEST_FIELD].strip()
    end = _SENTENCE_END.search(description)
    yield "first sentence", description[: end.start()] if end else description
    yield "description", description[end.end() :] if end else ""
    schema = _Schema(tool.input_schema)
    yield "parameter names", " ".join(schema.names)[:_LONGEST_FIELD]
    yield "parameter descriptions", " ".join(schema.descriptions)[:_LONGEST_FIELD]
    yield "values", " ".join(schema.values)[:_LONGEST_FIELD]
    yield "tags", " ".join(tool.tags)
    if tool.examples:
        yield "examples", " ".join(_list_strings(tool.examples))


class Document(NamedTuple):
    """The terms of a tool for an index."""

    terms: dict[str, int]
    """The weights of each term, added up, in tenths."""
    length: int
    """In the same tenths."""


def build_document(tool: Tool, worked_examples: Iterable[str] = ()) -> Document:
    """Return the document of a tool: its own texts, and the requests of people that needed it."""
    terms: dict[str, int] = {}
    for field, text in fields_of(tool):
        weight = WEIGHTS[field]
        for term in split_terms(text):
            terms[term] = terms.get(term, 0) + weight
    length = sum(terms.values())
    added = build_example_terms(worked_examples)
    for term, weight in added.items():
        terms[term] = terms.get(term, 0) + weight
    return Document(terms, length + int(_EXAMPLES_IN_LENGTH * sum(added.values())))


def build_example_terms(texts: Iterable[str]) -> dict[str, int]:
    """Return the terms of worked examples with their weights: once for each example, eight times at most."""
    found: dict[str, int] = {}
    for text in texts:
        for term in dict.fromkeys(split_terms(text)):
            found[term] = min(found.get(term, 0) + 1, _MOST_ALIKE)
    return {term: count * WEIGHTS["worked examples"] for term, count in found.items()}


def build_example_document(text: str) -> Document:
    """Return the document of a single worked example. Each of its terms counts the same."""
    terms = dict.fromkeys(split_terms(text), 10)
    return Document(terms, sum(terms.values()))


class _Schema:
    """The names, descriptions and possible values of parameters, the outer ones first.

    Each reference is read once, at its first use, so recursive schemas come to an end.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        self.names: list[str] = []
        self.descriptions: list[str] = []
        self.values: list[str] = []
        self._definitions = schema.get("$defs")
        self._seen: set[str] = set()
        self._left = _MOST_NODES
        self._read(schema, 0)

    def _read(self, node: dict[str, Any], level: int) -> None:
        self._left -= 1
        if self._left < 0 or level > _MOST_NESTED:
            return
        inner: list[Any] = []
        for key, value in node.items():
            if key == "description":
                if level and isinstance(value, str):
                    self.descriptions.append(value)
            elif key == "properties":
                if isinstance(value, dict):
                    self.names += value
                    inner += value.values()
            elif key == "enum" and isinstance(value, list | tuple):
                self.values += [one[:_LONGEST_VALUE] for one in value if isinstance(one, str)]
            elif key == "const" and isinstance(value, str):
                self.values.append(value[:_LONGEST_VALUE])
            elif key == "items":
                inner.append(value)
            elif key in _ALTERNATIVES and isinstance(value, list | tuple):
                inner += value
            elif key == "$ref" and isinstance(value, str) and isinstance(self._definitions, dict):
                if value not in self._seen:
                    self._seen.add(value)
                    inner.append(self._definitions.get(value.rpartition("/")[2]))
        for one in inner:
            if isinstance(one, dict):
                self._read(one, level + 1)


def _list_strings(values: Any) -> Iterator[str]:
    """Yield the strings in JSON values."""
    waiting = [values]
    for _ in range(_MOST_NODES):
        if not waiting:
            return
        value = waiting.pop()
        if isinstance(value, str):
            yield value[:_LONGEST_VALUE]
        elif isinstance(value, dict):
            waiting += reversed([*value.values()])
        elif isinstance(value, list | tuple):
            waiting += reversed(value)
