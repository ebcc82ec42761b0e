"""What a policy of many rules, and a guard of shell lines, cost a decision."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cases import CONTEXT
from measure import Block, Line, measure_medians

from ferrule import Runner, ToolCall, tool
from ferrule.guards import commands, rules
from ferrule.security.commands import read_line

GOALS = {5: 60, 50: 70, 500: 100}


@tool
async def pay(to: str, amount: int) -> str:
    """Pay somebody."""
    return to


@tool(read_only=True)
async def shell(command: str) -> str:
    """Run a line."""
    return command


def write_policy(count: int) -> str:
    """A policy of so many rules: each for one receiver, and every tenth for another tool."""
    lines = [f"'pay(to=person_{number})'" if number % 10 else f"'tool{number}_*'" for number in range(count)]
    return f"allow = [{', '.join(lines)}]\n"


def decides(runner: Runner, call: ToolCall, *, anew: bool = False) -> Block:
    async def block(calls: int) -> None:
        for _ in range(calls):
            if anew:
                read_line.cache_clear()
            await runner.decide(call, CONTEXT)

    return block


def measure() -> Iterator[Line]:
    """A line for each number of rules, and two for a shell line."""
    with tempfile.TemporaryDirectory() as folder:
        blocks: dict[str, Block] = {}
        for count in GOALS:
            file = Path(folder, f"{count}.toml")
            file.write_text(write_policy(count), encoding="utf-8")
            call = ToolCall("1", "pay", {"to": f"person_{count - 1}", "amount": 5})
            runner = Runner([pay], guards=[rules(file)])
            assert asyncio.run(runner.decide(call)).kind == "allow"
            blocks[str(count)] = decides(runner, call)
        guarded = Runner([shell], guards=[commands(allow=["git log *", "head *"], deny=["rm *"])])
        line = ToolCall("1", "shell", {"command": "git log --oneline -5 | head -3"})
        blocks |= {"new": decides(guarded, line, anew=True), "seen": decides(guarded, line)}
        found = measure_medians(blocks, calls=300, rounds=9)
    for count, goal in GOALS.items():
        yield Line(f"decide under a policy of {count} rules", "µs", found[str(count)], goal)
    yield Line("decide of a shell line, new", "µs", found["new"], 200)
    yield Line("decide of a shell line, seen before", "µs", found["seen"], 40)
