"""Background jobs: a call of a tool with `background=True` returns a ticket, and its job runs as a call of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from os import urandom
from time import perf_counter, time
from typing import TYPE_CHECKING, Any

from ferrule.definition.output import TICKET_OUTPUT
from ferrule.executors.threads import Raised
from ferrule.kernel.cancel import interrupt
from ferrule.kernel.journal_status import TICKET, journal_status, ticket_result
from ferrule.kernel.path import run_call
from ferrule.kernel.plan import Plan
from ferrule.kernel.redact import redacting
from ferrule.kernel.results import CANCELLED, Rejected
from ferrule.kernel.state import CallState, Origin
from ferrule.kernel.suspension import ResumedCall
from ferrule.kernel.tasks import run_within
from ferrule.scheduling.clock import wait_until, waiter_for_end
from ferrule.types import Coro
from ferrule.values.call import ToolCall
from ferrule.values.context import ContextFields, set_current
from ferrule.values.event import Event, emit
from ferrule.values.frozen import thaw
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.kernel.runner_state import RunnerState
    from ferrule.values.journal_entry import JournalEntry

_MAX_JOBS = 1000
_EVENT_CALL_FIELDS = ("tool_name", "input")  # in the data of every event


@dataclass(eq=False, repr=False)
class BackgroundJob:
    """A call in the background. See docs/long-work.md#in-the-background.

    Attributes:
        runner: For the kernel: the state of its runner.
        ticket: The id of the job.
        tool_name: The tool's own name.
        principal: The principal of the call.
        session: The conversation of the call.
        started_at: The time of its start, in seconds since the epoch.
        state: For the kernel: the state of the call while it runs in this process.
        progress: Its last reported progress.
        result: The result of the job, also while it is suspended; None while it runs.
        told: Whether the model was told of its end. The code that tells the model sets this.
    """

    runner: RunnerState
    ticket: str
    tool_name: str
    principal: str | None
    session: str | None
    started_at: float
    state: CallState | None = None
    progress: Mapping[str, Any] | None = None
    result: ToolResult | None = None
    told: bool = False

    # A job owns its call as the entry of a batch does, and the kernel reads these facts of either.
    admitted = True
    stopping = False

    def __repr__(self) -> str:
        status = "running" if self.result is None else self.result.status
        return f"<BackgroundJob {self.ticket} {self.tool_name} {status}>"

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended; a suspended one has not."""
        return self.result is not None and self.result.status != "suspended"

    @property
    def has_run_nothing(self) -> bool:
        """Whether the job has ended and its handler never ran."""
        return self.result is not None and self.result.executed is False and self.has_ended

    def on_event(self, event: Event) -> None:
        """Keep the progress of the job."""
        if event.kind == "tool:progress":
            self.progress = {key: value for key, value in event.data.items() if key not in _EVENT_CALL_FIELDS}

    def end(self, result: ToolResult) -> None:
        """Set the result. The result of a suspended job may be replaced later."""
        if not self.has_ended:
            self.result, self.state = result, None

    async def wait(self, seconds: float) -> None:
        """Wait until the job has ended, at most `seconds` by the runner's clock."""
        await asyncio.sleep(0)  # let the job begin first
        timer = self.runner.timer
        if self.result is not None or seconds <= 0:
            return
        if self.state is None or self.state.ended:  # it runs in another process, or its outcome is being written
            await _find_entry(self.runner, self.ticket, seconds)
        else:
            await wait_until(waiter_for_end(self.state.task), timer.time() + seconds, timer)

    async def cancel(self) -> bool:
        """Stop the job if it runs in this process. Return whether it did."""
        await asyncio.sleep(0)  # let the job begin first
        if self.state is None:
            return False
        interrupt(self.state, Rejected("cancelled", CANCELLED))
        await self.wait(self.runner.waits.grace)
        return True


# -- start -------------------------------------------------------------------------------------------------------------


def make_starting_plan(plan: Plan, job: Plan) -> Plan:
    """Return `plan` changed so that each of its calls starts a job, which is a call of the plan `job`.

    Slots, keys, deadline and the middleware inside belong to the job.
    """
    begin: Callable[..., Any] = partial(_start_job, job)
    plan.job, plan.run, plan.output, plan.needs_judged_arguments = job, begin, TICKET_OUTPUT, True
    plan.limiters, plan.principal_limits, plan.has_call_limits, plan.has_resources = (), (), False, False
    plan.timeout, plan.idle_timeout, plan.inside, plan.after_hook = None, None, None, None
    return plan


