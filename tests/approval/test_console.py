"""`console`: a person at a terminal answers; only a plain yes allows."""

from __future__ import annotations

import asyncio
import io
import re
import struct
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TextIO

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from terminals import PROMPT, Terminal

from ferrule import Diff
from ferrule.approval import console, printable
from ferrule.approval.preview import preview_lines
from ferrule.approval.question import Question
from ferrule.approval.terminal import RESET
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, allow, ask, deny
from waits import BOUND

fcntl, termios = pytest.importorskip("fcntl"), pytest.importorskip("termios")  # of POSIX
CALL = ToolCall("1", "write_file", {"path": "a.txt", "content": "hello"})


WHY = ask("it changes things")
PIN = ask("a pin is needed", into="pin")
LONG = ToolCall("1", "write_file", {"path": "a.txt", "content": "first\n" + "x" * 1000 + "\x1b[2J"})


def asked_about(
    terminal: Terminal, *typed: tuple[str, str], call: ToolCall = LONG, decision: Decision = WHY, context: Any = None
) -> Decision:
    """The decision after somebody has waited for each prompt and typed its answer."""

    async def run() -> Decision:
        approve = console(terminal.input, terminal.output, by="ann")
        asked = asyncio.ensure_future(approve(call, decision, context or ToolContext()))
        await terminal.answer(typed)
        return await asyncio.wait_for(asked, BOUND)

    return asyncio.run(run())


def with_preview(preview: Callable[[Any], object] | None, *hidden: str) -> Any:
    return SimpleNamespace(tool=SimpleNamespace(hidden=hidden, preview=preview))


def answered(terminal: Terminal, typed: str, decision: Decision = WHY, prompt: str = PROMPT) -> Decision:
    """The decision after somebody has typed this at the prompt."""
    return asked_about(terminal, (prompt, typed), call=CALL, decision=decision)


@pytest.mark.parametrize("typed", ["y\n", "Y\n", "yes\n", " y \n"])
def test_a_plain_yes_allows(typed: str, terminal: Terminal) -> None:
    assert answered(terminal, typed) == allow(by="ann")
    lines = shown_lines(terminal)
    assert lines[1:3] == ["write_file wants to run:", "  path = 'a.txt'"]
    assert lines[3:5] == ["  content = 'hello'", "  because: it changes things"]
    assert "m for" not in terminal.seen  # nothing was cut


@pytest.mark.parametrize("typed", ["n\n", "\n", "no\n", "yellow\n", "yy\n", "\x04", "y y\n", "true\n"])
def test_everything_else_denies(typed: str, terminal: Terminal) -> None:
    assert answered(terminal, typed).kind == "deny"


