"""How near calls that share keys and slots come to the ideal schedule: wall time over as many bare workers.

Run: python benchmarks/contention.py
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from ferrule import Runner, ToolCall, tool

CALLS = 1_000
SLOTS = 8
WORK = 0.01


async def work(n: int) -> int:
    """Work on something for 10 ms."""
    await asyncio.sleep(WORK)
    return n


def runner(keys: int) -> Runner:
    return Runner([tool(work, resources=lambda arguments: [f"k{arguments['n'] % keys}"])], concurrency=SLOTS)


async def ours(keys: int) -> None:
    results = await runner(keys).run_all(ToolCall(f"c{n}", "work", f'{{"n": {n}}}') for n in range(CALLS))
    assert all(result.success for result in results)


async def ideal(workers: int) -> None:
    left = iter(range(CALLS))

    async def worker() -> None:
        for n in left:
            await work(n)

    await asyncio.gather(*(worker() for _ in range(workers)))


async def wall(make: Callable[[int], Awaitable[Any]], count: int) -> float:
    begin = time.perf_counter()
    await make(count)
    return time.perf_counter() - begin


async def main(rounds: int = 2) -> None:
    print(f"{CALLS} calls of {WORK * 1000:g} ms at concurrency {SLOTS}, Python {sys.version.split()[0]}")
    for keys, workers in ((1, 1), (50, SLOTS)):
        pairs = [(await wall(ideal, workers), await wall(ours, keys)) for _ in range(rounds)]
        best, found = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratio = statistics.median(b / a for a, b in pairs)
        print(f"  {keys:2} keys: {found:.2f} s, ideal {best:.2f} s: {ratio:.3f} x (asked for: 1.10 x)")


if __name__ == "__main__":
    asyncio.run(main())
