"""Ten thousand calls, a tenth of them cancelled, leave nothing behind: no task, thread, process, descriptor or object.

They are made in a program of their own, this file, where nothing else has left anything.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import probe
from ferrule import Event, Runner, Tool, ToolCall, ToolContext, Waits, tool
from ferrule.executors import threads as pool
from waits import wait_until
from watched import BOUND

SECONDS = 120
CALLS, ISOLATED, CHUNK = 10_000, 300, 100
MOST_TURNS = 12
OURS = ("ferrule", "asyncio", "_asyncio")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks at processes in /proc"),
]


@pytest.fixture(scope="module")
def left() -> dict[str, Any]:
    """What the program says is left."""
    command = [sys.executable, "-W", "error::ResourceWarning", __file__]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert not ran.stderr, ran.stderr  # no warning of what was never awaited, closed or retrieved
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def test_there_were_ten_thousand_calls_and_a_tenth_of_them_were_cancelled(left: dict[str, Any]) -> None:
    assert left["calls"] == CALLS
    assert left["cancelled"] == pytest.approx(CALLS / 10, rel=0.3)
    assert left["statuses"].keys() == {"ok", "cancelled", "timeout"}


def test_every_call_that_was_watched_began_and_ended_once(left: dict[str, Any]) -> None:
    assert left["begun"] == left["ended"] > CALLS / 10


def test_no_task_timer_slot_or_key_is_left(left: dict[str, Any]) -> None:
    assert [left[what] for what in ("tasks", "timers", "slots", "keys", "live", "left_running", "waiting")] == [0] * 7


def test_no_more_threads_than_the_pool_may_have_and_none_after_a_while(left: dict[str, Any]) -> None:
    assert left["most_threads"] <= 2 * pool.MAX_THREADS  # as many at work, and as many that wait
    assert left["threads"] == []


def test_no_process_is_left_but_those_that_wait_for_calls_and_none_of_these_when_they_are_closed(
    left: dict[str, Any],
) -> None:
    assert left["processes"] <= left["workers"] + 1
    assert left["processes_at_the_end"] == []


def test_no_descriptor_is_left(left: dict[str, Any]) -> None:
    assert left["descriptors"] == []


def test_no_objects_gather(left: dict[str, Any]) -> None:
    assert left["objects"] == {}


# -- the program -------------------------------------------------------------------------------------------------------


class Traffic:
    """Calls of every kind, many at once, of which some are cancelled at moments that chance decides."""

    def __init__(self) -> None:
        self.chance = random.Random(1)
        self.let_go = asyncio.Event()
        self.let_threads_go = threading.Event()
        self.kinds: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()
        self.calls = self.cancelled = self.isolated = self.most_threads = 0
        self.runner = Runner(self.tools(), concurrency=40, waits=Waits(grace=0.2))

    def tools(self) -> list[Tool]:
        async def add(a: int, b: int = 1) -> int:
            return a + b

        async def waits(a: int) -> int:
            await self.let_go.wait()
            return a

        async def slow(a: int) -> int:
            await asyncio.Event().wait()
            return a

        async def nested(context: ToolContext, a: int) -> Any:
            return (await context.run("in_turn", {"a": a})).output

        async def yields(a: int) -> AsyncIterator[int]:
            for n in range(3):
                yield a + n
                await asyncio.sleep(0)

        def blocks(a: int) -> int:
            return a

        def blocks_long(a: int) -> int:
            self.let_threads_go.wait(BOUND)
            return a

        import isolated_tools

        return [
            tool(add, parallel=True),
            tool(add, name="in_turn", resources=lambda arguments: [str(arguments["a"] % 5)]),
            tool(add, name="timed", parallel=True, timeout=10),
            tool(waits, parallel=True, concurrency=20),
            tool(slow, parallel=True, timeout=0.002),
            tool(nested, parallel=True),
            tool(yields, parallel=True),
            tool(blocks, parallel=True),
            tool(blocks_long, parallel=True, concurrency=10),
            tool(isolated_tools.add, name="apart", parallel=True, isolation="process"),
        ]

    def count(self, event: Event) -> None:
        self.kinds[event.kind] += 1

    def call(self) -> ToolCall:
        names = ["add", "in_turn", "timed", "nested", "yields", "blocks"] * 8 + ["waits"] * 3 + ["slow", "blocks_long"]
        name = self.chance.choice(names)
        if self.isolated * CALLS < ISOLATED * self.calls:
            name = "apart"
            self.isolated += 1
        self.calls += 1
        return ToolCall(f"c{self.calls}", name, f'{{"a": {self.chance.randrange(100)}}}')

    async def go(self, calls: int) -> None:
        until = self.calls + calls
        while self.calls < until:
            await self.chunk(min(CHUNK, until - self.calls))

    async def chunk(self, calls: int) -> None:
        self.let_go, self.let_threads_go = asyncio.Event(), threading.Event()
        going: list[asyncio.Task[Any]] = []
        victims: list[tuple[int, Callable[[], object]]] = []
        while calls:
            size = min(calls, self.chance.choice([1, 1, 1, 5]))
            calls -= size
            going.append(self.begin(size, victims))
        for turn in range(MOST_TURNS):
            for moment, end in victims:
                if moment == turn:
                    end()
            await asyncio.sleep(0)
        self.most_threads = max(self.most_threads, len(pool_threads()))
        self.let_go.set()
        self.let_threads_go.set()
        await asyncio.wait(going)
        for one in going:
            self.note(one)

    def begin(self, size: int, victims: list[tuple[int, Callable[[], object]]]) -> asyncio.Task[Any]:
        """Start one call, or several as a batch; perhaps it is to be cancelled."""
        ends, moment = self.chance.random() < 0.1, self.chance.randrange(MOST_TURNS)
        self.cancelled += size * ends
        if size == 1:
            call = self.call()
            timeout = None if call.name == "slow" else self.chance.choice([None, None, BOUND])
            task = asyncio.create_task(self.runner.run(call, timeout=timeout))
            victims += [(moment, task.cancel)] * ends
        else:
            batch = self.runner.batch([self.call() for _ in range(size)], observers=[self.count])

            async def awaited() -> Any:
                return await batch

            task = asyncio.create_task(awaited())
            ways: list[Callable[[], object]] = [task.cancel, batch.cancel, lambda: batch.cancel(now=True)]
            victims += [(moment, self.chance.choice(ways))] * ends
        return task

    def note(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            found = task.result()
            self.statuses.update(result.status for result in (found if isinstance(found, list) else [found]))


def pool_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "ferrule-thread"]


def other_threads() -> list[str]:
    ours = {threading.main_thread().name, *pool_threads()}
    return [thread.name for thread in threading.enumerate() if thread.name not in ours]


def descriptors() -> dict[str, str]:
    """What each open one is, by its number."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the one that lists them
            pass
    return found


