"""A call under a framework that opens spans is one span, with what Ferrule knows; docs/telemetry.md shows it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ferrule.middleware import trace
from ferrule.testing import FrameworkRun, ScriptedCall
from ferrule.testing.world import World

FRAMEWORK = os.environ["FERRULE_FRAMEWORK"]
PAGE = Path(__file__).parents[3] / "docs" / "telemetry.md"
driving: Any = importlib.import_module(f"test_{FRAMEWORK}")

EXPORTER = InMemorySpanExporter()
_PROVIDER = TracerProvider()
_PROVIDER.add_span_processor(SimpleSpanProcessor(EXPORTER))
otel.set_tracer_provider(_PROVIDER)

if FRAMEWORK == "pydantic_ai":
    from pydantic_ai import Agent
    from pydantic_ai.models.instrumented import InstrumentationSettings

    Agent.instrument_all(InstrumentationSettings(version=5, include_content=False))

FRAMEWORKS = {
    "pydantic_ai": lambda: driving.PydanticAI(),
    "google_adk": lambda: driving.GoogleADK(),
    "strands": lambda: driving.Strands(),
    "fastmcp": lambda: driving.FastMCP2026(),
}
LOOK = ScriptedCall("c1", "look", {"name": "x"})
SCOPES = {
    "pydantic_ai": "pydantic-ai",
    "google_adk": "gcp.vertex.agent",
    "strands": "strands.telemetry.tracer",
    "fastmcp": "ferrule",
}
"""Who opens the span of a call."""


@pytest.fixture(autouse=True)
def _nothing_told_yet() -> None:
    EXPORTER.clear()


def finished() -> list[ReadableSpan]:
    return sorted(EXPORTER.get_finished_spans(), key=lambda span: span.start_time or 0)


def facts(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def of_calls() -> list[ReadableSpan]:
    """The spans that say that they are a call of a tool; of ADK without what it adds for a turn as a whole."""
    return [span for span in finished() if span.name.startswith("execute_tool") and "(merged)" not in span.name]


def traced(world: World, **options: Any) -> Any:
    tracing = trace()
    return world.runner(around=[tracing], observers=[tracing.observe], **options)


def scope_of(span: ReadableSpan) -> str:
    return span.instrumentation_scope.name if span.instrumentation_scope else ""


async def test_each_call_is_one_span() -> None:
    world = World()
    calls = (LOOK, ScriptedCall("c2", "explode"), ScriptedCall("c3", "count", {"to": 1}))
    await FRAMEWORKS[FRAMEWORK]().start_run(traced(world), *calls)
    found = {facts(span)["gen_ai.tool.name"]: span for span in of_calls()}
    assert len(of_calls()) == 3 and set(found) == {"look", "explode", "count"}
    assert {scope_of(span) for span in of_calls()} == {SCOPES[FRAMEWORK]}
    told = {name: facts(span)["ferrule.status"] for name, span in found.items()}
    assert told == {"look": "ok", "explode": "failed", "count": "ok"}
    assert "error.type" in facts(found["explode"]) and "error.type" not in facts(found["look"])


async def test_a_resumed_call_has_a_second_span_linked_to_the_first() -> None:
    world = World()
    driven: FrameworkRun = await FRAMEWORKS[FRAMEWORK]().start_run(
        traced(world), ScriptedCall("c1", "pay", {"to": "ada", "euros": 5})
    )
    await driven.answer({"c1": True})
    world.expect_paid({"ada 5": 1})
    told = [span for span in finished() if "ferrule.status" in facts(span)]
    assert [facts(span)["ferrule.status"] for span in told] == ["suspended", "ok"]
    first, second = told
    assert [link.context.span_id for link in second.links] == [first.context.span_id]
    assert facts(second)["ferrule.resumed"] is True


def tree() -> str:
    """The spans of the trace of a call, each below that in which it was opened, with what Ferrule said there."""
    below: dict[int, list[ReadableSpan]] = {}
    (called,) = of_calls()
    for span in [span for span in finished() if span.context.trace_id == called.context.trace_id]:
        below.setdefault(span.parent.span_id if span.parent else 0, []).append(span)

    def lines(parent: int, depth: int) -> Iterator[str]:
        for span in below.get(parent, ()):
            yield f"{'  ' * depth}{span.name}  [{scope_of(span)}]"
            for name, value in sorted(facts(span).items()):
                if name.startswith("ferrule."):
                    yield f"{'  ' * depth}    {name} = {value}"
            yield from lines(span.context.span_id, depth + 1)

    return "\n".join(lines(0, 0))


@pytest.mark.skipif(FRAMEWORK != "pydantic_ai", reason="the page shows one framework")
async def test_a_run_has_the_spans_that_the_page_shows() -> None:
    await FRAMEWORKS[FRAMEWORK]().start_run(traced(World()), LOOK)
    assert f"```text\n{tree()}\n```" in PAGE.read_text(encoding="utf-8")
