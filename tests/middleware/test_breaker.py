"""`breaker`: what fails again and again is left alone for a while, and then tried with care."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from two_threads import in_two_threads

from ferrule import DefinitionError, Runner, ToolCall, ToolContext, ToolResult, Waits, tool
from ferrule.middleware import breaker, cache, retry
from ferrule.middleware._limits import make_limited_result
from ferrule.testing import ManualClock
from watched import BOUND, go, plain


class Service:
    """A tool that fails while it is told to, and counts how many of its runs there are at a time."""

    def __init__(self) -> None:
        self.down = True
        self.runs = self.running = self.most = 0
        self.gate: asyncio.Event | None = None
        self.tool = tool(self.ask, name="ask", read_only=True)

    async def ask(self, n: int = 0) -> int:
        self.runs += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if self.gate is not None:
                await self.gate.wait()
            if self.down:
                raise ConnectionError("down")
            return n
        finally:
            self.running -= 1


def calls(count: int) -> list[ToolCall]:
    return [ToolCall(f"c{n}", "ask", {"n": n}) for n in range(count)]


def statuses(results: list[ToolResult]) -> str:
    return " ".join(result.status for result in results)


async def ask(runner: Runner, count: int = 1) -> str:
    return " ".join([(await runner.run("ask")).status for _ in range(count)])


async def test_after_so_many_failures_in_a_row_calls_are_refused_and_say_until_when() -> None:
    service = Service()

    async def main() -> ToolResult:
        clock = ManualClock()
        runner = Runner([service.tool], inside=[breaker(3, 30, clock=clock)])
        assert await ask(runner, 3) == "failed failed failed"
        await clock.advance(10)
        return await runner.run("ask")

    result = await main()
    assert (result.status, result.executed, result.metadata["retry_after"], service.runs) == ("limited", False, 20.0, 3)
    assert plain(result) == (
        "ask is not called for now: 3 calls in a row have failed. Nothing was run. Try again in 20 s."
    )


async def test_a_success_ends_the_row() -> None:
    service = Service()

    async def main() -> str:
        runner = Runner([service.tool], inside=[breaker(3, clock=ManualClock())])
        found = []
        for service.down in (True, True, False, True, True, False, True, True, True, True):
            found.append(await ask(runner))
        return " ".join(found[-3:])

    assert (await main()) == "failed failed limited"


async def test_one_probe_that_succeeds_closes_it_and_one_that_fails_opens_it_again() -> None:
    service = Service()

    clock = ManualClock()
    runner = Runner([service.tool], inside=[breaker(1, 30, clock=clock)])
    assert await ask(runner, 2) == "failed limited"
    await clock.advance(30)
    assert await ask(runner, 2) == "failed limited"
    await clock.advance(29.9)
    assert await ask(runner) == "limited"
    await clock.advance(0.1)
    service.down = False
    assert await ask(runner, 3) == "ok ok ok"


@pytest.mark.parametrize("probes", [1, 3])
async def test_half_open_lets_a_batch_through_one_probe_at_a_time(probes: int) -> None:
    service = Service()

    clock = ManualClock()
    runner = Runner([service.tool], inside=[breaker(1, 30, probes=probes, clock=clock)])
    await ask(runner)
    await clock.advance(30)
    service.gate, service.down, service.most = asyncio.Event(), False, 0
    batch = asyncio.ensure_future(runner.run_all(calls(5)))
    await clock.advance(0)
    service.gate.set()
    results = await batch
    assert statuses(results) == " ".join(["ok"] * probes + ["limited"] * (5 - probes))
    assert results[-1].metadata["retry_after"] == 1.0
    assert service.most == probes
    assert statuses(await runner.run_all(calls(5))) == "ok ok ok ok ok"


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.integers(1, 4)),
        st.tuples(st.just("advance"), st.integers(1, 15)),
        st.tuples(st.just("release"), st.booleans()),
        st.tuples(st.just("cancel"), st.integers(0, 3)),
    ),
    max_size=30,
)


@pytest.mark.slow
@given(st.integers(1, 3), st.integers(1, 3), STEPS)
def test_while_it_is_not_closed_there_are_never_more_probes_than_allowed(
    failures: int, probes: int, steps: list[tuple[str, Any]]
) -> None:
    service = Service()

    async def main() -> None:
        clock = ManualClock()
        circuit = breaker(failures, 10, probes=probes, clock=clock)
        began: dict[str, bool] = {}

        async def watched(call: ToolCall, context: ToolContext[Any], next: Any) -> ToolResult:
            began[call.id] = "ask" in circuit._open
            try:
                if began[call.id]:
                    assert not circuit.is_open("ask")
                    assert sum(began.values()) <= probes
                return await next(call, context)  # type: ignore[no-any-return]
            finally:
                del began[call.id]

        runner = Runner([service.tool], inside=[circuit, watched])
        tasks: list[asyncio.Future[ToolResult]] = []
        service.gate = asyncio.Event()
        for what, how in [*steps, ("release", False), ("advance", 10), ("call", 1), ("release", False)]:
            if what == "call":
                tasks += [asyncio.ensure_future(runner.run("ask")) for _ in range(how)]
            elif what == "cancel" and how < len(tasks):
                tasks[how].cancel()
            elif what == "release":
                service.down = how
                service.gate.set()
                await clock.advance(0)
                service.gate = asyncio.Event()
            await clock.advance(how if what == "advance" else 0)
        assert (await tasks[-1]).success  # whatever happened, it comes back
        await asyncio.wait(tasks)
        assert all(task.cancelled() or "outside the tool" not in str(task.result().error) for task in tasks)

    go(main())


async def test_a_deadline_that_comes_first_is_a_failure() -> None:
    service = Service()

    async def main() -> str:
        service.gate = asyncio.Event()
        return await ask(Runner([service.tool], inside=[breaker(2)], timeout=0.01), 3)

    assert (await main()) == "timeout timeout limited"


async def test_a_cancellation_from_outside_is_neither_failure_nor_success_and_frees_the_probe() -> None:
    service = Service()

    clock = ManualClock()
    runner = Runner([service.tool], inside=[breaker(1, 30, clock=clock)], timeout=100)
    await ask(runner)
    await clock.advance(30)
    service.gate = asyncio.Event()
    probe = asyncio.ensure_future(runner.run("ask"))
    await clock.advance(0)
    probe.cancel()
    await asyncio.wait([probe])
    service.gate, service.down = None, False
    assert await ask(runner, 2) == "ok ok"


async def test_a_probe_that_outlived_its_deadline_does_not_hold_its_place_for_ever() -> None:
    stubborn = asyncio.Event()

    @tool(read_only=True)
    async def ask(how: str) -> None:
        if how == "fails":
            raise ConnectionError
        while how == "stays" and not stubborn.is_set():
            try:
                await stubborn.wait()
            except asyncio.CancelledError:
                pass

    clock = ManualClock()
    runner = Runner([ask], inside=[breaker(1, 30, clock=clock)], waits=Waits(grace=0))
    await runner.run("ask", {"how": "fails"})
    await clock.advance(30)
    stays = await runner.run("ask", {"how": "stays"}, timeout=0.01)
    assert (stays.status, runner.left_running) == ("timeout", 1)
    assert (await runner.run("ask", {"how": "works"})).success
    stubborn.set()
    await clock.advance(0)
    assert runner.left_running == 0


@pytest.mark.parametrize("how", ["its deadline came", "it was cancelled"])
async def test_a_probe_that_was_given_up_makes_room_at_once_though_its_handler_takes_its_time(how: str) -> None:
    service = Service()
    ending, done = asyncio.Event(), asyncio.Event()

    @tool(name="ask", read_only=True)
    async def slow_to_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await done.wait()

    clock = ManualClock()
    circuit = breaker(1, 30, clock=clock)
    runner = Runner([service.tool], inside=[circuit])
    await ask(runner)
    await clock.advance(30)
    seconds = 0.2 if how == "its deadline came" else BOUND
    probe = asyncio.ensure_future(
        Runner([slow_to_end], inside=[circuit], waits=Waits(grace=BOUND)).run("ask", timeout=seconds)
    )
    await clock.advance(0)
    assert (await ask(runner)) == "limited"
    if how == "it was cancelled":
        probe.cancel()
    await ending.wait()
    service.down = False
    found = await ask(runner, 2), probe.done()
    done.set()
    assert found == ("ok ok", False)
    await asyncio.wait([probe])
    assert (await ask(runner)) == "ok"


def test_a_probe_whose_loop_was_closed_makes_room() -> None:
    service = Service()
    clock = ManualClock()
    circuit = breaker(1, 30, clock=clock)
    runner = Runner([service.tool], inside=[circuit])
    go(ask(runner))
    go(clock.advance(30))
    service.gate = asyncio.Event()
    loop = asyncio.new_event_loop()
    left = loop.create_task(runner.run("ask"))
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    service.gate, service.down = None, False
    assert go(ask(Runner([service.tool], inside=[circuit]), 2)) == "ok ok"
    left._log_destroy_pending = False  # type: ignore[attr-defined]
    left.get_coro().close()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "answer",
    [make_limited_result("Full."), ToolResult("kept", executed=False), ToolResult(error="no", status="denied")],
)
async def test_what_the_tool_did_not_answer_tells_nothing_of_it(answer: ToolResult) -> None:
    service = Service()
    answers: list[ToolResult] = []

    async def first(call: ToolCall, context: ToolContext[Any], next: Any) -> ToolResult:
        return answers.pop() if answers else await next(call, context)

    clock = ManualClock()
    runner = Runner([service.tool], inside=[breaker(2, 30, clock=clock), first])
    found = await ask(runner)
    answers.append(answer)
    found += f" {await ask(runner, 3)}"
    assert found == f"failed {answer.status} failed limited"
    await clock.advance(30)
    answers.append(answer)
    assert await ask(runner, 3) == f"{answer.status} failed limited"


async def test_what_comes_from_a_cache_further_in_does_not_close_it() -> None:
    service = Service()

    clock = ManualClock()
    runner = Runner([service.tool], inside=[breaker(1, 30, clock=clock), cache(clock=clock)])
    service.down = False
    await runner.run("ask", {"n": 1})
    service.down = True
    await runner.run("ask", {"n": 2})
    await clock.advance(30)
    assert (await runner.run("ask", {"n": 1})).metadata["cached"]
    assert (await runner.run("ask", {"n": 2})).status == "failed"
    assert (await runner.run("ask", {"n": 2})).status == "limited"


async def test_a_failure_further_in_is_not_shared_by_a_cache_so_that_each_counts() -> None:
    service = Service()

    async def main() -> str:
        service.gate = asyncio.Event()
        runner = Runner([service.tool], inside=[breaker(3), cache()])
        batch = asyncio.ensure_future(runner.run_all([ToolCall(f"c{n}", "ask") for n in range(3)]))
        await ManualClock().advance(0)
        service.gate.set()
        return f"{statuses(await batch)}, {await ask(runner, 1)}"

    assert (await main()) == "failed failed failed, limited"
    assert service.runs == 3


@pytest.mark.parametrize("ends", ["in its grace", "when it was abandoned"])
async def test_a_handler_that_answers_after_its_deadline_failed(ends: str) -> None:
    done = asyncio.Event()

    @tool(read_only=True)
    async def ask() -> str:
        while not done.is_set():
            try:
                await done.wait()
            except asyncio.CancelledError:
                if ends == "in its grace":
                    break
        return "late"

    circuit = breaker(1)
    runner = Runner([ask], inside=[circuit], waits=Waits(grace=BOUND if ends == "in its grace" else 0))
    assert (await runner.run("ask", timeout=0.01)).status == "timeout"
    done.set()
    while runner.left_running:
        await asyncio.sleep(0)
    assert circuit.is_open("ask")


async def test_what_the_deadline_of_the_call_that_made_it_kept_from_starting_did_not_fail() -> None:
    late = asyncio.Event()

    @tool(read_only=True)
    async def ask() -> str:
        return "in time"

    @tool(timeout=0.01)
    async def work(context: ToolContext) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert (await context.run("ask")).status == "timeout"
            late.set()

    circuit = breaker(1)
    assert (await Runner([ask, work], inside=[circuit]).run("work")).status == "timeout"
    assert late.is_set() and not circuit.is_open("ask")


async def test_a_retry_further_out_waits_until_it_is_half_open_and_is_the_probe() -> None:
    service = Service()

    async def main() -> ToolResult:
        clock = ManualClock()
        inside = [retry(5, wait=0, clock=clock), breaker(1, 30, clock=clock)]
        task = asyncio.ensure_future(Runner([service.tool], inside=inside).run("ask"))
        await clock.advance(30)
        service.down = False
        await clock.advance(30)
        return await task

    made = (await main()).metadata["attempts"]
    assert [attempt["status"] for attempt in made] == ["failed", "limited", "failed", "limited", "ok"]
    assert [attempt["wait"] for attempt in made] == [0, 30, 0, 30, None]


async def test_when_says_what_is_a_failure() -> None:
    @tool(read_only=True)
    async def ask(how: str) -> None:
        raise KeyError if how == "missing" else ConnectionError

    async def main() -> str:
        def not_missing(result: ToolResult) -> bool:
            return not isinstance(result.exception, LookupError)

        runner = Runner([ask], inside=[breaker(2, when=not_missing)])
        hows = ["missing", "missing", "missing", "down", "down", "down"]
        return " ".join([(await runner.run("ask", {"how": how})).status for how in hows])

    assert (await main()) == "failed failed failed failed failed limited"


async def test_a_middleware_further_in_that_breaks_is_a_failure() -> None:
    async def breaks(call: ToolCall, context: ToolContext[Any], next: Any) -> ToolResult:
        raise RuntimeError

    assert (await ask(Runner([Service().tool], inside=[breaker(2), breaks]), 3)) == "failed failed limited"


async def test_who_began_before_it_opened_does_not_close_it() -> None:
    slow = asyncio.Event()

    @tool(read_only=True)
    async def act(how: str) -> None:
        if how == "slow":
            await slow.wait()
        else:
            raise ConnectionError

    clock = ManualClock()
    runner = Runner([act], inside=[breaker(1, clock=clock)])
    early = asyncio.ensure_future(runner.run("act", {"how": "slow"}))
    await clock.advance(0)
    await runner.run("act", {"how": "down"})
    slow.set()
    assert (await early).success
    assert (await runner.run("act", {"how": "down"})).status == "limited"


def test_each_tool_has_a_breaker_of_its_own_and_by_says_otherwise() -> None:
    async def main(by: Any) -> str:
        service, healthy = Service(), Service()
        healthy.down = False
        runner = Runner([service.tool, healthy.tool.replace(name="other")], inside=[breaker(1, by=by)])
        await runner.run("ask")
        return (await runner.run("other")).status

    assert go(main("tool")) == "ok"
    assert go(main("all")) == "limited"


async def test_a_key_that_is_none_fails_the_call_and_nothing_runs() -> None:
    service = Service()
    result = await Runner([service.tool], inside=[breaker(by=lambda call, context: {})]).run("ask")
    assert (result.status, result.executed, service.runs) == ("failed", False, 0)


async def test_a_tool_that_never_failed_takes_no_room_and_forget_closes() -> None:
    service = Service()

    circuit = breaker(1)
    runner = Runner([service.tool], inside=[circuit])
    await ask(runner)
    assert circuit.is_open("ask")
    circuit.forget("ask")
    service.down = False
    assert not circuit.is_open("ask") and await ask(runner) == "ok"
    assert not circuit._open and not circuit._closed


@pytest.mark.slow
@pytest.mark.large  # the same with room for three is below
async def test_ten_thousand_others_that_fail_do_not_make_it_forget_one_that_is_open() -> None:
    service = Service()
    circuit = breaker(2, by="session", clock=ManualClock())

    runner = Runner([service.tool], inside=[circuit])
    for session in ["open", "open", *map(str, range(10_050))]:
        await runner.run("ask", None, ToolContext(session=session))
    assert len(circuit._closed) + len(circuit._open) == 10_000
    assert (await runner.run("ask", None, ToolContext(session="open"))).status == "limited"


@pytest.fixture
def room_for_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("ferrule.middleware.breaker"), "_MOST_KEYS", 3)


@pytest.mark.slow
@pytest.mark.usefixtures("room_for_three")
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([*"012345", "advance", "mend"]), max_size=40))
def test_none_that_is_open_is_forgotten_whatever_fails(steps: list[str]) -> None:
    service = Service()

    async def main() -> None:
        clock = ManualClock()
        circuit = breaker(2, 30, by="session", clock=clock)
        runner = Runner([service.tool], inside=[circuit])
        for step in steps:
            were_open = {key for key in "012345" if key in circuit._open and circuit.is_open(key)}
            if step == "advance":
                await clock.advance(10)
                continue
            service.down = step != "mend"
            before, key = service.runs, "5" if step == "mend" else step
            refused = circuit.is_open(key)
            result = await runner.run("ask", None, ToolContext(session=key))
            assert all(map(circuit.is_open, were_open))
            assert (result.status == "limited") == refused == (service.runs == before)
            assert len(circuit._open) + len(circuit._closed) <= 3

    go(main())


@pytest.mark.usefixtures("room_for_three")
async def test_where_as_many_as_it_remembers_are_open_others_are_refused_until_the_first_is_half_open() -> None:
    service = Service()

    clock = ManualClock()
    runner = Runner([service.tool], inside=[breaker(1, 30, by="session", clock=clock)])
    for session in "abc":
        assert (await runner.run("ask", None, ToolContext(session=session))).status == "failed"
        await clock.advance(5)
    refused = await runner.run("ask", None, ToolContext(session="d"))
    assert (refused.status, refused.metadata["retry_after"], service.runs) == ("limited", 15.0, 3)
    await clock.advance(15)
    assert (await runner.run("ask", None, ToolContext(session="d"))).status == "failed"
    assert (await runner.run("ask", None, ToolContext(session="d"))).status == "limited"
    assert (await runner.run("ask", None, ToolContext(session="b"))).status == "limited"


def test_loops_in_two_threads_share_one_breaker() -> None:
    service = Service()
    circuit = breaker(10, 3600)
    found = in_two_threads(lambda: ask(Runner([service.tool], inside=[circuit]), 50))
    assert 10 <= service.runs <= 11 and " ".join(found).count("limited") == 100 - service.runs


@pytest.mark.parametrize(
    "arguments",
    [
        {"failures": 0},
        {"seconds": 0},
        {"seconds": "30"},
        {"probes": 0},
        {"probes": True},
        {"when": 1},
        {"by": "user"},
        {"clock": 1},
    ],
)
def test_wrong_parameters_are_a_mistake_at_once(arguments: Any) -> None:
    make: Callable[..., Any] = breaker
    with pytest.raises(DefinitionError, match=next(iter(arguments))):
        make(**arguments)
