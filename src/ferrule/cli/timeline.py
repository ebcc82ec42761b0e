"""The events of a run, one in a line, as they happen."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.text import Text

from ferrule import Decision, Event, ToolResult
from ferrule.approval import printable
from ferrule.cli.bars import Bars, counted
from ferrule.cli.chunks import Chunks, written
from ferrule.cli.text import refusal, short, told

_SIGNS = {
    "tool:pre": ("→", "cyan"),
    "tool:decided": ("?", "yellow"),
    "tool:progress": ("…", "cyan"),
    "attempt": ("↻", "yellow"),
    "tool:suspended": ("‖", "yellow"),
    "ok": ("✓", "green"),
    "invalid": ("!", "yellow"),
    "not_found": ("!", "yellow"),
    "denied": ("⊘", "magenta"),
    "unknown": ("?", "red"),
}
_FAILED = ("✗", "red")
_ASCII_SIGNS = str.maketrans("→…↻‖✓⊘✗·", ">~^=+-x|")
NAME_WIDTH = 80
_VALUE_LENGTH = 60
_ARGUMENTS_LENGTH = 160
_OUTCOME = 300
_EVERY = 5.0
_ENDS = frozenset({"tool:post", "tool:error", "tool:suspended"})


class Timeline:
    """Writes the lines, and updates the rows under them.

    Args:
        console: The output.
        clock: Returns seconds; offsets count from the first line.
        bars: The rows that show progress. Without them, or if they cannot be shown, progress has a line now and then.
        chunks: Whether the chunks of a handler have lines, too.
    """

    def __init__(
        self, console: Console, clock: Callable[[], float], bars: Bars | None = None, *, chunks: bool = True
    ) -> None:
        self._console = console
        self._clock = clock
        self._bars = bars or Bars(console)
        self._rows = bars is not None and bars.shown
        self._with_chunks = chunks
        self._began: float | None = None
        self._numbers: dict[str, int] = {}
        self._chunks: dict[str, Chunks] = {}
        self._told: dict[str, float] = {}
        self._judged: set[str] = set()
        self._held: list[Text] = []
        self._pauses = 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold lines back while somebody is asked on the same terminal. They are written after that."""
        self._pauses += 1
        try:
            with self._bars.paused():
                yield
        finally:
            self._pauses -= 1
            self._write_held()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Make room for other text on the same terminal."""
        with self._bars.paused():
            yield

    def restart(self) -> None:
        """Count seconds from the next line on."""
        self._began = None

    def close(self) -> None:
        """Write the lines that were held back, and remove the rows."""
        self._bars.close()
        self._write_held()

    def heading(self, text: str) -> None:
        """Write a line that begins a part."""
        self._write(Text())
        self._write(Text(self._writable(text), style="bold"))

    def note(self, label: str, text: str) -> None:
        """Write a line like those of the head."""
        self._write(Text.assemble((label, "dim"), self._writable(text)))

    def words(self, text: str) -> None:
        """Write a text of the model."""
        self._line("·", "", Text(self._writable(printable(text.strip())), style="italic"))

    def event(self, event: Event) -> None:
        """Write one event of the runner. A start, and an allow without a rule or a person, have no line of their
        own.
        """
        self.report(event)
        if event.kind not in ("tool:progress", "tool:started"):
            self._safely(event, self._told_of)

    def report(self, event: Event) -> None:
        """Write the reports of a running call, and end its lines. Other events are ignored."""
        if event.kind == "tool:progress":
            self._safely(event, self._reported)
        elif event.kind in _ENDS:
            self._safely(event, self._ended)

    def _safely(self, event: Event, show: Callable[[Event], None]) -> None:
        try:
            show(event)
        except Exception as error:  # a value of a tool or a model must not end the run
            self._call(event, event.kind, f"(it cannot be shown: {type(error).__name__})")

    def _told_of(self, event: Event) -> None:
        details = _details(event, answered=event.call.id in self._judged)
        if event.kind == "tool:decided":
            self._judged.add(event.call.id)  # the next decision is an answer
        if details is not None:
            self._call(event, *details)

    def _reported(self, event: Event) -> None:
        key, what = event.call.id, event.data
        if "attempt" in what:
            self._call(event, "attempt", _attempt(what))
            return
        if "chunk" in what:
            if self._with_chunks:
                self._lines(event, self._chunks.setdefault(key, Chunks()).take(what["chunk"]))
        elif (not self._rows or "done" not in what) and self._is_due(key):
            self._call(event, event.kind, _progress(what))
        if self._rows:
            self._bars.show(key, self._label(event), what)

    def _ended(self, event: Event) -> None:
        key = event.call.id
        self._bars.drop(key)
        self._told.pop(key, None)
        self._judged.discard(key)
        if (chunks := self._chunks.pop(key, None)) is not None:
            self._lines(event, chunks.end())

    def _is_due(self, key: str) -> bool:
        """Return whether a call that may report thousands of times gets another line."""
        now = self._clock()
        if key in self._told and now - self._told[key] < _EVERY:
            return False
        self._told[key] = now
        return True

    def _lines(self, event: Event, lines: list[str]) -> None:
        for line in lines:
            self._call(event, "tool:progress", line)

    def _label(self, event: Event) -> str:
        number = self._numbers.setdefault(event.call.id, len(self._numbers) + 1)
        return f"#{number} {printable(short(event.call.name, NAME_WIDTH))}"

    def _call(self, event: Event, key: str, text: str) -> None:
        sign, style = _SIGNS.get(key, _FAILED)
        number, _, name = self._label(event).partition(" ")
        line = Text(f"{number} ", style="dim").append(name, style="bold not dim")
        self._line(sign, style, line.append("  " + self._writable(printable(text)), style="not bold not dim"))

    def _line(self, sign: str, style: str, text: Text) -> None:
        """Write one line. If it is too long it goes on below, indented."""
        now = self._clock()
        self._began = now if self._began is None else self._began
        offset = f"+{now - self._began:.3f}s"
        start = Text(f"{offset:>8} ", style="dim").append(self._writable(sign), style=f"not dim {style}").append(" ")
        for line in text.wrap(self._console, max(self._console.width - start.cell_len, 20)):
            line.rstrip()
            self._write(start + line)
            start = Text(" " * start.cell_len)

    def _write(self, line: Text) -> None:
        if self._pauses:
            self._held.append(line)
        else:
            self._console.print(line, soft_wrap=True)

    def _write_held(self) -> None:
        held, self._held = self._held, []
        for line in held:
            self._write(line)

    def _writable(self, text: str) -> str:
        return text if self._console.encoding.lower().startswith("utf") else text.translate(_ASCII_SIGNS)


def _details(event: Event, *, answered: bool) -> tuple[str, str] | None:
    """Return the key of the sign, and the text after the tool's name."""
    data = event.data
    result, decision = data.get("result"), data.get("decision")
    if isinstance(result, ToolResult):
        return result.status, outcome(result)
    if event.kind == "tool:suspended" and isinstance(decision, Decision):
        return event.kind, f"suspended: {_reason_text(decision)}"
    if isinstance(decision, Decision):
        decided = _decision_text(decision, data.get("by"), answered=answered)
        return (event.kind, decided) if decided else None
    return event.kind, arguments(data.get("input"))


