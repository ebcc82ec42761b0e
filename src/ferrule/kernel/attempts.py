"""The attempts of a call: a new one each time that its handler runs again."""

from __future__ import annotations

from ferrule.errors import DefinitionError
from ferrule.kernel import results
from ferrule.kernel.deadline import report_progress
from ferrule.kernel.results import NOTHING_RUN, Rejected, Suspended
from ferrule.kernel.state import Attempt, CallState
from ferrule.kernel.suspension import make_suspended_record
from ferrule.values.result import ToolResult

_ABANDONING = ("timeout", "cancelled")


def begin_attempt(state: CallState) -> Attempt:
    """Start a new attempt of the call. It takes over what holds for the whole call, such as the number of runs."""
    before, attempt = state.attempt, Attempt()
    attempt.runs, attempt.executed, attempt.abandoned = before.runs, before.executed, before.abandoned
    attempt.left_running, attempt.runner_rejection = before.left_running, before.runner_rejection
    attempt.in_next, attempt.cancels_left_over = before.in_next, before.cancels_left_over
    attempt.asked, attempt.inputs = before.asked, before.inputs
    if before.result is None or before.result.status != "denied":  # a no is about its own attempt
        attempt.answered_by = before.answered_by
    attempt.ran_before = before.ran_before
    attempt.in_journal, attempt.record_notes = before.in_journal, before.record_notes
    state.attempt = attempt
    return attempt


def begin_inner_attempt(state: CallState) -> Attempt:
    """Return the attempt for the next run of the handler: a new one, under the same deadline, if it has run before."""
    before = state.attempt
    if before.result is None:
        return before
    attempt = begin_attempt(state)
    attempt.deadline, attempt.answer = before.deadline, before.answer
    attempt.idle_deadlines = before.idle_deadlines
    report_progress(state)
    return attempt


def begin_next(state: CallState) -> None:
    """Start the attempt of a middleware's `next`.

    Raises:
        DefinitionError: Another `next` is in progress, or the call has ended.
    """
    attempt = state.attempt
    if attempt.in_next or state.ended:
        reason = "its call had ended" if state.ended else "its other `next` was under way; one at a time"
        raise DefinitionError(f"a middleware called `next` while {reason}")
    if attempt.result is not None:
        attempt = begin_attempt(state)
    attempt.in_next = True


def reject(state: CallState, rejection: Rejected) -> ToolResult:
    """Return the result of an attempt without another run of the handler. A suspended call gets its sealed record."""
    attempt = state.attempt
    if isinstance(rejection, Suspended):
        kind = "approval" if rejection.decision.schema is None else "input"
        attempt.pending = make_suspended_record(state, kind, rejection.decision, rejection.handler_state)
    executed = attempt.executed
    # An earlier attempt may have run the handler.
    error = rejection.error.replace(NOTHING_RUN, results.describe_effect(executed, changes=state.plan.changes))
    result = attempt.result = results.unsuccessful(state, rejection.status, error, executed=executed)
    if executed is False and rejection.own_words:
        attempt.refusal = result
    if result.status in _ABANDONING:
        attempt.abandoned = True
    return result
