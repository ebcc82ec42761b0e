"""A journal's file is read, beside the programs that write it and after them."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from processes import program

from ferrule import Deferred, DefinitionError, Journal, Runner, ToolContext, ToolResult, approval, tool
from ferrule.errors import JournalError
from ferrule.journal.reading import NOT_STARTED, UNFINISHED, Filter, Reader
from ferrule.journal.retention import find_expired
from journal_desk import ADA, DESK, CountingReader, aged, call, desk, found, journaled, one_of_each, the_call
from waits import wait_until

OF_EACH = [("c1", "ok"), ("c1", "ok"), ("c2", "suspended"), ("c3", "failed"), ("c4", "not_found")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "calls.db"


def listed(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_a_call_has_its_decisions_its_approver_and_its_outcome(path: Path) -> None:
    journaled(path, lambda runner: runner.run(call("c1", euros=5), ADA))
    one = the_call(path, "c1")
    kinds = [event.kind.removeprefix("tool:") for event in one.events]
    assert kinds == ["pre", "decided", "decided", "started", "post"]
    assert [said.data["kind"] for said in one.decisions] == ["ask", "allow"]
    record = json.loads(json.dumps(one.record()))
    assert (record["tool_name"], record["output"]) == ("refund", "refunded o1")
    assert record["input"] == {"order": "o1", "euros": 5}
    assert (record["answered_by"], record["executed"], record["process"]["pid"]) == ("eve", True, os.getpid())
    assert one.intent is not None and record["idempotency_key"] == one.intent.key and one.intent.state == "ended"
    assert one.began_at <= one.intent.at <= (one.ended_at or 0)


async def test_reading_an_open_journal_changes_no_file(path: Path) -> None:
    journal = Journal.open(path)
    await one_of_each(desk(journal))
    await journal.flush()
    before = {file: (path.parent / file).read_bytes() for file in listed(path.parent) if not file.endswith("-shm")}
    assert found(path) == OF_EACH
    after = {file: (path.parent / file).read_bytes() for file in listed(path.parent) if not file.endswith("-shm")}
    assert after == before and len(before["calls.db-wal"]) > 0
    await desk(journal).run(call("c5", "look"), ADA)
    await journal.flush()
    assert found(path) == [*OF_EACH, ("c5", "ok")]
    journal.close()


def test_reading_a_closed_journal_makes_no_file(path: Path) -> None:
    journaled(path, one_of_each)
    assert found(path) == OF_EACH and listed(path.parent) == ["calls.db"]


def test_calls_written_while_an_idle_file_is_read_are_not_missed(path: Path) -> None:
    journaled(path, one_of_each)
    journals: list[Journal] = []

    async def write(journal: Journal) -> None:
        await desk(journal).run(call("c5", "look"), ADA)
        await journal.flush()

    def query(look: Any) -> list[str]:
        if not journals:  # the first time, when nobody had it open
            journals.append(Journal.open(path))
            asyncio.run(write(journals[0]))
        return [one.group.key.call_id for one in look.newest(Filter(), None)]

    assert Reader(path).look(query) == ["c1", "c2", "c3", "c4", "c5"]
    journals[0].close()


SLOW = """
asyncio.run(kept(path, lambda runner: runner.run(call("r1", sys.argv[2], order="slow"), ADA)))
"""


@pytest.mark.parametrize("name", ["refund", "look"])
def test_a_call_is_running_until_its_process_is_killed(path: Path, name: str) -> None:
    with program(DESK + SLOW, path, name) as other:
        assert other.read_line() == "slow"
        following = Reader(path).follow()
        news = wait_until(following.news)  # what a call that only reads does is written a little later
        assert [(one.call_id, one.status) for one in news] == [("r1", "running")]
        assert found(path, status={"running"}) == [("r1", "running")]
        assert the_call(path, "r1").process == {"pid": other.process.pid, "host": socket.gethostname()}
        other.kill()
    assert found(path) == found(path, status={"unknown"}) == found(path, status={"unfinished"}) == [("r1", "cut_off")]
    assert [(one.call_id, one.status) for one in following.news()] == [("r1", "cut_off")]
    assert following.news() == []


AGAIN = """
from ferrule import tool

@tool(idempotent=True)
async def put(order: str) -> str:
    \"\"\"Put an order away.\"\"\"
    print("slow", flush=True)
    await asyncio.Event().wait()

