"""What users write with `retry`, `budget`, `rate`, `breaker` and `cache`; checked and never run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, assert_type

from ferrule import Middleware, Runner, ToolCall, ToolContext, ToolResult, Toolset, tool
from ferrule.middleware import breaker, budget, cache, rate, retry
from ferrule.testing import ManualClock


@tool(read_only=True, inside=[retry(5, safe=["search"])])
async def search(words: str) -> list[str]:
    """Search."""
    return [words]


def tenant(call: ToolCall, context: ToolContext[Any]) -> str | None:
    """A key of one's own."""
    return context.metadata.get("tenant")


def costs(call: ToolCall, context: ToolContext[Any]) -> Mapping[str, float]:
    """What a call may use."""
    return {"tokens": len(call.arguments["words"]), "cost": 0.01}


def used(result: ToolResult) -> Mapping[str, float] | None:
    """What a call did use."""
    return {"tokens": 5} if result.success else None


spending = budget(calls=50, tokens=10_000, cost=2.5, seconds=60, reserve=costs, usage=used, by=tenant)
answers = cache(60, entries=100, by=("principal", "session"))

inside: Sequence[Middleware] = [
    retry(3, wait=0.2, longest=5, jitter=0.2, per_minute=30, when=lambda result: result.status == "failed"),
    spending,
    breaker(5, 30, probes=2, by="tool", when=lambda result: not isinstance(result.exception, LookupError)),
    answers,
    rate(10, 1.0, by=tenant),
]
runner = Runner(Toolset([search]), inside=inside)
tools = Runner([search.replace(inside=[budget(tokens=10, reserve={"tokens": 2}), rate(5)])])


async def with_a_clock_of_ones_own() -> float:
    """A test of one's own that waits for nothing."""
    clock = ManualClock()
    task = asyncio.create_task(Runner([search], inside=[retry(clock=clock)]).run("search", {"words": "x"}))
    await clock.advance(30)
    assert_type(await task, ToolResult)
    return clock.time()


def at_the_end_of_a_session() -> dict[str, float]:
    """What is kept is let go."""
    so_far = spending.used("session-1")
    spending.forget("session-1")
    answers.forget()
    return so_far
