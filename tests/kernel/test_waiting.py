"""Calls that wait in a ring: the one that closes it is answered at once, and all others go on. Nobody else is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from watched import go

from ferrule import Runner, Tool, ToolContext, ToolResult, tool

Want: TypeAlias = tuple[str, Sequence[Any]]
"""What a call is to have, a key or the one slot of a tool, and what it calls once it has that."""
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
        """Call what is wanted, one after the other; the calls that begin all begin before."""
        call = context.call
        assert call is not None
        has = [key, *(name for name in ("both",) if call.name == name)]
        self.enter(call.id, call.parent, has)
        if context.deps is not None and call.parent is None:
            await context.deps.wait()
        await asyncio.sleep(0)
        results = [await asked(context, want) for want in wants]
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


def asked(runner: Any, want: Want, *context: Any) -> Awaitable[ToolResult]:
    what, wants = want
    name = what if what in SLOTS else "both" if what.startswith("both:") else "keyed"
    return runner.run(name, {"key": what.removeprefix("both:"), "wants": wants}, *context)


def together(*wants: Want, concurrency: int | None = None) -> list[ToolResult]:
    """The calls; each has what it needs itself before any of them makes its own calls."""

    async def main() -> list[ToolResult]:
        works = Works()
        runner = Runner(works.tools(), queue_timeout=None, concurrency=concurrency)
        context = ToolContext(deps=asyncio.Barrier(len(wants)))
        found = await asyncio.gather(*(asked(runner, want, context) for want in wants))
        assert not works.faults
        assert runner.waiting == len(runner._waiting) == 0
        assert not runner._waiting._below and not runner._waiting._wanted and not runner._waiting._slots
        return found

    return go(main())


def statuses(outputs: list[Any]) -> list[str]:
    """What came of all the calls that these calls made, in turn."""
    return [status for called in outputs for status, inner in called or [] for status in [status, *statuses([inner])]]


def of_children(results: Sequence[ToolResult]) -> list[str]:
    assert all(result.success for result in results), results
    return sorted(statuses([result.output for result in results]))


@pytest.mark.parametrize(("one", "other"), [("k", "l"), ("first", "second"), ("k", "second")])
def test_of_two_that_wait_for_each_other_one_is_answered_and_the_other_goes_on(one: str, other: str) -> None:
    found = together((one, [(other, [])]), (other, [(one, [])]))
    assert of_children(found) == ["limited", "ok"]


def test_a_ring_of_three_and_one_by_way_of_grandchildren_are_found() -> None:
    three = together(("k", [("second", [])]), ("second", [("m", [])]), ("m", [("k", [])]))
    assert of_children(three) == ["limited", "ok", "ok"]
    deep = together(("k", [("third", [("l", [])])]), ("l", [("m", [("k", [])])]))
    assert of_children(deep) == ["limited", "ok", "ok", "ok"]


def test_the_answer_says_why_and_that_nothing_was_run() -> None:
    limited: list[ToolResult] = []

    @tool(resources=lambda given: given["path"][:1])
    async def cross(path: list[str], context: ToolContext) -> None:
        if len(path) > 1:
            await context.deps.wait()
            result = await context.run("cross", {"path": path[1:]})
            limited.extend([] if result.success else [result])

    async def main() -> None:
        runner = Runner([cross], queue_timeout=None)
        context = ToolContext(deps=asyncio.Barrier(2))
        await asyncio.gather(*(runner.run("cross", {"path": path}, context) for path in (["a", "b"], ["b", "a"])))

    go(main())
    assert [(result.status, result.executed) for result in limited] == [("limited", False)]
    assert str(limited[0].error).startswith("cross could not be started in time: what it needs is in use by a call")
    assert "Nothing was run." in str(limited[0].error)


def test_a_call_that_has_a_key_and_does_not_run_yet_is_passed_by_a_child_of_what_it_waits_for() -> None:
    """It waits for the slot of a call whose child waits for the key."""

    async def main() -> None:
        opened, calls = asyncio.Event(), asyncio.Event()

        @tool(resources=lambda given: ["k"])
        async def keyed(hold: bool) -> None:
            if hold:
                await opened.wait()

        @tool(resources=lambda given: given["keys"], concurrency=1)
        async def both(keys: list[str], context: ToolContext) -> str:
            if not keys:
                await calls.wait()
                return (await context.run("keyed", {"hold": False})).status
            return "had it all"

        runner = Runner([keyed, both], concurrency=None, queue_timeout=None)
        holder = asyncio.ensure_future(runner.run("keyed", {"hold": True}))
        parent = asyncio.ensure_future(runner.run("both", {"keys": []}))
        await asyncio.sleep(0)
        last = asyncio.ensure_future(runner.run("both", {"keys": ["k"]}))
        await asyncio.sleep(0)
        calls.set()
        while runner.waiting < 2:
            await asyncio.sleep(0)
        opened.set()
        assert (await holder).success and (await last).success
        assert (await parent).output == "ok"

    go(main())


def test_who_waits_for_a_call_that_will_end_is_not_answered() -> None:
    slow = together(("k", []), ("first", [("k", [])]), ("second", [("first", [])]))
    assert of_children(slow) == ["ok", "ok"]
    many = together(*((f"k{n}", [("first", []), ("shared", []), ("second", [])]) for n in range(12)), concurrency=12)
    assert of_children(many) == ["ok"] * 36


def test_who_waits_for_one_of_several_slots_waits_as_long_as_one_of_them_may_come_free() -> None:
    async def main() -> None:
        waits, opened = asyncio.Event(), asyncio.Event()

        @tool(parallel=True, concurrency=2)
        async def pair(then: str, context: ToolContext) -> str:
            if then == "open":
                await opened.wait()
            elif then:
                return (await context.run(then)).status
            return "ok"

        @tool(parallel=True, concurrency=1)
        async def single(context: ToolContext) -> str:
            waits.set()
            if context.deps is not None:
                await context.deps.wait()
            return (await context.run("pair", {"then": ""})).status

        runner = Runner([pair, single], concurrency=None, queue_timeout=None)
        gate = asyncio.Event()
        held = asyncio.ensure_future(runner.run("pair", {"then": "open"}))
        one = asyncio.ensure_future(runner.run("single", None, ToolContext(deps=gate)))
        await waits.wait()
        other = asyncio.ensure_future(runner.run("pair", {"then": "single"}))
        while runner.waiting < 1:
            await asyncio.sleep(0)
        gate.set()
        while runner.waiting < 2:
            await asyncio.sleep(0)
        opened.set()
        assert (await held).success and (await one).output == "ok" and (await other).output == "ok"

    go(main())


def test_a_call_that_waits_for_two_keys_is_passed_by_a_child_of_what_it_waits_for() -> None:
    async def main() -> None:
        goes = {"l": asyncio.Event(), "m": asyncio.Event()}

        @tool(resources=lambda given: given["keys"])
        async def take(keys: list[str], then: str | None, context: ToolContext) -> str:
            if then is None:
                return "ok"
            await goes[keys[0]].wait()
            return (await context.run("take", {"keys": [then], "then": None})).status

        def has(keys: list[str], then: str | None = None) -> asyncio.Future[ToolResult]:
            return asyncio.ensure_future(runner.run("take", {"keys": keys, "then": then}))

        runner = Runner([take], queue_timeout=None)
        first, second = has(["l"], "m"), has(["m"], "k")
        await asyncio.sleep(0)
        two = has(["k", "l"])
        while not runner.waiting:
            await asyncio.sleep(0)
        for go_on in goes.values():
            go_on.set()
        assert [(await first).output, (await second).output] == ["ok", "ok"]
        assert (await two).output == "ok"

    go(main())


def test_a_slot_that_another_runners_call_has_may_come_free() -> None:
    async def main() -> None:
        opened = asyncio.Event()

        @tool(parallel=True, concurrency=1)
        async def single(hold: bool) -> None:
            if hold:
                await opened.wait()

        @tool(parallel=True)
        async def parent(context: ToolContext) -> str:
            return (await context.run("single", {"hold": False})).status

        other, runner = Runner([single]), Runner([single, parent], queue_timeout=None)
        held = asyncio.ensure_future(other.run("single", {"hold": True}))
        await asyncio.sleep(0)
        waits = asyncio.ensure_future(runner.run("parent"))
        while not runner.waiting:
            await asyncio.sleep(0)
        opened.set()
        assert (await held).success and (await waits).output == "ok"

    go(main())


NAMES = ["a", "b", "c", "d", "both:e", "both:f", "first", "second"]
"""In an order in which all may take what they need; `both` takes a key and then the one slot of its own."""


def wants(names: list[str], depth: int) -> st.SearchStrategy[Any]:
    below = st.just([]) if depth == 0 else st.lists(st.deferred(lambda: wants(names, depth - 1)), max_size=2)
    return st.tuples(st.sampled_from(names), below)


@given(st.lists(wants(NAMES, 2), min_size=1, max_size=5, unique_by=lambda want: want[0]), st.booleans())
@settings(max_examples=150, deadline=None)
def test_whatever_calls_what_everything_comes_to_an_end(forest: list[Any], full: bool) -> None:
    forest = [want for want in forest if not want[0].startswith("both:")] or [("a", [])]
    found = together(*forest, concurrency=len(forest) if full else None)
    assert set(of_children(found)) <= {"ok", "limited"}


@given(
    st.lists(wants(NAMES, 2), min_size=1, max_size=8),
    st.sampled_from([1, 2, 3, None]),
    st.sampled_from([None, 1]),
    st.integers(0, 3),
)
@settings(max_examples=300, deadline=None)
def test_everything_comes_to_an_end_however_many_wait_to_begin(
    forest: list[Any], concurrency: int | None, share: int | None, turns: int
) -> None:
    async def main() -> list[ToolResult]:
        works = Works()
        runner = Runner(works.tools(), queue_timeout=None, concurrency=concurrency, per_principal=share)
        going = []
        for number, want in enumerate(forest):
            going.append(asyncio.ensure_future(asked(runner, want, ToolContext(principal=f"p{number % 2}"))))
            for _ in range(turns):
                await asyncio.sleep(0)
        found = await asyncio.gather(*going)
        assert not works.faults
        assert runner.waiting == len(runner._waiting) == 0 and not runner._keys._queues
        assert all(limiter.running == 0 for plan in runner._plans.values() for limiter in plan.limiters)
        return found

    found = go(main())
    assert all(result.success for result in found), found
    assert set(of_children(found)) <= {"ok", "limited"}
    if all(map(ordered, forest)) and share is None:
        assert set(of_children(found)) <= {"ok"}


def ordered(want: Any, least: int = 0) -> bool:
    """Whether all take keys and slots in one order."""
    return NAMES.index(want[0]) >= least and all(ordered(one, NAMES.index(want[0]) + 1) for one in want[1])


@given(st.lists(wants(NAMES, 2).filter(ordered), min_size=1, max_size=5), st.sampled_from([1, 2, 3, None]))
@settings(max_examples=150, deadline=None)
def test_nobody_is_answered_where_all_take_what_they_need_in_one_order(
    forest: list[Any], concurrency: int | None
) -> None:
    async def main() -> list[ToolResult]:
        runner = Runner(Works().tools(), queue_timeout=None, concurrency=concurrency)
        return await asyncio.gather(*(asked(runner, want) for want in forest))

    assert set(of_children(go(main()))) <= {"ok"}


def test_a_call_that_waits_with_one_of_its_slots_gives_it_to_a_child_that_wants_it() -> None:
    """Else each would wait for the other: the child's parent has the slot that the call lacks."""

    async def main() -> None:
        goes = asyncio.Event()

        @tool(parallel=True, concurrency=1)
        async def few() -> str:
            return "ok"

        @tool(parallel=True)
        async def parent(context: ToolContext) -> str:
            await goes.wait()
            return (await context.run("few")).status

        runner = Runner([few, parent], concurrency=1, queue_timeout=None)
        going = asyncio.ensure_future(runner.run("parent"))
        await asyncio.sleep(0)
        other = asyncio.ensure_future(runner.run("few"))
        while not runner.waiting:
            await asyncio.sleep(0)
        assert few._limiters[0].running == 1
        goes.set()
        assert (await going).output == "ok" and (await other).output == "ok"

    go(main())


