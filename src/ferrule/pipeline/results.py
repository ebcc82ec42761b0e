"""What a call came to, as its one result: of a handler that returned or raised, of a call that was rejected or
cancelled, of a middleware that raised; and `seal`, which binds, bounds, cleans and measures every result."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any

from ferrule.definition.output import Shaped
from ferrule.errors import NotStartedError, RemoteError, ToolError, UnknownOutcomeError, WorkerDiedError, origin_of
from ferrule.executors.in_loop import joined
from ferrule.pipeline.hiding import hide, hide_result, log_raised, log_said
from ferrule.pipeline.plan import Plan
from ferrule.pipeline.state import CallState
from ferrule.values.call import ToolCall
from ferrule.values.content import Text, as_output, bound, clean, cut, jsonable, render, sentence, text_of
from ferrule.values.decision import Decision
from ferrule.values.deferred import PUT_OFF
from ferrule.values.input import InputRequired
from ferrule.values.masking import masked_text
from ferrule.values.result import Status, ToolResult, gave, keep, keep_duration, keep_told, success

NOTHING_RUN = "Nothing was run."
CANCELLED = f"The call was cancelled. {NOTHING_RUN}"
RESUMED_ALREADY = f"This call was resumed already. {NOTHING_RUN}"
_MAY_HAVE = "It had been started, so its effect may have happened."
_STILL = "It is still running; its effect may yet happen. Do not repeat it."
_READS = "It had been started, and changes nothing."
_STILL_READS = "It is still running, and changes nothing."
_LEAST, _MOST = -(1 << 63), 1 << 63
_SHORT = frozenset({float, bool, type(None)})


class Rejected(Exception):
    """A call that ends before its handler is started; raised by a step, and answered as its result.

    Attributes:
        own_words: Whether the text is the kernel's, and not one that a middleware gave it.
    """

    def __init__(self, status: Status, error: str, *, own_words: bool = True) -> None:
        super().__init__(error)
        self.status: Status = status
        self.error = error
        self.own_words = own_words


class Suspended(Rejected):
    """A call that waits for somebody; any step may raise it, and the call is taken up again at that step.

    Attributes:
        decision: What is asked; with a schema, what its handler wants to know, which has run.
        kept: What the handler keeps for itself until then.
    """

    def __init__(self, plan: Plan, decision: Decision, kept: Any) -> None:
        waits_for = "a decision" if decision.schema is None else "input"
        reason = cut(clean(decision.reason), 500)
        super().__init__("suspended", f"{plan.name} waits for {waits_for}: {sentence(reason)} {NOTHING_RUN}")
        self.decision = decision
        self.kept = kept


def unsuccessful(
    state: CallState,
    status: Status,
    error: str,
    *,
    executed: bool | None,
    output: Any = None,
    exception: BaseException | None = None,
    keep_chunks: bool = False,
) -> ToolResult:
    """The kernel's own result for anything but a success.

    What the handler had yielded by then is kept only where all middleware that may redact it still goes round this.
    """
    chunks, content = state.attempt.chunks, None
    error = hide(state, error)
    if chunks and keep_chunks:
        output = joined(chunks) if output is None else output
        content = (Text(error), *render(output))
    return ToolResult(
        output,
        error,
        _retry_after(exception),
        content,
        call=state.sent,
        tool_name=state.plan.name,
        status=status,
        executed=executed,
        retryable=_retryable(exception),
        exception=exception,
    )


def _retryable(error: BaseException | None) -> bool | None:
    """Return whether to try again, if the exception says so."""
    said = _attribute_of(error, "retryable")
    return said if isinstance(said, bool) else None


def _attribute_of(error: BaseException | None, name: str) -> Any:
    with suppress(Exception):  # of a property of the handler's own
        return getattr(error, name, None)
    return None


def _retry_after(error: BaseException | None) -> dict[str, object] | None:
    """When to try again, where the exception says so as a number of seconds."""
    seconds = _attribute_of(error, "retry_after")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < _MOST:
        return None
    return {"retry_after": float(seconds)}


def what_ran(executed: bool | None, *, running: bool = False, changes: bool = True) -> str:
    """Say what the model has to know of the effect.

    Args:
        running: Whether the handler goes on.
        changes: Whether the tool may change something.
    """
    if executed is False:
        return NOTHING_RUN
    if not changes:
        return _STILL_READS if running else _READS
    return _STILL if running else _MAY_HAVE


def _short(state: CallState, text: str) -> str:
    """A text of somebody's own, as it may leave the call; cut before, it could end with half of a secret."""
    return cut(clean(hide(state, text)), 500)


