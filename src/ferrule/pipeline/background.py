"""`background=True`: a call that is judged and approved ends with a ticket, and its work is a call of its own. What a
runner knows of such works: what they say, what they came to, and what stops them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from os import urandom
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ferrule.definition.output import TICKET_OUTPUT
from ferrule.executors.threads import Raised
from ferrule.pipeline.call import run_call
from ferrule.pipeline.call_key import TICKET, in_journal, ticket_result
from ferrule.pipeline.invoke import interrupt
from ferrule.pipeline.journaling import unknown_text
from ferrule.pipeline.plan import Plan
from ferrule.pipeline.results import CANCELLED, Rejected
from ferrule.pipeline.state import CallState, Origin
from ferrule.pipeline.suspension import Answered
from ferrule.pipeline.tasks import start, within_time
from ferrule.scheduling.clock import end_of, wait_until
from ferrule.types import Coro
from ferrule.values.call import ToolCall
from ferrule.values.context import CURRENT, ContextFields
from ferrule.values.event import Event, emit
from ferrule.values.frozen import thaw
from ferrule.values.kept import Kept, restored
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.pipeline.runner_state import RunnerState

_MOST_WORKS = 1000
_OF_CALL = ("tool_name", "input")  # in the data of every event


@dataclass(eq=False, repr=False)
class Work:
    """A call in the background. See docs/long-work.md#in-the-background.

    Attributes:
        runner: For the kernel: what it runs in.
        ticket: Its id.
        tool_name: The tool's own name.
        principal: On whose behalf it runs.
        session: The conversation that it belongs to.
        state: For the kernel: its state, while it runs here.
        progress: What it said last of its progress.
        result: What it came to, or how it waits where it is suspended; `None` while it runs.
        told: Whether its end was told to the model; whoever tells it notes that here.
    """

    runner: RunnerState
    ticket: str
    tool_name: str
    principal: str | None
    session: str | None
    state: CallState | None = None
    progress: Mapping[str, Any] | None = None
    result: ToolResult | None = None
    told: bool = False

    # For the kernel, which takes it as it takes the entry of a batch.
    admitted = True
    beside = False
    stopping = False

    @property
    def has_ended(self) -> bool:
        """Whether it has come to an end, and not to wait."""
        return self.result is not None and self.result.status != "suspended"

    @property
    def came_to_nothing(self) -> bool:
        """Whether it has ended, and nothing of it was run."""
        return self.result is not None and self.result.executed is False and self.has_ended

    def note(self, event: Event) -> None:
        """Keep what it says of its progress."""
        if event.kind == "tool:progress":
            self.progress = {key: value for key, value in event.data.items() if key not in _OF_CALL}

    def end(self, result: ToolResult) -> None:
        """Keep what it came to; what is suspended may come to something else."""
        if not self.has_ended:
            self.result, self.state = result, None

    async def wait(self, seconds: float) -> None:
        """Wait until it has ended, at most so many seconds by the runner's clock."""
        await asyncio.sleep(0)  # it begins before this goes on
        timer = self.runner.timer
        if self.result is not None or seconds <= 0:
            return
        if self.state is None or self.state.ended:  # it runs in another process, or what it came to is written
            await _kept(self.runner, self.ticket, seconds)
        else:
            await wait_until(end_of(self.state.task), timer.time() + seconds, timer)

    async def cancel(self) -> bool:
        """Stop it, where it runs in this process; whether it was running here."""
        await asyncio.sleep(0)  # as above
        if self.state is None:
            return False
        interrupt(self.state, Rejected("cancelled", CANCELLED))
        await self.wait(self.runner.grace)
        return True


# -- beginning ---------------------------------------------------------------------------------------------------------


