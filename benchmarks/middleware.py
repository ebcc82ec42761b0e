"""What `retry`, `budget`, `breaker`, `rate` and `cache` add to a call that succeeds.

Run: python benchmarks/middleware.py
"""

from __future__ import annotations

import sys
from typing import Any

from measure import Block, measure_medians

from ferrule import Runner, ToolCall, ToolContext, ToolResult, tool
from ferrule.middleware import breaker, budget, cache, rate, retry

MANY = 10**9


@tool(read_only=True)
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


async def passes(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
    """The least that a middleware can do."""
    result: ToolResult = await next(call, context)
    return result


def runs(*inside: Any) -> Block:
    runner = Runner([add], inside=inside)
    context = ToolContext(session="s", principal="p")

    async def block(calls: int) -> None:
        run = runner.run
        for _ in range(calls):
            await run(ToolCall("call_1", "add", '{"a": 1, "b": 2}'), context)

    return block


def report() -> None:
    """The limits as they stand in the issue: the three together add 2 µs at most."""
    amounts = budget(tokens=MANY, cost=MANY, reserve={"tokens": 1, "cost": 0.01})
    found = measure_medians(
        {
            "none": runs(),
            "one that only passes the call on": runs(passes),
            "three that only pass the call on": runs(passes, passes, passes),
            "retry": runs(retry()),
            "budget (calls)": runs(budget(calls=MANY)),
            "budget (tokens, cost)": runs(amounts),
            "breaker": runs(breaker()),
            "rate": runs(rate(1000, 0.001)),
            "retry + budget + breaker": runs(retry(), budget(calls=MANY), breaker()),
            "cache, which answers": runs(cache()),
        },
        calls=10_000,
        rounds=15,
    )
    none, one = found["none"], found["one that only passes the call on"]
    print(f"\ninside, Python {sys.version.split()[0]}: µs, more than none, more than one that only passes the call on")
    for name, time in found.items():
        print(f"  {name:36} {time:8.2f} {time - none:+8.2f} {time - one:+8.2f}")
    print("  asked for: retry + budget + breaker at most +2 µs")


if __name__ == "__main__":
    report()
