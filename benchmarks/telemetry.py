"""What `trace()` adds to a call, in microseconds: while nobody has set a provider, with an SDK that samples nothing,
and with one that keeps every span; and what a span that is not sampled costs in the SDK itself. The blocks take turns.

    python benchmarks/telemetry.py
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable
from typing import Any

from measure import measure_rounds
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind

from ferrule import Runner, ToolCall, tool
from ferrule.middleware import trace

CALLS, ROUNDS = 1000, 31
GOALS = {"no provider": 8.0, "nothing is sampled": 15.0}


@tool(read_only=True)
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


async def plain(call: Any, context: Any, next: Any) -> Any:
    """A middleware that does nothing."""
    return await next(call, context)


def make_block(runner: Runner) -> Callable[[int], Awaitable[None]]:
    async def block(count: int) -> None:
        for n in range(count):
            await runner.run(ToolCall(f"c{n}", "add", '{"a": 1, "b": 2}'))

    return block


def make_span_block(tracer: Any) -> Callable[[int], Awaitable[None]]:
    attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "add", "gen_ai.tool.type": "function"}

    async def block(count: int) -> None:
        for _ in range(count):
            tracer.start_span("execute_tool add", None, SpanKind.INTERNAL, attributes)

    return block


def main() -> None:
    off, on = TracerProvider(sampler=ALWAYS_OFF), TracerProvider()
    tracing = trace(tracer_provider=on, meter_provider=MeterProvider([InMemoryMetricReader()]))
    kinds: dict[str, Any] = {
        "no middleware": [],
        "one that does nothing": [plain],
        "no provider": [trace()],
        "nothing is sampled": [trace(tracer_provider=off)],
        "all is kept": [trace(tracer_provider=on)],
        "all is kept, and measured": [tracing],
    }
    blocks = {name: make_block(Runner([add], around=around)) for name, around in kinds.items()}
    blocks["a span of the SDK that is not sampled"] = make_span_block(off.get_tracer("ferrule"))
    times = asyncio.run(measure_rounds(blocks, calls=CALLS, rounds=ROUNDS))
    base = times["no middleware"]
    for name, found in times.items():
        alone = name.startswith("a span")
        more = statistics.median(one - other * (not alone) for one, other in zip(found, base, strict=True))
        goal = f" (at most {GOALS[name]:g})" if name in GOALS else ""
        print(f"{name:38} {statistics.median(found):7.1f} µs a call, {more:6.1f} more{goal}")


if __name__ == "__main__":
    main()
