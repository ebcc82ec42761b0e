"""Ten thousand calls leave nothing behind. They run in a program of their own, this file."""

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
from gates import Blocker, Gate
from waits import BOUND, wait_until

CALLS, CHUNK = 10_000, 100
APART = 33
"""One in so many calls runs in a process."""
MOST_TURNS = 12
OURS = ("ferrule", "asyncio", "_asyncio")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks at processes in /proc"),
]


@pytest.mark.large
def test_ten_thousand_calls_leave_nothing_behind() -> None:
    command = [sys.executable, "-W", "error::ResourceWarning", __file__]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert not ran.stderr, ran.stderr  # no warning of what was never awaited, closed or retrieved
    left: dict[str, Any] = json.loads(ran.stdout)
    assert left.pop("calls") == CALLS and left.pop("cancelled") == pytest.approx(CALLS / 10, rel=0.3)
    assert left.pop("statuses").keys() == {"ok", "cancelled", "timeout"}
    assert left.pop("begun") == left.pop("ended") > CALLS / 10
    assert left.pop("most_threads") <= 2 * pool.MAX_THREADS  # as many at work, and as many that wait
    assert left.pop("processes") <= left.pop("workers") + 1
    assert {what: found for what, found in left.items() if found} == {}


class Traffic:
    """Calls of every kind, many at once, of which some are cancelled at moments that chance decides."""

    def __init__(self) -> None:
        self.chance = random.Random(1)
        self.gate, self.blocker = Gate(parallel=True, concurrency=20), Blocker(parallel=True, concurrency=10)
        self.kinds: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()
        self.calls = self.cancelled = self.most_threads = 0
        self.runner = Runner(self.tools(), concurrency=40, waits=Waits(grace=0.2))

    def tools(self) -> list[Tool]:
        async def add(a: int = 1, b: int = 1) -> int:
            return a + b

        async def slow() -> None:
            await asyncio.Event().wait()

        async def nested(context: ToolContext) -> Any:
            return (await context.run("in_turn")).output

        async def yields() -> AsyncIterator[int]:
            for n in range(3):
                yield n
                await asyncio.sleep(0)

        def blocks() -> int:
            return 1

        import isolated_tools

        plain = [tool(one, parallel=True) for one in (add, nested, yields, blocks)]
        in_turn = tool(add, name="in_turn", resources=lambda arguments: [str(self.chance.randrange(5))])
        timed = [tool(add, name="timed", parallel=True, timeout=10), tool(slow, parallel=True, timeout=0.002)]
        apart = tool(isolated_tools.pid, name="apart", parallel=True, isolation="process")
        return [*plain, in_turn, *timed, apart, self.gate.tool, self.blocker.tool]

    def count(self, event: Event) -> None:
        self.kinds[event.kind] += 1

    def call(self) -> ToolCall:
        names = ["add", "in_turn", "timed", "nested", "yields", "blocks"] * 8 + ["wait"] * 3 + ["slow", "block"]
        name = "apart" if self.calls % APART == 0 else self.chance.choice(names)
        self.calls += 1
        return ToolCall(f"c{self.calls}", name)

    async def make(self, calls: int) -> None:
        until = self.calls + calls
        while self.calls < until:
            await self.make_some(min(CHUNK, until - self.calls))
        await asyncio.to_thread(wait_until, lambda: not self.runner.left_running)

    async def make_some(self, calls: int) -> None:
        self.gate.open.clear()
        self.blocker.release.clear()
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
        self.most_threads = max(self.most_threads, sum(thread.name == POOL for thread in threading.enumerate()))
        self.gate.open.set()
        self.blocker.release.set()
        await asyncio.wait(going)
        for task in going:
            if not task.cancelled():
                found = task.result()
                self.statuses.update(result.status for result in (found if isinstance(found, list) else [found]))

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
            task = asyncio.ensure_future(batch)
            ways: list[Callable[[], object]] = [task.cancel, batch.cancel, lambda: batch.cancel(now=True)]
            victims += [(moment, self.chance.choice(ways))] * ends
        return task


POOL = "ferrule-thread"
"""Idle threads of the pool may stay."""


def other_threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name not in (threading.main_thread().name, POOL)]


def descriptors() -> dict[str, str]:
    """Return what each open one is, by its number."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the one that lists them
            pass
    return found


def processes() -> list[str]:
    """Return our children, also those that have ended and that nobody has waited for."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, state, parent = re.fullmatch(r"\d+ \((.*)\) (\w) (\d+) .*", path.read_text().strip()).groups()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == os.getpid():
            found.append(f"{path.parent.name} {name} {state}")
    return found


def objects() -> Counter[str]:
    """Count the objects of each kind that the kernel or the loop makes."""
    gc.collect()
    return Counter(type(one).__qualname__ for one in gc.get_objects() if type(one).__module__.startswith(OURS))


async def make_calls() -> dict[str, Any]:
    traffic = Traffic()
    runner = traffic.runner
    await traffic.make(CALLS // 10)
    before = objects()
    await traffic.make(CALLS - traffic.calls)
    return {
        "calls": traffic.calls,
        "cancelled": traffic.cancelled,
        "statuses": traffic.statuses,
        "begun": traffic.kinds["tool:pre"],
        "ended": traffic.kinds["tool:post"] + traffic.kinds["tool:error"],
        "most_threads": traffic.most_threads,
        "processes": len(processes()),
        "tasks": len(asyncio.all_tasks()) - 1,
        "timers": probe.timers(asyncio.get_running_loop()),
        "not at rest": not probe.is_at_rest(runner),
        "objects": {kind: count - before[kind] for kind, count in objects().items() if count > before[kind] + 30},
    }


def main() -> None:
    before = descriptors()
    from ferrule.executors.process import pool as workers

    found = asyncio.run(make_calls())
    workers.shared_pool().close()
    wait_until(lambda: not other_threads() and not processes())
    after = descriptors()
    found |= {
        "workers": workers.DEFAULT_WORKERS,
        "threads": other_threads(),
        "processes at the end": processes(),
        "descriptors": [what for name, what in after.items() if before.get(name) != what],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
