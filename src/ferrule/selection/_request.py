"""Turn a conversation into weighted terms: one set for the whole request, and one for each thing in it."""

from __future__ import annotations

import re
from typing import NamedTuple

from ferrule.selection._conversation import read_conversation
from ferrule.selection._synonyms import find_synonyms
from ferrule.selection._words import split_terms
from ferrule.selection.matching import Query

_CLAUSE_END = re.compile(
    r"(?<=[.!?])\s+|\n+|;\s|,\s(?=and |then |also )"
    r"|\b(?:and then|and also|then|also|additionally|furthermore|finally|after that|lastly|moreover)\b",
    re.IGNORECASE,
)
_MOST_CLAUSES = 8
_MOST_TERMS = 120
_BEFORE, _BEFORE_A_SHORT_ONE = 0.1, 0.3
"""The weights of terms from earlier turns. A last message with fewer terms than `_FEW_TERMS` refers to them."""
_FEW_TERMS = 3
_MOST_BEFORE = 60


class Request(NamedTuple):
    """Terms with their weights; a term of the last message has weight 1."""

    whole: dict[str, float]
    clauses: list[dict[str, float]]
    """The terms of each request in the last message if it has several; empty if it has one."""
    terms: list[str]
    """The terms of the last message."""


def build_request(query: Query) -> Request:
    """Return the terms of a text or a conversation.

    The last message counts most. Its synonyms count less, and the user's text before it, the model's last text and the
    results of its last calls count least.
    """
    latest, *before = read_conversation(query)
    terms = list(dict.fromkeys(split_terms(latest)))[:_MOST_TERMS]
    whole = _add_synonyms(terms)
    weight = _BEFORE_A_SHORT_ONE if len(terms) < _FEW_TERMS else _BEFORE
    for text in before:
        for term in split_terms(text)[:_MOST_BEFORE]:
            whole.setdefault(term, weight)
    parts = [
        clause_terms for one in _CLAUSE_END.split(latest) if (clause_terms := list(dict.fromkeys(split_terms(one))))
    ]
    known = set(terms)
    clauses = [_add_synonyms([term for term in part if term in known]) for part in parts[:_MOST_CLAUSES]]
    return Request(whole, [one for one in clauses if one] if len(clauses) > 1 else [], terms)


def _add_synonyms(terms: list[str]) -> dict[str, float]:
    found = dict.fromkeys(terms, 1.0)
    for term in terms:
        others, weight = find_synonyms(term)
        for other in others:
            if found.get(other, 0.0) < weight:
                found[other] = weight
    return found
