"""Reading, describing and rendering take work and memory that grow with the size of what they read.

Four times as much takes little more than four times the steps; `benchmarks/work.py` has the times, with C's share.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from ferrule import Runner, Sizes, Tool, tool
from products import sampled
from steps import lines, peak

SIZE = 500
CUT = 1_000
"""Characters of a result that `SIZE` of anything is too long for."""


@dataclass
class Point:
    x: int
    label: str


@tool
def total(numbers: list[int]) -> int:
    """Add up."""
    return sum(numbers)


GIVEN: dict[str, Callable[[int], str]] = {
    "numbers": lambda n: json.dumps({"numbers": list(range(n))}),
    "numbers in quotes": lambda n: json.dumps({"numbers": [str(one) for one in range(n)]}),
    "wrong items": lambda n: json.dumps({"numbers": ["x"] * n}),
    "unknown keys": lambda n: json.dumps({f"key{one}": one for one in range(n)}),
    "brackets": lambda n: '{"numbers":' + "[" * n,
    "escapes": lambda n: '{"numbers":"' + '\\"' * n,
    "commas": lambda n: '{"numbers":[' + "1, ]," * n,
}


RETURNED: dict[str, Callable[[int], Any]] = {
    "texts": lambda n: ["é"] * n,
    "one text": lambda n: "é" * n,
    "a dict": lambda n: {f"key{one}": one for one in range(n)},
    "a set": lambda n: set(range(n)),
    "objects": lambda n: [Point(one, "x") for one in range(n)],
    "lists in lists": lambda n: [[[[one]]] for one in range(n)],
    "bytes": lambda n: [b"\xff"] * n,
}


def called(made: Tool, arguments: str, max_output: int = 100_000) -> Callable[[], object]:
    runner = Runner([made], sizes=Sizes(input=None, output=max_output))
    return lambda: asyncio.run(runner.run(made.name, arguments))


def gives(value: object) -> Tool:
    return Tool("give", lambda payload: value, description="Give.", input_schema={"type": "object"})


WORK: dict[str, Callable[[int], Callable[[], object]]] = {
    **{f"given {name}": lambda n, make=make: called(total, make(n)) for name, make in GIVEN.items()},
    **{f"returned {name}": lambda n, make=make: called(gives(make(n)), "{}") for name, make in RETURNED.items()},
    **{f"cut {name}": lambda n, make=make: called(gives(make(n)), "{}", CUT) for name, make in RETURNED.items()},
}


@pytest.mark.large
@pytest.mark.parametrize("case", sampled(WORK, one_in=2))
def test_work_and_memory_grow_with_size_and_no_faster(case: str) -> None:
    once, more = WORK[case](SIZE), WORK[case](4 * SIZE)
    once()  # what is made once for all calls
    assert lines(more) < 5 * lines(once) + 1_000
    assert peak(more) < 5 * peak(once) + 100_000
