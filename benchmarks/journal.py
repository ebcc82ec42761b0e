"""The journaled calls a second of 64 callers, with full fsync, in times of a program that commits each event by itself.

Everything takes turns within one run: what a disk does in one minute it does not in the next. By the clock, because the
disk counts.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from measure import Line

from ferrule import Event, Journal, Runner, ToolCall, ToolResult, tool
from ferrule.values.journal_entry import Intent

CALLERS = 64
ROUNDS = 7
FOLDER = Path(__file__).parent.parent / "build"
"""On the disk of the project: many machines keep /tmp in memory, where a commit costs nothing."""


@tool
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def runs(runner: Runner) -> Callable[[], Awaitable[Any]]:
    numbers = iter(range(10**9))

    async def run() -> None:
        number = next(numbers)
        result = await runner.run(ToolCall(f"c{number}", "pay", {"amount": number}), session="benchmark", principal="p")
        assert result.success, result

    return run


async def measure_rate(run: Callable[[], Awaitable[Any]], count: int) -> float:
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


async def measure_rates(folder: Path) -> dict[str, list[float]]:
    """The rates of each kind, round by round."""
    single, journal = OnePerEvent(folder / "single.db"), Journal.open(folder / "calls.db")
    kinds = {
        "a transaction for each event": (single.call, 2),
        "the journal by itself": (by_itself(journal), 40),
        "ours": (runs(Runner([pay], journal=journal)), 40),
        "a runner without": (runs(Runner([pay])), 100),
    }
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    for run, _ in kinds.values():
        await measure_rate(run, 2)
    for _ in range(ROUNDS):
        for name, (run, count) in kinds.items():
            rates[name].append(await measure_rate(run, count))
    journal.close()
    single.close()
    return rates


def measure() -> Iterator[Line]:
    """One row, with the parts in its note."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        rates = asyncio.run(measure_rates(Path(folder)))
    base = rates.pop("a transaction for each event")
    times = {name: median(one / other for one, other in zip(found, base, strict=True)) for name, found in rates.items()}
    ours = times.pop("ours")
    others = ", ".join(f"{name} {found:.1f} ×" for name, found in times.items())
    note = f"{median(rates['ours']):.0f} calls/s; {others}"
    work = "journaled calls/s, × a transaction an event"
    yield Line(work, "×", ours, 7, note=note, more_is_better=True)
