"""`trace`: the span of each call and what is counted of it, with the real SDK and its exporters in memory."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
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
    Deferred,
    DefinitionError,
    InputRequired,
    Runner,
    ToolCall,
    ToolContext,
    ToolError,
    ToolResult,
    allow,
    ask,
    deny,
    tool,
)
from ferrule.journal import memory
from ferrule.middleware import limit_output, retry, trace
from waits import BOUND
from watched import go


class Told:
    """Providers of the SDK, and what they were told."""

    def __init__(self, **options: Any) -> None:
        self._exporter, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider(**options)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = MeterProvider([self._reader])

    def trace(self, **options: Any) -> Any:
        return trace(tracer_provider=self.tracers, meter_provider=self.meters, **options)

    def runner(self, *tools: Any, told: dict[str, Any] | None = None, **options: Any) -> Runner:
        tracing = self.trace(**(told or {}))
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
def told() -> Iterator[Told]:
    made = Told()
    yield made
    made.meters.shutdown()


def facts(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@tool(read_only=True)
async def look(n: int = 1) -> int:
    """Look at something."""
    return n


# -- the span ----------------------------------------------------------------------------------------------------------


async def test_a_call_is_one_span_with_what_the_conventions_name_and_what_ferrule_knows(told: Told) -> None:
    def guard(call: ToolCall, context: ToolContext) -> Decision:
        return ask("really?")

    runner = told.runner(
        look,
        told={"agent": "helper", "principal": True},
        guards=[guard],
        approve=lambda call, decision, context: allow(by="ann"),
    )
    result = await runner.run(ToolCall("c1", "look", '{"n": "7"}'), ToolContext(session="s", principal="p"))
    assert result.success
    (span,) = told.spans
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
        "ferrule.approved_by": "ann",
    }


class GoneError(Exception):
    pass


def _breaks(how: str) -> Any:
    raise {"value": ValueError("secret"), "own": GoneError(), "tool": ToolError("no such thing")}[how]


@pytest.mark.parametrize(
    ("how", "kind"), [("value", "ValueError"), ("own", f"{__name__}.GoneError"), ("tool", "ferrule.errors.ToolError")]
)
def test_what_failed_has_the_class_of_what_was_raised_and_none_of_its_text(told: Told, how: str, kind: str) -> None:
    @tool
    async def fails(how: str) -> None:
        _breaks(how)

    assert go(told.runner(fails).run("fails", {"how": how})).status == "failed"
    (span,) = told.spans
    assert (span.status.status_code, facts(span)["error.type"]) == (StatusCode.ERROR, kind)
    assert span.status.description is None and not span.events and "secret" not in str(facts(span).values())


async def test_an_exception_of_an_isolated_handler_has_the_class_that_it_had_there(told: Told) -> None:
    from tests.middleware.traced_tools import gone

    assert (await told.runner(gone).run("gone", {})).status == "failed"
    assert facts(told.named("execute_tool gone"))["error.type"] == "tests.middleware.traced_tools.LostError"


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("invalid", StatusCode.UNSET),
        ("denied", StatusCode.UNSET),
        ("limited", StatusCode.UNSET),
        ("timeout", StatusCode.ERROR),
        ("failed", StatusCode.ERROR),
        ("unknown", StatusCode.ERROR),
    ],
)
async def test_what_was_refused_has_its_status_as_error_type_and_only_what_broke_is_an_error(
    told: Told, status: str, code: StatusCode
) -> None:
    @tool
    async def act(wait: bool = False) -> None:
        if wait:
            await asyncio.Event().wait()

    async def answers(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        given: Any = status
        if status in ("failed", "unknown", "limited"):
            return ToolResult(error="it did not go", status=given, executed=False)
        return await next(call, context)  # type: ignore[no-any-return]

    def guard(call: ToolCall, context: ToolContext) -> Decision | None:
        return deny("no") if status == "denied" else None

    runner = told.runner(act, inside=[answers], guards=[guard], timeout=0.01 if status == "timeout" else None)
    arguments = {"wait": "x" if status == "invalid" else status == "timeout"}
    assert (await runner.run("act", arguments)).status == status
    (span,) = told.spans
    found = facts(span)
    assert (found["error.type"], found["ferrule.status"], span.status.status_code) == (status, status, code)
    assert ("ferrule.executed" in found) is (status not in ("timeout", "unknown", "failed", "limited")) or not found[
        "ferrule.executed"
    ]


async def test_a_call_that_is_cancelled_has_its_span(told: Told) -> None:
    begun = asyncio.Event()

    @tool
    async def waits() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(told.runner(waits).run("waits"))
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])

    await main()
    assert facts(told.named("execute_tool waits"))["error.type"] == "cancelled"


async def test_attempts_are_events_of_the_span(told: Told) -> None:
    @tool(read_only=True)
    async def flaky() -> None:
        raise ConnectionError

    await told.runner(flaky, inside=[retry(attempts=3, wait=0)]).run("flaky")
    (span,) = told.spans
    assert [event.name for event in span.events] == ["ferrule.attempt"] * 2
    assert [dict(event.attributes or {})["ferrule.attempt"] for event in span.events] == [1, 2]


async def test_the_result_is_told_as_it_leaves_the_runner(told: Told) -> None:
    async def denies(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        await next(call, context)
        return ToolResult(error="not for you", status="denied")

    tracing = told.trace()
    await Runner([look], around=[denies, tracing]).run("look")
    assert facts(told.named("execute_tool look"))["ferrule.status"] == "denied"


async def test_a_tool_with_a_name_that_no_api_takes_has_its_own_name_and_the_other_beside(told: Told) -> None:
    await told.runner(look.replace(name="look.at")).run("look.at")
    found = facts(told.named("execute_tool look.at"))
    assert found["ferrule.tool.wire_name"] == look.replace(name="look.at").wire_name != "look.at"


async def test_the_page_shows_the_span_of_a_call_alone(told: Told) -> None:
    await told.runner(look, guards=[lambda call, context: None]).run("look")
    ours = sorted(
        f"    {name} = {value}" for name, value in facts(told.spans[0]).items() if name.startswith("ferrule.")
    )
    shown = "\n".join(["execute_tool look  [ferrule]", *ours])
    assert f"```text\n{shown}\n```" in (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text(encoding="utf-8")


# -- what reaches no tool ----------------------------------------------------------------------------------------------


@given(st.text(max_size=30))
def test_no_name_that_a_model_invents_is_in_a_span_or_a_metric(name: str) -> None:
    told = Told()
    runner = told.runner(look)
    if runner.tools.resolve_name(name) is None:
        result = go(runner.run(ToolCall("c1", name)))
        assert result.status == "not_found"
        (span,) = told.spans
        assert (span.name, facts(span)["gen_ai.tool.name"]) == ("execute_tool unknown", "unknown")
        assert (facts(span)["error.type"], facts(span)["ferrule.executed"]) == ("not_found", False)
        (point,) = told.points("ferrule.calls")
        assert dict(point.attributes) == {"gen_ai.tool.name": "unknown", "ferrule.status": "not_found"}


async def test_a_turn_that_was_cut_off_is_told_as_well(told: Told) -> None:
    await told.runner(look).run(ToolCall("c1", "look", "{", problem="The turn was cut off."))
    (span,) = told.spans
    assert (span.name, facts(span)["error.type"]) == ("execute_tool unknown", "invalid")


async def test_a_call_that_reaches_its_tool_is_told_once(told: Told) -> None:
    runner = told.runner(look)

    async def main() -> None:
        await runner.run("look", {"n": "no number"})
        await runner.run("look", {"n": 2})

    await main()
    assert [span.name for span in told.spans] == ["execute_tool look"] * 2
    assert sum(point.value for point in told.points("ferrule.calls")) == 2


# -- content -----------------------------------------------------------------------------------------------------------


@tool(private=("pin",))
async def open_door(door: str, pin: str = "0000") -> str:
    """Open a door."""
    return f"opened {door}"


def content(told: Told, door: str, **options: Any) -> tuple[str | None, str | None]:
    pins: Any = lambda call, context: {**call.arguments, "pin": "4711"}  # noqa: E731
    go(told.runner(open_door, told=options, guards=[pins]).run("open_door", {"door": door}))
    found = facts(told.spans[-1])
    return found.get("gen_ai.tool.call.arguments"), found.get("gen_ai.tool.call.result")


def test_arguments_and_results_are_told_only_where_that_is_asked_for(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert content(told, "front") == (None, None)
    for said, is_told in (("SPAN_ONLY", True), ("span_and_event", True), ("EVENT_ONLY", False), ("NO_CONTENT", False)):
        monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", said)
        assert (content(told, "front")[1] is not None) is is_told
    assert content(told, "front", content=False) == (None, None)


def test_what_is_private_is_stars_in_the_arguments(told: Told) -> None:
    arguments, result = content(told, "front", content=True)
    assert json.loads(str(arguments)) == {"door": "front", "pin": "**********"}
    assert result == "opened front" and "4711" not in str([facts(span) for span in told.spans])


async def test_what_is_known_to_be_secret_or_a_credential_is_in_no_span(told: Told) -> None:
    secret, key = "hunter2-very-secret", "ghp_" + "a1B2" * 9

    @tool
    async def login(how: str, context: ToolContext, pin: int = 0) -> str:
        return f"logged in with {context.secrets['password']}, {pin} and {key}"

    runner = told.runner(login.bind(pin=93847561), told={"content": True}, secrets={"password": secret})
    assert (await runner.run("login", {"how": f"use {secret} or {key}"})).success
    shown = str(facts(told.named("execute_tool login")))
    assert "logged in with" in shown and not [one for one in (secret, key, "93847561") if one in shown]


async def test_no_text_of_a_model_or_a_handler_is_in_a_span_without_bound(told: Told) -> None:
    @tool
    async def talks(context: ToolContext) -> None:
        context.announce({"attempt": 1, "status": "x" * 5000})
        context.announce({"attempt": 1, "status": ["failed"]})
        context.announce({"attempt": "y" * 5000, "status": "failed"})

    runner = told.runner(talks, told={"principal": True})
    context = ToolContext(session="s" * 100_000, principal="p" * 100_000)

    async def main() -> None:
        await runner.run(ToolCall("c" * 100_000, "talks"), context)
        await runner.run(ToolCall("d" * 100_000, "nobody"), context)

    await main()
    for span in told.spans:
        assert max(len(str(value)) for value in facts(span).values()) <= 200 and not span.events


def test_arguments_and_results_are_bounded(told: Told) -> None:
    arguments, result = content(told, "x" * 50_000, content=True)
    assert len(str(arguments)) <= 8_192 and len(str(result)) <= 8_192


# -- where the span is the current one ---------------------------------------------------------------------------------


async def test_spans_of_handlers_in_the_loop_in_threads_and_in_calls_that_they_make_are_below_it(told: Told) -> None:
    tracer = told.tracers.get_tracer("app")

    @tool(read_only=True)
    async def outer(context: ToolContext) -> None:
        with tracer.start_as_current_span("in the loop"):
            await context.run("inner")

    @tool(read_only=True)
    def inner() -> None:
        with tracer.start_as_current_span("in a thread"):
            pass

    with tracer.start_as_current_span("agent"):
        await told.runner(outer, inner, limit_output_tool()).run("outer", {}, timeout=BOUND)
    above = {span.name: span.parent and span.parent.span_id for span in told.spans}
    ids = {span.name: span.context.span_id for span in told.spans}
    assert above == {
        "in a thread": ids["execute_tool inner"],
        "execute_tool inner": ids["in the loop"],
        "in the loop": ids["execute_tool outer"],
        "execute_tool outer": ids["agent"],
        "agent": None,
    }


def limit_output_tool() -> Any:
    return look.replace(name="bounded", around=[limit_output(10)])


async def test_spans_of_calls_at_the_same_time_do_not_mix(told: Told) -> None:
    tracer = told.tracers.get_tracer("app")

    @tool(read_only=True)
    async def part(n: int) -> None:
        await asyncio.sleep(0)
        with tracer.start_as_current_span(f"part {n}"):
            await asyncio.sleep(0)

    async def main() -> None:
        runner = told.runner(part)
        await runner.run_all([ToolCall(f"c{n}", "part", {"n": n}) for n in range(20)])
        assert not otel.get_current_span().is_recording()

    await main()
    ids = {span.context.span_id: facts(span).get("gen_ai.tool.call.id") for span in told.spans}
    found = {span.name: ids[span.parent.span_id] for span in told.spans if span.parent is not None}
    assert found == {f"part {n}": f"c{n}" for n in range(20)}


async def test_a_handler_in_a_process_belongs_to_the_trace(told: Told) -> None:
    from tests.middleware.traced_tools import which_trace

    found = (await told.runner(which_trace).run("which_trace", {})).output
    span = told.named("execute_tool which_trace").context
    assert found == f"{span.trace_id:032x}-{span.span_id:016x}"


async def test_a_call_that_a_handler_in_a_process_makes_belongs_to_its_call(told: Told) -> None:
    from tests.middleware.traced_tools import asks_back

    assert (await told.runner(asks_back, look).run("asks_back", {})).output == 3
    inner, outer = told.named("execute_tool look"), told.named("execute_tool asks_back")
    assert inner.parent is not None and inner.parent.span_id == outer.context.span_id


async def test_what_a_program_carries_beside_its_trace_does_not_leave_it(told: Told) -> None:
    from opentelemetry import baggage, context
    from tests.middleware.traced_tools import baggage_there

    token = context.attach(baggage.set_baggage("user.token", "s3cret-of-the-request"))
    try:
        assert (await told.runner(baggage_there).run("baggage_there", {})).output == {}
    finally:
        context.detach(token)


@pytest.mark.parametrize("where", ["inject", "extract"])
def test_a_propagator_that_is_broken_breaks_no_call(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry.trace.propagation import tracecontext

    from ferrule.executors.process import continue_trace, trace_headers

    def breaks(*given: object, **named: object) -> None:
        raise RuntimeError("no such propagator")

    with Told().tracers.get_tracer("app").start_as_current_span("agent"):
        headers = trace_headers()
        monkeypatch.setattr(tracecontext.TraceContextTextMapPropagator, where, breaks)
        assert (trace_headers() == {}) is (where == "inject")
    with continue_trace(headers):
        assert otel.get_current_span().get_span_context().is_valid is (where == "inject")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_an_mcp_server_gets_the_trace_of_the_call(told: Told) -> None:
    from tests.middleware.traced_tools import SERVER

    from ferrule import mcp

    async def main() -> ToolResult:
        async with mcp.connect(SERVER, name="traced") as tools:
            return await told.runner(*tools).run("traced__trace_of_request", {})

    result = await main()
    span = told.named("execute_tool traced__trace_of_request").context
    assert result.text.split("-")[1] == f"{span.trace_id:032x}", result.text


async def test_a_runner_that_is_served_over_mcp_runs_in_the_trace_of_its_client(told: Told) -> None:
    from tests.middleware.traced_tools import OURS

    from ferrule import mcp

    async def main() -> ToolResult:
        async with mcp.connect(OURS, name="ours") as tools:
            return await told.runner(*tools).run("ours__trace_here", {})

    assert (await main()).text == f"{told.named('execute_tool ours__trace_here').context.trace_id:032x}"


# -- spans of frameworks -----------------------------------------------------------------------------------------------


FRAMEWORKS = {"gen_ai.operation.name", "gen_ai.tool.name", "gen_ai.tool.call.id"}


def frameworks_span(told: Told, name: str = "look", **attributes: str) -> Any:
    given = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name, **attributes}
    return told.tracers.get_tracer("framework").start_as_current_span(f"execute_tool {name}", attributes=given)


@pytest.mark.parametrize(
    "attributes", [{}, {"gen_ai.tool.call.id": "c1"}, {"gen_ai.operation.name": "", "gen_ai.tool.name": ""}]
)
async def test_the_span_that_a_framework_has_opened_for_the_call_is_told_and_no_other_opened(
    told: Told, attributes: dict[str, str]
) -> None:
    with frameworks_span(told, **attributes):
        await told.runner(look, guards=[lambda call, context: None]).run(ToolCall("c1", "look"))
    (span,) = told.spans
    assert span.instrumentation_scope is not None and span.instrumentation_scope.name == "framework"
    assert (facts(span)["ferrule.status"], facts(span)["ferrule.decision"]) == ("ok", "allow")
    assert not {name for name in facts(span) if name.startswith("gen_ai.")} - FRAMEWORKS, "it has its own word on these"
    assert not told.points("gen_ai.execute_tool.duration"), "who opens the span measures it"
    assert [point.value for point in told.points("ferrule.calls")] == [1]


@pytest.mark.parametrize(
    ("name", "attributes"), [("other", {}), ("look", {"gen_ai.tool.call.id": "c2"}), ("other", {"x": "y"})]
)
async def test_the_span_of_another_call_is_left_alone(told: Told, name: str, attributes: dict[str, str]) -> None:
    with frameworks_span(told, name, **attributes):
        await told.runner(look).run(ToolCall("c1", "look"))
    ours = [span for span in told.spans if span.instrumentation_scope and span.instrumentation_scope.name == "ferrule"]
    assert [span.name for span in ours] == ["execute_tool look"]
    assert next(facts(span) for span in told.spans if span not in ours).get("ferrule.status") is None


async def test_a_call_that_a_handler_makes_of_its_own_tool_has_a_span_of_its_own(told: Told) -> None:
    @tool(read_only=True)
    async def down(n: int, context: ToolContext) -> None:
        if n:
            await context.run("down", {"n": n - 1})

    with frameworks_span(told, "down"):
        await told.runner(down).run(ToolCall("c1", "down", {"n": 2}))
    assert len(told.spans) == 3


@pytest.mark.parametrize("sampled", [True, False])
async def test_a_call_that_several_would_trace_is_told_once(sampled: bool) -> None:
    told = Told() if sampled else Told(sampler=ALWAYS_OFF)
    inner = told.runner(look.replace(around=[told.trace()]))
    await told.runner(*inner.as_tools()).run("look")
    assert [span.name for span in told.spans] == ["execute_tool look"] * sampled
    for metric in ("ferrule.calls", "ferrule.call.queued", "gen_ai.execute_tool.duration"):
        assert [getattr(point, "count", None) or point.value for point in told.points(metric)] == [1]


async def test_two_calls_within_one_span_of_a_framework_are_two_spans(told: Told) -> None:
    runner = told.runner(look)

    async def main() -> None:
        with frameworks_span(told):
            await runner.run_all([ToolCall("c1", "look"), ToolCall("c2", "look")])

    await main()
    told_of = {facts(span)["gen_ai.tool.call.id"]: span.instrumentation_scope for span in told.spans}
    assert sorted(told_of) == ["c1", "c2"] and sorted(str(one and one.name) for one in told_of.values()) == [
        "ferrule",
        "framework",
    ]


async def test_how_long_a_person_took_is_measured_across_a_suspension_without_spans_too(told: Told) -> None:
    async def main() -> None:
        tracing = trace(meter_provider=told.meters)
        runner = Runner([look], around=[tracing], guards=[asks], approve=later)
        await runner.resume((await runner.run("look")).record(), True)

    await main()
    assert [point.count for point in told.points("ferrule.approval.duration")] == [1]


# -- suspended and resumed ---------------------------------------------------------------------------------------------


def asks(call: ToolCall, context: ToolContext) -> Decision:
    return ask("really?")


def later(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
    return ask("not now")


def linked(told: Told) -> tuple[ReadableSpan, ReadableSpan]:
    first, second = [span for span in told.spans if span.name.startswith("execute_tool")]
    assert [link.context.span_id for link in second.links] == [first.context.span_id]
    assert [link.context.trace_id for link in second.links] == [first.context.trace_id]
    assert facts(first)["ferrule.status"] == "suspended" and facts(second)["ferrule.resumed"] is True
    return first, second


@pytest.mark.parametrize("answer", [True, False])
async def test_a_call_that_waits_and_the_same_one_taken_up_by_another_program_are_two_linked_spans(
    told: Told, answer: bool
) -> None:
    key = b"k" * 32

    async def main() -> ToolResult:
        waits = await told.runner(look, guards=[asks], approve=later, resume_key=key).run("look")
        record = json.loads(json.dumps(waits.record()))
        return await told.runner(look, guards=[asks], approve=later, resume_key=key).resume(record, answer)

    assert (await main()).success is answer
    first, _ = linked(told)
    assert first.status.status_code is StatusCode.UNSET and "error.type" not in facts(first)
    (point,) = told.points("ferrule.approval.duration")
    assert dict(point.attributes) == {
        "gen_ai.tool.name": "look",
        "ferrule.decision": "allow" if answer else "deny",
    }


def test_a_handler_that_asks_and_work_that_ends_elsewhere_are_linked_too(told: Told) -> None:
    @tool
    async def wants(context: ToolContext) -> Any:
        return InputRequired("which?", {"type": "object", "properties": {}}) if context.answer is None else "done"

    async def main() -> None:
        runner = told.runner(wants, approve=later)
        await runner.resume((await runner.run("wants")).record(), True)

    go(main())
    linked(told)
    other = Told()

    @tool
    async def hands_over() -> Deferred:
        return Deferred("t1")

    async def hand_over() -> None:
        runner = other.runner(hands_over)
        await runner.resume((await runner.run("hands_over")).record(), ToolResult("made"))

    go(hand_over())
    linked(other)


async def test_a_call_that_another_makes_under_the_same_id_has_a_span_of_its_own(told: Told) -> None:
    @tool(read_only=True)
    async def delegate() -> str:
        return str((await inner.run(ToolCall("call_1", "look"))).output)

    inner = told.runner(look)
    await told.runner(delegate, look).run(ToolCall("call_1", "delegate"))
    assert told.named("execute_tool look").parent is not None
    assert [span.name for span in told.spans] == ["execute_tool look", "execute_tool delegate"]


async def test_work_in_the_background_has_a_span_of_its_own(told: Told, caplog: pytest.LogCaptureFixture) -> None:
    @tool(background=True)
    async def work() -> str:
        return "done"

    async def main() -> None:
        async with told.runner(work) as runner:
            ticket = (await runner.run("work", {}, ToolContext(session="s"))).output["ticket"]
            while ticket in runner.jobs and not runner.jobs[ticket].has_ended:
                await asyncio.sleep(0)

    await main()
    assert [span.name for span in told.spans] == ["execute_tool work"] * 2 and not caplog.records


async def test_a_call_that_a_resumed_call_makes_is_linked_to_nothing(told: Told) -> None:
    @tool
    async def outer(context: ToolContext) -> None:
        await context.run("look")

    async def main() -> None:
        guard: Any = lambda call, context: ask("?") if call.name == "outer" else None  # noqa: E731
        runner = told.runner(outer, look, guards=[guard], approve=later)
        await runner.resume((await runner.run("outer")).record(), True)

    await main()
    assert not told.named("execute_tool look").links


async def test_a_handler_can_keep_nothing_and_what_middleware_keeps_is_no_metadata_and_holds_no_secret() -> None:
    async def keeps(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        seen.append((context.read_note("role"), dict(context.metadata)))
        context.store_note("role", f"admin of {context.secrets['token']}" + "x" * 1000)
        for n in range(10):
            context.store_note(f"cut {n}", "x" * (200 + n) + 20 * context.secrets["token"] + "x" * 500)
        return await next(call, context)  # type: ignore[no-any-return]

    seen: list[Any] = []
    refused: list[str] = []

    @tool(ask=True)
    async def act(context: ToolContext) -> None:
        try:
            context.store_note("role", "admin")
        except RuntimeError as error:
            refused.append(str(error))

    async def main() -> dict[str, Any]:
        runner = Runner([act], around=[keeps], approve=later)
        context = ToolContext(metadata={"role": "guest"}, secrets={"token": "tok-123456"})
        record = (await runner.run("act", None, context)).record()
        await runner.resume(record, True, context)
        return record["pending"]  # type: ignore[no-any-return]

    pending = await main()
    assert "tok-" not in json.dumps(pending) and len(pending["notes"]["role"]) <= 500
    assert pending["context"]["metadata"] == {"role": "guest"} == seen[1][1]
    assert seen[0][0] is None and seen[1][0].startswith("admin of **") and refused


async def test_what_a_call_keeps_changes_nothing_that_others_see_of_its_context(told: Told) -> None:
    seen: list[Any] = []

    @tool
    async def act(context: ToolContext) -> None:
        seen.append(dict(context.metadata))
        await context.run("look")

    def guard(call: ToolCall, context: ToolContext) -> None:
        seen.append(dict(context.metadata))

    await told.runner(act, look, guards=[guard], journal=memory()).run("act", {}, ToolContext(metadata={"a": 1}))
    assert seen == [{"a": 1}] * 3


FORGED = f"{'a' * 32}-{'b' * 16}-01 1.000"


@given(st.sampled_from([FORGED, f"{FORGED} c1", f"{'a' * 32}-{'b' * 16}-01 1.2.3"]) | st.text(max_size=80))
def test_what_a_caller_says_in_the_metadata_is_no_link_and_breaks_nothing(kept: str) -> None:
    told = Told()
    runner = told.runner(look, guards=[asks], approve=lambda call, decision, context: True)
    result = go(runner.run("look", None, ToolContext(metadata={"ferrule.trace": kept})))
    assert result.success and not told.named("execute_tool look").links
    assert told.points("ferrule.approval.duration")[0].max < 3600


# -- metrics -----------------------------------------------------------------------------------------------------------


async def test_calls_are_counted_and_measured_by_tool_and_status_and_by_nothing_that_is_unbounded(told: Told) -> None:
    @tool
    async def fails() -> None:
        raise LookupError

    async def main() -> None:
        runner = told.runner(look, fails, guards=[asks], approve=lambda call, decision, context: True)
        for n in range(3):
            await runner.run(ToolCall(f"c{n}", "look"), ToolContext(session=f"s{n}", principal=f"p{n}"))
        await runner.run("fails")
        await runner.run("look", {"n": "x"})

    await main()
    counted = {tuple(point.attributes.values()): point.value for point in told.points("ferrule.calls")}
    assert counted == {("look", "ok"): 3, ("fails", "failed"): 1, ("look", "invalid"): 1}
    measured = {
        tuple(sorted(point.attributes.items())): point.count for point in told.points("gen_ai.execute_tool.duration")
    }
    assert measured == {
        (("gen_ai.tool.name", "look"), ("gen_ai.tool.type", "function")): 3,
        (("error.type", "LookupError"), ("gen_ai.tool.name", "fails"), ("gen_ai.tool.type", "function")): 1,
    }
    assert sum(point.count for point in told.points("ferrule.call.queued")) == 4
    assert sum(point.count for point in told.points("ferrule.approval.duration")) == 4
    assert [*told.points("gen_ai.execute_tool.duration")[0].explicit_bounds][:3] == [0.01, 0.02, 0.04]


async def test_waiting_for_a_slot_is_no_execution(told: Told) -> None:
    gate, inside = asyncio.Event(), asyncio.Event()

    @tool(concurrency=1)
    async def hold() -> None:
        inside.set()
        await gate.wait()

    async def main() -> None:
        runner = told.runner(hold)
        first = asyncio.create_task(runner.run("hold"))
        await inside.wait()
        second = asyncio.create_task(runner.run("hold"))
        while not runner.waiting:
            await asyncio.sleep(0)
        await asyncio.sleep(0.02)
        gate.set()
        await asyncio.gather(first, second)

    await main()
    (queued,), (ran,) = told.points("ferrule.call.queued"), told.points("gen_ai.execute_tool.duration")
    assert queued.max > 0.01 and ran.min < queued.max


class BreaksAt:
    """What may stand in a tracer provider, and raises there."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __getattr__(self, name: str) -> Any:
        if name == self._where:
            raise RuntimeError(f"{name} is broken")
        return lambda *given, **named: None