def processes() -> list[str]:
    """Our children, those that nobody has waited for too."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, state, parent = re.fullmatch(r"\d+ \((.*)\) (\w) (\d+) .*", path.read_text().strip()).groups()  # type: ignore[union-attr]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == os.getpid():
            found.append(f"{path.parent.name} {name} {state}")
    return found


def objects() -> Counter[str]:
    """How many there are of each kind that the kernel or the loop makes."""
    gc.collect()
    return Counter(type(one).__qualname__ for one in gc.get_objects() if type(one).__module__.startswith(OURS))


async def in_a_loop() -> dict[str, Any]:
    traffic = Traffic()
    runner = traffic.runner
    await traffic.go(CALLS // 10)
    await asyncio.to_thread(wait_until, lambda: not runner.left_running)
    before = objects()
    await traffic.go(CALLS - traffic.calls)
    await asyncio.to_thread(wait_until, lambda: not runner.left_running)
    loop: Any = asyncio.get_running_loop()
    grown = {kind: count - before[kind] for kind, count in objects().items() if count > before[kind] + 30}
    return {
        "calls": traffic.calls,
        "cancelled": traffic.cancelled,
        "statuses": traffic.statuses,
        "begun": traffic.kinds["tool:pre"],
        "ended": traffic.kinds["tool:post"] + traffic.kinds["tool:error"],
        "tasks": len(asyncio.all_tasks()) - 1,
        "timers": probe.timers(loop),
        "slots": probe.slots_taken(runner),
        "keys": probe.keys_held(runner),
        "live": len(probe.live_calls(runner)),
        "left_running": runner.left_running,
        "waiting": runner.waiting,
        "most_threads": traffic.most_threads,
        "objects": grown,
        "processes": len(processes()),
    }


def main() -> None:
    before = descriptors()
    from ferrule.executors.process import pool as workers

    found = asyncio.run(in_a_loop())
    workers.shared_pool().close()
    wait_until(lambda: not other_threads() and not processes())
    after = descriptors()
    found |= {
        "workers": workers.DEFAULT_WORKERS,
        "threads": other_threads(),
        "processes_at_the_end": processes(),
        "descriptors": [what for name, what in after.items() if before.get(name) != what],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