def test_a_call_that_gets_one_of_its_slots_before_a_child_that_wants_it_hands_it_on() -> None:
    async def main() -> None:
        goes = asyncio.Event()

        @tool(parallel=True, concurrency=1)
        async def few(hold: bool) -> str:
            if hold:
                await goes.wait()
            return "ok"

        @tool(parallel=True)
        async def parent(context: ToolContext) -> list[str]:
            first = asyncio.ensure_future(context.run("few", {"hold": True}))
            while not runner.waiting:
                await asyncio.sleep(0)
            second = asyncio.ensure_future(context.run("few", {"hold": False}))
            while runner.waiting < 2:
                await asyncio.sleep(0)
            goes.set()
            return [(await first).status, (await second).status]

        runner = Runner([few, parent], concurrency=1, queue_timeout=None)
        going = asyncio.ensure_future(runner.run("parent"))
        while not few._limiters[0].running:
            await asyncio.sleep(0)
        other = asyncio.ensure_future(runner.run("few", {"hold": False}))
        assert (await going).output == ["ok", "ok"] and (await other).output == "ok"

    go(main())


def test_a_child_that_has_its_turn_with_a_key_and_waits_for_a_slot_passes_the_turn_on() -> None:
    """Else the next child, which the slot's owner waits for, would not be told that the key is free."""

    async def main() -> None:
        opened, second_waits = asyncio.Event(), asyncio.Event()

        @tool(resources=lambda given: ["k"])
        async def holds() -> None:
            await opened.wait()

        @tool(resources=lambda given: [given["key"]], concurrency=1)
        async def both(key: str, context: ToolContext) -> str:
            if key == "k":
                return "ok"
            while runner.waiting < 1:
                await asyncio.sleep(0)
            second_waits.set()
            return (await context.run("quick")).status

        @tool(resources=lambda given: ["k"])
        async def quick() -> None:
            """Takes the key."""

        @tool(parallel=True)
        async def parent(context: ToolContext) -> str:
            return (await context.run("both", {"key": "k"})).status

        runner = Runner([holds, both, quick, parent], queue_timeout=None)
        holder = asyncio.ensure_future(runner.run("holds"))
        slot = asyncio.ensure_future(runner.run("both", {"key": "z"}))
        await asyncio.sleep(0)
        first = asyncio.ensure_future(runner.run("parent"))
        await second_waits.wait()
        while runner.waiting < 2:
            await asyncio.sleep(0)
        opened.set()
        assert (await holder).success and (await slot).output == "ok" and (await first).output == "ok"

    go(main())


