"""The implementation of `trace`: the span of each call, and the metrics.

The names are those of OpenTelemetry's conventions for GenAI (semantic-conventions-genai 0.1.0, all at Development), as
literals: no Python package has them. Ferrule's own attributes are in the namespace `ferrule`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Callable
from contextvars import ContextVar
from time import perf_counter
from typing import Any, NamedTuple, get_args

from opentelemetry import context as current
from opentelemetry.metrics import MeterProvider, get_meter, get_meter_provider
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TracerProvider,
    get_current_span,
    get_tracer,
    get_tracer_provider,
    set_span_in_context,
)

from ferrule.errors import RemoteError, origin_of
from ferrule.kernel.redact import redact
from ferrule.types import Next
from ferrule.values.call import ToolCall
from ferrule.values.content import to_jsonable, truncate_text
from ferrule.values.context import RunningCall, ToolContext
from ferrule.values.decision import Decision
from ferrule.values.event import Event
from ferrule.values.result import Status, ToolResult

OPERATION = "execute_tool"
UNKNOWN = "unknown"
"""The tool name of a call without a known tool. A model may have invented its name, and span names are no free text."""
OPERATION_NAME = "gen_ai.operation.name"
NAME, TYPE, CALL_ID = "gen_ai.tool.name", "gen_ai.tool.type", "gen_ai.tool.call.id"
NOTE_NAME = "ferrule.trace"
"""The name under which a suspended call stores its trace."""
log = logging.getLogger("ferrule")
_BUCKETS = tuple(0.01 * 2**n for n in range(14))  # the advice of the conventions: 0.01, 0.02, 0.04 … 81.92
_NO_ERROR_STATUSES = ("ok", "suspended")
_ERROR_STATUSES = ("failed", "timeout", "unknown")
_END_KINDS = ("tool:post", "tool:error", "tool:suspended")
_MOST_CONTENT = 8_192
_CHECK_SECONDS = 0.1  # seconds between two checks for a provider; each check costs 3 µs
_MOST_ATTRIBUTE_CHARACTERS = 200
_CONTENT_ON_SPANS = ("SPAN_ONLY", "SPAN_AND_EVENT")
_match_trace = re.compile(r"([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2}) ([0-9]+\.[0-9]+)").fullmatch
_STATUSES = frozenset(get_args(Status))


class _Claim(NamedTuple):
    """The call of the current span, and that span."""

    call: object
    span: Span


_CLAIM: ContextVar[_Claim | None] = ContextVar("ferrule.traced", default=None)


class Instruments:
    """The counter and the histograms of all calls."""

    def __init__(self, provider: MeterProvider | None) -> None:
        meter = get_meter("ferrule", "", provider)
        advised: dict[str, Any] = {"unit": "s", "explicit_bucket_boundaries_advisory": _BUCKETS}
        self.calls = meter.create_counter("ferrule.calls", unit="{call}", description="The number of calls")
        self.duration = meter.create_histogram(
            "gen_ai.execute_tool.duration", description="How long the tool ran", **advised
        )
        self.queued = meter.create_histogram(
            "ferrule.call.queued", description="How long a call that might run waited for its slot and keys", **advised
        )
        self.approval = meter.create_histogram(
            "ferrule.approval.duration", description="How long an answer was waited for", **advised
        )


class Trace:
    """The middleware of `trace`. Its `observe` is an observer. See docs/telemetry.md."""

    only_around = "trace(…) belongs in `around`: in `inside`, it sees no refusals and no waits"
    as_observer = "trace(…) is no observer, but has one: observers=[tracing.observe]"

    def __init__(
        self,
        content: bool | None,
        principal: bool,
        agent: str | None,
        mask: Callable[[str], str],
        tracer_provider: TracerProvider | None,
        meter_provider: MeterProvider | None,
    ) -> None:
        setting = os.environ.get("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "")
        self.content = setting.strip().upper() in _CONTENT_ON_SPANS if content is None else content
        self.principal = principal
        self.agent = agent
        self.mask = mask
        self.instruments = Instruments(meter_provider)
        self._tracer = get_tracer("ferrule", None, tracer_provider)
        self._spans = tracer_provider is not None
        self._metrics = meter_provider is not None
        self._next_check = 0.0
        self._beginnings: dict[str, tuple[str, dict[str, str]]] = {}

    async def __call__(self, call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
        claim = _CLAIM.get()
        if context.call is None or not self._is_used() or (claim is not None and claim.call is context.running_call):
            return await next(call, context)
        token = None
        try:
            span = self._begin_span(call, context, claim)
            if span.get_span_context().is_valid:
                token = current.attach(set_span_in_context(span))
        except Exception:  # from an SDK, a sampler or a processor: telemetry must not break the call
            log.exception("OpenTelemetry has no span for a call of tool %r", call.name)
            span = INVALID_SPAN
        claimed = _CLAIM.set(_Claim(context.running_call, span)) if self._metrics or span.is_recording() else None
        try:
            return await next(call, context)
        finally:
            if claimed is not None:
                _CLAIM.reset(claimed)
            if token is not None:
                current.detach(token)

    def _begin_span(self, call: ToolCall, context: ToolContext, claim: _Claim | None) -> Span:
        """Return the span of the call and subscribe it to the call's events.

        It is the current span if a framework has opened that for this call, else a new one.
        """
        found = get_current_span()
        if (claim is None or claim.span is not found) and _is_call_span(found, call, context):
            self._observe(found, False, call, context)
            return found
        span = self._open_span(call, context) if self._spans else INVALID_SPAN
        self._observe(span, True, call, context)
        return span

    def _observe(self, span: Span, opened: bool, call: ToolCall, context: ToolContext) -> None:
        if span.is_recording() or self._metrics:
            context.observe(CallObserver(self, span, opened, call, context))

    def observe(self, event: Event) -> None:
        """Record a call that reaches no tool: its name is unknown, or it came with a problem. See docs/telemetry.md."""
        if event.kind != "tool:error" or not self._is_used():
            return
        result: ToolResult = event.data["result"]
        if result.duration_ms:  # a call that is answered on arrival has no duration
            return
        if self._spans:
            given = {OPERATION_NAME: OPERATION, NAME: UNKNOWN, TYPE: "function"}
            span = self._tracer.start_span(f"{OPERATION} {UNKNOWN}", kind=SpanKind.INTERNAL, attributes=given)
            if span.is_recording():
                attributes = {
                    CALL_ID: truncate_text(event.call.id, _MOST_ATTRIBUTE_CHARACTERS),
                    **_identity_attributes(self, event.session, event.principal),
                }
                attributes |= {"error.type": result.status, "ferrule.status": result.status}
                span.set_attributes({**attributes, "ferrule.executed": False})
            span.end()
        self.instruments.calls.add(1, {NAME: UNKNOWN, "ferrule.status": result.status})

    def _is_used(self) -> bool:
        """Return whether the program has set a provider. Once found, a provider is not looked for again."""
        if self._spans and self._metrics:
            return True
        now = perf_counter()
        if now < self._next_check:
            return self._spans or self._metrics
        self._next_check = now + _CHECK_SECONDS
        if not self._spans:
            self._spans = _is_sdk(get_tracer_provider())
        if not self._metrics:
            self._metrics = _is_sdk(get_meter_provider())
        return self._spans or self._metrics

    def _open_span(self, call: ToolCall, context: ToolContext) -> Span:
        earlier_span = _read_earlier_span(context)
        links = [Link(earlier_span[0])] if earlier_span is not None and earlier_span[0].is_valid else None
        name, attributes = self._beginnings.get(call.name) or self._beginning(call.name)
        return self._tracer.start_span(name, None, SpanKind.INTERNAL, attributes, links)

    def _beginning(self, tool: str) -> tuple[str, dict[str, str]]:
        """Return the name and first attributes of a tool's spans. The cache has at most one entry per tool."""
        made = f"{OPERATION} {tool}", {OPERATION_NAME: OPERATION, NAME: tool, TYPE: "function"}
        self._beginnings[tool] = made
        return made


