"""The progress of calls: rows on a terminal, and lines without one."""

from __future__ import annotations

import io
import os
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

import preloaded
from ferrule import Event, ToolCall
from ferrule.cli.bars import Row
from ferrule.cli.chunks import Chunks
from ferrule.cli.timeline import Timeline

pytest.importorskip("pty", reason="there are no pseudo-terminals here")

from tests.cli.terminal import BOUND, PROGRAM, Gate, Terminal, steps

TOOLS = ("--tools", str(Path(__file__).with_name("watched_tools.py")))
RUN = ("run", "x", *TOOLS, "--model", "scripted:steps.py")
ROW = "━"

slow = pytest.mark.slow


def without_a_terminal(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    known = {**os.environ, "PYTHONIOENCODING": "utf-8", **environment}
    return preloaded.run([*PROGRAM, *words], cwd=cwd, timeout=BOUND, env=known)


def rows(shown: str) -> list[str]:
    return [line for line in shown.splitlines() if ROW in line]


def labels(shown: str) -> list[str]:
    """The numbers of the calls that have a row that is drawn to its end."""
    return [line.split()[1] for line in rows(shown) if line.endswith("…")]


# on a terminal


@slow
def test_a_bar_is_shown_while_a_call_reports(tmp_path: Path, gate: Gate) -> None:
    with Terminal("call", "work", "gate=gate", *TOOLS, cwd=tmp_path, output=tmp_path / "out") as terminal:
        terminal.until_shown("1/4  begun")
        [row] = rows(terminal.shown)
        assert "#1 work " in row
        assert (row.count(ROW), row.count("─")) == (6, 18)
        assert not terminal.screen.cursor
        gate.open()
        assert terminal.end() == 0
        assert terminal.shown == "" and (tmp_path / "out").read_text(encoding="utf-8") == "fine\n"
        assert terminal.screen.cursor


@slow
def test_each_call_of_a_batch_has_a_row_of_one_line(tmp_path: Path, gate: Gate) -> None:
    columns, message = 40, "数えています" * 30
    steps(tmp_path, [("work", {"gate": "gate", "message": message}), ("work", {"gate": "more", "message": "x" * 300})])
    with closing(Gate(tmp_path, "more")) as more, Terminal(*RUN, cwd=tmp_path, columns=columns) as terminal:
        terminal.until_so(lambda shown: labels(shown) == ["#1", "#2"], "two rows")
        assert max(map(cell_len, rows(terminal.shown))) <= columns - 3
        assert "数" in rows(terminal.shown)[0]
        gate.open()
        terminal.until_so(lambda shown: "✓ #1" in shown and labels(shown) == ["#2"], "the end of the first")
        assert len(rows(terminal.shown)) == 1
        more.open()
        assert terminal.end() == 0
        assert ROW not in terminal.shown
        assert sorted(line.split()[2] for line in terminal.shown.splitlines() if "✓" in line) == ["#1", "#2"]


@slow
def test_nothing_else_is_written_while_a_person_is_asked(tmp_path: Path, gate: Gate) -> None:
    with (
        closing(Gate(tmp_path, "more")) as more,
        closing(Gate(tmp_path, "end")) as end,
        closing(Gate(tmp_path, "ended")) as ended,
    ):
        asked, last = ("note", {"text": "kept"}), ("ended", {"gate": "end", "says": "ended"})
        steps(tmp_path, [("work", {"gate": "gate"}), asked, ("work", {"gate": "more"}), last])
        with Terminal(*RUN, cwd=tmp_path) as terminal:
            terminal.until("[y/N] ")
            more.open()
            end.open()
            ended.passed()
            assert terminal.shown.endswith("Allow it? [y/N]")
            assert ROW not in terminal.shown
            assert terminal.screen.cursor
            terminal.type("y\n")
            terminal.until_shown("1/4  begun")
            gate.open()
            assert terminal.end() == 0
            lines = terminal.shown.splitlines()
            question = next(number for number, line in enumerate(lines) if "[y/N]" in line)
            assert lines[question] == "Allow it? [y/N] y"
            assert "✓ #4 ended" in "".join(lines[question:])
            assert "? #2 note" in "".join(lines[:question])
            assert not [line for line in lines if ROW in line]


@slow
def test_the_output_of_a_tool_goes_above_the_rows(tmp_path: Path, gate: Gate) -> None:
    with Terminal("call", "loud", "gate=gate", *TOOLS, cwd=tmp_path) as terminal:
        terminal.until_shown("printed\n")
        assert [ROW in line for line in terminal.shown.splitlines()] == [False, True]
        gate.open()
        assert terminal.end() == 0
        assert terminal.shown == "printed\nfine\n"


@slow
def test_a_yielded_text_appears_and_cannot_move_the_cursor(tmp_path: Path, gate: Gate) -> None:
    steps(tmp_path, [("tell", {"gate": "gate"})])
    with Terminal(*RUN, cwd=tmp_path) as terminal:
        terminal.until_shown("… #1 tell  first line\n")
        terminal.until_shown("#1 tell 21 characters  half �[31m")
        gate.open()
        assert terminal.end() == 0
        assert "… #1 tell  half �[31ma line\n" in terminal.shown
        assert "… #1 tell  �[2Jlast\n" in terminal.shown
        assert "characters  half" not in terminal.shown


# without one


@slow
def test_without_a_terminal_progress_is_plain_lines_on_standard_error(tmp_path: Path, gate: Gate) -> None:
    gate.open()
    done = without_a_terminal("call", "work", "gate=gate", *TOOLS, cwd=tmp_path, FORCE_COLOR="1", TTY_COMPATIBLE="1")
    assert (done.returncode, done.stdout) == (0, "fine\n")
    assert done.stderr == " +0.000s … #1 work  1/4 begun\n"
    gate.open()
    with Terminal("call", "work", "gate=gate", *TOOLS, cwd=tmp_path, TERM="dumb") as terminal:  # cannot move its cursor
        assert terminal.end() == 0
        assert terminal.screen.lines == [" +0.000s … #1 work  1/4 begun", "fine", ""]


def test_reports_without_a_terminal_are_a_line_every_five_seconds() -> None:
    written, now = io.StringIO(), 0.0
    timeline = Timeline(Console(file=written), lambda: now)
    for second in range(13):
        now = float(second)
        for call in "ab":
            for _ in range(100):
                timeline.event(Event("tool:progress", ToolCall(call, "t", {}), {"done": second, "total": 12}))
    assert [line.split()[-1] for line in written.getvalue().splitlines()] == ["0/12"] * 2 + ["5/12"] * 2 + ["10/12"] * 2


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ({"attempt": 1, "error": "later\x1b[2J", "wait": 0.52}, "attempt 2 of 3 in 0.5 s: later�[2J"),
        ({"attempt": 2, "error": "not\nyet", "wait": 0.01}, "attempt 3 of 3 at once: not yet"),
        ({"attempt": "one", "wait": 0.1}, "(cannot show it: TypeError)"),
    ],
)
def test_another_attempt_is_a_line_with_wait_and_reason(data: dict[str, Any], line: str) -> None:
    written = io.StringIO()
    Timeline(Console(file=written, width=200), lambda: 0.0).event(
        Event("tool:progress", ToolCall("1", "t", {}), {"of": 3, **data})
    )
    assert line in written.getvalue() and written.getvalue().count("\n") == 1