def test_a_slot_that_a_call_lent_is_not_given_back_twice_when_it_ends_before_its_child() -> None:
    async def main() -> None:
        inside = most = 0
        later: list[asyncio.Task[ToolResult]] = []

        @tool(parallel=True, concurrency=1)
        async def child() -> None:
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            for _ in range(5):
                await asyncio.sleep(0)
            inside -= 1

        async def spawns(context: ToolContext) -> None:
            later.append(asyncio.ensure_future(context.run("child")))
            while not inside:
                await asyncio.sleep(0)

        runner = Runner([child, tool(spawns, parallel=True)], concurrency=1, queue_timeout=None)
        for _ in range(5):
            assert (await runner.run("spawns")).success
            assert runner._settings.limiter is not None and runner._settings.limiter.running == 1  # the child's now
            assert (await runner.run("child")).success
        assert all([(await one).success for one in later]) and most == 1
        assert runner._settings.limiter.running == 0

    go(main())


def test_a_child_that_waits_for_two_keys_does_not_keep_the_next_from_the_one_that_is_free() -> None:
    async def main() -> None:
        opened = asyncio.Event()

        @tool(resources=lambda given: given["keys"])
        async def take(keys: list[str], then: list[str], after: int, context: ToolContext) -> str:
            if keys == ["k"] and context.call is not None and context.call.parent is None:
                await opened.wait()
            while runner.waiting < after:
                await asyncio.sleep(0)
            return (await context.run("take", {"keys": then, "then": [], "after": 0})).status if then else "ok"

        def has(keys: list[str], then: list[str], after: int) -> asyncio.Future[ToolResult]:
            return asyncio.ensure_future(runner.run("take", {"keys": keys, "then": then, "after": after}))

        runner = Runner([take], queue_timeout=None)
        going = [has(["k"], [], 0), has(["l"], ["k"], 1), has(["m"], ["k", "l"], 0)]
        while runner.waiting < 2:
            await asyncio.sleep(0)
        opened.set()
        assert [(await one).output for one in going] == ["ok", "ok", "ok"]

    go(main())
