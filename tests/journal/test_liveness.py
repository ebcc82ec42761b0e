"""Who lives and who has died: several processes on one file, one of which is killed or forked."""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest
from processes import SECONDS, Program, intent, program

from ferrule import Journal
from ferrule.journal._lockfile import LockFile
from ferrule.values.journal_entry import JournalEntry

T = TypeVar("T")
pytestmark = pytest.mark.slow
BEGINS = """
async def main():
    journal = Journal.open(path)
    for key in sys.argv[2:]:
        await journal.begin(intent(key, claim=f"of {key}"))
    say("begun")
    wait()
    for key in sys.argv[2:]:
        await journal.end(intent(key, claim=f"of {key}"), {"status": "ok"})
    say("ended")
    wait()
asyncio.run(main())
"""
LOOKS = "journal = Journal.open(path); say(asyncio.run(journal.find(sys.argv[2])).state); journal.close()"


LOOP = asyncio.Runner()


@pytest.fixture(scope="module", autouse=True)
def _one_loop() -> Iterator[None]:
    """What is begun on it is at work as long as it is open."""
    yield
    LOOP.close()


def run(waited: Coroutine[Any, Any, T]) -> T:
    return LOOP.run(asyncio.wait_for(waited, SECONDS))


def state_in_another_process(path: Path, key: str) -> str:
    with program(LOOKS, path, key) as other:
        return other.rest()


def test_a_call_of_another_process_runs_until_that_is_killed(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "calls.db")
    with program(BEGINS, journal.path, "one", "two") as other:
        assert other.heard() == "begun"
        running = run(journal.find("one"))
        assert running is not None and running.state == "running"
        assert run(journal.unfinished()) == []
        assert run(journal.begin(intent("one"), after=running)).earlier == running
        other.kill()
    found = run(journal.find("one"))
    assert found is not None and found.state == "cut_off"
    assert [kept.intent.key for kept in run(journal.unfinished())] == ["one", "two"]
    assert run(journal.begin(intent("one"), after=found)).earlier is None
    assert run(journal.settle(run(journal.unfinished())[0], {"status": "unknown"}))
    assert run(journal.unfinished()) == []
    journal.close()


@pytest.mark.parametrize(
    ("end", "state", "outcome"), [(Program.tell, "ended", {"status": "ok"}), (Program.kill, "cut_off", None)]
)
def test_who_waits_for_a_call_of_another_process_hears_that_it_has_ended_or_was_killed(
    tmp_path: Path, end: Callable[[Program], object], state: str, outcome: Any
) -> None:
    journal = Journal.open(tmp_path / "calls.db")
    with program(BEGINS, journal.path, "one") as other:
        assert other.heard() == "begun"

        async def wait() -> JournalEntry | None:
            waiting = asyncio.ensure_future(journal.find("one", wait=True))
            await journal.flush()
            assert not waiting.done()
            end(other)
            return await waiting

        found = run(wait())
        assert found is not None and (found.state, found.outcome) == (state, outcome)
    journal.close()


@pytest.mark.parametrize("look", ["find", "unfinished"])
def test_what_a_process_ended_before_it_died_is_not_cut_off_for_who_had_read_it_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    journal = Journal.open(tmp_path / "calls.db")
    with program(BEGINS, journal.path, "one") as other:
        assert other.heard() == "begun"

        def lives(lock: LockFile, owner: int) -> bool:
            """It is asked between the reading of the call and what is made of it."""
            if other.process.poll() is None:
                other.tell()
                assert other.heard() == "ended"
                other.kill()
            return looked(lock, owner)

        looked = LockFile.lives
        monkeypatch.setattr(LockFile, "lives", lives)
        if look == "find":
            found = run(journal.find("one"))
            assert found is not None and found.state == "ended"
        else:
            assert run(journal.unfinished()) == []
    journal.close()


def test_what_was_acknowledged_is_there_after_the_process_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    with program(BEGINS, path, "one", "two") as other:
        assert other.heard() == "begun"
        other.tell()
        assert other.heard() == "ended"
        other.kill()
    journal = Journal.open(path)
    for key in ("one", "two"):
        found = run(journal.find(key))
        assert found is not None and found.state == "ended"
    journal.close()


