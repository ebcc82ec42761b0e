"""Tasks that begin at once, where Python has them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from ferrule.executors.threads import Raised
from ferrule.scheduling.clock import MONOTONIC, Timer
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
    surely: bool = False,
) -> object:
    """What comes of `function(*given)`, or `Raised`, within `seconds`: `ANSWER_SECONDS` where it is `None`, and `inf`
    for as long as it takes. What is late is cancelled and not waited for.

    Args:
        surely: It goes on where who waits is cut off; else it is cancelled, too.
    """
    if seconds is None:
        seconds = ANSWER_SECONDS
    loop = asyncio.get_running_loop()

    def begin() -> asyncio.Task[object]:
        return start(_outcome_of(function, given), loop)

    task = begin()
    if task.done():
        return result_of(task)
    timer: Timer = loop if runner.clock is MONOTONIC else runner.clock  # `decide` may run on another loop than calls
    is_late: asyncio.Future[bool] = loop.create_future()
    deadline = None if seconds == inf else timer.call_at(timer.time() + seconds, _end_late, task, is_late)

    def ended(_: object) -> None:
        if deadline is not None:
            deadline.cancel()
        if not is_late.done():
            is_late.set_result(False)

    task.add_done_callback(ended)
    try:
        if await is_late:  # the task may have ended since: by the cancellation
            return Raised(TimeoutError(f"it took more than {seconds:g} s"))
    except BaseException:
        if surely:
            runner.go_on_writing(task, begin)
        else:
            task.cancel()
        raise
    return result_of(task)


def _end_late(task: asyncio.Task[object], is_late: asyncio.Future[bool]) -> None:
    if not (task.done() or is_late.done()):
        is_late.set_result(True)
    task.cancel()


def result_of(task: asyncio.Task[object]) -> object:
    """What a task that has ended came to; `Raised` if it was cancelled, perhaps by itself."""
    return Raised(asyncio.CancelledError()) if task.cancelled() else task.result()


async def _outcome_of(function: Callable[..., Awaitable[object]], given: tuple[object, ...]) -> object:
    """What comes of it, or `Raised`, for a task: a `SystemExit` that leaves a task ends the loop, and a
    `CancelledError` would be taken for a cancellation of the task."""
    try:
        return await function(*given)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Raised(error)
