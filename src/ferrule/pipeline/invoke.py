"""The handler of a call that may run: within its deadline, with the middleware inside round it."""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

from ferrule.arguments.argument_errors import ArgumentErrors
from ferrule.arguments.dumping import NoJudgedForm
from ferrule.errors import DefinitionError
from ferrule.pipeline import results
from ferrule.pipeline.hooks import run_hooks
from ferrule.pipeline.plan import Plan
from ferrule.pipeline.results import CANCELLED, NOTHING_RUN, Rejected, Suspended
from ferrule.pipeline.state import RELIABLE_CANCELLING, Attempt, CallState, ancestors, state_of
from ferrule.pipeline.suspension import pending_record, work_record
from ferrule.pipeline.tasks import start
from ferrule.scheduling.clock import Timer, end_of, wait_until, wake
from ferrule.types import Coro
from ferrule.values.call import ToolCall
from ferrule.values.content import sentence
from ferrule.values.context import ToolContext
from ferrule.values.input import Answer, InputRequired
from ferrule.values.result import ToolResult

_ENDS_WHAT_GOES_ON = ("timeout", "cancelled")


def begin_attempt(state: CallState) -> Attempt:
    """Another attempt, which knows of those before it how often the handler was run, and what goes on of them."""
    before, made = state.attempt, Attempt()
    made.runs, made.executed = before.runs, before.executed
    made.given_up, made.left_running, made.stop = before.given_up, before.left_running, before.stop
    made.open, made.cancels = before.open, before.cancels
    made.asked, made.answered_by, made.inputs = before.asked, before.answered_by, before.inputs
    made.in_journal, made.noted = before.in_journal, before.noted
    state.attempt = made
    return made


def enter(state: CallState) -> None:
    """A middleware's `next`, or the call itself, begins an attempt.

    Raises:
        DefinitionError: where another is under way, or the call has ended.
    """
    attempt = state.attempt
    if attempt.open or state.ended:
        what = "its call had ended" if state.ended else "its other `next` was under way; one at a time"
        raise DefinitionError(f"a middleware called `next` while {what}")
    if attempt.result is not None:
        attempt = begin_attempt(state)
    attempt.open = True


def leave(state: CallState) -> None:
    """The `next` has come to its end."""
    state.attempt.open = False


def reject(state: CallState, rejection: Rejected) -> ToolResult:
    """The result of an attempt that ends before its handler; of a suspended one with what takes it up again."""
    attempt = state.attempt
    if isinstance(rejection, Suspended):
        kind = "approval" if rejection.decision.schema is None else "input"
        attempt.pending = pending_record(state, kind, rejection.decision, rejection.kept)
    executed = attempt.executed
    error = rejection.error.replace(NOTHING_RUN, results.what_ran(executed, changes=state.plan.changes))
    result = attempt.result = results.unsuccessful(state, rejection.status, error, executed=executed)
    if executed is False and rejection.own_words:
        attempt.refusal = result
    if result.status in _ENDS_WHAT_GOES_ON:
        attempt.given_up = True
    return result


def give_up(state: CallState, cause: BaseException | ToolResult) -> ToolResult:
    """The result of a call that was cancelled from outside, whatever its task made of that."""
    attempt = state.attempt
    attempt.given_up = True
    if (kept := told_as_kept(state)) is not None:
        return kept
    executed, exception = attempt.executed, None
    if isinstance(cause, ToolResult):
        executed = cause.executed
    else:
        exception = cause
    ran = results.what_ran(executed, running=attempt.left_running, changes=state.plan.changes)
    text = f"The call was cancelled. {ran}"
    keep = not state.plan.has_middleware
    return results.unsuccessful(state, "cancelled", text, executed=executed, exception=exception, keep_chunks=keep)


def told_as_kept(state: CallState) -> ToolResult | None:
    """What the journal has, or is being given, of a call that is stopped; not where a middleware may have changed or
    hidden some of it."""
    return None if state.plan.has_middleware else state.attempt.kept