def test_a_journal_that_is_closed_takes_no_life_from_another_of_its_process(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    one, other = Journal.open(path), Journal.open(path)
    run(one.begin(intent("one")))
    run(other.begin(intent("two")))
    other.close()
    assert state_in_another_process(path, "one") == "running"
    assert state_in_another_process(path, "two") == "cut_off"
    found = run(one.find("two"))
    assert found is not None and found.state == "cut_off"
    one.close()
    assert state_in_another_process(path, "one") == "cut_off"


def test_to_look_at_who_lives_takes_no_life(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    journal = Journal.open(path)
    run(journal.begin(intent("one")))
    for _ in range(3):
        found = run(journal.find("one"))
        assert found is not None and found.state == "running"
        assert state_in_another_process(path, "one") == "running"
    journal.close()


FORKS = """
from ferrule import Event, ToolCall
journal = Journal.open(path)
asyncio.run(journal.begin(intent("one")))
async def goes_on():
    await journal.begin(intent("two"))
    return (await journal.find("two")).state
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
    say(asyncio.run(goes_on()))
    wait()
    journal.close()
    sys.exit()
async def opened(): Journal.open(path)
for waited in (journal.find("one"), journal.begin(intent("three")), journal.end(intent("one"), None), opened()):
    try:
        asyncio.run(waited)
    except JournalError as error:
        assert "was open when this process was forked" in str(error), error
    else:
        raise AssertionError("it was not refused")
journal.note(Event("tool:pre", ToolCall("c", "pay", {})))
journal.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_is_refused_the_journal_of_its_parent_which_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    with program(FORKS, path) as other:
        assert other.heard() == "running"
        assert state_in_another_process(path, "one") == "running"
        other.tell()
        other.rest()
    journal = Journal.open(path)
    found = {key: run(journal.find(key)) for key in ("one", "two", "three")}
    assert {key: kept and kept.state for key, kept in found.items()} == {
        "one": "cut_off",
        "two": "cut_off",
        "three": None,
    }
    journal.close()


def test_a_forked_child_waits_for_nothing_when_it_notes_what_happens(tmp_path: Path) -> None:
    text = """
import threading
from ferrule import Event, ToolCall
journal, held, forked = Journal.open(path), threading.Event(), threading.Event()
def hold():  # as the thread that writes may at that moment
    with journal._writer._changed:
        held.set()
        forked.wait()
threading.Thread(target=hold).start()
held.wait()
if not os.fork():
    signal.alarm(20)
    for count in range(10_001):
        journal.note(Event("tool:pre", ToolCall("c", "pay", {})))
    say("noted"); os._exit(0)
forked.set()
os.wait()
"""
    with program(text, tmp_path / "calls.db") as other:
        assert other.heard() == "noted"


def test_a_child_that_was_forked_before_has_a_journal_of_its_own(tmp_path: Path) -> None:
    text = """
if not os.fork():
    journal = Journal.open(path); asyncio.run(journal.begin(intent("one"))); say("begun"); wait(); os._exit(0)
os.wait()
"""
    path = tmp_path / "calls.db"
    with program(text, path) as other:
        assert other.heard() == "begun"
        assert state_in_another_process(path, "one") == "running"
        other.tell()
        other.rest()
    assert state_in_another_process(path, "one") == "cut_off"


def test_what_was_noted_is_written_where_a_program_ends_without_closing(tmp_path: Path) -> None:
    text = """
from ferrule import Event, ToolCall
journal = Journal.open(path)
for n in range(1000): journal.note(Event("tool:pre", ToolCall(f"c{n}", "pay", {})))
"""
    path = tmp_path / "calls.db"
    with program(text, path) as other:
        other.rest()
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*) FROM events").fetchone() == (1000,)
    connection.close()


def test_a_journal_that_nobody_has_any_more_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    before = set(threading.enumerate())
    journal = Journal.open(path)
    (writes,) = set(threading.enumerate()) - before
    run(journal.begin(intent("one")))
    del journal
    gc.collect()
    writes.join(SECONDS)
    assert not (tmp_path / "calls.db-wal").exists()
    assert state_in_another_process(path, "one") == "cut_off"


def test_many_processes_that_begin_the_same_calls_share_them_without_a_double(tmp_path: Path) -> None:
    text = """
async def main():
    journal = Journal.open(path)
    say("ready"); wait()
    async def one(key):
        return (await journal.begin(intent(key, claim=f"{os.getpid()} {key}"))).earlier is None
    say(*await asyncio.gather(*(one(f"k{n}") for n in range(200))))
    wait()
asyncio.run(main())
"""
    with ExitStack() as stack:
        others = [stack.enter_context(program(text, tmp_path / "calls.db")) for _ in range(4)]
        assert [other.heard() for other in others] == ["ready"] * 4
        for other in others:
            other.tell()
        won = [other.heard().split() for other in others]
    assert [sum(one == "True" for one in of_a_key) for of_a_key in zip(*won, strict=True)] == [1] * 200


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_calls_without_an_id_of_processes_that_one_was_forked_into_are_calls_of_their_own(tmp_path: Path) -> None:
    forks = """
from ferrule import Runner, tool
@tool
async def pay(euros: int) -> str:
    "Pay."
    return "paid"
async def main():
    runner = Runner([pay], journal=Journal.open(path))
    result = await runner.run("pay", {"euros": 5}, session="s")
    say(result.call_id, *result.metadata)
for _ in range(2):
    if not (child := os.fork()):
        asyncio.run(main())
        os._exit(0)
    os.waitpid(child, 0)
"""
    with program(forks, str(tmp_path / "calls.db")) as program_that_forks:
        one, other = program_that_forks.rest().splitlines()
    assert one != other and "replayed" not in one + other
