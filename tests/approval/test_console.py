"""`console`: a person at a terminal answers, and everything but a plain yes denies."""

from __future__ import annotations

import asyncio
import codecs
import io
import os
import re
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, TextIO

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ferrule import Runner
from ferrule.approval import console, printable
from ferrule.approval import request as request_module
from ferrule.approval.preview import preview_lines
from ferrule.approval.question import Question
from ferrule.approval.terminal import RESET
from ferrule.guards import ask_before_changes, within
from ferrule.tools import files
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, allow, ask, deny
from steps import lines
from waits import BOUND

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")

CALL = ToolCall("1", "write_file", {"path": "a.txt", "content": "hello"})


class Terminal:
    """A real terminal with somebody in front of it."""

    def __init__(self) -> None:
        self.master, slave = os.openpty()
        self.input: TextIO = os.fdopen(slave, "r")
        self.output: TextIO = os.fdopen(os.dup(slave), "w")
        self.seen = ""
        self.decoder = codecs.getincrementaldecoder("utf-8")()  # a read may end in the middle of a character

    def until(self, text: str, times: int = 1) -> str:
        """What is on the screen once `text` has come up so often."""
        ends = time.monotonic() + BOUND
        while self.seen.count(text) < times:
            assert select.select([self.master], [], [], ends - time.monotonic())[0], self.seen
            self.seen += self.decoder.decode(os.read(self.master, 65536))
        return self.seen

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def close(self) -> None:
        self.input.close()
        self.output.close()
        os.close(self.master)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


PROMPT = "Allow it? [y/N] "
WHY = ask("it changes things")


def answered(terminal: Terminal, typed: str, decision: Decision = WHY, prompt: str = PROMPT) -> Decision:
    async def run() -> Decision:
        approve = console(terminal.input, terminal.output, by="ann")
        asked = asyncio.ensure_future(approve(CALL, decision, ToolContext()))
        await asyncio.to_thread(terminal.until, prompt)
        terminal.type(typed)
        return await asyncio.wait_for(asked, BOUND)

    return asyncio.run(run())


@pytest.mark.parametrize("typed", ["y\n", "Y\n", "yes\n", " y \n"])
def test_a_plain_yes_allows(typed: str, terminal: Terminal) -> None:
    assert answered(terminal, typed) == allow(by="ann")


@pytest.mark.parametrize("typed", ["n\n", "\n", "no\n", "yellow\n", "yy\n", "\x04", "y y\n", "true\n"])
def test_everything_else_denies(typed: str, terminal: Terminal) -> None:
    decision = answered(terminal, typed)
    assert decision.kind == "deny"


def test_the_question_shows_tool_arguments_and_reason(terminal: Terminal) -> None:
    answered(terminal, "n\n")
    lines = terminal.seen.replace("\r\n", "\n").split("\n")
    assert lines[1:5] == [
        "write_file wants to run:",
        "  path = 'a.txt'",
        "  content = 'hello'",
        "  because: it changes things",
    ]


