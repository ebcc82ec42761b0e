"""What a call came to, as its one result: of a handler that returned or raised, of a call that was rejected or
cancelled, of a middleware that raised; and `seal`, which binds, bounds, cleans and measures every result."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any

from ferrule.arguments.schema_parameters import SchemaParameters
from ferrule.definition.output import Shaped
from ferrule.errors import DefinitionError, RemoteError, ToolError, WorkerDiedError, origin_of
from ferrule.executors import NotStarted
from ferrule.executors.in_loop import joined
from ferrule.pipeline.hiding import hide, log_raised
from ferrule.pipeline.plan import Plan
from ferrule.pipeline.state import CallState
from ferrule.values.call import ToolCall
from ferrule.values.content import Block, Text, as_output, bound, clean, cut, render, size, text_of
from ferrule.values.decision import Decision
from ferrule.values.input import InputRequired
from ferrule.values.masking import masked_text
from ferrule.values.result import Status, Suspension, ToolResult, keep, keep_duration, keep_told, returned, success

log = logging.getLogger("ferrule")
NOTHING_RUN = "Nothing was run."
CANCELLED = f"The call was cancelled. {NOTHING_RUN}"
_MAY_HAVE = "It had been started, so its effect may have happened."
_STILL = "It is still running; its effect may yet happen. Do not repeat it."
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
        super().__init__("suspended", f"{plan.name} waits for {waits_for}: {reason}. {NOTHING_RUN}")
        self.decision = decision
        self.kept = kept


def unsuccessful(
    state: CallState,
    status: Status,
    error: str,
    *,
    executed: bool | None = None,
    output: Any = None,
    metadata: Mapping[str, object] | None = None,
    exception: BaseException | None = None,
    keep_chunks: bool = False,
) -> ToolResult:
    """The kernel's own result for anything but a success.

    What the handler had yielded by then is kept only where all middleware that may redact it still goes round this.
    """
    content: tuple[Block, ...] | None = None
    error, chunks = hide(state, error), state.attempt.chunks
    if keep_chunks and chunks:
        output = joined(chunks) if output is None else output
        content = (Text(error), *render(output))
    return ToolResult(
        output,
        error,
        metadata,
        content,
        call=state.sent,
        tool_name=state.plan.name,
        status=status,
        executed=executed,
        exception=exception,
    )


def rejected(state: CallState, rejection: Rejected) -> ToolResult:
    """The result of a call that was stopped before its handler, or during it, or between two runs of it."""
    error, executed = rejection.error, state.attempt.executed
    if executed is None:
        error = error.replace(NOTHING_RUN, _MAY_HAVE)
    elif executed:
        error = error.replace(NOTHING_RUN, "It was not run again; it had been run before.")
    keep = not state.plan.has_middleware
    return unsuccessful(state, rejection.status, error, executed=executed, keep_chunks=keep)


def problem(call: ToolCall) -> Rejected:
    """The end of a call of which its sender, or a middleware, says why it must not run."""
    text = cut(clean(call.problem or ""), 500)
    return Rejected("invalid", text if NOTHING_RUN[:-1] in text else f"{text} {NOTHING_RUN}", own_words=False)


def denied(reason: str) -> Rejected:
    """The end of a call that may not run."""
    why = cut(clean(reason), 500).rstrip(".") or "not permitted"
    return Rejected("denied", f"Denied: {why}. {NOTHING_RUN}")


def busy(plan: Plan, why: str) -> Rejected:
    """The end of a call that waited too long."""
    return Rejected("limited", f"{plan.name} could not be started in time: {why}. {NOTHING_RUN} Try again later.")


def stopped(plan: Plan) -> Rejected:
    """The end of a call of which there is to be no further attempt."""
    return denied(plan.disabled) if plan.disabled is not None else Rejected("cancelled", CANCELLED)


def handler_raised(plan: Plan, state: CallState, error: BaseException) -> ToolResult:
    """What a handler raised, for the model: the text of a `ToolError` as it is; of all else the text where it is known
    to be harmless, else the type."""
    executed = None if isinstance(error, WorkerDiedError) else True
    try:
        if isinstance(error, ToolError) and error.result is None and error.executed is not True:
            executed = None  # the handler's own word on what it did
        origin = origin_of(error)
        if isinstance(origin, ToolError):
            to_model = origin.result is None and not isinstance(origin, WorkerDiedError)  # the kernel's own
        else:
            to_model = isinstance(origin, RemoteError) and origin.matches((ToolError,))
        if not to_model:
            log_raised(state, "tool %r raised", plan.name, error=error, level=logging.WARNING)
        text, metadata = safe_text(error, plan.expose, partial(hide, state)), _retry_after(error)
        if to_model:
            log.info("tool %r raised a ToolError: %.500r", plan.name, text)
            to_model = bool(text_of(error).strip())  # an API may refuse an error without a text
    except KeyboardInterrupt:
        raise
    except BaseException:  # raised by a method of what was raised
        text, metadata, to_model = type(error).__name__, None, False
    if not to_model:
        text = f"{plan.name} failed: {text}.{f' {_MAY_HAVE}' if plan.changes else ''}"
    return unsuccessful(state, "failed", text, executed=executed, metadata=metadata, exception=error, keep_chunks=True)


def did_nothing(error: BaseException) -> bool:
    """Whether a handler says by what it raised that nothing was done."""
    try:
        return isinstance(error, ToolError) and error.result is None and error.executed is False
    except Exception:  # raised by a method of what was raised
        return False


def not_run(plan: Plan, state: CallState, error: BaseException) -> ToolResult:
    """The result of a handler that was not started after all, or says that it has done nothing; an earlier run of it
    stays known."""
    status: Status = error.status if isinstance(error, NotStarted) else "failed"
    executed, cause = state.attempt.executed, error.__cause__ if isinstance(error, NotStarted) else error
    try:
        text = str(error) if isinstance(error, NotStarted) else safe_text(error, plan.expose, partial(hide, state))
        log.info("tool %r did nothing: %.500r", plan.name, text)
    except Exception:  # raised by a method of what was raised
        text = type(error).__name__
    what = "failed" if executed is None else "cannot be started" if status == "limited" else "could not be run"
    text = f"{plan.name} {what}: {text}. {NOTHING_RUN if executed is False else _MAY_HAVE}"
    metadata = _retry_after(error)
    return unsuccessful(state, status, text, executed=executed, metadata=metadata, exception=cause, keep_chunks=True)


def _retry_after(error: BaseException) -> dict[str, object] | None:
    """When to try again, where the exception says so as a number of seconds."""
    seconds = getattr(error, "retry_after", None)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < _MOST:
        return None
    return {"retry_after": float(seconds)}


def handler_returned(plan: Plan, state: CallState, value: Any) -> ToolResult:
    """The value that a handler returned becomes a result, rendered; the output schema is checked.

    Raises:
        BaseException: whatever the methods of the value raise.
    """
    if value.__class__ is InputRequired:
        return _input_required(plan, state, value)
    if type(value) not in plan.output.ready:
        shaped: Shaped = value if plan.shaped else plan.output.shape(value)
        if shaped.problem:
            output = None if shaped.result is None else shaped.result.output
            text = cut(clean(f"{plan.name} was run, but {shaped.problem}"), 500)
            return unsuccessful(state, "failed", text, executed=True, output=output)
        assert shaped.result is not None
        status: Status = "ok" if shaped.result.error is None else "failed"
        return shaped.result.replace(call=state.sent, tool_name=plan.name, status=status, executed=True)
    return success(value, state.sent, plan.name)


def _input_required(plan: Plan, state: CallState, wanted: InputRequired) -> ToolResult:
    """What stands for a handler that waits for a person, until it is run again."""
    try:
        SchemaParameters(wanted.schema)
    except DefinitionError as error:
        text = f"{plan.name} asked for input that no schema describes: {error}. {_MAY_HAVE}"
        return unsuccessful(state, "failed", cut(clean(text), 500))
    return unsuccessful(state, "suspended", cut(clean(f"{plan.name} waits for input: {wanted.reason}"), 500))


def timed_out(plan: Plan, state: CallState, seconds: float, *, running: bool) -> ToolResult:
    """The result of a call that did not end within its `seconds`; `running` where it goes on."""
    limit, executed = f"its deadline of {seconds:g} s", state.attempt.executed
    if executed is False:
        text = f"{plan.name} was not started before {limit}. {NOTHING_RUN}"
    elif running:
        text = f"{plan.name} did not end by {limit} and is still running; its effect may yet happen. Do not repeat it."
    elif executed:
        text = f"{plan.name} ended after {limit}, so its result was dropped; it was executed."
    else:
        text = f"{plan.name} was stopped at {limit}; its effect may have happened."
    keep = plan.inside is None and not plan.handler_hooks
    return unsuccessful(state, "timeout", text, executed=executed, keep_chunks=keep)


def cancelled(state: CallState, cause: BaseException | ToolResult) -> ToolResult:
    """The result of a call that was cancelled from outside."""
    exception = cause if isinstance(cause, BaseException) else None
    executed = cause.executed if isinstance(cause, ToolResult) else state.attempt.executed
    ran = NOTHING_RUN if executed is False else _STILL if state.attempt.left_running else _MAY_HAVE
    keep = not state.plan.has_middleware
    text = f"The call was cancelled. {ran}"
    return unsuccessful(state, "cancelled", text, executed=executed, exception=exception, keep_chunks=keep)


def middleware_raised(state: CallState, error: BaseException) -> ToolResult:
    """A middleware that raised: a fault of the program, told to the model without its inside."""
    try:
        log_raised(state, "a middleware of tool %r raised", state.plan.name, error=error)
    except KeyboardInterrupt:
        raise
    except BaseException:  # raised by a method of what was raised
        log.error("a middleware of tool %r raised what cannot be shown", state.plan.name)
    meant = isinstance(error, ToolError) and origin_of(error) is error
    text = hide(state, text_of(error)) if meant else f"{type(error).__name__} outside the tool itself"
    executed = state.attempt.executed
    what, ran = ("could not be run", NOTHING_RUN) if executed is False else ("failed", _MAY_HAVE)
    text = f"{state.plan.name} {what}: {cut(clean(text), 500)}. {ran}"
    return unsuccessful(state, "failed", text, executed=executed, exception=error)


def safe_text(error: BaseException, expose: tuple[type[BaseException], ...], hide: Callable[[str], str] = str) -> str:
    """What a model may read of an exception: all of a `ToolError`'s text, a bounded text of the kinds in `expose`
    without credentials, else the type. What a tool raised that the handler called is judged as if it had raised it."""
    origin = origin_of(error)
    if isinstance(origin, RemoteError):
        name, matches = origin.name, origin.matches
    else:
        name, matches = type(origin).__name__, partial(isinstance, origin)
    if matches((ToolError,)):
        return hide(text_of(error)) or name
    if not matches(expose):
        return name if error is origin else f"a tool that it called raised {name}"
    text = masked_text(error, hide)
    return f"{name}: {text}" if text and error is origin else text or name


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
    sealed: ToolResult = result if result is attempt.result and result is not None else _copied(state, result)
    if not fits(sealed, state.plan.max_output):
        sealed = _bounded(sealed if sealed.error is None else _hidden(state, sealed), state.plan.max_output)
    keep_duration(sealed, (perf_counter() - state.started) * 1000)
    if state.repairs:
        keep(sealed, "repairs", state.repairs)
    fields, now = state.fields, state.plan.runner.clock.now()
    keep_told(sealed, (state.told if state.plan.hidden else state.call, fields.session, fields.principal, now))
    if attempt.pending is not None or attempt.answered_by is not None:
        keep(sealed, "_suspension", Suspension(attempt.pending, attempt.answered_by))
    return sealed


def _copied(state: CallState, result: object) -> ToolResult:
    """A result from elsewhere, perhaps a cache that will give it again: it is copied, not filled in."""
    plan, made = state.plan, state.attempt.result
    if not isinstance(result, ToolResult):
        wrong = TypeError(f"a middleware of {plan.name!r} returned {type(result).__name__}, which is no ToolResult")
        result = middleware_raised(state, wrong)
    elif result.status == "suspended" and state.attempt.pending is None:
        wrong = TypeError(f"a middleware of {plan.name!r} returned the suspended result of another call")
        result = middleware_raised(state, wrong)
    executed = state.attempt.executed if result.executed is False else result.executed  # who says so may not know
    found: ToolResult = result
    rendered = made is not None and found.output is made.output
    output = found.output if rendered else as_output(found.output, strict=False)
    copied = found.replace(
        call=state.sent, tool_name=plan.name, repairs=(), executed=executed, output=output, content=found._content
    )
    keep(copied, "_value", returned(found))
    keep(copied, "_suspension", Suspension(None, None))  # perhaps another call's
    return copied


def _hidden(state: CallState, result: ToolResult) -> ToolResult:
    """An unsuccessful result whose texts hold nothing that is known to be secret."""
    error = hide(state, result.error or "")
    content = [Text(hide(state, one.text)) if isinstance(one, Text) else one for one in result.content]
    return result if content == [*result.content] else result.replace(error=error, content=content)


def _bounded(result: ToolResult, limit: int) -> ToolResult:
    error = result.error
    if error is not None and (type(error) is not str or len(error) > limit or not error.isascii()):
        result = result.replace(error=cut(clean(error), limit))
    if size(result.content) > limit:
        result = result.replace(content=bound(result.content, limit))
    return result
