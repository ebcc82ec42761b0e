"""Leaving a runner: it waits, drains and cancels; where that cannot work, an error says what to do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from journals import WatchedJournal, forever

import probe
from ferrule import Decision, Runner, ToolCall, ToolContext, ToolResult, Waits, ask, tool
from ferrule.kernel import tasks
from watched import BOUND, go

LONG = 10 * BOUND
"""For a `drain`: who waits for the whole of it is late."""


async def turns(count: int = 20) -> None:
    """Let all go on that can."""
    for _ in range(count):
        await asyncio.sleep(0)


async def passes() -> None: ...


async def leave(runner: Runner) -> None:
    async with runner:
        pass


class Waiting:
    """A tool whose handler waits until it is released."""

    def __init__(self) -> None:
        self.started, self.release = asyncio.Event(), asyncio.Event()
        self.tool = tool(self.run, name="waits", parallel=True)

    async def run(self) -> str:
        self.started.set()
        await self.release.wait()
        return "through"


class Elsewhere:
    """A handler under way on a loop in another thread."""

    def __init__(self, run: Callable[[Elsewhere], Any], **options: Any) -> None:
        self.started, self.release = threading.Event(), threading.Event()
        self.results: list[Any] = []

        @tool
        def blocks() -> str:
            self.started.set()
            self.release.wait(BOUND)
            return "through"

        self.runner = Runner([blocks], **options)
        self.thread = threading.Thread(target=lambda: self.results.append(run(self)), daemon=True)

    async def __aenter__(self) -> Elsewhere:
        self.thread.start()
        assert await asyncio.to_thread(self.started.wait, BOUND)
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.end()

    async def end(self) -> None:
        """Let the handler end, and the loop that it runs on."""
        self.release.set()
        await asyncio.to_thread(self.thread.join, BOUND)


# -- on another loop ---------------------------------------------------------------------------------------------------


async def test_leaving_while_calls_run_on_another_loop_is_an_error_that_says_what_to_do_and_cancels_nothing() -> None:

    async with Elsewhere(lambda place: place.runner.run_sync("blocks"), waits=Waits(drain=0)) as place:
        with pytest.raises(RuntimeError, match="on another event loop: leave it there, or once they ended"):
            await leave(place.runner)
        assert len(probe.live_calls(place.runner)) == 1
    assert place.results[0].output == "through"


async def test_leaving_where_calls_run_on_another_loop_works_once_they_ended() -> None:

    async with Elsewhere(lambda place: place.runner.run_sync("blocks"), waits=Waits(drain=LONG)) as place:
        await place.end()
        await leave(place.runner)
    assert place.results[0].output == "through" and probe.is_at_rest(place.runner)


async def test_a_runner_may_be_left_where_its_calls_run_after_another_loop_could_not() -> None:
    async def there(place: Elsewhere) -> str:
        async with place.runner:
            return str((await place.runner.run("blocks")).output)

    async with Elsewhere(lambda place: asyncio.run(there(place)), waits=Waits(drain=LONG)) as place:
        with pytest.raises(RuntimeError, match="on another event loop"):
            await leave(place.runner)
    assert place.results == ["through"] and probe.is_at_rest(place.runner)


async def test_leaving_on_another_loop_while_the_journal_writes_on_the_first_is_an_error() -> None:
    written = threading.Event()

    async def write() -> None:
        await asyncio.to_thread(written.wait, BOUND)

    async def there(place: Elsewhere) -> None:
        call = asyncio.ensure_future(place.runner.run("blocks"))
        await asyncio.to_thread(place.started.wait, BOUND)
        call.cancel()
        await asyncio.wait({call})
        assert not probe.live_calls(place.runner)
        with pytest.raises(RuntimeError, match="on another event loop"):
            await asyncio.to_thread(asyncio.run, leave(place.runner))
        written.set()
        await leave(place.runner)

    journal = WatchedJournal(ends=write)
    async with Elsewhere(
        lambda place: asyncio.run(there(place)), waits=Waits(drain=LONG, grace=0), journal=journal
    ) as place:
        await asyncio.to_thread(place.thread.join, BOUND)
    assert place.results == [None]


async def test_a_call_whose_outcome_is_being_written_when_its_runner_is_closed_comes_to_that_outcome() -> None:

    writing, written = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        writing.set()
        await written.wait()

    journal = WatchedJournal(ends=slow)
    async with Runner([tool(passes)], journal=journal, waits=Waits(drain=0)) as runner:
        call = asyncio.ensure_future(runner.run("passes"))
        await writing.wait()
    assert (await call).status == "ok"
    written.set()
    await leave(runner)
    assert journal.log == [("begin", "passes", {}), ("end", "passes", "ok")]


def test_what_a_journal_writes_for_a_loop_that_was_closed_keeps_nobody_from_leaving_on_another() -> None:
    runner = Runner([tool(passes)], journal=WatchedJournal(ends=forever), waits=Waits(drain=LONG))

    async def there() -> None:
        call = asyncio.ensure_future(runner.run("passes"))
        await turns()
        call.cancel()
        await asyncio.wait({call})

    loop = asyncio.new_event_loop()
    loop.run_until_complete(there())
    loop.close()
    go(leave(runner))
    for write in runner._state.writes:
        write._log_destroy_pending = False  # type: ignore[attr-defined]  # as such a loop leaves it


# -- several -----------------------------------------------------------------------------------------------------------


async def test_who_leaves_while_another_leaves_waits_as_well() -> None:

    waits = Waiting()
    runner = Runner([waits.tool], waits=Waits(drain=LONG))
    call = asyncio.ensure_future(runner.run("waits"))
    await waits.started.wait()
    first = asyncio.ensure_future(leave(runner))
    second = asyncio.ensure_future(leave(runner))
    await turns()
    assert not first.done() and not second.done()
    waits.release.set()
    await asyncio.gather(first, second)
    assert (await call).success and probe.is_at_rest(runner)


async def test_after_one_that_gave_up_leaving_the_next_may_leave_and_nothing_was_cancelled() -> None:

    waits = Waiting()
    runner = Runner([waits.tool], waits=Waits(drain=LONG))
    call = asyncio.ensure_future(runner.run("waits"))
    await waits.started.wait()
    for _ in range(2):
        leaving = asyncio.ensure_future(leave(runner))
        await turns()
        leaving.cancel()
        await asyncio.wait({leaving})
        assert leaving.cancelled() and len(probe.live_calls(runner)) == 1
    waits.release.set()
    await leave(runner)
    assert (await call).output == "through" and probe.is_at_rest(runner)


async def test_a_runner_that_was_left_may_be_entered_and_left_again_and_takes_calls_in_between() -> None:

    waits = Waiting()
    waits.release.set()
    runner = Runner([waits.tool], waits=Waits(drain=LONG))
    for _ in range(3):
        async with runner:
            assert (await runner.run("waits")).success
        closed = await runner.run("waits")
        assert (closed.status, closed.executed) == ("cancelled", False)
    assert probe.is_at_rest(runner)


async def test_one_leaves_after_the_other_and_each_cancels_what_outlives_its_drain() -> None:

    runner = Runner([(waits := Waiting()).tool], waits=Waits(drain=0.01))
    for _ in range(2):
        async with runner:
            waits.started.clear()
            call = asyncio.ensure_future(runner.run("waits"))
            await waits.started.wait()
        result = await call
        assert (result.status, result.executed) == ("cancelled", None)
    assert probe.is_at_rest(runner)


# -- from inside -------------------------------------------------------------------------------------------------------

PLACES = ["handler", "generator", "thread", "child", "task", "around", "inside", "approver"]


@pytest.mark.parametrize("timeout", [None, BOUND])
@pytest.mark.parametrize("where", PLACES)
async def test_leaving_from_inside_a_call_is_an_error_that_says_what_to_do(where: str, timeout: float | None) -> None:
    told: list[str] = []

    async def leaves_at(place: str) -> None:
        if place == where:
            with pytest.raises(RuntimeError) as raised:
                await leave(runner)
            told.append(str(raised.value))

    @tool(parallel=True)
    async def handler(context: ToolContext) -> str:
        await leaves_at("handler")
        await asyncio.create_task(leaves_at("task"))
        return str((await context.run("child")).status)

    @tool(parallel=True)
    async def child() -> None:
        await leaves_at("child")

    @tool
    async def generator() -> Any:
        yield "one"
        await leaves_at("generator")

    @tool
    def thread() -> None:
        asyncio.run(leaves_at("thread"))

    async def around(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        await leaves_at("around")
        return await next(call, context)  # type: ignore[no-any-return]

    async def inside(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        await leaves_at("inside")
        return await next(call, context)  # type: ignore[no-any-return]

    def guard(call: ToolCall, context: ToolContext) -> Decision | None:
        return ask("?") if where == "approver" and not told else None

    async def approve(call: ToolCall, decision: Decision, context: ToolContext) -> bool:
        await leaves_at("approver")
        return True

    runner = Runner(
        [handler, child, generator, thread],
        around=[around],
        inside=[inside],
        guards=[guard],
        approve=approve,
        waits=Waits(drain=LONG),
        timeout=timeout,
    )

    assert (await runner.run(where if where in ("generator", "thread") else "handler")).success
    assert told and set(told) == {"a call cannot leave the runner that runs it: leave it where it was entered"}
    assert (await runner.run("handler")).status == "cancelled"  # it takes no new calls all the same
    assert probe.is_at_rest(runner)


async def test_a_guard_that_leaves_the_runner_denies_once_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "ANSWER_SECONDS", 0.05)

    @tool
    async def read() -> None: ...

    async def guard(call: ToolCall, context: ToolContext) -> None:
        await leave(runner)

    runner = Runner([read], guards=[guard], waits=Waits(drain=LONG))
    result = await runner.run("read")
    assert (result.status, result.executed) == ("denied", False) and "in time" in str(result.error)
    assert probe.is_at_rest(runner)


async def test_an_error_of_leaving_from_inside_ends_the_call_and_no_other() -> None:

    waits = Waiting()

    @tool(parallel=True)
    async def stop() -> None:
        await leave(runner)

    runner = Runner([waits.tool, stop], waits=Waits(drain=0.01))
    other = asyncio.ensure_future(runner.run("waits"))
    await waits.started.wait()
    stopped = await runner.run("stop")
    assert (stopped.status, type(stopped.exception)) == ("failed", RuntimeError)
    await asyncio.sleep(0.05)
    waits.release.set()
    assert (await other).output == "through"


async def test_what_a_call_left_behind_may_leave_the_runner_once_the_call_has_ended() -> None:

    ended = asyncio.Event()
    left: list[asyncio.Task[None]] = []

    async def later() -> None:
        await ended.wait()
        await leave(runner)

    @tool
    async def stop() -> None:
        left.append(asyncio.create_task(later()))

    runner = Runner([stop], waits=Waits(drain=LONG))
    assert (await runner.run("stop")).success
    ended.set()
    await left[0]
    assert (await runner.run("stop")).status == "cancelled"


async def test_a_call_of_one_runner_may_leave_another_one() -> None:

    waits = Waiting()
    other = Runner([waits.tool], waits=Waits(drain=LONG))

    @tool
    async def stop() -> str:
        asyncio.get_running_loop().call_soon(waits.release.set)
        await leave(other)
        return "left"

    call = asyncio.ensure_future(other.run("waits"))
    await waits.started.wait()
    assert (await Runner([stop]).run("stop")).output == "left"
    assert call.done() and (await call).success


# -- batches -----------------------------------------------------------------------------------------------------------


class Numbers:
    """A tool that runs alone, lets others go on, and keeps which calls ran."""

    def __init__(self) -> None:
        self.ran: list[int] = []
        self.tool = tool(self.run, name="run")
        self.calls = [ToolCall(str(n), "run", {"n": n}) for n in range(3)]

    async def run(self, n: int) -> int:
        await asyncio.sleep(0)
        self.ran.append(n)
        return n


def in_a_task(runner: Runner, calls: list[ToolCall]) -> Any:
    return asyncio.ensure_future(runner.run_all(calls))


@pytest.mark.parametrize("begin", [Runner.batch, in_a_task])
async def test_leaving_waits_for_the_whole_of_a_batch_that_was_begun(begin: Callable[..., Any]) -> None:
    async def main() -> list[str]:
        numbers = Numbers()
        async with Runner([numbers.tool], waits=Waits(drain=BOUND)) as runner:
            batch = begin(runner, numbers.calls)
            if begin is in_a_task:
                await asyncio.sleep(0)
        assert numbers.ran == [0, 1, 2]
        return [result.status for result in await batch]

    assert (await main()) == ["ok"] * 3


async def test_a_batch_that_begins_when_the_runner_is_left_is_answered_and_never_runs() -> None:
    async def main() -> list[ToolResult]:
        numbers, waits = Numbers(), Waiting()
        runner = Runner([numbers.tool, waits.tool], waits=Waits(drain=LONG))
        running = asyncio.ensure_future(runner.run("waits"))
        await waits.started.wait()
        leaving = asyncio.ensure_future(leave(runner))
        await turns()
        results = await runner.batch(numbers.calls)
        waits.release.set()
        await leaving
        assert (await running).success and numbers.ran == []
        return results

    results = await main()
    assert {result.error for result in results} == {"The runner is closing. Nothing was run."}


async def test_once_its_drain_is_over_what_a_batch_has_not_begun_never_begins_and_every_call_has_its_result() -> None:
    async def main() -> list[ToolResult]:
        numbers, waits = Numbers(), Waiting()
        async with Runner([numbers.tool, waits.tool], waits=Waits(drain=0.02)) as runner:
            batch = runner.batch([ToolCall("w", "waits"), *numbers.calls])
            await waits.started.wait()
        assert numbers.ran == []
        return await batch

    results = await main()
    assert [(result.status, result.executed) for result in results[1:]] == [("cancelled", False)] * 3
    assert (results[0].status, results[0].executed) == ("cancelled", None)


async def test_a_runner_that_is_entered_again_takes_calls_after_it_was_left_at_the_end_of_its_drain() -> None:

    numbers, waits = Numbers(), Waiting()
    async with Runner([numbers.tool, waits.tool], waits=Waits(drain=0.02)) as runner:
        runner.batch([ToolCall("w", "waits")])
        await waits.started.wait()
    async with runner:
        batch = runner.batch(numbers.calls)
    assert numbers.ran == [0, 1, 2] and all(result.success for result in await batch)


async def test_one_who_leaves_is_not_kept_by_another_who_gave_up_leaving() -> None:
    async def main() -> list[Any]:
        waits = Waiting()
        runner = Runner([waits.tool], waits=Waits(drain=None))
        call = asyncio.create_task(runner.run("waits"))
        await waits.started.wait()
        one, two = (asyncio.create_task(runner.__aexit__(None, None, None)) for _ in range(2))
        await turns()
        one.cancel()
        await turns()
        left = two.done()
        waits.release.set()
        await asyncio.wait_for(two, BOUND)
        return [left, (await call).status, one.cancelled()]

    assert (await main()) == [False, "ok", True]
