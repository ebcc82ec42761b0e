"""A process that is forked from a program which has used a runner: `multiprocessing`, or `--preload`."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ferrule import Runner, Waits, tool
from watched import BOUND, Watch

pytestmark = [
    pytest.mark.slow,
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
        self.runner = Runner(
            tools, concurrency=1, per_principal=1, waits=Waits(slot=2, grace=0.01), observers=[self.watch]
        )
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


def test_a_runner_that_was_busy_when_it_was_forked_says_what_to_do_in_the_child(busy: Busy) -> None:
    busy.begin("waits", timeout=None)
    assert busy.started.wait(BOUND)

    def child() -> str:
        with pytest.raises(RuntimeError) as told:
            busy.work(1)
        return str(told.value)

    assert "forked while they ran" in forked(child)
    busy.end()
