"""Seal a result: bind it to its call, bound it, clean it and measure it. Every result passes here once."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from ferrule.kernel.hiding import hide
from ferrule.kernel.results import result_of_middleware_error
from ferrule.kernel.state import CallState
from ferrule.values.content import as_output, bound, clean, cut, jsonable
from ferrule.values.result import ToolResult, gave, keep, keep_duration, keep_told

_INT_RANGE = -(1 << 63), 1 << 63
_SHORT_TYPES = frozenset({float, bool, type(None)})


def seal(state: CallState, result: object) -> ToolResult:
    """Return the result bound to its call, bounded, cleaned and measured."""
    attempt = state.attempt
    sealed: ToolResult = result if result is attempt.result and result is not None else copy_result(state, result)
    if not _is_within_limit(sealed, state.plan.max_output):
        sealed = bound_result(state, sealed)
    run, answered = state.run, state.origin.answered
    keep_duration(sealed, (perf_counter() - (run if answered is None else answered.at)) * 1000)  # type: ignore[operator]
    if state.repairs:
        keep(sealed, "repairs", state.repairs)
    fields, now = state.fields, state.plan.runner.clock.now()
    shown = state.redacted_call if state.plan.hidden else state.call
    by = attempt.answered_by and hide(state, attempt.answered_by)
    keep_told(sealed, (shown, fields.session, fields.principal, now, attempt.pending, by))
    return sealed


def copy_result(state: CallState, found: Any) -> ToolResult:
    """Return a copy of a result that middleware made. The original may come from a cache that returns it again."""
    attempt, problem = state.attempt, None
    if not isinstance(found, ToolResult):
        problem = f"{type(found).__name__}, which is no ToolResult"
    elif found.status == "suspended" and attempt.pending is None:
        problem = "the suspended result of another call"
    if problem is not None:
        found = result_of_middleware_error(state, TypeError(f"a middleware of {state.plan.name!r} returned {problem}"))
    is_rendered = attempt.result is not None and found.output is attempt.result.output
    copied: ToolResult = found.replace(
        call=state.sent,
        tool_name=state.plan.name,
        repairs=(),
        executed=attempt.executed if found.executed is False else found.executed,  # the kernel knows better
        output=found.output if is_rendered else as_output(found.output, strict=False),
        metadata=found.metadata and jsonable(found.metadata),
        content=found._content,
    )
    keep(copied, "_gave", gave(found))
    return copied


def bound_result(state: CallState, result: ToolResult) -> ToolResult:
    """Return the result within the limits of its runner. An unsuccessful one has stars for known secrets."""
    limit = state.plan.max_output
    if result.error is not None or not result.success:
        result = hide(state, result)
    error = result.error
    if error is not None and (type(error) is not str or len(error) > limit or not error.isascii()):
        result = result.replace(error=cut(clean(error), limit))
    content = bound(result.content, limit, max_media=state.plan.max_media)
    if content is not result.content:
        result = result.replace(content=content)
    return result


def _is_within_limit(result: ToolResult, limit: int) -> bool:
    """Return whether a success needs no bounding: a short text, or a number with few digits."""
    if result.error is not None or result._content is not None or result.status != "ok":
        return False
    output = result.output
    kind = output.__class__
    if kind is int:
        return _INT_RANGE[0] < output < _INT_RANGE[1]  # type: ignore[no-any-return]
    return len(output) <= limit if kind is str else kind in _SHORT_TYPES
