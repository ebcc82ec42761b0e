"""How a journal is written: one transaction for all that waits, under one lock, and events that wait for nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from processes import intent, program

from cast import ask_always
from ferrule import CONTEXT, Event, Journal, Runner, ToolCall, ToolContext, ask, deny, tool
from ferrule.errors import JournalError
from ferrule.journal import SQLiteJournal, _lockfile
from ferrule.journal._lockfile import open_lock_file
from ferrule.journal._writer import MOST_EVENTS
from needed import needed
from waits import BOUND


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SQLiteJournal]:
    journal = Journal.open(tmp_path / "calls.db")
    yield journal
    journal.close()


def rows(journal: SQLiteJournal, query: str) -> list[Any]:
    connection = sqlite3.connect(journal.path)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


# -- under one lock ----------------------------------------------------------------------------------------------------

LOCKS = """
import fcntl
file = open(path, "r+b")
fcntl.lockf(file, fcntl.LOCK_EX, 1, 1 << 62)
say("locked"); wait()
"""


async def test_nothing_is_committed_while_another_process_holds_the_lock(journal: SQLiteJournal) -> None:
    await journal.begin(intent("one"))
    with program(LOCKS, journal.path) as other:
        assert other.read_line() == "locked"
        beginning = asyncio.ensure_future(journal.begin(intent("two")))
        for _ in range(20):
            assert await journal.find("two") is None and await journal.find("one") is not None
            assert not beginning.done()
        other.tell()
        assert (await beginning).earlier is None
        assert await journal.find("two") is not None


WRITES = """
async def main():
    journal = Journal.open(path, durable=sys.argv[2])
    async def one(key):
        mine = intent(key, arguments={"text": "x" * 1_000})
        await journal.begin(mine)
        await journal.end(mine, None)
    for _ in range(4):
        await asyncio.gather(*(one(f"{n}") for n in range(500)))
    journal.close()