class CallObserver:
    """The observer of one call. It writes the call's span and metrics.

    Args:
        trace: The trace of the call.
        span: The span of the call; it may be one that records nothing.
        opened: Whether `trace` opened the span, and not a framework.
    """

    __slots__ = ("_asked_at", "_began", "_call", "_context", "_decision", "_opened", "_span", "_started", "_trace")

    def __init__(self, trace: Trace, span: Span, opened: bool, call: ToolCall, context: ToolContext) -> None:
        self._trace = trace
        self._span = span
        self._opened = opened
        self._call = call
        self._context: ToolContext | None = context
        self._began = perf_counter()
        self._started: float | None = None
        self._decision: Decision | None = None
        earlier_span = _read_earlier_span(context)
        self._asked_at: float | None = None if earlier_span is None else earlier_span[1]
        if span.is_recording():
            self._set_first_attributes(earlier_span, context)
        self._store_trace(0.0)

    def __call__(self, event: Event) -> None:
        kind = event.kind
        if kind == "tool:decided":
            self._on_decision(event)
        elif kind == "tool:started":
            self._on_start()
        elif kind == "tool:progress":
            self._on_attempt(event)
        elif kind in _END_KINDS:
            self._end(event)

    def _set_first_attributes(self, earlier_span: tuple[SpanContext, float] | None, context: ToolContext) -> None:
        tool = context.tool.definition
        attributes: dict[str, Any] = {}
        if tool.wire_name != tool.name:
            attributes["ferrule.tool.wire_name"] = tool.wire_name
        present: Any = getattr(self._span, "attributes", None) or {}
        if CALL_ID not in present:  # the id distinguishes this call from others
            attributes[CALL_ID] = truncate_text(self._call.id, _MOST_ATTRIBUTE_CHARACTERS)
        if self._opened:  # a framework sets these on its own span
            attributes |= {"gen_ai.tool.description": truncate_text(tool.description, _MOST_CONTENT), **self._agent}
            attributes |= _identity_attributes(self._trace, context.session, context.principal)
        self._span.set_attributes(attributes)
        if earlier_span is not None:
            self._span.set_attribute("ferrule.resumed", True)
            if not self._opened and earlier_span[0].is_valid:
                self._span.add_link(earlier_span[0])

    def _store_trace(self, asked_at: float) -> None:
        """Store this span and the time of the question for a later resume, in case the call is suspended."""
        found = self._span.get_span_context()
        if self._context is not None:
            traced = f"{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"
            self._context.store_note(NOTE_NAME, f"{traced} {asked_at:.3f}")

    def _on_decision(self, event: Event) -> None:
        decision: Decision = event.data["decision"]
        now = time.time()
        if decision.kind == "ask":
            self._asked_at = now
            self._store_trace(now)
        elif self._asked_at:
            attributes = {NAME: self._name, "ferrule.decision": decision.kind}
            self._trace.instruments.approval.record(max(0.0, now - self._asked_at), attributes)
            self._asked_at = None
        self._decision = decision
        self._began = perf_counter()

    def _on_start(self) -> None:
        self._started = perf_counter()
        self._trace.instruments.queued.record(self._started - self._began, {NAME: self._name})

    def _on_attempt(self, event: Event) -> None:
        attempt, status = event.data.get("attempt"), event.data.get("status")
        is_known = isinstance(attempt, int) and isinstance(status, str) and status in _STATUSES
        if is_known and self._span.is_recording():  # a handler may report any value
            self._span.add_event("ferrule.attempt", {"ferrule.attempt": attempt, "error.type": status})

    def _end(self, event: Event) -> None:
        result: ToolResult = event.data["result"]
        status = result.status
        error = {} if status in _NO_ERROR_STATUSES else {"error.type": _error_type(result)}
        instruments = self._trace.instruments
        if self._started is not None and self._opened:  # the opener of the span measures the duration
            duration = perf_counter() - self._started
            instruments.duration.record(duration, {NAME: self._name, TYPE: "function", **self._agent, **error})
        instruments.calls.add(1, {NAME: self._name, "ferrule.status": status})
        if self._span.is_recording():
            self._span.set_attributes({**self._result_attributes(result), **error})
            if self._opened:
                self._finish(event, result)
        self._context = None  # leaves no cycle for the collector

    def _finish(self, event: Event, result: ToolResult) -> None:
        if self._trace.content and self._context is not None:
            self._span.set_attributes(_content_attributes(event, result, self._context.running_call, self._trace.mask))
        if result.status in _ERROR_STATUSES:
            self._span.set_status(StatusCode.ERROR)
        self._span.end()

    @property
    def _name(self) -> str:
        return self._call.name

    @property
    def _agent(self) -> dict[str, str]:
        return {} if self._trace.agent is None else {"gen_ai.agent.name": self._trace.agent}

    def _result_attributes(self, result: ToolResult) -> dict[str, Any]:
        attributes: dict[str, Any] = {"ferrule.status": result.status, "ferrule.repairs": len(result.repairs)}
        if result.executed is not None:
            attributes["ferrule.executed"] = result.executed
        if self._decision is not None:
            attributes["ferrule.decision"] = self._decision.kind
            if self._decision.rule:
                attributes["ferrule.rule"] = truncate_text(self._decision.rule, _MOST_ATTRIBUTE_CHARACTERS)
        if result.answered_by:
            attributes["ferrule.answered_by"] = truncate_text(result.answered_by, _MOST_ATTRIBUTE_CHARACTERS)
        return attributes