asyncio.run(kept(path, lambda runner: runner.replace(tools=[put]).run(call("p1", "put"), ADA)))
"""


def test_a_cut_off_call_that_ran_again_is_one_call(path: Path) -> None:
    @tool(idempotent=True)
    async def put(order: str) -> str:
        """Put an order away."""
        return "put away"

    for _ in range(2):
        with program(DESK + AGAIN, path) as other:
            assert other.read_line() == "slow"
            other.kill()
        assert found(path) == [("p1", "cut_off")]
    assert journaled(path, lambda runner: runner.run(call("p1", "put"), ADA), tools=[put]).success
    assert found(path) == [("p1", "ok")] and found(path, status=UNFINISHED) == []
    one = the_call(path, "p1")
    assert [event.kind for event in one.events].count("tool:started") == 3 and one.intent is not None
    assert journaled(path, lambda runner: runner.run(call("p1", "put"), ADA), tools=[put]).metadata["replayed"]
    assert found(path) == [("p1", "ok"), ("p1", "ok")]


def test_a_call_resumed_in_another_process_is_one_call(path: Path) -> None:
    record = journaled(path, lambda runner: runner.run(call("c2", order="later"), ADA)).record()
    assert found(path) == [("c2", "suspended")]
    assert the_call(path, "c2").result["pending"]["expires_at"] > time.time()
    assert journaled(path, lambda runner: runner.resume(record, True, by="kim")).success
    one = the_call(path, "c2")
    assert (one.status, one.result["answered_by"]) == ("ok", "kim")
    assert len({event.owner for event in one.events}) == 2
    second = journaled(path, lambda runner: runner.resume(record, True, by="lou"))
    assert second.metadata["replayed"] is True
    again = the_call(path, "c2")
    assert (again.status, again.result["answered_by"], again.ended_at) == ("ok", "kim", one.ended_at)
    assert again.events[-1].data["metadata"]["replayed"] is True and not again.is_replayed


@tool
async def ship(order: str) -> Deferred:
    """Have an order shipped."""
    return Deferred(f"ticket of {order}")


def test_deferred_work_and_its_repetition_end_together(path: Path) -> None:
    async def ask_for_it(runner: Runner) -> ToolResult:
        return await runner.run(call("d1", "ship"), ADA)

    shipping: dict[str, Any] = {"tools": [ship], "guards": [], "approve": None}
    record = journaled(path, ask_for_it, **shipping).record()
    journaled(path, ask_for_it, **shipping)
    assert found(path) == [("d1", "deferred"), ("d1", "deferred")]
    first, again = Reader(path).call("d1")
    assert (first.is_replayed, again.is_replayed) == (False, True)
    assert first.intent is not None and first.intent == again.intent

    async def end(runner: Runner) -> ToolResult:
        return await runner.resume(record, ToolResult("it has left"))

    assert journaled(path, end, **shipping).success
    first, again = Reader(path).call("d1")
    assert (first.status, first.result["output"]) == (again.status, again.result["output"]) == ("ok", "it has left")
    assert first.events[-1].kind == "tool:post" and again.events[-1].kind == "tool:suspended"
    assert first.ended_at is not None and again.ended_at is not None


def test_attempts_and_replays_of_one_call_are_counted(path: Path) -> None:
    async def many(runner: Runner) -> None:
        await one_of_each(runner)
        for order in ("bad", "bad", "o1"):
            await runner.run(call("c3", "look", order=order), ADA)
        await runner.run(call("c1", euros=1), ToolContext(principal="ada", session="s9"))

    journaled(path, many)
    merged = [(one.call_id, one.status, one.attempts, one.replays) for one in Reader(path).calls()]
    assert merged == [
        ("c1", "ok", 1, 1),
        ("c2", "suspended", 0, 0),
        ("c4", "not_found", 0, 0),
        ("c3", "failed", 3, 0),  # with other arguments it is another call
        ("c3", "ok", 1, 0),
        ("c1", "ok", 1, 0),  # and in another session
    ]
    first = next(Reader(path).calls())
    assert not first.is_replayed and (first.output, first.executed) == ("refunded o1", True)


def test_an_ended_call_hides_no_waiting_one_of_another_run(path: Path) -> None:
    def send(turn: str, approve: Any) -> list[tuple[str, int]]:
        journaled(path, lambda runner: runner.run_all([call("c1")], ADA, turn=turn), approve=approve)
        return [(one.status, one.attempts) for one in Reader(path).calls()]

    assert send("r1/1", lambda *_: True) == [("ok", 1)]
    assert send("r2/1", approval.later) == [("ok", 1), ("suspended", 0)]
    assert send("r3/1", approval.later) == [("ok", 1), ("suspended", 0), ("suspended", 0)]
    assert send("r2/1", lambda *_: True) == [("ok", 1), ("suspended", 0), ("ok", 1)]


WAITS_FOR_APPROVAL = """
async def forever(call, decision, context):
    print("asked", flush=True)
    await asyncio.Event().wait()

