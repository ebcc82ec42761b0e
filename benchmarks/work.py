"""How the time that wrong and adversarial arguments take grows with their length, that of outputs with theirs, and that
of reading and masking texts with theirs: of each, so many characters and four times as many. A ratio near 4 is in
proportion; the longest call is near the default `max_input`. Tests count steps; here is what C does too.

Run: python benchmarks/work.py
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Literal

from pydantic import BaseModel, Discriminator

from ferrule import Runner, Tool
from ferrule.security.masking import mask_credentials
from ferrule.values.json_text import check_digits, parse_json_object, repair_and_parse_json

SIZE = 240_000


class And(BaseModel):
    kind: Literal["and"]
    parts: list[Query]


class Or(BaseModel):
    kind: Literal["or"]
    parts: list[Query]


Query = Annotated[And | Or, Discriminator("kind")]
And.model_rebuild()


def total(numbers: list[int]) -> int:
    """Add up."""
    return sum(numbers)


def search(query: list[Query]) -> int:
    """Search."""
    return len(query)


def unknown(size: int) -> str:
    return json.dumps({"numbers": [], **{f"key{number:06}": 1 for number in range(size // 16)}})


def nest_json(depth: int) -> str:
    return '{"kind":"or","parts":[' * depth + '"wrong"' + "]}" * depth


NODE = {"$ref": "#/$defs/node"}
BRANCHES = [
    {"type": "object", "properties": {"parts": {"type": "array", "items": NODE}}, "required": [key]}
    for key in ("first", "second")
]
SCHEMA = {"type": "object", "properties": {"query": {"items": NODE}}, "$defs": {"node": {"anyOf": BRANCHES}}}

TOTAL = Tool("total", total)
SEARCH = Tool("search", search)
GIVEN = Tool("given", lambda payload: payload, description="Search.", input_schema=SCHEMA)

GIVES = {"type": "object", "properties": {"size": {"type": "string"}}, "required": ["size"]}

CASES: dict[str, tuple[Tool, Callable[[int], str]]] = {
    "numbers that fit": (TOTAL, lambda size: '{"numbers":[' + "1," * (size // 2) + "1]}"),
    "texts for numbers": (TOTAL, lambda size: '{"numbers":[' + '"",' * (size // 3) + '""]}'),
    "numbers in quotes": (TOTAL, lambda size: '{"numbers":[' + '"1",' * (size // 4) + '"1"]}'),
    "unknown keys": (TOTAL, lambda size: json.dumps({"numbers": [], **{f"k{n:07}": 1 for n in range(size // 16)}})),
    "brackets": (TOTAL, lambda size: '{"numbers":' + "[" * size),
    "commas": (TOTAL, lambda size: '{"numbers":[' + "1, ]," * (size // 5) + "1]}"),
    "escapes": (TOTAL, lambda size: '{"numbers":"' + '\\"' * (size // 2)),
    "union in itself, deep": (SEARCH, lambda size: '{"query":[' + nest_json(90) + "]}"),
    "union in itself, wide": (
        SEARCH,
        lambda size: '{"query":[' + ",".join([nest_json(8)] * (size // 240)) + "]}",
    ),
    "anyOf in itself, deep": (GIVEN, lambda size: '{"query":[' + nest_json(90) + "]}"),
    "anyOf in itself, wide": (
        GIVEN,
        lambda size: '{"query":[' + ",".join([nest_json(8)] * (size // 240)) + "]}",
    ),
}


OUTPUTS: dict[str, Callable[[int], object]] = {
    "a text": lambda size: "é" * size,
    "bytes": lambda size: b"\xff" * size,
    "a list of texts": lambda size: ["text"] * (size // 8),
    "a dict": lambda size: {f"key{number}": number for number in range(size // 16)},
    "models": lambda size: [Or(kind="or", parts=[]) for _ in range(size // 32)],
    "deep lists": lambda size: [[[[[[number]]]]] for number in range(size // 16)],
    "a set": lambda size: set(range(size // 8)),
}


PIECES = [
    *(",", "[", "{", '"', "\\", '\\"', ":", " ", "\n", "```", '"a":1,', '{"a":1}', '"[",', ", ]", ",}", "1", "1e999,"),
    *("12345678901234567,", "-Infinity,", "\ufeff", "é", '{"a":', "None"),
]
WHOLE: list[Callable[[str], str]] = [
    str,
    lambda text: '{"a": [' + text + "]}",
    lambda text: '{"a": "' + text + '"}',
    lambda text: '[1.00000000000000000001, "\x01", ] "' + text,  # what each repair looks for, and then a string
    lambda text: "```json\n" + text + "\n```",
]
SECRETS = [
    *("a", "://", ":", "@", "=", "'", '"', "\\", " ", "token", "token=", "bearer ", "eyJ", "input_value=", "a://b:c"),
    *("Authorization:", "-----BEGIN ", "PRIVATE KEY-----", "%3D", "key: a", "[", "      "),
]


def read(text: str) -> None:
    for way in (repair_and_parse_json, parse_json_object, check_digits):
        with suppress(ValueError):
            way(text)


def measure_time(work: Callable[[], object]) -> float:
    """The least processor time of three runs."""
    times = []
    for _ in range(3):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


def seconds(tool: Tool, text: str) -> float:
    """The processor time of a call."""
    runner = Runner([tool])
    return measure_time(lambda: asyncio.run(runner.run(tool.name, text)))


def worst(name: str, work: Callable[[str], object], texts: Callable[[int], list[str]], size: int) -> None:
    """Print which text of one size takes most, and which grows most."""
    pairs = [
        (measure_time(lambda a=a: work(a)), measure_time(lambda b=b: work(b)), a[:20])
        for a, b in zip(texts(size), texts(4 * size), strict=True)
    ]
    _, most, slow = max(pairs, key=lambda pair: pair[1])
    once, more, grows = max(pairs, key=lambda pair: pair[1] / max(pair[0], 1e-4))
    print(f"  {name:24} {most * 1000:7.1f} ms of {slow!r}; {more / max(once, 1e-4):5.1f} x of {grows!r}")


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
    print("of texts that are one piece many times, the slowest and the one that grows most")
    for whole in WHOLE:
        worst(
            "read as arguments", read, lambda size, whole=whole: [whole(p * (size // len(p))) for p in PIECES], 10_000
        )
    worst(
        "masked",
        lambda text: mask_credentials(text, 5_000),
        lambda size: [p * (size // len(p)) for p in SECRETS],
        25_000,
    )
