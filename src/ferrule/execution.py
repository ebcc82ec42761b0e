"""How a handler is executed: within a deadline, in a task of its own; in a thread, where it blocks."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from ferrule import pool
from ferrule.core.context import CURRENT, CallState
from ferrule.core.plan import Plan
from ferrule.core.values import ToolResult

if TYPE_CHECKING:
    from ferrule.runner import Runner

_Coroutine = Coroutine[Any, Any, Any]

if sys.version_info >= (3, 12):

    def start(coroutine: _Coroutine, loop: asyncio.AbstractEventLoop) -> asyncio.Task[Any]:
        """A task of its own, begun at once: many handlers never wait."""
        return asyncio.Task(coroutine, loop=loop, eager_start=True)

else:

    def start(coroutine: _Coroutine, loop: asyncio.AbstractEventLoop) -> asyncio.Task[Any]:
        """A task of its own."""
        return asyncio.Task(coroutine, loop=loop)


OWN_TASK = sys.version_info < (3, 13)
"""Whether every async handler needs a task of its own, deadline or not.

Before Python 3.13 an `asyncio.TaskGroup` whose child failed leaves its task's `cancelling()` raised. In the caller's
task that would be taken for a cancellation from outside.
"""


async def within(
    task: asyncio.Task[Any], runner: Runner, plan: Plan, state: CallState, seconds: float | None, grace: float
) -> Any:
    """What `contained` comes to in the task that runs it, which has `seconds`; `None` is no deadline.

    At the deadline it is cancelled, gets `grace` seconds to end, and is then abandoned and reported. Whatever it makes
    of the cancellation, and whether it raises a `TimeoutError` of its own, changes nothing about that.
    """
    loop = asyncio.get_running_loop()
    try:
        in_time = await _ended(task, loop, state, seconds)
    except asyncio.CancelledError:
        await _stopped(task, loop, state, None if seconds is None else grace)
        raise
    if seconds is not None and (not in_time or loop.time() > (state.deadline or 0.0)):
        await _stopped(task, loop, state, grace)
        return timed_out(runner, plan, state, seconds)
    return task.result()


async def contained(runner: Runner, plan: Plan, state: CallState) -> Any:
    """The own task of a handler and what goes round it inside: its result, or `Raised`.

    Nothing is raised out of it: a `SystemExit` in a task would end the loop.
    """
    CURRENT.set(state)
    state.cancels = 0
    try:
        if plan.inside is not None:
            return await plan.inside(state.call, state.context)
        return await runner._handled(plan, state)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        return pool.Raised(error)
    finally:
        if state.waiter is not None:
            wake(state.waiter)


async def _ended(
    task: asyncio.Task[Any], loop: asyncio.AbstractEventLoop, state: CallState, seconds: float | None
) -> bool:
    """Whether the task ends within `seconds`, or at all; it is left alone in any case.

    The task wakes its waiter itself, at its end: a callback would cost one more turn of the loop.
    """
    waiter = state.waiter = loop.create_future()
    if task.cancelling():  # a task that is cancelled before its first step never comes to its end
        task.add_done_callback(lambda _: wake(waiter))
    handle = None if seconds is None else loop.call_later(seconds, wake, waiter)
    try:
        await waiter
    finally:
        state.waiter = None
        if handle is not None:
            handle.cancel()
    return task.done()


def wake(waiter: asyncio.Future[None]) -> None:
    """Let whoever waits look again."""
    if not waiter.done():
        waiter.set_result(None)


async def _stopped(
    task: asyncio.Task[Any], loop: asyncio.AbstractEventLoop, state: CallState, grace: float | None
) -> None:
    """Cancel the task and wait for it: at most `grace` seconds, then it is left running; `None` waits as long as it
    takes, as a plain `await` of the handler would."""
    while not task.done():
        task.cancel()
        try:
            if not await _ended(task, loop, state, grace):
                state.left = _Left(task)
                return
        except asyncio.CancelledError:  # once more: whoever cancels does not want to wait
            if grace is not None and not task.done():
                state.left = _Left(task)
                return


class _Left:
    """A task that outlived its deadline."""

    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task

    def when_done(self, callback: Callable[[], object]) -> None:
        self._task.add_done_callback(lambda task: callback())


def timed_out(runner: Runner, plan: Plan, state: CallState, seconds: float) -> ToolResult:
    limit = f"its deadline of {seconds:g} s"
    if state.executed is False:
        text = f"{plan.name} was not started before {limit}. Nothing was run."
    elif state.left is not None:
        text = f"{plan.name} did not end by {limit} and is still running; its effect may yet happen. Do not repeat it."
    elif state.executed:
        text = f"{plan.name} ended after {limit}, so its result was dropped; it was executed."
    else:
        text = f"{plan.name} was stopped at {limit}; its effect may have happened."
    return runner._result(state, "timeout", text)


async def in_thread(plan: Plan, values: Any, state: CallState) -> Any:
    """Run a blocking handler in the pool, with the context copied.

    Raises:
        PoolExhausted: where too many that outlived their deadlines still run.
        BaseException: whatever the handler raised.
    """
    direct, call = plan.direct, plan.call
    job = pool.shared().submit(
        (lambda: direct(**values)) if direct is not None else (lambda: call(values, state.context)),
        nested=state.parent is not None,
    )
    try:
        value = await job.future
    except asyncio.CancelledError:
        if job.cancel():
            state.executed = False
        elif job.running:
            state.left = job
        raise
    if isinstance(value, pool.Raised):
        error = value.error
        if isinstance(error, KeyboardInterrupt | GeneratorExit | StopIteration):
            raise RuntimeError(f"{type(error).__name__} raised in a thread") from error
        raise error
    return await value if inspect.isawaitable(value) else value
