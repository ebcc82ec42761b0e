"""Cancellation: find out whether the runner or somebody else stopped a call, and make its result.

The words for it, here and in other files:

interrupt             the runner stops a call from outside, with a rejection (`Attempt.runner_rejection`)
interruption          the exception to raise to the caller after the result, because somebody else cancelled the task
Deadline.stopped      the kernel has cancelled the task of a run, at its deadline or because the call was cancelled
Entry.stopping        a batch was cancelled: its running calls make no further attempt
Attempt.abandoned     a run was stopped; its code may make no calls once the call has ended
Attempt.left_running  code of such a run still runs
"""

from __future__ import annotations

import asyncio
from typing import Any

from ferrule.errors import ToolError
from ferrule.kernel import results
from ferrule.kernel.attempts import reject
from ferrule.kernel.results import Rejected
from ferrule.kernel.seal import finish_result
from ferrule.kernel.state import RELIABLE_CANCELLING, CallState, ancestors
from ferrule.values.context import get_current, set_current
from ferrule.values.result import ToolResult


def interrupt(state: CallState, rejection: Rejected) -> None:
    """Stop a call from outside: cancel its task, and let `rejection` be its result."""
    attempt = state.attempt
    if attempt.runner_rejection is None and not state.ended and state.task is not asyncio.current_task():
        attempt.runner_rejection = rejection
        state.task.cancel()


def undo_cancellation(state: CallState) -> Rejected | None:
    """Undo the cancellation by `interrupt`. Return its rejection, or None if somebody else cancelled the task too."""
    attempt = state.attempt
    rejection, attempt.runner_rejection = attempt.runner_rejection, None
    if rejection is not None:
        state.task.uncancel()
    return rejection if state.task.cancelling() <= state.cancels_before else None


def result_of_interruption(state: CallState, found: Any) -> tuple[ToolResult, BaseException | None]:
    """Return the result of a call that was cancelled or whose middleware raised, and the exception to raise after it.

    Args:
        found: The exception, or the middleware's result in spite of a cancellation.
    """
    interruption: BaseException | None = None
    is_cancelled = isinstance(found, asyncio.CancelledError)
    if isinstance(found, KeyboardInterrupt) or state.is_closing(found):
        interruption = found
    elif state.task.cancelling() > state.cancels_before:
        runner_rejection = undo_cancellation(state)
        if is_cancelled and runner_rejection is not None:  # the runner itself stopped the call
            found = journaled_result(state) or reject(state, runner_rejection)
        elif runner_rejection is None and (is_cancelled or RELIABLE_CANCELLING):
            raised = state.attempt.raised
            if isinstance(raised, ToolError):  # it is for the model, not for whoever cancelled
                raised = None
            interruption = raised or (found if is_cancelled else asyncio.CancelledError())
    if interruption is not None:
        found = _abandon_call(state, found)
    elif isinstance(found, BaseException):
        found = results.result_of_middleware_error(state, found)
    return finish_result(state, found), interruption


def _abandon_call(state: CallState, cause: BaseException | ToolResult) -> ToolResult:
    """Return the result of a call cancelled from outside."""
    attempt = state.attempt
    attempt.abandoned = True
    if (journaled := journaled_result(state)) is not None:
        return journaled
    executed, exception = attempt.executed, None
    if isinstance(cause, ToolResult):
        executed = cause.executed
    else:
        exception = cause
    effect = results.describe_effect(executed, running=attempt.left_running, changes=state.plan.changes)
    text = f"The call was cancelled. {effect}"
    keep = not state.plan.has_middleware
    return results.unsuccessful(state, "cancelled", text, executed=executed, exception=exception, keep_chunks=keep)


def journaled_result(state: CallState) -> ToolResult | None:
    """Return the journaled result of a stopped call, or None if middleware may have changed it."""
    return None if state.plan.has_middleware else state.attempt.journaled


def restore_current_call(state: CallState, current_before: CallState | None) -> None:
    """Set the current call back to `current_before` if it is this call or one below it."""
    current = get_current()
    if current is state or (current and state in ancestors(current)):
        set_current(current_before)
