"""How a journal is written: one transaction for all that waits, under one lock, and events that wait for nothing."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import re
import sqlite3
import threading
import tracemalloc
from collections.abc import Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from processes import SECONDS, intent, program

from ferrule import CONTEXT, Event, Journal, Runner, ToolCall, ToolContext, ask, deny, tool
from ferrule.errors import JournalError
from ferrule.journal import SQLiteJournal, _lockfile
from ferrule.journal._lockfile import open_lock_file
from ferrule.journal._rows import EventRows
from ferrule.journal._writer import EVENTS_AT_ONCE, MOST_EVENTS
from needed import needed

T = TypeVar("T")


def run(waited: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(waited, SECONDS))


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


def test_while_another_process_holds_the_lock_nothing_is_committed_and_all_is_read(journal: SQLiteJournal) -> None:
    run(journal.begin(intent("one")))
    with program(LOCKS, journal.path) as other:
        assert other.heard() == "locked"

        async def begin() -> None:
            beginning = asyncio.ensure_future(journal.begin(intent("two")))
            for _ in range(20):
                assert await journal.find("two") is None and await journal.find("one") is not None
                assert not beginning.done()
            other.tell()
            assert (await beginning).earlier is None
            assert await journal.find("two") is not None

        run(begin())


def test_while_another_process_holds_the_lock_nothing_is_written_back_at_the_end(journal: SQLiteJournal) -> None:
    run(journal.begin(intent("one")))
    log_file, file = Path(f"{journal.path}-wal"), Path(journal.path)
    before = file.read_bytes()
    with program(LOCKS, journal.path) as other:
        assert other.heard() == "locked"
        closing = threading.Thread(target=journal.close)
        closing.start()
        assert log_file.exists() and file.read_bytes() == before
        other.tell()
        closing.join(SECONDS)
    assert not log_file.exists() and file.read_bytes() != before


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


def traced(path: Path, durable: str, text: str = WRITES, *more: str) -> list[tuple[str, str, str]]:
    """The name, the file and the rest of each call to the system that a program makes."""
    strace = (
        needed("strace")["strace"],
        "-f",
        "--seccomp-bpf",
        "-y",
        "-o",
        str(path) + ".trace",
        "-e",
        f"trace={SYSTEM_CALLS}",
        *more,
    )
    with program(text, path, durable, under=strace) as other:
        other.rest()
    found = [A_CALL.match(line) for line in whole(Path(str(path) + ".trace").read_text(encoding="utf-8"))]
    return [(one["name"], one["path"] or one["other"] or "", one["rest"]) for one in found if one]


def whole(trace: str) -> Iterator[str]:
    """Its lines, those of a call that another thread's was written into in one."""
    begun: dict[str, str] = {}
    for line in trace.splitlines():
        thread = line.partition(" ")[0]
        if line.endswith("<unfinished ...>"):
            begun[thread] = line.removesuffix("<unfinished ...>")
        elif " resumed>" in line:
            yield begun.pop(thread, "") + line.partition(" resumed>")[2]
        else:
            yield line


def is_of_lock(name: str, path: str, rest: str) -> bool:
    """Whether the lock for commits is taken or released."""
    return name == "fcntl" and path.endswith("calls.db") and f"l_start={1 << 62}, l_len=1" in rest and "= 0" in rest


@pytest.mark.slow
def test_every_write_to_the_file_and_its_log_is_made_under_the_lock(tmp_path: Path) -> None:
    held, writes, checkpoints, before = False, 0, 0, ""
    for name, path, rest in traced(tmp_path / "calls.db", "full"):
        if is_of_lock(name, path, rest):
            held = "F_WRLCK" in rest
        elif name in ("pwrite64", "ftruncate", "unlink") and path.endswith(("calls.db", "calls.db-wal")):
            assert held, (name, path, rest)
            writes += 1
            checkpoints += path.endswith("calls.db") and before != path
            before = path
    assert writes > 1_000 and checkpoints >= 3 and not held


@pytest.mark.slow
@pytest.mark.parametrize(("durable", "for_each_commit"), [("full", 1), ("normal", 0)])
def test_how_often_the_disk_is_waited_for(tmp_path: Path, durable: str, for_each_commit: int) -> None:
    calls = traced(tmp_path / "calls.db", durable, WRITES.replace("10_000", "10"))
    transactions = sum(is_of_lock(*call) and "F_WRLCK" in call[2] for call in calls)
    waits = sum(name in ("fsync", "fdatasync") and path.endswith("-wal") for name, path, _ in calls)
    checkpoints = sum(name in ("fsync", "fdatasync") and path.endswith("calls.db") for name, path, _ in calls)
    # 500 calls in four rounds, with two changes each: they share transactions
    assert 8 <= transactions < 300
    assert abs(waits - for_each_commit * transactions) <= 2 * checkpoints + 6


