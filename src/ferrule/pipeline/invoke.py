"""The handler of a call that may run: within its deadline, with the middleware inside round it."""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from types import coroutine
from typing import Any

from ferrule.arguments.argument_errors import ArgumentErrors
from ferrule.arguments.judged_form import NoJudgedForm
from ferrule.errors import DefinitionError
from ferrule.executors.threads import Raised
from ferrule.pipeline import results
from ferrule.pipeline.hooks import run_hooks
from ferrule.pipeline.plan import Plan
from ferrule.pipeline.results import NOTHING_RUN, Rejected
from ferrule.pipeline.state import RELIABLE_CANCELLING, CallState, ancestors, state_of
from ferrule.pipeline.tasks import EAGER, outcome_of, start
from ferrule.scheduling.timer import Timer, wake
from ferrule.types import Coro
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.result import ToolResult


def invoke(plan: Plan, values: object, state: CallState) -> ToolResult | Awaitable[ToolResult]:
    """What the handler comes to, with the middleware inside round it: at once, or an awaitable of it. A deadline is
    counted from here.

    Where there is a deadline it runs in a task of its own.
    """
    seconds = plan.timeout if state.timeout is None else state.timeout
    state.own_task = None  # of an earlier attempt
    if state.parent is not None:
        left = _left_above(state)
        if left is not None and (seconds is None or left < seconds):
            if left <= 0:
                late = f"{plan.name} was not started: the deadline of a call that made it has passed. {NOTHING_RUN}"
                return results.rejected(state, Rejected("timeout", late))
            state.timeout = seconds = left
            state.inherits = True
    if plan.inside is None:
        handling: Any = run_handler(plan, values, state)
    else:
        handling = _contained(plan.inside(state.call, state.context), state)
    if seconds is None:
        return handling  # type: ignore[no-any-return]
    loop = get_running_loop()
    timer = plan.timer
    if timer is None or timer.loop is not loop or timer.seconds != seconds:
        timer = Timer(loop, seconds)
        if state.timeout is None:
            plan.timer = timer
    state.deadline = loop.time() + seconds
    task = state.own_task = start(handling, loop)
    if task.done() and loop.time() <= state.deadline and not task.cancelled():  # a handler that never waited
        result: Any = task.result()
        if isinstance(result, ToolResult):
            return result
    return _within_deadline(task, plan, state, timer)


def _left_above(state: CallState) -> float | None:
    """Seconds until the first deadline of the calls that made this one; what goes round one is not within it."""
    deadlines = [call.deadline for call in ancestors(state) if call.inside and call.deadline is not None]
    return min(deadlines) - get_running_loop().time() if deadlines else None


def handle_judged(plan: Plan, call: ToolCall, context: ToolContext) -> Coro[ToolResult]:
    """The end of the chain of `inside`: what was judged is what runs.

    Raises:
        DefinitionError: where a middleware gave `next` another call.
    """
    state = state_of(plan, context)
    if call is not state.call and call != state.call:
        raise DefinitionError("a middleware inside gave `next` another call; arguments change only in `around`")
    return run_handler(plan, None, state)


async def run_handler(plan: Plan, values: object, state: CallState) -> ToolResult:
    """The handler, what it came to, and the hooks next to it.

    Args:
        values: What the handler gets; `None` for those of the judged call, which the first run has and every other one
            validates anew, because the first may have changed its own objects.
    """
    state.handlers += 1
    try:
        if values is None:
            if not state.inside:
                raise DefinitionError("a middleware inside called `next` after its result")
            if state.is_cancelled():  # a middleware inside made nothing of it
                raise asyncio.CancelledError
            if state.made is not None and not state.may_run_again:
                return results.rejected(state, results.stopped(plan))
            judged = state.call
            values = plan.parameters.again(judged.arguments) if state.runs else judged.arguments.validated
        if plan.disabled is not None:  # since the call had its slot
            return results.rejected(state, results.denied(plan.disabled))
        state.executed = None
        state.runs += 1
        try:
            running = plan.run(values, state)
            value = await (running if RELIABLE_CANCELLING or _is_alone(plan, state) else _in_own_task(running, state))
            result = results.handler_returned(plan, state, value)
        except BaseException as error:
            result = results.handler_raised(plan, state, error)
        if plan.handler_hooks:
            replaced = run_hooks(plan.handler_hooks, result, state.context)
            result = replaced if isinstance(replaced, ToolResult) else await replaced
        return result
    except (ArgumentErrors, NoJudgedForm) as error:  # what a validator makes of the same text may change
        reason = "its arguments do not fit any more" if isinstance(error, ArgumentErrors) else error
        return results.rejected(state, Rejected("failed", f"{plan.name} could not be run: {reason}. {NOTHING_RUN}"))
    except SystemExit as error:  # in a task of its own it would end the loop
        return results.middleware_raised(state, error)
    finally:
        if state.waiter is not None and plan.inside is None:
            wake(state.waiter)
        state.handlers -= 1
        if state.when_idle:
            _tell_of_end(state)


