"""Progress as a person sees it: rows on a terminal while calls run, lines where there is none."""

from __future__ import annotations

import io
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

import preloaded
from ferrule import Event, ToolCall
from ferrule.approval import printable
from ferrule.cli.bars import Row, compute_share
from ferrule.cli.chunks import Chunks
from ferrule.cli.timeline import Timeline

pytest.importorskip("pty", reason="there are no pseudo-terminals here")

from tests.cli.terminal import BOUND, PROGRAM, Gate, Screen, Terminal

TOOLS = ("--tools", str(Path(__file__).with_name("watched_tools.py")))
RUN = ("run", "x", *TOOLS, "--model", "scripted:steps.py")
ROW = "━"

slow = pytest.mark.slow


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    with closing(Gate(tmp_path, "gate")) as gate:
        yield gate


def steps(folder: Path, *turns: Any) -> None:
    (folder / "steps.py").write_text(f"steps = {[*turns, 'Done.']!r}", encoding="utf-8")


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
def test_a_bar_is_there_while_a_call_reports_and_leaves_when_it_ends(tmp_path: Path, gate: Gate) -> None:
    with Terminal("call", "work", "gate=gate", *TOOLS, cwd=tmp_path) as terminal:
        terminal.until_shown("1/4  begun")
        [row] = rows(terminal.shown)
        assert "#1 work " in row
        assert (row.count(ROW), row.count("─")) == (6, 18)
        assert not terminal.screen.cursor
        gate.open()
        assert terminal.end() == 0
        assert terminal.shown == "fine\n"
        assert terminal.screen.cursor


@slow
def test_without_a_total_there_is_no_bar_but_a_count(tmp_path: Path, gate: Gate) -> None:
    with Terminal("call", "work", "gate=gate", "total=null", *TOOLS, cwd=tmp_path) as terminal:
        terminal.until_shown("#1 work 1  begun")
        assert ROW not in terminal.shown
        gate.open()
        assert terminal.end() == 0


@slow
@pytest.mark.parametrize("columns", [40, 80])
def test_every_call_of_a_batch_has_a_row_that_keeps_to_its_line(tmp_path: Path, gate: Gate, columns: int) -> None:
    message = "数えています" * 30
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
def test_of_fifty_calls_that_report_a_few_have_rows_and_the_lines_above_stay_whole(tmp_path: Path, gate: Gate) -> None:
    steps(tmp_path, [("work", {"gate": "gate", "message": f"m{number}"}) for number in range(30)])
    with Terminal(*RUN, cwd=tmp_path, lines=24) as terminal:
        terminal.until_so(lambda shown: len(rows(shown)) == 8 and "and 22 more calls" in shown, "eight rows")
        for _ in range(30):
            gate.open()
        assert terminal.end() == 0
        lines = terminal.shown.splitlines()
        assert [line.split()[2] for line in lines if "→" in line] == [f"#{number + 1}" for number in range(30)]
        assert sum("✓" in line for line in lines) == 30
        assert not [line for line in lines if ROW in line or "more calls" in line]


@slow
def test_while_somebody_is_asked_nothing_else_is_written(tmp_path: Path, gate: Gate) -> None:
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
def test_a_row_makes_room_for_a_question_and_comes_back(tmp_path: Path, gate: Gate) -> None:
    steps(tmp_path, [("work", {"gate": "gate"}), ("late", {})])
    with closing(Gate(tmp_path, "asks")) as asks, Terminal(*RUN, cwd=tmp_path) as terminal:
        terminal.until_shown("1/4  begun")
        asks.open()
        terminal.until("[y/N] ")
        assert not rows(terminal.shown)
        assert terminal.screen.cursor
        terminal.type("y\n")
        terminal.until_shown("1/4  begun")
        asks.open()  # after the answer the guards judge once more
        gate.open()
        assert terminal.end() == 0
        assert not rows(terminal.shown) and "denied" not in terminal.shown


