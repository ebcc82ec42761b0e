"""What limits that programs share cost a call, by where they are kept: alone, and with 32 callers at once.

Run: python benchmarks/shared_limits.py [FOLDER]

The journal is in the folder, this one where none is given. A PostgreSQL is measured where FERRULE_DATABASE_URL is one;
its table is `ferrule_benchmark`. Everything takes turns within one run, in wall time: what is waited for is no work.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from ferrule import Journal, Runner, ToolCall, tool
from ferrule.middleware import budget, rate
from ferrule.stores.limits import SharedLimits, share_limits
from ferrule.stores.store import DATABASE_URL, Memory, Postgres, Store

CALLS, CALLERS, ROUNDS = 64, 32, 7


@tool(read_only=True)
async def look(n: int) -> int:
    """Look."""
    return n


def stores(folder: str) -> Iterator[tuple[str, Store]]:
    yield "memory", Memory()
    for durable in ("normal", "full"):
        yield f"journal, {durable}", Journal.open(Path(folder, f"{durable}.db"), durable=durable).store  # type: ignore[arg-type]
    if os.environ.get(DATABASE_URL):
        yield "PostgreSQL", Postgres(table="ferrule_benchmark")


def kinds(limits: SharedLimits | None) -> Iterator[tuple[str, Runner]]:
    yield "concurrency", Runner([look], limits=limits, concurrency=CALLERS)
    yield "rate(100)", Runner([look], inside=[rate(100, 0.001, limits=limits)])
    yield "budget(calls)", Runner([look], inside=[budget(calls=10**9, by="all", limits=limits)])
    yield "budget(tokens)", Runner([look], inside=[budget(tokens=10**9, reserve={"tokens": 1}, limits=limits)])


def runs(runner: Runner, callers: int) -> Callable[[], Awaitable[None]]:
    async def caller(calls: int) -> None:
        for n in range(calls):
            result = await runner.run(ToolCall(f"c{n}", "look", {"n": n}))
            while result.status == "limited":  # by a rate, for a millisecond
                result = await runner.run(ToolCall(f"c{n}", "look", {"n": n}))

    async def block() -> None:
        await asyncio.gather(*[caller(CALLS // callers) for _ in range(callers)])

    return block


async def report(folder: str) -> None:
    places: dict[str, Store | None] = {"in process": None, **dict(stores(folder))}
    print(f"µs of wall time per call, Python {sys.version.split()[0]}, and how often as much as in one process")
    for callers in (1, CALLERS):
        print(f"{callers} callers at once")
        blocks = {
            (kind, place): runs(runner, callers)
            for place, store in places.items()
            for kind, runner in kinds(None if store is None else share_limits(store, name=f"{place} {callers}"))
        }
        times: dict[Any, list[float]] = {name: [] for name in blocks}
        for _ in range(ROUNDS + 1):
            for name, block in blocks.items():
                begin = time.perf_counter()
                await block()
                times[name].append((time.perf_counter() - begin) / CALLS * 1e6)
        for kind, _ in kinds(None):
            base = statistics.median(times[kind, "in process"][1:])
            for place in places:
                found = statistics.median(times[kind, place][1:])
                print(f"  {kind:16} {place:16} {found:9.0f} {found / base:8.1f} x")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else ".") as made:
        asyncio.run(report(made))
