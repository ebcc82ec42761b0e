"""`share_limits`: whose turn it is, what happens when a store fails, and which keys can be counted by."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cast import Person
from ferrule import DefinitionError, Runner, Tool, Waits, tool
from ferrule.middleware import budget, rate
from ferrule.stores import limits as limits_module
from ferrule.stores.limits import SharedLimits, grant_turns, share_limits
from ferrule.stores.store import JsonValue, Memory, Postgres, Store, StoreError
from ferrule.testing import ManualClock
from gates import Blocker, Gate
from places import SHARED, out_of_patience, store_of
from waits import BOUND, until
from watched import go, plain


@pytest.fixture(params=SHARED)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return store_of(request.param, request, tmp_path_factory)


def one_at_a_time(gate: Gate | None = None) -> Tool:
    """A tool `look` of which one call runs at a time, or waits at the gate; no two of them share a limit in memory."""

    async def look() -> str:
        return "seen" if gate is None else await gate.wait()

    return tool(look, read_only=True, concurrency=1)


def shared(store: Any, gate: Gate | None = None, **options: Any) -> Runner:
    """A runner of another program, with limits in that store."""
    limits = store if isinstance(store, SharedLimits) else share_limits(store)
    return Runner([one_at_a_time(gate)], limits=limits, **options)


WANTED = st.tuples(
    st.dictionaries(st.sampled_from(["runner", "tool"]), st.integers(1, 3)),
    st.lists(st.sampled_from("abc"), unique=True, max_size=2),
    st.booleans(),
)


STEPS = st.lists(st.one_of(WANTED, st.integers(0, 20)), max_size=30)


def entry(name: object, wanted: Any, held: bool = False) -> JsonValue:
    slots, keys, together = wanted
    return [str(name), 0.0, held, slots, keys, together]


@given(STEPS)
def test_no_limit_is_exceeded_and_no_key_held_twice(steps: list[Any]) -> None:
    kept: list[JsonValue] = []
    for number, step in enumerate(steps):
        if isinstance(step, int):
            kept = kept[:step] + kept[step + 1 :]
        else:
            kept = [*kept, entry(number, step)]
        before = {name: held for name, _, held, *_ in kept}
        kept, lacking = grant_turns(kept)
        held = [one for one in kept if one[2]]
        assert [name for name, was_held in before.items() if was_held and name in lacking] == []
        assert {one[0] for one in kept} - {one[0] for one in held} == lacking.keys()
        taken: Counter[str] = Counter()
        for one in held:
            taken.update([*one[3]])
        for slot, count in taken.items():
            assert count <= max(one[3][slot] for one in held if slot in one[3])
        for place, one in enumerate(held):
            for other in held[:place]:
                assert not set(one[4]) & set(other[4]) or (one[5] and other[5])


def test_an_entry_that_waits_for_a_key_goes_first_and_holds_no_slot() -> None:
    reader, writer = ({"runner": 2}, ["k"], True), ({"runner": 2}, ["k"], False)
    other = ({"runner": 2}, ["other"], False)
    kept, lacking = grant_turns([entry("r", reader, True), entry("w", writer), entry("r2", reader), entry("o", other)])
    assert {name: held for name, _, held, *_ in kept} == {"r": True, "w": False, "r2": False, "o": True}
    assert set(lacking.values()) == {"what it works on is in use"}


async def test_two_programs_share_one_limit(store: Store) -> None:
    gate = Gate()
    first = asyncio.create_task(shared(store, gate).run("look"))
    await gate.inside.wait()
    other = shared(store, clock=ManualClock())
    late = await out_of_patience(other, other.run("look"))
    assert (late.status, late.executed) == ("limited", False)
    assert plain(late) == (
        "look could not be started in time: 1 call runs already, the most that may run at once. "
        "Nothing was run. Try again later."
    )
    assert (await shared(share_limits(store, name="other")).run("look")).output == "seen"  # which counts apart
    gate.open.set()
    assert (await first).output == "through"
    assert (await shared(store).run("look")).output == "seen"


async def test_a_waiting_call_that_is_cancelled_leaves_nothing_in_the_store(store: Store) -> None:
    gate = Gate()
    first = asyncio.create_task(shared(store, gate).run("look"))
    await gate.inside.wait()
    waits = asyncio.create_task(shared(store).run("look"))
    while len(store.get("ferrule/leases")) < 2:
        await asyncio.sleep(0)
    waits.cancel()
    await asyncio.wait([waits])
    gate.open.set()
    await first
    while store.items():
        await asyncio.sleep(0)


async def test_an_abandoned_handler_keeps_its_slot_among_all_programs(store: Store) -> None:
    blocker, clock = Blocker(), ManualClock()
    look = tool(blocker.block, name="look", concurrency=1, timeout=10)
    runner = Runner([look], limits=share_limits(store), waits=Waits(grace=0), clock=clock)
    call = asyncio.create_task(runner.run("look"))
    await until(blocker.inside.is_set)
    await clock.advance(10)
    assert (await call).status == "timeout"
    assert (await shared(store, waits=Waits(slot=0.05)).run("look")).status == "limited"
    blocker.release.set()
    assert (await shared(store).run("look")).output == "seen"


async def test_nothing_is_held_while_a_person_is_asked() -> None:
    store, held = Memory(), []

    class Looks(Person):
        def __call__(self, *given: Any) -> Any:
            held.append(store.items())
            return super().__call__(*given)

    runner = Runner([one_at_a_time().replace(ask=True)], limits=share_limits(store), approve=Looks())
    assert (await runner.run("look")).success
    assert held == [{}]


async def test_a_lease_ends_by_the_clock_unless_its_program_renews_it() -> None:
    store, clock = Memory(), ManualClock()

    limits = share_limits(store, lease=30, clock=clock)
    mine = limits.lease({"slot": 1}, [], shared=False)
    gone = [entry("a-program-that-was-killed", ({"slot": 1}, [], False), held=True)]
    gone[0][1] = clock.now() + 10
    assert store.compare_and_set("ferrule/leases", None, gone)
    waits = asyncio.create_task(mine.acquire(None, None, None))
    while len(store.get("ferrule/leases")) < 2:
        await asyncio.sleep(0)
    assert not waits.done()
    clock._now += 10
    assert await waits
    [[_, until, held, *_]] = store.get("ferrule/leases")
    assert (until, held) == (clock.now() - 10 + 30, True)
    mine.release()


def test_a_runner_with_shared_limits_is_not_mounted() -> None:
    with pytest.raises(DefinitionError, match="give them to the runner that mounts it"):
        Runner(shared(Memory()).as_tools())


class Broken(Memory):
    """A store that cannot be reached, or loses a connection on the way back."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def get(self, key: str) -> JsonValue:
        if self.how == "unreachable":
            raise StoreError("no such host")
        if self.how == "breaks":
            raise OSError("a store of somebody's own")
        return {"what": "is no value of a limit"} if self.how == "others" else super().get(key)

    def compare_and_set(self, key: str, old: JsonValue, new: JsonValue) -> bool:
        done = super().compare_and_set(key, old, new)
        if self.how == "lost":
            raise StoreError("the connection was lost")
        return done


