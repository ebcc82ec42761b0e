"""`breaker` stops calling a tool that keeps failing, and then tries it with care."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from two_threads import in_two_threads

from ferrule import DefinitionError, Runner, ToolCall, ToolContext, ToolResult, Waits, tool
from ferrule.middleware import breaker
from ferrule.middleware._limits import make_limited_result
from ferrule.testing import ManualClock
from watched import BOUND, go


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


async def test_the_breaker_opens_after_several_failures() -> None:
    service = Service()
    clock = ManualClock()
    runner = Runner([service.tool], inside=[breaker(3, 30, clock=clock)])
    assert await ask(runner, 3) == "failed failed failed"
    await clock.advance(10)
    result = await runner.run("ask")
    assert (result.status, result.executed, result.metadata["retry_after"], service.runs) == ("limited", False, 20.0, 3)


async def test_a_success_resets_the_count() -> None:
    service = Service()
    runner = Runner([service.tool], inside=[breaker(3, clock=ManualClock())])
    found = []
    for service.down in (True, True, False, True, True, False, True, True, True, True):
        found.append(await ask(runner))
    assert " ".join(found[-3:]) == "failed failed limited"


async def test_a_probe_closes_or_reopens_the_breaker() -> None:
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
    assert await ask(runner) == "ok"
    service.gate = asyncio.Event()
    batch = asyncio.ensure_future(runner.run_all(calls(3)))
    await clock.advance(0)
    service.gate.set()
    assert statuses(await batch) == "ok ok ok"  # closed, it lets more through than a probe


async def test_a_half_open_breaker_bounds_the_probes() -> None:
    service = Service()
    clock = ManualClock()
    runner = Runner([service.tool], inside=[breaker(1, 30, probes=3, clock=clock)])
    await ask(runner)
    await clock.advance(30)
    service.gate, service.down, service.most = asyncio.Event(), False, 0
    batch = asyncio.ensure_future(runner.run_all(calls(5)))
    await clock.advance(0)
    service.gate.set()
    results = await batch
    assert statuses(results) == "ok ok ok limited limited"
    assert results[-1].metadata["retry_after"] == 1.0
    assert service.most == 3
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
def test_an_open_breaker_never_exceeds_its_probes(failures: int, probes: int, steps: list[tuple[str, Any]]) -> None:
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


async def test_a_deadline_and_a_middleware_that_breaks_are_failures() -> None:
    async def breaks(call: ToolCall, context: ToolContext[Any], next: Any) -> ToolResult:
        raise RuntimeError

    service = Service()
    assert await ask(Runner([service.tool], inside=[breaker(2), breaks]), 3) == "failed failed limited"
    service.gate = asyncio.Event()
    assert await ask(Runner([service.tool], inside=[breaker(2)], timeout=0.2), 3) == "timeout timeout limited"


@pytest.mark.parametrize(
    "answer",
    [make_limited_result("Full."), ToolResult("kept", executed=False)],
)
async def test_results_not_from_the_tool_do_not_count(answer: ToolResult) -> None:
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


@pytest.mark.parametrize("ends", ["in its grace", "when it was abandoned"])
async def test_an_answer_after_the_deadline_is_a_failure(ends: str) -> None:
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

    circuit, clock = breaker(1, clock=ManualClock()), ManualClock()
    runner = Runner([ask], inside=[circuit], waits=Waits(grace=BOUND if ends == "in its grace" else 0), clock=clock)
    call = asyncio.ensure_future(runner.run("ask", timeout=10))
    await clock.advance(0)
    await clock.advance(10)
    assert (await call).status == "timeout"
    done.set()
    while runner.left_running:
        await asyncio.sleep(0)
    assert circuit.is_open("ask")


async def test_when_decides_what_is_a_failure() -> None:
    @tool(read_only=True)
    async def ask(how: str) -> None:
        raise KeyError if how == "missing" else ConnectionError

    def not_missing(result: ToolResult) -> bool:
        return not isinstance(result.exception, LookupError)

    runner = Runner([ask], inside=[breaker(2, when=not_missing)])
    hows = ["missing", "missing", "missing", "down", "down", "down"]
    assert [(await runner.run("ask", {"how": how})).status for how in hows] == ["failed"] * 5 + ["limited"]


async def test_forget_closes_the_breaker_of_one_key() -> None:
    service = Service()
    circuit, healthy = breaker(1), tool(lambda: 1, name="other", read_only=True)
    runner = Runner([service.tool, healthy], inside=[circuit])
    await ask(runner)
    assert circuit.is_open("ask") and (await runner.run("other")).success
    together = Runner([service.tool, healthy], inside=[breaker(1, by="all")])
    await ask(together)
    assert (await together.run("other")).status == "limited"
    circuit.forget("ask")
    service.down = False
    assert not circuit.is_open("ask") and await ask(runner) == "ok"
    assert not circuit._open and not circuit._closed


@pytest.fixture
def room_for_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("ferrule.middleware.breaker"), "_MOST_KEYS", 3)


@pytest.mark.usefixtures("room_for_three")
async def test_the_oldest_failures_are_forgotten_and_never_an_open_breaker() -> None:
    circuit = breaker(2, 30, by="session")
    runner = Runner([Service().tool], inside=[circuit])
    for session in "aabcdebe":  # the first failure of b was forgotten, and not that of e
        await runner.run("ask", session=session)
    assert [circuit.is_open(session) for session in "abe"] == [True, False, True]


@pytest.mark.usefixtures("room_for_three")
async def test_a_full_memory_of_open_breakers_refuses_new_keys() -> None:
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
    [{"failures": 0}, {"seconds": 0}, {"seconds": "30"}, {"probes": True}, {"when": 1}, {"by": "user"}, {"clock": 1}],
)
def test_wrong_parameters_are_refused(arguments: Any) -> None:
    make: Callable[..., Any] = breaker
    with pytest.raises(DefinitionError, match=next(iter(arguments))):
        make(**arguments)
