"""What a journal in an SQLite file costs a call: alone, and with 64 callers at once.

Run: python benchmarks/journal.py [FOLDER]

The disk is that of the folder, this one where none is given. Everything takes turns within one run: what a disk does in
one minute it does not in the next.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from ferrule import Event, Journal, Runner, ToolCall, ToolResult, tool
from ferrule.values.journal_entry import Intent

CALLERS = 64
ROUNDS = 7


@tool
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool(read_only=True)
async def look(amount: int) -> str:
    """Look."""
    return f"seen {amount}"


def runs(runner: Runner, name: str) -> Callable[[], Awaitable[Any]]:
    numbers = iter(range(10**9))

    async def run() -> None:
        number = next(numbers)
        call = ToolCall(f"c{number}", name, {"amount": number})
        result = await runner.run(call, session="benchmark", principal="p")
        assert result.success, result

    return run


async def seconds(run: Callable[[], Awaitable[Any]], count: int) -> list[float]:
    """How long each of `count` calls took, one after the other."""
    found = []
    for _ in range(count):
        begin = time.perf_counter()
        await run()
        found.append(time.perf_counter() - begin)
    return found


async def rate(run: Callable[[], Awaitable[Any]], count: int) -> float:
    """Calls per second of `CALLERS` that each make `count`."""

    async def caller() -> None:
        for _ in range(count):
            await run()

    begin = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return CALLERS * count / (time.perf_counter() - begin)


class OnePerEvent:
    """A call as most programs would keep it: each of its five rows in a transaction of its own."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.execute("CREATE TABLE events (call_id TEXT, data TEXT)")

    async def call(self) -> None:
        for _ in range(5):  # received, its intent, started, its outcome, ended
            self._connection.execute("INSERT INTO events VALUES ('c1', ?)", ("x" * 200,))

    def close(self) -> None:
        self._connection.close()


class Synced:
    """A page that is written and waited for, in a file that does not grow."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)
        self._at = 0
        os.pwrite(self._file, bytes(4096 * 1024), 0)
        os.fsync(self._file)

    async def write(self) -> None:
        self._at = (self._at + 1) % 1024
        os.pwrite(self._file, b"x" * 4096, 4096 * self._at)
        getattr(os, "fdatasync", os.fsync)(self._file)

    def close(self) -> None:
        os.close(self._file)


async def alone(folder: Path) -> None:
    """One call after the other."""
    synced, journal = Synced(folder / "synced"), Journal.open(folder / "alone.db")
    with_it, without = Runner([pay, look], journal=journal), Runner([pay, look])
    kinds = {
        "fsync": synced.write,
        "changing": runs(with_it, "pay"),
        "changing, without": runs(without, "pay"),
        "reading": runs(with_it, "look"),
        "reading, without": runs(without, "look"),
    }
    counts = {"fsync": 30, "changing": 30}
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(ROUNDS):
        for name, run in kinds.items():
            times[name] += await seconds(run, counts.get(name, 500))
        await journal.flush()
    median = {name: statistics.median(found) for name, found in times.items()}
    changing = median["changing"] - median["changing, without"]
    reading = median["reading"] - median["reading, without"]
    bound = 3 * median["fsync"] + 0.002
    print(f"  fsync: {median['fsync'] * 1e3:.2f} ms")
    print(f"  added to a call that changes: {changing * 1e3:.2f} ms (3 fsyncs + 2 ms: {bound * 1e3:.2f} ms)")
    print(f"  added to a call that reads: {reading * 1e6:.1f} µs (asked for: 30 µs)")
    journal.close()
    synced.close()


def by_itself(journal: Journal) -> Callable[[], Awaitable[Any]]:
    """What the runner asks of its journal for a call, without the runner."""
    numbers = iter(range(10**9))
    call = ToolCall("c1", "pay", {"amount": 7})
    events = [Event("tool:pre", call), Event("tool:started", call), Event("tool:post", call, ToolResult("paid 7"))]

    async def run() -> None:
        key = f"{next(numbers):032x}"
        intent = Intent(
            key=key,
            reference=key,
            claim=key,
            call_id="c1",
            tool_name="pay",
            principal=None,
            session="benchmark",
            parent=None,
            fingerprint="f",
            arguments={"amount": 7},
            at=time.time(),
        )
        journal.note(events[0])
        await journal.begin(intent)
        journal.note(events[1])
        await journal.end(intent, {"status": "ok", "output": "paid 7"})
        journal.note(events[2])

    return run


async def at_once(folder: Path) -> None:
    """64 callers."""
    single, journal = OnePerEvent(folder / "single.db"), Journal.open(folder / "at_once.db")
    kinds = {
        "a transaction for each event": (single.call, 2),
        "the journal by itself": (by_itself(journal), 40),
        "a runner with it": (runs(Runner([pay], journal=journal), "pay"), 40),
        "a runner without": (runs(Runner([pay]), "pay"), 100),
    }
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    for run, _ in kinds.values():
        await rate(run, 2)
    for _ in range(ROUNDS):
        for name, (run, count) in kinds.items():
            rates[name].append(await rate(run, count))
    base = rates["a transaction for each event"]
    print(f"  calls per second of {CALLERS} callers, and in transactions for each event (asked for: 10 x)")
    for name, found in rates.items():
        ratio = statistics.median(one / other for one, other in zip(found, base, strict=True))
        print(f"    {name:30} {statistics.median(found):8.0f} {ratio:8.1f} x")
    journal.close()
    single.close()


def main() -> None:
    version = f"Python {sys.version.split()[0]}, SQLite {sqlite3.sqlite_version}"
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else ".") as folder:
        print(f"a journal at durable='full', {version}")
        asyncio.run(alone(Path(folder)))
        asyncio.run(at_once(Path(folder)))


if __name__ == "__main__":
    main()