def limited_by(limits: SharedLimits) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "runner", {"limits": limits}
    yield "rate", {"inside": [rate(5, limits=limits)]}
    yield "budget", {"inside": [budget(calls=5, limits=limits)]}
    yield "budget", {"inside": [budget(tokens=5, reserve={"tokens": 1}, limits=limits)]}


@pytest.mark.parametrize("how", ["unreachable", "breaks", "lost", "others"])
async def test_a_store_that_fails_lets_nothing_through(how: str) -> None:
    ran: list[int] = []

    @tool(concurrency=1)
    async def act() -> None:
        ran.append(1)

    for what, options in limited_by(share_limits(Broken(how))):
        result = await Runner([act], **options).run("act")
        assert (what, result.status, result.executed) == (what, "limited", False)
        assert "shared limits are unavailable" in plain(result)
        assert "Nothing was run." in plain(result) and "no such host" not in plain(result)
    assert ran == []


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "SECONDS", 0.05)


async def test_a_store_that_does_not_answer_lets_nothing_through(impatient: None) -> None:
    answers = threading.Event()

    class Slow(Memory):
        def get(self, key: str) -> JsonValue:
            answers.wait(BOUND)
            return super().get(key)

    store = Slow()
    limits = share_limits(store)
    for what, options in limited_by(limits):
        runner = Runner([one_at_a_time()], waits=Waits(slot=0.05), **options)
        assert ((await runner.run("look")).status, what) == ("limited", what)
    answers.set()
    assert (await shared(limits).run("look")).success
    while "ferrule/leases" in store.items():
        await asyncio.sleep(0)
    accounts = store.items("ferrule/budget/")
    assert [account["used"] for account in accounts.values()] == [[0], [0]]  # all was given back


