"""`trace` with the real SDK of OpenTelemetry and its in-memory exporters."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace as otel
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from ferrule import (
    Decision,
    DefinitionError,
    Runner,
    ToolCall,
    ToolContext,
    ToolResult,
    allow,
    ask,
    tool,
)
from ferrule.middleware import _spans, retry, trace
from waits import BOUND
from watched import go


class Sdk:
    """Providers of the SDK, and the spans and metrics that they received."""

    def __init__(self, **options: Any) -> None:
        self._exporter, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider(**options)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = MeterProvider([self._reader])

    def trace(self, **options: Any) -> Any:
        return trace(tracer_provider=self.tracers, meter_provider=self.meters, **options)

    def runner(self, *tools: Any, traced: dict[str, Any] | None = None, **options: Any) -> Runner:
        tracing = self.trace(**(traced or {}))
        return Runner(tools, around=[tracing, *options.pop("around", ())], observers=[tracing.observe], **options)

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def points(self, metric: str) -> list[Any]:
        read = self._reader.get_metrics_data()
        found = [
            one
            for of_resource in (read.resource_metrics if read else ())
            for scope in of_resource.scope_metrics
            for one in scope.metrics
        ]
        return [point for one in found if one.name == metric for point in one.data.data_points]


@pytest.fixture
def sdk() -> Iterator[Sdk]:
    made = Sdk()
    yield made
    made.meters.shutdown()


def facts(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@tool(read_only=True)
async def look(n: int = 1) -> int:
    """Look at something."""
    return n


# -- the span ----------------------------------------------------------------------------------------------------------


async def test_a_call_is_one_span_with_its_attributes(sdk: Sdk) -> None:
    def guard(call: ToolCall, context: ToolContext) -> Decision:
        return ask("really?")

    runner = sdk.runner(
        look,
        traced={"agent": "helper", "principal": True},
        guards=[guard],
        approve=lambda call, decision, context: allow(by="ann"),
    )
    result = await runner.run(ToolCall("c1", "look", '{"n": "7"}'), ToolContext(session="s", principal="p"))
    assert result.success
    (span,) = sdk.spans
    assert (span.name, span.kind, span.status.status_code) == ("execute_tool look", SpanKind.INTERNAL, StatusCode.UNSET)
    assert span.instrumentation_scope is not None and span.instrumentation_scope.name == "ferrule"
    assert facts(span) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "look",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "c1",
        "gen_ai.tool.description": "Look at something.",
        "gen_ai.agent.name": "helper",
        "gen_ai.conversation.id": "s",
        "user.id": "p",
        "ferrule.status": "ok",
        "ferrule.executed": True,
        "ferrule.repairs": 1,
        "ferrule.decision": "allow",
        "ferrule.rule": "guard",
        "ferrule.answered_by": "ann",
    }


class GoneError(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "kind"), [(ValueError("secret"), "ValueError"), (GoneError("secret"), f"{__name__}.GoneError")]
)
async def test_a_failed_span_has_the_error_class_and_no_text(sdk: Sdk, error: Exception, kind: str) -> None:
    @tool
    async def fails() -> None:
        raise error

    assert (await sdk.runner(fails).run("fails")).status == "failed"
    (span,) = sdk.spans
    assert (span.status.status_code, facts(span)["error.type"]) == (StatusCode.ERROR, kind)
    assert span.status.description is None and not span.events and "secret" not in str(facts(span).values())


@pytest.mark.parametrize(
    ("status", "code"),
    [("denied", StatusCode.UNSET), ("limited", StatusCode.UNSET), ("timeout", StatusCode.ERROR)],
)
async def test_only_a_broken_call_is_an_error_span(sdk: Sdk, status: Any, code: StatusCode) -> None:
    async def answers(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        return ToolResult(error="it did not go", status=status, executed=False)

    await sdk.runner(look, inside=[answers]).run("look")
    (span,) = sdk.spans
    assert (facts(span)["error.type"], facts(span)["ferrule.status"]) == (status, status)
    assert span.status.status_code is code


async def test_attempts_are_span_events(sdk: Sdk) -> None:
    @tool(read_only=True)
    async def flaky() -> None:
        raise ConnectionError

    await sdk.runner(flaky, inside=[retry(attempts=3, wait=0)]).run("flaky")
    (span,) = sdk.spans
    assert [event.name for event in span.events] == ["ferrule.attempt"] * 2
    assert [dict(event.attributes or {})["ferrule.attempt"] for event in span.events] == [1, 2]


async def test_the_span_has_the_final_result(sdk: Sdk) -> None:
    async def denies(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        await next(call, context)
        return ToolResult(error="not for you", status="denied")

    tracing = sdk.trace()
    await Runner([look], around=[denies, tracing]).run("look")
    assert facts(sdk.named("execute_tool look"))["ferrule.status"] == "denied"


# -- what reaches no tool ----------------------------------------------------------------------------------------------


@given(st.text(max_size=30))
def test_invented_names_are_in_no_span_or_metric(name: str) -> None:
    sdk = Sdk()
    runner = sdk.runner(look)
    if runner.tools.resolve_name(name) is None:
        result = go(runner.run(ToolCall("c1", name)))
        assert result.status == "not_found"
        (span,) = sdk.spans
        assert (span.name, facts(span)["gen_ai.tool.name"]) == ("execute_tool unknown", "unknown")
        assert (facts(span)["error.type"], facts(span)["ferrule.executed"]) == ("not_found", False)
        (point,) = sdk.points("ferrule.calls")
        assert dict(point.attributes) == {"gen_ai.tool.name": "unknown", "ferrule.status": "not_found"}


# -- content -----------------------------------------------------------------------------------------------------------


@tool(private=("pin",))
async def open_door(door: str, pin: str = "0000") -> str:
    """Open a door."""
    return f"opened {door}"


def content(sdk: Sdk, door: str, **options: Any) -> tuple[str | None, str | None]:
    pins: Any = lambda call, context: {**call.arguments, "pin": "4711"}  # noqa: E731
    go(sdk.runner(open_door, traced=options, guards=[pins]).run("open_door", {"door": door}))
    found = facts(sdk.spans[-1])
    return found.get("gen_ai.tool.call.arguments"), found.get("gen_ai.tool.call.result")


def test_arguments_and_results_are_traced_only_on_request(sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> None:
    assert content(sdk, "front") == (None, None)
    for said, is_told in (("SPAN_ONLY", True), ("span_and_event", True), ("EVENT_ONLY", False), ("NO_CONTENT", False)):
        monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", said)
        assert (content(sdk, "front")[1] is not None) is is_told
    assert content(sdk, "front", content=False) == (None, None)


def test_private_arguments_are_masked_in_a_span(sdk: Sdk) -> None:
    arguments, result = content(sdk, "front", content=True)
    assert json.loads(str(arguments)) == {"door": "front", "pin": "**********"}
    assert result == "opened front" and "4711" not in str([facts(span) for span in sdk.spans])


async def test_secrets_and_credentials_are_in_no_span(sdk: Sdk) -> None:
    secret, key = "hunter2-very-secret", "ghp_" + "a1B2" * 9

    @tool
    async def login(how: str, context: ToolContext, pin: int = 0) -> str:
        return f"logged in with {context.secrets['password']}, {pin} and {key}"

    runner = sdk.runner(login.bind(pin=93847561), traced={"content": True}, secrets={"password": secret})
    assert (await runner.run("login", {"how": f"use {secret} or {key}"})).success
    shown = str(facts(sdk.named("execute_tool login")))
    assert "logged in with" in shown and not [one for one in (secret, key, "93847561") if one in shown]


async def test_foreign_text_in_a_span_is_bounded(sdk: Sdk) -> None:
    @tool
    async def talks(context: ToolContext) -> None:
        context.announce({"attempt": 1, "status": "x" * 5000})
        context.announce({"attempt": 1, "status": ["failed"]})
        context.announce({"attempt": "y" * 5000, "status": "failed"})

    runner = sdk.runner(talks, traced={"principal": True})
    context = ToolContext(session="s" * 100_000, principal="p" * 100_000)

    await runner.run(ToolCall("c" * 100_000, "talks"), context)
    await runner.run(ToolCall("d" * 100_000, "nobody"), context)
    for span in sdk.spans:
        assert max(len(str(value)) for value in facts(span).values()) <= 200 and not span.events


# -- where the span is the current one ---------------------------------------------------------------------------------


async def test_spans_of_handlers_are_below_the_call(sdk: Sdk) -> None:
    tracer = sdk.tracers.get_tracer("app")

    @tool(read_only=True)
    async def outer(context: ToolContext) -> None:
        with tracer.start_as_current_span("in the loop"):
            await context.run("inner")

    @tool(read_only=True)
    def inner() -> None:
        with tracer.start_as_current_span("in a thread"):
            pass

    with tracer.start_as_current_span("agent"):
        await sdk.runner(outer, inner).run("outer", {}, timeout=BOUND)
    above = {span.name: span.parent and span.parent.span_id for span in sdk.spans}
    ids = {span.name: span.context.span_id for span in sdk.spans}
    assert above == {
        "in a thread": ids["execute_tool inner"],
        "execute_tool inner": ids["in the loop"],
        "in the loop": ids["execute_tool outer"],
        "execute_tool outer": ids["agent"],
        "agent": None,
    }


async def test_a_worker_process_belongs_to_the_trace(sdk: Sdk) -> None:
    from tests.middleware.traced_tools import which_trace

    found = (await sdk.runner(which_trace).run("which_trace", {})).output
    span = sdk.named("execute_tool which_trace").context
    assert found == f"{span.trace_id:032x}-{span.span_id:016x}"


async def test_an_inner_call_of_a_worker_belongs_to_its_call(sdk: Sdk) -> None:
    from tests.middleware.traced_tools import asks_back

    assert (await sdk.runner(asks_back, look).run("asks_back", {})).output == 3
    inner, outer = sdk.named("execute_tool look"), sdk.named("execute_tool asks_back")
    assert inner.parent is not None and inner.parent.span_id == outer.context.span_id


async def test_baggage_does_not_leave_the_program(sdk: Sdk) -> None:
    from opentelemetry import baggage, context
    from tests.middleware.traced_tools import baggage_there

    token = context.attach(baggage.set_baggage("user.token", "s3cret-of-the-request"))
    try:
        assert (await sdk.runner(baggage_there).run("baggage_there", {})).output == {}
    finally:
        context.detach(token)


async def test_a_broken_propagator_breaks_no_call(sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    from tests.middleware.traced_tools import which_trace

    def breaks(*given: object, **named: object) -> None:
        raise RuntimeError("no such propagator")

    monkeypatch.setattr(TraceContextTextMapPropagator, "inject", breaks)
    assert (await sdk.runner(which_trace).run("which_trace", {})).success


@pytest.mark.large
async def test_a_served_runner_continues_the_clients_trace(sdk: Sdk) -> None:
    from tests.middleware.traced_tools import OURS

    from ferrule import mcp

    async with mcp.connect(OURS, name="ours") as tools:
        result = await sdk.runner(*tools).run("ours__trace_here", {})
    assert result.text == f"{sdk.named('execute_tool ours__trace_here').context.trace_id:032x}"


# -- spans of frameworks -----------------------------------------------------------------------------------------------


FRAMEWORKS = {"gen_ai.operation.name", "gen_ai.tool.name", "gen_ai.tool.call.id"}


def frameworks_span(sdk: Sdk, name: str = "look", **attributes: str) -> Any:
    given = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name, **attributes}
    return sdk.tracers.get_tracer("framework").start_as_current_span(f"execute_tool {name}", attributes=given)


@pytest.mark.parametrize("attributes", [{}, {"gen_ai.tool.call.id": "c1"}, {"gen_ai.operation.name": ""}])
async def test_a_frameworks_span_of_the_call_is_reused(sdk: Sdk, attributes: dict[str, str]) -> None:
    with frameworks_span(sdk, **attributes):
        await sdk.runner(look, guards=[lambda call, context: None]).run(ToolCall("c1", "look"))
    (span,) = sdk.spans
    assert span.instrumentation_scope is not None and span.instrumentation_scope.name == "framework"
    assert (facts(span)["ferrule.status"], facts(span)["ferrule.decision"]) == ("ok", "allow")
    assert not {name for name in facts(span) if name.startswith("gen_ai.")} - FRAMEWORKS, "it has its own word on these"
    assert not sdk.points("gen_ai.execute_tool.duration"), "who opens the span measures it"
    assert [point.value for point in sdk.points("ferrule.calls")] == [1]


@pytest.mark.parametrize("sampled", [True, False])
async def test_nested_tracing_reports_a_call_once(sampled: bool) -> None:
    sdk = Sdk() if sampled else Sdk(sampler=ALWAYS_OFF)
    inner = sdk.runner(look.replace(around=[sdk.trace()]))
    await sdk.runner(*inner.as_tools()).run("look")
    assert [span.name for span in sdk.spans] == ["execute_tool look"] * sampled
    for metric in ("ferrule.calls", "ferrule.call.queued", "gen_ai.execute_tool.duration"):
        assert [getattr(point, "count", None) or point.value for point in sdk.points(metric)] == [1]


# -- suspended and resumed ---------------------------------------------------------------------------------------------


def asks(call: ToolCall, context: ToolContext) -> Decision:
    return ask("really?")


def later(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
    return ask("not now")


def linked(sdk: Sdk) -> tuple[ReadableSpan, ReadableSpan]:
    first, second = [span for span in sdk.spans if span.name.startswith("execute_tool")]
    assert [link.context.span_id for link in second.links] == [first.context.span_id]
    assert [link.context.trace_id for link in second.links] == [first.context.trace_id]
    assert facts(first)["ferrule.status"] == "suspended" and facts(second)["ferrule.resumed"] is True
    return first, second


@pytest.mark.parametrize("answer", [True, False])
async def test_a_suspended_and_a_resumed_call_are_linked_spans(sdk: Sdk, answer: bool) -> None:
    options: dict[str, Any] = {"guards": [asks], "approve": later, "resume_key": b"k" * 32}
    waits = await sdk.runner(look, **options).run("look")
    record = json.loads(json.dumps(waits.record()))
    assert (await sdk.runner(look, **options).resume(record, answer)).success is answer
    first, _ = linked(sdk)
    assert first.status.status_code is StatusCode.UNSET and "error.type" not in facts(first)
    (point,) = sdk.points("ferrule.approval.duration")
    assert dict(point.attributes) == {"gen_ai.tool.name": "look", "ferrule.decision": "allow" if answer else "deny"}


async def test_an_inner_call_of_the_same_id_has_its_own_span(sdk: Sdk) -> None:
    @tool(read_only=True)
    async def delegate() -> str:
        return str((await inner.run(ToolCall("call_1", "look"))).output)

    inner = sdk.runner(look)
    await sdk.runner(delegate, look).run(ToolCall("call_1", "delegate"))
    assert sdk.named("execute_tool look").parent is not None
    assert [span.name for span in sdk.spans] == ["execute_tool look", "execute_tool delegate"]


async def test_notes_belong_to_middleware_and_hold_no_secret() -> None:
    async def keeps(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        seen.append(context.read_note("role"))
        context.store_note("role", f"admin of {context.secrets['token']}")
        context.store_note("long", "x" * 210 + 20 * context.secrets["token"] + "x" * 500)
        return await next(call, context)  # type: ignore[no-any-return]

    @tool(ask=True)
    async def act(context: ToolContext) -> None:
        context.store_note("role", "admin")

    seen: list[Any] = []
    runner = Runner([act], around=[keeps], approve=later)
    context = ToolContext(secrets={"token": "tok-123456"})
    record = (await runner.run("act", None, context)).record()
    refused = await runner.resume(record, True, context)
    assert "tok-" not in json.dumps(record["pending"]) and len(record["pending"]["notes"]["long"]) <= 500
    assert seen[0] is None and seen[1].startswith("admin of **")
    assert isinstance(refused.exception, RuntimeError)


FORGED = f"{'a' * 32}-{'b' * 16}-01 1.000"


@given(st.sampled_from([FORGED, f"{FORGED} c1", f"{'a' * 32}-{'b' * 16}-01 1.2.3"]) | st.text(max_size=80))
def test_metadata_cannot_forge_a_link(kept: str) -> None:
    sdk = Sdk()
    runner = sdk.runner(look, guards=[asks], approve=lambda call, decision, context: True)
    result = go(runner.run("look", None, ToolContext(metadata={"ferrule.trace": kept})))
    assert result.success and not sdk.named("execute_tool look").links
    assert sdk.points("ferrule.approval.duration")[0].max < 3600


# -- metrics -----------------------------------------------------------------------------------------------------------


async def test_metrics_have_bounded_attributes(sdk: Sdk) -> None:
    @tool
    async def fails() -> None:
        raise LookupError

    runner = sdk.runner(look, fails, guards=[asks], approve=lambda call, decision, context: True)
    for n in range(3):
        await runner.run(ToolCall(f"c{n}", "look"), ToolContext(session=f"s{n}", principal=f"p{n}"))
    await runner.run("fails")
    await runner.run("look", {"n": "x"})
    counted = {tuple(point.attributes.values()): point.value for point in sdk.points("ferrule.calls")}
    assert counted == {("look", "ok"): 3, ("fails", "failed"): 1, ("look", "invalid"): 1}
    measured = {
        tuple(sorted(point.attributes.items())): point.count for point in sdk.points("gen_ai.execute_tool.duration")
    }
    assert measured == {
        (("gen_ai.tool.name", "look"), ("gen_ai.tool.type", "function")): 3,
        (("error.type", "LookupError"), ("gen_ai.tool.name", "fails"), ("gen_ai.tool.type", "function")): 1,
    }
    assert sum(point.count for point in sdk.points("ferrule.call.queued")) == 4
    assert sum(point.count for point in sdk.points("ferrule.approval.duration")) == 4


async def test_waiting_for_a_slot_is_no_execution(sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, inside, now = asyncio.Event(), asyncio.Event(), [0.0]
    monkeypatch.setattr(_spans, "perf_counter", lambda: now[0])

    @tool(concurrency=1)
    async def hold() -> None:
        inside.set()
        await gate.wait()

    runner = sdk.runner(hold)
    first = asyncio.create_task(runner.run("hold"))
    await inside.wait()
    second = asyncio.create_task(runner.run("hold"))
    while not runner.waiting:
        await asyncio.sleep(0)
    now[0] = 100.0
    gate.set()
    await asyncio.gather(first, second)
    (queued,), (ran,) = sdk.points("ferrule.call.queued"), sdk.points("gen_ai.execute_tool.duration")
    assert (queued.min, queued.max) == (0, 100) and (ran.min, ran.max) == (0, 100)


class BreaksAt:
    """What may stand in a tracer provider, and raises there."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __getattr__(self, name: str) -> Any:
        if name == self._where:
            raise RuntimeError(f"{name} is broken")
        return lambda *given, **named: None


