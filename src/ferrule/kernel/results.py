"""Make the result of a call: from the handler's value, from an exception, or from a rejection."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from ferrule.definition.output import RenderedOutput
from ferrule.errors import NotStartedError, RemoteError, ToolError, UnknownOutcomeError, WorkerDiedError, origin_of
from ferrule.executors.event_loop import join_chunks
from ferrule.kernel.plan import Plan
from ferrule.kernel.redact import log_exception, log_text, redact
from ferrule.kernel.state import CallState
from ferrule.security.masking import format_masked_error
from ferrule.values.call import ToolCall
from ferrule.values.content import (
    Text,
    clean_text,
    safe_str,
    to_blocks,
    to_jsonable,
    to_output,
    to_sentence,
    truncate_blocks,
    truncate_text,
)
from ferrule.values.decision import Decision
from ferrule.values.result import Status, Suspending, ToolResult, get_original, set_slot

NOTHING_RUN = "Nothing was run."
"""The end of the error of a `Rejected`. `reject` replaces it if the handler ran in an earlier attempt."""
CANCELLED = f"The call was cancelled. {NOTHING_RUN}"
RESUMED_ALREADY = f"This call was resumed already. {NOTHING_RUN}"
RESUMED_WITHOUT_EFFECT = (
    f"{RESUMED_ALREADY} The journal has no effect of the earlier answer: if the call is still wanted, send it again."
)
_MAY_HAVE = "It had been started, so its effect may have happened."
_STILL = "It went on running, so its effect may have happened or may yet happen. Do not repeat it."
_READS = "It had been started, and changes nothing."
_STILL_READS = "It went on running, and changes nothing."
_MAX_RETRY_SECONDS = 1 << 63


class Rejected(Exception):
    """Ends an attempt without a run, or another run, of the handler. A step raises it, and `reject` makes the result.

    Attributes:
        error: The text for the model, complete if the handler has not run before; see `NOTHING_RUN`.
        own_words: Whether the text is the kernel's own, and not the sender's.
    """

    def __init__(self, status: Status, error: str, *, own_words: bool = True) -> None:
        super().__init__(error)
        self.status: Status = status
        self.error = error
        self.own_words = own_words


class Suspended(Rejected):
    """Suspends a call until somebody answers. Any step may raise it; a resumed call goes on at that step.

    Attributes:
        decision: The question. With a schema it is the handler's, which has run until it asked.
        handler_state: The handler's own data, to get back with the answer.
    """

    def __init__(self, plan: Plan, decision: Decision, handler_state: Any) -> None:
        waits_for = "a decision" if decision.schema is None else "input"
        reason = truncate_text(clean_text(decision.reason), 500)
        super().__init__("suspended", f"{plan.name} waits for {waits_for}: {to_sentence(reason)} {NOTHING_RUN}")
        self.decision = decision
        self.handler_state = handler_state


def unsuccessful(
    state: CallState,
    status: Status,
    error: str,
    *,
    executed: bool | None,
    output: Any = None,
    exception: BaseException | None = None,
    retryable: bool | None = None,
    keep_chunks: bool = False,
) -> ToolResult:
    """Return a result with any status but `ok`.

    Args:
        retryable: If left out, as the exception says.
        keep_chunks: Keep what the handler had yielded. Only safe while every middleware that may redact it still wraps
            this result.
    """
    chunks, content = state.attempt.chunks, None
    error = redact(state, error)
    if chunks and keep_chunks:
        output = to_output(join_chunks(chunks), strict=False) if output is None else output
        content = (Text(error), *to_blocks(output))
    return ToolResult(
        output,
        error,
        None if exception is None else _retry_after(exception),
        content,
        call=state.sent,
        tool_name=state.plan.name,
        status=status,
        executed=executed,
        retryable=retryable if exception is None or retryable is not None else _retryable(exception),
        exception=exception,
    )


def _retryable(error: BaseException) -> bool | None:
    """Return whether to try again, or None if the exception does not say."""
    said = _read_attribute(error, "retryable")
    return said if isinstance(said, bool) else None


def _read_attribute(error: BaseException, name: str) -> Any:
    try:
        return getattr(error, name, None)
    except Exception:  # a property may raise
        return None


def _retry_after(error: BaseException) -> dict[str, object] | None:
    """Return the metadata for the exception's `retry_after`, in seconds, or None if it has none."""
    seconds = _read_attribute(error, "retry_after")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < _MAX_RETRY_SECONDS:
        return None
    return {"retry_after": float(seconds)}


