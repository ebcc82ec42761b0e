"""Reading, telling and rendering take time and memory that grow with what they read: of each, four times as much takes
little more than four times. The constants are generous; `benchmarks/work.py` prints the ratios."""

from __future__ import annotations

import asyncio
import gc
import json
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from ferrule import Runner, Tool, tool

SMALL = 10_000


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


def called(made: Tool, arguments: str) -> Callable[[], object]:
    runner = Runner([made], max_input=None)
    return lambda: asyncio.run(runner.run(made.name, arguments))


def gives(value: object) -> Tool:
    return Tool("give", lambda payload: value, description="Give.", input_schema={"type": "object"})


def seconds(work: Callable[[], object]) -> float:
    times = []
    for _ in range(3):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


def peak(work: Callable[[], object]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


WORK: dict[str, Callable[[int], Callable[[], object]]] = {
    **{f"given {name}": lambda n, make=make: called(total, make(n)) for name, make in GIVEN.items()},
    **{f"returned {name}": lambda n, make=make: called(gives(make(n)), "{}") for name, make in RETURNED.items()},
}


@pytest.mark.parametrize("case", WORK)
def test_four_times_as_much_takes_little_more_than_four_times_the_time_and_memory(case: str) -> None:
    once, more = WORK[case](SMALL), WORK[case](4 * SMALL)
    once()  # what is made once for all calls
    assert seconds(more) < 12 * max(seconds(once), 0.02)
    assert peak(more) < 8 * max(peak(once), 3_000_000)  # what is too long for a result is cut, which takes copies