@pytest.mark.parametrize(
    ("set_before", "taken_back"),
    [
        ("\x1b[8m", "\x1b[m"),
        ("\x1b[30;40m", "\x1b[m"),
        ("\x1b[?1049h", "\x1b[?1049l"),
        ("\x1b[1;2r", "\x1b[r"),
        ("\x1b[?69h\x1b[1;2s", "\x1b[?69l"),
        ("\x1b]0;", "\x1b\\"),
        ("\x1bP", "\x1b\\"),
        ("\x1b(0", "\x1b(B"),
        ("\x1b[?2026h", "\x1b[?2026l"),
        ("\x1b]11;#fff\x07\x1b]10;#fff\x07", "\x1b]110\x1b\\\x1b]111\x1b\\"),
        ("Allow it? [y/N]\x1b[99A", "\x1b[J"),
    ],
)
def test_what_was_written_before_cannot_hide_the_question(
    set_before: str, taken_back: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal.output.write(f"{set_before} and\n")
    terminal.output.flush()
    terminal.until(" and")
    answered(terminal, "n\n")
    question = terminal.seen.partition(" and")[2]
    assert taken_back in question.partition("wants to run")[0]
    assert "\x1b" not in question.partition("wants to run")[2]


def test_a_terminal_that_reads_no_sequences_is_sent_none(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    answered(terminal, "n\n")
    assert "\x1b" not in terminal.seen


def test_what_is_printable_neither_moves_the_cursor_nor_hides_anything() -> None:
    hostile = "ask\x1b[8m \x9b8m\r\x08\x00\u202e\u200b\u2066\ud800"
    assert printable(hostile) == "ask\ufffd[8m \ufffd8m" + 7 * "\ufffd"
    assert printable("tea\tfür 2 €\n") == "tea\tfür 2 €\n"
    assert printable("a\U000e0131\u3164\ufe0fb") == "a\ufffd\ufffd\ufffdb"
    assert (
        printable("\u2764\ufe0f 1\ufe0f\u20e3 \u0915\u093f e\u0301")
        == "\u2764\ufe0f 1\ufe0f\u20e3 \u0915\u093f e\u0301"
    )


def test_what_no_terminal_shows_is_an_escape_wherever_it_stands_in_a_question() -> None:
    unseen = [chr(code) for code in (0x034F, 0x115F, 0x3164, 0xFE00, 0xFE0F, 0xFFA0, 0xE0100, 0xE01EF)]
    for one in unseen:
        call = ToolCall("1", f"pay{one}", {f"to{one}": f"ann{one}", "more": [f"b{one}"]})
        made = Question(call, ask(f"it{one}"), (), [f"pays{one}"], whole=True)
        escape = one.encode("unicode_escape").decode()
        assert one not in made.text and made.text.count(escape) == 6
        assert one not in made.hint(f"n{one}", {"enum": [f"c{one}"], "title": f"t{one}"})


def test_what_was_typed_before_the_question_is_no_answer(terminal: Terminal) -> None:
    terminal.type("y\n")
    assert answered(terminal, "n\n").kind == "deny"


@pytest.mark.parametrize("stream", [io.StringIO("y\n"), None])
async def test_without_a_terminal_nobody_is_there(stream: TextIO | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", stream)
    output = io.StringIO()
    decision = await console(stream, output)(CALL, ask("why"), ToolContext())
    assert decision.kind == "deny"
    assert "is not a terminal" in decision.reason
    assert output.getvalue() == ""


def test_a_terminal_that_was_closed_denies(terminal: Terminal) -> None:
    approve = console(terminal.input, terminal.output, by="ann")
    closed = Terminal()
    closed.close()
    assert asyncio.run(console(closed.input, closed.output)(CALL, ask("why"), ToolContext())).kind == "deny"
    assert asyncio.run(console(terminal.input, closed.output)(CALL, ask("why"), ToolContext())).kind == "deny"
    assert approve is not None


def test_a_value_is_asked_for_without_showing_it(terminal: Terminal) -> None:
    decision = answered(terminal, "s3cret pin\n", ask("a pin is needed", into="pin"), "refuse): ")
    assert decision == allow(arguments={"path": "a.txt", "content": "hello", "pin": "s3cret pin"}, by="ann")
    terminal.output.write("done")
    terminal.output.flush()
    assert "s3cret" not in terminal.until("done")


@pytest.mark.parametrize("typed", ["\n", "\x04"])
def test_no_value_denies(typed: str, terminal: Terminal) -> None:
    assert answered(terminal, typed, ask("a pin is needed", into="pin"), "refuse): ").kind == "deny"


def test_what_is_typed_is_shown_again_after_a_value(terminal: Terminal) -> None:
    import termios

    before = termios.tcgetattr(terminal.input.fileno())
    answered(terminal, "x\n", ask("a pin is needed", into="pin"), "refuse): ")
    assert termios.tcgetattr(terminal.input.fileno())[3] == before[3]


def test_one_question_is_shown_at_a_time_whatever_loop_it_comes_from(terminal: Terminal) -> None:
    answers: dict[str, str] = {}

    def in_a_loop_of_its_own(name: str) -> None:
        approve = console(terminal.input, terminal.output, by="ann")
        answers[name] = asyncio.run(approve(ToolCall("1", name), ask("why"), ToolContext())).kind

    threads = [threading.Thread(target=in_a_loop_of_its_own, args=(name,), daemon=True) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    shown = terminal.until(PROMPT)
    first = "one" if "one wants" in shown else "two"
    assert shown.count("wants to run") == 1
    terminal.type("y\n")
    assert terminal.until(PROMPT, times=2).count("wants to run") == 2
    terminal.type("n\n")
    for thread in threads:
        thread.join(BOUND)
    assert answers == {first: "allow", "two" if first == "one" else "one": "deny"}


def test_a_question_that_is_cancelled_leaves_its_answer_to_nobody(terminal: Terminal) -> None:
    async def run() -> Decision:
        approve = console(terminal.input, terminal.output, by="ann")
        first = asyncio.ensure_future(approve(ToolCall("1", "first"), ask("why"), ToolContext()))
        await asyncio.to_thread(terminal.until, PROMPT)
        second = asyncio.ensure_future(approve(ToolCall("2", "second"), ask("why"), ToolContext()))
        first.cancel()
        await asyncio.wait({first})
        assert first.cancelled()
        await asyncio.to_thread(terminal.until, PROMPT, 2)
        assert terminal.seen.index("no longer asked") < terminal.seen.index("second wants")
        terminal.type("y\n")
        return await asyncio.wait_for(second, BOUND)

    assert asyncio.run(run()) == allow(by="ann")


@pytest.mark.slow
@given(
    st.text(min_size=1),
    st.dictionaries(st.text(), st.text() | st.lists(st.text()) | st.dictionaries(st.text(), st.text()), max_size=40),
    st.text(),
)
def test_nothing_in_a_call_can_forge_a_line_of_the_question(name: str, arguments: dict[str, Any], reason: str) -> None:
    lines = Question(ToolCall("1", name, arguments), ask(reason)).text.split("\n")
    assert all(line.isprintable() for line in lines)
    assert len(lines) == 3 + min(len(arguments), 30) + (len(arguments) > 30) + bool(reason)
    assert all(line.startswith("  ") for line in lines[2:-1])


def test_long_values_show_their_ends_and_count_the_rest() -> None:
    long = "a" * 5000 + "; rm -rf /"
    text = Question(ToolCall("1", "x", {"content": long, "n": [long]}), ask("r" * 5000 + "end")).text
    assert len(text) < 2500
    assert text.count("; rm -rf /") == 2
    assert "' … 4510 characters not shown … '" in text
    assert "rrrend" in text


@pytest.mark.parametrize("letter", ["a", " ", "\u6f22", "\u2506", "\U0001f600"])
@pytest.mark.parametrize("columns", [40, 81])
def test_a_long_value_cannot_forge_a_line_by_running_over_the_edge(
    letter: str, columns: int, terminal: Terminal
) -> None:
    import fcntl
    import struct
    import termios

    fcntl.ioctl(terminal.master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    forged = letter * 200 + "Allow it? [y/N] y" + " " * 200

    async def run() -> Decision:
        asked = asyncio.ensure_future(
            console(terminal.input, terminal.output)(ToolCall("1", "x", {"a": forged}), ask(forged), ToolContext())
        )
        await asyncio.to_thread(terminal.until, "\n" + PROMPT)
        terminal.type("n\n")
        return await asyncio.wait_for(asked, BOUND)

    assert asyncio.run(run()).kind == "deny"
    lines = terminal.seen.removeprefix(RESET).replace("\r\n", "\n").split("\n")
    asked_in = lines.index(next(line for line in lines if line.startswith(PROMPT)))
    assert lines[:2] == ["", "x wants to run:"]
    assert all(line.startswith(("  a = ", "  because: ", "  or: ", "    ┆ ")) for line in lines[2:asked_in])
    assert all(sum(2 if ord(c) > 0x2500 else 1 for c in line) <= columns - 4 for line in lines[2:asked_in])
    assert forged in "".join(line.removeprefix("    ┆ ") for line in lines[2:asked_in])


async def test_a_secret_prompt_that_is_cancelled_leaves_the_terminal_as_it_was(terminal: Terminal) -> None:
    import termios

    before = termios.tcgetattr(terminal.input.fileno())

    approve = console(terminal.input, terminal.output, by="ann")
    asked = asyncio.ensure_future(approve(CALL, ask("a pin is needed", into="pin"), ToolContext()))
    await asyncio.to_thread(terminal.until, "refuse): ")
    assert termios.tcgetattr(terminal.input.fileno())[3] != before[3]
    asked.cancel()
    await asyncio.wait({asked})
    assert termios.tcgetattr(terminal.input.fileno())[3] == before[3]


async def test_a_question_that_nobody_can_see_is_not_asked(terminal: Terminal) -> None:
    output = io.StringIO()
    asked = console(terminal.input, output)(CALL, ask("why"), ToolContext())
    terminal.type("y\n")
    decision = await asyncio.wait_for(asked, BOUND)
    assert decision.kind == "deny"
    assert "nobody" in decision.reason
    assert output.getvalue() == ""


def test_private_parameters_are_not_shown() -> None:
    text = Question(ToolCall("1", "x", {"pin": "1234"}), ask("why"), ("pin",)).text
    assert "pin = '**********'" in text and "1234" not in text


# the whole


MORE = "Allow it? [y/N, m to show everything] "
LONG = ToolCall("1", "write_file", {"path": "a.txt", "content": "first\n" + "x" * 1000 + "\x1b[2J"})


def asked_about(
    terminal: Terminal, *typed: tuple[str, str], call: ToolCall = LONG, decision: Decision = WHY, context: Any = None
) -> Decision:
    """What comes of it where somebody waits for each prompt and types its answer."""

    async def run() -> Decision:
        approve = console(terminal.input, terminal.output, by="ann")
        asked = asyncio.ensure_future(approve(call, decision, context or ToolContext()))
        for number, (prompt, answer) in enumerate(typed):
            earlier = sum(prompt == before for before, _ in typed[:number])
            await asyncio.to_thread(terminal.until, prompt, earlier + 1)
            terminal.type(answer)
        return await asyncio.wait_for(asked, BOUND)

    return asyncio.run(run())


def shown_lines(terminal: Terminal) -> list[str]:
    return terminal.seen.replace("\r\n", "\n").split("\n")


@pytest.mark.parametrize(("last", "kind"), [("y\n", "allow"), ("n\n", "deny"), ("\n", "deny")])
def test_the_whole_of_what_was_cut_is_shown_and_then_it_asks_again(last: str, kind: str, terminal: Terminal) -> None:
    assert asked_about(terminal, (MORE, "m\n"), (PROMPT, last)).kind == kind
    cut, whole = terminal.seen.replace("\r\n    ┆ ", "").replace("\r\n", "\n").split(MORE)
    assert "characters not shown" in cut and "not shown" not in whole
    lines = whole.split("\n")
    assert lines[3:7] == ["  path = 'a.txt'", "  content =", "  │ first", "  │ " + "x" * 1000 + "\\x1b[2J"]


def test_the_whole_can_be_seen_again_and_is_no_answer_by_itself(terminal: Terminal) -> None:
    decision = asked_about(terminal, (MORE, "m\n"), (PROMPT, "more\n"), (PROMPT, "m\n"), (PROMPT, "\n"))
    assert decision.kind == "deny"


def test_what_is_typed_while_the_whole_is_shown_is_no_answer(terminal: Terminal) -> None:
    assert asked_about(terminal, (MORE, "m\ny\n"), (PROMPT, "n\n")).kind == "deny"


def test_the_whole_is_not_offered_where_nothing_was_cut(terminal: Terminal) -> None:
    answered(terminal, "n\n")
    assert "m for" not in terminal.seen


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"a": "x" * 501}, ""),
        ({"a": ["x" * 501]}, ""),
        ({f"a{n}": n for n in range(31)}, ""),
        ({"a": "one\ntwo"}, ""),
        ({}, "x" * 501),
    ],
)
def test_whatever_is_cut_is_there_in_the_whole(arguments: dict[str, Any], reason: str) -> None:
    call, decision = ToolCall("1", "x", arguments), ask(reason)
    cut, whole = Question(call, decision), Question(call, decision, whole=True)
    assert cut.has_more and not whole.has_more
    assert "not shown" not in whole.text
    assert all(str(name) in whole.text for name in arguments)
    assert whole.text.count("x") == 1 + sum("x" * 501 in str(part) for part in (arguments, reason)) * 501


@pytest.mark.parametrize(("first", "count"), [("m\n", 1), ("\n", 0)])
def test_before_a_value_is_given_the_whole_can_be_seen(first: str, count: int, terminal: Terminal) -> None:
    decision = asked_about(
        terminal, ("Show everything? [m/N] ", first), ("refuse): ", "1234\n"), decision=ask("a pin", into="pin")
    )
    assert decision.arguments is not None and decision.arguments["pin"] == "1234"
    assert terminal.seen.count("│ first") == count
    assert "1234" not in terminal.seen


# previews


class Diff(NamedTuple):
    """As the kernel's: `name`, `before` and `after`."""

    before: str
    after: str
    name: str


def with_preview(preview: Callable[[Any], object] | None, *hidden: str) -> Any:
    return SimpleNamespace(tool=SimpleNamespace(hidden=hidden, preview=preview))


EDIT = ToolCall("1", "edit_file", {"path": "a.py", "old": "b", "new": "c", "key": "s3cret"})
NUMBERED = "".join(f"{n}\n" for n in range(1, 101))


def test_a_preview_is_shown_instead_of_the_arguments_which_are_named(terminal: Terminal) -> None:
    preview = with_preview(lambda arguments: Diff("a\nb\nd\n", "a\nc\nd\n", arguments["path"]))
    assert asked_about(terminal, (MORE, "y\n"), call=EDIT, context=preview) == allow(by="ann")
    assert shown_lines(terminal)[1:-1] == [
        "edit_file wants to run:",
        "  │ --- a.py",
        "  │ +++ a.py",
        "  │ @@ -1,3 +1,3 @@",
        "  │  a",
        "  │ -b",
        "  │ +c",
        "  │  d",
        "  arguments, not shown: path, old, new, key",
        "  because: it changes things",
        "  or: e to edit the arguments, n WHY to give the model a reason",
    ]


async def test_nobody_is_asked_about_an_edit_that_cannot_work_and_the_model_is_told_why(
    tmp_path: Path, terminal: Terminal
) -> None:
    (tmp_path / "a.txt").write_text("one\none\n")
    guards = [within(tmp_path), ask_before_changes]
    runner = Runner(files.tools, guards=guards, approve=console(terminal.input, terminal.output))
    calls = [
        ToolCall(old, "edit_file", {"path": str(tmp_path / "a.txt"), "old": old, "new": "2"}) for old in ("two", "one")
    ]
    calls.append(ToolCall("3", "edit_file", {"path": "/etc/hostname", "old": "a", "new": "2"}))
    results = await asyncio.wait_for(runner.run_all(calls), BOUND)
    assert [(result.status, result.executed) for result in results] == [("denied", False)] * 3
    assert "old does not occur in" in str(results[0].error) and "add text around it" in str(results[1].error)
    assert "old" not in str(results[2].error)
    assert not select.select([terminal.master], [], [], 0)[0]


def test_the_whole_of_a_preview_has_the_arguments_too_and_nothing_hidden(terminal: Terminal) -> None:
    preview = with_preview(lambda arguments: f"with {arguments['key']}\n" + "line\n" * 100, "key")
    assert asked_about(terminal, (MORE, "m\n"), (PROMPT, "n\n"), call=EDIT, context=preview).kind == "deny"
    cut, whole = terminal.seen.split(MORE)
    assert cut.count("│ line") == 39 and "… 61 lines not shown …" in cut
    assert whole.count("│ line") == 100
    assert "  path = 'a.py'\r\n  old = 'b'\r\n  new = 'c'\r\n  key = '**********'\r\n" in whole
    assert "│ with **********" in cut and "s3cret" not in terminal.seen


def broken(arguments: Any) -> object:
    raise SystemExit("s3cret")


@pytest.mark.parametrize(
    ("preview", "why"),
    [
        (broken, "it raised SystemExit"),
        (lambda arguments: arguments["absent"], "it raised KeyError"),
        (lambda: "", "it raised TypeError"),
        ("no function", "it raised TypeError"),
        (lambda arguments: 5, "it returned int, and must return a text or a Diff"),
        (lambda arguments: Diff("a", 5, "b"), "it returned Diff, and must return a text or a Diff"),  # type: ignore[arg-type]
    ],
)
def test_where_a_preview_breaks_the_arguments_are_shown_and_it_says_so(
    preview: Any, why: str, terminal: Terminal, caplog: pytest.LogCaptureFixture
) -> None:
    assert asked_about(terminal, (PROMPT, "y\n"), call=EDIT, context=with_preview(preview, "key")) == allow(by="ann")
    assert ("the preview of tool 'edit_file' raised: " in caplog.text and "Traceback" in caplog.text) is (
        "it raised" in why
    )
    lines = shown_lines(terminal)
    assert lines[2] == f"  no preview: {why}"
    assert lines[3:7] == ["  path = 'a.py'", "  old = 'b'", "  new = 'c'", "  key = '**********'"]
    assert "s3cret" not in terminal.seen


def test_a_preview_that_does_not_end_is_not_waited_for(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_module, "PREVIEW_SECONDS", 0.2)
    opened = threading.Event()
    try:
        context = with_preview(lambda arguments: str(opened.wait(BOUND)))
        assert asked_about(terminal, (PROMPT, "n\n"), call=EDIT, context=context).kind == "deny"
        assert "no preview: it takes longer than 0 s" in terminal.seen
    finally:
        opened.set()


def test_a_question_that_is_cancelled_during_its_preview_lets_the_next_one_be_asked(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_module, "PREVIEW_SECONDS", 10 * BOUND)
    began, opened = threading.Event(), threading.Event()

    def preview(arguments: Any) -> str:
        began.set()
        return str(opened.wait(3 * BOUND))

    async def run() -> Decision:
        approve = console(terminal.input, terminal.output, by="ann")
        first = asyncio.ensure_future(approve(EDIT, WHY, with_preview(preview)))
        assert await asyncio.to_thread(began.wait, BOUND)
        first.cancel()
        await asyncio.wait({first})
        second = asyncio.ensure_future(approve(CALL, WHY, ToolContext()))
        await asyncio.to_thread(terminal.until, PROMPT)
        terminal.type("y\n")
        return await asyncio.wait_for(second, BOUND)

    try:
        assert asyncio.run(run()) == allow(by="ann")
        assert "edit_file" not in terminal.seen
    finally:
        opened.set()


def test_a_preview_is_made_when_it_is_its_questions_turn(terminal: Terminal) -> None:
    content = ["before the first"]

    def preview(arguments: Any) -> str:
        return content[0]

    async def run() -> None:
        approve = console(terminal.input, terminal.output, by="ann")
        first = asyncio.ensure_future(approve(EDIT, WHY, with_preview(preview)))
        second = asyncio.ensure_future(approve(EDIT, WHY, with_preview(preview)))
        await asyncio.to_thread(terminal.until, MORE)
        content[0] = "after the first"
        terminal.type("y\n")
        await asyncio.to_thread(terminal.until, MORE, 2)
        terminal.type("y\n")
        await asyncio.wait_for(asyncio.gather(first, second), BOUND)

    asyncio.run(run())
    assert terminal.seen.count("before the first") == terminal.seen.count("after the first") == 1


LINES = st.lists(st.sampled_from(["a", "b", "c", "\x1b[2J", "\u2028", "+", "@@ -1 +1 @@", "  because: x"]), max_size=60)


@pytest.mark.slow
@given(st.text(), LINES, LINES, st.text())
def test_nothing_in_a_preview_can_forge_a_line_of_the_question(
    name: str, before: list[str], after: list[str], reason: str
) -> None:
    made = preview_lines(Diff("\n".join(before), "\n".join(after), name))
    for whole in (False, True):
        lines = Question(EDIT, ask(reason), (), made, whole=whole).text.split("\n")
        assert all(line.isprintable() for line in lines)
        beside = [line for line in lines if line.startswith("  │ ")]
        others = [line for line in lines[2:-1] if not line.startswith(("  │ ", "  … "))]
        assert len(beside) == (len(made) if whole or len(made) <= 40 else 40)
        assert others[: 4 if whole else 1] == (
            ["  path = 'a.py'", "  old = 'b'", "  new = 'c'", "  key = 's3cret'"]
            if whole
            else ["  arguments, not shown: path, old, new, key"]
        )
        assert len(others) == (4 if whole else 1) + bool(reason)


def patched(before: str, lines: list[str]) -> str:
    """What the text of a unified diff makes of `before`, as the program patch reads it."""
    old = before.split("\n")
    made: list[str] = []
    at = 0
    for line in lines[2:]:
        if found := re.fullmatch(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", line):
            start = int(found[1]) - (found[2] != "0")
            made += old[at:start]
            at = start
            assert int(found[3]) - (found[4] != "0") == len(made)
        elif line[0] == "+":
            made.append(line[1:])
        else:
            assert old[at] == line[1:]
            at += 1
            made += [line[1:]] if line[0] == " " else []
    return "\n".join([*made, *old[at:]])


@pytest.mark.parametrize("most", [1000, 2])
@example(["a"] * 10, ["a"] * 11)
@given(LINES, LINES)
def test_a_diff_leads_from_what_is_there_to_what_would_be(most: int, before: list[str], after: list[str]) -> None:
    old, new = "".join(f"{line}\n" for line in before), "".join(f"{line}\n" for line in after)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ferrule.approval.preview._MOST_COMPARED", most)
        made = preview_lines(Diff(old, new, "f"))
    if old == new:
        assert made == ["--- f", "+++ f", "(no difference)"]
    else:
        assert patched(old, made) == new


def test_a_diff_counts_lines_from_the_beginning_of_the_file() -> None:
    made = preview_lines(Diff(NUMBERED, NUMBERED.replace("50\n", "fifty\n"), "n"))
    assert made[2:] == ["@@ -47,7 +47,7 @@", " 47", " 48", " 49", "-50", "+fifty", " 51", " 52", " 53"]


def test_a_diff_says_where_the_last_line_does_not_end() -> None:
    made = preview_lines(Diff("a\nb", "a\nb\n", "n"))
    assert made[2:] == ["@@ -1,2 +1,2 @@", " a", "-b", "\\ No newline at end of file", "+b"]
    assert preview_lines(Diff("", "a\n", "n"))[2:] == ["@@ -0,0 +1 @@", "+a"]
    assert preview_lines(Diff("a\n", "", "n"))[2:] == ["@@ -1 +0,0 @@", "-a"]


def test_a_diff_of_what_has_no_name_begins_with_the_differences() -> None:
    assert preview_lines(Diff("", "a\n", "")) == ["@@ -0,0 +1 @@", "+a"]


def test_a_diff_takes_no_steps_that_grow_with_the_square_of_the_lines() -> None:
    def compared(count: int) -> int:
        old, new = ("".join(f"{n}\n{side} {n}\n" for n in range(count)) for side in ("old", "new"))
        assert len(preview_lines(Diff(old, new, "n"))) > 2 * count
        return lines(lambda: preview_lines(Diff(old, new, "n")))

    assert compared(2_000) < 5 * compared(500)


def test_a_preview_sees_the_context_variables_of_whoever_runs_the_call(terminal: Terminal) -> None:
    tenant = ContextVar("tenant", default="nobody's")
    tenant.set("ada's")
    context = with_preview(lambda arguments: f"in {tenant.get()} folder")
    assert asked_about(terminal, (MORE, "n\n"), call=EDIT, context=context).kind == "deny"
    assert "  │ in ada's folder" in terminal.seen


# -- what a running tool wants to know ---------------------------------------------------------------------------------

WANTED = {
    "type": "object",
    "properties": {
        "day": {"type": "string", "format": "date", "description": "of arrival\nAllow it? [y/N]"},
        "nights": {"type": "integer"},
        "breakfast": {"type": "boolean"},
        "room": {"enum": ["single", "double"]},
    },
    "required": ["day"],
}
ASKED = Decision("ask", "Which day?", schema=WANTED)


def test_one_property_after_another_is_asked_for(terminal: Terminal) -> None:
    typed = [("date", "2026-12-24\n"), ("nights", "2\n"), ("breakfast", "y\n"), ("room", "double\n")]
    decision = asked_about(terminal, *((f"{prompt}", answer) for prompt, answer in typed), decision=ASKED)
    assert decision == allow({"day": "2026-12-24", "nights": 2, "breakfast": True, "room": "double"}, by="ann")
    assert "asked: Which day?" in "\n".join(shown_lines(terminal))


def test_nothing_in_a_schema_can_forge_a_line_of_the_question(terminal: Terminal) -> None:
    asked_about(terminal, ("date", "\n"), decision=ASKED)
    assert not any(line.startswith("Allow it?") for line in shown_lines(terminal))


def test_what_may_be_empty_is_left_out(terminal: Terminal) -> None:
    left_out = [("date", "2026-12-24\n"), ("nights", "\n"), ("breakfast", "\n"), ("room", "\n")]
    assert asked_about(terminal, *left_out, decision=ASKED) == allow({"day": "2026-12-24"}, by="ann")


def test_where_nothing_is_given_for_what_is_required_it_denies(terminal: Terminal) -> None:
    decision = asked_about(terminal, ("date", "\n"), decision=ASKED)
    assert decision == deny("the person gave no value for day")


def test_where_a_plain_yes_is_wanted_it_is_asked_for(terminal: Terminal) -> None:
    decision = asked_about(terminal, (PROMPT, "y\n"), call=CALL, decision=Decision("ask", "Sure?", schema={}))
    assert decision.kind == "allow"
