"""A disk that is full or fails: nothing runs unrecorded, nothing is half written, and all is well again afterwards."""

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
def fill_disk(): resource.setrlimit(resource.RLIMIT_FSIZE, (os.stat(path + "-wal").st_size, hard))
def free_disk(): resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
async def refused(waited):
    try:
        await waited
    except JournalError as error:
        assert "cannot be written" in str(error), error
        return True
paid = []
@tool
async def pay(n: int, fills: bool = False) -> str:
    paid.append(n)
    if fills: fill_disk()
    return f"paid {n}"
@tool(read_only=True)
async def look() -> str: return "seen"
def call(n, **more): return ToolCall(f"c{n}", "pay", {"n": n, **more})
journal = Journal.open(path)
runner = Runner([pay, look], journal=journal)
async def run(sent): return await runner.run(sent, session="s")
"""


def run_program(path: Path, text: str, *arguments: str, under: tuple[str, ...] = ()) -> list[str]:
    with program(f"{TOOLS}\nasync def main():{text}\nasyncio.run(main())", path, *arguments, under=under) as other:
        return other.rest().splitlines()


def rows(path: Path, query: str = "SELECT call_id, state FROM calls ORDER BY call_id") -> list[tuple[str, ...]]:
    """Rows of the file, which must be whole."""
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return connection.execute(query).fetchall()
    finally:
        connection.close()


CHANGES = """
    began = intent("began", call_id="began")
    await journal.begin(began)
    fill_disk()
    for _ in range(3):
        say(await refused(journal.begin(intent("one", call_id="one"))), await journal.find("one"))
    say(await refused(journal.end(began, {"status": "ok"})), (await journal.find("began")).state)
    kept = await journal.find("began")
    say(await refused(journal.take("key", time.time() + 100)), await refused(journal.settle(kept, {})))
    free_disk()
    say((await journal.begin(intent("one", call_id="one"))).earlier, (await journal.find("one")).state)
    say(*(await journal.find("began", wait=True)).outcome.items())
    say(await journal.take("key", time.time() + 100))
    journal.close()
"""


def test_a_full_disk_refuses_changes_and_gets_outcomes_later(tmp_path: Path) -> None:
    lines = ["True None"] * 3 + ["True running", "True True", "None running", "('status', 'ok')", "True"]
    assert run_program(tmp_path / "calls.db", CHANGES) == lines
    assert rows(tmp_path / "calls.db") == [("began", "ended"), ("one", "running")]


STOPPED = """
    await run(call(0))
    fill_disk()
    for _ in range(2):
        result = await run(call(1))
        say(result.status, result.executed, "the journal cannot be read or written" in result.error, paid)
    say((await run(ToolCall("look", "look", {}))).text)
    say((await run(call(0))).text, paid)
    free_disk()
    result = await run(call(1))
    say(result.text, "replayed" in result.metadata, paid)
    journal.close()
"""


def test_on_a_full_disk_only_calls_that_read_run(tmp_path: Path) -> None:
    stopped = ["failed False True [0]"] * 2
    lines = [*stopped, "seen", "paid 0 [0]", "paid 1 False [0, 1]"]
    assert run_program(tmp_path / "calls.db", STOPPED) == lines
    assert rows(tmp_path / "calls.db") == [("c0", "ended"), ("c1", "ended")]
    ended = "SELECT call_id FROM events WHERE kind IN ('tool:post', 'tool:error') ORDER BY seq"
    assert [one for (one,) in rows(tmp_path / "calls.db", ended)] == ["c0", "c1", "c1", "look", "c0", "c1"]


FILLED = """
    first = await run(call(1, fills=True))
    say(first.text, first.metadata)
    again = asyncio.create_task(run(call(1, fills=True)))
    say((await journal.unfinished()), again.done())
    free_disk()
    result = await again
    say(result.text, result.metadata, paid)
    journal.close()
"""


def test_an_outcome_is_written_once_the_disk_has_room(tmp_path: Path) -> None:
    lines = ["paid 1 {'unrecorded': True}", "[] False", "paid 1 {'replayed': True} [1]"]
    assert run_program(tmp_path / "calls.db", FILLED) == lines
    assert rows(tmp_path / "calls.db") == [("c1", "ended")]


KILLED_WHILE_FULL = """
    result = await run(call(1, fills=True))
    say(result.text if sys.argv[2] == "fills" else (result.status, result.executed, paid))
    os._exit(0)
"""


def test_an_outcome_that_was_never_written_is_unknown_afterwards(tmp_path: Path) -> None:
    assert run_program(tmp_path / "calls.db", KILLED_WHILE_FULL, "fills") == ["paid 1"]
    assert run_program(tmp_path / "calls.db", KILLED_WHILE_FULL, "again") == ["('unknown', None, [])"]


FAILING = """
    for n in range(20):
        before = len(paid)
        result = await run(call(n))
        say(n, result.status, result.executed, len(paid) - before)
    os._exit(0)
"""


@pytest.mark.large
@pytest.mark.parametrize(
    ("call", "error", "every"),
    [("fsync,fdatasync", "EIO", "20+3"), ("pwrite64", "EIO", "60+7"), ("pwrite64", "ENOSPC", "60+7")],
)
def test_on_a_failing_disk_refused_calls_do_not_run_and_none_runs_twice(
    tmp_path: Path, call: str, error: str, every: str
) -> None:
    path = tmp_path / "calls.db"
    inject = ("-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={every}")
    strace = (needed("strace")["strace"], "-f", "-o", "/dev/null", *inject)
    first = [line.split() for line in run_program(path, FAILING, under=strace)]
    assert {("ok", "True", "1"), ("failed", "False", "0")} == {tuple(line[1:]) for line in first}
    ran = {int(n) for n, status, _, _ in first if status == "ok"}
    assert {f"c{n}" for n in ran} <= {call_id for call_id, _ in rows(path)}
    second = {int(n): (status, int(runs)) for n, status, _, runs in map(str.split, run_program(path, FAILING))}
    assert all(runs == 0 and status in ("ok", "unknown") for n, (status, runs) in second.items() if n in ran), second
    assert all(runs <= 1 for status, runs in second.values())
