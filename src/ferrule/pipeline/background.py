"""`background=True`: a call that is judged and approved ends with a ticket, and its work is a call of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from os import urandom
from typing import Any

from ferrule.definition.output import TICKET_OUTPUT
from ferrule.pipeline.call import run_call
from ferrule.pipeline.call_key import TICKET, work_key
from ferrule.pipeline.plan import Plan
from ferrule.pipeline.state import CallState, Origin
from ferrule.pipeline.suspension import Answered
from ferrule.pipeline.tasks import start
from ferrule.pipeline.works import Work, add_work
from ferrule.types import Coro
from ferrule.values.call import ToolCall
from ferrule.values.context import CURRENT
from ferrule.values.event import emit
from ferrule.values.frozen import thaw
from ferrule.values.result import ToolResult


def begins(plan: Plan, work: Plan) -> Plan:
    """`plan` as what begins a call of `work` for each call: without slots, keys, a deadline and middleware inside,
    which are that one's."""
    begin: Callable[..., Any] = partial(_begin_work, work)
    plan.work, plan.run, plan.output, plan.judged = work, begin, TICKET_OUTPUT, True
    plan.limiters, plan.principal_limits, plan.limits_vary, plan.locks = (), (), False, False
    plan.timeout, plan.inside, plan.handler_hooks = None, None, ()
    return plan


async def _begin_work(plan: Plan, values: object, state: CallState) -> ToolResult:
    """Begin the work of a call, which with a journal is the same one each time that the call comes, and give its
    ticket."""
    runner, fields = plan.runner, state.fields
    key = work_key(state) if plan.journaled else urandom(16).hex()
    ticket = TICKET + key
    if runner.works.get(ticket) is None:
        work = Work(runner, ticket, plan.name, fields.principal, fields.session)
        call = ToolCall(ticket, plan.name, thaw(dict(state.told.arguments)), parent=state.call.id)
        record = {"kind": "background", "key": None, "idempotency_key": key, "arguments": state.call.arguments}
        answered = Answered(record, b"", True, state.attempt.answered_by)
        origin = Origin(entry=work, observers=(work.note,), answered=answered, turn=state.origin.turn)
        emit((*runner.observers, work.note), "tool:pre", call, None, fields)
        add_work(runner, work)
        runner.batches.add(work)  # who leaves the runner waits for it, though it has not begun
        running = start(_alone(run_call(plan, call, fields, origin)), asyncio.get_running_loop())
        running.add_done_callback(partial(_ended, plan, work))
    return ToolResult({"ticket": ticket, "status": "running"}, metadata={"ticket": ticket})


async def _alone(running: Coro[ToolResult]) -> ToolResult:
    """A call that is no part of the one that began it."""
    CURRENT.set(None)
    return await running


def _ended(plan: Plan, work: Work, task: asyncio.Task[ToolResult]) -> None:
    task.cancelled() or task.exception()  # marked as seen: its result and its event tell of it
    plan.runner.batches.discard(work)
    plan.runner.tell_idle()
