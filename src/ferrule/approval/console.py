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

from ferrule.approval.editing import LONG_TEXT, edit_text, find_editor, parse_typed_value
from ferrule.approval.offer import Offer
from ferrule.approval.question import Question, format_name
from ferrule.approval.request import Answer, Asked
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
_TERMINAL_LOCK = threading.Lock()
_POLL_SECONDS = 0.1
_CONTINUATION = "    ┆ "
_EDIT_HINT = "  or: e to edit the arguments, n WHY to give the model a reason"


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

    async def answer(self, request: Asked) -> Answer:
        """Return the person's answer. The preview is made when the question has its turn."""
        source: TextIO | None = self.input or sys.stdin
        output: TextIO | None = self.output or sys.stderr
        if source is None or output is None or not _is_terminal(source):
            return request.deny("nobody is there to ask: the standard input is not a terminal")
        if not _is_terminal(output):
            return request.deny("nobody can see the question: the standard error is not a terminal")
        return await _run_dialogue(_Dialogue(request, source, output, self.by))


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


async def _run_dialogue(dialogue: _Dialogue) -> Answer:
    """Return the person's answer. It is asked in a thread that does not keep the program from ending."""
    task = run_in_thread(dialogue.ask)
    try:
        answer: Any = await task
    finally:
        dialogue.stopped.set()
        # If the program ended first, the terminal would stay without echo.
        dialogue.ended.wait(5 * _POLL_SECONDS)
    if isinstance(answer, Raised):
        return dialogue.request.deny(f"the question could not be asked ({type(answer.error).__name__})")
    return answer  # type: ignore[no-any-return]