@slow
def test_a_failed_call_keeps_its_earlier_output(tmp_path: Path) -> None:
    done = without_a_terminal("call", "breaks", *TOOLS, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "as far as this\n")
    assert "failed: " in done.stderr
    assert "no further" in done.stderr


# whatever a tool says


ODD: list[Any] = [0, -1, 1e308, float("nan"), float("inf"), 10**400, 10**5000, True, "x\x1b[2J\n", b"\x9b", None, [1]]


@pytest.mark.parametrize("done", ODD, ids=lambda value: type(value).__name__)
def test_progress_of_any_kind_is_one_printable_line(done: Any) -> None:
    said = [{"done": done, "total": total, "message": total} for total in ODD]
    for what in [*said, {"chunk": done}, {"done": 1, "message": done}, {"stage": done}]:
        row, written = Row("#1 t"), io.StringIO()
        row.update(what)
        assert row.line(60, 4, 0.0, plain=False).plain.isprintable()
        Timeline(Console(file=written, width=1000), lambda: 0.0).event(
            Event("tool:progress", ToolCall("1", "t", {}), what)
        )
        assert "cannot be shown" not in written.getvalue()
        assert written.getvalue().count("\n") <= 1
        assert written.getvalue().rstrip("\n").isprintable()


def test_chunks_become_bounded_lines() -> None:
    chunks = Chunks()
    assert chunks.take("one") == []
    assert chunks.take(" line\nand") == ["one line"]
    assert chunks.take({"row": 1}) == ["and", '{"row": 1}']
    assert chunks.take("w " * 150) == ["w " * 100]
    assert chunks.end() == ["w " * 50]
    chunks = Chunks()
    lines = [line for _ in range(100) for line in chunks.take("x" * 100_000)] + chunks.end()
    assert sum(map(len, lines)) < 5000 and lines[-1] == "(more output is not shown)"