def _tell_of_end(state: CallState) -> None:
    """Do what waits until nothing of the call is under way."""
    if not state.handlers:
        callbacks, state.when_idle = state.when_idle, ()
        for callback in callbacks:
            callback()


async def _contained(handling: Awaitable[ToolResult], state: CallState) -> ToolResult:
    """The chain of middleware inside, for a task of its own: a `SystemExit` there would end the loop."""
    state.handlers += 1
    try:
        return await handling
    except SystemExit as error:
        return results.middleware_raised(state, error)
    finally:
        if state.waiter is not None:
            wake(state.waiter)
        state.handlers -= 1
        if state.when_idle:
            _tell_of_end(state)


def _is_alone(plan: Plan, state: CallState) -> bool:
    """Whether the handler's task runs nothing else: what a deadline has made where no middleware stands inside."""
    return plan.inside is None and (state.timeout is not None or plan.timeout is not None)


async def _in_own_task(running: Awaitable[object], state: CallState) -> object:
    """What a handler comes to in a task of its own, as before Python 3.13 all do: there a task group of the handler's
    that fails would be taken for a cancellation from outside. It is cancelled whenever this is."""
    task = state.own_task = start(outcome_of(running), get_running_loop())
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            state.stopped = (*state.stopped, task)
            task.cancel()
    outcome = task.result()
    if isinstance(outcome, Raised):
        raise outcome.error
    return outcome


async def _within_deadline(task: asyncio.Task[ToolResult], plan: Plan, state: CallState, timer: Timer) -> ToolResult:
    """What the task comes to, which has the seconds of `timer`.

    At the deadline it is cancelled, gets `grace` seconds to end, and is then abandoned and reported. Whatever it makes
    of the cancellation, and whether it raises a `TimeoutError` of its own, changes nothing about that.
    """
    loop, deadline = timer.loop, state.deadline or 0.0
    try:
        if not EAGER:
            await _one_turn()  # it takes its first step, and a handler that never waits is done without a timer
        if not task.done():
            await _wait_for_end(task, state, timer)
            while not task.done() and loop.time() < deadline:  # an attempt that was given up before has woken this one
                await _wait_for_end(task, state, Timer(loop, deadline - loop.time()))
    except asyncio.CancelledError:
        await _stop_handler(task, plan, state)
        raise
    if not task.done() or loop.time() > deadline:  # it may have blocked the loop meanwhile
        await _stop_handler(task, plan, state)
        return results.timed_out(plan, state, timer.seconds)
    return task.result()


@coroutine
def _one_turn() -> Generator[None, None, None]:
    """Let the loop run what is ready."""
    yield


async def _wait_for_end(task: asyncio.Task[ToolResult], state: CallState, timer: Timer) -> None:
    """Wait until the task has ended, or the time of `timer` is over.

    The task wakes the waiter itself, at its end: a callback would cost one more turn of the loop.
    """
    waiter: asyncio.Future[None] = timer.loop.create_future()
    state.waiter = waiter
    if task.cancelling():  # a task that is cancelled before its first step never comes to its end
        task.add_done_callback(lambda _: wake(waiter))
    timer.add(waiter)
    try:
        await waiter
    finally:
        timer.remove(waiter)


async def _stop_handler(task: asyncio.Task[ToolResult], plan: Plan, state: CallState) -> None:
    """Cancel the task and wait for it, at most `grace` seconds; then it is left running."""
    state.stopped = (*state.stopped, task)
    while not task.done():
        task.cancel()
        with suppress(asyncio.CancelledError):  # once more: whoever cancels does not want to wait
            await _wait_for_end(task, state, Timer(get_running_loop(), plan.runner.grace))
        if not task.done():
            break
    task.add_done_callback(_mark_seen)  # the result tells of the deadline
    if state.handlers:
        note_outlived(state)


def _mark_seen(task: asyncio.Task[ToolResult]) -> None:
    if not task.cancelled():
        task.exception()


def note_outlived(state: CallState) -> None:
    """Note that a middleware inside has left a handler running, which keeps the slot until it ends."""
    if not any(isinstance(job, _Outlived) and job.state is state for job in state.abandoned[state.counted :]):
        state.abandon(_Outlived(state))


class _Outlived:
    """What goes on of a call after its result: its own task, and handlers that a middleware has shielded."""

    __slots__ = ("state",)

    def __init__(self, state: CallState) -> None:
        self.state = state

    def when_done(self, callback: Callable[[], object]) -> None:
        if self.state.handlers:
            self.state.when_idle = (*self.state.when_idle, callback)
        else:
            callback()
