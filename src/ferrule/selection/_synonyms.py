"""Words that people use for one another, in requests for a tool and in descriptions of one.

They count little beside the words themselves: a group says that two words may mean the same, not that they do. Each
line of `synonyms.txt` is one group.
"""

from __future__ import annotations

from functools import lru_cache
from math import sqrt
from pathlib import Path

from ferrule.selection._stem import stem

SYNONYMS_SHARE = 0.45
"""The weight of another word of a group beside the original one, divided by the root of their number. By the benchmark
0.3 and 0.6 are a third of a point worse, and none and 0.9 more than half a point.
"""


@lru_cache(maxsize=1)
def _read_groups() -> dict[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {}
    for line in Path(__file__).with_name("synonyms.txt").read_text("utf-8").splitlines():
        group = dict.fromkeys(map(stem, line.split()))
        for term in group:
            found.setdefault(term, {}).update(group)
    return {term: tuple(one for one in others if one != term) for term, others in found.items()}


def find_synonyms(term: str) -> tuple[tuple[str, ...], float]:
    """Return the synonyms of `term`, and the weight of each."""
    others = _read_groups().get(term, ())
    return others, SYNONYMS_SHARE / sqrt(len(others)) if others else 0.0
