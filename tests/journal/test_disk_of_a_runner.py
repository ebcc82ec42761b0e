"""A runner whose disk is full or fails: what changes something is stopped before its effect, and never runs twice."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import pytest
from processes import program

from needed import needed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="there are no limits of processes"),
]

TOOLS = """
import logging, resource
from ferrule import Runner, ToolCall, tool
logging.disable()
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
def full(): resource.setrlimit(resource.RLIMIT_FSIZE, (os.stat(path + "-wal").st_size, hard))
def space(): resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
paid = []
@tool
async def pay(n: int, fills: bool = False) -> str:
    paid.append(n)
    if fills: full()
    return f"paid {n}"
@tool(read_only=True)
async def look() -> str: return "seen"
def call(n, **more): return ToolCall(f"c{n}", "pay", {"n": n, **more})
"""


def states(path: Path) -> dict[str, str]:
    """What the file has of each call."""
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return dict(connection.execute("SELECT call_id, state FROM calls").fetchall())
    finally:
        connection.close()


STOPPED = """
async def main():
    journal = Journal.open(path)
    runner = Runner([pay, look], journal=journal)
    await runner.run(call(0), session="s")
    full()
    for _ in range(2):
        result = await runner.run(call(1), session="s")
        say(result.status, result.executed, "the journal cannot be read or written" in result.error, paid)
    say((await runner.run(ToolCall("l", "look", {}), session="s")).text)
    say((await runner.run(call(0), session="s")).text, paid)
    space()
    result = await runner.run(call(1), session="s")
    say(result.text, "replayed" in result.metadata, paid)
    journal.close()
asyncio.run(main())
"""


def test_on_a_full_disk_what_changes_is_stopped_what_is_known_is_told_and_there_is_no_trace_of_it_afterwards(
    tmp_path: Path,
) -> None:
    with program(TOOLS + STOPPED, tmp_path / "calls.db") as other:
        assert other.rest().splitlines() == [
            "failed False True [0]",
            "failed False True [0]",
            "seen",
            "paid 0 [0]",
            "paid 1 False [0, 1]",
        ]
    assert states(tmp_path / "calls.db") == {"c0": "ended", "c1": "ended"}


FILLED = """
async def main():
    journal = Journal.open(path)
    runner = Runner([pay], journal=journal)
    first = await runner.run(call(1, fills=True), session="s")
    say(first.text, first.metadata)
    again = asyncio.create_task(runner.run(call(1, fills=True), session="s"))
    say((await journal.unfinished()), again.done())
    space()
    result = await again
    say(result.text, result.metadata, paid)
    journal.close()
asyncio.run(main())
"""


def test_a_disk_that_is_full_when_a_call_ends_has_its_outcome_when_there_is_room_and_nothing_runs_twice(
    tmp_path: Path,
) -> None:
    with program(TOOLS + FILLED, tmp_path / "calls.db") as other:
        assert other.rest().splitlines() == [
            "paid 1 {'unrecorded': True}",
            "[] False",
            "paid 1 {'replayed': True} [1]",
        ]
    assert states(tmp_path / "calls.db") == {"c1": "ended"}


KILLED_WHILE_FULL = """
async def main():
    journal = Journal.open(path)
    runner = Runner([pay], journal=journal)
    if sys.argv[2] == "fills":
        say((await runner.run(call(1, fills=True), session="s")).text)
        os._exit(0)
    result = await runner.run(call(1, fills=True), session="s")
    say(result.status, result.executed, paid)
    journal.close()
asyncio.run(main())
"""


def test_an_outcome_that_no_disk_had_room_for_is_unknown_after_the_end_of_the_program(tmp_path: Path) -> None:
    with program(TOOLS + KILLED_WHILE_FULL, tmp_path / "calls.db", "fills") as one:
        assert one.rest() == "paid 1"
    with program(TOOLS + KILLED_WHILE_FULL, tmp_path / "calls.db", "again") as other:
        assert other.rest() == "unknown None []"


FAILING = """
async def main():
    journal = Journal.open(path)
    runner = Runner([pay], journal=journal)
    for n in range(20):
        before = len(paid)
        result = await runner.run(call(n), session="s")
        say(n, result.status, result.executed, len(paid) - before)
    os._exit(0)
asyncio.run(main())
"""


@pytest.mark.parametrize(("call", "error", "every"), [("fdatasync", "EIO", "20+3"), ("pwrite64", "ENOSPC", "60+7")])
def test_where_the_disk_fails_now_and_then_a_call_that_was_refused_has_not_run_and_none_runs_twice(
    tmp_path: Path, call: str, error: str, every: str
) -> None:
    path = tmp_path / "calls.db"
    inject = ("-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={every}")
    strace = (needed("strace")["strace"], "-f", "-o", "/dev/null", *inject)
    with program(TOOLS + FAILING, path, under=strace) as failing:
        first = [line.split() for line in failing.rest().splitlines()]
    assert {("ok", "True", "1"), ("failed", "False", "0")} == {tuple(line[1:]) for line in first}
    ran = {int(n) for n, status, _, _ in first if status == "ok"}
    assert {f"c{n}" for n in ran} <= states(path).keys()
    with program(TOOLS + FAILING, path) as well:
        second = {int(n): (status, int(runs)) for n, status, _, runs in map(str.split, well.rest().splitlines())}
    assert all(runs == 0 and status in ("ok", "unknown") for n, (status, runs) in second.items() if n in ran), second
    assert all(runs <= 1 for status, runs in second.values())
