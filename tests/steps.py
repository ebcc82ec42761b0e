"""How much work something is, as a count that no busy machine changes. What one call of C does inside is one step here:
`benchmarks/work.py` times that."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any


def steps(work: Callable[[], object]) -> int:
    """The functions that `work` calls in this thread, those written in C too."""
    count = 0

    def called(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

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
