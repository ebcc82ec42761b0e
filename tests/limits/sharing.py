"""A program that shares limits with others: `python sharing.py WHAT PLACE FILE`, which `test_limit_programs.py` starts.

Each call counts itself in FILE when it begins and, where the limit is on how many run at once, out of it when it ends;
how many there ever were at once is kept there too: so the file is what the programs are judged by.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
import threading
from typing import Any

from ferrule import Journal, Runner, ToolCall, tool
from ferrule.middleware import budget, rate
from ferrule.stores.limits import SharedLimits, share_limits
from ferrule.stores.store import Postgres

CALLS = 40
MOST = 3


def place(written: str) -> Any:
    return Postgres(written) if written.startswith("postgresql:") else Journal.open(written, durable="normal")


class Counter:
    """Numbers in a file: how many are inside, the most that ever were, and how many came."""

    def __init__(self, path: str) -> None:
        self.file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def add(self, inside: int) -> None:
        fcntl.flock(self.file, fcntl.LOCK_EX)
        try:
            now, most, came = map(int, (os.pread(self.file, 100, 0) or b"0 0 0").split())
            now += inside
            os.pwrite(self.file, b"%d %d %d   " % (now, max(most, now), came + (inside > 0)), 0)
        finally:
            fcntl.flock(self.file, fcntl.LOCK_UN)


async def many(limits: SharedLimits, counter: Counter, what: str) -> list[str]:
    @tool(
        parallel=what != "keys",
        concurrency=MOST if what == "tool" else None,
        resources=keys if what == "keys" else None,
    )
    async def work(n: int) -> int:
        counter.add(1)
        for _ in range(n % 4):
            await asyncio.sleep(0.001)
        if what not in ("rate", "budget"):
            counter.add(-1)
        return n

    inside = {
        "rate": [rate(MOST * 10, 3600, limits=limits)],
        "budget": [budget(calls=MOST * 10, limits=limits, by="all")],
    }
    runner = Runner([work], inside=inside.get(what, ()), limits=limits, concurrency=MOST if what == "runner" else None)
    calls = [ToolCall(str(n), "work", {"n": n}) for n in range(CALLS)]
    return [result.status for result in await runner.run_all(calls)]


def keys(arguments: Any) -> list[str]:
    return ["one"]


async def holds(limits: SharedLimits) -> None:
    """Have the one slot until the program is killed, whose event loop stands still."""

    @tool(concurrency=1)
    async def work() -> None:
        print("holds", flush=True)
        threading.Event().wait()

    await Runner([work], limits=limits).run("work")


def main(what: str, written: str, path: str) -> None:
    limits = share_limits(place(written), lease=float(os.environ.get("LEASE", "30")))
    if what == "holds":
        asyncio.run(holds(limits))
    else:
        statuses = asyncio.run(many(limits, Counter(path), what))
        print(*(f"{status}={statuses.count(status)}" for status in sorted(set(statuses))))


if __name__ == "__main__":
    main(*sys.argv[1:])