@slow
def test_what_a_tool_prints_goes_above_the_rows(tmp_path: Path, gate: Gate) -> None:
    (tmp_path / "loud.py").write_text(
        "import sys\nsys.path.insert(0, " + repr(str(Path(__file__).parent.parent.parent)) + ")\n"
        "from tests.cli.watched_tools import opened\nfrom ferrule import ToolContext, tool\n\n\n"
        '@tool(read_only=True)\nasync def loud(context: ToolContext) -> str:\n    """Prints."""\n'
        '    context.progress(1, 4)\n    print("printed")\n    await opened("gate")\n    return "fine"\n',
        encoding="utf-8",
    )
    with Terminal("call", "loud", "--tools", "loud.py", cwd=tmp_path) as terminal:
        terminal.until_shown("printed\n")
        assert [ROW in line for line in terminal.shown.splitlines()] == [False, True]
        gate.open()
        assert terminal.end() == 0
        assert terminal.shown == "printed\nfine\n"


@slow
def test_a_text_appears_as_it_is_yielded_and_cannot_move_the_cursor(tmp_path: Path, gate: Gate) -> None:
    steps(tmp_path, [("tell", {"gate": "gate"})])
    with Terminal(*RUN, cwd=tmp_path) as terminal:
        terminal.until_shown("… #1 tell  first line\n")
        terminal.until_shown("#1 tell 21 characters  half �[31m")
        gate.open()
        assert terminal.end() == 0
        assert "… #1 tell  half �[31ma line\n" in terminal.shown
        assert "… #1 tell  �[2Jlast\n" in terminal.shown
        assert "characters  half" not in terminal.shown


@slow
def test_a_result_in_a_file_leaves_the_bar_on_the_terminal(tmp_path: Path, gate: Gate) -> None:
    with Terminal("call", "work", "gate=gate", *TOOLS, cwd=tmp_path, output=tmp_path / "out") as terminal:
        terminal.until_shown("1/4  begun")
        gate.open()
        assert terminal.end() == 0
        assert (tmp_path / "out").read_text(encoding="utf-8") == "fine\n"
        assert terminal.shown == ""


@slow
def test_a_terminal_that_cannot_move_its_cursor_gets_lines(tmp_path: Path, gate: Gate) -> None:
    gate.open()
    with Terminal("call", "work", "gate=gate", *TOOLS, cwd=tmp_path, TERM="dumb") as terminal:
        assert terminal.end() == 0
        assert terminal.shown == " +0.000s … #1 work  1/4 begun\nfine\n"
        assert terminal.screen.lines == terminal.said.split("\n")


# without one


@slow
def test_without_a_terminal_a_call_reports_on_standard_error_in_plain_lines(tmp_path: Path, gate: Gate) -> None:
    gate.open()
    done = without_a_terminal("call", "work", "gate=gate", *TOOLS, cwd=tmp_path, FORCE_COLOR="1", TTY_COMPATIBLE="1")
    assert (done.returncode, done.stdout) == (0, "fine\n")
    assert done.stderr == " +0.000s … #1 work  1/4 begun\n"


@slow
def test_ten_thousand_reports_are_a_few_lines(tmp_path: Path) -> None:
    steps(tmp_path, [("report", {"times": 10_000})])
    began = time.monotonic()
    done = without_a_terminal(*RUN, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if "… #1 report" in line]
    assert 1 <= len(lines) <= 1 + (time.monotonic() - began) / 5


def test_a_call_that_reports_all_the_time_has_a_line_now_and_then() -> None:
    written, now = io.StringIO(), 0.0
    timeline = Timeline(Console(file=written), lambda: now)
    for second in range(13):
        now = float(second)
        for call in "ab":
            timeline.event(Event("tool:progress", ToolCall(call, "t", {}), {"done": second, "total": 12}))
    assert [line.split()[-1] for line in written.getvalue().splitlines()] == ["0/12"] * 2 + ["5/12"] * 2 + ["10/12"] * 2


