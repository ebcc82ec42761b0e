"""Telemetry, cassettes, recorded runs and evaluation, as a user writes them."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

from ferrule import Runner, ToolCall, ToolContext, ToolResult, tool
from ferrule.journal.reading import Filter, Reader
from ferrule.loop import LoopResult, run
from ferrule.middleware import trace
from ferrule.models import Reply, Scripted
from ferrule.testing import Case, Cassette, Difference, Rerun, ToolUse, cassette, evaluate, read_cases, rerun
from ferrule.types import Middleware, Next


@tool(read_only=True)
async def find_order(order: str) -> dict[str, int]:
    """Find an order."""
    return {"paid": 80}


async def kept(call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
    """A middleware that looks at the events of its call."""
    context.observe(lambda event: print(event.kind))
    context.store_note("mine", "a text")
    return await next(call, context)


tracing = trace(content=False, principal=True, agent="support")
around: list[Middleware] = [tracing, kept]
runner = Runner([find_order], around=around, observers=[tracing.observe])


async def recorded(path: Path) -> LoopResult:
    with cassette(path, "record") as tape:
        assert_type(tape, Cassette)
        model = Scripted([[("find_order", {"order": "4711"})], "It is paid."])
        return await run(model, model.user("Is 4711 paid?"), Runner([find_order], inside=[tape]))


async def again(path: Path) -> None:
    before = await recorded(path)
    assert_type(before.replies, list[Reply])
    assert_type(Scripted.from_run(before), Scripted)
    report = await rerun(before, runner)
    assert_type(report, Rerun)
    differences: list[Difference] = list(report.differences)
    print(differences)
    await rerun(Reader("calls.db").calls(Filter(session="s7")), runner)


async def measured() -> ToolUse:
    cases = [*read_cases("cases.jsonl"), Case("paid", "Is 4711 paid?", calls=[("find_order", {"order": "4711"})])]
    found = await evaluate(cases, lambda case: Scripted([case.id]), runner)
    found.assert_at_least(chosen=0.9)
    return found
