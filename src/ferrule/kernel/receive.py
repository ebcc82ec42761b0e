"""Receive a call: give it an id, find its tool, and reject it if it cannot be read or no such tool was offered."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from ferrule.definition.toolset import Toolset
from ferrule.kernel.begin import find_plan, reject_at_once
from ferrule.kernel.journal_status import TICKET
from ferrule.kernel.path import run_call
from ferrule.kernel.results import NOTHING_RUN, Rejected, denial, problem
from ferrule.kernel.state import NO_ORIGIN, Origin
from ferrule.kernel.suspension import ResumedCall
from ferrule.types import Coro, Observer
from ferrule.values.call import ToolCall, new_id
from ferrule.values.content import clean_text, truncate_text
from ferrule.values.context import ContextFields
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.kernel.runner_state import RunnerState

_MOST_NAMES = 12
"""The most names in an answer to an unknown one."""


def receive(runner: RunnerState, call: ToolCall, fields: ContextFields, origin: Origin = NO_ORIGIN) -> Coro[ToolResult]:
    """Run a call, or reject it at once."""
    if not call.id:
        call = call.replace(id=new_id())
    if call.problem is not None:
        return reject_at_once(runner, call, problem(call), fields, origin)
    plan, offered = runner.plans.get(call.name), origin.offered
    if plan is None or offered is not None:
        plan = find_plan(runner, call.name, offered)
        if plan is None:
            return reject_at_once(runner, call, unknown_tool(runner, call.name, offered), fields, origin)
    return run_call(plan, call, fields, origin)


def resume_call(
    runner: RunnerState, resumed: ResumedCall, fields: ContextFields, observers: tuple[Observer, ...]
) -> Coro[ToolResult]:
    """Run a suspended call again, with its answer and with the tools that were offered then."""
    call, record = resumed.call, resumed.record
    offered = None
    if record["offered"] is not None:
        names = frozenset(record["offered"])
        offered = Toolset(tool for tool in runner.tools if tool.name in names)
    origin = Origin(observers=observers, resumed=resumed, offered=offered, turn=record["turn"])
    plan = runner.plans.get(call.name)
    if plan is not None and plan.job is not None and call.id == TICKET + record["idempotency_key"]:
        origin.owner = runner.jobs.get(call.id)  # a background job, which was suspended itself
        return run_call(plan.job, call, fields, origin)
    return receive(runner, call, fields, origin)


def unknown_tool(runner: RunnerState, name: str, offered: Toolset | None = None) -> Rejected:
    """Return the rejection of an unknown name, with suggestions.

    With `offered`, it suggests only these tools, and does not reveal whether another tool has the name.
    """
    shown, tools = repr(truncate_text(clean_text(name), 80)), runner.tools
    if tools.find_quarantined_tool(name) is not None:
        return denial(f"{shown} is not available")
    problem = f"There is no tool {shown}."
    if offered is not None:
        problem, tools = f"{shown} was not offered.", offered
        if (search := next((tool for tool in offered.searches if tool in runner.tools), None)) is not None:
            return Rejected("not_found", f"{problem} Find it with {search.wire_name!r} first. {NOTHING_RUN}")
    similar = [candidate for candidate in tools.find_nearest(name) if tools.get(candidate) in runner.tools]
    shown_tools = islice((tool for tool in tools if tool in runner.tools), _MOST_NAMES)
    names = ", ".join(map(repr, similar or [tool.name for tool in shown_tools]))
    names += f" and {len(tools) - _MOST_NAMES} more" if not similar and len(tools) > _MOST_NAMES else ""
    suggestion = f"Did you mean {names}?" if similar else f"There are {names}." if names else "There are none."
    return Rejected("not_found", f"{problem} {suggestion} {NOTHING_RUN}")