class Deadline:
    """The deadline of a run, and the task of its own that has it.

    Attributes:
        at: When it is, by `timer`; endless while the handler asks somebody, or has not begun.
        timer: What counts its time.
        task: What runs in it.
        stopped: Whether the kernel has cancelled that.
        waiter: Who waits for its end.
        stills: How much has it stand still, and `left` the seconds that it has then.
        idle: Seconds of silence that it allows, where any are too many.
        heard: When progress was last reported; written from any thread.
        paused: When it last began to stand still.
    """

    # What few calls write is kept at the class.
    stopped: bool = False
    task: asyncio.Task[Any] | None = None
    waiter: asyncio.Future[None] | None = None
    left: float = 0.0
    stills: int = 0
    idle: float | None = None
    heard: float = 0.0
    paused: float = 0.0

    def __init__(self, seconds: float, timer: Timer) -> None:
        self.seconds = seconds
        self.timer = timer
        self.at = timer.time() + seconds

    def expires_at(self) -> float:
        """Return when the run is stopped, unless it reports progress before."""
        return self.at if self.idle is None or self.stills else min(self.at, self.heard + self.idle)

    def expiry_reason(self) -> str:
        """Say which limit has passed."""
        if self.idle is not None and self.timer.time() < self.at:
            return f"reported no progress for {self.idle:g} s, its idle limit"
        return f"did not end by its deadline of {self.seconds:g} s"


@contextmanager
def standing_still(deadline: Deadline | None) -> Iterator[None]:
    """Count no time, where any is counted, while a question is open, or a process starts."""
    if deadline is None:
        yield
        return
    if not deadline.stills:
        deadline.paused = deadline.timer.time()
        deadline.left, deadline.at = deadline.at - deadline.paused, inf
    deadline.stills += 1
    try:
        yield
    finally:
        deadline.stills -= 1
        if not deadline.stills:
            now = deadline.timer.time()
            deadline.at = now + deadline.left
            deadline.heard = min(now, deadline.heard + now - deadline.paused)
            if deadline.waiter is not None:
                wake(deadline.waiter)


def extend_idle(state: CallState) -> None:
    """Note progress of the call: its silence, and that of the calls that made it, begins anew. From any thread."""
    for deadline in state.attempt.idle_deadlines:
        deadline.heard = deadline.timer.time()


def deadline_above(state: CallState) -> float:
    """The first deadline of the calls that made this one; what goes round one of them is not within its."""
    found = [call.attempt.deadline for call in ancestors(state) if call.inside]
    return min([deadline.at for deadline in found if deadline is not None], default=inf)


