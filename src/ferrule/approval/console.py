"""A person at the terminal answers, one question at a time."""

from __future__ import annotations

import contextlib
import getpass
import io
import os
import select
import shutil
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO, TypeAlias

from ferrule.executors.threads import Raised, in_own_thread
from ferrule.values.arguments import starred
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, allow, deny
from ferrule.values.frozen import thaw

try:
    import termios as _termios
except ImportError:  # pragma: no cover
    termios: Any = None
else:
    termios = _termios

ConsoleApprover: TypeAlias = Callable[[ToolCall, Decision, ToolContext], Any]

# A terminal belongs to the process and not to a loop, so one lock of threads is for all loops.
_ONE_AT_A_TIME = threading.Lock()
_LOOK_AGAIN = 0.1
_MOST_CHARACTERS_SHOWN = 500
_MOST_ARGUMENTS = 30
_GOES_ON = "    ┆ "


class _Stopped(Exception):
    """The question is no longer of interest."""


def console(input: TextIO | None = None, output: TextIO | None = None) -> ConsoleApprover:
    """An approver that shows the call on the terminal and asks y/N; all but a plain yes denies.

    Where the decision has an `into`, the value is asked for instead, and not shown as it is typed. The question waits
    in a thread, concurrent ones one after another, and ends when the call is cancelled.
    Without a terminal to ask on and one to answer on the call is denied.

    Args:
        input: Where the answer is read; standard input where it is left out.
        output: Where the question is shown; standard error where it is left out.
    """

    async def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        source: TextIO | None = input or sys.stdin
        shown: TextIO | None = output or sys.stderr
        if source is None or shown is None or not _is_terminal(source):
            return deny("nobody is there to ask: the standard input is not a terminal")
        if not _is_terminal(shown):
            return deny("nobody would see the question: the standard error is not a terminal")
        hidden = tuple(getattr(getattr(context, "tool", None), "hidden", ()))
        question = _Question(call, decision, hidden, source, shown)
        return await _answer_to(question)

    return approve


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # it was closed
        return False


async def _answer_to(question: _Question) -> Decision:
    """What the person says, asked in a thread that does not keep the program from ending."""
    asking = in_own_thread(question.put)
    try:
        answer: Any = await asking
    finally:
        question.stopped.set()
        # The program may end next, and would leave a terminal behind that shows nothing that is typed.
        question.ended.wait(5 * _LOOK_AGAIN)
    if isinstance(answer, Raised):
        return deny(f"the question could not be asked ({type(answer.error).__name__})")
    return answer  # type: ignore[no-any-return]


class _Question:
    """One question to the person at the terminal, from its text to its answer."""

    def __init__(
        self, call: ToolCall, decision: Decision, hidden: tuple[str, ...], source: TextIO, shown: TextIO
    ) -> None:
        self.call = call
        self.decision = decision
        self.hidden = hidden
        self.source = source
        self.shown = shown
        self.stopped = threading.Event()
        self.ended = threading.Event()

    def put(self) -> Decision:
        try:
            return self._put_in_turn()
        finally:
            self.ended.set()

    def _put_in_turn(self) -> Decision:
        while not _ONE_AT_A_TIME.acquire(timeout=_LOOK_AGAIN):
            self._go_on()
        try:
            self._go_on()
            into = self.decision.into
            return self._yes_or_no() if into is None else self._value(into)
        except _Stopped:
            self._say("\n[no longer asked]\n")
            raise
        finally:
            _ONE_AT_A_TIME.release()

    def _yes_or_no(self) -> Decision:
        self._show(_question_text(self.call, self.decision, self.hidden))
        self._forget_what_was_typed()
        self._say("Allow it? [y/N] ")
        line = self._line()
        if line is None:
            self._say("\n")
            return deny("the question was left without an answer")
        if line.strip().lower() in {"y", "yes"}:
            return allow()
        return deny("the person who was asked said no")

    def _value(self, into: str) -> Decision:
        self._show(_question_text(self.call, self.decision, (*self.hidden, into)))
        prompt = f"{_name(into)} (not shown; empty to refuse): "
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
            return deny(f"nobody gave a value for {_name(into)}")
        return allow(arguments={**self.call.arguments, into: value})

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
        lines = self._writable(text).split("\n")
        self._say("\n".join(part for line in lines for part in _lines_of_width(line, width, self._writable(_GOES_ON))))

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


def _question_text(call: ToolCall, decision: Decision, hidden: tuple[str, ...]) -> str:
    """What is asked, one argument a line; nothing in it can leave its line or move the cursor."""
    lines = ["", f"{_name(call.name)} wants to run:", *_argument_lines(starred(call.arguments, hidden))]
    if decision.reason:
        lines.append(f"  because: {_escaped_text(decision.reason)}")
    return "\n".join(lines) + "\n"


def _argument_lines(arguments: Mapping[str, Any]) -> list[str]:
    lines = [f"  {_name(name)} = {_value_text(arguments[name])}" for name in list(arguments)[:_MOST_ARGUMENTS]]
    more = len(arguments) - _MOST_ARGUMENTS
    return [*lines, f"  … and {more} more arguments, not shown"] if more > 0 else lines


def _value_text(value: Any) -> str:
    if isinstance(value, str):
        return _ends(value, repr)
    return _ends(repr(thaw(value)), str)


def _escaped_text(text: str) -> str:
    return _ends(text, lambda part: "".join(c if c.isprintable() else repr(c)[1:-1] for c in part))


def _ends(text: str, written: Callable[[str], str]) -> str:
    """`text` as it is written; where it is long, its beginning and its end, which is where something hides."""
    if len(text) <= _MOST_CHARACTERS_SHOWN:
        return written(text)
    each = _MOST_CHARACTERS_SHOWN // 2
    return f"{written(text[:each])} … {len(text) - 2 * each} characters not shown … {written(text[-each:])}"


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


def _name(name: str) -> str:
    return name if name.isidentifier() and name.isprintable() and len(name) <= 100 else repr(name[:100])
