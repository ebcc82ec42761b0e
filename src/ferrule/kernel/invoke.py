"""Run the handler of a call under its deadline, with the `inside` middleware around it."""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from collections.abc import Awaitable
from math import inf
from typing import TYPE_CHECKING, Any

from ferrule.arguments.argument_errors import ArgumentErrors
from ferrule.arguments.dumping import NotJudgeable
from ferrule.definition.hooks import run_hook
from ferrule.errors import DefinitionError
from ferrule.kernel.attempts import begin_inner_attempt, reject
from ferrule.kernel.authorize import check_question
from ferrule.kernel.cancel import undo_cancellation
from ferrule.kernel.deadline import Deadline, inherited_deadline
from ferrule.kernel.plan import Plan
from ferrule.kernel.results import (
    CANCELLED,
    NOTHING_RUN,
    Rejected,
    read_executed,
    result_of_error,
    result_of_middleware_error,
    result_of_timeout,
    result_of_unstarted,
    result_of_value,
)
from ferrule.kernel.state import RELIABLE_CANCELLING, CallState, ancestors, find_state
from ferrule.kernel.suspension import make_deferred_record, make_waiting_record
from ferrule.kernel.tasks import start_eagerly
from ferrule.scheduling.clock import wait_until, waiter_for_end
from ferrule.types import Coro
from ferrule.values.call import ToolCall
from ferrule.values.content import to_sentence
from ferrule.values.context import ToolContext
from ferrule.values.result import ToolResult, make_success

if TYPE_CHECKING:
    from ferrule.values.input import Answer


def check_alive(state: CallState) -> None:
    """Check that a call may still run its handler.

    Raises:
        DefinitionError: The call has ended: a middleware called `next` too late.
        CancelledError: A guard, an approver or a middleware swallowed a cancellation.
    """
    if state.task is None:
        raise DefinitionError("a middleware called `next`, and its call ended before the handler began")
    if state.is_cancelled(None):
        raise asyncio.CancelledError


def invoke(
    plan: Plan, values: object, state: CallState, answer: Answer | None = None
) -> ToolResult | Awaitable[ToolResult]:
    """Run the handler with the `inside` middleware around it. Return the result, or an awaitable of it.

    The deadline counts from here. A run that has one gets a task of its own.

    Args:
        values: The validated values for the first run; None takes them from the judged call.
        answer: The answer to the handler's question in its last run.
    """
    timeout, attempt = state.origin.timeout, state.attempt
    if answer is not None:
        attempt.answer = answer
    seconds, idle = plan.timeout if timeout is None else timeout, plan.idle_timeout
    idle_deadlines: tuple[Deadline, ...] = ()
    if state.parent is not None:
        idle_deadlines = attempt.idle_deadlines = state.parent.attempt.idle_deadlines
        remaining = inherited_deadline(state) - plan.runner.timer.time()
        if remaining <= 0:
            late = f"{plan.name} was not started: the deadline of a call that made it has passed. {NOTHING_RUN}"
            return reject(state, Rejected("timeout", late))
        if remaining < (inf if seconds is None else seconds):
            seconds = remaining
    if plan.inside is None:
        handling: Any = run_handler(plan, values, state)
    else:
        handling = _run_inside(plan.inside(state.call, state.context), state)
    if seconds is None and idle is None:
        return handling  # type: ignore[no-any-return]
    timer = plan.runner.timer
    deadline = attempt.deadline = Deadline(inf if seconds is None else seconds, timer)
    if idle is not None:
        deadline.idle, deadline.progress_at = idle, timer.time()
        attempt.idle_deadlines = (*idle_deadlines, deadline)
    if attempt.cancels_left_over:
        attempt.cancels_left_over = 0
    task = start_eagerly(handling, loop=get_running_loop())
    if task.done() and timer.time() <= deadline.expires_at() and not task.cancelled():  # the handler never waited
        return task.result()  # type: ignore[no-any-return]
    deadline.task = task
    return _wait_until_deadline(deadline, task, plan, state)


def run_handler_as_next(plan: Plan, call: ToolCall, context: ToolContext) -> Coro[ToolResult]:
    """Run the handler as the innermost `next` of the `inside` middleware.

    Raises:
        DefinitionError: A middleware gave `next` another call.
    """
    state = find_state(plan, context)
    if call is not state.call and call != state.call:
        raise DefinitionError("a middleware inside gave `next` another call; arguments change only in `around`")
    return run_handler(plan, None, state)


async def run_handler(plan: Plan, values: object, state: CallState) -> ToolResult:
    """Run the handler and the hooks next to it.

    Args:
        values: The validated values, or None to take them from the judged call. Every run but the first validates them
            anew, because the run before may have changed its own objects.
    """
    held, attempt = state.held, state.attempt
    if held is None or state.task is None:
        raise DefinitionError("a middleware inside called `next` after its result")
    held.active_runs += 1
    run = plan.run
    has_run = attempt.runs or attempt.inputs or attempt.result is not None  # even if it did nothing
    try:
        if values is None:
            if state.is_cancelled(None):  # a middleware swallowed the cancellation
                raise asyncio.CancelledError
            if (resumed := state.origin.resumed) is not None and resumed.answer_is_result:
                if not isinstance(resumed.answer, ToolResult):
                    return reject(state, Rejected("cancelled", f"{plan.name} was given up. {NOTHING_RUN}"))
                run = resumed.run
            else:
                judged = state.call.arguments
                values = plan.parameters.revalidate(judged) if has_run else judged.validated
        if has_run:
            if not state.may_run_again:
                return reject(state, Rejected("cancelled", CANCELLED))
            attempt = begin_inner_attempt(state)
        attempt.executed = None
        attempt.runs += 1
        try:
            value = await run(values, state)
            if type(value) in plan.output.ready_classes:
                result = make_success(value, state.sent, plan.name)
            elif (result := result_of_value(plan, state, value)).status == "suspended":
                result = _suspend_attempt(state, value, result)
        except BaseException as error:
            result = result_of_raised(plan, state, error)
        attempt.result, attempt.executed = result, result.executed
        if not RELIABLE_CANCELLING:
            _reset_cancel_count(state)
        if plan.after_hook is not None:
            replaced = run_hook(plan.after_hook, result, state.context)
            result = replaced if isinstance(replaced, ToolResult) else await replaced
        return result
    except (ArgumentErrors, NotJudgeable) as error:  # a validator may treat the same text differently now
        reason = "its arguments do not fit any more" if isinstance(error, ArgumentErrors) else str(error)
        return reject(state, Rejected("failed", f"{plan.name} could not be run: {to_sentence(reason)} {NOTHING_RUN}"))
    except SystemExit as error:  # in a task of its own it would end the loop
        return result_of_middleware_error(state, error)
    finally:
        held.active_runs -= 1
        if held.idle_callbacks:
            held.on_run_end()