def invoke(
    plan: Plan, values: object, state: CallState, answer: Answer | None = None
) -> ToolResult | Awaitable[ToolResult]:
    """What the handler comes to, with the middleware inside round it: at once, or an awaitable of it. A deadline is
    counted from here.

    Where there is a deadline it runs in a task of its own.
    """
    timeout, attempt = state.origin.timeout, state.attempt
    if answer is not None:
        attempt.answer = answer
    seconds, idle = plan.timeout if timeout is None else timeout, plan.idle_timeout
    above: tuple[Deadline, ...] = ()
    if state.parent is not None:
        above = attempt.idle_deadlines = state.parent.attempt.idle_deadlines
        left = deadline_above(state) - plan.runner.timer.time()
        if left <= 0:
            late = f"{plan.name} was not started: the deadline of a call that made it has passed. {NOTHING_RUN}"
            return reject(state, Rejected("timeout", late))
        if left < (inf if seconds is None else seconds):
            seconds = left
    if plan.inside is None:
        handling: Any = run_handler(plan, values, state)
    else:
        handling = _contained(plan.inside(state.call, state.context), state)
    if seconds is None and idle is None:
        return handling  # type: ignore[no-any-return]
    timer = plan.runner.timer
    deadline = attempt.deadline = Deadline(inf if seconds is None else seconds, timer)
    if idle is not None:
        deadline.idle, deadline.heard = idle, timer.time()
        attempt.idle_deadlines = (*above, deadline)
    attempt.cancels = 0
    task = start(handling, get_running_loop())
    if task.done() and timer.time() <= deadline.expires_at() and not task.cancelled():  # a handler that never waited
        return task.result()  # type: ignore[no-any-return]
    deadline.task = task
    return _within_deadline(deadline, task, plan, state)


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
    holdings, attempt = state.holdings, state.attempt
    if holdings is None or state.task is None:
        raise DefinitionError("a middleware inside called `next` after its result")
    holdings.runs += 1
    run = plan.run
    try:
        if values is None:
            if state.is_cancelled(None):  # a middleware inside made nothing of it
                raise asyncio.CancelledError
            if (answered := state.origin.answered) is not None and answered.ends_work:
                if not isinstance(answered.answer, ToolResult):
                    return reject(state, Rejected("cancelled", f"{plan.name} was given up. {NOTHING_RUN}"))
                run = answered.run
            else:
                judged = state.call.arguments
                given_out = attempt.runs or attempt.result is not None
                values = plan.parameters.again(judged) if given_out else judged.validated
        if attempt.runs or attempt.result is not None:
            if not state.may_run_again:
                off = plan.disabled
                return reject(state, Rejected("cancelled", CANCELLED) if off is None else results.denied(off))
            attempt = _attempt_inside(state)
        attempt.executed = None
        attempt.runs += 1
        try:
            value = await run(values, state)
            result = results.handler_returned(plan, state, value)
            if result.status == "suspended":
                _note_put_off(state, value)
        except BaseException as error:
            result = handler_raised(plan, state, error)
        attempt.result, attempt.executed = result, result.executed
        if not RELIABLE_CANCELLING:
            _count_anew(state)
        if plan.handler_hooks:
            replaced = run_hooks(plan.handler_hooks, result, state.context)
            result = replaced if isinstance(replaced, ToolResult) else await replaced
        return result
    except (ArgumentErrors, NoJudgedForm) as error:  # what a validator makes of the same text may change
        reason = "its arguments do not fit any more" if isinstance(error, ArgumentErrors) else error
        return reject(state, Rejected("failed", f"{plan.name} could not be run: {sentence(str(reason))} {NOTHING_RUN}"))
    except SystemExit as error:  # in a task of its own it would end the loop
        return results.middleware_raised(state, error)
    finally:
        holdings.runs -= 1
        if holdings.when_idle:
            holdings.end()


def _note_put_off(state: CallState, value: Any) -> None:
    """The handler wants to know something before it goes on, or its work ends elsewhere."""
    if isinstance(value, InputRequired):
        state.attempt.wanted = value
    else:
        state.attempt.pending = work_record(state, value)


def _attempt_inside(state: CallState) -> Attempt:
    """The attempt of a handler that was run before, perhaps by a middleware inside, within the deadline that it has."""
    before = state.attempt
    if before.result is None:
        return before
    made = begin_attempt(state)
    made.deadline, made.answer = before.deadline, before.answer
    made.idle_deadlines = before.idle_deadlines
    extend_idle(state)
    return made


async def _contained(handling: Awaitable[ToolResult], state: CallState) -> ToolResult:
    """The chain of middleware inside, which may go on after its deadline as a handler may."""
    holdings = state.holdings
    assert holdings is not None
    holdings.runs += 1
    try:
        return await handling
    except SystemExit as error:  # as above
        return results.middleware_raised(state, error)
    finally:
        holdings.runs -= 1
        holdings.end()


