"""Tasks that begin at once, where Python has them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar

from ferrule.executors.threads import Raised
from ferrule.types import Coro

if TYPE_CHECKING:
    from ferrule.pipeline.runner_state import RunnerState

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


async def within_time(awaited: Awaitable[object], seconds: float, runner: RunnerState) -> object:
    """What comes of it, or `Raised`. What is late is cancelled and not waited for, and counted until it ends."""
    task = start(outcome_of(awaited), asyncio.get_running_loop())
    try:
        await asyncio.wait({task}, timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
            runner.count_left(task)
    if not task.done():
        return Raised(TimeoutError(f"it took more than {seconds:g} s"))
    return Raised(asyncio.CancelledError()) if task.cancelled() else task.result()  # it may cancel itself


async def outcome_of(awaited: Awaitable[object]) -> object:
    """What comes of it, or `Raised`, for a task: a `SystemExit` that leaves a task ends the loop, and a
    `CancelledError` would be taken for a cancellation of the task."""
    try:
        return await awaited
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Raised(error)