asyncio.run(main())
"""
SYSTEM_CALLS = "fcntl,pwrite64,fsync,fdatasync,ftruncate,unlink"
A_CALL = re.compile(r"^(?P<thread>\d+)\s+(?P<name>\w+)\((?:\d+<(?P<path>[^>]*)>|\"(?P<other>[^\"]*)\")(?P<rest>.*)")


def trace_program(path: Path, durable: str, text: str = WRITES) -> list[tuple[str, str, str]]:
    """The name, the file and the rest of each system call of a program."""
    options = ("-f", "--seccomp-bpf", "-y", "-o", f"{path}.trace", "-e", f"trace={SYSTEM_CALLS}")
    with program(text, path, durable, under=(needed("strace")["strace"], *options)) as other:
        other.rest()
    found = [A_CALL.match(line) for line in join_lines(Path(f"{path}.trace").read_text(encoding="utf-8"))]
    return [(one["name"], one["path"] or one["other"] or "", one["rest"]) for one in found if one]


def join_lines(trace: str) -> Iterator[str]:
    """Its lines, with the two halves of an interrupted call in one."""
    begun: dict[str, str] = {}
    for line in trace.splitlines():
        thread = line.partition(" ")[0]
        if line.endswith("<unfinished ...>"):
            begun[thread] = line.removesuffix("<unfinished ...>")
        elif " resumed>" in line:
            yield begun.pop(thread, "") + line.partition(" resumed>")[2]
        else:
            yield line


def is_commit_lock(name: str, path: str, rest: str) -> bool:
    """Whether the lock for commits is taken or released."""
    return name == "fcntl" and path.endswith("calls.db") and f"l_start={1 << 62}, l_len=1" in rest and "= 0" in rest


@pytest.mark.large
@pytest.mark.slow
@pytest.mark.parametrize(("durable", "for_each_commit"), [("full", 1), ("normal", 0)])
def test_every_write_is_made_under_the_lock_and_synced_as_promised(
    tmp_path: Path, durable: str, for_each_commit: int
) -> None:
    held, writes, checkpoints, before = False, 0, 0, ""
    calls = trace_program(tmp_path / "calls.db", durable)
    for name, path, rest in calls:
        if is_commit_lock(name, path, rest):
            held = "F_WRLCK" in rest
        elif name in ("pwrite64", "ftruncate", "unlink") and path.endswith(("calls.db", "calls.db-wal")):
            assert held, (name, path, rest)
            writes += 1
            checkpoints += path.endswith("calls.db") and before != path
            before = path
    assert writes > 1_000 and checkpoints >= 3 and not held
    transactions = sum(is_commit_lock(*call) and "F_WRLCK" in call[2] for call in calls)
    syncs = [path for name, path, _ in calls if name in ("fsync", "fdatasync")]
    of_log, of_file = (sum(path.endswith(end) for path in syncs) for end in ("-wal", "calls.db"))
    assert 8 <= transactions < 300  # 500 calls in four rounds, with two changes each: they share transactions
    assert abs(of_log - for_each_commit * transactions) <= 2 * of_file + 6


def test_the_folder_of_a_new_file_is_synced(tmp_path: Path) -> None:
    calls = trace_program(tmp_path / "calls.db", "full", "Journal.open(path).close()")
    assert ("fsync", str(tmp_path)) in {(name, path) for name, path, _ in calls}


# -- together ----------------------------------------------------------------------------------------------------------


async def test_a_change_that_cannot_be_written_stops_no_other(journal: SQLiteJournal) -> None:
    keys = [f"k{n}" for n in range(10)]
    intents = [intent("wrong", at=10**30) if key == "k5" else intent(key) for key in keys]  # no number of SQLite
    with open_lock_file(journal.path).committing():
        waiting = [asyncio.ensure_future(journal.begin(one)) for one in intents]
        await asyncio.sleep(0)
    found: list[Any] = await asyncio.gather(*waiting, return_exceptions=True)
    refused = found.pop(5)
    assert isinstance(refused, JournalError) and isinstance(refused.__cause__, OverflowError)
    assert [one.earlier for one in found] == [None] * 9
    assert rows(journal, "SELECT count(*) FROM calls") == [(9,)]


@pytest.mark.parametrize("step", ["checkpoint", "wake", "unlock"])
async def test_an_error_after_a_commit_does_not_undo_it(
    journal: SQLiteJournal, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str
) -> None:
    def breaks(*given: Any) -> None:
        raise OSError("it broke")

    owner, name = {
        "checkpoint": (journal._writer, "_checkpoint"),
        "wake": (journal._waiters, "wake"),
        "unlock": (journal._lock._locks, "unlock_commits"),
    }[step]
    mine = intent("one")
    await journal.begin(mine)
    with monkeypatch.context() as broken:
        broken.setattr(owner, name, breaks)
        await journal.end(mine, {"status": "ok"})
        assert journal.store.compare_and_set("k", None, 1)
    assert rows(journal, "SELECT state FROM calls") == [("ended",)] and journal.store.get("k") == 1
    assert "it broke" in caplog.text and "after the commit" in caplog.text


async def test_a_caller_cancelled_before_its_turn_begins_nothing(journal: SQLiteJournal) -> None:
    with open_lock_file(journal.path).committing():
        first = asyncio.ensure_future(journal.begin(intent("one")))  # in the transaction that waits for the lock
        await asyncio.sleep(0)
        while first not in asyncio.all_tasks():
            await asyncio.sleep(0)
        second = asyncio.ensure_future(journal.begin(intent("two")))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait({second})
    await first
    await journal.flush()
    assert await journal.find("two") is None


def test_a_journal_closes_though_another_process_keeps_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_lockfile, "WAIT_SECONDS", 0.01)
    journal, ended = Journal.open(tmp_path / "calls.db"), list[Any]()
    monkeypatch.setattr(threading, "excepthook", ended.append)
    with open_lock_file(journal.path).committing():
        journal.close()
    assert ended == [] and "is closed without a checkpoint" in caplog.text


def test_programs_that_start_together_wait_for_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lockfile, "WAIT_SECONDS", 0.01)  # of commits; a busy disk may hold a first opening for longer
    with closing(Journal.open(tmp_path / "calls.db")) as first, ThreadPoolExecutor() as others:
        with open_lock_file(first.path).committing():
            opening = others.submit(Journal.open, first.path)
            with pytest.raises(TimeoutError):
                opening.result(0.2)
        opening.result(BOUND).close()


async def test_a_journal_that_is_closed_says_so(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "calls.db")
    journal.close()
    journal.note(Event("tool:pre", ToolCall("c1", "pay", {})))
    attempts = (partial(journal.begin, intent("one")), partial(journal.find, "one"), journal.unfinished, journal.flush)
    for attempt in attempts:
        with pytest.raises(JournalError, match=r"calls\.db' is closed"):
            await attempt()
    with pytest.raises(Exception, match=r"calls\.db' is closed"):
        journal.store.get("k")


# -- events ------------------------------------------------------------------------------------------------------------


async def test_all_events_of_a_call_are_stored_in_order_without_secrets(journal: SQLiteJournal) -> None:
    @tool
    async def pay(amount: int, card: str, context: ToolContext = CONTEXT, currency: str = "EUR") -> str:
        """Pay."""
        context.progress(1, 2, "half")
        return f"paid {amount}"

    def guard(call: ToolCall, context: ToolContext) -> Any:
        return {1: deny("not one"), 2: ask("two?")}.get(call.arguments["amount"])

    runner = Runner([pay.bind(card="card 4111")], guards=[guard], journal=journal, approve=lambda *_: False)
    context = ToolContext(session="s", principal="ada")
    for amount in (7, 1, 2):
        await runner.run(ToolCall(f"c{amount}", "pay", {"amount": amount}), context)
    await runner.run(ToolCall("c0", "no_such_tool", "{"), context)
    await journal.flush()
    found = rows(journal, "SELECT call_id, kind, session, principal, tool_name, data FROM events ORDER BY seq")
    assert all(row[2:4] == ("s", "ada") for row in found)
    kinds = {key: [row[1] for row in found if row[0] == key] for key in ("c7", "c1", "c0")}
    assert kinds == {
        "c7": ["tool:pre", "tool:decided", "tool:started", "tool:progress", "tool:post"],
        "c1": ["tool:pre", "tool:decided", "tool:error"],
        "c0": ["tool:pre", "tool:error"],
    }
    data = {(row[0], row[1]): json.loads(row[5]) for row in found}
    assert data["c7", "tool:pre"] == {"input": {"amount": 7}}
    assert data["c7", "tool:decided"]["input"] == {"amount": 7, "card": "**********", "currency": "EUR"}
    assert data["c7", "tool:progress"] == {"done": 1, "total": 2, "message": "half"}
    assert data["c7", "tool:post"]["status"] == "ok"
    denied = {"kind": "deny", "reason": "not one", "rule": "guard", "by": None}
    assert data["c1", "tool:decided"] | denied == data["c1", "tool:decided"]
    journal.close()
    assert b"card 4111" not in Path(journal.path).read_bytes()


async def test_the_event_of_a_suspended_call_has_nothing_that_resumes_it(journal: SQLiteJournal) -> None:
    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    runner = Runner([pay], guards=[ask_always], journal=journal, approve=lambda *_: ask("later"))
    result = await runner.run(ToolCall("c1", "pay", {"amount": 7}), session="s")
    assert result.pending is not None
    await journal.flush()
    [(data,)] = rows(journal, "SELECT data FROM events WHERE kind = 'tool:suspended'")
    pending = {name: result.pending[name] for name in ("kind", "expires_at", "reason", "idempotency_key")}
    assert json.loads(data)["pending"] == pending and pending["reason"]


async def test_events_never_block_and_lost_ones_are_counted(
    journal: SQLiteJournal, caplog: pytest.LogCaptureFixture
) -> None:
    events = [Event("tool:pre", ToolCall(f"c{n}", "pay", {})) for n in range(2 * MOST_EVENTS + 500)]
    with open_lock_file(journal.path).committing():
        for event in events:
            journal.note(event)
    with caplog.at_level(logging.WARNING, "ferrule"):
        await journal.flush()
        await journal.flush()
    kept = rows(journal, "SELECT call_id FROM events WHERE kind = 'tool:pre' ORDER BY seq")
    lost = rows(journal, "SELECT data FROM events WHERE kind = 'journal:lost'")
    assert MOST_EVENTS <= len(kept) <= 2 * MOST_EVENTS
    assert len(kept) + sum(json.loads(row[0])["count"] for row in lost) == len(events)
    assert kept[:MOST_EVENTS] == [(f"c{n}",) for n in range(MOST_EVENTS)]
    said = [record.getMessage() for record in caplog.records if "has lost" in record.getMessage()]
    assert 1 <= len(said) <= len(lost)