def _count_anew(state: CallState) -> None:
    """What the handler leaves of `cancelling()` is its own: a task group of it has failed."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        for call in (state, *ancestors(state)):
            call.attempt.cancels = task.cancelling()


def handler_raised(plan: Plan, state: CallState, error: BaseException) -> ToolResult:
    """The result of a handler that raised.

    Raises:
        CancelledError: where the task was cancelled from outside; then it is no failure of the handler.
    """
    attempt = state.attempt
    if isinstance(error, KeyboardInterrupt) or state.is_closing(error):
        raise error
    if state.is_cancelled(error):
        if not isinstance(error, asyncio.CancelledError | SystemExit):  # a `SystemExit` would end the loop
            attempt.raised = error
        raise asyncio.CancelledError from None
    if results.executed_by(error) is False:
        attempt.note_not_started(error)
    made = results.not_run if error is attempt.not_started else results.handler_raised
    attempt.result = result = made(plan, state, error)
    attempt.executed = result.executed
    return result


async def _within_deadline(
    deadline: Deadline, task: asyncio.Task[ToolResult], plan: Plan, state: CallState
) -> ToolResult:
    """What the task comes to by the deadline.

    Then it is cancelled, gets `grace` seconds to end, and is abandoned and reported. Whatever it makes of the
    cancellation, and whether it raises a `TimeoutError` of its own, changes nothing about that.
    """
    time = deadline.timer.time
    waiting = True  # once at least: the handler begins, however late it is
    try:
        while waiting:
            await _wait_for_end(task, deadline, deadline.expires_at())  # woken too where the deadline was moved
            waiting = not task.done() and time() < deadline.expires_at()
    except asyncio.CancelledError:
        await _stop_handler(task, deadline, plan)
        raise
    if task.done() and time() <= deadline.expires_at():  # it may have blocked the loop meanwhile
        deadline.task = None  # no cycle is left for the collector
        return task.result()
    why, deadline.at = deadline.expiry_reason(), min(deadline.at, time())
    try:
        await _stop_handler(task, deadline, plan)
    except asyncio.CancelledError:
        if take_back(state) is None:  # else the runner alone has stopped what is late already
            raise
    attempt = state.attempt
    attempt.result = results.timed_out(plan, state, why, running=still_runs(state))
    attempt.given_up = True
    return attempt.result


def still_runs(state: CallState) -> bool:
    """Whether something of the handler goes on."""
    holdings = state.holdings
    return state.attempt.left_running or (holdings is not None and bool(holdings.runs or holdings.left))


async def _wait_for_end(task: asyncio.Task[ToolResult], deadline: Deadline, until: float) -> None:
    """Wait until the task has ended, it is `until`, or the deadline was moved."""
    deadline.waiter = end_of(task)
    await wait_until(deadline.waiter, None if until == inf else until, deadline.timer)


async def _stop_handler(task: asyncio.Task[ToolResult], deadline: Deadline, plan: Plan) -> None:
    """Cancel the task and wait for it, at most `grace` seconds; then it is left running.

    Raises:
        CancelledError: where that comes meanwhile: whoever cancels does not want to wait.
    """
    deadline.stopped = True
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # seen: the result tells of it
    if not task.done():
        task.cancel()
        await _wait_for_end(task, deadline, deadline.timer.time() + plan.runner.grace)


# -- stopped from outside ----------------------------------------------------------------------------------------------


def interrupt(state: CallState, rejection: Rejected) -> None:
    """Stop the call from outside: its task is cancelled, and it takes that back and answers with `rejection`."""
    attempt = state.attempt
    if attempt.stop is None and not state.ended and state.task is not asyncio.current_task():
        attempt.stop = rejection
        state.task.cancel()


def take_back(state: CallState) -> Rejected | None:
    """Take back the cancellation by which the runner has stopped the call; its answer, where nobody else cancelled
    the task."""
    attempt = state.attempt
    rejection, attempt.stop = attempt.stop, None
    if rejection is not None:
        state.task.uncancel()
    return rejection if state.task.cancelling() <= state.cancels else None
