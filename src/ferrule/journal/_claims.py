"""The unfinished calls of this process, and their event loops."""

from __future__ import annotations

import asyncio


class Claims:
    """The loops of the begun calls, by claim. A call on a closed loop never gets an outcome."""

    def __init__(self) -> None:
        self._loops: dict[str, asyncio.AbstractEventLoop] = {}

    def add(self, claim: str) -> None:
        """Add a call that begins on the current loop."""
        self._loops[claim] = asyncio.get_running_loop()

    def remove(self, claim: str) -> None:
        """Remove a call that was not begun, or has ended."""
        self._loops.pop(claim, None)

    def is_abandoned(self, claim: str) -> bool:
        """Return whether the loop of the call was closed before the call ended."""
        loop = self._loops.get(claim)
        return loop is not None and loop.is_closed()
