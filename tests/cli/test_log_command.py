"""`ferrule log` and `ferrule explain`: what a person sees of a journal."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import pytest

from ferrule import Decision, Journal, Runner, ToolCall, ToolContext, ToolError, allow, tool
from ferrule.cli.journal_calls import format_duration
from ferrule.cli.program import main
from ferrule.journal._rows import EVENT_COLUMNS, EventRows
from ferrule.journal.reading import NOT_STARTED, UNFINISHED
from ferrule.middleware import retry
from journal_desk import ADA, aged, call, desk, journaled, one_of_each

if os.name != "nt":
    from terminal import Terminal

DOCS = Path(__file__).parent.parent.parent / "docs"
HOSTILE = "\x1b[2Jok\r\n\u202efdp\x07 \ud800 \u200b"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "calls.db"


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(words) == code
    streams = capsys.readouterr()
    return streams.out + streams.err


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> list[list[str]]:
    """The cells of each line."""
    return [re.split(r"  +", line.strip()) for line in said(capsys, "log", *words).splitlines()]


def records(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in said(capsys, *words, "--json").splitlines()]


def test_each_call_has_a_line_with_what_came_of_it_and_who_allowed_it(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journaled(path, one_of_each)
    lines = shown(capsys, "calls.db")
    assert [line[3:] for line in lines] == [
        ["refund", "ada/s1", "c1", "eve, 1 replay", 'order="o1", euros=1'],
        ["refund", "ada/s1", "c2", "ask_before_changes", 'order="later", euros=1'],
        ["look", "ada/s1", "c3", 'order="bad"'],
        ["refnd", "bob/s2", "c4", 'order="o1"'],
    ]
    assert [line[1] for line in lines] == ["ok", "suspended", "failed", "not_found"]
    assert [line[0][0] for line in lines] == ["✓", "‖", "✗", "!"]


def test_calls_are_chosen_by_options(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journaled(path, one_of_each)
    aged(path, 3)
    journaled(path, lambda runner: runner.run(call("new"), ADA))

    def ids(*options: str) -> list[object]:
        return [one["call_id"] for one in records(capsys, "log", "calls.db", *options)]

    assert ids() == ["c1", "c2", "c3", "c4", "new"] and ids("--every") == ["c1", *ids()]
    assert ids("--tool", "ref?") == [] and ids("--tool", "ref*d", "--limit", "2") == ["c4", "new"]
    assert ids("--principal", "bob") == ids("--session", "s2") == ["c4"]
    assert ids("--status", "failed", "--status", "not_found") == ["c3", "c4"]
    assert ids("--status", "unfinished") == ["c2"]
    assert ids("--since", "2d") == ids("--since", f"{datetime.now():%Y-%m-%d}") == ["new"]
    assert ids("--until", "1w") == [] and ids("--until", "2h") == ["c1", "c2", "c3", "c4"]


def test_a_call_that_was_killed_while_it_ran_is_found_as_unknown(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journaled(path, lambda runner: runner.run(call("c1"), ADA))
    with sqlite3.connect(path) as connection:  # as though its process had been killed
        connection.execute("DELETE FROM events WHERE call_id = 'c1' AND kind = 'tool:post'")
        connection.execute("UPDATE calls SET state = 'running', outcome = NULL WHERE call_id = 'c1'")
    connection.close()
    found = records(capsys, "log", "calls.db", "--status", "unknown")
    assert [(one["call_id"], one["status"]) for one in found] == [("c1", "cut_off")]


def test_the_record_of_a_call_has_the_fields_of_the_page(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journaled(path, one_of_each)
    page = (DOCS / "journal.md").read_text(encoding="utf-8").partition("### Export")[2].partition("\n### ")[0]
    fields = [name for names in re.findall(r"(?m)^\| (`.*?) \|", page) for name in re.findall(r"`(\w+)`", names)]
    for one in records(capsys, "log", "calls.db"):
        assert list(one) == fields
    assert set(re.findall(r"`(\w+)`", page.partition("status is one of")[2])) >= UNFINISHED | {NOT_STARTED}


def test_a_terminal_shows_the_newest_of_many_calls_and_another_program_gets_a_line_for_each(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def many(runner: Runner) -> None:
        for number in range(101):
            await runner.run(call(f"m{number}", "look"), ADA)

    journaled(path, many)
    with Terminal("log", "calls.db", cwd=path.parent, columns=100) as terminal:
        terminal.until("these are the newest 100; --limit N shows more")
        assert "arguments" in terminal.said and "m0 " not in terminal.said and "m1 " in terminal.said
    assert len(said(capsys, "log", "calls.db", "--status", "ok").splitlines()) == 101
    assert len(said(capsys, "log", "calls.db", "--limit", "3").splitlines()) == 3
    assert len(records(capsys, "log", "calls.db")) == 101


def test_that_events_are_missing_is_said(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journaled(path, one_of_each)
    with sqlite3.connect(path) as connection:  # as a writer does that could not keep pace
        values = EventRows(1).make_lost_row(1200, time.time() - 7200)
        connection.execute(f"INSERT INTO events ({EVENT_COLUMNS}) VALUES ({', '.join('?' * len(values))})", values)
    connection.close()
    assert "1,200 events missing" in said(capsys, "log", "calls.db")
    assert "missing" not in said(capsys, "log", "calls.db", "--since", "1h")


def test_what_tools_and_models_say_does_nothing_to_a_terminal(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    @tool(read_only=True)
    async def speak(text: str) -> str:
        """Speak."""
        if text == "error":
            raise ToolError(HOSTILE)
        return HOSTILE

    async def work(runner: Runner) -> None:
        runner = runner.replace(tools=[speak])
        who = ToolContext(principal=HOSTILE, session=HOSTILE)
        await runner.run(ToolCall(HOSTILE, "speak", {"text": HOSTILE * 100}), who)
        await runner.run(ToolCall("c2", HOSTILE, {"text": HOSTILE}), who)
        await runner.run(ToolCall("c3", "speak", {"text": "value"}), who)
        await runner.run(ToolCall("c4", "speak", {"text": "error"}), who)

    journaled(path, work)
    texts = [said(capsys, "log", "calls.db"), *(said(capsys, "explain", "calls.db", id) for id in ("c2", "c3", "c4"))]
    texts += [said(capsys, "explain", "calls.db", HOSTILE), said(capsys, "log", "calls.db", "--json")]
    for text in texts:
        assert all(one.isprintable() or one == "\n" for one in text), text
        assert len(text.splitlines()) < 60
    assert len(texts[0].splitlines()) == 4 and max(map(len, texts[0].splitlines())) < 400


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["log", "none.db"], "there is no journal at 'none.db'"),
        (["explain", "none.db", "c1"], "there is no journal at 'none.db'"),
        (["log", "none.db", "--prune", "90d"], "there is no journal at 'none.db'"),
        (["log", "text.db"], "'text.db' is no journal"),
        (["log", "text.db", "--prune", "90d"], "'text.db' is no journal"),
        (["log", "newer.db"], "newer Ferrule"),
        (["log"], "FILE is missing"),
        (["log", "calls.db", "--status", "suspend"], "did you mean 'suspended'"),
        (["log", "calls.db", "--since", "yesterday"], "'yesterday' is not a time"),
        (["log", "calls.db", "--until", "9" * 9 + "w"], ""),
        (["log", "calls.db", "--limit", "0"], "at least 1"),
        (["log", "calls.db", "more"], "unexpected argument 'more'"),
        (["log", "calls.db", "--prune", "soon"], "'soon' is not an age"),
        (["log", "calls.db", "--prune", "90d", "--tool", "x"], "leave out --tool"),
        (["explain", "calls.db", "c9"], "there is no call 'c9'"),
        (["explain", "calls.db", "c"], "several ids begin with 'c'; choose from: c1, c2"),
        (["explain", "calls.db", "c1", "--tool", "look"], "no call with the id 'c1' matches"),
    ],
)
def test_what_cannot_be_meant_is_told_in_a_line(
    path: Path, capsys: pytest.CaptureFixture[str], words: Sequence[str], text: str
) -> None:
    journaled(path, one_of_each)
    path.with_name("text.db").write_text("no journal" * 1000, encoding="utf-8")
    journaled(path.with_name("newer.db"), one_of_each)
    with sqlite3.connect(path.with_name("newer.db")) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    told = said(capsys, *words, code=2 if text else 0)
    assert text in told.replace('"', "'") and (len(told.splitlines()) == 1 or not text)
    assert not path.with_name("none.db").exists()


# -- explain -----------------------------------------------------------------------------------------------------------


def test_one_call_is_explained_from_its_arguments_to_its_outcome(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = iter([ConnectionError("no line"), None])

    @tool(inside=[retry(2, wait=0.01, safe=["send"])])
    async def send(to: str, context: ToolContext, copies: int = 1) -> str:
        """Send."""
        context.progress(1, 2, "half")
        if (error := next(failing)) is not None:
            raise error
        return f"sent to {to}"

    async def work(runner: Runner) -> None:
        runner = runner.replace(tools=[send])
        assert (await runner.run(ToolCall("c1", "send", '{"to": "kim", "copies": "2",}'), ADA)).success

    journaled(path, work)
    lines = said(capsys, "explain", "calls.db", "c1").splitlines()
    text = "\n".join(lines)
    for part in (
        "send  ✓ ok",
        "principal ada",
        "session   s1",
        'argument  to = "kim"',
        "argument  copies = 2",
        "repaired  ",
        "? asked: send changes things (ask_before_changes)",
        "? allowed by eve",
        "▸ started",
        "… 1/2 half",
        "↻ attempt 1 of 2: failed: ",
        "executed  yes",
        "    sent to kim",
    ):
        assert part in text, text
    happened = [re.sub(r"^\s*\+\S+s (.).*", r"\1", line) for line in lines if re.match(r"\s*\+\d", line)]
    assert happened == ["→", "?", "?", "▸", "…", "↻", "…", "✓"]
    bars = [line.split()[0] for line in lines if "━" in line]
    assert bars == ["judged", "asked", "waited", "ran", "paused", "ran"]


def test_each_line_of_a_long_argument_begins_where_its_first_does(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")

    async def work(runner: Runner) -> None:
        await runner.run(ToolCall("c1", "nobody", {"to": " ".join(["kim"] * 50)}), ADA)

    journaled(path, work)
    lines = said(capsys, "explain", "calls.db", "c1").splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith('  argument  to = "kim'))
    written = [line for line in lines[at:] if "kim" in line]
    assert len(written) >= 4 and max(map(len, written)) <= 60
    assert all(line.startswith(" " * 12 + "kim") for line in written[1:])


def test_an_approver_without_a_name_is_not_shown_as_the_rule_that_asked(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journaled(path, lambda runner: runner.run(call("c1"), ADA), approve=lambda call, decision, context: True)
    assert "? allowed by an unnamed person\n" in said(capsys, "explain", "calls.db", "c1")
    assert shown(capsys, "calls.db")[0][-2] == "an unnamed person"


def test_that_a_person_has_changed_the_arguments_is_explained(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def approve(call: ToolCall, decision: object, context: ToolContext) -> Decision:
        return allow({**call.arguments, "euros": 3}, by="eve")

    journaled(path, lambda runner: runner.run(call("c1", euros=500), ADA), approve=approve)
    text = said(capsys, "explain", "calls.db", "c1")
    assert "argument  euros = 3" in text
    assert "asked: refund changes things (ask_before_changes)\n" in text
    assert "allowed by eve; with euros=3\n" in text


def test_calls_of_one_id_are_told_apart(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journaled(path, one_of_each)
    text = said(capsys, "explain", "calls.db", "c1")
    assert text.startswith("2 calls have this id: ") and "(1 of 2)" in text and "(2 of 2)" in text
    assert text.count("nothing ran again") == 1
    [one] = records(capsys, "explain", "calls.db", "c2")
    assert one["status"] == "suspended"
    assert len(records(capsys, "explain", "calls.db", "c1")) == 2


def test_an_id_may_be_given_by_its_beginning(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journaled(path, lambda runner: runner.run(call("toolu_01A09q90qw90lq917835lq9"), ADA))
    assert "id        toolu_01A09q90qw90lq917835lq9" in said(capsys, "explain", "calls.db", "toolu_01…")


def test_of_a_suspended_call_it_says_until_when_it_can_be_answered(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journaled(path, one_of_each)
    text = said(capsys, "explain", "calls.db", "c2")
    assert re.search(r"\+0\.\d+s ‖ suspended: refund waits for a decision: somebody else decides", text)
    assert re.search(r"‖ it waits for an answer, until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0004, "0.4 ms"),
        (0.0996, "100 ms"),
        (0.9996, "1.0 s"),
        (59.96, "1 min 0 s"),
        (3599.6, "1 h 0 min"),
        (90_000, "1 d 1 h"),
        (-1, "0.0 ms"),
        (float("inf"), "?"),
    ],
)
def test_a_span_is_told_in_two_units_at_most(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


# -- retention ---------------------------------------------------------------------------------------------------------


def test_old_calls_are_deleted_on_request(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journaled(path, one_of_each)
    aged(path, 100)
    journaled(path, lambda runner: runner.run(call("young"), ADA))
    assert said(capsys, "log", "calls.db", "--prune", "90d") == "deleted 5 calls (18 events)\n"
    assert [one["call_id"] for one in records(capsys, "log", "calls.db")] == ["young"]
    assert said(capsys, "log", "calls.db", "--prune", "90d") == "deleted 0 calls (0 events)\n"


# -- in a terminal -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="it needs a terminal of Unix")
async def test_following_shows_calls_as_they_come_until_it_is_interrupted(path: Path) -> None:

    journal = Journal.open(path)
    runner = desk(journal)
    await one_of_each(runner)
    await journal.flush()
    with Terminal("log", "calls.db", "--follow", cwd=path.parent, columns=70) as terminal:
        terminal.until("not_found")
        waiting = asyncio.create_task(runner.run(call("c5", order="later"), ADA))
        await asyncio.to_thread(terminal.until, "‖")
        record = (await waiting).record()
        await runner.resume(record, True)
        await asyncio.to_thread(terminal.until, "✓")
        assert max(map(len, terminal.said.splitlines())) <= 70
        assert terminal.said.count("c1") == 1 and terminal.said.count("c5") == 2
        terminal.interrupt()
        assert await asyncio.to_thread(terminal.end) == 130
        assert "Traceback" not in terminal.said and terminal.screen.cursor
    journal.close()


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="it needs a terminal of Unix")
def test_a_terminal_that_cannot_draw_the_signs_gets_others(path: Path) -> None:
    journaled(path, one_of_each)
    with Terminal("explain", "calls.db", "c3", cwd=path.parent, PYTHONIOENCODING="ascii") as terminal:
        assert terminal.end() == 0
    assert "look  x failed" in terminal.shown and "> started" in terminal.shown and "-> " not in terminal.shown
    assert "?" not in terminal.shown.partition("failed")[0]
