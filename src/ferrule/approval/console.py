"""A person at the terminal answers, one question at a time."""

from __future__ import annotations

import contextlib
import getpass
import io
import json
import os
import select
import shutil
import sys
import threading
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from ferrule.approval.asked import Answer, Asked
from ferrule.approval.question import Question, shown_name
from ferrule.approval.terminal import reset
from ferrule.executors.threads import Raised, in_own_thread
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, allow

try:
    import termios as _termios
except ImportError:  # pragma: no cover
    termios: Any = None
else:
    termios = _termios

# A terminal belongs to the process and not to a loop, so one lock of threads is for all loops.
_ONE_AT_A_TIME = threading.Lock()
_LOOK_AGAIN = 0.1
_GOES_ON = "    ┆ "


class _Stopped(Exception):
    """The question is no longer of interest."""


class Console:
    """What `console` makes."""

    def __init__(self, input: TextIO | None, output: TextIO | None, by: str | None) -> None:
        self.input = input
        self.output = output
        self.by = by

    async def __call__(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        return (await self.answer(Asked.of(call, decision, context))).decision

    async def answer(self, asked: Asked) -> Answer:
        """What the person says; its preview is made when it is this question's turn."""
        source: TextIO | None = self.input or sys.stdin
        shown: TextIO | None = self.output or sys.stderr
        if source is None or shown is None or not _is_terminal(source):
            return asked.no("nobody is there to ask: the standard input is not a terminal")
        if not _is_terminal(shown):
            return asked.no("nobody would see the question: the standard error is not a terminal")
        return await _answer_in(_Dialogue(asked, source, shown, self.by))


def console(input: TextIO | None = None, output: TextIO | None = None, *, by: str | None = None) -> Console:
    """An approver that shows the call on the terminal and asks y/N; all but a plain yes denies. See docs/approvals.md.

    What is long is cut, and `m` shows the whole of it and asks again. Where the tool has a `preview`, what that says is
    shown instead of the arguments: a text, or a unified diff of a `Diff`. It is called with the arguments as this
    approver sees them, with stars for what is hidden; where it breaks, or takes longer than 10 s, the arguments are
    shown. Where it raises a `ToolError`, the call cannot work: nobody is asked, and the model is told that.

    Where the decision has an `into`, the value is asked for instead, and not shown as it is typed; where it has a
    `schema`, one property after another. The question waits
    in a thread, concurrent ones one after another, and ends when the call is cancelled.
    Without a terminal to ask on and one to answer on the call is denied.

    Args:
        input: Where the answer is read; standard input where it is left out.
        output: Where the question is shown; standard error where it is left out.
        by: Who is at the terminal, for the record of what was allowed.
    """
    return Console(input, output, by)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # it was closed
        return False


async def _answer_in(dialogue: _Dialogue) -> Answer:
    """What the person says, asked in a thread that does not keep the program from ending."""
    asking = in_own_thread(dialogue.put)
    try:
        answer: Any = await asking
    finally:
        dialogue.stopped.set()
        # The program may end next, and would leave a terminal behind that shows nothing that is typed.
        dialogue.ended.wait(5 * _LOOK_AGAIN)
    if isinstance(answer, Raised):
        return dialogue.asked.no(f"the question could not be asked ({type(answer.error).__name__})")
    return answer  # type: ignore[no-any-return]


class _Dialogue:
    """One question to the person at the terminal, from its text to its answer."""

    def __init__(self, asked: Asked, source: TextIO, shown: TextIO, by: str | None) -> None:
        self.asked = asked
        self.source = source
        self.shown = shown
        self.by = by
        self.stopped = threading.Event()
        self.ended = threading.Event()

    def put(self) -> Answer:
        try:
            return self._put_in_turn()
        finally:
            self.ended.set()

    def _put_in_turn(self) -> Answer:
        while not _ONE_AT_A_TIME.acquire(timeout=_LOOK_AGAIN):
            self._go_on()
        try:
            self._go_on()
            asked = self.asked.previewed(self._go_on)
            if asked.problem is not None:
                return asked.no(asked.problem)
            into, schema = asked.decision.into, asked.decision.schema
            if schema is not None and schema.get("properties"):
                return self._object(schema, asked)
            return self._yes_or_no(asked) if into is None else self._value(into, asked)
        except _Stopped:
            self._say("\n[no longer asked]\n")
            raise
        finally:
            _ONE_AT_A_TIME.release()

    def _yes_or_no(self, asked: Asked) -> Answer:
        question = self._show_question(asked)
        while True:
            answer = self._answer(f"Allow it? [y/N{', m for the whole' if question.has_more else ''}] ")
            if answer in {"y", "yes"}:
                return asked.yes(by=self.by)
            if answer is None:
                return asked.no("the question was left without an answer")
            if answer not in {"m", "more"}:
                return asked.no()
            question = self._show_question(asked, whole=True)

    def _show_question(self, asked: Asked, *, whole: bool = False) -> Question:
        question = asked.question(whole=whole)
        self._say(reset())
        self._show(question.text)
        return question

    def _answer(self, prompt: str) -> str | None:
        self._forget_what_was_typed()
        self._say(prompt)
        line = self._line()
        if line is None:
            self._say("\n")
        return None if line is None else line.strip().lower()

    def _value(self, into: str, asked: Asked) -> Answer:
        if self._show_question(asked).has_more and self._answer("Show the whole? [m/N] ") in {"m", "more"}:
            self._show_question(asked, whole=True)
        prompt = f"{shown_name(into)} (not shown; empty to refuse): "
        if termios is None:  # pragma: no cover
            line: str | None = getpass.getpass(prompt, self.shown)
        else:
            with self._unseen():
                self._forget_what_was_typed()
                self._say(prompt)
                line = self._line()
            self._say("\n")
        value = (line or "").rstrip("\r\n")
        if not value:
            return asked.no(f"nobody gave a value for {shown_name(into)}")
        return asked.answered(allow({**asked.call.arguments, into: value}), self.by)

    def _object(self, schema: Mapping[str, Any], asked: Asked) -> Answer:
        """What is typed for one property after another."""
        question = self._show_question(asked)
        given: dict[str, Any] = {}
        for name, node in schema["properties"].items():
            self._forget_what_was_typed()
            self._say(f"{question.hint(name, node)}{'' if name in schema.get('required', ()) else ', may be empty'}: ")
            line = self._line()
            if line is None:
                self._say("\n")
                return asked.no("the question was left without an answer")
            if text := line.strip():
                given[name] = _json_or_text(text, node)
            elif name in schema.get("required", ()):
                return asked.no(f"nobody gave a value for {shown_name(name)}")
        return asked.answered(allow(given), self.by)

    def _line(self) -> str | None:
        """The line that is typed now, or `None` at the end of input."""
        fd = self._descriptor()
        if fd is not None and termios is not None:
            while not select.select([fd], [], [], _LOOK_AGAIN)[0]:
                self._go_on()
        return self.source.readline() or None

    def _go_on(self) -> None:
        if self.stopped.is_set():
            raise _Stopped

    def _descriptor(self) -> int | None:
        try:
            return self.source.fileno()
        except (io.UnsupportedOperation, ValueError):
            return None

    def _forget_what_was_typed(self) -> None:
        """What was typed before the question was shown is no answer to it."""
        fd = self._descriptor()
        if fd is not None and termios is not None:
            termios.tcflush(fd, termios.TCIFLUSH)

    def _show(self, text: str) -> None:
        """Each line in the width of the terminal, which would begin a new one with whatever comes next."""
        width = max(self._columns() - 4, 3 * len(_GOES_ON))
        for line in self._writable(text).removesuffix("\n").split("\n"):
            self._go_on()  # the whole may be long
            self._say("\n".join(_lines_of_width(line, width, self._writable(_GOES_ON))) + "\n")

    def _columns(self) -> int:
        with contextlib.suppress(OSError, ValueError):
            return os.get_terminal_size(self.shown.fileno()).columns or shutil.get_terminal_size().columns
        return shutil.get_terminal_size().columns

    def _writable(self, text: str) -> str:
        encoding = getattr(self.shown, "encoding", None) or "utf-8"
        return text.encode(encoding, "backslashreplace").decode(encoding)

    def _say(self, text: str) -> None:
        self.shown.write(self._writable(text))
        self.shown.flush()

    @contextlib.contextmanager
    def _unseen(self) -> Iterator[None]:
        fd = self._descriptor()
        if termios is None or fd is None:
            raise OSError("the terminal cannot hide what is typed")
        before = termios.tcgetattr(fd)
        silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
        termios.tcsetattr(fd, termios.TCSAFLUSH, silent)
        try:
            yield
        finally:
            termios.tcsetattr(fd, termios.TCSAFLUSH, before)


def _json_or_text(text: str, node: object) -> Any:
    """What was typed, as JSON where the schema does not want a text; the runner says whether it fits."""
    if isinstance(node, Mapping) and node.get("type") == "boolean" and text.lower() in {"y", "yes", "n", "no"}:
        return text.lower() in {"y", "yes"}
    if isinstance(node, Mapping) and node.get("type", "string") == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _lines_of_width(line: str, width: int, mark: str) -> list[str]:
    """The line in parts of at most `width` columns, each after the first beginning with `mark`."""
    parts: list[str] = []
    start, left = 0, width
    for place, character in enumerate(line):
        # Whether an ambiguous one takes two columns is for the terminal's font to say.
        columns = 2 if unicodedata.east_asian_width(character) in "WFA" else 1
        if columns > left:
            parts.append(line[start:place])
            start, left = place, width - len(mark) - 1
        left -= columns
    return [part if index == 0 else mark + part for index, part in enumerate([*parts, line[start:]])]