def describe_effect(executed: bool | None, *, running: bool = False, changes: bool = True) -> str:
    """Tell the model whether the call may have had an effect.

    Args:
        running: Whether the handler still runs.
        changes: Whether the tool may change something.
    """
    if executed is False:
        return NOTHING_RUN
    if not changes:
        return _STILL_READS if running else _READS
    return _STILL if running else _MAY_HAVE


def _clean_text(state: CallState, text: str) -> str:
    """Return a text without secrets, at most 500 characters. Cutting it first could leave half of a secret."""
    return truncate_text(clean_text(redact(state, text)), 500)


def _format_failure(state: CallState, why: str, executed: bool | None) -> str:
    what = "could not be run" if executed is False else "failed"
    return f"{state.plan.name} {what}: {to_sentence(why)} {describe_effect(executed, changes=state.plan.changes)}"


def problem(call: ToolCall) -> Rejected:
    """Return the rejection of a call whose sender, or a middleware, says that it cannot be read."""
    text = truncate_text(clean_text(call.problem or ""), 500)
    return Rejected("invalid", text if NOTHING_RUN[:-1] in text else f"{text} {NOTHING_RUN}", own_words=False)


def denial(reason: str) -> Rejected:
    """Return the rejection of a call that may not run."""
    why = truncate_text(clean_text(reason), 500).rstrip(".") or "not permitted"
    return Rejected("denied", f"Denied: {to_sentence(why)} {NOTHING_RUN}")


def busy(plan: Plan, why: str) -> Rejected:
    """Return the rejection of a call that waited too long."""
    return Rejected("limited", f"{plan.name} could not be started in time: {why}. {NOTHING_RUN} Try again later.")


def result_of_error(plan: Plan, state: CallState, error: BaseException) -> ToolResult:
    """Return the result of a handler that raised.

    The model reads the text of a `ToolError`. Another exception shows its text only if `expose` allows it, and its type
    otherwise.
    """
    origin, executed = origin_of(error), read_executed(error)
    text = safe_text(error, plan.expose, partial(redact, state))
    of_nested = getattr(origin, "result", None) is not None
    if of_nested:  # this call did run
        text = text.replace(NOTHING_RUN[:-1], "The tool that it called was not run")
    of_its_own = not of_nested and not isinstance(origin, WorkerDiedError)
    to_model = of_its_own and _is_instance(origin, (ToolError,))
    if to_model:
        log_text(state, "tool %r raised a ToolError", text)
    elif origin is not error:  # the nested call has logged its traceback
        log_text(state, "tool %r raised what a tool that it called had raised", text, level=logging.WARNING)
    else:
        log_exception(state, "tool %r raised", plan.name, error=error, level=logging.WARNING)
    if not to_model or not safe_str(error).strip():  # an API may refuse an error without a text
        text = _format_failure(state, text, executed) if plan.changes else f"{plan.name} failed: {text}."
    status: Status = "unknown" if isinstance(origin, UnknownOutcomeError) else "failed"
    return unsuccessful(state, status, text, executed=executed, exception=error, keep_chunks=True)


def read_executed(error: BaseException) -> bool | None:
    """Return `executed` as the handler's exception says it. An exception of a tool that it called does not count."""
    if isinstance(error, RemoteError):
        return error.executed
    return error.executed if isinstance(error, ToolError) and error.result is None else True


def result_of_unstarted(plan: Plan, state: CallState, error: BaseException) -> ToolResult:
    """Return the result of a handler that did not start, or says that it has done nothing. Earlier runs count still."""
    status: Status = "limited" if isinstance(error, NotStartedError) and error.limited else "failed"
    executed, text = state.attempt.executed, safe_text(error, plan.expose, partial(redact, state))
    log_text(state, "tool %r did nothing", text)
    text = _format_failure(state, text, executed)
    return unsuccessful(state, status, text, executed=executed, exception=error, keep_chunks=True)


