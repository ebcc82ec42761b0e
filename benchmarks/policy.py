"""What a policy of fifty rules adds to a call, by what the rules look at.

Run: python benchmarks/policy.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from measure import Block, measure_medians

from ferrule import Runner, ToolCall, tool
from ferrule.guards import rules

POLICY = """
allow = ["read_*", "refund(amount<=100)", "shell(pytest *)", "shell(git status)",
  "write_file(path within src)", {others}]
ask = ["refund(amount>1000)", "shell(git commit *)"]
deny = ["*(url host *.internal)", "shell(rm *)", "shell(git push *)"]
"""


@tool(read_only=True)
async def read_note(name: str) -> str:
    """Read a note."""
    return name


@tool
async def refund(amount: int, currency: str) -> str:
    """Refund an order."""
    return currency


@tool
async def write_file(path: str, content: str) -> str:
    """Write a file."""
    return path


@tool
async def shell(command: str) -> str:
    """Run a line."""
    return command


def runs(call: ToolCall, *guards: Any) -> Block:
    runner = Runner([read_note, refund, write_file, shell], guards=guards)

    async def block(calls: int) -> None:
        for _ in range(calls):
            assert (await runner.run(call)).success

    return block


def report() -> None:
    """A plain command line that was seen before takes 1 ms at most."""
    calls = {
        "read-only, by name": ToolCall("", "read_note", {"name": "a"}),
        "a number": ToolCall("", "refund", {"amount": 5, "currency": "EUR"}),
        "a path": ToolCall("", "write_file", {"path": "src/a", "content": "x"}),
        "a shell line": ToolCall("", "shell", {"command": "git status && pytest -q"}),
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "policy.toml")
        others = ", ".join(f'"tool{at}_*(amount<={at})"' for at in range(40))
        file.write_text(POLICY.format(others=others), encoding="utf-8")
        policy = rules(file)
        blocks = {
            f"{name}{more}": runs(call, *guards)
            for name, call in calls.items()
            for more, guards in (("", ()), (", judged", (policy,)))
        }
        found = measure_medians(blocks, calls=500, rounds=9)
    for name in calls:
        print(f"{name:20} {found[name]:8.1f} µs, and with {len(policy.rules)} rules {found[f'{name}, judged']:8.1f} µs")


if __name__ == "__main__":
    report()
