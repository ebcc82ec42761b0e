"""What a call came to, as its one result: of a handler that returned or raised, of a call that was stopped, of a
middleware that broke; bound to the call, bounded and cleaned."""

from __future__ import annotations

import asyncio
import logging
import re
from asyncio import current_task
from collections.abc import Mapping
from time import perf_counter
from typing import Any

from ferrule.definition.output import OutputMismatch
from ferrule.errors import ToolError, WorkerDiedError
from ferrule.executors.chunks import joined
from ferrule.executors.threads import PoolExhausted, Unstarted
from ferrule.pipeline.plan import Plan
from ferrule.values.call import ToolCall
from ferrule.values.content import Block, Text, bound, clean, cut, render, size
from ferrule.values.context import CallState
from ferrule.values.result import Status, ToolResult, keep_seal, success

log = logging.getLogger("ferrule")
NOTHING_RUN = "Nothing was run."
_MAY_HAVE = "It had been started, so its effect may have happened."
_STILL = "It is still running; its effect may yet happen. Do not repeat it."
_LARGE = 1 << 63
# A scheme has few characters, or a long text without one would be looked through again from every word of it.
_CREDENTIALS = re.compile(r"(\b[a-zA-Z][\w+.-]{0,31}://)[^\s/?#]+@")


class Halt(Exception):
    """A call that ends before its handler is started."""

    def __init__(self, status: Status, error: str, *, metadata: Mapping[str, Any] | None = None) -> None:
        super().__init__(error)
        self.status: Status = status
        self.error = error
        self.metadata = metadata


def milliseconds(state: CallState) -> float:
    """How long the call has taken so far."""
    return (perf_counter() - state.started) * 1000


def made(
    state: CallState,
    status: Status,
    error: str,
    *,
    output: Any = None,
    metadata: Mapping[str, Any] | None = None,
    exception: BaseException | None = None,
    keeps: bool = False,
) -> ToolResult:
    """The kernel's own result for anything but a success.

    What the handler had yielded by then is kept only where all middleware that may redact it still goes round this.
    """
    content: tuple[Block, ...] | None = None
    if keeps and state.pieces:
        output = joined(state.pieces) if output is None else output
        content = (Text(error), *render(output))
    state.made = ToolResult(
        output,
        error,
        metadata,
        content,
        call=state.sent,
        tool_name=state.plan.name,
        status=status,
        executed=state.executed,
        exception=exception,
    )
    return state.made


def unheard(call: ToolCall, name: str, status: Status, error: str) -> ToolResult:
    """The result of a call that did not get as far as a state of its own."""
    return ToolResult(None, error, call=call, tool_name=name, status=status, executed=False)


def halted(state: CallState, halt: Halt) -> ToolResult:
    """The result of a call that was stopped before its handler, or during it, or between two runs of it."""
    error = halt.error
    if state.executed is None:
        error = error.replace(NOTHING_RUN, _MAY_HAVE)
    elif state.executed:
        error = error.replace(NOTHING_RUN, "It was not run again; it had been run before.")
    return made(state, halt.status, error, metadata=halt.metadata, keeps=not state.plan.seals)


def problem(call: ToolCall) -> Halt:
    """The end of a call of which its sender, or a middleware, says why it must not run."""
    said = cut(clean(call.problem or ""), 500)
    return Halt("invalid", said if NOTHING_RUN in said else f"{said} {NOTHING_RUN}")


def denied(reason: str) -> Halt:
    """The end of a call that may not run."""
    return Halt("denied", f"Denied: {cut(clean(reason), 500).rstrip('.')}. {NOTHING_RUN}")


def busy(plan: Plan, why: str) -> Halt:
    """The end of a call that waited too long."""
    return Halt("limited", f"{plan.name} could not be started in time: {why}. {NOTHING_RUN} Try again later.")


def raised(plan: Plan, state: CallState, error: BaseException) -> ToolResult:
    """What a handler raised, for the model: its text where it is meant or known to be harmless, else its type.

    Raises:
        CancelledError: where the task was cancelled from outside; then it is no failure of the handler.
    """
    if isinstance(error, KeyboardInterrupt | GeneratorExit):
        raise error
    if state.cancelled_in(current_task()):
        if not isinstance(error, asyncio.CancelledError):
            state.cut = error
        raise asyncio.CancelledError from None
    if isinstance(error, PoolExhausted):
        return _unstarted(state, "limited", f"{plan.name} cannot be started: {error}. {NOTHING_RUN}")
    if isinstance(error, Unstarted):
        why = error.__cause__
        return _unstarted(state, "failed", f"{plan.name} could not be run: {why}. {NOTHING_RUN}", why)
    state.executed = None if isinstance(error, WorkerDiedError) else True
    log.warning("tool %r raised", plan.name, exc_info=error)
    text = safe_text(error, plan.expose)
    after = f" {_MAY_HAVE}" if plan.changes else ""
    return made(
        state, "failed", f"{plan.name} failed: {text}.{after}", metadata=_later(error), exception=error, keeps=True
    )


def _unstarted(state: CallState, status: Status, error: str, exception: BaseException | None = None) -> ToolResult:
    """The result of a handler that was not started after all; an earlier run of it stays known."""
    state.executed = False
    result = made(state, status, error, exception=exception)
    state.take_back_start()
    return result