def result_of_value(plan: Plan, state: CallState, value: Any) -> ToolResult:
    """Return the result for a handler's value that needs to be rendered and checked against the output schema.

    Raises:
        BaseException: A method of the value raised it.
    """
    if issubclass(type(value), Suspending):
        text = _clean_text(state, f"{plan.name} {value.waits}: {value.reason or 'its result comes later'}")
        return unsuccessful(state, "suspended", text, executed=None)
    shaped = value if isinstance(value, RenderedOutput) else plan.output.render(value)
    if shaped.problem:
        output = None if shaped.result is None else shaped.result.output
        text = _clean_text(state, f"{plan.name} was run, but {shaped.problem}")
        return unsuccessful(state, "failed", text, executed=True, output=output, retryable=False)
    assert shaped.result is not None
    return _bind_result(plan, state, shaped.result)


def _bind_result(plan: Plan, state: CallState, returned: ToolResult) -> ToolResult:
    """Return the `ToolResult` that a handler returned, bound to its call. It keeps its status.

    `suspended` becomes `failed`, because nobody could resume it. If the tool changes things, `executed=False` becomes
    `True` when the result belongs to another call or the handler ran before: the handler may have done more than that.
    """
    status, executed = returned.status, returned.executed
    ran_before = state.attempt.ran_before or state.attempt.runs > 1
    if status == "suspended" or (status == "ok" and returned.error is not None):
        status = "failed"
    if executed is False and plan.changes and (returned.call is not None or ran_before):
        executed = True
    return returned.replace(call=state.sent, tool_name=plan.name, repairs=(), status=status, executed=executed)


def result_of_timeout(plan: Plan, state: CallState, why: str, *, running: bool) -> ToolResult:
    """Return the result of a call whose deadline has passed; `running` says whether its handler still runs.

    The text of a `ToolError` that the handler raised when it was stopped is in it.
    """
    executed, keep = state.attempt.executed, plan.inside is None and plan.after_hook is None
    error = state.attempt.raised
    if isinstance(error, ToolError) and error.result is None:
        why = f"{why}: {_clean_text(state, safe_str(error))}"
    text = f"{plan.name} {to_sentence(why)} {describe_effect(executed, running=running, changes=plan.changes)}"
    return unsuccessful(state, "timeout", text, executed=executed, exception=error, keep_chunks=keep)


def result_of_middleware_error(state: CallState, error: BaseException) -> ToolResult:
    """Return the result of a call whose middleware raised. The model reads the type, or the text of a `ToolError`."""
    log_exception(state, "a middleware of tool %r raised", state.plan.name, error=error)
    meant = isinstance(error, ToolError) and origin_of(error) is error
    text = _clean_text(state, safe_str(error) if meant else f"{type(error).__name__} outside the tool itself")
    executed = state.attempt.executed
    text = _format_failure(state, text, executed)
    return unsuccessful(state, "failed", text, executed=executed, exception=error)


def safe_text(error: BaseException, expose: tuple[type[BaseException], ...], redact: Callable[[str], str] = str) -> str:
    """Return what a model may read of an exception.

    That is all of a `ToolError`'s text, a bounded text without credentials for the types in `expose`, and the type's
    name for all others. An exception of a tool that the handler called counts as the handler's own.
    """
    origin = origin_of(error)
    name = origin.name if isinstance(origin, RemoteError) else type(origin).__name__
    if _is_instance(origin, (ToolError,)):
        return redact(safe_str(error)) or name
    if not _is_instance(origin, expose):
        return name if error is origin else f"a tool that it called raised {name}"
    text = format_masked_error(error, redact)
    return f"{name}: {text}" if text and error is origin else text or name


def _is_instance(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    """Return whether the exception is an instance of `kinds`, judged in the process that raised it."""
    return error.matches(kinds) if isinstance(error, RemoteError) else isinstance(error, kinds)


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
        output=found.output if is_rendered else to_output(found.output, strict=False),
        metadata=found.metadata and to_jsonable(found.metadata),
        content=found._content,
    )
    set_slot(copied, "_original", get_original(found))
    return copied


def limit_size(state: CallState, result: ToolResult) -> ToolResult:
    """Return the result within the limits of its runner. An unsuccessful one has stars for known secrets."""
    limit = state.plan.max_output
    is_redacted = result is state.attempt.refusal  # since it was made
    if not is_redacted and (result.error is not None or not result.success):
        result = redact(state, result)
    error = result.error
    if error is not None and (type(error) is not str or len(error) > limit or not error.isascii()):
        result = result.replace(error=truncate_text(clean_text(error), limit))
    if error is not None and result._content is None:  # it shows the error alone
        return result
    content = truncate_blocks(result.content, limit, max_media=state.plan.max_media)
    if content is not result.content:
        result = result.replace(content=content)
    return result
