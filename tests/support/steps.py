"""How much work something is, as a count that no busy machine changes. What one call of C does inside is one step here:
`benchmarks/work.py` times that."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any


def steps(work: Callable[[], object]) -> int:
    """The functions that `work` calls in this thread, those written in C too."""
    return calls(work).total()


def calls(work: Callable[[], object]) -> Counter[str]:
    """How often it calls functions of each name."""
    count: Counter[str] = Counter()

    def called(frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            count[frame.f_code.co_name if event == "call" else argument.__name__] += 1

    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def lines(work: Callable[[], object]) -> int:
    """The steps, and the lines of Python that run in this thread: loops that call nothing are counted too."""
    count = 0

    def line(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return line

    before = sys.gettrace()
    gc.disable()  # what a collection ends may run anywhere
    sys.settrace(line)
    try:
        called = steps(work)
    finally:
        sys.settrace(before)
        gc.enable()
    return count + called


def peak(work: Callable[[], object]) -> int:
    """The bytes that it held at once at most, beside those that were held before."""
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