@pytest.mark.parametrize("where", ["on_start", "on_end", "should_sample"])
async def test_a_broken_sdk_breaks_no_call(where: str, caplog: pytest.LogCaptureFixture) -> None:
    broken: Any = BreaksAt(where)
    provider = TracerProvider(**({"sampler": broken} if where == "should_sample" else {}))
    if where != "should_sample":
        provider.add_span_processor(broken)

    tracing = trace(tracer_provider=provider)
    result = await Runner([look], around=[tracing], observers=[tracing.observe]).run("look", {"n": 3})
    assert not otel.get_current_span().get_span_context().is_valid
    assert result.output == 3
    assert "is broken" in caplog.text


# -- what it costs nobody ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [{"agent": ""}, {"agent": 7}, {"content": "yes"}, {"principal": "me"}])
def test_wrong_parameters_are_refused(given: Any) -> None:
    with pytest.raises(DefinitionError, match=rf"trace\({next(iter(given))}\)"):
        trace(**given)


# -- the log -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["handler", "guard", "middleware", "observer"])
def test_log_records_identify_the_call(how: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "ferrule")

    @tool
    async def act() -> None:
        if how == "handler":
            raise RuntimeError

    def breaks(*given: object) -> Any:
        raise RuntimeError

    options: dict[str, Any] = {
        "guard": {"guards": [lambda call, context: breaks()]},
        "middleware": {"around": [lambda call, context, next: breaks()]},
        "observer": {"observers": [breaks]},
    }.get(how, {})
    go(Runner([act], **options).run(ToolCall("c1", "act"), ToolContext(session="s", principal="p")))
    names = ("tool_name", "tool_call_id", "session", "principal")
    assert {tuple(vars(record)[name] for name in names) for record in caplog.records} == {("act", "c1", "s", "p")}
