"""How long a test waits for what must happen, and how it waits for what has no event of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

BOUND = 60.0
"""Seconds that a test waits for something that must happen. A loaded machine may stop a program for ten."""


def wait_until(condition: Callable[[], Any]) -> Any:
    """Return what `condition` gives once that is true."""
    end = time.monotonic() + BOUND
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.001)
    return found


async def until(condition: Callable[[], Any]) -> None:
    """Return once `condition` is true, and let the loop run meanwhile."""
    async with asyncio.timeout(BOUND):
        while not condition():
            await asyncio.sleep(0.001)
