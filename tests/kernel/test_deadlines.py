"""Deadlines: they are kept, whatever a handler makes of them, and what still runs is said and counted."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import isolated_tools
import pytest
from hypothesis import given
from hypothesis import strategies as st

import probe
from ferrule import Clock, InputRequired, Runner, ToolCall, ToolContext, ToolResult, Waits, allow, tool
from ferrule.executors import threads as pool
from ferrule.kernel.state import RELIABLE_CANCELLING
from ferrule.middleware import breaker
from ferrule.scheduling.limiter import Limiter
from ferrule.testing import ManualClock
from waits import until
from watched import BOUND, Watch, go, plain, run

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


def run_late(called: Any, watch: Watch | None = None, **options: Any) -> ToolResult:
    """Return what a call comes to whose handler waits past its deadline."""
    clock = ManualClock()
    runner = Runner([called], timeout=LIMIT, clock=clock, observers=[watch] if watch else [], **options)
    return go(run_for(LIMIT, clock, runner.run(called.name)))


# -- which deadline --------------------------------------------------------------------------------------------------


async def test_the_calls_deadline_goes_before_the_tools_before_the_runners() -> None:
    left: list[float | None] = []

    @tool
    async def look(context: ToolContext) -> None:
        left.append(context.remaining())

    timed = look.replace(timeout=20)

    async def main() -> None:
        await Runner([look]).run("look")
        await Runner([look], timeout=30).run("look")
        await Runner([timed], timeout=30).run("look")
        await Runner([timed], timeout=30).run("look", timeout=10)
        await Runner([look.replace(timeout=40)], timeout=30).run("look")

    await main()
    assert left[0] is None
    for seconds, most in zip(left[1:], (30, 20, 10, 40), strict=True):
        assert seconds is not None and most - 5 < seconds <= most


@pytest.mark.parametrize("where", ["call", "tool", "runner"])
async def test_a_deadline_ends_the_call_and_says_so(where: str) -> None:

    clock, watch = ManualClock(), Watch()
    runner = Runner(
        [forever.replace(timeout=LIMIT) if where == "tool" else forever],
        timeout=LIMIT if where == "runner" else None,
        observers=[watch],
        clock=clock,
    )
    result = await run_for(LIMIT, clock, runner.run("forever", timeout=LIMIT if where == "call" else None))
    assert (result.status, result.executed) == ("timeout", None)
    assert f"{LIMIT:g} s" in str(result.error)
    assert watch.kinds() == ["tool:pre", "tool:error"]
    assert runner.left_running == 0


async def test_the_deadline_counts_from_the_slot() -> None:

    clock = ManualClock()

    @tool(concurrency=1)
    async def work() -> None:
        await clock.sleep(6)

    runner = Runner([work], timeout=LIMIT, clock=clock)
    results = await run_for(6 * 8, clock, asyncio.gather(*(runner.run("work") for _ in range(8))))
    assert {result.status for result in results} == {"ok"}


async def test_a_handler_begins_however_late_it_is() -> None:
    class Racing(Clock):
        """Each look at it is a minute later."""

        def __init__(self) -> None:
            self._looks = count(step=60)

        def time(self) -> float:
            return next(self._looks)

        def call_at(self, when: float, callback: Callable[..., object], /, *arguments: Any) -> asyncio.Handle:
            return asyncio.get_running_loop().call_soon(callback, *arguments)

    result = await Runner([forever], timeout=LIMIT, clock=Racing()).run("forever")
    assert (result.status, result.executed) == ("timeout", None)


def test_a_deadline_covers_the_middleware_inside() -> None:
    async def slow(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        await asyncio.Event().wait()
        raise AssertionError

    watch = Watch()
    result = run_late(forever, watch, inside=[slow])
    assert (result.status, result.executed, watch.ends()) == ("timeout", False, ["tool:error"])
    assert "Nothing was run" in str(result.error)


# -- what handlers make of it ----------------------------------------------------------------------------------------


def test_a_handler_has_grace_to_clean_up() -> None:
    done: list[str] = []

    @tool
    async def tidy() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            done.append("tidied")

    result = run_late(tidy)
    assert result.status == "timeout" and done == ["tidied"]


@pytest.mark.parametrize("ends", ["returns", "own timeout", "error", "exit", "cancelled"])
def test_nothing_that_a_handler_makes_of_the_cancellation_fools_anybody(ends: str) -> None:
    @tool
    async def clever() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if ends == "returns":
                return "all is well"
            if ends == "cancelled":
                raise
            raise {"own timeout": TimeoutError, "error": ValueError, "exit": SystemExit}[ends] from None
        raise AssertionError

    watch = Watch()
    result = run_late(clever, watch)
    assert (result.status, result.output, watch.ends()) == ("timeout", None, ["tool:error"])
    assert result.executed in (True, None)


def test_a_timeout_error_of_its_own_is_a_failure_and_no_deadline() -> None:
    @tool
    async def raises() -> None:
        raise TimeoutError("the server did not answer")

    for timeout in (None, BOUND):
        result, _ = run(raises, "raises", timeout=timeout)
        assert result.status == "failed" and "the server did not answer" in str(result.error)


async def test_a_handler_that_does_not_end_is_abandoned_reported_and_counted_and_keeps_its_slot_and_keys() -> None:

    release = asyncio.Event()

    @tool(concurrency=1, resources=lambda arguments: ["k"])
    async def stubborn(wait: bool = True) -> None:
        while wait and not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    clock, watch = ManualClock(), Watch()
    runner = Runner([stubborn], timeout=LIMIT, waits=Waits(grace=1, slot=5), observers=[watch], clock=clock)
    result = await run_for(LIMIT + 1, clock, runner.run("stubborn"))
    assert (result.status, result.executed) == ("timeout", None)
    assert "still running" in str(result.error)
    assert runner.left_running == 1
    assert (await run_for(5, clock, runner.run("stubborn", {"wait": False}))).status == "limited"
    release.set()
    await until(lambda: runner.left_running == 0)
    assert (await runner.run("stubborn", {"wait": False})).success
    assert len(watch.ends()) == 3


def test_a_handler_may_use_its_own_timeouts_and_task_groups() -> None:
    @tool
    async def careful() -> str:
        try:
            async with asyncio.timeout(0.005):
                await asyncio.Event().wait()
        except TimeoutError:
            pass
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.Event().wait())
                group.create_task(_raises())
        except ExceptionGroup:
            return "careful"
        return "?"

    @tool
    async def hasty() -> None:
        async with asyncio.timeout(0.005):
            await asyncio.Event().wait()

    async def _raises() -> None:
        raise ValueError

    for timeout in (None, BOUND):
        assert run(careful, "careful", timeout=timeout)[0].output == "careful"
        assert run(hasty, "hasty", timeout=timeout)[0].status == "failed"


def test_a_task_group_that_fails_is_the_handlers_own_failure() -> None:
    @tool
    async def fans_out() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.Event().wait())
            group.create_task(_soon_raises())

    for timeout in (None, BOUND):
        result, watch = run(fans_out, "fans_out", timeout=timeout)
        assert (result.status, watch.ends()) == ("failed", ["tool:error"])


# -- cancellation from outside ---------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("goes_on", [True, False])
async def test_only_a_call_that_may_change_something_speaks_of_its_effect(read_only: bool, goes_on: bool) -> None:
    async def main() -> tuple[ToolResult, ToolResult]:
        begun, free = asyncio.Event(), asyncio.Event()

        @tool(read_only=read_only)
        async def look() -> None:
            begun.set()
            while goes_on and not free.is_set():
                with suppress(asyncio.CancelledError):
                    await free.wait()
            await free.wait()

        runner = Runner([look], timeout=BOUND, waits=Waits(grace=0))
        batch = runner.batch([ToolCall("c1", "look", "{}")])
        going = asyncio.ensure_future(batch)  # type: ignore[arg-type]
        await begun.wait()
        open_call = batch.results[0]
        batch.cancel(now=True)
        (result,) = await going
        free.set()
        return open_call, result

    open_call, result = await main()
    assert result.status == "cancelled" and result.executed is None
    assert ("still running" in plain(result)) is goes_on
    for text in (open_call.error or "", plain(result)):
        assert ("effect" in text, "changes nothing" in text) == (not read_only, read_only)


async def _beside_one_that_fails(runner: Runner) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(runner.run("forever"))
        group.create_task(_soon_raises())


async def _soon_raises() -> None:
    await asyncio.sleep(SOON)
    raise ValueError


@pytest.mark.parametrize("timeout", [None, BOUND])
async def test_run_raises_what_the_handler_made_of_a_cancellation(timeout: float | None) -> None:

    started = asyncio.Event()

    @tool
    async def breaks() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("while tidying") from None

    @tool
    async def swallows() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "swallowed"
        raise AssertionError

    watch = Watch()
    runner = Runner([breaks, swallows], observers=[watch], timeout=timeout)
    for name, error in (("breaks", ValueError), ("swallows", asyncio.CancelledError)):
        started.clear()
        task = asyncio.create_task(runner.run(name))
        await started.wait()
        task.cancel()
        if timeout is None and not RELIABLE_CANCELLING:  # there what it makes of it is its own
            assert (await task).status == {"breaks": "failed", "swallows": "ok"}[name]
            continue
        with pytest.raises(error):
            await task
    assert len(watch.ends()) == 2


async def test_a_call_that_is_cancelled_while_it_waits_was_not_executed() -> None:

    watch = Watch()
    runner = Runner([forever], observers=[watch], concurrency=1)
    first, second = (asyncio.create_task(runner.run(ToolCall(id, "forever"))) for id in "ab")
    await asyncio.sleep(0.01)
    second.cancel()
    await asyncio.wait([second])
    end = watch.events[-1]
    assert (end.call.id, end.data["result"].status, end.data["result"].executed) == ("b", "cancelled", False)
    first.cancel()
    await asyncio.wait([first])
    assert watch.events[-1].data["result"].executed is None


# -- threads ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> Any:
    """So many blocking handlers may run at once."""
    return lambda count: monkeypatch.setattr(pool.ThreadExecutor, "limiter", Limiter(count))


async def test_a_blocking_handler_sees_the_callers_context_variables() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="default")

    @tool
    def look() -> list[Any]:
        seen = [variable.get(), threading.current_thread() is threading.main_thread()]
        variable.set("changed in the thread")
        return seen

    variable.set("caller's")
    for timeout in (None, BOUND):
        assert (await Runner([look], timeout=timeout).run("look")).output == ["caller's", False]
    assert variable.get() == "caller's"


async def test_a_blocking_handler_that_outlives_its_deadline_is_reported_counted_and_keeps_its_slots(
    slots: Any,
) -> None:
    slots(2)
    release = threading.Event()

    @tool(concurrency=1)
    def blocks() -> None:
        release.wait(BOUND)

    @tool
    def quick() -> str:
        return "quick"

    clock, watch = ManualClock(), Watch()
    runner = Runner([blocks, quick], timeout=LIMIT, waits=Waits(slot=5), observers=[watch], clock=clock)
    result = await run_for(LIMIT, clock, runner.run("blocks"))
    assert (result.status, result.executed) == ("timeout", None)
    assert "still running" in str(result.error)
    assert runner.left_running == 1
    assert (await runner.run("quick")).output == "quick"
    assert (await run_for(5, clock, runner.run("blocks"))).status == "limited"  # it keeps its slot
    release.set()
    await until(lambda: runner.left_running == 0)
    assert (await runner.run("blocks")).success
    assert len(watch.ends()) == 4


async def test_so_many_abandoned_threads_and_no_more(slots: Any) -> None:
    slots(1)
    release = threading.Event()

    @tool
    def blocks() -> None:
        release.wait(BOUND)

    clock = ManualClock()
    runner = Runner([blocks], timeout=LIMIT, waits=Waits(slot=5), clock=clock)
    assert (await run_for(LIMIT, clock, runner.run("blocks"))).status == "timeout"
    refused = await run_for(5, clock, runner.run("blocks"))
    assert (refused.status, refused.executed) == ("limited", False)
    release.set()
    await until(lambda: runner.left_running == 0)
    assert (await runner.run("blocks")).success


async def test_a_call_that_waits_for_a_thread_waits_for_a_slot(slots: Any) -> None:
    slots(1)
    started, release = threading.Event(), threading.Event()
    ran: list[str] = []

    @tool
    def blocks() -> None:
        started.set()
        release.wait(BOUND)

    @tool
    def work() -> None:
        ran.append("work")

    clock = ManualClock()
    runner = Runner([blocks, work], waits=Waits(slot=5), clock=clock)
    first = asyncio.create_task(runner.run("blocks"))
    await until(started.is_set)
    result = await run_for(5, clock, runner.run("work", timeout=LIMIT))
    assert (result.status, result.executed) == ("limited", False)
    assert "Nothing was run" in str(result.error)
    release.set()
    assert (await first).success
    assert (await runner.run("work")).success
    assert ran == ["work"] and runner.left_running == 0


async def test_a_blocking_handler_that_calls_blocking_tools_does_not_wait_for_its_own_thread(slots: Any) -> None:
    slots(1)

    @tool
    def leaf() -> str:
        return "leaf"

    @tool
    async def between(context: ToolContext) -> Any:
        return [(await context.run("leaf")).output, await leaf()]

    @tool
    def root(context: ToolContext) -> Any:
        running = asyncio.run_coroutine_threadsafe(ended(context), loops[0])
        return running.result(BOUND)

    async def ended(context: ToolContext) -> Any:
        return (await context.run("between")).output

    loops: list[asyncio.AbstractEventLoop] = []

    loops.append(asyncio.get_running_loop())
    assert (await Runner([leaf, between, root]).run("root")).output == ["leaf", "leaf"]


async def test_as_many_functions_run_at_once_as_begin() -> None:
    """Again and again, because a thread that is just coming to its end must not be counted as free."""

    for _ in range(200):
        barrier = threading.Barrier(8)
        jobs = [pool.start_job(lambda barrier=barrier: barrier.wait(BOUND / 2)) for _ in range(8)]
        results = await asyncio.gather(*(job.future for job in jobs))
        assert not any(isinstance(result, pool.Raised) for result in results)


@pytest.fixture
def no_more_threads() -> Iterator[None]:
    """No thread is there, and none can be started: no machine has room for such a stack."""
    with probe.no_idle_threads():
        before = threading.stack_size(2**62)
        yield
        threading.stack_size(before)


async def test_where_no_thread_can_be_started_nothing_runs_then_or_later(no_more_threads: None) -> None:
    ran = []

    @tool
    def work(n: int) -> int:
        ran.append(n)
        return n

    runner = Runner([work])
    for n in range(3):
        refused = await runner.run("work", {"n": n})
        assert (refused.status, refused.executed) == ("limited", False)
        assert "no thread can be started" in str(refused.error) and "Nothing was run" in str(refused.error)
    threading.stack_size(0)
    assert (await runner.run("work", {"n": 9}, timeout=BOUND)).output == 9
    assert ran == [9] and probe.is_at_rest(runner)


async def test_a_blocking_handler_that_is_cancelled_from_outside_keeps_its_slot_until_it_ends() -> None:
    started, release = threading.Event(), threading.Event()

    @tool(concurrency=1)
    def blocks() -> None:
        started.set()
        release.wait(BOUND)

    runner = Runner([blocks], waits=Waits(slot=0.02))
    task = asyncio.create_task(runner.run("blocks"))
    await until(started.is_set)
    task.cancel()
    await asyncio.wait([task], timeout=BOUND / 2)
    assert task.cancelled() and runner.left_running == 1
    assert (await runner.run("blocks")).status == "limited"
    release.set()
    await until(lambda: runner.left_running == 0)
    assert (await runner.run("blocks")).success


# -- attempts after a deadline -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", [[], [lambda call, context, next: next(call, context)]], ids=["bare", "inside"])
@pytest.mark.parametrize("ends", ["returns", "raises"])
def test_an_attempt_after_one_that_timed_out_is_not_taken_for_cancelled(inside: list[Any], ends: str) -> None:
    runs: list[bool] = []

    @tool
    async def work(context: ToolContext) -> str:
        runs.append(context.cancelled)
        if len(runs) == 1:
            await asyncio.Event().wait()
        if ends == "raises":
            raise ValueError("of the second")
        return "second"

    async def again(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        first = await next(call, context)
        assert first.status == "timeout"
        return await next(call, context)  # type: ignore[no-any-return]

    result = run_late(work, around=[again], inside=inside)
    assert runs == [False, False]
    assert result.output == "second" if ends == "returns" else "of the second" in str(result.error)


async def test_an_attempt_that_was_given_up_does_not_wake_the_next_one_before_its_deadline() -> None:

    clock, runs = ManualClock(), []

    @tool
    async def work() -> str:
        runs.append(1)
        if len(runs) > 1:
            await clock.sleep(6)
            return "second"
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await clock.sleep(3)
        return "first"

    async def again(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        await next(call, context)
        return await next(call, context)  # type: ignore[no-any-return]

    runner = Runner([work], timeout=LIMIT, waits=Waits(grace=1), around=[again], clock=clock)
    assert (await run_for(LIMIT + 1 + 6, clock, runner.run("work"))).output == "second"


@pytest.mark.parametrize("where", ["around", "inside"])
@pytest.mark.parametrize("limit", ["timeout", "wait_for"])
@pytest.mark.parametrize("timeout", [None, BOUND])
def test_a_middlewares_own_time_limit_round_the_call_is_kept(where: str, limit: str, timeout: float | None) -> None:
    async def limits(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        try:
            if limit == "wait_for":
                return await asyncio.wait_for(next(call, context), SOON)
            async with asyncio.timeout(SOON):
                return await next(call, context)  # type: ignore[no-any-return]
        except TimeoutError:
            return ToolResult("instead")

    options: dict[str, Any] = {where: [limits]}
    result, _ = run(forever, "forever", timeout=timeout, **options)
    assert result.output == "instead"


async def test_next_cannot_be_called_after_its_call_has_ended() -> None:
    told: list[str] = []
    ran: list[int] = []

    @tool
    async def work() -> None:
        ran.append(1)

    async def later(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        async def refresh() -> None:
            await asyncio.sleep(0.01)
            try:
                await next(call, context)
            except Exception as error:
                told.append(str(error))

        tasks.append(asyncio.ensure_future(refresh()))
        return ToolResult("stale")

    tasks: list[Any] = []

    async def main() -> None:
        assert (await Runner([work], inside=[later]).run("work")).output == "stale"
        await asyncio.gather(*tasks)

    await main()
    assert ran == [] and told == ["a middleware inside called `next` after its result"]


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


# -- the idle limit ---------------------------------------------------------------------------------------------------

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
def test_silence_ends_a_call_and_progress_extends_it_up_to_its_deadline(steps: list[tuple[str, int]]) -> None:
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


async def advance_in_steps(clock: ManualClock, call: asyncio.Future[ToolResult]) -> float:
    """Move the clock on until the call has ended; return when that was."""
    while not call.done():
        await clock.advance(1)
    return clock.time()


async def test_whatever_a_call_reports_is_progress() -> None:
    clock = ManualClock()

    @tool(idle_timeout=IDLE)
    async def in_chunks(context: ToolContext) -> AsyncIterator[str]:
        for _ in range(3):
            await clock.sleep(8)
            yield "."

    @tool(idle_timeout=IDLE)
    async def from_a_thread(context: ToolContext) -> None:
        for number in range(3):
            await clock.sleep(8)
            thread = threading.Thread(target=context.progress, args=(number,))
            thread.start()
            thread.join()

    @tool
    async def child(seconds: int, context: ToolContext) -> None:
        for number in range(3):
            await clock.sleep(seconds)
            context.progress(number)

    @tool(idle_timeout=IDLE)
    async def by_a_child(context: ToolContext) -> None:
        await context.run("child", {"seconds": 8})

    @tool
    async def between(context: ToolContext) -> None:
        await context.run("child", {"seconds": 8})

    @tool(idle_timeout=IDLE)
    async def by_a_grandchild(context: ToolContext) -> None:
        await context.run("between")

    @tool
    async def waits(context: ToolContext) -> None:
        await clock.sleep(8)

    @tool(idle_timeout=IDLE)
    async def by_one_child_after_another(context: ToolContext) -> None:
        for _ in range(3):
            await context.run("waits")

    @tool(idle_timeout=IDLE)
    async def by_a_silent_child(context: ToolContext) -> None:
        await context.run("child", {"seconds": 12})

    reporting = [in_chunks, from_a_thread, by_a_child, by_a_grandchild, by_one_child_after_another]

    runner = Runner([*reporting, by_a_silent_child, child, between, waits], clock=clock)
    for one in reporting:
        result = asyncio.ensure_future(runner.run(one.name))
        begun = clock.time()
        assert await advance_in_steps(clock, result) - begun == 24 and (await result).success, one.name
    result = asyncio.ensure_future(runner.run("by_a_silent_child"))
    await advance_in_steps(clock, result)
    assert (await result).status == "timeout"


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


async def test_a_tools_idle_limit_goes_before_the_runners_and_is_not_what_remains() -> None:
    left: list[float | None] = []

    @tool
    async def look(context: ToolContext) -> None:
        left.append(context.remaining())
        await asyncio.Event().wait()

    clock = ManualClock()
    runner = Runner([look, look.replace(name="patient", idle_timeout=20)], idle_timeout=IDLE, clock=clock)
    for name, seconds in (("look", IDLE), ("patient", 20)):
        call = asyncio.ensure_future(runner.run(name))
        await clock.advance(seconds - 1)
        assert not call.done()
        await clock.advance(1)
        assert f"no progress for {seconds} s" in str((await call).error)
    timed = asyncio.ensure_future(runner.run("look", timeout=5))
    await clock.advance(5)
    assert "deadline of 5 s" in str((await timed).error) and left == [None, None, 5]


async def test_a_breaker_counts_a_silent_call_as_failed() -> None:

    clock = ManualClock()
    runner = Runner([forever], idle_timeout=IDLE, inside=[breaker(1, seconds=60)], clock=clock)
    call = asyncio.ensure_future(runner.run("forever"))
    await clock.advance(IDLE)
    assert (await call).status == "timeout"
    assert (await runner.run("forever")).status == "limited"
