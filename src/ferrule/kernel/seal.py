"""Seal a result: bind it to its call, bound it, clean it and measure it. Every result passes here once."""

from __future__ import annotations

from time import perf_counter

from ferrule.kernel.redact import redact
from ferrule.kernel.results import bound_result, copy_result
from ferrule.kernel.state import CallState
from ferrule.values.result import ToolResult, set_duration, set_kernel_facts, set_slot

_INT_RANGE = -(1 << 63), 1 << 63
_SHORT_TYPES = frozenset({float, bool, type(None)})


def seal(state: CallState, result: object) -> ToolResult:
    """Return the result bound to its call, bounded, cleaned and measured."""
    attempt = state.attempt
    sealed: ToolResult = result if result is attempt.result and result is not None else copy_result(state, result)
    if not _is_within_limit(sealed, state.plan.max_output):
        sealed = bound_result(state, sealed)
    run, answered = state.run, state.origin.answered
    set_duration(sealed, (perf_counter() - (run if answered is None else answered.at)) * 1000)  # type: ignore[operator]
    if state.repairs:
        set_slot(sealed, "repairs", state.repairs)
    fields, now = state.fields, state.plan.runner.clock.now()
    shown = state.redacted_call if state.plan.hidden else state.call
    by = attempt.approved_by and redact(state, attempt.approved_by)
    set_kernel_facts(sealed, (shown, fields.session, fields.principal, now, attempt.pending, by))
    return sealed


def _is_within_limit(result: ToolResult, limit: int) -> bool:
    """Return whether a success needs no bounding: a short text, or a number with few digits."""
    if result.error is not None or result._content is not None or result.status != "ok":
        return False
    output = result.output
    kind = output.__class__
    if kind is int:
        return _INT_RANGE[0] < output < _INT_RANGE[1]  # type: ignore[no-any-return]
    return len(output) <= limit if kind is str else kind in _SHORT_TYPES
