"""Finish a result: bind it to its call, limit its size, clean it and measure it. Every result passes here once.

The seal of a suspended call's record is something else: an HMAC, made in `values/sealed.py`.
"""

from __future__ import annotations

from time import perf_counter

from ferrule.kernel.redact import redact
from ferrule.kernel.results import copy_result, limit_size
from ferrule.kernel.state import CallState
from ferrule.values.result import ToolResult, set_kernel_facts, set_slot

_SHORT_TYPES = frozenset({float, bool, type(None)})


def finish_result(state: CallState, result: object) -> ToolResult:
    """Return the result bound to its call, limited in size, cleaned and measured."""
    attempt, plan = state.attempt, state.plan
    finished: ToolResult = result if result is attempt.result and result is not None else copy_result(state, result)
    output, kind = finished.output, finished.output.__class__
    is_small = output.bit_length() < 64 if kind is int else kind in _SHORT_TYPES
    is_short = len(output) <= plan.max_output if kind is str else is_small
    if not is_short or finished.error is not None or finished._content is not None or finished.status != "ok":
        finished = limit_size(state, finished)
    arrived_at, resumed = state.run_id, state.origin.resumed
    duration = (perf_counter() - (arrived_at if resumed is None else resumed.at)) * 1e3  # type: ignore[operator]
    if state.repairs:
        set_slot(finished, "repairs", state.repairs)
    fields, now = state.fields, plan.runner.clock.now()
    shown = state.redacted_call if plan.hidden else state.call
    by = attempt.answered_by and redact(state, attempt.answered_by)
    set_kernel_facts(finished, (shown, fields.session, fields.principal, now, attempt.pending, by, duration))
    return finished
