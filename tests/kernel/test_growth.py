"""Rendering a result takes work and memory that grow with its size. `benchmarks/work.py` has the times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from ferrule import Runner, Sizes, tool
from products import sampled
from steps import lines, peak

SIZE = 500
CUT = 1_000
"""Characters of a result that `SIZE` of anything is too long for."""


@dataclass
class Point:
    x: int
    label: str


RETURNED: dict[str, Callable[[int], Any]] = {
    "texts": lambda n: ["é"] * n,
    "one text": lambda n: "é" * n,
    "a dict": lambda n: {f"key{one}": one for one in range(n)},
    "a set": lambda n: set(range(n)),
    "objects": lambda n: [Point(one, "x") for one in range(n)],
    "lists in lists": lambda n: [[[[one]]] for one in range(n)],
    "bytes": lambda n: [b"\xff"] * n,
}


def give(value: object, max_output: int = 100_000) -> Callable[[], object]:
    runner = Runner([tool(lambda: value, name="give")], sizes=Sizes(output=max_output))
    return lambda: asyncio.run(runner.run("give"))


WORK: dict[str, Callable[[int], Callable[[], object]]] = {
    **{f"returned {name}": lambda n, make=make: give(make(n)) for name, make in RETURNED.items()},
    **{f"cut {name}": lambda n, make=make: give(make(n), CUT) for name, make in RETURNED.items()},
}


@pytest.mark.large
@pytest.mark.parametrize("case", sampled(WORK, one_in=2))
def test_work_and_memory_grow_with_size_and_no_faster(case: str) -> None:
    once, more = WORK[case](SIZE), WORK[case](4 * SIZE)
    once()  # what is made once for all calls
    assert lines(more) < 5 * lines(once) + 1_000
    assert peak(more) < 5 * peak(once) + 100_000