async def test_an_unreadable_row_stops_no_sweep() -> None:
    store = Memory()
    for name, row in (("a", []), ("b", "x"), ("c", [1.0]), ("d", [9.0])):
        assert store.compare_and_set(f"ferrule/rate/{name}", None, row)
    share_limits(store).sweep("rate", lambda times: bool(times[-1] < 5))
    while "ferrule/rate/c" in store.items():
        await asyncio.sleep(0)
    assert len(store.items()) == 3


async def test_a_held_slot_outlives_a_store_that_fails_for_a_while() -> None:
    store, gate = Broken("not at all"), Gate()
    limits = share_limits(store)
    first = asyncio.create_task(shared(limits, gate).run("look"))
    await gate.inside.wait()
    store.how = "unreachable"
    assert (await shared(limits).run("look")).status == "limited"
    store.how = "not at all"
    assert (await shared(store, waits=Waits(slot=0.05)).run("look")).status == "limited"
    gate.open.set()
    assert (await first).output == "through"
    assert (await shared(limits).run("look")).output == "seen"


@pytest.mark.parametrize("limit", [rate, budget])
@pytest.mark.parametrize("key", [b"bytes", 1.5, ("a", frozenset())])
async def test_a_key_that_cannot_be_stored_fails_the_call_and_nothing_runs(limit: Any, key: Any) -> None:
    made = limit(calls=5, by=lambda call, context: key, limits=share_limits(Memory()))
    result = await Runner([one_at_a_time()], inside=[made]).run("look")
    assert (result.status, result.executed) == ("failed", False)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"place": Memory}, "Journal.open"),
        ({"name": ""}, "name"),
        ({"lease": 0}, "lease"),
        ({"place": "mysql://nowhere:nothing"}, "postgresql://"),
    ],
)
def test_a_wrong_parameter_is_a_mistake_at_once(options: Any, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        share_limits(**{"place": Memory(), **options})


@pytest.mark.parametrize("make", [Runner, rate, budget])
@pytest.mark.parametrize("wrong", ["postgresql://here/db", SharedLimits])
def test_only_share_limits_makes_limits(make: Any, wrong: Any) -> None:
    with pytest.raises(DefinitionError, match="share_limits"):
        make([one_at_a_time()], limits=wrong) if make is Runner else make(calls=1, limits=wrong)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no forks")
@pytest.mark.slow
def test_a_forked_process_has_leases_of_its_own(postgres_url: Callable[[str], str]) -> None:
    limits = share_limits(Postgres(postgres_url("forked")))
    assert go(shared(limits).run("look")).success
    child = os.fork()
    if not child:
        try:
            os._exit(0 if go(shared(limits).run("look")).success else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
