"""`console`: a person at a terminal answers, and everything but a plain yes denies."""

from __future__ import annotations

import asyncio
import codecs
import io
import os
import select
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.approval import console
from ferrule.approval.console import _question_text
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, allow, ask

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")

BOUND = 20.0
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
        approve = console(terminal.input, terminal.output)
        asked = asyncio.ensure_future(approve(CALL, decision, ToolContext()))
        await asyncio.to_thread(terminal.until, prompt)
        terminal.type(typed)
        return await asyncio.wait_for(asked, BOUND)

    return asyncio.run(run())


@pytest.mark.parametrize("typed", ["y\n", "Y\n", "yes\n", " y \n"])
def test_a_plain_yes_allows(typed: str, terminal: Terminal) -> None:
    assert answered(terminal, typed) == allow()


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


def test_what_was_typed_before_the_question_is_no_answer(terminal: Terminal) -> None:
    terminal.type("y\n")
    assert answered(terminal, "n\n").kind == "deny"


@pytest.mark.parametrize("stream", [io.StringIO("y\n"), None])
def test_without_a_terminal_nobody_is_there(stream: TextIO | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", stream)
    output = io.StringIO()
    decision = asyncio.run(console(stream, output)(CALL, ask("why"), ToolContext()))
    assert decision.kind == "deny"
    assert "nobody is there to ask" in decision.reason
    assert output.getvalue() == ""


def test_a_terminal_that_was_closed_denies(terminal: Terminal) -> None:
    approve = console(terminal.input, terminal.output)
    closed = Terminal()
    closed.close()
    assert asyncio.run(console(closed.input, closed.output)(CALL, ask("why"), ToolContext())).kind == "deny"
    assert asyncio.run(console(terminal.input, closed.output)(CALL, ask("why"), ToolContext())).kind == "deny"
    assert approve is not None


def test_a_value_is_asked_for_without_showing_it(terminal: Terminal) -> None:
    decision = answered(terminal, "s3cret pin\n", ask("a pin is needed", into="pin"), "refuse): ")
    assert decision == allow(arguments={"path": "a.txt", "content": "hello", "pin": "s3cret pin"})
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
        approve = console(terminal.input, terminal.output)
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
        approve = console(terminal.input, terminal.output)
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

    assert asyncio.run(run()) == allow()


@pytest.mark.slow
@given(
    st.text(min_size=1),
    st.dictionaries(st.text(), st.text() | st.lists(st.text()) | st.dictionaries(st.text(), st.text()), max_size=40),
    st.text(),
)
def test_nothing_in_a_call_can_forge_a_line_of_the_question(name: str, arguments: dict[str, Any], reason: str) -> None:
    text = _question_text(ToolCall("1", name, arguments), ask(reason), ())
    lines = text.split("\n")
    assert all(line.isprintable() for line in lines)
    assert len(lines) == 3 + min(len(arguments), 30) + (len(arguments) > 30) + bool(reason)
    assert all(line.startswith("  ") for line in lines[2:-1])


def test_long_values_show_their_ends_and_count_the_rest() -> None:
    long = "a" * 5000 + "; rm -rf /"
    text = _question_text(ToolCall("1", "x", {"content": long, "n": [long]}), ask("r" * 5000 + "end"), ())
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
    lines = terminal.seen.replace("\r\n", "\n").split("\n")
    asked_in = lines.index(next(line for line in lines if line.startswith(PROMPT)))
    assert lines[:2] == ["", "x wants to run:"]
    assert all(line.startswith(("  a = ", "  because: ", "    ┆ ")) for line in lines[2:asked_in])
    assert all(sum(2 if ord(c) > 0x2500 else 1 for c in line) <= columns - 4 for line in lines[2:asked_in])
    assert forged in "".join(line.removeprefix("    ┆ ") for line in lines[2:asked_in])


def test_a_secret_prompt_that_is_cancelled_leaves_the_terminal_as_it_was(terminal: Terminal) -> None:
    import termios

    before = termios.tcgetattr(terminal.input.fileno())

    async def run() -> None:
        approve = console(terminal.input, terminal.output)
        asked = asyncio.ensure_future(approve(CALL, ask("a pin is needed", into="pin"), ToolContext()))
        await asyncio.to_thread(terminal.until, "refuse): ")
        assert termios.tcgetattr(terminal.input.fileno())[3] != before[3]
        asked.cancel()
        await asyncio.wait({asked})
        assert termios.tcgetattr(terminal.input.fileno())[3] == before[3]

    asyncio.run(run())


def test_a_question_that_nobody_can_see_is_not_asked(terminal: Terminal) -> None:
    output = io.StringIO()
    asked = console(terminal.input, output)(CALL, ask("why"), ToolContext())
    terminal.type("y\n")
    decision = asyncio.run(asyncio.wait_for(asked, BOUND))
    assert decision.kind == "deny"
    assert "nobody" in decision.reason
    assert output.getvalue() == ""


def test_private_parameters_are_not_shown() -> None:
    text = _question_text(ToolCall("1", "x", {"pin": "1234"}), ask("why"), ("pin",))
    assert "pin = '**********'" in text and "1234" not in text