def _failed(state: CallState, why: str, executed: bool | None) -> str:
    what = "could not be run" if executed is False else "failed"
    return f"{state.plan.name} {what}: {sentence(why)} {what_ran(executed, changes=state.plan.changes)}"


def problem(call: ToolCall) -> Rejected:
    """The end of a call of which its sender, or a middleware, says why it must not run."""
    text = cut(clean(call.problem or ""), 500)
    return Rejected("invalid", text if NOTHING_RUN[:-1] in text else f"{text} {NOTHING_RUN}", own_words=False)


def denied(reason: str) -> Rejected:
    """The end of a call that may not run."""
    why = cut(clean(reason), 500).rstrip(".") or "not permitted"
    return Rejected("denied", f"Denied: {sentence(why)} {NOTHING_RUN}")


def busy(plan: Plan, why: str) -> Rejected:
    """The end of a call that waited too long."""
    return Rejected("limited", f"{plan.name} could not be started in time: {why}. {NOTHING_RUN} Try again later.")


def handler_raised(plan: Plan, state: CallState, error: BaseException) -> ToolResult:
    """What a handler raised, for the model: the text of a `ToolError` as it is; of all else the text where it is known
    to be harmless, else the type."""
    origin, executed = origin_of(error), executed_by(error)
    text = safe_text(error, plan.expose, partial(hide, state))
    of_its_own = getattr(origin, "result", None) is None and not isinstance(origin, WorkerDiedError)
    to_model = of_its_own and _is_one(origin, (ToolError,))
    if to_model:
        log_said(state, "tool %r raised a ToolError", text)
    elif origin is not error:  # whose traceback the log has, of the call that raised it
        log_said(state, "tool %r raised what a tool that it called had raised", text, level=logging.WARNING)
    else:
        log_raised(state, "tool %r raised", plan.name, error=error, level=logging.WARNING)
    if not to_model or not text_of(error).strip():  # an API may refuse an error without a text
        text = _failed(state, text, executed) if plan.changes else f"{plan.name} failed: {text}."
    status: Status = "unknown" if isinstance(origin, UnknownOutcomeError) else "failed"
    return unsuccessful(state, status, text, executed=executed, exception=error, keep_chunks=True)


def executed_by(error: BaseException) -> bool | None:
    """Whether the effect may have happened, as a handler says by what it raised; not of a tool that it called."""
    if isinstance(error, RemoteError):
        return error.executed
    return error.executed if isinstance(error, ToolError) and error.result is None else True


def not_run(plan: Plan, state: CallState, error: BaseException) -> ToolResult:
    """The result of a handler that was not started after all, or says that it has done nothing; an earlier run of it
    stays known."""
    status: Status = "limited" if isinstance(error, NotStartedError) and error.limited else "failed"
    executed, text = state.attempt.executed, safe_text(error, plan.expose, partial(hide, state))
    log_said(state, "tool %r did nothing", text)
    text = _failed(state, text, executed)
    return unsuccessful(state, status, text, executed=executed, exception=error, keep_chunks=True)


def handler_returned(plan: Plan, state: CallState, value: Any) -> ToolResult:
    """The value that a handler returned becomes a result, rendered; the output schema is checked.

    Raises:
        BaseException: whatever the methods of the value raise.
    """
    if type(value) not in plan.output.ready:
        if type(value) in PUT_OFF:
            waits = "waits for input" if type(value) is InputRequired else "is under way, do not repeat it"
            text = _short(state, f"{plan.name} {waits}: {value.reason or 'its result comes later'}")
            return unsuccessful(state, "suspended", text, executed=None)
        shaped = value if isinstance(value, Shaped) else plan.output.shape(value)
        if shaped.problem:
            output = None if shaped.result is None else shaped.result.output
            text = _short(state, f"{plan.name} was run, but {shaped.problem}")
            return unsuccessful(state, "failed", text, executed=True, output=output)
        assert shaped.result is not None
        return _bound_to_call(plan, state, shaped.result)
    return success(value, state.sent, plan.name)


def _bound_to_call(plan: Plan, state: CallState, returned: ToolResult) -> ToolResult:
    """Return a result that a handler returned as the result of its call, with its own status.

    `suspended` becomes `failed`: nobody could resume it. "Nothing was run" (`executed` is `False`) is not believed of a
    tool that changes things where the result is that of another call, or the handler ran before: something may have
    been done beside it.
    """
    status, executed = returned.status, returned.executed
    if status == "suspended" or (status == "ok" and returned.error is not None):
        status = "failed"
    if executed is False and plan.changes and (returned.call is not None or state.attempt.runs > 1):
        executed = True
    return returned.replace(call=state.sent, tool_name=plan.name, repairs=(), status=status, executed=executed)


