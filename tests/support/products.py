"""Products of cases: pairs of them in every run, and the whole where there is time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

import pytest


def every(cases: Mapping[str, Any], *ways: Iterable[str], each: int = 12) -> list[Any]:
    """The parameters of a test: each case in each combination of the ways. Of these, each case in one or more, and each
    combination with `each` cases or more, are in every run; the others are marked as large."""
    combinations, apart = list(product(*ways)), max(1, len(cases) // each)
    found = []
    for row, (name, case) in enumerate(cases.items()):
        for column, way in enumerate(combinations):
            paired = (row + column) % apart == 0 or row % len(combinations) == column
            marks = () if paired else (pytest.mark.large,)
            found.append(pytest.param(case, *way, id="-".join((name, *way)), marks=marks))
    return found


def sampled(cases: Iterable[Any], one_in: int) -> list[Any]:
    """The parameters of a test that takes a program or two for each case: one in so many is in every run."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)), marks=() if at % one_in == 0 else pytest.mark.large
        )
        for at, case in enumerate(cases)
    ]
