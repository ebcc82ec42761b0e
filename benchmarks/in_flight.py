"""The memory of calls that all run at once, with everything on.

The row counts all of it. Its note says how much a bare `asyncio` task of the same handler takes, which no runner saves:
the task, the handler's coroutine, and what the handler waits for.
"""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Iterator

from cases import CONTEXT, Case, settings
from measure import Line

from ferrule import Runner, ToolCall, tool


async def measure_memory(count: int, *, without_runner: bool = False) -> float:
    """KiB of each of so many calls in flight, or of as many tasks of the bare handler."""
    inside, all_in, on = 0, asyncio.Event(), asyncio.Event()

    async def stay() -> None:
        """Wait until all are here."""
        nonlocal inside
        inside += 1
        if inside == count:
            all_in.set()
        await on.wait()

    case = Case("", "", stay, "", dict, (0, 0), 0)
    options = settings(case) | {"timeout": 300}
    runner = Runner([tool(stay, concurrency=2 * count)], concurrency=None, **options)
    made = [ToolCall(f"call_{number}", "stay", "{}") for number in range(count)]
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    running = asyncio.gather(*(stay() if without_runner else runner.run(call, CONTEXT) for call in made))
    await all_in.wait()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    on.set()
    await running
    return used / count / 1024


def measure() -> Iterator[Line]:
    """The row; bytes repeat."""
    bare = asyncio.run(measure_memory(1_000, without_runner=True))
    note = f"of these, {bare:.2f} are a bare asyncio task of the handler"
    yield Line("1,000 calls in flight, each", "KiB", asyncio.run(measure_memory(1_000)), 4, note=note)
