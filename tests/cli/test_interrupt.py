"""Ctrl-C at a terminal: the first lets running calls finish, the second stops them, the third kills."""

from __future__ import annotations

import signal
import subprocess
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from ferrule.cli.interrupt import CODE, Stages

pytest.importorskip("pty", reason="there are no pseudo-terminals here")

from tests.cli.terminal import BOUND, PROGRAM, Gate, Terminal, listening, steps

ROOT = Path(__file__).parent.parent.parent
TOOLS = ("--tools", str(Path(__file__).with_name("watched_tools.py")))
RUN = ("run", "x", *TOOLS, "--model", "scripted:steps.py")
FINISHING = "ferrule: finishing the running calls; press ctrl-C again to stop them\n"
STOPPING = "ferrule: stopping the running calls; press ctrl-C again to kill the program\n"

slow = pytest.mark.slow


def table(shown: str) -> list[list[str]]:
    """Number, tool, status and whether it was executed, of each line of the table at the end."""
    lines = shown.partition("#  tool")[2].splitlines()[1:]
    return [line.split()[:4] for line in lines]


def ends(shown: str, number: int) -> int:
    """Return how many lines say that the call ended."""
    return sum(f"{sign} #{number} " in shown for sign in "✓✗⊘!")


@slow
def test_the_first_interrupt_finishes_running_calls_and_starts_none(tmp_path: Path, gate: Gate) -> None:
    steps(tmp_path, [("work", {"gate": "gate"}), ("last", {"text": "x"})], [("last", {"text": "y"})])
    with Terminal(*RUN, cwd=tmp_path) as terminal:
        terminal.until_shown("1/4  begun")
        terminal.interrupt()
        terminal.until(FINISHING)
        terminal.until_shown("1/4  begun")
        gate.open()
        assert terminal.end() == CODE == 130
        assert table(terminal.shown) == [["1", "work", "ok", "yes"], ["2", "last", "cancelled", "no"]]
        assert (ends(terminal.shown, 1), ends(terminal.shown, 2)) == (1, 1)
        assert "the run ended: cancelled" in terminal.shown
        assert "turn 2" not in terminal.shown
        assert not (tmp_path / "note.txt").exists()


@slow
def test_the_second_interrupt_stops_running_calls(tmp_path: Path, gate: Gate) -> None:
    steps(tmp_path, [("work", {"gate": "gate"}), ("tell", {"gate": "gate"}), ("last", {"text": "x"})])
    with Terminal(*RUN, cwd=tmp_path) as terminal:
        terminal.until_shown("1/4  begun")
        terminal.interrupt()
        terminal.until(FINISHING)
        terminal.interrupt()
        terminal.until(STOPPING)
        assert terminal.end() == CODE
        assert table(terminal.shown) == [
            ["1", "work", "cancelled", "unknown"],
            ["2", "tell", "cancelled", "unknown"],
            ["3", "last", "cancelled", "no"],
        ]
        assert [ends(terminal.shown, number) for number in (1, 2, 3)] == [1, 1, 1]
        assert terminal.screen.cursor


@slow
def test_the_third_interrupt_kills_and_restores_the_terminal(tmp_path: Path, gate: Gate) -> None:
    with Terminal("call", "stubborn", "gate=gate", *TOOLS, cwd=tmp_path) as terminal:
        terminal.until_shown("and does not end")
        terminal.interrupt()
        terminal.until(FINISHING)
        terminal.interrupt()
        terminal.until(STOPPING)
        gate.passed()
        terminal.until_so(lambda shown: shown.endswith("and does not end"), "the row")
        assert not terminal.screen.cursor
        terminal.interrupt()
        assert terminal.end() == -signal.SIGINT
        assert terminal.screen.cursor
        assert terminal.screen.lines[-1] == ""


@slow
def test_a_blocked_thread_does_not_keep_the_program(tmp_path: Path, gate: Gate) -> None:
    with Terminal("call", "stuck", "gate=gate", *TOOLS, cwd=tmp_path) as terminal:
        gate.passed()
        terminal.interrupt()
        terminal.until(FINISHING)
        terminal.interrupt()
        terminal.until(STOPPING)
        terminal.until("cancelled: The call was cancelled.")
        assert terminal.end() == CODE


@slow
def test_an_interrupt_withdraws_the_question(tmp_path: Path, gate: Gate) -> None:
    steps(tmp_path, [("work", {"gate": "gate"}), ("note", {"text": "x"}), ("note", {"text": "y"})])
    with Terminal(*RUN, cwd=tmp_path) as terminal:
        terminal.until("[y/N] ")
        terminal.interrupt()
        terminal.until(FINISHING)
        terminal.until("[no longer asked]")
        terminal.until_shown("1/4  begun")
        gate.open()
        assert terminal.end() == CODE
        assert [row[2] for row in table(terminal.shown)] == ["ok", "cancelled", "cancelled"]
        assert terminal.shown.count("[y/N]") == 1
        assert not (tmp_path / "note.txt").exists()


@slow
def test_after_a_hidden_question_the_terminal_echoes_again(tmp_path: Path) -> None:
    with Terminal("call", "secret", *TOOLS, cwd=tmp_path) as terminal:
        terminal.until("empty to refuse): ")
        assert not terminal.echoes()
        terminal.interrupt()
        assert terminal.end() == CODE
        assert terminal.echoes()


# who has the signal


@pytest.mark.parametrize("before", [signal.default_int_handler, signal.SIG_IGN])
def test_only_the_default_handler_is_replaced_and_given_back(before: Any) -> None:
    first = signal.signal(signal.SIGINT, before)
    try:
        with Stages(nullcontext):
            assert (signal.getsignal(signal.SIGINT) is before) is (before is signal.SIG_IGN)
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        signal.signal(signal.SIGINT, first)


@slow
def test_a_signal_without_a_terminal_stops_the_call(tmp_path: Path, gate: Gate) -> None:
    program = subprocess.Popen(
        [*PROGRAM, "call", "tell", "gate=gate", *TOOLS],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        preexec_fn=listening,
    )
    with program:
        assert program.stderr is not None
        try:
            assert "first line" in program.stderr.readline()
            program.send_signal(signal.SIGINT)
            assert program.stderr.readline() == FINISHING
            program.send_signal(signal.SIGINT)
            out, errors = program.communicate(timeout=BOUND)
        finally:
            program.kill()
    assert program.returncode == CODE
    assert errors.splitlines()[0] == STOPPING.rstrip()
    assert errors.splitlines()[-1].startswith("cancelled: ")
    assert out == ""
