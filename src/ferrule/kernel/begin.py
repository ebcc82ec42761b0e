"""Begin a call and report its end: its state, its place among the live calls, and the calls above it."""

from __future__ import annotations

from asyncio import get_running_loop
from time import perf_counter
from typing import TYPE_CHECKING

from ferrule.definition.toolset import Toolset
from ferrule.kernel.deadline import report_progress
from ferrule.kernel.live_call import LiveCall
from ferrule.kernel.plan import Plan
from ferrule.kernel.redact import redacting
from ferrule.kernel.results import NOTHING_RUN, Rejected
from ferrule.kernel.state import NO_ORIGIN, CallState, Origin
from ferrule.values.arguments import Arguments
from ferrule.values.call import ToolCall, make_judged_call
from ferrule.values.content import clean_text, truncate_text
from ferrule.values.context import ContextFields, get_current
from ferrule.values.event import EventKind, emit
from ferrule.values.json_text import format_arguments
from ferrule.values.result import Status, ToolResult, set_kernel_facts

if TYPE_CHECKING:
    from ferrule.kernel.runner_state import RunnerState

MAX_NESTING = 32
_FINAL_EVENTS: dict[Status, EventKind] = {"ok": "tool:post", "suspended": "tool:suspended"}  # all others: tool:error


def find_plan(runner: RunnerState, name: str, offered: Toolset | None = None) -> Plan | None:
    """Return the tool with that name, or the one that can only be meant; None if it is unknown or was not offered."""
    plan = runner.plans.get(name)
    if plan is None and (tool := runner.tools.resolve_name(name)) is not None:
        plan = runner.plans[tool.name]
    return plan if plan is None or offered is None or plan.tool in offered else None


async def reject_at_once(
    runner: RunnerState, call: ToolCall, rejection: Rejected, fields: ContextFields, origin: Origin = NO_ORIGIN
) -> ToolResult:
    """Return the result of a call rejected before it has a state, and emit its events.

    A resumed call emitted its `tool:pre` when it first arrived.
    """
    plan = find_plan(runner, call.name, origin.offered)
    named = call if plan is None or call.name == plan.name else call.replace(name=plan.name)
    result = ToolResult(None, rejection.error, call=call, tool_name=named.name, status=rejection.status, executed=False)
    observers = (*runner.observers, *origin.observers)
    run_id = perf_counter() if origin.resumed is None else origin.resumed.record["run"]
    set_kernel_facts(result, (named, fields.session, fields.principal, runner.clock.now(), None, None, 0.0))
    with redacting(origin.parent, fields.secrets or runner.settings.secrets, expires=True):
        if origin.resumed is None:
            emit(observers, "tool:pre", named, origin.arrival_facts, fields, run_id)
        emit(observers, "tool:error", named, result, fields, run_id)
    if origin.owner is not None:
        origin.owner.end(result)
    return result


def begin_call(plan: Plan, sent: ToolCall, fields: ContextFields, origin: Origin) -> LiveCall:
    """Make the state of a call, and count it as live.

    Raises:
        Rejected: The call may not begin, see `_find_parent`.
    """
    runner = plan.runner
    loop = get_running_loop()
    if loop is not runner.loop:
        runner.move_to(loop)
    parent = _find_parent(runner, origin)
    call = sent
    if parent is not None or sent.raw.__class__ is not str or sent.name != plan.name:
        call = _normalize_call(plan, sent, parent)
    state = LiveCall(plan, fields, sent, call, parent, origin)
    if parent is not None:
        report_progress(parent)
    if origin is not NO_ORIGIN or call is not sent:
        _apply_origin(state, origin)
    runner.live.add(state)
    return state


def report_end(state: CallState, result: ToolResult) -> None:
    """Emit the last event of a call, and give the result to its batch, which keeps it even if it is cancelled."""
    if state.observers:
        state.emit(_FINAL_EVENTS.get(result.status, "tool:error"), result)
    if (owner := state.origin.owner) is not None:
        state.origin = NO_ORIGIN  # break the reference cycle
        owner.end(result)


def _find_parent(runner: RunnerState, origin: Origin) -> CallState | None:
    """Return the nearest call in progress around this one, or None.

    Code that outlives a call which ended normally makes calls of its own. Code that outlives an abandoned call may
    make none.

    Raises:
        Rejected: A call around this one was abandoned, calls are nested too deeply, or the runner is closing.
    """
    ancestor = origin.parent
    if ancestor is None:
        current = get_current()
        if current.__class__ is not LiveCall:  # a worker process has a context of its own kind
            current = None
        elif current.task is None and current.parent is None and not current.attempt.abandoned:
            current = None  # it ran earlier in this task, and ended normally
        if current is None and not runner.leaving:
            return None
        ancestor = current
    elif ancestor.ended:
        raise Rejected("cancelled", f"The call that made this one has ended. {NOTHING_RUN}")
    parent, depth = None, 0
    while ancestor is not None:
        if not ancestor.ended:
            parent = parent or ancestor
            depth += 1
        elif ancestor.attempt.abandoned:
            raise Rejected("cancelled", f"The call that made this one was stopped. {NOTHING_RUN}")
        ancestor = ancestor.parent
    if depth > MAX_NESTING:
        raise Rejected("limited", f"Calls that are made by calls nest at most {MAX_NESTING} deep. {NOTHING_RUN}")
    is_admitted = origin.owner is not None and origin.owner.admitted
    if parent is None and runner.leaving and (runner.leaving == "closed" or not is_admitted):
        raise Rejected("cancelled", f"The runner is closing. {NOTHING_RUN}")
    return parent


def _normalize_call(plan: Plan, sent: ToolCall, parent: CallState | None) -> ToolCall:
    """Return the call under the tool's own name, with its parent's id, and with its arguments as text.

    The text is a copy: the sender may change its mapping after the guards have judged it.
    """
    parent_id = sent.parent or (None if parent is None else parent.call.id)
    call = sent
    if parent_id != sent.parent or sent.name != plan.name:
        call = sent.replace(name=plan.name, parent=parent_id)
    if call.raw is None or isinstance(call.raw, str):
        return call
    try:
        text = format_arguments(call.raw)
    except Exception:  # `validate` says what is wrong with it
        return call
    return make_judged_call(call, Arguments(text))


def _apply_origin(state: LiveCall, origin: Origin) -> None:
    """Apply the origin of a call: its batch, the record of a suspended call, or a repaired name."""
    name = state.sent.name
    if name not in (state.plan.name, state.plan.tool.wire_name):
        state.repairs = (f"read the name {truncate_text(clean_text(name), 80)!r} as {state.plan.name!r}",)
    state.observers = (*state.observers, *origin.observers)
    if origin.resumed is not None:
        state.run_id = origin.resumed.record["run"]
    if origin.owner is not None:
        origin.owner.state = state
