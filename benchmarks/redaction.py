"""How long `redact` and `sanitize` take for a megabyte: program code, JSON with hashes, JSON with random ids, and prose
that is not ASCII.

Run: python benchmarks/redaction.py
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from string import ascii_letters, digits
from time import process_time

import ferrule
from ferrule.middleware import redact
from ferrule.security.characters import disarm, remove_hidden
from ferrule.security.hidden_html import remove_hidden_html

SIZE = 1_000_000
GOAL = 50
"""Milliseconds for `redact`, as the issue has it."""


def read_code() -> str:
    sources = sorted(Path(ferrule.__file__).parent.rglob("*.py"))
    return "".join(source.read_text("utf-8") for source in sources)[:SIZE]


def make_rows() -> str:
    chance = random.Random(1)
    row = {"name": "Ada", "at": "2026-11-30T10:00:00Z", "url": "https://example.org/orders/4711?page=2", "done": True}
    rows = (
        {"id": chance.randrange(10**9), **row, "sha": f"{chance.getrandbits(160):040x}"} for _ in range(SIZE // 150)
    )
    return json.dumps(list(rows))[:SIZE]


def make_ids() -> str:
    """Return a text that is nearly all random words: each could be a key."""
    chance = random.Random(1)
    rows = ({"id": "".join(chance.choices(ascii_letters + digits, k=32)), "done": True} for _ in range(SIZE // 50))
    return json.dumps(list(rows))[:SIZE]


def make_prose() -> str:
    return ("Größere Änderungen stehen im Kapitel über Schlüssel; 中文 und “Zitate” auch.\n" * 20_000)[:SIZE]


def measure_milliseconds(function: Callable[[str], object], text: str) -> float:
    times = []
    for _ in range(7):
        began = process_time()
        function(text)
        times.append(process_time() - began)
    return min(times) * 1000


def clean(text: str) -> str:
    return disarm(remove_hidden_html(remove_hidden(text)[0])[0])


def main() -> None:
    hide = redact()
    for name, text in (("code", read_code()), ("JSON", make_rows()), ("ids", make_ids()), ("prose", make_prose())):
        found, cleaned = measure_milliseconds(hide.text, text), measure_milliseconds(clean, text)
        print(f"{name:6} redact {found:6.1f} ms (goal {GOAL})   sanitize {cleaned:6.1f} ms")


if __name__ == "__main__":
    main()
