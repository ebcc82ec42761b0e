"""Run coroutines in tasks of their own, with a bound on time."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from ferrule.executors.threads import Raised
from ferrule.scheduling.clock import MONOTONIC, Timer

if TYPE_CHECKING:
    from ferrule.kernel.runner_state import RunnerState

_EAGERLY: dict[str, Any] = {"eager_start": True} if sys.version_info >= (3, 12) else {}
start_eagerly: Callable[..., asyncio.Task[Any]] = partial(asyncio.Task, **_EAGERLY)
"""Run a coroutine in a task, at once if Python can (3.12): many handlers never wait."""
ANSWER_SECONDS = 10.0
"""Seconds that a guard or a journal may take to answer."""


async def run_within(
    runner: RunnerState,
    function: Callable[..., Awaitable[object]],
    *given: object,
    seconds: float | None = None,
    survives_cancellation: bool = False,
) -> object:
    """Return the value of `function(*given)`, or `Raised` if it raises or takes too long. A late task is cancelled.

    Args:
        seconds: The bound; None for `ANSWER_SECONDS`, `inf` for none.
        survives_cancellation: Let the task go on if the caller is cancelled, instead of cancelling it.
    """
    if seconds is None:
        seconds = ANSWER_SECONDS
    loop = asyncio.get_running_loop()

    def begin() -> asyncio.Task[object]:
        return start_eagerly(_capture_outcome(function, given), loop=loop)

    task = begin()
    if task.done():
        return get_task_outcome(task)
    timer: Timer = loop if runner.clock is MONOTONIC else runner.clock  # `decide` may run on a loop of its own
    is_late: asyncio.Future[bool] = loop.create_future()
    deadline = None if seconds == inf else timer.call_at(timer.time() + seconds, _stop_late_task, task, is_late)

    def on_end(_: object) -> None:
        if deadline is not None:
            deadline.cancel()
        if not is_late.done():
            is_late.set_result(False)

    task.add_done_callback(on_end)
    try:
        if await is_late:  # the cancellation may have ended the task since
            return Raised(TimeoutError(f"it took more than {seconds:g} s"))
    except BaseException:
        if survives_cancellation:
            runner.track_write(task, begin)
        else:
            task.cancel()
        raise
    return get_task_outcome(task)


def _stop_late_task(task: asyncio.Task[object], is_late: asyncio.Future[bool]) -> None:
    if not (task.done() or is_late.done()):
        is_late.set_result(True)
    task.cancel()


def get_task_outcome(task: asyncio.Task[object]) -> object:
    """Return the value of a task that has ended, or `Raised` if it was cancelled, perhaps by itself."""
    return Raised(asyncio.CancelledError()) if task.cancelled() else task.result()


async def _capture_outcome(function: Callable[..., Awaitable[object]], given: tuple[object, ...]) -> object:
    """Return the function's value, or `Raised`.

    In a task, a `SystemExit` would end the loop, and a `CancelledError` would look like a cancellation of the task.
    """
    try:
        return await function(*given)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Raised(error)
