"""The handler of a call that may run: within its deadline, with the middleware inside round it."""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from collections.abc import Awaitable
from contextlib import suppress
from math import inf
from typing import Any

from ferrule.arguments.argument_errors import ArgumentErrors
from ferrule.arguments.dumping import NoJudgedForm
from ferrule.errors import DefinitionError
from ferrule.executors.threads import Raised
from ferrule.pipeline import results
from ferrule.pipeline.hooks import run_hooks
from ferrule.pipeline.plan import Plan
from ferrule.pipeline.results import NOTHING_RUN, Rejected
from ferrule.pipeline.state import RELIABLE_CANCELLING, CallState, state_of
from ferrule.pipeline.tasks import outcome_of, start
from ferrule.scheduling.loops import wake
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
        left = state.deadline_above - get_running_loop().time()
        if left <= 0:
            late = f"{plan.name} was not started: the deadline of a call that made it has passed. {NOTHING_RUN}"
            return results.rejected(state, Rejected("timeout", late))
        if left < (inf if seconds is None else seconds):
            state.timeout = seconds = left
    if plan.inside is None:
        handling: Any = run_handler(plan, values, state)
    else:
        handling = _contained(plan.inside(state.call, state.context), state)
    if seconds is None:
        return handling  # type: ignore[no-any-return]
    loop = get_running_loop()
    state.deadline = loop.time() + seconds
    task = state.own_task = start(handling, loop)
    if task.done() and loop.time() <= state.deadline and not task.cancelled():  # a handler that never waited
        result: Any = task.result()
        if isinstance(result, ToolResult):
            return result
    return _within_deadline(task, plan, state, seconds)


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
        if state.ended or not state.inside:
            raise DefinitionError("a middleware inside called `next` after its result")
        if values is None:
            if state.is_cancelled():  # a middleware inside made nothing of it
                raise asyncio.CancelledError
            judged = state.call.arguments
            values = plan.parameters.again(judged) if state.runs else judged.validated
        if plan.disabled is not None or (state.made is not None and not state.may_run_again):  # since it had its slot
            return results.rejected(state, results.stopped(plan))
        state.executed = None
        state.runs += 1
        try:
            running = plan.run(values, state)
            value = await (running if RELIABLE_CANCELLING or state.alone else _in_own_task(running, state))
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
        state.note_end(plan.inside is None)


async def _contained(handling: Awaitable[ToolResult], state: CallState) -> ToolResult:
    """The chain of middleware inside, for a task of its own: a `SystemExit` there would end the loop."""
    state.handlers += 1
    try:
        return await handling
    except SystemExit as error:
        return results.middleware_raised(state, error)
    finally:
        state.note_end(True)


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


async def _within_deadline(task: asyncio.Task[ToolResult], plan: Plan, state: CallState, seconds: float) -> ToolResult:
    """What the task comes to, which has `seconds`.

    At the deadline it is cancelled, gets `grace` seconds to end, and is then abandoned and reported. Whatever it makes
    of the cancellation, and whether it raises a `TimeoutError` of its own, changes nothing about that.
    """
    time = get_running_loop().time
    try:
        while not task.done() and time() < (state.deadline or 0.0):  # woken too where the deadline was moved
            await _wait_for_end(task, state, state.deadline or 0.0)
    except asyncio.CancelledError:
        await _stop_handler(task, plan, state)
        raise
    if not task.done() or time() > (state.deadline or 0.0):  # it may have blocked the loop meanwhile
        await _stop_handler(task, plan, state)
        return results.timed_out(plan, state, seconds)
    return task.result()


async def _wait_for_end(task: asyncio.Task[ToolResult], state: CallState, until: float) -> None:
    """Wait until the task has ended, or it is `until`.

    The task wakes the waiter itself, at its end: a callback would cost one more turn of the loop.
    """
    loop = get_running_loop()
    waiter = state.waiter = loop.create_future()
    if task.cancelling():  # a task that is cancelled before its first step never comes to its end
        task.add_done_callback(lambda _: wake(waiter))
    late = None if until == inf else loop.call_at(until, wake, waiter)
    try:
        await waiter
    finally:
        if late is not None:
            late.cancel()


async def _stop_handler(task: asyncio.Task[ToolResult], plan: Plan, state: CallState) -> None:
    """Cancel the task and wait for it, at most `grace` seconds; then it is left running."""
    state.stopped = (*state.stopped, task)
    if not task.done():
        task.cancel()
        with suppress(asyncio.CancelledError):  # once more: whoever cancels does not want to wait
            await _wait_for_end(task, state, get_running_loop().time() + plan.runner.grace)
    task.add_done_callback(_mark_seen)  # the result tells of the deadline


def _mark_seen(task: asyncio.Task[ToolResult]) -> None:
    if not task.cancelled():
        task.exception()