def _later(error: BaseException) -> dict[str, Any] | None:
    """When to try again, where the exception says so as a number of seconds."""
    seconds = getattr(error, "retry_after", None)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < _LARGE:
        return None
    return {"retry_after": float(seconds)}


def shaped(plan: Plan, state: CallState, value: Any) -> ToolResult:
    """The value that a handler returned becomes a result; the output schema is checked."""
    state.executed = True
    output = plan.output
    if type(value) is not output.exact:
        if isinstance(value, ToolResult):
            return _own(plan, state, value)
        if hasattr(type(value), "__next__"):
            said = f"{plan.name} was run, but it returned an iterator, which could be read only once, and no list"
            return made(state, "failed", said)
        if not output.free:
            try:
                output.check(value)
            except OutputMismatch as mismatch:
                said = f"{plan.name} was run, but what it returned does not fit its output schema: {mismatch}"
                return made(state, "failed", cut(clean(said), 500), output=value)
    result = state.made = success(value, state.sent, plan.name, state.repairs, (perf_counter() - state.started) * 1000)
    return result


def _own(plan: Plan, state: CallState, value: ToolResult) -> ToolResult:
    """A result that the handler built itself."""
    status: Status = "ok" if value.error is None else "failed"
    return value.replace(
        call=state.sent,
        tool_name=plan.name,
        status=status,
        executed=True,
        repairs=state.repairs,
        duration_ms=milliseconds(state),
    )


def timed_out(plan: Plan, state: CallState, seconds: float) -> ToolResult:
    """The result of a call that did not end within its `seconds`."""
    limit = f"its deadline of {seconds:g} s"
    if state.executed is False:
        text = f"{plan.name} was not started before {limit}. {NOTHING_RUN}"
    elif state.left:
        text = f"{plan.name} did not end by {limit} and is still running; its effect may yet happen. Do not repeat it."
    elif state.executed:
        text = f"{plan.name} ended after {limit}, so its result was dropped; it was executed."
    else:
        text = f"{plan.name} was stopped at {limit}; its effect may have happened."
    return made(state, "timeout", text, keeps=plan.inside is None and not plan.done)


def cut_off(state: CallState, cause: BaseException | ToolResult) -> ToolResult:
    """The result of a call that was cancelled from outside."""
    executed = cause.executed if isinstance(cause, ToolResult) else state.executed
    ran = NOTHING_RUN if executed is False else _STILL if state.left else _MAY_HAVE
    exception = cause if isinstance(cause, BaseException) else None
    result = made(state, "cancelled", f"The call was cancelled. {ran}", exception=exception, keeps=not state.plan.seals)
    result = _bounded(result, state.plan.max_output)
    result = result.replace(executed=executed)
    keep_seal(result, milliseconds(state), state.repairs)
    return result


def broke(state: CallState, error: BaseException) -> ToolResult:
    """A middleware that raised: a fault of the program, told to the model without its inside."""
    log.error("a middleware of tool %r raised", state.plan.name, exc_info=error)
    text = str(error) if isinstance(error, ToolError) else f"{type(error).__name__} outside the tool itself"
    what, ran = ("could not be run", NOTHING_RUN) if state.executed is False else ("failed", _MAY_HAVE)
    said = f"{state.plan.name} {what}: {cut(clean(text), 500)}. {ran}"
    return made(state, "failed", said, exception=error)


def safe_text(error: BaseException, expose: tuple[type[BaseException], ...]) -> str:
    """What a model may read of an exception: all of a `ToolError`'s text, a bounded text of the kinds in `expose`
    without credentials in URLs, else the type."""
    if isinstance(error, ToolError):
        return clean(str(error)) or type(error).__name__
    if not isinstance(error, expose):
        return type(error).__name__
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    text = _CREDENTIALS.sub(r"\1***@", clean(text))[:500]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def fits(result: ToolResult, limit: int) -> bool:
    """Whether a success needs no bounding: a text within the limit, or a number with few digits."""
    if result.error is not None or result._content is not None:
        return False
    output = result.output
    kind = type(output)
    if kind is str:
        return len(output) <= limit
    return (kind is int and -_LARGE < output < _LARGE) or output is None or kind is bool or kind is float


def sealed(state: CallState, result: Any) -> ToolResult:
    """The result bound to its call, bounded, cleaned and measured."""
    if not isinstance(result, ToolResult):
        wrong = TypeError(f"a middleware of {state.plan.name!r} returned {result!r}, which is no ToolResult")
        result = broke(state, wrong)
    if result is not state.made:
        # It comes from elsewhere, perhaps a cache that will give it again: it is copied, not filled in.
        said = result.executed
        executed = state.executed if said is False else said  # who says that nothing was run may not know
        result = result.replace(call=state.sent, tool_name=state.plan.name, repairs=(), executed=executed)
    limit = state.plan.max_output
    if not fits(result, limit):
        result = _bounded(result, limit)
    keep_seal(result, milliseconds(state), state.repairs)
    return result  # type: ignore[no-any-return]


def _bounded(result: ToolResult, limit: int) -> ToolResult:
    if result.error is not None and (len(result.error) > limit or not result.error.isascii()):
        result = result.replace(error=cut(clean(result.error), limit))
    if size(result.content) > limit:
        result = result.replace(content=bound(result.content, limit))
    return result