def test_a_new_file_is_in_its_folder_after_a_loss_of_power(tmp_path: Path) -> None:
    calls = traced(tmp_path / "calls.db", "full", "Journal.open(path).close()")
    assert ("fsync", str(tmp_path)) in {(name, path) for name, path, _ in calls}


# -- together ----------------------------------------------------------------------------------------------------------


def test_a_change_that_cannot_be_written_is_no_reason_to_write_no_other(journal: SQLiteJournal) -> None:
    async def begin() -> list[Any]:
        wrong = intent("wrong", at=10**30)  # no number of SQLite's
        many = [journal.begin(intent(f"k{n}")) for n in range(10)]
        with open_lock_file(journal.path).committing():
            waiting = [asyncio.ensure_future(one) for one in (*many[:5], journal.begin(wrong), *many[5:])]
            await asyncio.sleep(0)
        return await asyncio.gather(*waiting, return_exceptions=True)

    found = run(begin())
    refused = found.pop(5)
    assert isinstance(refused, JournalError) and isinstance(refused.__cause__, OverflowError)
    assert [one.earlier for one in found] == [None] * 10
    assert rows(journal, "SELECT count(*) FROM calls") == [(10,)]


@pytest.mark.parametrize("step", ["checkpoint", "wake", "unlock"])
def test_what_goes_wrong_after_a_commit_changes_nothing_about_it(
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
    run(journal.begin(mine))
    with monkeypatch.context() as broken:
        broken.setattr(owner, name, breaks)
        run(journal.end(mine, {"status": "ok"}))
        assert journal.store.compare_and_set("k", None, 1)
    assert rows(journal, "SELECT state FROM calls") == [("ended",)] and journal.store.get("k") == 1
    assert "it broke" in caplog.text and "after the commit" in caplog.text


def test_of_a_change_that_fails_midway_nothing_is_kept(journal: SQLiteJournal) -> None:
    def change(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM calls")
        connection.execute("UPDATE calls SET at = ?", (10**30,))

    run(journal.begin(intent("one")))
    with pytest.raises(JournalError, match="too large") as refused:
        run(journal._writer.order(change))
    assert isinstance(refused.value.__cause__, OverflowError)
    assert rows(journal, "SELECT key FROM calls") == [("one",)]


def test_the_thread_that_writes_is_called_once_for_all_changes_of_a_turn_of_the_loop(
    journal: SQLiteJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, changed = list[None](), journal._writer._changed
    notify = changed.notify

    def counted() -> None:
        calls.append(None)
        notify()

    monkeypatch.setattr(changed, "notify", counted)

    async def begin() -> None:
        begun = await asyncio.gather(*(journal.begin(intent(f"k{n}")) for n in range(64)))
        assert [one.earlier for one in begun] == [None] * 64

    run(begin())
    assert len(calls) == 2, "it is told that something waits, and once that the turn is over"


def test_what_came_in_the_last_turn_of_a_loop_is_written_too(journal: SQLiteJournal) -> None:
    mine = intent("one")
    run(journal.begin(mine))

    async def leave() -> asyncio.Task[None]:
        return asyncio.ensure_future(journal.end(mine, {"status": "ok"}))

    loop = asyncio.new_event_loop()
    ending: Any = loop.run_until_complete(leave())
    loop.close()
    ending._log_destroy_pending = False  # nobody is told of it any more
    kept = run(journal.find("one", wait=True))
    assert kept is not None and kept.state == "ended"


def test_who_goes_away_before_it_is_begun_has_begun_nothing(journal: SQLiteJournal) -> None:
    async def begin() -> None:
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

    run(begin())


def test_a_journal_is_closed_though_another_process_stands_still_with_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_lockfile, "WAIT_SECONDS", 0.01)
    journal, ended = Journal.open(tmp_path / "calls.db"), list[Any]()
    monkeypatch.setattr(threading, "excepthook", ended.append)
    with open_lock_file(journal.path).committing():
        journal.close()
    assert ended == [] and "is closed without a checkpoint" in caplog.text


def test_events_whose_calls_never_end_are_not_remembered_for_ever() -> None:
    made, arguments = EventRows(1), {"text": "x" * 1_000}
    tracemalloc.start()
    try:
        for number in range(30_000):  # as where the disk was too slow for their ends
            if number == 10_000:
                before = tracemalloc.get_traced_memory()[0]
            made.make_row(Event("tool:pre", ToolCall(f"c{number}", "pay", arguments)))
        assert tracemalloc.get_traced_memory()[0] < 2 * before
    finally:
        tracemalloc.stop()


def test_what_cannot_be_flushed_is_told_to_who_waits_and_to_nobody_else(
    journal: SQLiteJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_lockfile, "WAIT_SECONDS", 0.01)

    async def flush() -> list[Any]:
        told = list[Any]()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        journal.note(Event("tool:pre", ToolCall("c1", "pay", {})))
        with open_lock_file(journal.path).committing():
            flushing = asyncio.ensure_future(journal.flush())
            await asyncio.wait({flushing})
        assert "locked it for" in str(flushing.exception())
        del flushing
        gc.collect()
        return told

    assert run(flush()) == []


def test_a_journal_that_is_closed_says_so(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "calls.db")
    journal.close()
    journal.note(Event("tool:pre", ToolCall("c1", "pay", {})))
    attempts = (partial(journal.begin, intent("one")), partial(journal.find, "one"), journal.unfinished, journal.flush)
    for attempt in attempts:
        with pytest.raises(JournalError, match=r"calls\.db' is closed"):
            run(attempt())
    with pytest.raises(Exception, match=r"calls\.db' is closed"):
        journal.store.get("k")


# -- events ------------------------------------------------------------------------------------------------------------


def test_all_that_happens_to_a_call_is_kept_in_its_order_and_nothing_secret(journal: SQLiteJournal) -> None:
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
        run(runner.run(ToolCall(f"c{amount}", "pay", {"amount": amount}), context))
    run(runner.run(ToolCall("c0", "no_such_tool", "{"), context))
    run(journal.flush())
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
    assert data["c1", "tool:decided"] | {"input": 0} == {
        "kind": "deny",
        "reason": "not one",
        "rule": "guard",
        "by": None,
        "input": 0,
    }
    journal.close()
    assert b"card 4111" not in Path(journal.path).read_bytes()


def test_of_a_suspended_call_it_is_kept_until_when_it_can_be_answered_and_nothing_that_resumes_it(
    journal: SQLiteJournal,
) -> None:
    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    def guard(call: ToolCall, context: ToolContext) -> Any:
        return ask("so much?")

    runner = Runner([pay], guards=[guard], journal=journal, approve=lambda *_: ask("later"))
    result = run(runner.run(ToolCall("c1", "pay", {"amount": 7}), session="s"))
    assert result.pending is not None
    run(journal.flush())
    [(data,)] = rows(journal, "SELECT data FROM events WHERE kind = 'tool:suspended'")
    pending = {name: result.pending[name] for name in ("kind", "expires_at", "reason")}
    assert json.loads(data)["pending"] == pending and pending["reason"]


def test_events_wait_for_nothing_and_how_many_were_too_many_is_kept(
    journal: SQLiteJournal, caplog: pytest.LogCaptureFixture
) -> None:
    events = [Event("tool:pre", ToolCall(f"c{n}", "pay", {})) for n in range(2 * MOST_EVENTS + 500)]
    with open_lock_file(journal.path).committing():
        for event in events:
            journal.note(event)
    with caplog.at_level(logging.WARNING, "ferrule"):
        run(journal.flush())
        run(journal.flush())
    kept = rows(journal, "SELECT call_id FROM events WHERE kind = 'tool:pre' ORDER BY seq")
    lost = rows(journal, "SELECT data FROM events WHERE kind = 'journal:lost'")
    assert MOST_EVENTS <= len(kept) <= 2 * MOST_EVENTS
    assert len(kept) + sum(json.loads(row[0])["count"] for row in lost) == len(events)
    assert kept[:MOST_EVENTS] == [(f"c{n}",) for n in range(MOST_EVENTS)]
    said = [record.getMessage() for record in caplog.records if "has lost" in record.getMessage()]
    assert 1 <= len(said) <= len(lost)


def test_who_waits_for_a_change_does_not_wait_for_all_events_and_who_waits_for_these_does(
    journal: SQLiteJournal,
) -> None:
    noted = 30 * EVENTS_AT_ONCE

    async def begin() -> tuple[int, int]:
        with open_lock_file(journal.path).committing():
            for n in range(noted):
                journal.note(Event("tool:pre", ToolCall(f"c{n}", "pay", {})))
            beginning = asyncio.ensure_future(journal.begin(intent("one")))
            flushing = asyncio.ensure_future(journal.flush())
            await asyncio.sleep(0)
        await beginning
        early = rows(journal, "SELECT count(*) FROM events")[0][0]
        await flushing
        return early, rows(journal, "SELECT count(*) FROM events")[0][0]

    early, late = run(begin())
    assert early < noted == late


def test_events_are_there_before_a_change_that_came_after_them(journal: SQLiteJournal) -> None:
    for n in range(100):
        journal.note(Event("tool:pre", ToolCall(f"c{n}", "pay", {})))
        run(journal.begin(intent(f"k{n}")))
        assert rows(journal, "SELECT count(*) FROM events") == rows(journal, "SELECT count(*) FROM calls") == [(n + 1,)]
