"""Interleaved measuring: ratios of process CPU time within one run, so that a noisy machine is noisy for both sides."""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

Block = Callable[[int], Awaitable[None]]
_COLLECTED_EVERY = 10


@dataclass(frozen=True)
class Line:
    """One line of the table.

    Attributes:
        ours: The figure; `None` if it could not be measured, and `note` says why.
        goal: The largest figure that is good enough, or the smallest if `more_is_better`.
        ratio: Ours ÷ the best peer's, both measured in turns in one process.
        peers: The figures of the peers.
    """

    work: str
    unit: str
    ours: float | None
    goal: float | None = None
    ratio: float | None = None
    peers: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    more_is_better: bool = False

    @property
    def verdict(self) -> str:
        """Whether the line meets its goal."""
        if self.ours is None or self.goal is None:
            return ""
        is_met = self.ours >= self.goal if self.more_is_better else self.ours <= self.goal
        return "met" if is_met else "missed"


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
