"""`runner.replace(journal=…)`: a copy of a runner that keeps its calls elsewhere."""

from __future__ import annotations

from ferrule import Runner, tool
from ferrule.journal import memory


@tool
async def pay(euros: int) -> str:
    """Pay."""
    return "paid"


async def test_a_copy_with_another_journal_tells_that_one_alone() -> None:
    first, second, seen = memory(), memory(), []
    runner = Runner([pay], journal=first, observers=[lambda event: seen.append(event.kind)])
    for copy, journal in ((runner, first), (runner.replace(journal=second), second)):
        assert copy.journal is journal
    await runner.replace(journal=second).run("pay", {"euros": 5}, session="s")
    assert list(first.events) == [] and [event.kind for event in second.events] == seen
    assert runner.replace(observers=[]).journal is first