@pytest.mark.parametrize("where", ["on_start", "on_end", "should_sample"])
async def test_an_sdk_that_breaks_breaks_no_call_and_stays_the_current_span_of_none(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken: Any = BreaksAt(where)
    provider = TracerProvider(**({"sampler": broken} if where == "should_sample" else {}))
    if where != "should_sample":
        provider.add_span_processor(broken)

    async def main() -> ToolResult:
        tracing = trace(tracer_provider=provider)
        result = await Runner([look], around=[tracing], observers=[tracing.observe]).run("look", {"n": 3})
        assert not otel.get_current_span().get_span_context().is_valid
        return result

    assert (await main()).output == 3
    assert "is broken" in caplog.text


# -- what it costs nobody ----------------------------------------------------------------------------------------------


async def test_without_a_provider_nobody_observes_the_call() -> None:
    seen: list[int] = []

    @tool
    async def act(context: ToolContext) -> None:
        running: Any = context.running_call
        seen.append(len(running.observers))

    await Runner([act], around=[trace()]).run("act")
    assert seen == [0]


async def test_what_is_not_sampled_is_told_nothing_and_what_is_below_it_is_not_sampled_either() -> None:
    told = Told(sampler=ALWAYS_OFF)
    tracing = trace(tracer_provider=told.tracers)
    found: list[Any] = []

    @tool
    async def act(context: ToolContext) -> None:
        running: Any = context.running_call
        found.append((len(running.observers), otel.get_current_span().get_span_context()))

    await Runner([act], around=[tracing]).run("act")
    ((observers, current),) = found
    assert observers == 0 and current.is_valid and not current.trace_flags.sampled
    assert told.spans == []


def test_a_provider_that_is_set_later_is_used_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    from ferrule.middleware import _spans

    told, tracing = Told(), trace()
    runner = Runner([look], around=[tracing])
    go(runner.run("look"))
    monkeypatch.setattr(_spans, "get_tracer_provider", lambda: told.tracers)
    tracing._tracer, tracing._next_check = told.tracers.get_tracer("ferrule"), 0.0  # a tenth of a second later
    go(runner.run("look"))
    assert [span.name for span in told.spans] == ["execute_tool look"]


def test_it_stands_around_and_refuses_what_could_not_work() -> None:
    with pytest.raises(DefinitionError, match="belongs in `around`"):
        Runner([look], inside=[trace()])
    given: Any
    for given in ({"agent": ""}, {"agent": 7}, {"content": "yes"}, {"principal": "me"}):
        with pytest.raises(DefinitionError, match=f"trace\\({next(iter(given))}\\)"):
            trace(**given)


# -- the log -----------------------------------------------------------------------------------------------------------


def _denies(call: ToolCall, context: ToolContext) -> Any:
    raise RuntimeError("a guard that breaks")


@pytest.mark.parametrize("how", ["told", "guard", "observer"])
def test_logging_that_raises_breaks_no_call(how: str, caplog: pytest.LogCaptureFixture) -> None:
    def breaks(record: logging.LogRecord) -> bool:
        raise RuntimeError("a filter that breaks")

    logger = logging.getLogger("ferrule")
    logger.addFilter(breaks)
    try:
        assert logged_of(how, caplog) == set()
    finally:
        logger.removeFilter(breaks)


@pytest.mark.parametrize("how", ["told", "guard", "observer"])
def test_a_program_whose_records_have_attributes_of_these_names_keeps_its_own(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = logging.getLogRecordFactory()

    def with_session(*given: Any, **named: Any) -> logging.LogRecord:
        record = before(*given, **named)
        record.session = "the program's own"
        return record

    logging.setLogRecordFactory(with_session)
    try:
        assert logged_of(how, caplog) == {("the program's own",)}
    finally:
        logging.setLogRecordFactory(before)


@pytest.mark.parametrize("how", ["handler", "guard", "told", "middleware", "observer", "answer"])
def test_each_line_of_the_log_about_a_call_says_which_one_and_whose(how: str, caplog: pytest.LogCaptureFixture) -> None:
    assert logged_of(how, caplog) == {("act", "c1", "s", "p")}


def logged_of(how: str, caplog: pytest.LogCaptureFixture) -> set[tuple[Any, ...]]:
    """What records of the log have, where a call goes wrong in this way."""
    caplog.set_level(logging.DEBUG, "ferrule")

    @tool
    async def act() -> None:
        if how == "handler":
            raise RuntimeError
        if how == "told":
            raise ToolError("no")

    async def breaks(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        raise RuntimeError

    def observes(event: Any) -> None:
        raise RuntimeError

    options: dict[str, Any] = {
        "guard": {"guards": [_denies]},
        "middleware": {"around": [breaks]},
        "observer": {"observers": [observes]},
        "answer": {"guards": [asks], "approve": lambda call, decision, context: allow(arguments={"x": 1})},
    }.get(how, {})
    ends: list[str] = []
    options["observers"] = [*options.get("observers", ()), lambda event: ends.append(event.kind)]
    go(Runner([act], **options).run(ToolCall("c1", "act"), ToolContext(session="s", principal="p")))
    names = ("tool_name", "tool_call_id", "session", "principal")
    assert ends[-1] in ("tool:post", "tool:error")
    return {tuple(vars(record)[name] for name in names if name in vars(record)) for record in caplog.records}
