"""Calls that wait for each other, perhaps in a ring: `waits.slot` bounds it, and everything comes to an end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

import probe
from ferrule import Runner, Tool, ToolContext, ToolResult, Waits, tool
from ferrule.kernel import deadline
from waits import BOUND
from watched import go

Want: TypeAlias = tuple[str, Sequence[Any]]
"""What a call needs, a key or the one slot of a tool, and what it calls once it has that."""
SLOTS = ("first", "second", "third")


class Works:
    """Tools that call what is wanted, and see that nobody but their ancestors has what they have."""

    def __init__(self) -> None:
        self.inside: dict[str, list[str]] = {}
        self.parents: dict[str, str | None] = {}
        self.faults: list[str] = []

    def tools(self) -> list[Tool]:
        """`keyed`, which takes any key, three tools of which one call runs at a time, and one that is like both."""

        def keys(given: Any) -> list[str]:
            return [given["key"]]

        return [
            tool(self.work, name="keyed", resources=keys),
            tool(self.work, name="both", resources=keys, concurrency=1),
            *(tool(self.work, name=name, parallel=True, concurrency=1) for name in SLOTS),
        ]

    async def work(self, key: str, wants: list[Any], context: ToolContext) -> list[Any]:
        """Call each of `wants`, one after the other."""
        call = context.call
        assert call is not None
        has = [key, *(name for name in ("both",) if call.name == name)]
        self.enter(call.id, call.parent, has)
        if context.deps is not None and call.parent is None:
            await context.deps.wait()
        await asyncio.sleep(0)
        results = [await call_for(context, want) for want in wants]
        for one in has:
            self.inside[one].remove(call.id)
        return [[result.status, result.output] for result in results]

    def enter(self, call: str, parent: str | None, has: list[str]) -> None:
        self.parents[call] = parent
        for one in has:
            for other in self.inside.setdefault(one, []):
                above = parent
                while above not in (None, other):
                    above = self.parents[above]
                if above is None:
                    self.faults.append(f"{call} has {one} beside {other}")
            self.inside[one].append(call)


def call_for(runner: Any, want: Want, *context: Any) -> Awaitable[ToolResult]:
    what, wants = want
    name = what if what in SLOTS else "both" if what.startswith("both:") else "keyed"
    return runner.run(name, {"key": what.removeprefix("both:"), "wants": wants}, *context)


def statuses(outputs: list[Any]) -> list[str]:
    """What came of all the calls that these calls made, in turn."""
    return [status for called in outputs for status, inner in called or [] for status in [status, *statuses([inner])]]


NAMES = ["a", "b", "c", "d", "both:e", "both:f", "first", "second"]
"""Keys, and tools of which one call runs at a time; `both` takes a key and then the one slot of its own."""


def wants(names: list[str], depth: int) -> st.SearchStrategy[Any]:
    below = st.just([]) if depth == 0 else st.lists(st.deferred(lambda: wants(names, depth - 1)), max_size=2)
    return st.tuples(st.sampled_from(names), below)


@given(
    st.lists(wants(NAMES, 2), min_size=1, max_size=6),
    st.sampled_from([1, 2, 3, None]),
    st.sampled_from([None, 1]),
    st.integers(0, 3),
)
def test_every_graph_of_calls_ends_within_the_bound(
    forest: list[Any], concurrency: int | None, share: int | None, turns: int
) -> None:
    async def main() -> list[ToolResult]:
        works = Works()
        runner = Runner(works.tools(), waits=Waits(slot=0.05), concurrency=concurrency, per_principal=share)
        going = []
        for number, want in enumerate(forest):
            going.append(asyncio.ensure_future(call_for(runner, want, ToolContext(principal=f"p{number % 2}"))))
            for _ in range(turns):
                await asyncio.sleep(0)
        found = await asyncio.gather(*going)
        assert not works.faults
        assert probe.is_at_rest(runner)
        return found

    found = go(main())
    assert {result.status for result in found} | set(statuses([one.output for one in found])) <= {"ok", "limited"}


async def run_ring(**options: Any) -> list[str]:
    """Return the statuses of two calls that each hold a key and call what needs the other's."""
    works = Works()
    runner = Runner(works.tools(), **options)
    context = ToolContext(deps=asyncio.Barrier(2))
    calls = [call_for(runner, want, context) for want in (("a", [("b", [])]), ("b", [("a", [])]))]
    found = await asyncio.gather(*calls)
    assert all(result.success for result in found) and probe.is_at_rest(runner)
    return statuses([result.output for result in found])


async def test_two_calls_that_wait_for_each_other_end_at_the_queue_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "limited" in await run_ring(waits=Waits(slot=0.05))
    monkeypatch.setattr(deadline, "NESTED_TIMEOUT", 0.05)  # the bound of a call made by a call if there is no other
    assert "limited" in await run_ring(waits=Waits(slot=None))


@pytest.mark.parametrize("what", ["key", "slot"])
async def test_a_held_key_or_slot_applies_anew_among_nested_calls(what: str) -> None:
    inside: list[int] = []
    now = 0

    async def child() -> None:
        nonlocal now
        now += 1
        inside.append(now)
        await asyncio.sleep(0)
        now -= 1

    async def parent(context: ToolContext) -> list[str]:
        results = await asyncio.gather(*(context.run("child") for _ in range(3)))
        return [result.status for result in results]

    options: dict[str, Any] = {"resources": lambda given: ["k"]} if what == "key" else {}
    tools = [tool(one, parallel=False, **options) for one in (child, parent)]
    runner = Runner(tools, concurrency=1 if what == "slot" else None, waits=Waits(slot=BOUND))
    assert (await runner.run("parent")).output == ["ok", "ok", "ok"]
    assert inside == [1, 1, 1]
