"""What a warm isolated call costs beside a bare `concurrent.futures.ProcessPoolExecutor`, taking turns in one run.

Run: python benchmarks/isolation.py
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import isolation as tools  # under this name, because no worker imports `__main__`

from ferrule import ToolCall, ToolContext, tool
from ferrule.executors.process import Recipe
from ferrule.executors.process.order import Order
from ferrule.executors.process.pool import WorkerPool, shared_pool

CALLS, ROUNDS, KILLS = 100, 30, 15
FIELDS = ToolContext().fields


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def hang() -> None:
    """Never end."""
    with suppress(BaseException):
        time.sleep(600)


def order(recipe: Recipe, arguments: str) -> Order:
    return Order(recipe, ToolCall("call_1", json.loads(recipe.text)["name"], arguments), FIELDS, None, None, key="k1")


async def measure_time(call: Callable[[], Awaitable[int]], found: list[float]) -> None:
    for _ in range(CALLS):
        begin = time.perf_counter()
        await call()
        found.append((time.perf_counter() - begin) * 1e6)


async def round_trips(pool: WorkerPool) -> None:
    recipe = Recipe(tool(tools.add))
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as bare_pool:

        async def bare() -> int:
            return await loop.run_in_executor(bare_pool, tools.add, 1, 2)

        async def ours() -> int:
            return await pool.submit(order(recipe, '{"a": 1, "b": 2}')).future  # type: ignore[no-any-return]

        times: dict[str, list[float]] = {"bare": [], "ours": []}
        for _ in range(ROUNDS + 1):
            await measure_time(bare, times["bare"])
            await measure_time(ours, times["ours"])
        bare_median, our_median = (statistics.median(found[CALLS:]) for found in times.values())
    print(f"a bare ProcessPoolExecutor round trip: {bare_median:.0f} µs (median of {CALLS * ROUNDS})")
    print(
        f"a warm isolated call:                  {our_median:.0f} µs, {our_median / bare_median:.2f} × (asked for: 3)"
    )


async def kills(pool: WorkerPool) -> None:
    recipe = Recipe(tool(tools.hang))
    gone, next_call = [], []
    for _ in range(KILLS):
        job = pool.submit(order(recipe, "{}"))
        running = job.pid
        assert running is not None  # a worker was waiting
        await asyncio.to_thread(until_idle, pool)
        job.future.add_done_callback(lambda future: future.exception())
        begin = time.perf_counter()
        job.kill()
        await asyncio.to_thread(wait_for_exit, running)
        gone.append((time.perf_counter() - begin) * 1e3)
        begin = time.perf_counter()
        await pool.submit(order(Recipe(tool(tools.add)), '{"a": 1, "b": 2}')).future
        next_call.append((time.perf_counter() - begin) * 1e3)
        await asyncio.to_thread(until_idle, pool)
    print(f"a killed tool's processes are gone after {max(gone):.1f} ms at the most (asked for: 200), ", end="")
    print(f"and the next call took {statistics.median(next_call):.1f} ms (median of {KILLS})")


def until_idle(pool: WorkerPool) -> None:
    """Wait for the spare."""
    while not pool.idle_count:
        time.sleep(0.002)


def wait_for_exit(group: int) -> None:
    with suppress(ProcessLookupError):
        while True:
            os.killpg(group, 0)
            time.sleep(0.0005)


async def main() -> None:
    print(f"Python {sys.version.split()[0]}")
    pool = shared_pool()
    pool.warm(2, [Recipe(tool(tools.add))])
    await round_trips(pool)
    await kills(pool)


if __name__ == "__main__":
    asyncio.run(main())