def _decision_text(decision: Decision, by: str | None, *, answered: bool) -> str:
    """Return the decision with its rule or, if somebody was asked, the person; an empty text if neither is known. The
    call's end has the reason of a denial.
    """
    if decision.kind == "ask":
        return f"asked: {_reason_text(decision)}{f' ({decision.rule})' if decision.rule else ''}"
    is_grant = (decision.rule or "").startswith("grant ")  # the author of the grant was not asked now
    whose = decision.rule if is_grant or not answered else by or decision.by
    return f"{'allowed' if decision.kind == 'allow' else 'denied'} by {short(whose, _OUTCOME)}" if whose else ""


def _progress(what: Mapping[str, Any]) -> str:
    if "done" not in what:
        return short(written(dict(what)), _OUTCOME)
    return f"{counted(what['done'], what.get('total'))} {told(what.get('message', ''), _OUTCOME)}".rstrip()


def _attempt(what: Mapping[str, Any]) -> str:
    wait = what["wait"]
    when = f"in {wait:.1f} s" if wait >= 0.1 else "at once"
    return f"attempt {what['attempt'] + 1} of {what['of']} {when}: {told(what.get('error') or '', _OUTCOME)}"


def _reason_text(decision: Decision) -> str:
    return short(decision.reason.replace(os.getcwd() + os.sep, ""), _OUTCOME)


def arguments(given: Any) -> str:
    """Return arguments on one line. Paths below the working directory are shown from there."""
    if not isinstance(given, Mapping):
        return short(str(given), _ARGUMENTS_LENGTH)
    here = os.getcwd() + os.sep
    shown = [
        f"{name}={short(json.dumps(_relative(value, here), ensure_ascii=False), _VALUE_LENGTH)}"
        for name, value in given.items()
    ]
    return short(", ".join(shown), _ARGUMENTS_LENGTH)


def _relative(value: Any, here: str) -> Any:
    return value.removeprefix(here) if isinstance(value, str) else value


def outcome(result: ToolResult) -> str:
    """Return the duration, the repairs, and the output or the error."""
    parts = [f"{result.duration_ms:.{0 if result.duration_ms >= 10 else 1}f} ms"]
    if result.repairs:
        parts.append(f"repaired: {'; '.join(result.repairs)}")
    if result.is_replayed:
        parts.append("replayed: it came before, and was not run again")
    if result.success:
        text = result.text
        lines = f"{text.count(chr(10)) + 1} lines, " if "\n" in text else ""
        parts.append(f"{lines}{len(text):,} characters: {short(' '.join(text.split()), 60)}")
    else:
        parts.append(short(refusal(result), _OUTCOME))
    return " · ".join(parts)
