"""Tasks that begin at once, where Python has them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from ferrule.executors.threads import Raised
from ferrule.scheduling.clock import MONOTONIC, Timer, end_of, wait_until
from ferrule.types import Coro

if TYPE_CHECKING:
    from ferrule.pipeline.runner_state import RunnerState

_T = TypeVar("_T")

_EAGERLY: dict[str, Any] = {"eager_start": True} if sys.version_info >= (3, 12) else {}


def start(coroutine: Coro[_T], loop: asyncio.AbstractEventLoop) -> asyncio.Task[_T]:
    """A task of its own, begun at once where Python can: many handlers never wait."""
    return asyncio.Task(coroutine, loop=loop, **_EAGERLY)


ANSWER_SECONDS = 10.0
"""Seconds that a guard or a journal has for its answer."""


async def within_time(
    runner: RunnerState,
    function: Callable[..., Awaitable[object]],
    *given: object,
    seconds: float | None = None,
) -> object:
    """What comes of `function(*given)`, or `Raised`, within `seconds`: `ANSWER_SECONDS` where it is `None`, and `inf`
    for as long as it takes. What is late is cancelled and not waited for."""
    if seconds is None:
        seconds = ANSWER_SECONDS
    loop = asyncio.get_running_loop()
    timer: Timer = loop if runner.clock is MONOTONIC else runner.clock  # `decide` may run on another loop than calls
    task = start(_outcome_of(function, given), loop)
    try:
        if not task.done():
            await wait_until(end_of(task), None if seconds == inf else timer.time() + seconds, timer)
    finally:
        task.cancel()
    if not task.done():
        return Raised(TimeoutError(f"it took more than {seconds:g} s"))
    return Raised(asyncio.CancelledError()) if task.cancelled() else task.result()  # it may cancel itself


async def _outcome_of(function: Callable[..., Awaitable[object]], given: tuple[object, ...]) -> object:
    """What comes of it, or `Raised`, for a task: a `SystemExit` that leaves a task ends the loop, and a
    `CancelledError` would be taken for a cancellation of the task."""
    try:
        return await function(*given)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Raised(error)
