"""A journal deletes old calls, but no unfinished ones."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest
from processes import SECONDS, program

from ferrule import Deferred, Journal, Runner, ask, loop, tool
from ferrule.journal import SQLiteJournal
from ferrule.journal.reading import Reader
from ferrule.journal.retention import Pruned
from ferrule.models import ModelError, Scripted
from journal_desk import ADA, DESK, aged, call, desk, found, journaled, one_of_each, the_call
from waits import wait_until

CUT_OFF = """
asyncio.run(kept(path, lambda runner: runner.run(call(sys.argv[2], sys.argv[3], order="slow"), ADA)))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "calls.db"


def pruned(path: Path, days: float) -> Pruned:
    journal = SQLiteJournal(path)
    try:
        return journal.prune(days)
    finally:
        journal.close()


def cut_off(path: Path, id: str, name: str) -> None:
    with program(DESK + CUT_OFF, path, id, name) as other:
        assert other.read_line() == "slow"
        wait_until(lambda: (id, "running") in found(path))  # what a call that only reads does is written a little later
        other.kill()


def rows(path: Path, table: str) -> int:
    with sqlite3.connect(path) as connection:
        count = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    connection.close()
    return int(count)


@tool
async def ship(order: str) -> Deferred:
    """Have an order shipped."""
    return Deferred("t1")


def deferred(path: Path) -> None:
    """A call that is done elsewhere."""
    journaled(path, lambda runner: runner.run(call("d1", "ship"), ADA), tools=[ship], guards=[])


def test_only_calls_that_ended_long_ago_are_deleted(path: Path) -> None:
    journaled(path, one_of_each)
    aged(path, 100)
    journaled(path, lambda runner: runner.run(call("young"), ADA))
    aged(path, 50)
    young = the_call(path, "young")
    assert pruned(path, 90) == Pruned(calls=5, events=18)
    assert found(path) == [("young", "ok")] and the_call(path, "young") == young
    assert (rows(path, "calls"), rows(path, "events")) == (1, len(young.events) + 1)
    assert pruned(path, 90) == Pruned()
    assert pruned(path, 0) == Pruned(calls=1, events=len(young.events))
    assert rows(path, "calls") == 0
    assert [event.kind for event in Reader(path).events()] == ["journal:pruned"] * 2


async def test_an_unfinished_call_is_never_deleted(path: Path) -> None:
    await asyncio.to_thread(journaled, path, one_of_each)
    await asyncio.to_thread(deferred, path)
    cut_off(path, "changing", "refund")
    unfinished = [("changing", "cut_off"), ("d1", "deferred")]
    aged(path, 1000)
    journal = SQLiteJournal(path)
    runner = desk(journal)
    waiting = asyncio.create_task(runner.run(call("running", order="slow"), ADA))
    record = (await runner.run(call("asked", order="later"), ADA)).record()
    await journal.flush()
    assert await asyncio.to_thread(journal.prune, 0) == Pruned(calls=5, events=18)
    assert sorted(found(path)) == [("asked", "suspended"), *unfinished, ("running", "running")]
    assert (await runner.resume(record, True)).success
    waiting.cancel()
    await asyncio.wait([waiting], timeout=SECONDS)
    journal.close()
    assert pruned(path, 0).calls == 2
    assert sorted(found(path)) == unfinished


def test_a_cut_off_call_is_deleted_if_it_only_reads_or_once_it_is_settled(path: Path) -> None:
    cut_off(path, "reading", "look")
    cut_off(path, "changing", "refund")
    aged(path, 100)
    assert pruned(path, 90).calls == 1 and pruned(path, 90) == Pruned()
    journaled(path, lambda runner: runner.recover())
    assert found(path) == [("changing", "unknown")]
    assert pruned(path, 90) == Pruned()  # it was settled today
    aged(path, 100)
    assert pruned(path, 90).calls == 1
    assert rows(path, "calls") == 0


def test_an_open_journal_prunes_itself_until_it_is_closed(path: Path) -> None:
    journaled(path, one_of_each)
    aged(path, 100)
    journaled(path, lambda runner: runner.run(call("young"), ADA))
    before = {*threading.enumerate()}
    journal = Journal.open(path, keep=90)
    [pruning] = [one for one in {*threading.enumerate()} - before if one.name == "ferrule journal retention"]
    wait_until(lambda: len(found(path)) == 1)
    assert found(path) == [("young", "ok")]
    journal.close()
    pruning.join(SECONDS)
    assert not pruning.is_alive()


async def test_a_stopped_run_is_deleted_unless_its_question_waits(path: Path) -> None:
    @tool
    async def pay(to: str) -> str:
        """Pay somebody."""
        return f"paid {to}"

    def fails(messages: object) -> str:
        raise ModelError("too much to do")

    journal = Journal.open(path)
    runner = Runner([pay], journal=journal)
    guards, later = [lambda call, context: ask("pay?")], lambda call, decision, context: decision
    asks = Runner([pay], journal=journal, guards=guards, approve=later)
    turn = [("pay", {"to": "ada"})]
    with pytest.raises(ModelError):
        await loop.run(Scripted([turn, fails]), [], runner, key="put aside")
    await loop.run(Scripted([turn]), [], asks, key="waits")
    journal.prune(0)
    for key, asked in (("put aside", 1), ("waits", 0)):
        model = Scripted([turn])
        again = await loop.run(model, [], asks, key=key)
        assert (again.status, len(model.requests)) == ("suspended", asked)
    journal.close()
