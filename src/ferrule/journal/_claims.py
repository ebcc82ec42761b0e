"""Which calls this process has begun and not ended, and on which loops."""

from __future__ import annotations

import asyncio


class Claims:
    """The loops that calls were begun on, by their claims. No outcome comes from a loop that is closed."""

    def __init__(self) -> None:
        self._loops: dict[str, asyncio.AbstractEventLoop] = {}

    def add(self, claim: str) -> None:
        """It is begun here."""
        self._loops[claim] = asyncio.get_running_loop()

    def remove(self, claim: str) -> None:
        """It was not begun, or has ended."""
        self._loops.pop(claim, None)

    def is_left(self, claim: str) -> bool:
        """Whether its loop was closed under it."""
        loop = self._loops.get(claim)
        return loop is not None and loop.is_closed()
