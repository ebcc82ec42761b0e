"""Interleaved measuring: ratios of process CPU time within one run, so that a noisy machine is noisy for both sides."""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import Awaitable, Callable

Block = Callable[[int], Awaitable[None]]


async def interleaved(blocks: dict[str, Block], *, calls: int, rounds: int) -> dict[str, float]:
    """The median CPU time per call of each block, in microseconds; the blocks take turns."""
    times: dict[str, list[float]] = {name: [] for name in blocks}
    for block in blocks.values():
        await block(max(calls // 10, 10))
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, block in blocks.items():
                begin = time.process_time()
                await block(calls)
                times[name].append((time.process_time() - begin) / calls * 1e6)
            gc.collect()
    finally:
        gc.enable()
    return {name: statistics.median(found) for name, found in times.items()}


def measured(blocks: dict[str, Block], *, calls: int, rounds: int) -> dict[str, float]:
    """`interleaved` in a loop of its own."""
    return asyncio.run(interleaved(blocks, calls=calls, rounds=rounds))
