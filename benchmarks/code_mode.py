"""Programs of a model beside plain calls: turns, tokens, and the time of each inner call.

    python benchmarks/code_mode.py

Three tasks of 10, 50 and 200 calls, each with a scripted model: one call in each turn, all calls in one turn, and one
program. Tokens are a quarter of the bytes of all requests; each has the messages so far, and the definitions.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from ferrule import Runner, Toolset, tool
from ferrule.journal import memory
from ferrule.loop import run
from ferrule.models import Scripted
from ferrule.providers import openai_chat
from ferrule.tools import code

TASKS = (10, 50, 200)
ROUNDS = 7
LEVELS = {f"article-{number}": number % 7 for number in range(200)}


@tool(read_only=True)
async def read_stock(article: str) -> dict[str, Any]:
    """Return how many of an article are in stock, where they are, and when they were counted."""
    return {"article": article, "count": LEVELS[article], "shelf": f"B-{LEVELS[article]}", "counted": "2026-11-30"}


@tool(read_only=True)
async def read_price(article: str) -> dict[str, Any]:
    """Return the price of an article in euros, with its currency and its rate of tax."""
    return {"article": article, "euros": 4 + LEVELS[article], "currency": "EUR", "tax": 0.19}


TOOLS = [read_stock, read_price]


def make_calls(count: int) -> list[tuple[str, dict[str, str]]]:
    articles = list(LEVELS)[: count // 2]
    return [call for one in articles for call in (("read_stock", {"article": one}), ("read_price", {"article": one}))]


def make_program(count: int) -> str:
    """The same calls, as a model would write them."""
    return (
        f"articles = ['article-' + str(n) for n in range({count // 2})]\n"
        "value = 0\n"
        "for article in articles:\n"
        "    value += read_stock(article)['count'] * read_price(article)['euros']\n"
        "value"
    )


def count_tokens(messages: Sequence[Any], tools: Toolset) -> int:
    request = {"messages": list(messages), "tools": list(openai_chat.tools(tools))}
    return len(json.dumps(request, default=dict).encode()) // 4


async def converse(runner: Runner, turns: Sequence[Any]) -> tuple[int, int]:
    """The turns and tokens of one conversation."""
    async with Scripted([*turns, "Done."]) as model:
        result = await run(
            model, model.user("What is our stock worth?"), runner, max_turns=len(turns) + 1, max_calls=1_000
        )
        assert result.status == "done", result.status
    return len(model.requests), sum(count_tokens(one.messages, one.tools) for one in model.requests)


async def measure_time(runner: Runner, work: Any) -> float:
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        await work(runner)
        times.append(time.perf_counter() - begin)
    return median(times) * 1e3


async def call_plainly(runner: Runner) -> None:
    for name, given in make_calls(200):
        assert (await runner.run(name, given)).success


def make_run(program: str) -> Any:
    async def run_program(runner: Runner) -> None:
        result = await runner.run("run_program", {"program": program}, session="s")
        assert result.success, result.text

    return run_program


async def main() -> None:
    plain, coded = Runner(TOOLS), Runner([code.tool(Runner(TOOLS))])
    print(f"{'calls':>5}  {'':24}{'turns':>6}{'tokens':>10}")
    for count in TASKS:
        calls = make_calls(count)
        ways = {
            "one call in each turn": (plain, [[call] for call in calls]),
            "all calls in one turn": (plain, [calls]),
            "one program": (coded, [[("run_program", {"program": make_program(count)})]]),
        }
        for way, (runner, turns) in ways.items():
            made, tokens = await converse(runner, turns)
            print(f"{count:5}  {way:24}{made:6}{tokens:10,}")
    alone = await measure_time(plain, call_plainly)
    nothing, all_calls = make_run("1"), make_run(make_program(200))
    start = await measure_time(coded, nothing)
    inner = await measure_time(coded, all_calls)
    recorded = await measure_time(Runner([code.tool(Runner(TOOLS))], journal=memory()), nothing)
    print(f"\nstart of a program, with its check: {start:.1f} ms; with a journal in memory {recorded:.1f} ms")
    print(f"one call: {alone / 200 * 1e3:.0f} µs plainly, {(inner - start) / 200 * 1e3:.0f} µs in a program")


if __name__ == "__main__":
    asyncio.run(main())
