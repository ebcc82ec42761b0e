"""The person at the terminal answers, one question at a time."""

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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from ferrule.approval.asked import Answer, Asked
from ferrule.approval.editing import LONG, edited, editor, typed_value
from ferrule.approval.offer import Offer
from ferrule.approval.question import Question, shown_name
from ferrule.approval.terminal import printable, reset
from ferrule.executors.threads import Raised, run_in_thread
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, allow
from ferrule.values.frozen import thaw
from ferrule.values.json_text import json_or_text

try:
    import termios as _termios
except ImportError:  # pragma: no cover
    termios: Any = None
else:
    termios = _termios

# The terminal belongs to the process and not to an event loop, so all loops share one lock for threads.
_ONE_AT_A_TIME = threading.Lock()
_LOOK_AGAIN = 0.1
_GOES_ON = "    ┆ "
_OTHERWISE = "  or: e to edit it, n WHY to tell the model why not"


class _Stopped(Exception):
    """The question is no longer of interest."""


class Console:
    """The approver made by `console`."""

    def __init__(self, input: TextIO | None, output: TextIO | None, by: str | None) -> None:
        self.input = input
        self.output = output
        self.by = by

    async def __call__(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        return (await self.answer(Asked.of(call, decision, context))).decision

    async def answer(self, asked: Asked) -> Answer:
        """Return the person's answer. The preview is made when the question has its turn."""
        source: TextIO | None = self.input or sys.stdin
        shown: TextIO | None = self.output or sys.stderr
        if source is None or shown is None or not _is_terminal(source):
            return asked.no("nobody is there to ask: the standard input is not a terminal")
        if not _is_terminal(shown):
            return asked.no("nobody would see the question: the standard error is not a terminal")
        return await _answer_in(_Dialogue(asked, source, shown, self.by))


def console(input: TextIO | None = None, output: TextIO | None = None, *, by: str | None = None) -> Console:
    """Make an approver that shows the call on the terminal and asks y/N. See docs/approvals.md.

    The person may type the following, and any other answer denies the call:

    - `y` or `yes`: allow the call
    - `m`: show long values in full, and ask again
    - `e`: edit the arguments; the question is then asked again with them
    - `n WHY`: deny the call; the model reads the reason
    - a number: choose an offer for "always", and narrow it first

    If the tool has a `preview`, its text or the unified diff of its `Diff` replaces the arguments. The preview is
    called with the arguments of this approver, with stars for hidden values. If it raises or takes longer than 10 s,
    the arguments are shown. If it raises a `ToolError`, the call cannot work: nobody is asked, and the model reads the
    error. After a yes, the preview of a `Diff` with `binds` is made again; if these have changed, the new one is shown.

    If the decision has an `into`, the person is asked for that value instead, without echo. If it has a `schema`, the
    person is asked for one property after another. The question waits in a thread. Concurrent questions wait for each
    other, and a question ends when its call is cancelled. Without a terminal for both the question and the answer, the
    call is denied.

    Args:
        input: The stream of the answer; standard input by default.
        output: The stream of the question; standard error by default.
        by: The name of the person at the terminal, for the record; the system user by default.
    """
    return Console(input, output, _user_name() if by is None else by)


def _user_name() -> str | None:
    """Return the owner of the process, or None if the system has no name for them."""
    with contextlib.suppress(OSError, KeyError, ImportError):
        return getpass.getuser()
    return None


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # the stream is closed
        return False


async def _answer_in(dialogue: _Dialogue) -> Answer:
    """Return the person's answer. It is asked in a thread that does not keep the program from ending."""
    asking = run_in_thread(dialogue.put)
    try:
        answer: Any = await asking
    finally:
        dialogue.stopped.set()
        # If the program ended first, the terminal would stay without echo.
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
            said = self._answer(f"Allow it? [y/N{', m for the whole' if question.has_more else ''}] ")
            if said is None:
                return asked.no("the question was left without an answer")
            word, _, rest = said.partition(" ")
            word, rest = word.lower(), rest.strip()
            chosen = word if not rest else ""
            if chosen in {"m", "more"}:
                question = self._show_question(asked, whole=True)
                continue
            if chosen in {"e", "edit"} and self._editable(asked):
                asked = self._edit(asked)
            elif chosen in {"y", "yes"}:
                if (now := self._still(asked)) is asked:
                    return asked.yes(by=self.by)
                asked = now
            elif (offer := _numbered(asked.offers, chosen)) is not None:
                given = self._always(asked, offer)
                if isinstance(given, Answer):
                    return given
                asked = given
            else:
                why = f": {rest}" if word in {"n", "no"} and rest else ""
                return asked.no(f"the person who was asked said no{why}")
            if asked.problem is not None:
                return asked.no(asked.problem)
            question = self._show_question(asked)

    def _show_question(self, asked: Asked, *, whole: bool = False) -> Question:
        question = asked.question(whole=whole)
        self._say(reset())
        self._show(question.text)
        if self._editable(asked):
            self._show(_OTHERWISE)
        return question

    def _still(self, asked: Asked) -> Asked:
        """Return `asked` if its bound values are unchanged, otherwise the question as it is now."""
        now = asked.previewed(self._go_on) if asked.binds else asked
        if now.binds == asked.binds:
            return asked
        self._tell("It has changed since it was shown. Now:")
        return now

    def _always(self, asked: Asked, offer: Offer) -> Answer | Asked:
        """Return the answer with the offer narrowed by the person, or the question to ask again."""
        self._tell("Narrow it, or press Enter to keep each as it is.")
        for part in offer.parts:
            while True:
                self._tell(f"  {shown_name(part)}: {offer.parts[part]}")
                said = self._answer(f"{shown_name(part)}: ")
                if said is None:
                    return asked.no("the question was left without an answer")
                try:
                    offer = offer.narrowed(part, said) if said else offer
                    break
                except ValueError as error:
                    self._tell(f"That cannot be: {error}")
        self._tell(f"From now on without a question: {offer.text}")
        said = self._answer("Allow it always? [y/N] ")
        if said is None or said.lower() not in {"y", "yes"}:
            return asked
        now = self._still(asked)
        return asked.yes(by=self.by, offer=offer) if now is asked else now

    # -- editing ------------------------------------------------------------------------------------------------------

    def _editable(self, asked: Asked) -> list[str]:
        """Return the names of the shown arguments. Only these may be edited."""
        return (
            []
            if asked.decision.schema is not None
            else [name for name in asked.call.arguments if name not in asked.hidden]
        )

    def _edit(self, asked: Asked) -> Asked:
        """Return the question with the arguments edited by the person, or unchanged if there is no edit.

        The person edits until the arguments fit.
        """
        arguments = {name: asked.call.arguments[name] for name in self._editable(asked)}
        schema = getattr(asked.tool, "input_schema", None) or {}
        self._tell("Press Enter to keep an argument as it is.")
        while True:
            before = dict(arguments)
            for name in arguments:
                node = schema.get("properties", {}).get(name)
                arguments[name] = self._changed_argument(name, arguments[name], node)
            try:
                unchanged = {name: asked.call.arguments[name] for name in arguments}
                return asked if arguments == unchanged else asked.with_arguments(arguments, self._go_on)
            except ValueError as error:
                self._tell(f"That cannot be: {error}")
            if arguments == before:  # the person left it although it does not fit
                return asked

    def _changed_argument(self, name: str, value: Any, node: object) -> Any:
        text = value if isinstance(value, str) else json.dumps(thaw(value), ensure_ascii=False)
        words = editor() if isinstance(value, str) and ("\n" in text or len(text) > LONG) else None
        self._tell(f"  {shown_name(name)} is {text if len(text) <= LONG else f'{text[:LONG]}…'}")
        said = self._answer(f"{shown_name(name)}{' (e for the editor)' if words else ''}: ", strip=False)
        if not said:
            return value
        if words is None or said.strip() != "e":
            return typed_value(said, node)
        try:
            with self._as_it_was():
                changed = edited(text, words, self.source, self.shown, self._go_on)
            if new := _controls_in(changed) - _controls_in(text):
                raise ValueError(f"it has control characters now, such as {min(new)!r}")
            return changed
        except ValueError as error:
            self._tell(f"That cannot be edited: {error}")
            return value

    def _tell(self, text: str) -> None:
        """Show one line of text from anybody."""
        self._show(printable(text.replace("\n", "\\n")))

    def _answer(self, prompt: str, *, strip: bool = True, echoes: bool = True) -> str | None:
        """Return the typed line, or None at the end of input.

        A line with control characters, such as from an arrow key, is asked for again, because its real contents are
        invisible.
        """
        while True:
            self._forget_what_was_typed()
            self._say(prompt)
            line = self._line()
            if line is None:
                self._say("\n")
                return None
            line = line.removesuffix("\n").removesuffix("\r")
            if not (_controls_in(line) or "\r" in line):
                return line.strip() if strip else line
            self._say("" if echoes else "\n")
            self._tell("That has control characters, as of an arrow key, so nothing of it is taken. Type it again.")

    def _value(self, into: str, asked: Asked) -> Answer:
        if self._show_question(asked).has_more and (self._answer("Show the whole? [m/N] ") or "").lower() in {
            "m",
            "more",
        }:
            self._show_question(asked, whole=True)
        prompt = f"{shown_name(into)} (not shown; empty to refuse): "
        if termios is None:  # pragma: no cover
            line: str | None = getpass.getpass(prompt, self.shown)
        else:
            with self._unseen():
                line = self._answer(prompt, strip=False, echoes=False)
            self._say("\n")
        value = line or ""
        if not value:
            return asked.no(f"nobody gave a value for {shown_name(into)}")
        return asked.answered(allow({**asked.call.arguments, into: value}), self.by)

    def _object(self, schema: Mapping[str, Any], asked: Asked) -> Answer:
        """Ask for one property after another, and return the answer."""
        question = self._show_question(asked)
        given: dict[str, Any] = {}
        for name, node in schema["properties"].items():
            text = self._answer(
                f"{question.hint(name, node)}{'' if name in schema.get('required', ()) else ', may be empty'}: "
            )
            if text is None:
                return asked.no("the question was left without an answer")
            if text:
                given[name] = _json_or_text(text, node)
            elif name in schema.get("required", ()):
                return asked.no(f"nobody gave a value for {shown_name(name)}")
        return asked.answered(allow(given), self.by)

    def _line(self) -> str | None:
        """Return the next line, or None at the end of input. Text without a final Enter is no answer."""
        fd = self._descriptor()
        if fd is not None and termios is not None:
            while not select.select([fd], [], [], _LOOK_AGAIN)[0]:
                self._go_on()
        line = self.source.readline()
        return line if line.endswith("\n") else None

    def _go_on(self) -> None:
        if self.stopped.is_set():
            raise _Stopped

    def _descriptor(self) -> int | None:
        try:
            return self.source.fileno()
        except (io.UnsupportedOperation, ValueError):
            return None

    def _forget_what_was_typed(self) -> None:
        """Discard input from before the question. It is no answer to it."""
        fd = self._descriptor()
        if fd is not None and termios is not None:
            termios.tcflush(fd, termios.TCIFLUSH)

    def _show(self, text: str) -> None:
        """Show each line in parts that fit the terminal, so that no wrapped part can pass for a line of its own."""
        width = max(self._columns() - 4, 3 * len(_GOES_ON))
        for line in self._writable(text).removesuffix("\n").split("\n"):
            self._go_on()  # the whole text may be long
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
    def _as_it_was(self) -> Iterator[None]:
        """Restore the terminal's current mode afterwards, whatever runs meanwhile."""
        fd = self._descriptor()
        before = None if termios is None or fd is None else termios.tcgetattr(fd)
        try:
            yield
        finally:
            if before is not None:
                termios.tcsetattr(fd, termios.TCSADRAIN, before)

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


def _controls_in(text: str) -> set[str]:
    """Return the control characters of a text except line breaks and tabs, and the surrogates for undecodable bytes."""
    return {character for character in text if unicodedata.category(character) in {"Cc", "Cs"}} - {"\t", "\n", "\r"}


def _numbered(offers: Sequence[Offer], chosen: str) -> Offer | None:
    """Return the offer with the number shown for it, or None."""
    return next((offer for number, offer in enumerate(offers, 1) if chosen == str(number)), None)


def _json_or_text(text: str, node: object) -> Any:
    """Parse a typed value as JSON unless the schema wants a text. The runner checks whether it fits."""
    if isinstance(node, Mapping) and node.get("type") == "boolean" and text.lower() in {"y", "yes", "n", "no"}:
        return text.lower() in {"y", "yes"}
    if isinstance(node, Mapping) and node.get("type", "string") == "string":
        return text
    return json_or_text(text)


def _lines_of_width(line: str, width: int, mark: str) -> list[str]:
    """Split a line into parts of at most `width` columns. Each part after the first begins with `mark`."""
    parts: list[str] = []
    start, left = 0, width
    for place, character in enumerate(line):
        # The terminal's font decides whether an ambiguous character takes two columns.
        columns = 2 if unicodedata.east_asian_width(character) in "WFA" else 1
        if columns > left:
            parts.append(line[start:place])
            start, left = place, width - len(mark) - 1
        left -= columns
    return [part if index == 0 else mark + part for index, part in enumerate([*parts, line[start:]])]