def result_of_raised(plan: Plan, state: CallState, error: BaseException) -> ToolResult:
    """Return the result of a run that raised, unless that was a cancellation.

    Raises:
        CancelledError: The task was cancelled from outside, so the handler did not fail.
    """
    attempt = state.attempt
    if isinstance(error, KeyboardInterrupt) or state.is_closing(error):
        raise error
    if state.is_cancelled(error):
        if not isinstance(error, asyncio.CancelledError | SystemExit):  # a `SystemExit` would end the loop
            attempt.raised = error
            if not attempt.abandoned and read_executed(error) is False:
                attempt.undo_start(error)
        raise asyncio.CancelledError from None
    if read_executed(error) is False:
        attempt.undo_start(error)
    make_result = result_of_unstarted if error is attempt.not_started else result_of_error
    attempt.result = result = make_result(plan, state, error)
    attempt.executed = result.executed
    return result


def _suspend_attempt(state: CallState, value: Any, result: ToolResult) -> ToolResult:
    """Set the input that the handler asks for, or the record of work or of a nested question that it waits for.

    Raises:
        DefinitionError: The schema of the input is invalid.
    """
    from ferrule.values.input import InputRequired  # for a tool that suspends its calls

    attempt = state.attempt
    if not isinstance(value, InputRequired):
        from ferrule.values.deferred import Deferred

        make_record = make_deferred_record if isinstance(value, Deferred) else make_waiting_record
        attempt.pending = make_record(state, value)
        return result
    check_question(value)
    attempt.wanted = value
    if value.executed is not False:
        return result
    attempt.undo_start(None)
    return result.replace(executed=attempt.executed)


async def _run_inside(handling: Awaitable[ToolResult], state: CallState) -> ToolResult:
    """Run the `inside` middleware. It may go on after its deadline, as a handler may."""
    held = state.held
    assert held is not None
    held.active_runs += 1
    try:
        return await handling
    except SystemExit as error:  # in a task of its own it would end the loop
        return result_of_middleware_error(state, error)
    finally:
        held.active_runs -= 1
        held.on_run_end()


def _reset_cancel_count(state: CallState) -> None:
    """Ignore what the handler left in the task's `cancelling()`: it comes from a task group of its own that failed."""
    task = asyncio.current_task(state.plan.runner.loop)
    if task is not None and task.cancelling():
        for call in (state, *ancestors(state)):
            call.attempt.cancels_left_over = task.cancelling()


# -- the deadline ------------------------------------------------------------------------------------------------------


async def _wait_until_deadline(
    deadline: Deadline, task: asyncio.Task[ToolResult], plan: Plan, state: CallState
) -> ToolResult:
    """Return the task's result, or the result of a timeout.

    At the deadline the task is cancelled and gets `grace` seconds to end; a `ToolError` that it raises then adds to
    the result of the timeout. After that the task is abandoned. Its own result or exception no longer counts then.
    """
    timer, wake = deadline.timer, deadline.wake
    is_waiting = True  # wait at least once, so that the handler begins even if it is late
    task.add_done_callback(wake)
    try:
        while is_waiting:
            deadline.waiter = task.get_loop().create_future()
            expires_at = deadline.expires_at()
            alarm = None if expires_at == inf else timer.call_at(expires_at, wake)
            try:
                await deadline.waiter  # a moved deadline wakes it too
            finally:
                if alarm is not None:
                    alarm.cancel()
            is_waiting = not task.done() and timer.time() < deadline.expires_at()
    except BaseException:  # it was cancelled, or a clock of somebody else's raised
        await _stop_task(task, deadline, plan)
        raise
    if task.done() and timer.time() <= deadline.expires_at():  # the handler may have blocked the loop past its deadline
        deadline.task = None  # break the reference cycle
        return task.result()
    reason, deadline.at = deadline.expiry_reason(), min(deadline.at, timer.time())
    try:
        await _stop_task(task, deadline, plan)
    except asyncio.CancelledError:
        if undo_cancellation(state) is None:  # somebody else than the runner has cancelled the call
            raise
    attempt = state.attempt
    attempt.result = result_of_timeout(plan, state, reason, running=state.is_still_running)
    attempt.abandoned = True
    return attempt.result


async def _stop_task(task: asyncio.Task[ToolResult], deadline: Deadline, plan: Plan) -> None:
    """Cancel the task and wait for its end, at most `grace` seconds.

    Raises:
        CancelledError: The call was cancelled meanwhile.
    """
    deadline.stopped = True
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # mark the exception as seen
    if not task.done():
        task.cancel()
        await wait_until(waiter_for_end(task), deadline.timer.time() + plan.runner.waits.grace, deadline.timer)
