"""A disk that is full or fails: nothing is run, nothing is half written, and all is well again when it is well."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from processes import SECONDS, program

from ferrule import Journal
from needed import needed

T = TypeVar("T")
pytestmark = pytest.mark.slow


def run(waited: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(waited, SECONDS))


FULL = """
import logging, resource
from ferrule import Event, Runner, ToolCall, tool
logging.disable()
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
def full(): resource.setrlimit(resource.RLIMIT_FSIZE, (os.stat(path + "-wal").st_size, hard))
def space(): resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
async def refused(waited):
    try:
        await waited
    except JournalError as error:
        assert "cannot be written" in str(error), error
        return True
"""
AT_FULL = """
async def main():
    journal = Journal.open(path)
    began = intent("began")
    await journal.begin(began)
    full()
    for _ in range(3):
        say(await refused(journal.begin(intent("one"))), await journal.find("one"))
    say(await refused(journal.end(began, {"status": "ok"})), (await journal.find("began")).state)
    kept = await journal.find("began")
    say(await refused(journal.take("key", time.time() + 100)), await refused(journal.settle(kept, {})))
    space()
    say((await journal.begin(intent("one"))).earlier, (await journal.find("one")).state)
    say(*(await journal.find("began", wait=True)).outcome.items())
    say(await journal.take("key", time.time() + 100))
    journal.close()
asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no limits of processes")
def test_on_a_full_disk_changes_are_refused_and_an_outcome_is_written_when_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    with program(FULL + AT_FULL, path) as other:
        assert other.rest().splitlines() == [
            *["True None"] * 3,
            "True running",
            "True True",
            "None running",
            "('status', 'ok')",
            "True",
        ]
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("SELECT key, state FROM calls ORDER BY key").fetchall() == [
        ("began", "ended"),
        ("one", "running"),
    ]
    connection.close()


RUNS = """
paid = []
@tool
def pay(amount: int) -> str:
    paid.append(amount)
    return "paid"
@tool(read_only=True)
def look() -> str: return "seen"
async def main():
    journal = Journal.open(path)
    runner = Runner([pay, look], journal=journal)
    await runner.run(ToolCall("c0", "pay", {"amount": 0}), session="s")
    full()
    result = await runner.run(ToolCall("c1", "pay", {"amount": 1}), session="s")
    say(result.status, result.executed, "journal" in result.error, paid)
    say((await runner.run(ToolCall("c2", "look", {}), session="s")).status)
    space()
    result = await runner.run(ToolCall("c3", "pay", {"amount": 3}), session="s")
    say(result.status, paid)
    await journal.flush()
    journal.close()
asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no limits of processes")
def test_on_a_full_disk_what_changes_is_not_run_and_what_reads_is_and_its_events_come_later(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    with program(FULL + RUNS, path) as other:
        assert other.rest().splitlines() == ["failed False True [0]", "ok", "ok [0, 3]"]
    connection = sqlite3.connect(path)
    ended = "SELECT call_id FROM events WHERE kind IN ('tool:post', 'tool:error') ORDER BY seq"
    assert connection.execute(ended).fetchall() == [("c0",), ("c1",), ("c2",), ("c3",)]
    connection.close()


INJECTED = """
async def main():
    journal = Journal.open(path)
    await journal.begin(intent("before"))
    import logging; logging.disable()
    for n in range(30):
        try:
            await journal.begin(intent(f"k{n}"))
        except JournalError as error:
            assert "disk" in str(error), error
            say("refused", n, await journal.find(f"k{n}"))
        else:
            say("begun", n, (await journal.find(f"k{n}")).state)
    os._exit(0)
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("call", "error", "every"),
    [("fsync,fdatasync", "EIO", "20+3"), ("pwrite64", "EIO", "60+7"), ("pwrite64", "ENOSPC", "60+7")],
)
def test_where_the_disk_fails_now_and_then_what_was_begun_is_there_and_nothing_else(
    tmp_path: Path, call: str, error: str, every: str
) -> None:
    path = tmp_path / "calls.db"
    inject = ("-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={every}")
    strace = (needed("strace")["strace"], "-f", "-o", str(tmp_path / "trace"), *inject)
    with program(INJECTED, path, under=strace) as other:
        said = [line.split() for line in other.rest().splitlines()]
    begun = {f"k{n}" for word, n, state in said if word == "begun" and state == "running"}
    refused = {f"k{n}" for word, n, state in said if word == "refused" and state == "None"}
    assert len(begun) + len(refused) == 30 and begun and refused
    journal = Journal.open(path)
    found = {kept.intent.key for kept in run(journal.unfinished())}
    journal.close()
    # What was refused may be in the log of a process that died, and counts as cut off: nobody knows more of it.
    assert begun | {"before"} <= found <= begun | refused | {"before"}
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
