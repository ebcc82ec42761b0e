"""Where code runs, and who waits there."""

from __future__ import annotations

import asyncio


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs in this thread; `None` where none does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def wake(waiter: asyncio.Future[None]) -> None:
    """Let whoever waits look again."""
    if not waiter.done():
        waiter.set_result(None)