@pytest.mark.parametrize(
    ("set_before", "taken_back"),
    [
        ("\x1b[30;40m", "\x1b[m"),
        ("\x1b[1;2r", "\x1b[r"),
        ("\x1b[?69h\x1b[1;2s", "\x1b[?69l"),
        ("\x1b]0;", "\x1b\\"),
        ("\x1bP", "\x1b\\"),
        ("\x1b(0", "\x1b(B"),
        ("\x1b]11;#fff\x07\x1b]10;#fff\x07", "\x1b]110\x1b\\\x1b]111\x1b\\"),
        ("Allow it? [y/N]\x1b[99A", "\x1b[J"),
    ],
)
def test_earlier_output_cannot_hide_the_question(
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


def test_a_dumb_terminal_gets_no_escape_sequences(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    answered(terminal, "n\n")
    assert "\x1b" not in terminal.seen


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ask\x1b[8m \x9b8m\r\x08\x00\u202e\u200b\u2066\ud800", "ask\ufffd[8m \ufffd8m" + 7 * "\ufffd"),
        ("a\U000e0131\u3164\ufe0fb", "a\ufffd\ufffd\ufffdb"),
        *[(text, text) for text in ("tea\tfür 2 €\n", "\u2764\ufe0f 1\ufe0f\u20e3 \u0915\u093f e\u0301")],
    ],
)
def test_printable_text_neither_moves_the_cursor_nor_hides_anything(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_invisible_characters_are_escaped_everywhere_in_a_question() -> None:
    unseen = [chr(code) for code in (0x034F, 0x115F, 0x3164, 0xFE00, 0xFE0F, 0xFFA0, 0xE0100, 0xE01EF)]
    for one in unseen:
        call = ToolCall("1", f"pay{one}", {f"to{one}": f"ann{one}", "more": [f"b{one}"]})
        made = Question(call, ask(f"it{one}"), (), [f"pays{one}"], whole=True)
        escape = one.encode("unicode_escape").decode()
        assert one not in made.text and made.text.count(escape) == 6
        assert one not in made.hint(f"n{one}", {"enum": [f"c{one}"], "title": f"t{one}"})


def test_text_typed_before_the_question_is_no_answer(terminal: Terminal) -> None:
    terminal.type("y\n")
    assert answered(terminal, "n\n").kind == "deny"


@pytest.mark.parametrize("stream", [io.StringIO("y\n"), None])
async def test_without_a_terminal_a_call_is_denied(stream: TextIO | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", stream)
    output = io.StringIO()
    decision = await console(stream, output)(CALL, WHY, ToolContext())
    assert decision.kind == "deny" and "is not a terminal" in decision.reason and output.getvalue() == ""


async def test_a_closed_or_invisible_terminal_denies(terminal: Terminal) -> None:
    closed, unseen = Terminal(), io.StringIO()
    closed.close()
    terminal.type("y\n")
    for input, output in ((closed.input, closed.output), (terminal.input, closed.output), (terminal.input, unseen)):
        decision = await asyncio.wait_for(console(input, output)(CALL, WHY, ToolContext()), BOUND)
        assert decision.kind == "deny"
    assert "nobody" in decision.reason and unseen.getvalue() == ""


def test_a_secret_value_is_typed_without_echo(terminal: Terminal) -> None:
    before = termios.tcgetattr(terminal.input.fileno())
    decision = answered(terminal, "s3cret pin\n", PIN, "refuse): ")
    assert decision == allow(arguments={"path": "a.txt", "content": "hello", "pin": "s3cret pin"}, by="ann")
    terminal.output.write("done")
    terminal.output.flush()
    assert "s3cret" not in terminal.until("done")
    assert termios.tcgetattr(terminal.input.fileno())[3] == before[3]


@pytest.mark.parametrize("typed", ["\n", "\x04"])
def test_no_value_denies(typed: str, terminal: Terminal) -> None:
    assert answered(terminal, typed, PIN, "refuse): ").kind == "deny"


def test_one_question_is_shown_at_a_time_across_loops(terminal: Terminal) -> None:
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


async def test_a_cancelled_question_leaves_its_answer_to_nobody(terminal: Terminal) -> None:
    approve = console(terminal.input, terminal.output, by="ann")
    first = asyncio.ensure_future(approve(ToolCall("1", "first"), WHY, ToolContext()))
    await asyncio.to_thread(terminal.until, PROMPT)
    second = asyncio.ensure_future(approve(ToolCall("2", "second"), WHY, ToolContext()))
    first.cancel()
    await asyncio.wait({first})
    assert first.cancelled()
    await asyncio.to_thread(terminal.until, PROMPT, 2)
    assert terminal.seen.index("no longer asked") < terminal.seen.index("second wants")
    terminal.type("y\n")
    assert await asyncio.wait_for(second, BOUND) == allow(by="ann")


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


@pytest.mark.parametrize("letter", ["a", " ", "\u6f22", "\u2506", "\U0001f600"])
@pytest.mark.parametrize("columns", [40, 81])
def test_a_long_value_cannot_forge_a_line_by_wrapping(letter: str, columns: int, terminal: Terminal) -> None:
    fcntl.ioctl(terminal.master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    forged = letter * 200 + "Allow it? [y/N] y" + " " * 200
    typed, call = ("\n" + PROMPT, "n\n"), ToolCall("1", "x", {"a": forged})
    assert asked_about(terminal, typed, call=call, decision=ask(forged)).kind == "deny"
    lines = terminal.seen.removeprefix(RESET).replace("\r\n", "\n").split("\n")
    asked_in = lines.index(next(line for line in lines if line.startswith(PROMPT)))
    assert lines[:2] == ["", "x wants to run:"]
    assert all(line.startswith(("  a = ", "  because: ", "  or: ", "    ┆ ")) for line in lines[2:asked_in])
    assert all(sum(2 if ord(c) > 0x2500 else 1 for c in line) <= columns - 4 for line in lines[2:asked_in])
    assert forged in "".join(line.removeprefix("    ┆ ") for line in lines[2:asked_in])


async def test_a_cancelled_secret_prompt_restores_the_terminal(terminal: Terminal) -> None:
    before = termios.tcgetattr(terminal.input.fileno())
    asked = asyncio.ensure_future(console(terminal.input, terminal.output, by="ann")(CALL, PIN, ToolContext()))
    await asyncio.to_thread(terminal.until, "refuse): ")
    assert termios.tcgetattr(terminal.input.fileno())[3] != before[3]
    asked.cancel()
    await asyncio.wait({asked})
    assert termios.tcgetattr(terminal.input.fileno())[3] == before[3]


def test_long_values_show_their_ends_and_private_ones_nothing() -> None:
    long = "a" * 5000 + "; rm -rf /"
    call = ToolCall("1", "x", {"content": long, "n": [long], "pin": "1234"})
    text = Question(call, ask("r" * 5000 + "end"), ("pin",)).text
    assert len(text) < 2500
    assert text.count("; rm -rf /") == 2 and "' … 4510 characters not shown … '" in text and "rrrend" in text
    assert "pin = '**********'" in text and "1234" not in text


# the whole


MORE = "Allow it? [y/N, m to show everything] "


def shown_lines(terminal: Terminal) -> list[str]:
    return terminal.seen.replace("\r\n", "\n").split("\n")


def test_the_whole_call_is_shown_on_request_and_then_asked_about(terminal: Terminal) -> None:
    assert asked_about(terminal, (MORE, "m\n"), (PROMPT, "m\n"), (PROMPT, "y\n")).kind == "allow"
    cut, whole = terminal.seen.replace("\r\n    ┆ ", "").replace("\r\n", "\n").split(MORE)
    assert "characters not shown" in cut and "not shown" not in whole
    lines = whole.split("\n")
    assert lines[3:7] == ["  path = 'a.txt'", "  content =", "  │ first", "  │ " + "x" * 1000 + "\\x1b[2J"]


@pytest.mark.parametrize("typed", [[("m\n"), "more\n", "m\n", "\n"], ["m\ny\n", "n\n"]])
def test_nothing_but_a_yes_after_the_whole_call_allows(typed: list[str], terminal: Terminal) -> None:
    dialogue = zip([MORE, *[PROMPT] * 3], typed, strict=False)  # what is typed while it is shown is no answer
    assert asked_about(terminal, *dialogue).kind == "deny"


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
def test_everything_that_was_cut_is_in_the_whole_call(arguments: dict[str, Any], reason: str) -> None:
    call, decision = ToolCall("1", "x", arguments), ask(reason)
    cut, whole = Question(call, decision), Question(call, decision, whole=True)
    assert cut.has_more and not whole.has_more
    assert "not shown" not in whole.text
    assert all(str(name) in whole.text for name in arguments)
    assert whole.text.count("x") == 1 + sum("x" * 501 in str(part) for part in (arguments, reason)) * 501


@pytest.mark.parametrize(("first", "count"), [("m\n", 1), ("\n", 0)])
def test_the_whole_call_can_be_seen_before_a_value_is_given(first: str, count: int, terminal: Terminal) -> None:
    decision = asked_about(
        terminal, ("Show everything? [m/N] ", first), ("refuse): ", "1234\n"), decision=ask("a pin", into="pin")
    )
    assert decision.arguments is not None and decision.arguments["pin"] == "1234"
    assert terminal.seen.count("│ first") == count
    assert "1234" not in terminal.seen


# previews


EDIT = ToolCall("1", "edit_file", {"path": "a.py", "old": "b", "new": "c", "key": "s3cret"})


def test_a_preview_is_shown_instead_of_the_arguments(terminal: Terminal) -> None:
    preview = with_preview(lambda arguments: Diff("a\nb\nd\n", "a\nc\nd\n", arguments["path"]))
    assert asked_about(terminal, (MORE, "y\n"), call=EDIT, context=preview) == allow(by="ann")
    lines = ["--- a.py", "+++ a.py", "@@ -1,3 +1,3 @@", " a", "-b", "+c", " d"]
    assert shown_lines(terminal)[2:9] == [f"  │ {line}" for line in lines]
    assert "  arguments, not shown: path, old, new, key" in terminal.seen


def test_the_whole_preview_has_the_arguments_and_no_secret(terminal: Terminal) -> None:
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
        ("no function", "it raised TypeError"),
        (lambda arguments: 5, "it returned int, and must return a text or a Diff"),
    ],
)
def test_a_broken_preview_is_replaced_by_the_arguments(
    preview: Any, why: str, terminal: Terminal, caplog: pytest.LogCaptureFixture
) -> None:
    assert asked_about(terminal, (PROMPT, "y\n"), call=EDIT, context=with_preview(preview, "key")) == allow(by="ann")
    assert ("the preview of tool 'edit_file' raised: " in caplog.text) is ("it raised" in why)
    lines = shown_lines(terminal)
    assert lines[2] == f"  no preview: {why}"
    assert lines[3:7] == ["  path = 'a.py'", "  old = 'b'", "  new = 'c'", "  key = '**********'"]
    assert "s3cret" not in terminal.seen


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
    """Apply a unified diff to `before`, as the program patch does."""
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
def test_a_diff_patches_the_old_text_to_the_new(most: int, before: list[str], after: list[str]) -> None:
    old, new = "".join(f"{line}\n" for line in before), "".join(f"{line}\n" for line in after)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ferrule.approval.preview._MOST_COMPARED", most)
        made = preview_lines(Diff(old, new, "f"))
    if old == new:
        assert made == ["--- f", "+++ f", "(no difference)"]
    else:
        assert patched(old, made) == new


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


def test_properties_are_asked_for_one_by_one(terminal: Terminal) -> None:
    typed = [("date", "2026-12-24\n"), ("nights", "2\n"), ("breakfast", "y\n"), ("room", "double\n")]
    decision = asked_about(terminal, *((f"{prompt}", answer) for prompt, answer in typed), decision=ASKED)
    assert decision == allow({"day": "2026-12-24", "nights": 2, "breakfast": True, "room": "double"}, by="ann")
    assert "asked: Which day?" in "\n".join(shown_lines(terminal))


def test_a_missing_required_property_denies(terminal: Terminal) -> None:
    assert asked_about(terminal, ("date", "\n"), decision=ASKED) == deny("the person gave no value for day")


def test_optional_properties_may_be_left_out(terminal: Terminal) -> None:
    left_out = [("date", "2026-12-24\n"), ("nights", "\n"), ("breakfast", "\n"), ("room", "\n")]
    assert asked_about(terminal, *left_out, decision=ASKED) == allow({"day": "2026-12-24"}, by="ann")
