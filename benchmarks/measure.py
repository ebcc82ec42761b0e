"""Interleaved measuring: ratios of process CPU time within one run, so that a noisy machine is noisy for both sides."""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import Awaitable, Callable

Block = Callable[[int], Awaitable[None]]
_COLLECTED_EVERY = 10


async def measure_rounds(blocks: dict[str, Block], *, calls: int, rounds: int) -> dict[str, list[float]]:
    """The CPU time per call of each block in each round, in microseconds; the blocks take turns."""
    times: dict[str, list[float]] = {name: [] for name in blocks}
    for block in blocks.values():
        await block(max(calls // 10, 10))
    gc.collect()
    gc.disable()
    try:
        for number in range(1, rounds + 1):
            for name, block in blocks.items():
                begin = time.process_time()
                await block(calls)
                times[name].append((time.process_time() - begin) / calls * 1e6)
            if number % _COLLECTED_EVERY == 0:
                gc.collect()
    finally:
        gc.enable()
    return times


def measure_medians(blocks: dict[str, Block], *, calls: int, rounds: int) -> dict[str, float]:
    """The median of each block, measured in a loop of its own."""
    times = asyncio.run(measure_rounds(blocks, calls=calls, rounds=rounds))
    return {name: statistics.median(found) for name, found in times.items()}


def ratio(times: list[float], base: list[float]) -> tuple[float, float]:
    """The ratio of two blocks' least times, and of their medians."""
    return min(times) / min(base), statistics.median(times) / statistics.median(base)
