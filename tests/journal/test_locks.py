"""Locks say whose calls run and whose are cut off, whatever the processes open, close, fork and start."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from processes import BEGINS, SECONDS, Program, intent, program, state_elsewhere

from ferrule import Journal, Runner, tool
from ferrule.errors import DefinitionError, JournalError
from ferrule.guards import within
from ferrule.journal import _lockfile, _open_files
from ferrule.journal._lockfile import LockFile
from ferrule.journal.reading import Reader
from ferrule.tools import files

pytestmark = pytest.mark.slow
FLOCK = """
from ferrule.journal import _lockfile, _open_files
_lockfile.has_open_file_locks = _open_files.has_open_file_locks = lambda descriptor: False
"""
FORKS = """
async def main():
    await journal.begin(intent("one"))
journal = Journal.open(path)
asyncio.run(main())
if not os.fork():
    say(os.getpid())
    signal.pause()
signal.pause()
"""


@pytest.fixture(params=["bytes", pytest.param("flock", marks=pytest.mark.large)])
def text_before(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The text that makes other programs lock as this one does: by the lock of the system, or by flock."""
    if request.param == "bytes":
        return ""
    for module in (_lockfile, _open_files):
        monkeypatch.setattr(module, "has_open_file_locks", lambda descriptor: False)
    return FLOCK


# -- processes that run, end, fork or are killed -----------------------------------------------------------------------


async def test_a_call_of_another_process_runs_until_it_is_killed(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "calls.db")
    with program(BEGINS, journal.path, "one", "two") as other:
        assert other.read_line() == "begun"
        running = await journal.find("one")
        assert running is not None and running.state == "running"
        assert await journal.unfinished() == []
        assert (await journal.begin(intent("one"), after=running)).earlier == running
        other.kill()
    found = await journal.find("one")
    assert found is not None and found.state == "cut_off"
    assert [kept.intent.key for kept in await journal.unfinished()] == ["one", "two"]
    assert (await journal.begin(intent("one"), after=found)).earlier is None
    assert await journal.settle((await journal.unfinished())[0], {"status": "unknown"})
    assert await journal.unfinished() == []
    journal.close()


@pytest.mark.parametrize(
    ("end", "state", "outcome"), [(Program.tell, "ended", {"status": "ok"}), (Program.kill, "cut_off", None)]
)
async def test_a_waiter_is_woken_when_another_process_ends_the_call_or_dies(
    tmp_path: Path, end: Callable[[Program], object], state: str, outcome: Any
) -> None:
    journal = Journal.open(tmp_path / "calls.db")
    with program(BEGINS, journal.path, "one") as other:
        assert other.read_line() == "begun"
        waiting = asyncio.ensure_future(journal.find("one", wait=True))
        await journal.flush()
        assert not waiting.done()
        end(other)
        found = await waiting
        assert found is not None and (found.state, found.outcome) == (state, outcome)
    journal.close()


@pytest.mark.parametrize("look", ["find", "unfinished"])
async def test_a_call_that_ends_while_it_is_read_is_not_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    journal = Journal.open(tmp_path / "calls.db")
    with program(BEGINS, journal.path, "one") as other:
        assert other.read_line() == "begun"

        def lives(lock: LockFile, owner: int) -> bool:  # the journal asks after it has read the call
            if other.process.poll() is None:
                other.tell()
                assert other.read_line() == "ended"
                other.kill()
            return looked(lock, owner)

        looked = LockFile.lives
        monkeypatch.setattr(LockFile, "lives", lives)
        if look == "find":
            found = await journal.find("one")
            assert found is not None and found.state == "ended"
        else:
            assert await journal.unfinished() == []
    journal.close()