def _is_sdk(provider: object) -> bool:
    """Return whether the provider is more than one of the API's own, which record nothing."""
    return not type(provider).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))


def _is_call_span(span: Span, call: ToolCall, context: ToolContext) -> bool:
    """Return whether a framework has opened the span for this very call and no other."""
    attributes: Any = getattr(span, "attributes", None)
    if attributes is None:  # an unsampled span has no readable attributes
        return False
    tool = context.tool.definition
    says = attributes.get(OPERATION_NAME) == OPERATION and attributes.get(NAME) in (tool.name, tool.wire_name)
    # Google ADK sets the other attributes once the tool has returned.
    named = says or getattr(span, "name", "") in (f"{OPERATION} {tool.name}", f"{OPERATION} {tool.wire_name}")
    return bool(named and attributes.get(CALL_ID, call.id) == call.id)


def _read_earlier_span(context: ToolContext) -> tuple[SpanContext, float] | None:
    """Return the earlier span of a resumed call and the time of its question, which is 0 if nobody was asked."""
    text = context.read_note(NOTE_NAME)
    found = None if text is None else _match_trace(text)
    if found is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in found.group(1, 2, 3))
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags)), float(found[4])


def _identity_attributes(trace: Trace, session: str | None, principal: str | None) -> dict[str, str]:
    """Return the attribute of the session, and that of the principal if `trace` is set to include it."""
    attributes = {"gen_ai.conversation.id": session, "user.id": principal if trace.principal else None}
    return {
        name: truncate_text(text, _MOST_ATTRIBUTE_CHARACTERS) for name, text in attributes.items() if text is not None
    }


def _error_type(result: ToolResult) -> str:
    """Return the class of the exception of a failed call, else the status."""
    if result.status != "failed" or result.exception is None:
        return result.status
    error = origin_of(result.exception)
    kind = type(error)
    name = error.kinds[0] if isinstance(error, RemoteError) else f"{kind.__module__}.{kind.__qualname__}"
    return truncate_text(name.removeprefix("builtins."), _MOST_ATTRIBUTE_CHARACTERS)


def _content_attributes(
    event: Event, result: ToolResult, running: RunningCall | None, mask: Callable[[str], str]
) -> dict[str, str]:
    """Return arguments and result, without known secrets and those that `mask` finds, within the size limit."""
    texts = {"arguments": json.dumps(to_jsonable(event.data["input"]), ensure_ascii=False), "result": result.text}
    hidden = texts if running is None else redact(running, texts)
    masked = {name: mask(text) for name, text in hidden.items()}
    return {f"gen_ai.tool.call.{name}": truncate_text(text, _MOST_CONTENT) for name, text in masked.items()}