asyncio.run(kept(path, lambda runner: runner.replace(approve=forever).run(call("c1", euros=1), ADA)))
"""


def test_a_call_killed_while_a_person_was_asked_was_not_started(path: Path) -> None:
    with program(DESK + WAITS_FOR_APPROVAL, path) as other:
        assert other.read_line() == "asked"
        wait_until(lambda: found(path) == [("c1", "asked")])  # events are committed soon
        following = Reader(path).follow()
        assert [one.status for one in following.news()] == ["asked"]
        other.kill()
    assert [one.status for one in following.news()] == [NOT_STARTED]
    [one] = Reader(path).calls()
    assert (one.status, one.executed) == (NOT_STARTED, False) and found(path, status=UNFINISHED) == []
    assert journaled(path, lambda runner: runner.run(call("c1", euros=1), ADA)).success
    [one] = Reader(path).calls()
    assert (one.status, one.attempts) == ("ok", 1)


@pytest.mark.parametrize(
    "wanted",
    [
        {"status": "failed"},
        {"status": {"broken"}},
        {"status": 5},
        {"principal": ["ada"]},
        {"tool": {"refund"}},
        {"since": "2h"},
        {"until": "2026-11-30"},
    ],
)
def test_a_filter_refuses_a_condition_that_fits_nothing(wanted: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=rf"Filter\({next(iter(wanted))}\)"):
        Filter(**wanted)


@pytest.mark.parametrize("rows", [0, 20_000])
def test_calls_are_filtered(path: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr("ferrule.journal.reading._SORTED_ROWS", rows)  # with 0, a time is found without its index
    journaled(path, one_of_each)
    assert found(path, tool="ref*") == [*OF_EACH[:3], OF_EACH[4]]
    assert found(path, tool="look") == [("c3", "failed")]
    assert found(path, principal="bob") == found(path, session="s2") == [("c4", "not_found")]
    assert found(path, status={"suspended", "failed"}) == OF_EACH[2:4]
    assert found(path, status=["unfinished", "failed"]) == OF_EACH[2:4]
    assert found(path, call_id="c1", tool="refund", principal="ada") == OF_EACH[:2]
    calls = list(Reader(path).calls(Filter(every=True)))
    assert found(path, since=calls[3].events[-1].at) == OF_EACH[3:]
    assert found(path, until=calls[1].began_at) == OF_EACH[:2]
    assert [one.call_id for one in Reader(path).calls(newest=2)] == ["c3", "c4"]
    assert [one.call_id for one in Reader(path).calls(Filter(tool="refund"), newest=1)] == ["c2"]
    assert [event.kind for event in Reader(path).events(Filter(principal="bob"))] == ["tool:pre", "tool:error"]
    assert len(list(Reader(path).events())) == sum(len(one.events) for one in calls)


@pytest.mark.parametrize(
    ("mine", "others", "wanted"),
    [
        (("c", "mine", "ada"), ("d", "yours", "ada"), Filter(session="mine", principal="ada")),
        (("c", "all", "ada"), ("d", "all", "bob"), Filter(principal="ada")),
        (("c", "all", "ada"), ("d", "all", "ada"), Filter(call_id="c", session="all", principal="ada")),
    ],
)
async def test_calls_of_one_id_session_or_principal_are_listed_without_reading_the_others(
    path: Path, mine: tuple[str, str, str], others: tuple[str, str, str], wanted: Filter
) -> None:
    journal = Journal.open(path)

    async def count_steps(name: str, session: str, principal: str, calls: int) -> int:
        for number in range(calls):
            await desk(journal).run(call(f"{name}{number or ''}", "look"), session=session, principal=principal)
        await journal.flush()
        reader = CountingReader(path)
        assert len(list(reader.calls(wanted))) == 1
        return reader.steps

    alone = await count_steps(*mine, 1)
    assert await count_steps(*others, 500) < 2 * alone + 10
    journal.close()


def test_calls_since_a_time_and_expired_ones_are_found_without_reading_the_others(tmp_path: Path) -> None:
    async def look_often(runner: Runner) -> None:
        for number in range(500):
            await runner.run(call(f"c{number}", "look"), ADA)

    def count_steps(path: Path) -> tuple[int, int]:
        journaled(path, lambda runner: runner.run(call("now", "look"), ADA))
        reader = CountingReader(path)
        hour_ago = time.time() - 3_600
        assert [one.call_id for one in reader.calls(Filter(since=hour_ago))] == ["now"]
        listing, reader.steps = reader.steps, 0
        assert not reader.look(lambda look: find_expired(look, hour_ago - 90 * 86_400, time.time())).events
        return listing, reader.steps

    journaled(tmp_path / "many.db", look_often)
    aged(tmp_path / "many.db", 1)
    alone, among_others = count_steps(tmp_path / "one.db"), count_steps(tmp_path / "many.db")
    assert among_others[0] < 2 * alone[0] + 10
    assert among_others[1] < 2 * alone[1] + 10


async def test_following_gives_each_change_once(path: Path) -> None:
    journal = Journal.open(path)
    runner = desk(journal)
    await one_of_each(runner)
    await journal.flush()
    following = Reader(path).follow(Filter(principal="ada"), newest=2)

    def news() -> list[tuple[str, str]]:
        return [(one.call_id, one.status) for one in following.news()]

    assert news() == OF_EACH[2:4]
    assert news() == []
    await runner.run(call("c6"), ADA)
    await runner.run(call("c7", "look"), ToolContext(principal="bob", session="s2"))
    record = (await runner.run(call("c8", order="later"), ADA)).record()
    await journal.flush()
    assert news() == [("c6", "ok"), ("c8", "suspended")]
    await runner.resume(record, True)
    await journal.flush()
    assert news() == [("c8", "ok")]
    journal.close()


# -- what is no journal ------------------------------------------------------------------------------------------------


def refused(path: Path) -> str:
    with pytest.raises(JournalError) as error:
        list(Reader(path).calls())
    assert "\n" not in str(error.value) and path.name in str(error.value)
    return str(error.value)


def test_reading_makes_no_journal(path: Path) -> None:
    assert "there is no journal" in refused(path)
    assert "there is no journal" in refused(path.parent)
    assert listed(path.parent) == []


def test_an_exclusively_locked_journal_is_in_use(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journaled(path, one_of_each)
    monkeypatch.setattr("ferrule.journal.reading.BUSY_SECONDS", 0.01)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    assert "in use" in refused(path)
    holder.close()


@pytest.mark.parametrize("data", ["{", "[" * 5_000, "1" * 5_000])
def test_an_unreadable_row_hides_no_other_call(path: Path, data: str) -> None:
    journaled(path, one_of_each)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE events SET data = ? WHERE kind = 'tool:error'", (data,))
        connection.execute("UPDATE calls SET arguments = ?, outcome = ?", (data, data))
    connection.close()
    assert [call_id for call_id, _ in found(path)] == [call_id for call_id, _ in OF_EACH]
    assert any("unreadable" in event.data for event in Reader(path).events())


def test_pages_of_calls_have_each_call_once_whatever_their_size(tmp_path: Path) -> None:
    async def work(runner: Runner) -> None:
        for number in (1, 2, 3, 1, 4, 2, 5, 1):
            await runner.run(call(f"c{number}"), ADA)
        await runner.run(call("c6", order="later"), ADA)

    journaled(tmp_path / "calls.db", work)
    reader = Reader(tmp_path / "calls.db")
    for wanted in (Filter(), Filter(every=True), Filter(status={"ok"})):
        whole = [(one.group.key, one.status) for one in reader.newest(wanted)]
        for size in (1, 2, 3):
            pages: list[Any] = []
            before: int | None = None
            while page := reader.newest(wanted, size, before=before):
                pages = [*page, *pages]
                before = page[0].place
            assert [(one.group.key, one.status) for one in pages] == whole
