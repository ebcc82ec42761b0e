"""What many calls at once cost: CPU over bare functions, memory in flight, and blocking functions beside the loop.

Run: python benchmarks/parallel.py
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import time
import tracemalloc
from typing import Any

from ferrule import Runner, ToolCall, tool


async def nap(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "done"


@tool(read_only=True)
def block(seconds: float) -> str:
    """Block a thread."""
    time.sleep(seconds)
    return "done"


NAP = tool(nap, read_only=True)


def calls(count: int, seconds: float, name: str = "nap") -> list[ToolCall]:
    return [ToolCall(f"call_{number}", name, f'{{"seconds": {seconds}}}') for number in range(count)]


async def cpu(work: Any) -> float:
    gc.collect()
    begin = time.process_time()
    await work
    return time.process_time() - begin


async def overhead(count: int, rounds: int) -> None:
    plain = Runner([NAP], concurrency=None)
    dated = Runner([NAP], concurrency=None, timeout=30)
    bare, ours, deadline = [], [], []
    for _ in range(rounds):
        bare.append(await cpu(asyncio.gather(*(nap(0.01) for _ in range(count)))))
        ours.append(await cpu(plain.run_all(calls(count, 0.01))))
        deadline.append(await cpu(dated.run_all(calls(count, 0.01))))
    each = [
        statistics.median(b - a for a, b in zip(bare, found, strict=True)) / count * 1e6 for found in (ours, deadline)
    ]
    print(f"{count} concurrent calls of a 10 ms tool, CPU over asyncio.gather of the function:")
    print(f"  {each[0]:.1f} µs each (asked for: 9), with a deadline {each[1]:.1f} µs (asked for: 18 on 3.12 and up)")


async def memory(count: int) -> None:
    inside, all_in, on = 0, asyncio.Event(), asyncio.Event()

    @tool(read_only=True)
    async def stay() -> None:
        """Wait until all are here."""
        nonlocal inside
        inside += 1
        if inside == count:
            all_in.set()
        await on.wait()

    runner = Runner([stay], concurrency=None, timeout=300)
    made = [ToolCall(f"call_{number}", "stay") for number in range(count)]
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    batch = asyncio.ensure_future(runner.run_all(made))
    await all_in.wait()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    on.set()
    await batch
    print(f"{count} in flight: {used / count / 1024:.1f} KiB each (asked for: under 10)")


async def blocking(count: int) -> None:
    runner = Runner([block], concurrency=None)
    worst, stop = 0.0, False

    async def watch() -> None:
        nonlocal worst
        while not stop:
            begin = time.perf_counter()
            await asyncio.sleep(0.001)
            worst = max(worst, time.perf_counter() - begin - 0.001)

    await runner.run_all(calls(32, 0.001, "block"))
    watcher = asyncio.ensure_future(watch())
    await asyncio.sleep(0)
    walls = []
    for _ in range(5):
        begin = time.perf_counter()
        await runner.run_all(calls(count, 0.01, "block"))
        walls.append(time.perf_counter() - begin)
    stop = True
    await watcher
    print(f"{count} blocking calls of 10 ms: {statistics.median(walls) * 1000:.0f} ms of wall time (asked for: 100),")
    print(f"  the loop was blocked for at most {worst * 1000:.0f} ms (asked for: 30)")


async def main() -> None:
    print(f"Python {sys.version.split()[0]}")
    await overhead(1_000, 9)
    await memory(10_000)
    await blocking(200)


if __name__ == "__main__":
    asyncio.run(main())
