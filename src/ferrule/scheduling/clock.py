"""The clock of whatever waits or counts by time; tests put in one that they move by hand."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol, runtime_checkable


@runtime_checkable
class Clock(Protocol):
    """Tells the time and waits. `ferrule.testing.ManualClock` is one that stands still until a test moves it."""

    def time(self) -> float:
        """Seconds since any moment; they never go back. May be called from any thread."""
        ...

    async def sleep(self, seconds: float, /) -> None:
        """Wait that long by this clock."""
        ...


class _Monotonic:
    """The clock of the machine."""

    time = staticmethod(time.monotonic)
    sleep = staticmethod(asyncio.sleep)

    def __repr__(self) -> str:
        return "MONOTONIC"


MONOTONIC: Clock = _Monotonic()