class _Dialogue:
    """One question to the person at the terminal, from its text to its answer."""

    def __init__(self, request: Asked, source: TextIO, output: TextIO, by: str | None) -> None:
        self.request = request
        self.source = source
        self.output = output
        self.by = by
        self.stopped = threading.Event()
        self.ended = threading.Event()

    def ask(self) -> Answer:
        try:
            return self._ask_in_turn()
        finally:
            self.ended.set()

    def _ask_in_turn(self) -> Answer:
        while not _TERMINAL_LOCK.acquire(timeout=_POLL_SECONDS):
            self._check_stopped()
        try:
            self._check_stopped()
            request = self.request.with_preview(self._check_stopped)
            if request.problem is not None:
                return request.deny(request.problem)
            into, schema = request.decision.into, request.decision.schema
            if schema is not None and schema.get("properties"):
                return self._ask_for_object(schema, request)
            return self._ask_yes_or_no(request) if into is None else self._ask_for_value(into, request)
        except _Stopped:
            self._write("\n[no longer asked]\n")
            raise
        finally:
            _TERMINAL_LOCK.release()

    def _ask_yes_or_no(self, request: Asked) -> Answer:
        question = self._show_question(request)
        while True:
            typed = self._read_answer(f"Allow it? [y/N{', m to show everything' if question.has_more else ''}] ")
            if typed is None:
                return request.deny("the question got no answer")
            word, _, rest = typed.partition(" ")
            word, rest = word.lower(), rest.strip()
            chosen = word if not rest else ""
            if chosen in {"m", "more"}:
                question = self._show_question(request, whole=True)
                continue
            if chosen in {"e", "edit"} and self._find_editable(request):
                request = self._edit_arguments(request)
            elif chosen in {"y", "yes"}:
                current = self._refresh(request)
                if current is request:
                    return request.approve(by=self.by)
                request = current
            elif (offer := _find_offer(request.offers, chosen)) is not None:
                answer = self._ask_for_always(request, offer)
                if isinstance(answer, Answer):
                    return answer
                request = answer
            else:
                reason = f": {rest}" if word in {"n", "no"} and rest else ""
                return request.deny(f"the person who was asked said no{reason}", by=self.by)
            if request.problem is not None:
                return request.deny(request.problem)
            question = self._show_question(request)

    def _show_question(self, request: Asked, *, whole: bool = False) -> Question:
        question = request.question(whole=whole)
        self._write(reset())
        self._show(question.text)
        if self._find_editable(request):
            self._show(_EDIT_HINT)
        return question

    def _refresh(self, request: Asked) -> Asked:
        """Return `request` if its bound values are unchanged, otherwise the question as it is now."""
        current = request.with_preview(self._check_stopped) if request.binds else request
        if current.binds == request.binds:
            return request
        self._show_line("The preview has changed. Now:")
        return current

    def _ask_for_always(self, request: Asked, offer: Offer) -> Answer | Asked:
        """Return the answer with the offer narrowed by the person, or the question to ask again."""
        self._show_line("Narrow each part, press Enter to keep it, or type n to go back.")
        for part in offer.parts:
            while True:
                self._show_line(f"  {format_name(part)}: {offer.parts[part]}")
                typed = self._read_answer(f"{format_name(part)}: ")
                if typed is None:
                    return request.deny("the question got no answer")
                if typed.lower() in {"n", "no"}:  # as a value, it is `in n`
                    return request
                try:
                    offer = offer.narrow(part, typed) if typed else offer
                    break
                except ValueError as error:
                    self._show_line(f"Not valid: {error}")
        self._show_line(f"Ferrule will not ask about these calls any more: {offer.text}")
        typed = self._read_answer("Allow it always? [y/N] ")
        if typed is None or typed.lower() not in {"y", "yes"}:
            return request
        current = self._refresh(request)
        return request.approve(by=self.by, offer=offer) if current is request else current

    # -- editing ------------------------------------------------------------------------------------------------------

    def _find_editable(self, request: Asked) -> list[str]:
        """Return the names of the shown arguments. Only these may be edited."""
        if request.decision.schema is not None:
            return []
        return [name for name in request.call.arguments if name not in request.hidden]

    def _edit_arguments(self, request: Asked) -> Asked:
        """Return the question with the arguments edited by the person, or unchanged if there is no edit.

        The person edits until the arguments fit.
        """
        arguments = {name: request.call.arguments[name] for name in self._find_editable(request)}
        schema = getattr(request.tool, "input_schema", None) or {}
        self._show_line("Press Enter to keep an argument.")
        while True:
            before = dict(arguments)
            for name in arguments:
                node = schema.get("properties", {}).get(name)
                arguments[name] = self._edit_argument(name, arguments[name], node)
            try:
                unchanged = {name: request.call.arguments[name] for name in arguments}
                return request if arguments == unchanged else request.with_arguments(arguments, self._check_stopped)
            except ValueError as error:
                self._show_line(f"Not valid: {error}")
            if arguments == before:  # the person left it although it does not fit
                return request

    def _edit_argument(self, name: str, value: Any, node: object) -> Any:
        text = value if isinstance(value, str) else json.dumps(thaw(value), ensure_ascii=False)
        command = find_editor() if isinstance(value, str) and ("\n" in text or len(text) > LONG_TEXT) else None
        self._show_line(f"  {format_name(name)} is {text if len(text) <= LONG_TEXT else f'{text[:LONG_TEXT]}…'}")
        typed = self._read_answer(f"{format_name(name)}{' (e for the editor)' if command else ''}: ", strip=False)
        if not typed:
            return value
        if command is None or typed.strip() != "e":
            return parse_typed_value(typed, node)
        try:
            with self._restore_mode():
                changed = edit_text(text, command, self.source, self.output, self._check_stopped)
            if new := _find_controls(changed) - _find_controls(text):
                raise ValueError(f"the text has a new control character: {min(new)!r}")
            return changed
        except ValueError as error:
            self._show_line(f"The editor failed: {error}")
            return value

    def _show_line(self, text: str) -> None:
        """Show one line of text from anybody."""
        self._show(printable(text.replace("\n", "\\n")))

    def _read_answer(self, prompt: str, *, strip: bool = True, echoes: bool = True) -> str | None:
        """Return the typed line, or None at the end of input.

        A line with control characters, such as from an arrow key, is asked for again, because its real contents are
        invisible.
        """
        while True:
            self._discard_input()
            self._write(prompt)
            line = self._read_line()
            if line is None:
                self._write("\n")
                return None
            line = line.removesuffix("\n").removesuffix("\r")
            if not (_find_controls(line) or "\r" in line):
                return line.strip() if strip else line
            self._write("" if echoes else "\n")
            self._show_line("The line has control characters, such as from an arrow key. Type it again.")

    def _ask_for_value(self, into: str, request: Asked) -> Answer:
        if self._show_question(request).has_more:
            typed = self._read_answer("Show everything? [m/N] ") or ""
            if typed.lower() in {"m", "more"}:
                self._show_question(request, whole=True)
        prompt = f"{format_name(into)} (not shown; empty to refuse): "
        if termios is None:  # pragma: no cover
            line: str | None = getpass.getpass(prompt, self.output)
        else:
            with self._hide_input():
                line = self._read_answer(prompt, strip=False, echoes=False)
            self._write("\n")
        value = line or ""
        if not value:
            return request.deny(f"the person gave no value for {format_name(into)}")
        return request.to_answer(allow({**request.call.arguments, into: value}), self.by)

    def _ask_for_object(self, schema: Mapping[str, Any], request: Asked) -> Answer:
        """Ask for one property after another, and return the answer."""
        question = self._show_question(request)
        values: dict[str, Any] = {}
        for name, node in schema["properties"].items():
            is_required = name in schema.get("required", ())
            text = self._read_answer(f"{question.hint(name, node)}{'' if is_required else ', may be empty'}: ")
            if text is None:
                return request.deny("the question got no answer")
            if text:
                values[name] = _parse_value(text, node)
            elif is_required:
                return request.deny(f"the person gave no value for {format_name(name)}")
        return request.to_answer(allow(values), self.by)

    def _read_line(self) -> str | None:
        """Return the next line, or None at the end of input. Text without a final Enter is no answer."""
        fd = self._descriptor()
        if fd is not None and termios is not None:
            while not select.select([fd], [], [], _POLL_SECONDS)[0]:
                self._check_stopped()
        line = self.source.readline()
        return line if line.endswith("\n") else None

    def _check_stopped(self) -> None:
        if self.stopped.is_set():
            raise _Stopped

    def _descriptor(self) -> int | None:
        try:
            return self.source.fileno()
        except (io.UnsupportedOperation, ValueError):
            return None

    def _discard_input(self) -> None:
        """Discard input from before the question. It is no answer to it."""
        fd = self._descriptor()
        if fd is not None and termios is not None:
            termios.tcflush(fd, termios.TCIFLUSH)

    def _show(self, text: str) -> None:
        """Show each line in parts that fit the terminal, so that no wrapped part can pass for a line of its own."""
        width = max(self._count_columns() - 4, 3 * len(_CONTINUATION))
        for line in self._make_encodable(text).removesuffix("\n").split("\n"):
            self._check_stopped()  # the whole text may be long
            self._write("\n".join(_wrap_line(line, width, self._make_encodable(_CONTINUATION))) + "\n")

    def _count_columns(self) -> int:
        with contextlib.suppress(OSError, ValueError):
            return os.get_terminal_size(self.output.fileno()).columns or shutil.get_terminal_size().columns
        return shutil.get_terminal_size().columns

    def _make_encodable(self, text: str) -> str:
        encoding = getattr(self.output, "encoding", None) or "utf-8"
        return text.encode(encoding, "backslashreplace").decode(encoding)

    def _write(self, text: str) -> None:
        self.output.write(self._make_encodable(text))
        self.output.flush()

    @contextlib.contextmanager
    def _restore_mode(self) -> Iterator[None]:
        """Restore the terminal's current mode afterwards, whatever runs meanwhile."""
        fd = self._descriptor()
        before = None if termios is None or fd is None else termios.tcgetattr(fd)
        try:
            yield
        finally:
            if before is not None:
                termios.tcsetattr(fd, termios.TCSADRAIN, before)

    @contextlib.contextmanager
    def _hide_input(self) -> Iterator[None]:
        fd = self._descriptor()
        if termios is None or fd is None:
            raise OSError("the terminal cannot turn off its echo")
        before = termios.tcgetattr(fd)
        silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
        termios.tcsetattr(fd, termios.TCSAFLUSH, silent)
        try:
            yield
        finally:
            termios.tcsetattr(fd, termios.TCSAFLUSH, before)


