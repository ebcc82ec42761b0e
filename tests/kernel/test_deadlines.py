"""Deadlines, cancellations, and what happens to a handler that runs on."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import isolated_tools
import pytest
from hypothesis import given
from hypothesis import strategies as st

import probe
from ferrule import InputRequired, Runner, ToolCall, ToolContext, ToolError, ToolResult, Waits, allow, tool
from ferrule.journal import memory
from ferrule.kernel.state import RELIABLE_CANCELLING
from ferrule.testing import ManualClock
from gates import Blocker, Gate
from waits import BOUND, until
from watched import Watch, go, plain

T = TypeVar("T")
SOON = 0.02
LIMIT = 10.0


@tool
async def forever() -> None:
    await asyncio.Event().wait()


async def run_for(seconds: float, clock: ManualClock, call: Awaitable[T]) -> T:
    """Return what a call comes to once the clock has moved on by so many seconds."""
    task = asyncio.ensure_future(call)
    await clock.advance(seconds)
    return await task


async def run_late(called: Any, watch: Watch | None = None, **options: Any) -> ToolResult:
    """Return the result of a call whose handler waits past its deadline."""
    clock = ManualClock()
    runner = Runner([called], timeout=LIMIT, clock=clock, observers=[watch] if watch else [], **options)
    return await run_for(LIMIT, clock, runner.run(called.name))


async def test_the_calls_deadline_goes_before_the_tools_before_the_runners() -> None:
    left: list[float | None] = []

    @tool
    async def look(context: ToolContext) -> None:
        left.append(context.remaining())

    clock = ManualClock()
    bare, timed = Runner([look], clock=clock), Runner([look], timeout=30, clock=clock)
    own = Runner([look.replace(timeout=40)], timeout=30, clock=clock)
    for call in (bare.run("look"), timed.run("look"), own.run("look"), own.run("look", timeout=10)):
        await call
    assert left == [None, 30, 40, 10]


async def test_the_deadline_counts_from_the_slot() -> None:
    clock = ManualClock()

    @tool(concurrency=1)
    async def work() -> None:
        await clock.sleep(6)

    runner = Runner([work], timeout=LIMIT, clock=clock)
    results = await run_for(6 * 8, clock, asyncio.gather(*(runner.run("work") for _ in range(8))))
    assert {result.status for result in results} == {"ok"}


async def test_a_deadline_covers_the_middleware_inside() -> None:
    async def slow(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        await asyncio.Event().wait()
        raise AssertionError

    watch = Watch()
    result = await run_late(forever, watch, inside=[slow])
    assert (result.status, result.executed, watch.ends()) == ("timeout", False, ["tool:error"])
    assert "Nothing was run" in str(result.error)


@pytest.mark.parametrize(("executed", "effect"), [(False, "Nothing was run."), (True, "its effect may have happened")])
async def test_a_stopped_handler_may_report(executed: bool, effect: str) -> None:
    @tool
    async def copy() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ToolError("stopped at block 3 of 7", executed=executed) from None

    result = await run_late(copy)
    assert (result.status, result.executed) == ("timeout", None if executed else False)
    assert "by its deadline of 10 s: stopped at block 3 of 7. " in result.text and effect in result.text


async def test_an_error_after_the_grace_withdraws_nothing_from_the_journal() -> None:
    go_on, starts = asyncio.Event(), list[int]()

    async def look_up(call: ToolCall, context: ToolContext) -> None:
        go_on.set()
        await until(lambda: not runner.left_running)

    @tool(reconcile=look_up)
    async def copy() -> None:
        starts.append(1)
        while not go_on.is_set():
            with suppress(asyncio.CancelledError):
                await go_on.wait()
        raise ToolError("stopped at block 3 of 7", executed=False)

    clock = ManualClock()
    runner = Runner([copy], timeout=LIMIT, waits=Waits(grace=0), clock=clock, journal=memory())
    call = ToolCall("1", "copy", {})
    results = [await run_for(LIMIT, clock, runner.run(call, session="s")) for _ in range(2)]
    assert starts == [1] and [result.executed for result in results] == [None, None]


async def test_an_error_of_a_nested_call_says_nothing_about_the_call_that_made_it() -> None:
    begun = asyncio.Event()

    @tool
    async def inner() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ToolError("stopped at block 3 of 7", executed=False) from None

    @tool
    async def outer() -> None:
        await runner.run("inner")
        await asyncio.Event().wait()  # both deadlines end now, in either order

    runner = Runner([inner, outer], timeout=LIMIT, clock=(clock := ManualClock()))
    call = asyncio.ensure_future(runner.run("outer"))
    await begun.wait()
    await clock.advance(LIMIT)
    result = await call
    assert (result.status, result.executed) == ("timeout", None) and "block" not in result.text


@pytest.mark.parametrize("error", [None, asyncio.CancelledError, SystemExit])
async def test_a_late_call_timed_out_whatever_its_handler_does_then(error: Any) -> None:
    @tool
    async def clever() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if error is not None:
                raise error from None
        return "all is well"

    watch = Watch()
    result = await run_late(clever, watch)
    assert (result.status, result.output, watch.ends()) == ("timeout", None, ["tool:error"])
    assert result.executed in (True, None)


@pytest.mark.parametrize("kind", [Gate, Blocker])
async def test_an_abandoned_handler_keeps_its_slot(kind: Any) -> None:
    late = Gate(stubborn=True) if kind is Gate else Blocker()
    handler = tool(late.wait if kind is Gate else late.block, name="late")
    keyed = handler.replace(concurrency=1, resources=lambda arguments: ["k"])

    @tool
    def quick() -> str:
        return "quick"

    clock, watch = ManualClock(), Watch()
    runner = Runner([keyed, quick], timeout=LIMIT, waits=Waits(grace=1, slot=5), observers=[watch], clock=clock)
    result = await run_for(LIMIT + 1, clock, runner.run("late"))
    assert (result.status, result.executed) == ("timeout", None)
    assert "went on running" in str(result.error)
    assert runner.left_running == 1 and (await runner.run("quick")).output == "quick"
    assert (await run_for(5, clock, runner.run("late"))).status == "limited"
    (late.open if kind is Gate else late.release).set()
    await until(lambda: runner.left_running == 0)
    assert (await runner.run("late")).success
    assert len(watch.ends()) == 4


@pytest.mark.parametrize("timeout", [None, BOUND])
async def test_a_cancellation_from_outside_still_cancels(timeout: float | None) -> None:
    watch = Watch()
    runner = Runner([forever], observers=[watch], timeout=timeout)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(SOON):
            await runner.run("forever")
    with pytest.raises(ExceptionGroup):
        await _beside_one_that_fails(runner)
    task = asyncio.create_task(runner.run("forever"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert watch.ends() == ["tool:error"] * 3
    assert {event.data["result"].status for event in watch.events if event.kind == "tool:error"} == {"cancelled"}
    assert probe.slots_taken(runner) == 0


async def _beside_one_that_fails(runner: Runner) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(runner.run("forever"))
        group.create_task(_soon_raises())


async def _soon_raises() -> None:
    await asyncio.sleep(SOON)
    raise ValueError


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("goes_on", [True, False])
async def test_only_a_call_that_may_change_something_speaks_of_its_effect(read_only: bool, goes_on: bool) -> None:
    gate = Gate(stubborn=goes_on, read_only=read_only)
    batch = Runner([gate.tool], timeout=BOUND, waits=Waits(grace=0)).batch([ToolCall("c1", "wait")])
    await gate.inside.wait()
    open_call = batch.results[0]
    batch.cancel(now=True)
    (result,) = await batch
    gate.open.set()
    assert result.status == "cancelled" and result.executed is None
    assert ("went on running" in plain(result)) is goes_on
    for text in (open_call.error or "", plain(result)):
        assert ("effect" in text, "changes nothing" in text) == (not read_only, read_only)


@pytest.mark.parametrize("timeout", [None, BOUND])
@pytest.mark.parametrize(("error", "status"), [(ValueError, "failed"), (None, "ok")])
async def test_run_raises_what_the_handler_made_of_a_cancellation(error: Any, status: str, timeout: Any) -> None:
    gate, watch = Gate(), Watch()

    @tool
    async def act() -> None:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            if error is not None:
                raise error("while tidying") from None

    task = asyncio.create_task(Runner([act], observers=[watch], timeout=timeout).run("act"))
    await gate.inside.wait()
    task.cancel()
    if timeout is None and not RELIABLE_CANCELLING:  # there a handler may swallow a cancellation
        assert (await task).status == status
    else:
        with pytest.raises(error or asyncio.CancelledError):
            await task
    assert len(watch.ends()) == 1


async def test_a_handler_sees_the_callers_context_variables() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")

    def change() -> list[Any]:
        seen = [variable.get(), threading.current_thread() is threading.main_thread()]
        variable.set("changed")
        return seen

    async def change_here() -> list[Any]:
        return change()

    ways = ((change, None, "caller's"), (change_here, BOUND, "caller's"), (change_here, None, "changed"))
    for handler, timeout, after in ways:
        variable.set("caller's")
        result = await Runner([tool(handler)], timeout=timeout).run(handler.__name__)
        assert result.output == ["caller's", handler is change_here] and variable.get() == after


@pytest.fixture
def no_more_threads() -> Iterator[None]:
    """No thread is there, and none can be started: no machine has room for such a stack."""
    with probe.no_idle_threads():
        before = threading.stack_size(2**62)
        yield
        threading.stack_size(before)


async def test_nothing_runs_when_no_thread_can_be_started(no_more_threads: None) -> None:
    ran: list[int] = []
    runner = Runner([tool(lambda: ran.append(1), name="work")])
    refused = await runner.run("work")
    assert (refused.status, refused.executed, ran) == ("limited", False, [])
    assert "no thread can be started" in str(refused.error) and "Nothing was run" in str(refused.error)
    threading.stack_size(0)
    assert (await runner.run("work", timeout=BOUND)).success
    assert ran == [1] and probe.is_at_rest(runner)


@pytest.mark.parametrize("cancelled_by", ["its caller", "its runner"])
async def test_a_late_call_hides_no_cancellation_from_the_call_above_it(cancelled_by: str) -> None:
    clock, ended, went_on = ManualClock(), asyncio.Event(), []

    @tool(timeout=LIMIT, parallel=True)
    async def inner() -> None:
        with suppress(asyncio.CancelledError):
            await ended.wait()
        await ended.wait()

    @tool(parallel=True)
    async def outer(context: ToolContext) -> None:
        went_on.append(await context.run("inner"))

    async with Runner([outer, inner], clock=clock, waits=Waits(drain=0)) as runner:
        calls = [asyncio.create_task(runner.run(name)) for name in ("outer", "inner")]
        await clock.advance(LIMIT)  # both inner calls have their grace
        if cancelled_by == "its caller":
            calls[0].cancel()
    above, late = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(above, asyncio.CancelledError) or above.status == "cancelled"
    assert not isinstance(late, BaseException) and late.status == "timeout"
    assert not went_on
    ended.set()


IDLE, CEILING = 9.5, 39.5  # no sum of whole seconds is either of them


STEPS = st.lists(st.tuples(st.sampled_from(["silence", "progress", "question"]), st.integers(1, 15)), max_size=8)


def expected_end(steps: list[tuple[str, int]]) -> tuple[str, float]:
    """How and when a call ends that reports progress, or is answered, at the end of each of these steps."""
    now = idle = counted = 0.0
    for kind, seconds in steps:
        if kind == "question":  # neither limit counts
            now += seconds
            continue
        left = min(IDLE - idle, CEILING - counted)
        if seconds >= left:
            return "idle" if IDLE - idle < CEILING - counted else "ceiling", now + left
        now, counted, idle = now + seconds, counted + seconds, idle + seconds
        if kind == "progress":
            idle = 0
    return "ok", now


@given(STEPS)
def test_silence_ends_a_call_and_progress_extends_it(steps: list[tuple[str, int]]) -> None:
    async def main() -> None:
        clock = ManualClock()

        async def answer(call: ToolCall, decision: Any, context: ToolContext) -> Any:
            await clock.sleep(steps[int(decision.reason)][1])
            return allow({})

        @tool
        async def works(context: ToolContext) -> None:
            for number, (kind, seconds) in enumerate(steps):
                if kind == "question":
                    await context.ask(InputRequired(str(number), {"type": "object", "properties": {}}))
                    continue
                await clock.sleep(seconds)
                if kind == "progress":
                    context.progress(number)

        runner = Runner([works], timeout=CEILING, idle_timeout=IDLE, approve=answer, clock=clock)
        call = asyncio.ensure_future(runner.run("works"))
        how, when = expected_end(steps)
        await clock.advance(max(when - 0.25, 0))
        assert call.done() == (when == 0)
        await clock.advance(0.25)
        result = await call
        assert result.status == ("ok" if how == "ok" else "timeout")
        assert ("idle limit" in str(result.error), f"{CEILING} s" in str(result.error)) == (
            how == "idle",
            how == "ceiling",
        )

    go(main())


async def test_every_kind_of_report_is_progress() -> None:
    clock = ManualClock()

    @tool
    async def in_chunks(context: ToolContext, seconds: int = 8) -> AsyncIterator[str]:
        for _ in range(3):
            await clock.sleep(seconds)
            yield "."

    @tool
    async def from_a_thread(context: ToolContext) -> None:
        for number in range(3):
            await clock.sleep(8)
            thread = threading.Thread(target=context.progress, args=(number,))
            thread.start()
            thread.join()

    @tool
    async def child(context: ToolContext) -> None:
        await context.run("in_chunks")

    @tool
    async def by_a_grandchild(context: ToolContext) -> None:
        await context.run("child")

    @tool
    async def by_a_silent_child(context: ToolContext) -> None:
        await context.run("in_chunks", {"seconds": 12})

    reporting = [in_chunks, from_a_thread, by_a_grandchild]
    limited = [one.replace(name=f"{one.name}_", idle_timeout=IDLE) for one in (*reporting, by_a_silent_child)]
    runner = Runner([*limited, in_chunks, child], clock=clock)
    for one in limited[:-1]:
        call = asyncio.ensure_future(runner.run(one.name))
        await clock.advance(23)
        assert not call.done(), one.name
        await clock.advance(1)
        assert (await asyncio.wait_for(call, BOUND)).success, one.name
    assert (await run_for(12, clock, runner.run("by_a_silent_child_"))).status == "timeout"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names, and processes")
async def test_progress_of_an_isolated_handler_extends_its_idle_limit(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    os.mkfifo(path)

    clock, watch = ManualClock(), Watch()
    isolated = tool(isolated_tools.reports_each_line, isolation="process", idle_timeout=IDLE)
    async with Runner([isolated], observers=[watch], clock=clock) as runner:
        call = asyncio.ensure_future(runner.run("reports_each_line", {"path": str(path)}))
        pipe = await asyncio.to_thread(open, path, "w", 1)  # the handler has begun once this is open
        with pipe:
            for number in range(1, 4):
                await clock.advance(IDLE - 1)
                pipe.write("more\n")
                await until(lambda number=number: watch.kinds().count("tool:progress") == number)
            await clock.advance(IDLE - 1)
            assert not call.done()
            await clock.advance(1)
            await until(call.done)
    assert (await call).status == "timeout" and "idle limit" in str((await call).error)
