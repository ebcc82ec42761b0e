"""examples/invoice_desk, killed at the worst moments and started again: the bank is asked what was paid."""

from __future__ import annotations

import os
import sqlite3
import stat
import sys
from contextlib import closing
from pathlib import Path

import pytest

import preloaded
from ferrule.journal.reading import Filter, Reader

pytestmark = pytest.mark.slow
DESK = Path(__file__).parents[2] / "examples" / "invoice_desk" / "desk.py"
PAID = [("Acme Paper", 12000), ("ada", 25000), ("bob", 1500)]

KILLED = f"""
import os, signal, sys

sys.path.insert(0, {os.fspath(DESK.parent)!r})
import bank, desk
from ferrule.journal import SQLiteJournal

def kill(*given, **options):
    os.kill(os.getpid(), signal.SIGKILL)

transfer, end = bank.Bank.transfer, SQLiteJournal.end

def transfer_and_kill(*given):
    transfer(*given)
    kill()

async def end_and_kill(*given):
    await end(*given)
    kill()

def tell_and_kill(journal, *given, **options):
    journal.store.compare_and_set("told", None, {{}})  # in the file with what was told before
    kill()

match sys.argv.pop(1):
    case "before the intent":
        SQLiteJournal.begin = kill
    case "before the intent, when the call was told":
        SQLiteJournal.begin = tell_and_kill
    case "before the transfer":
        bank.Bank.transfer = kill
    case "after the transfer":
        bank.Bank.transfer = transfer_and_kill
    case "after the outcome":
        SQLiteJournal.end = end_and_kill
desk.main()
"""
"""The program, which kills itself at the moment that its first argument names."""


class Desk:
    """The desk with a folder of its own, each command a process."""

    def __init__(self, folder: Path, killed: Path) -> None:
        self.folder, self.killed = folder / "desk", killed

    def run(self, *words: str, killed: str | None = None) -> str:
        program = [DESK] if killed is None else [self.killed, killed]
        command = [sys.executable, *map(os.fspath, program), "--folder", os.fspath(self.folder), *words]
        ended = preloaded.run(command, timeout=60)
        assert ended.returncode == (0 if killed is None else -9), ended.stderr
        return ended.stdout

    def paid(self) -> list[tuple[str, int]]:
        """What the bank says that it has paid."""
        with closing(sqlite3.connect(self.folder / "bank.db")) as connection:
            return connection.execute("SELECT payee, cents FROM transfers ORDER BY payee").fetchall()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("program") / "killed.py"
    program.write_text(KILLED, encoding="utf-8")
    return program


@pytest.fixture
def desk(tmp_path: Path, killed: Path) -> Desk:
    return Desk(tmp_path, killed)


def test_it_pays_invoices_and_asks_about_refunds(desk: Desk) -> None:
    said = desk.run("work")
    assert desk.paid() == [PAID[0], PAID[2]]
    assert "A-18: Not paid" in said and "R-2: waits for a person" in said
    assert "R-2: Done: paid by transfer 3." in desk.run("answer", "R-2", "yes", "--by", "eve")
    again = desk.run("work")
    assert desk.paid() == PAID and "R-2: Done: paid by transfer 3." in again
    [call] = Reader(desk.folder / "calls.db").calls(Filter(session="R-2", tool="refund"))
    assert (call.status, call.result["answered_by"]) == ("ok", "eve")
    assert stat.S_IMODE(os.stat(desk.folder / "calls.db").st_mode) == 0o600


def test_a_letter_sends_no_mail_without_a_person(desk: Desk) -> None:
    for _ in range(2):  # the second process knows what the first has read
        assert "L-1: waits for a person" in desk.run("work")
    assert "this session read text from outside" in desk.run("answer", "L-1", "no")
    with closing(sqlite3.connect(desk.folder / "bank.db")) as connection:
        assert connection.execute("SELECT * FROM mails").fetchall() == []


@pytest.mark.parametrize(
    ("moment", "found_out", "paid_by_then"),
    [
        ("before the intent", "", 0),
        ("before the intent, when the call was told", "", 0),
        ("before the transfer", "its payment was interrupted; the bank has no such transfer", 0),
        ("after the transfer", "its payment was interrupted; paid by transfer", 1),
        ("after the outcome", "", 1),
    ],
)
def test_a_desk_that_is_killed_pays_everything_once(desk: Desk, moment: str, found_out: str, paid_by_then: int) -> None:
    desk.run("work", killed=moment)
    assert len(desk.paid()) == paid_by_then
    said = desk.run("work")
    assert desk.paid() == [PAID[0], PAID[2]], said
    assert ("A-17: its payment was interrupted" in said) == bool(found_out)
    assert f"A-17: {found_out}" in said

    desk.run("answer", "R-2", "yes", killed=moment)
    assert len(desk.paid()) == 2 + paid_by_then
    said = desk.run("work")
    assert len(desk.paid()) == 2 + paid_by_then and ("R-2: its payment was interrupted" in said) == bool(found_out)
    assert f"R-2: {found_out}" in said
    if not paid_by_then:  # nothing was paid, and the answer went with the process: it is asked for anew
        assert "please answer again" in desk.run("answer", "R-2", "yes")
        assert "R-2: Done: paid by transfer 3." in desk.run("answer", "R-2", "yes")
    assert "cut off" not in desk.run("work") and desk.paid() == PAID
