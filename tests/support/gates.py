"""Tools whose handlers wait until the test lets them go on."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from ferrule import tool
from waits import BOUND


class Gate:
    """A tool, `wait`, whose handler waits until the gate is opened; a stubborn one ignores its cancellation.

    Attributes:
        inside: Is set once a handler waits.
        open: Lets all handlers go on.
        runs: How many handlers have begun.
    """

    def __init__(self, *, stubborn: bool = False, **options: Any) -> None:
        self.inside, self.open = asyncio.Event(), asyncio.Event()
        self.runs = 0
        self.stubborn = stubborn
        self.tool = tool(self.wait, **options)

    async def wait(self) -> str:
        self.runs += 1
        self.inside.set()
        while not self.open.is_set():
            try:
                await self.open.wait()
            except asyncio.CancelledError:
                if not self.stubborn:
                    raise
        return "through"


class Blocker:
    """A tool, `block`, whose handler blocks a thread until it is released."""

    def __init__(self, **options: Any) -> None:
        self.inside, self.release = threading.Event(), threading.Event()
        self.tool = tool(self.block, **options)

    def block(self) -> str:
        self.inside.set()
        self.release.wait(BOUND)
        return "through"
