"""A person at the terminal answers, one question at a time."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import io
import select
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO, TypeAlias

from ferrule.core.context import ToolContext
from ferrule.core.frozen import thaw
from ferrule.core.values import Decision, ToolCall, allow, deny

try:
    import termios as _termios
except ImportError:  # pragma: no cover
    termios: Any = None
else:
    termios = _termios

ConsoleApprover: TypeAlias = Callable[[ToolCall, Decision, ToolContext[Any]], Any]

# A terminal belongs to the process and not to a loop, so one lock of threads is for all loops.
_ONE_AT_A_TIME = threading.Lock()
_LOOK_AGAIN = 0.1
_VALUE = 500
_ARGUMENTS = 30


class _Stopped(Exception):
    """The question is no longer of interest."""


def console(input: TextIO | None = None, output: TextIO | None = None) -> ConsoleApprover:
    """An approver that shows the call on the terminal and asks y/N; all but a plain yes denies.

    Where the decision has an `into`, the value is asked for instead, and not shown as it is typed. The question waits
    in a thread, concurrent ones one after another, and ends when the call is cancelled.
    Without a terminal the call is denied.

    Args:
        input: Where the answer is read; standard input where it is left out.
        output: Where the question is shown; standard error where it is left out.
    """

    async def approve(call: ToolCall, decision: Decision, context: ToolContext[Any]) -> Decision:
        source: TextIO | None = input or sys.stdin
        shown: TextIO | None = output or sys.stderr
        if source is None or shown is None or not _is_terminal(source):
            return deny("nobody is there to ask: the standard input is not a terminal")
        hidden = tuple(getattr(getattr(context, "tool", None), "private", ()))
        question = _Question(call, decision, hidden, source, shown)
        return await _in_a_thread(question.put, question.stopped)

    return approve


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # it was closed
        return False


async def _in_a_thread(work: Callable[[], Decision], stopped: threading.Event) -> Decision:
    """Run `work` in a thread that does not keep the program from ending, as those of an executor do."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Decision] = loop.create_future()

    def settle(answer: Decision) -> None:
        if not done.done():
            done.set_result(answer)

    def run() -> None:
        try:
            answer = work()
        except _Stopped:
            return
        except Exception as error:
            answer = deny(f"the question could not be asked ({type(error).__name__})")
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, answer)

    threading.Thread(target=run, name="ferrule-console", daemon=True).start()
    try:
        return await done
    finally:
        stopped.set()


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

    def put(self) -> Decision:
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
        self._say(_described(self.call, self.decision, self.hidden))
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
        self._say(_described(self.call, self.decision, (*self.hidden, into)))
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

    def _say(self, text: str) -> None:
        encoding = getattr(self.shown, "encoding", None) or "utf-8"
        self.shown.write(text.encode(encoding, "backslashreplace").decode(encoding))
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


def _described(call: ToolCall, decision: Decision, hidden: tuple[str, ...]) -> str:
    """What is asked, one argument a line; nothing in it can leave its line or move the cursor."""
    lines = ["", f"{_name(call.name)} wants to run:", *_listed(call.arguments, hidden)]
    if decision.reason:
        lines.append(f"  because: {_escaped(decision.reason)}")
    return "\n".join(lines) + "\n"


def _listed(arguments: Mapping[str, Any], hidden: tuple[str, ...]) -> list[str]:
    lines = [
        f"  {_name(name)} = {'(hidden)' if name in hidden else _shown(arguments[name])}"
        for name in list(arguments)[:_ARGUMENTS]
    ]
    more = len(arguments) - _ARGUMENTS
    return [*lines, f"  … and {more} more arguments, not shown"] if more > 0 else lines


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return repr(value) if len(value) <= _VALUE else f"{value[:_VALUE]!r}… ({len(value)} characters in all)"
    text = repr(thaw(value))
    return text if len(text) <= _VALUE else f"{text[:_VALUE]}… ({len(text)} characters in all)"


def _escaped(text: str) -> str:
    short = text if len(text) <= _VALUE else f"{text[:_VALUE]}…"
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in short)


def _name(name: str) -> str:
    return name if name.isidentifier() and name.isprintable() and len(name) <= 100 else repr(name[:100])
