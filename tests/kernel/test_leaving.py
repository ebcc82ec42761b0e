"""Leaving a runner: from several places at once, from another loop than its calls run on, and from its own calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from watched import BOUND, go

from ferrule import Runner, ToolCall, ToolContext, ToolResult, tool

LONG = 10 * BOUND
"""For a `drain`: who waits for the whole of it is late."""


async def turns(count: int = 20) -> None:
    """Let all go on that can."""
    for _ in range(count):
        await asyncio.sleep(0)


async def leave(runner: Runner) -> None:
    async with runner:
        pass


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

        @tool
        async def waits() -> str:
            self.started.set()
            await asyncio.Event().wait()
            return "through"

        @tool
        async def blocks_its_loop() -> str:
            return blocks.handler()  # type: ignore[no-any-return]

        self.runner = Runner([blocks, waits, blocks_its_loop], **options)
        self.thread = threading.Thread(target=lambda: self.results.append(run(self)), daemon=True)

    async def __aenter__(self) -> Elsewhere:
        self.thread.start()
        assert await asyncio.to_thread(self.started.wait, BOUND)
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.release.set()
        await asyncio.to_thread(self.thread.join, BOUND)


# -- on another loop ---------------------------------------------------------------------------------------------------


def test_leaving_waits_for_a_call_on_another_loop() -> None:
    async def main() -> None:
        async with Elsewhere(lambda place: place.runner.run_sync("blocks"), drain=LONG) as place:
            leaving = asyncio.ensure_future(leave(place.runner))
            await turns()
            assert not leaving.done()
            place.release.set()
            await leaving
            assert not place.runner._live
        assert place.results[0].output == "through"

    go(main())


def test_leaving_cancels_what_outlives_the_drain_on_another_loop() -> None:
    async def main() -> None:
        async with Elsewhere(lambda place: place.runner.run_sync("waits"), drain=0.01) as place:
            await leave(place.runner)
            assert not place.runner._live
        assert (place.results[0].status, place.results[0].executed) == ("cancelled", None)

    go(main())


def test_leaving_does_not_wait_for_another_loop_that_is_blocked() -> None:
    async def main() -> None:
        async with Elsewhere(lambda place: place.runner.run_sync("blocks_its_loop"), drain=0.01, grace=0.01) as place:
            await leave(place.runner)
            assert not place.results
        assert place.results[0].output == "through"

    go(main())


def test_leaving_outlives_the_other_loop() -> None:
    async def run(place: Elsewhere) -> None:
        going = asyncio.ensure_future(place.runner.run("waits"))
        await asyncio.to_thread(place.release.wait, BOUND)
        assert not going.done()

    async def main() -> None:
        async with Elsewhere(lambda place: asyncio.run(run(place)), drain=LONG) as place:
            leaving = asyncio.ensure_future(leave(place.runner))
            await turns()
            assert not leaving.done()
            place.release.set()  # the loop ends, and cancels all that is on it
            await leaving

    go(main())


def test_who_gives_up_leaving_cancels_nothing_on_another_loop() -> None:
    async def main() -> None:
        async with Elsewhere(lambda place: place.runner.run_sync("blocks"), drain=LONG) as place:
            leaving = asyncio.ensure_future(leave(place.runner))
            await turns()
            leaving.cancel()
            await asyncio.wait([leaving])
            assert leaving.cancelled() and len(place.runner._live) == 1
        assert place.results[0].output == "through"
        assert place.runner._idle is None

    go(main())


def test_leaving_does_not_wait_for_a_loop_that_does_not_run() -> None:
    started = asyncio.Event()

    @tool
    async def waits() -> None:
        started.set()
        await asyncio.Event().wait()

    runner = Runner([waits], drain=LONG)
    loop = asyncio.new_event_loop()
    call = loop.create_task(runner.run("waits"))
    loop.run_until_complete(started.wait())
    go(leave(runner))
    assert not call.done()
    call.cancel()
    loop.run_until_complete(asyncio.wait([call]))
    loop.close()


# -- several at once ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 5])
def test_all_that_leave_at_once_have_left_when_the_last_call_ends(count: int) -> None:
    async def main() -> None:
        release = asyncio.Event()

        @tool
        async def waits() -> None:
            await release.wait()

        runner = Runner([waits], drain=LONG)
        call = asyncio.ensure_future(runner.run("waits"))
        await turns()
        leaving = [asyncio.ensure_future(leave(runner)) for _ in range(count)]
        await turns()
        assert not any(one.done() for one in leaving)
        leaving.pop().cancel()  # nobody waits for it
        release.set()
        await asyncio.gather(*leaving)
        assert (await call).success and runner._idle is None

    go(main())


# -- from inside -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [None, BOUND])
@pytest.mark.parametrize("where", ["handler", "child", "task", "middleware"])
def test_a_call_that_leaves_its_runner_does_not_wait_for_itself(where: str, timeout: float | None) -> None:
    async def main() -> None:
        @tool
        async def stop(context: ToolContext) -> str:
            if where == "child":
                return str((await context.run("leaves")).output)
            if where == "task":
                await asyncio.create_task(leave(runner))
            if where == "handler":
                await leave(runner)
            return "left"

        @tool
        async def leaves() -> str:
            await leave(runner)
            return "left"

        async def around(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
            if where == "middleware":
                await leave(runner)
            return await next(call, context)  # type: ignore[no-any-return]

        runner = Runner([stop, leaves], drain=LONG, timeout=timeout, around=[around])
        result = await runner.run("stop")
        assert (result.status, result.output) == ("ok", "left")
        assert (await runner.run("stop")).status == "cancelled"

    go(main())


def test_a_call_that_leaves_its_runner_waits_for_the_others_and_is_not_cancelled_with_them() -> None:
    async def main() -> None:
        inside = asyncio.Event()

        @tool
        async def waits() -> None:
            inside.set()
            await asyncio.Event().wait()

        @tool
        async def stop() -> str:
            await leave(runner)
            return "left"

        runner = Runner([waits, stop], drain=0.01, timeout=BOUND)
        other = asyncio.ensure_future(runner.run("waits"))
        await inside.wait()
        assert (await runner.run("stop")).output == "left"
        assert (await other).status == "cancelled"

    go(main())


def test_two_calls_that_leave_do_not_wait_for_each_other_and_who_leaves_from_outside_waits_for_both() -> None:
    async def main() -> None:
        go_on, both_run, ended = asyncio.Event(), asyncio.Barrier(2), []

        @tool
        async def stop(n: int) -> str:
            await both_run.wait()
            await leave(runner)
            await go_on.wait()
            ended.append(n)
            return "left"

        runner = Runner([stop], drain=LONG)
        both = [asyncio.ensure_future(runner.run("stop", {"n": n})) for n in range(2)]
        await turns()
        outside = asyncio.ensure_future(leave(runner))
        await turns()
        assert not outside.done() and not ended
        go_on.set()
        await outside
        assert sorted(ended) == [0, 1] and [one.result().output for one in both] == ["left", "left"]

    go(main())
