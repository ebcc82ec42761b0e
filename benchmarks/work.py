"""How the time that wrong and adversarial arguments take grows with their length, and that of outputs with theirs: of
each, a call of so many characters and one of four times as many. A ratio near 4 is in proportion; the longest text is
near the default `max_input`.

Run: python benchmarks/work.py
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable

from pydantic import BaseModel

from ferrule import Runner, Tool

SIZE = 240_000


class And(BaseModel):
    parts: list[And | Or]
    first: str


class Or(BaseModel):
    parts: list[And | Or]
    second: str


def total(numbers: list[int]) -> int:
    """Add up."""
    return sum(numbers)


def search(query: list[And | Or]) -> int:
    """Search."""
    return len(query)


def unknown(size: int) -> str:
    return json.dumps({"numbers": [], **{f"key{number:06}": 1 for number in range(size // 16)}})


def nested(depth: int) -> str:
    return '{"parts":[' * depth + '"wrong"' + "]}" * depth


NODE = {"$ref": "#/$defs/node"}
BRANCHES = [
    {"type": "object", "properties": {"parts": {"type": "array", "items": NODE}}, "required": [key]}
    for key in ("first", "second")
]
SCHEMA = {"type": "object", "properties": {"query": {"items": NODE}}, "$defs": {"node": {"anyOf": BRANCHES}}}

TOTAL = Tool("total", total)
DROP = Tool("total", total, unknown="drop")
SEARCH = Tool("search", search)
GIVEN = Tool("given", lambda payload: payload, description="Search.", input_schema=SCHEMA)

GIVES = {"type": "object", "properties": {"size": {"type": "string"}}, "required": ["size"]}

CASES: dict[str, tuple[Tool, Callable[[int], str]]] = {
    "numbers that fit": (TOTAL, lambda size: '{"numbers":[' + "1," * (size // 2) + "1]}"),
    "texts for numbers": (TOTAL, lambda size: '{"numbers":[' + '"",' * (size // 3) + '""]}'),
    "numbers in quotes": (TOTAL, lambda size: '{"numbers":[' + '"1",' * (size // 4) + '"1"]}'),
    "unknown keys": (TOTAL, lambda size: json.dumps({"numbers": [], **{f"k{n:07}": 1 for n in range(size // 16)}})),
    "unknown keys, dropped": (
        DROP,
        lambda size: json.dumps({"numbers": [], **{f"k{n:07}": 1 for n in range(size // 16)}}),
    ),
    "brackets": (TOTAL, lambda size: '{"numbers":' + "[" * size),
    "commas": (TOTAL, lambda size: '{"numbers":[' + "1, ]," * (size // 5) + "1]}"),
    "escapes": (TOTAL, lambda size: '{"numbers":"' + '\\"' * (size // 2)),
    "union in itself, deep": (SEARCH, lambda size: '{"query":[' + nested(90) + "]}"),
    "union in itself, wide": (SEARCH, lambda size: '{"query":[' + ",".join([nested(8)] * (size // 120)) + "]}"),
    "anyOf in itself, deep": (GIVEN, lambda size: '{"query":[' + nested(90) + "]}"),
    "anyOf in itself, wide": (GIVEN, lambda size: '{"query":[' + ",".join([nested(8)] * (size // 120)) + "]}"),
}


OUTPUTS: dict[str, Callable[[int], object]] = {
    "a text": lambda size: "é" * size,
    "bytes": lambda size: b"\xff" * size,
    "a list of texts": lambda size: ["text"] * (size // 8),
    "a dict": lambda size: {f"key{number}": number for number in range(size // 16)},
    "models": lambda size: [Or(parts=[], second="x") for _ in range(size // 32)],
    "deep lists": lambda size: [[[[[[number]]]]] for number in range(size // 16)],
    "a set": lambda size: set(range(size // 8)),
}


def seconds(tool: Tool, text: str) -> float:
    """The least processor time of three calls."""
    runner, times = Runner([tool]), []
    for _ in range(3):
        begin = time.process_time()
        asyncio.run(runner.run(tool.name, text))
        times.append(time.process_time() - begin)
    return min(times)


if __name__ == "__main__":
    print(f"calls of {SIZE:,} and {4 * SIZE:,} characters, Python {sys.version.split()[0]}")
    for name, (tool, make) in CASES.items():
        once, more = seconds(tool, make(SIZE)), seconds(tool, make(4 * SIZE))
        print(f"  {name:24} {once * 1000:7.1f} ms {more * 1000:8.1f} ms   {more / once:5.1f} x")
    print("what a handler returns")
    for name, give in OUTPUTS.items():
        values = {"small": give(SIZE), "large": give(4 * SIZE)}
        gives = Tool("gives", lambda size, values=values: values[size], description="Give.", input_schema=GIVES)
        once, more = seconds(gives, '{"size":"small"}'), seconds(gives, '{"size":"large"}')
        print(f"  {name:24} {once * 1000:7.1f} ms {more * 1000:8.1f} ms   {more / once:5.1f} x")