@slow
def test_chunks_without_a_terminal_are_bounded_plain_lines(tmp_path: Path) -> None:
    steps(tmp_path, [("flood", {"lines": 50_000})])
    done = without_a_terminal(*RUN, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [line.partition("flood  ")[2] for line in done.stdout.splitlines() if "… #1 flood" in line]
    assert lines == [*(f"line {number}" for number in range(40)), "(more output is not shown)"]


@slow
def test_another_attempt_has_a_line_that_says_when_and_why(tmp_path: Path) -> None:
    done = without_a_terminal("call", "flaky", *TOOLS, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "at last\n")
    first, second = done.stderr.splitlines()
    assert "↻ #1 flaky  attempt 2 of 3 at once: flaky failed: ValueError: not yet" in first
    assert "attempt 3 of 3" in second


def test_a_wait_before_another_attempt_is_told() -> None:
    written = io.StringIO()
    what = {"attempt": 1, "of": 3, "status": "limited", "error": "later\x1b[2J", "wait": 0.52}
    Timeline(Console(file=written), lambda: 0.0).report(Event("tool:progress", ToolCall("1", "t", {}), what))
    assert written.getvalue() == " +0.000s ↻ #1 t  attempt 2 of 3 in 0.5 s: later�[2J\n"


@slow
def test_a_call_that_fails_keeps_what_it_had_given(tmp_path: Path) -> None:
    done = without_a_terminal("call", "breaks", *TOOLS, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "as far as this\n")
    assert "failed: " in done.stderr
    assert "no further" in done.stderr


# what these tests read


def test_a_screen_can_be_read_after_any_byte() -> None:
    raw = "one ━\x1b[2K\x1b[1A\x1b[?25l\x1b[38;5;1m数\x1b[?25h\r\n".encode()
    screen = Screen(columns=20, lines=5)
    for byte in raw:
        screen.read(bytes([byte]))
        assert "".join(screen.lines) in {"one ━"[:count] for count in range(6)} | {"     数"}
    assert screen.said == "one ━数\n" and screen.cursor
    screen.read(b"\xffx\x1b[2Ky")
    assert screen.lines == ["     数", "  y"]


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


def test_a_report_that_cannot_be_read_is_said_to_be_so() -> None:
    written = io.StringIO()
    what = {"attempt": "one", "of": 3, "wait": 0.1}
    Timeline(Console(file=written), lambda: 0.0).event(Event("tool:progress", ToolCall("1", "t", {}), what))
    assert "(cannot show it: TypeError)" in written.getvalue()


@pytest.mark.parametrize("width", [1, 5, 20, 37, 57, 200])
@pytest.mark.parametrize("words", ["", "m" * 400, "数" * 400, "é" * 50, "👩‍🚀" * 50])
def test_a_row_is_never_wider_than_the_terminal(width: int, words: str) -> None:
    row = Row(f"#1 {printable(words) or 'name'}")
    for what in ({"done": 123_456_789, "total": 10**9, "message": words}, {"chunk": words + "\n"}):
        row.update(what)
        line = row.line(width, 20, 0.0, plain=False)
        assert cell_len(line.plain) <= width
        assert line.plain.isprintable()


@pytest.mark.parametrize(
    ("done", "total", "part"), [(1, 4, 0.25), (9, 4, 1.0), (-1, 4, 0.0), (0, 0, None), (1, -4, None)]
)
def test_a_share_is_between_nothing_and_all(done: Any, total: Any, part: float | None) -> None:
    assert compute_share(done, total) == part


def test_a_terminal_without_utf8_gets_a_row_in_ascii() -> None:
    row = Row("#1 name")
    row.update({"done": 1, "total": 4, "message": "m" * 100})
    assert row.line(60, 7, 0.0, plain=True).plain.isascii()


def test_chunks_become_lines_when_these_are_complete() -> None:
    chunks = Chunks()
    assert chunks.take("one") == []
    assert chunks.take(" line\nand") == ["one line"]
    assert chunks.take({"row": 1}) == ["and", '{"row": 1}']
    assert chunks.take("w " * 150) == ["w " * 100]
    assert chunks.end() == ["w " * 50]


def test_chunks_of_any_size_are_bounded() -> None:
    chunks = Chunks()
    lines = [line for _ in range(100) for line in chunks.take("x" * 100_000)] + chunks.end()
    assert sum(map(len, lines)) < 5000
    assert lines[-1] == "(more output is not shown)"
