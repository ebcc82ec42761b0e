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
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextvars import copy_context
from typing import Any, TextIO, TypeAlias

from ferrule.approval.preview import NoPreview, preview_lines
from ferrule.approval.question import Question, shown_name
from ferrule.approval.terminal import reset
from ferrule.errors import ToolError
from ferrule.executors.threads import Raised, in_own_thread
from ferrule.values.arguments import starred
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, allow, deny

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
_PREVIEW_SECONDS = 10.0
_GOES_ON = "    ┆ "
Preview: TypeAlias = Callable[[Mapping[str, Any]], object]


class _Stopped(Exception):
    """The question is no longer of interest."""


def console(input: TextIO | None = None, output: TextIO | None = None) -> ConsoleApprover:
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
    """

    async def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        source: TextIO | None = input or sys.stdin
        shown: TextIO | None = output or sys.stderr
        if source is None or shown is None or not _is_terminal(source):
            return deny("nobody is there to ask: the standard input is not a terminal")
        if not _is_terminal(shown):
            return deny("nobody would see the question: the standard error is not a terminal")
        tool = getattr(context, "tool", None)
        hidden = (*getattr(tool, "hidden", ()), *((decision.into,) if decision.into else ()))
        dialogue = _Dialogue(call, decision, hidden, getattr(tool, "preview", None), source, shown)
        return await _answer_in(dialogue)

    return approve


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # it was closed
        return False


async def _answer_in(dialogue: _Dialogue) -> Decision:
    """What the person says, asked in a thread that does not keep the program from ending."""
    asking = in_own_thread(dialogue.put)
    try:
        answer: Any = await asking
    finally:
        dialogue.stopped.set()
        # The program may end next, and would leave a terminal behind that shows nothing that is typed.
        dialogue.ended.wait(5 * _LOOK_AGAIN)
    if isinstance(answer, Raised):
        return deny(f"the question could not be asked ({type(answer.error).__name__})")
    return answer  # type: ignore[no-any-return]


class _Dialogue:
    """One question to the person at the terminal, from its text to its answer."""

    def __init__(
        self,
        call: ToolCall,
        decision: Decision,
        hidden: tuple[str, ...],
        preview: Preview | None,
        source: TextIO,
        shown: TextIO,
    ) -> None:
        self.call = call
        self.decision = decision
        self.hidden = hidden
        self.preview = preview
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
            into, preview = self.decision.into, self._previewed()
            if isinstance(preview, ToolError):
                return deny(str(preview))
            if self.decision.schema is not None and self.decision.schema.get("properties"):
                return self._object(self.decision.schema, preview)
            return self._yes_or_no(preview) if into is None else self._value(into, preview)
        except _Stopped:
            self._say("\n[no longer asked]\n")
            raise
        finally:
            _ONE_AT_A_TIME.release()

    def _previewed(self) -> list[str] | str | ToolError | None:
        """What the tool's preview says, made now, when it is this question's turn; or why there is none; or why the
        call cannot work."""
        make = self.preview
        if make is None:
            return None
        found: list[list[str] | str | ToolError] = []

        def look() -> None:
            try:
                found.append(preview_lines(make(starred(self.call.arguments, self.hidden))))
            except NoPreview as error:
                found.append(str(error))
            except ToolError as error:
                found.append(error)
            except BaseException as error:  # a `SystemExit` of the tool's, too
                found.append(f"it broke ({type(error).__name__})")

        thread = threading.Thread(target=copy_context().run, args=(look,), name="ferrule-preview", daemon=True)
        thread.start()
        ends = time.monotonic() + _PREVIEW_SECONDS
        while thread.is_alive() and time.monotonic() < ends:
            thread.join(_LOOK_AGAIN)
            self._go_on()
        return found[0] if found else f"it takes longer than {_PREVIEW_SECONDS:.0f} s"

    def _yes_or_no(self, preview: list[str] | str | None) -> Decision:
        question = self._asked(preview)
        while True:
            answer = self._answer(f"Allow it? [y/N{', m for the whole' if question.has_more else ''}] ")
            if answer in {"y", "yes"}:
                return allow()
            if answer is None:
                return deny("the question was left without an answer")
            if answer not in {"m", "more"}:
                return deny("the person who was asked said no")
            question = self._asked(preview, whole=True)

    def _asked(self, preview: list[str] | str | None, *, whole: bool = False) -> Question:
        question = Question(self.call, self.decision, self.hidden, preview, whole=whole)
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

    def _value(self, into: str, preview: list[str] | str | None) -> Decision:
        if self._asked(preview).has_more and self._answer("Show the whole? [m/N] ") in {"m", "more"}:
            self._asked(preview, whole=True)
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
            return deny(f"nobody gave a value for {shown_name(into)}")
        return allow(arguments={**self.call.arguments, into: value})

    def _object(self, schema: Mapping[str, Any], preview: list[str] | str | None) -> Decision:
        """What is typed for one property after another."""
        question = self._asked(preview)
        given: dict[str, Any] = {}
        for name, node in schema["properties"].items():
            self._forget_what_was_typed()
            self._say(f"{question.hint(name, node)}{'' if name in schema.get('required', ()) else ', may be empty'}: ")
            line = self._line()
            if line is None:
                self._say("\n")
                return deny("the question was left without an answer")
            if text := line.strip():
                given[name] = _json_or_text(text, node)
            elif name in schema.get("required", ()):
                return deny(f"nobody gave a value for {shown_name(name)}")
        return allow(given)

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