async def _start_job(job_plan: Plan, values: object, state: CallState) -> ToolResult:
    """Start the job of a call, and return its ticket. With a journal, a call that comes again gets the same job."""
    runner, fields, jobs = job_plan.runner, state.fields, job_plan.runner.jobs
    call_key = journal_status(state).call_key if job_plan.journaled else urandom(16).hex()
    ticket = TICKET + call_key
    if ticket not in jobs or jobs[ticket].has_run_nothing:
        job = jobs[ticket] = BackgroundJob(runner, ticket, job_plan.name, fields.principal, fields.session, time())
        ended = (other for other, one in jobs.items() if one.has_ended)
        if len(jobs) > _MAX_JOBS and (first := next(ended, None)) is not None:
            del jobs[first]
        call = ToolCall(ticket, job_plan.name, thaw(dict(state.redacted_call.arguments)), parent=state.call.id)
        at, arguments = perf_counter(), state.call.arguments
        # The job goes on as a resumed call: its arguments are judged and approved already, and it keeps the call key.
        record = {"kind": "background", "key": None, "idempotency_key": call_key, "arguments": arguments, "run": at}
        resumed = ResumedCall(record, b"", True, state.attempt.answered_by, at)
        origin = Origin(owner=job, observers=(job.on_event,), resumed=resumed, turn=state.origin.turn)
        with redacting(state, expires=True):
            emit((*runner.observers, job.on_event), "tool:pre", call, None, fields, at)
        runner.unfinished_work.add(job)  # leaving the runner waits for it, even before it begins
        # An eager task would begin below the caller's `except`, and log that exception as the context of its own.
        running = asyncio.Task(_run_detached(run_call(job_plan, call, fields, origin)), loop=asyncio.get_running_loop())
        running.add_done_callback(partial(_on_job_end, job))
    return ticket_result(call_key)


async def _run_detached(running: Coro[ToolResult]) -> ToolResult:
    """Run a call outside the call that started it."""
    set_current(None)
    return await running


def _on_job_end(job: BackgroundJob, task: asyncio.Task[ToolResult]) -> None:
    task.cancelled() or task.exception()  # mark the exception as seen: the result has it
    job.runner.unfinished_work.discard(job)
    job.runner.notify_idle()


# -- find --------------------------------------------------------------------------------------------------------------


async def find_job(runner: RunnerState, fields: ContextFields, ticket: str) -> BackgroundJob | None:
    """Return the job with that ticket, also one of another process that shares the journal.

    Return None if there is none, or if it belongs to another principal or session.

    Raises:
        JournalError: The journal cannot be read.
    """
    job = runner.jobs.get(ticket)
    if job is None and (entry := await _find_entry(runner, ticket)) is not None and entry.intent.call_id == ticket:
        job = _job_from_entry(runner, entry)
    whose = job and (job.principal, job.session)
    return job if whose == (fields.principal, fields.session) else None


async def _find_entry(runner: RunnerState, ticket: str, wait: float | None = None) -> JournalEntry | None:
    """Return the journal's entry of a job. With `wait`, wait that many seconds for its end."""
    if runner.journal is None or not ticket.startswith(TICKET):
        return None
    find = partial(runner.journal.find, wait=wait is not None)
    found: Any = await run_within(runner, find, ticket.removeprefix(TICKET), seconds=wait)
    if not isinstance(found, Raised):
        return found  # type: ignore[no-any-return]
    if isinstance(found.error, TimeoutError):
        return None
    raise found.error


def _job_from_entry(runner: RunnerState, entry: JournalEntry) -> BackgroundJob:
    """Return the job of a journal entry."""
    from ferrule.kernel.journaling import describe_unknown, is_repeatable
    from ferrule.values.journal_entry import result_from_outcome

    intent, result = entry.intent, None
    call, name = ToolCall(intent.call_id, intent.tool_name), intent.tool_name
    if entry.outcome is not None:
        result = result_from_outcome(entry.outcome, call, name)
    elif entry.state == "cut_off":
        plan = runner.plans.get(name)
        repeatable = plan is not None and is_repeatable(plan, intent.arguments, entry)
        text = describe_unknown(name, repeatable=repeatable)
        result = ToolResult(None, text, call=call, tool_name=name, status="unknown", executed=None)
    return BackgroundJob(runner, intent.call_id, name, intent.principal, intent.session, intent.at, result=result)
