"""The cost of keeping 1 MB as an artifact, and of reading pages of it.

Run: python benchmarks/artifacts.py
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

from ferrule import Journal, Runner, ToolContext, tool
from ferrule.middleware import limit_output
from ferrule.stores import Artifacts
from ferrule.tools.artifacts import read_artifact

ROUNDS = 15
ROWS = [{"order": number, "customer": f"customer {number}", "euros": number % 90} for number in range(20_000)]
CONTEXT = ToolContext(principal="ada", session="s1")


@tool(read_only=True)
async def query() -> list[dict[str, Any]]:
    """Query the orders."""
    return ROWS


async def measure(run: Callable[[], Awaitable[Any]]) -> float:
    """Return the median of a call's CPU time in milliseconds, of all threads."""
    times = []
    for _ in range(ROUNDS):
        began = time.process_time()
        result = await run()
        times.append((time.process_time() - began) * 1000)
        assert result.success, result.error
    return median(times)


async def measure_place(name: str, place: Any, plain: float) -> None:
    artifacts = Artifacts(place)
    runner = Runner([query, read_artifact(artifacts)], around=[limit_output(16_000, artifacts=artifacts)])
    keep = await measure(lambda: runner.run("query", {}, CONTEXT))
    id = (await runner.run("query", {}, CONTEXT)).metadata["artifact"]["id"]
    pages = [
        await measure(lambda one=one: runner.run("read_artifact", {"id": id, **one}, CONTEXT))
        for one in ({"start": 10_000}, {"start": 500_000, "length": 10_000}, {"grep": "customer 1999[0-9]"})
    ]
    print(f"  {name:10} {keep - plain:8.1f} {pages[0]:8.1f} {pages[1]:8.1f} {pages[2]:8.1f}")


async def report() -> None:
    limited = Runner([query], around=[limit_output(16_000)])
    plain = await measure(lambda: limited.run("query", {}, CONTEXT))
    size = len(json.dumps(ROWS)) / 1e6
    print(f"{size:.2f} MB of JSON, Python {sys.version.split()[0]}, ms of CPU time; cut alone: {plain:.1f}")
    print("  place          keep  rows    characters  grep all rows")
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal.open(Path(folder) / "calls.db")
        for name, place in (("memory", None), ("folder", Path(folder) / "kept"), ("journal", journal)):
            await measure_place(name, place, plain)
        journal.close()


if __name__ == "__main__":
    asyncio.run(report())