async def test_closing_one_of_two_journals_cuts_off_only_its_own_calls(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    one, other = Journal.open(path), Journal.open(path)
    await one.begin(intent("one"))
    await other.begin(intent("two"))
    other.close()
    assert state_elsewhere(path, key="one") == "running"
    assert state_elsewhere(path, key="two") == "cut_off"
    found = await one.find("two")
    assert found is not None and found.state == "cut_off"
    one.close()
    assert state_elsewhere(path, key="one") == "cut_off"


FORKS_AND_USES = """
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
async def test_a_forked_child_cannot_use_the_journal_of_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    with program(FORKS_AND_USES, path) as other:
        assert other.read_line() == "running"
        assert state_elsewhere(path, key="one") == "running"
        other.tell()
        other.rest()
    journal = Journal.open(path)
    found = [await journal.find(key) for key in ("one", "two", "three")]
    assert [kept and kept.state for kept in found] == ["cut_off", "cut_off", None]
    journal.close()


def test_a_forked_child_does_not_block_on_a_lock_of_its_parent(tmp_path: Path) -> None:
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
    signal.alarm(60)
    for count in range(10_001):
        journal.note(Event("tool:pre", ToolCall("c", "pay", {})))
    say("noted"); os._exit(0)
forked.set()
os.wait()
"""
    with program(text, tmp_path / "calls.db") as other:
        assert other.read_line() == "noted"


def test_of_many_processes_one_begins_each_call(tmp_path: Path) -> None:
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
        assert [other.read_line() for other in others] == ["ready"] * 4
        for other in others:
            other.tell()
        won = [other.read_line().split() for other in others]
    assert [sum(one == "True" for one in of_a_key) for of_a_key in zip(*won, strict=True)] == [1] * 200


# -- descriptors -------------------------------------------------------------------------------------------------------


async def test_closing_a_descriptor_drops_no_lock(tmp_path: Path, text_before: str) -> None:
    path = tmp_path / "calls.db"
    journal = Journal.open(path)
    await journal.begin(intent("one"))
    for file in tmp_path.glob("calls.db*" if not text_before else "calls.db-lock*"):
        file.read_bytes()
    assert state_elsewhere(path, text_before) == "running"
    journal.close()
    assert state_elsewhere(path, text_before) == "cut_off"


OPENS_WITH_FEW_DESCRIPTORS = """
import resource
def count(): return len(os.listdir("/dev/fd"))
Journal.open(path).close()
before, (soft, hard) = count(), resource.getrlimit(resource.RLIMIT_NOFILE)
for more in range(12):
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + more, hard))
    try: Journal.open(path).close()
    except JournalError: pass
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
say(count() - before)
"""


def test_a_journal_that_cannot_be_opened_leaves_no_descriptor_open(tmp_path: Path, text_before: str) -> None:
    with program(text_before + OPENS_WITH_FEW_DESCRIPTORS, tmp_path / "calls.db") as other:
        assert other.rest() == "0"


# -- ends of programs -------------------------------------------------------------------------------------------------


def remove_log(path: Path) -> Path:
    path.with_name("calls.db-wal").unlink()
    return path


def link(path: Path) -> Path:
    os.link(path, path.with_name("link.db"))
    return path.with_name("link.db")


def move_with_log(path: Path) -> Path:
    path.with_name("calls.db-wal").rename(path.with_name("moved.db-wal"))
    return path.rename(path.with_name("moved.db"))


@pytest.mark.large
@pytest.mark.skipif(not hasattr(_lockfile.fcntl, "F_OFD_SETLK"), reason="the system cannot tell who has it open")
@pytest.mark.parametrize("change", [remove_log, link, move_with_log])
@pytest.mark.parametrize("is_elsewhere", [True, False])
def test_an_open_journal_whose_log_would_be_missed_is_refused(
    tmp_path: Path, change: Callable[[Path], Path], is_elsewhere: bool
) -> None:
    path = tmp_path / "calls.db"
    with ExitStack() as stack:
        if is_elsewhere:
            assert stack.enter_context(program(BEGINS, path)).read_line() == "begun"
        else:
            stack.callback(Journal.open(path).close)
        changed = change(path)
        with pytest.raises(JournalError, match=r"has the journal .* open, but the files .* are missing"):
            Journal.open(changed)
    Journal.open(changed).close()


def test_a_forked_child_keeps_no_call_of_its_parent_running(tmp_path: Path, text_before: str) -> None:
    path = tmp_path / "calls.db"
    with program(text_before + FORKS, path) as parent:
        child = int(parent.read_line())
        try:
            parent.kill()
            assert state_elsewhere(path, text_before) == "cut_off"
        finally:
            os.kill(child, signal.SIGKILL)


WORKS = """
import os, time
from ferrule import ToolContext

def pay(place: str) -> str:
    "Pay."
    with open(place, "w") as file:
        file.write(f"{os.getpid()} {os.getppid()}\\n")
    time.sleep(3600)
    return "paid"
"""
HAS_A_WORKER = """
from ferrule import Runner, ToolCall, tool
from works import pay
import threading
def commit():
    wait()
    with journal._lock.committing():
        say("committing")
        signal.pause()
async def main():
    runner = Runner([tool(isolation="process")(pay)], journal=journal)
    await runner.run(ToolCall("c1", "pay", {"place": sys.argv[2]}), session="s")
journal = Journal.open(path)
"""
IS_KILLED = """
threading.Thread(target=commit, daemon=True).start()
asyncio.run(main())
"""
EXITS = """
threading.Thread(target=asyncio.run, args=[main()], daemon=True).start()
wait()
"""


@pytest.mark.parametrize("end", [IS_KILLED, EXITS], ids=["killed", "exits"])
async def test_a_call_runs_until_the_worker_of_a_program_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text_before: str, end: str
) -> None:
    (tmp_path / "works.py").write_text(WORKS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    path, place = tmp_path / "calls.db", tmp_path / "numbers"
    os.mkfifo(place)
    with program(text_before + HAS_A_WORKER + end, path, place) as other:
        worker, supervisor = map(int, place.read_text(encoding="utf-8").split())
        os.kill(supervisor, signal.SIGSTOP)  # as on a machine that is busy
        try:
            other.tell()
            if end == IS_KILLED:
                assert other.read_line() == "committing"
                other.kill()
            other.process.wait(SECONDS)
            journal = Journal.open(path)  # which commits: what was being committed ended with the program
            [call] = Reader(path).calls()
            assert call.status == "running" and call.intent is not None
        finally:
            os.kill(supervisor, signal.SIGCONT)
        found = await journal.find(call.intent.key, wait=True)
    assert found is not None and found.state == "cut_off"
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
    journal.close()


# -- tools -------------------------------------------------------------------------------------------------------------


async def test_file_tools_open_no_file_of_an_open_journal(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    journal = Journal.open(path, within_reach=True)
    os.link(path, tmp_path / "calls.db linked")
    runner = Runner(files.tools, guards=[within(tmp_path)])
    for file in tmp_path.iterdir():
        for name, arguments in (("read_file", {}), ("write_file", {"content": "paid"}), ("edit_file", EDIT)):
            result = await runner.run(name, {"path": str(file), **arguments})
            assert not result.success and "belongs to an open journal" in str(result.error)
    assert "skipped: 4" in (await runner.run("search_files", {"path": str(tmp_path), "pattern": "."})).text
    journal.close()
    assert "not text" in str((await runner.run("read_file", {"path": str(path)})).error)


EDIT = {"old": "a", "new": "b"}


@tool
async def note(path: str) -> str:
    """Write a note."""
    return path


def test_a_journal_within_reach_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    reached, apart = Journal.open(tmp_path / "notes" / "calls.db"), Journal.open(tmp_path / "notes.db")
    guard = within(tmp_path / "notes")
    guarded = note.replace(guards=[guard])
    runner = Runner([note], journal=reached)
    mounted = Runner([note], guards=[guard])
    for make in (
        lambda: Runner([note], guards=[guard], journal=reached),
        lambda: Runner([guarded], journal=reached),
        lambda: Runner(mounted.tools, guards=[guard], journal=reached),
        lambda: runner.replace(guards=[guard]),
        lambda: mounted.replace(journal=reached),
    ):
        with pytest.raises(DefinitionError, match=r"lies inside '.*notes', where within\(…\) .* within_reach=True"):
            make()
    Runner([guarded], guards=[guard], journal=apart)
    reached.close()
    apart.close()
    said = Journal.open(tmp_path / "notes" / "calls.db", within_reach=True)
    Runner([guarded], guards=[guard], journal=said)
    said.close()