def _find_controls(text: str) -> set[str]:
    """Return the control characters of a text except line breaks and tabs, and the surrogates for undecodable bytes."""
    return {character for character in text if unicodedata.category(character) in {"Cc", "Cs"}} - {"\t", "\n", "\r"}


def _find_offer(offers: Sequence[Offer], chosen: str) -> Offer | None:
    """Return the offer with the number shown for it, or None."""
    return next((offer for number, offer in enumerate(offers, 1) if chosen == str(number)), None)


def _parse_value(text: str, node: object) -> Any:
    """Parse a typed value as JSON unless the schema wants a text. The runner checks whether it fits."""
    if isinstance(node, Mapping) and node.get("type") == "boolean" and text.lower() in {"y", "yes", "n", "no"}:
        return text.lower() in {"y", "yes"}
    if isinstance(node, Mapping) and node.get("type", "string") == "string":
        return text
    return json_or_text(text)


def _wrap_line(line: str, width: int, mark: str) -> list[str]:
    """Split a line into parts of at most `width` columns. Each part after the first begins with `mark`."""
    parts: list[str] = []
    start, edited = 0, width
    for place, character in enumerate(line):
        # The terminal's font decides whether an ambiguous character takes two columns.
        columns = 2 if unicodedata.east_asian_width(character) in "WFA" else 1
        if columns > edited:
            parts.append(line[start:place])
            start, edited = place, width - len(mark) - 1
        edited -= columns
    return [part if index == 0 else mark + part for index, part in enumerate([*parts, line[start:]])]
