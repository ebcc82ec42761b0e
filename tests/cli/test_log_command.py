"""`ferrule log` and `ferrule explain`: how they show a journal."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import sqlite3
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from ferrule import Decision, Journal, Runner, ToolCall, ToolContext, ToolError, allow, tool
from ferrule.cli.journal_calls import format_duration
from ferrule.journal._rows import EVENT_COLUMNS, EventRows
from ferrule.journal.reading import NOT_STARTED, UNFINISHED
from ferrule.middleware import retry
from journal_desk import ADA, aged, call, desk, journaled, one_of_each

if os.name != "nt":
    from terminal import Terminal

DOCS = Path(__file__).parent.parent.parent / "docs"
HOSTILE = "\x1b[2Jok\r\n\u202efdp\x07 \ud800 \u200b"


class Command:
    """Runs commands, and reads what they print."""

    def __init__(self, ferrule: Any) -> None:
        self.ferrule = ferrule

    def __call__(self, *words: str, code: int = 0) -> str:
        done = self.ferrule(*words)
        assert done.code == code, done.text
        return f"{done.out}{done.err}"

    def log(self) -> list[list[str]]:
        """Return the cells of each line of `ferrule log`."""
        return [re.split(r"  +", line.strip()) for line in self("log", "calls.db").splitlines()]

    def records(self, *words: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self(*words, "--json").splitlines()]


@pytest.fixture
def path(folder: Path) -> Path:
    return folder / "calls.db"


@pytest.fixture
def said(ferrule: Any) -> Command:
    return Command(ferrule)


def test_each_call_has_a_line_with_its_outcome_and_approver(path: Path, said: Command) -> None:
    journaled(path, one_of_each)
    lines = said.log()
    assert [line[3:] for line in lines] == [
        ["refund", "ada/s1", "c1", "eve, 1 replay", 'order="o1", euros=1'],
        ["refund", "ada/s1", "c2", "ask_before_changes", 'order="later", euros=1'],
        ["look", "ada/s1", "c3", 'order="bad"'],
        ["refnd", "bob/s2", "c4", 'order="o1"'],
    ]
    assert [line[1] for line in lines] == ["ok", "suspended", "failed", "not_found"]
    assert [line[0][0] for line in lines] == ["✓", "‖", "✗", "!"]


def test_options_filter_calls(path: Path, said: Command) -> None:
    journaled(path, one_of_each)
    aged(path, 3)
    journaled(path, lambda runner: runner.run(call("new"), ADA))

    def ids(*options: str) -> list[object]:
        return [one["call_id"] for one in said.records("log", "calls.db", *options)]

    assert ids() == ["c1", "c2", "c3", "c4", "new"] and ids("--every") == ["c1", *ids()]
    assert ids("--tool", "ref?") == [] and ids("--tool", "ref*d", "--limit", "2") == ["c4", "new"]
    assert ids("--principal", "bob") == ids("--session", "s2") == ["c4"]
    assert ids("--status", "failed", "--status", "not_found") == ["c3", "c4"]
    assert ids("--status", "unfinished") == ["c2"]
    with sqlite3.connect(path) as connection:  # as if the process of c3 had been killed
        connection.execute("DELETE FROM events WHERE call_id = 'c3' AND kind = 'tool:error'")
        connection.execute("UPDATE calls SET state = 'running', outcome = NULL WHERE call_id = 'c3'")
    connection.close()
    assert ids("--status", "unknown") == ["c3"]
    assert ids("--since", "2d") == ids("--since", f"{datetime.now():%Y-%m-%d}") == ["new"]
    assert "no such calls" in said("log", "calls.db", "--tool", "ref?")
    assert ids("--until", "1w") == [] and ids("--until", "2h") == ["c1", "c2", "c3", "c4"]


def test_the_record_of_a_call_has_the_fields_of_the_page(path: Path, said: Command) -> None:
    journaled(path, one_of_each)
    page = (DOCS / "journal.md").read_text(encoding="utf-8").partition("### Export")[2].partition("\n### ")[0]
    fields = [name for names in re.findall(r"(?m)^\| (`.*?) \|", page) for name in re.findall(r"`(\w+)`", names)]
    for one in said.records("log", "calls.db"):
        assert list(one) == fields
    assert set(re.findall(r"`(\w+)`", page.partition("| `status` |")[2])) >= UNFINISHED | {NOT_STARTED}


def test_a_terminal_shows_the_newest_calls_and_a_pipe_all(path: Path, said: Command) -> None:
    async def many(runner: Runner) -> None:
        for number in range(101):
            await runner.run(call(f"m{number}", "look"), ADA)

    journaled(path, many)
    with Terminal("log", "calls.db", cwd=path.parent, columns=100) as terminal:
        terminal.until("these are the newest 100; --limit N shows more")
        assert "arguments" in terminal.said and "m0 " not in terminal.said and "m1 " in terminal.said
    assert len(said("log", "calls.db", "--status", "ok").splitlines()) == 101
    assert len(said("log", "calls.db", "--limit", "3").splitlines()) == 3
    assert len(said.records("log", "calls.db")) == 101


def test_missing_events_are_reported(path: Path, said: Command) -> None:
    journaled(path, one_of_each)
    with sqlite3.connect(path) as connection:  # as a writer does that could not keep pace
        values = EventRows(1).make_lost_row(1200, time.time() - 7200)
        connection.execute(f"INSERT INTO events ({EVENT_COLUMNS}) VALUES ({', '.join('?' * len(values))})", values)
    connection.close()
    assert "1,200 events missing" in said("log", "calls.db")
    assert "missing" not in said("log", "calls.db", "--since", "1h")


def test_hostile_texts_cannot_control_the_terminal(path: Path, said: Command) -> None:
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
    texts = [said("log", "calls.db"), *(said("explain", "calls.db", id) for id in ("c2", "c3", "c4"))]
    texts += [said("explain", "calls.db", HOSTILE), said("log", "calls.db", "--json")]
    for text in texts:
        assert all(one.isprintable() or one == "\n" for one in text), text
        assert len(text.splitlines()) < 60
    assert len(texts[0].splitlines()) == 4 and max(map(len, texts[0].splitlines())) < 400


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["log", "none.db"], "there is no journal at 'none.db'"),
        (["log", "text.db"], "'text.db' is no journal"),
        (["log", "calls.db", "--status", "suspend"], "did you mean 'suspended'"),
        (["log", "calls.db", "--since", "yesterday"], "'yesterday' is not a time"),
        (["log", "calls.db", "--prune", "90d", "--tool", "x"], "leave out --tool"),
        (["explain", "calls.db", "c9"], "there is no call 'c9'"),
        (["explain", "calls.db", "c"], "several ids begin with 'c'; choose from: c1, c2"),
    ],
)
def test_a_wrong_command_gets_one_line(path: Path, said: Command, words: list[str], text: str) -> None:
    journaled(path, one_of_each)
    path.with_name("text.db").write_text("no journal" * 1000, encoding="utf-8")
    told = said(*words, code=2)
    assert text in told.replace('"', "'") and len(told.splitlines()) == 1
    assert not path.with_name("none.db").exists()


# -- explain -----------------------------------------------------------------------------------------------------------


def test_one_call_is_explained_from_its_arguments_to_its_outcome(path: Path, said: Command) -> None:
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
    lines = said("explain", "calls.db", "c1").splitlines()
    text = "\n".join(lines)
    parts = ["send  ✓ ok", "principal ada", "session   s1", 'argument  to = "kim"', "argument  copies = 2"]
    parts += ["? asked: send changes things (ask_before_changes)", "? allowed by eve", "▸ started", "… 1/2 half"]
    parts += ["repaired  ", "↻ attempt 1 of 2: failed: ", "executed  yes", "    sent to kim"]
    assert [part for part in parts if part not in text] == [], text
    happened = [re.sub(r"^\s*\+\S+s (.).*", r"\1", line) for line in lines if re.match(r"\s*\+\d", line)]
    assert happened == ["→", "?", "?", "▸", "…", "↻", "…", "✓"]
    bars = [line.split()[0] for line in lines if "━" in line]
    assert bars == ["checked", "asked", "waited", "ran", "paused", "ran"]


def test_explain_shows_the_approver_and_their_changes(path: Path, said: Command) -> None:
    journaled(path, lambda runner: runner.run(call("c1"), ADA), approve=lambda call, decision, context: True)
    assert "? allowed by an unnamed person\n" in said("explain", "calls.db", "c1")
    assert said.log()[0][-2] == "an unnamed person"

    async def approve(call: ToolCall, decision: object, context: ToolContext) -> Decision:
        return allow({**call.arguments, "euros": 3}, by="eve")

    journaled(path, lambda runner: runner.run(call("toolu_01A09q90", euros=500), ADA), approve=approve)
    text = said("explain", "calls.db", "toolu_01…")
    assert "id        toolu_01A09q90" in text and "argument  euros = 3" in text
    assert "allowed by eve; with euros=3\n" in text


def test_calls_with_one_id_are_explained_one_by_one(path: Path, said: Command) -> None:
    journaled(path, one_of_each)
    text = said("explain", "calls.db", "c1")
    assert text.startswith("2 calls have this id: ") and "(1 of 2)" in text and "(2 of 2)" in text
    assert text.count("nothing ran again") == 1
    [one] = said.records("explain", "calls.db", "c2")
    assert one["status"] == "suspended"
    assert len(said.records("explain", "calls.db", "c1")) == 2


def test_a_suspended_call_shows_its_deadline(path: Path, said: Command) -> None:
    journaled(path, one_of_each)
    text = said("explain", "calls.db", "c2")
    assert re.search(r"\+0\.\d+s ‖ suspended: refund waits for a decision: somebody else decides", text)
    assert re.search(r"‖ it waits for an answer, until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", text)


def test_a_duration_has_at_most_two_units() -> None:
    seconds = (0.0996, 0.9996, 59.96, 3599.6, 90_000, math.inf)
    texts = ["100 ms", "1.0 s", "1 min 0 s", "1 h 0 min", "1 d 1 h", "?"]
    assert [format_duration(one) for one in seconds] == texts


# -- retention ---------------------------------------------------------------------------------------------------------


def test_old_calls_are_deleted_on_request(path: Path, said: Command) -> None:
    journaled(path, one_of_each)
    aged(path, 100)
    journaled(path, lambda runner: runner.run(call("young"), ADA))
    assert said("log", "calls.db", "--prune", "90d") == "deleted 5 calls (18 events)\n"
    assert [one["call_id"] for one in said.records("log", "calls.db")] == ["young"]
    assert said("log", "calls.db", "--prune", "90d") == "deleted 0 calls (0 events)\n"


# -- in a terminal -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="it needs a terminal of Unix")
async def test_following_shows_new_calls_until_interrupted(path: Path) -> None:

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
