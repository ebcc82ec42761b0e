"""A process that is forked from one which is in the middle of calls begins anew: `multiprocessing`, or `--preload`."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from watched import BOUND, Watch, go

from ferrule import Runner, ToolContext, tool

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


def forked(work: Callable[[], Any]) -> Any:
    """What `work` gives in a thread of a forked child, as JSON."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            found: list[Any] = []
            thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
            thread.start()
            thread.join(BOUND / 2)
            os.write(writing, json.dumps(found).encode())
        finally:
            os._exit(0)
    os.close(writing)
    try:
        assert select.select([reading], [], [], BOUND)[0], "the child hangs"
        found = json.loads(os.read(reading, 10_000) or "[]")
        assert found, "what the child does hangs or fails"
        return found[0]
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.001)


class Busy:
    """A runner all of whose slots and keys are taken by a call under way; another one waits for them."""

    def __init__(self, timeout: float | None) -> None:
        self.started, self.release = threading.Event(), threading.Event()
        self.loop: Any = None
        self.gate = asyncio.Event()
        self.timeout = timeout
        self.watch = Watch()

        async def waits() -> str:
            self.loop = asyncio.get_running_loop()
            self.started.set()
            while not self.release.is_set():
                try:
                    await self.gate.wait()
                except asyncio.CancelledError:
                    pass
            return "waited"

        def blocks() -> str:
            self.started.set()
            self.release.wait(BOUND)
            return "waited"

        def work(n: int) -> int:
            return n

        common: Any = {"concurrency": 1, "resources": lambda arguments: ["key"]}
        tools = [tool(one, **common) for one in (waits, blocks, work)]
        self.runner = Runner(tools, concurrency=1, per_principal=1, queue_timeout=2, grace=0.01, observers=[self.watch])
        self.threads: list[threading.Thread] = []
        self.results: list[Any] = []

    def begin(self, name: str, *arguments: Any, timeout: float | None = None) -> None:
        def run() -> None:
            self.results.append(self.runner.run_sync(name, *arguments, timeout=timeout))

        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()

    def work(self, n: int) -> list[Any]:
        result = self.runner.run_sync("work", {"n": n})
        return [result.status, result.output, self.runner.left_running, self.runner.waiting]

    def end(self) -> None:
        self.release.set()
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self.gate.set)
        for thread in self.threads:
            thread.join(BOUND)


def slots(runner: Runner) -> list[int]:
    """How many of each limit are taken."""
    return [limiter.running for limiter in {one for plan in runner._plans.values() for one in plan.limiters}]


@pytest.fixture(params=[None, 0.01])
def busy(request: pytest.FixtureRequest) -> Iterator[Busy]:
    made = Busy(request.param)
    yield made
    made.end()


def test_run_sync_works_in_a_forked_child_of_a_program_that_has_used_it() -> None:
    busy = Busy(None)
    assert busy.work(1)[:2] == ["ok", 1]
    assert forked(lambda: [busy.work(2), busy.work(3)]) == [["ok", 2, 0, 0], ["ok", 3, 0, 0]]
    assert busy.work(4)[:2] == ["ok", 4]


@pytest.mark.parametrize("handler", ["waits", "blocks"])
def test_what_the_parent_runs_or_has_abandoned_keeps_nothing_from_a_forked_child(busy: Busy, handler: str) -> None:
    busy.begin(handler, timeout=busy.timeout)
    assert busy.started.wait(BOUND)
    if busy.timeout is not None:
        busy.threads[0].join(BOUND)
        assert busy.results[0].status == "timeout" and busy.runner.left_running == 1
    busy.begin("work", {"n": 5})
    until(lambda: busy.runner.waiting == 1)
    events = len(busy.watch.events)

    def child() -> Any:
        gc.collect()
        told = len(busy.watch.events) - events
        found = [busy.work(1), busy.work(2), go(busy.runner.run("work", {"n": 3})).output]
        return [*found, told, slots(busy.runner)]

    assert forked(child) == [["ok", 1, 0, 0], ["ok", 2, 0, 0], 3, 0, [0, 0, 0, 0]]
    busy.end()
    assert [result.status for result in busy.results[-1:]] == ["ok"]
    assert busy.work(6) == ["ok", 6, 0, 0]


def test_a_handler_may_fork_and_call_from_the_child() -> None:
    runner: Runner

    @tool(concurrency=1, resources=lambda arguments: ["key"])
    def outer() -> Any:
        return forked(lambda: [runner.run_sync("inner").status, len(runner._live)])

    @tool(resources=lambda arguments: ["key"])
    async def inner(context: ToolContext) -> None:
        """Do nothing."""

    runner = Runner([outer, inner], concurrency=1, queue_timeout=1)
    assert runner.run_sync("outer", timeout=BOUND).output == ["ok", 0]
    assert go(runner.run("outer")).output == ["ok", 0]


def test_what_the_parent_has_under_way_does_not_come_to_an_end_in_a_forked_child() -> None:
    """Collected there, a coroutine would give back slots that are free, and tell observers of an end."""
    watch = Watch()

    @tool(concurrency=1)
    async def waits() -> None:
        await asyncio.Event().wait()

    runner = Runner([waits], observers=[watch])

    async def begin() -> None:
        kept.append(asyncio.ensure_future(runner.run("waits")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    kept: list[Any] = []
    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())

    def child() -> Any:
        kept.clear()
        gc.collect()
        return [watch.kinds(), slots(runner)]

    assert forked(child) == [["tool:pre"], [0, 0]]
    kept[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(kept.pop())
    loop.close()
    assert watch.ends() == ["tool:error"] and slots(runner) == [0, 0]