def begins(plan: Plan, work: Plan) -> Plan:
    """`plan` as what begins a call of `work` for each call: without slots, keys, a deadline and middleware inside,
    which are that one's."""
    begin: Callable[..., Any] = partial(_begin_work, work)
    plan.work, plan.run, plan.output, plan.judged = work, begin, TICKET_OUTPUT, True
    plan.limiters, plan.principal_limits, plan.limits_vary, plan.locks = (), (), False, False
    plan.timeout, plan.idle_timeout, plan.inside, plan.handler_hooks = None, None, None, ()
    return plan


async def _begin_work(plan: Plan, values: object, state: CallState) -> ToolResult:
    """Begin the work of a call, and give its ticket. With a journal the work has the key of the call, so that it is
    the same one each time that the call comes."""
    runner, fields, works = plan.runner, state.fields, plan.runner.works
    key = in_journal(state).key if plan.journaled else urandom(16).hex()
    ticket = TICKET + key
    if ticket not in works or works[ticket].came_to_nothing:
        work = works[ticket] = Work(runner, ticket, plan.name, fields.principal, fields.session)
        ended = (other for other, one in works.items() if one.has_ended)
        if len(works) > _MOST_WORKS and (first := next(ended, None)) is not None:
            del works[first]
        call = ToolCall(ticket, plan.name, thaw(dict(state.told.arguments)), parent=state.call.id)
        at, arguments = perf_counter(), state.call.arguments
        record = {"kind": "background", "key": None, "idempotency_key": key, "arguments": arguments, "run": at}
        answered = Answered(record, b"", True, state.attempt.answered_by, at)
        origin = Origin(entry=work, observers=(work.note,), answered=answered, turn=state.origin.turn)
        emit((*runner.observers, work.note), "tool:pre", call, None, fields, at)
        runner.batches.add(work)  # who leaves the runner waits for it, though it has not begun
        running = start(_alone(run_call(plan, call, fields, origin)), asyncio.get_running_loop())
        running.add_done_callback(partial(_ended, plan, work))
    return ticket_result(key)


async def _alone(running: Coro[ToolResult]) -> ToolResult:
    """A call that is no part of the one that began it."""
    CURRENT.set(None)
    return await running


def _ended(plan: Plan, work: Work, task: asyncio.Task[ToolResult]) -> None:
    task.cancelled() or task.exception()  # marked as seen: its result and its event tell of it
    plan.runner.batches.discard(work)
    plan.runner.tell_idle()


# -- finding -----------------------------------------------------------------------------------------------------------


async def find_work(runner: RunnerState, fields: ContextFields, ticket: str) -> Work | None:
    """The work of that ticket, perhaps of another process that shares the journal; `None` for that of another principal
    or session.

    Raises:
        JournalError: where the journal cannot be read.
    """
    work = runner.works.get(ticket)
    if work is None and (kept := await _kept(runner, ticket)) is not None and kept.intent.call_id == ticket:
        work = _work_of(runner, kept)
    whose = work and (work.principal, work.session)
    return work if whose == (fields.principal, fields.session) else None


async def _kept(runner: RunnerState, ticket: str, wait: float | None = None) -> Kept | None:
    """What the journal has of it, at most `wait` seconds later where it runs."""
    if runner.journal is None or not ticket.startswith(TICKET):
        return None
    find = partial(runner.journal.find, wait=wait is not None)
    found: Any = await within_time(runner, find, ticket.removeprefix(TICKET), seconds=wait)
    if not isinstance(found, Raised):
        return found  # type: ignore[no-any-return]
    if isinstance(found.error, TimeoutError):
        return None
    raise found.error


def _work_of(runner: RunnerState, kept: Kept) -> Work:
    """The work as the journal has it."""
    intent, result = kept.intent, None
    call, name = ToolCall(intent.call_id, intent.tool_name), intent.tool_name
    if kept.outcome is not None:
        result = restored(kept.outcome, call, name)
    elif kept.state == "cut_off":
        result = ToolResult(None, unknown_text(name), call=call, tool_name=name, status="unknown", executed=None)
    return Work(runner, intent.call_id, name, intent.principal, intent.session, result=result)