def timed_out(plan: Plan, state: CallState, why: str, *, running: bool) -> ToolResult:
    """Return the result of a call that its deadline has ended; `running` says whether its handler goes on."""
    executed, keep = state.attempt.executed, plan.inside is None and not plan.handler_hooks
    text = f"{plan.name} {why}. {what_ran(executed, running=running, changes=plan.changes)}"
    return unsuccessful(state, "timeout", text, executed=executed, keep_chunks=keep)


def middleware_raised(state: CallState, error: BaseException) -> ToolResult:
    """A middleware that raised: a fault of the program, told to the model without its inside."""
    log_raised(state, "a middleware of tool %r raised", state.plan.name, error=error)
    meant = isinstance(error, ToolError) and origin_of(error) is error
    text = _short(state, text_of(error) if meant else f"{type(error).__name__} outside the tool itself")
    executed = state.attempt.executed
    text = _failed(state, text, executed)
    return unsuccessful(state, "failed", text, executed=executed, exception=error)


def safe_text(error: BaseException, expose: tuple[type[BaseException], ...], hide: Callable[[str], str] = str) -> str:
    """What a model may read of an exception: all of a `ToolError`'s text, a bounded text of the kinds in `expose`
    without credentials, else the type. What a tool raised that the handler called is judged as if it had raised it."""
    origin = origin_of(error)
    name = origin.name if isinstance(origin, RemoteError) else type(origin).__name__
    if _is_one(origin, (ToolError,)):
        return hide(text_of(error)) or name
    if not _is_one(origin, expose):
        return name if error is origin else f"a tool that it called raised {name}"
    text = masked_text(error, hide)
    return f"{name}: {text}" if text and error is origin else text or name


def _is_one(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    """Whether it is one of these classes, in the process where it was raised."""
    return error.matches(kinds) if isinstance(error, RemoteError) else isinstance(error, kinds)


def fits(result: ToolResult, limit: int) -> bool:
    """Whether a success needs no bounding: a text within the limit, or a number with few digits."""
    if result.error is not None or result._content is not None:
        return False
    output = result.output
    kind = output.__class__
    if kind is int:
        return _LEAST < output < _MOST  # type: ignore[no-any-return]
    return len(output) <= limit if kind is str else kind in _SHORT


def seal(state: CallState, result: object) -> ToolResult:
    """The result bound to its call, bounded, cleaned and measured: for every result, from wherever it came."""
    attempt = state.attempt
    sealed: ToolResult = result if result is attempt.result and result is not None else copied(state, result)
    if not fits(sealed, state.plan.max_output):
        sealed = bounded(state, sealed)
    run, answered = state.run, state.origin.answered
    keep_duration(sealed, (perf_counter() - (run if answered is None else answered.at)) * 1000)  # type: ignore[operator]
    if state.repairs:
        keep(sealed, "repairs", state.repairs)
    fields, now = state.fields, state.plan.runner.clock.now()
    told = state.told if state.plan.hidden else state.call
    by = attempt.answered_by and hide(state, attempt.answered_by)
    keep_told(sealed, (told, fields.session, fields.principal, now, attempt.pending, by))
    return sealed


def copied(state: CallState, found: Any) -> ToolResult:
    """A result from elsewhere, perhaps a cache that will give it again: it is copied, not filled in."""
    attempt, wrong = state.attempt, None
    if not isinstance(found, ToolResult):
        wrong = f"{type(found).__name__}, which is no ToolResult"
    elif found.status == "suspended" and attempt.pending is None:
        wrong = "the suspended result of another call"
    if wrong is not None:
        found = middleware_raised(state, TypeError(f"a middleware of {state.plan.name!r} returned {wrong}"))
    rendered = attempt.result is not None and found.output is attempt.result.output
    copied: ToolResult = found.replace(
        call=state.sent,
        tool_name=state.plan.name,
        repairs=(),
        executed=attempt.executed if found.executed is False else found.executed,  # who says so may not know
        output=found.output if rendered else as_output(found.output, strict=False),
        metadata=found.metadata and jsonable(found.metadata),
        content=found._content,
    )
    keep(copied, "_gave", gave(found))
    return copied


def bounded(state: CallState, result: ToolResult) -> ToolResult:
    """The result within the limit of its runner, and an unsuccessful one without what is known to be secret."""
    limit = state.plan.max_output
    if result.error is not None:
        result = hide_result(state, result)
    error = result.error
    if error is not None and (type(error) is not str or len(error) > limit or not error.isascii()):
        result = result.replace(error=cut(clean(error), limit))
    content = bound(result.content, limit, max_media=state.plan.max_media)
    if content is not result.content:
        result = result.replace(content=content)
    return result
