"""Tasks that begin at once, where Python has them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable
from typing import TypeVar

from ferrule.executors.threads import Raised
from ferrule.types import Coro

_T = TypeVar("_T")

EAGER = sys.version_info >= (3, 12)
"""Whether a task begins at once."""

if sys.version_info >= (3, 12):

    def start(coroutine: Coro[_T], loop: asyncio.AbstractEventLoop) -> asyncio.Task[_T]:
        """A task of its own, begun at once: many handlers never wait."""
        return asyncio.Task(coroutine, loop=loop, eager_start=True)

else:

    def start(coroutine: Coro[_T], loop: asyncio.AbstractEventLoop) -> asyncio.Task[_T]:
        """A task of its own."""
        return asyncio.Task(coroutine, loop=loop)


async def outcome_of(awaited: Awaitable[object]) -> object:
    """What comes of it, or `Raised`, for a task: a `SystemExit` that leaves a task ends the loop, and a
    `CancelledError` would be taken for a cancellation of the task."""
    try:
        return await awaited
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        return Raised(error)
