"""The events of a run, one a line, as they happen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.text import Text

from ferrule import Decision, Event, ToolResult
from ferrule.approval import printable
from ferrule.cli.bars import Bars
from ferrule.cli.chunks import Chunks, format_chunk
from ferrule.cli.event_lines import format_start, get_sign, to_encoding, wrap_after
from ferrule.cli.text import (
    format_arguments,
    format_progress,
    format_refusal,
    format_value,
    shorten,
    shorten_path,
)
from ferrule.values.count import format_count

NAME_WIDTH = 80
_OUTCOME = 300
_EVERY = 5.0
_ENDS = frozenset({"tool:post", "tool:error", "tool:suspended"})


class Timeline:
    """Writes the lines of events, and updates the progress rows below them.

    Args:
        console: The output.
        clock: Returns seconds; offsets count from the first line.
        bars: The rows that show progress. Without rows, progress gets a line every few seconds.
        chunks: Whether the chunks of a handler get lines.
    """

    def __init__(
        self, console: Console, clock: Callable[[], float], bars: Bars | None = None, *, chunks: bool = True
    ) -> None:
        self._console = console
        self._clock = clock
        self._bars = bars or Bars(console)
        self._rows = bars is not None and bars.can_show
        self._with_chunks = chunks
        self._began: float | None = None
        self._numbers: dict[str, int] = {}
        self._chunks: dict[str, Chunks] = {}
        self._last_reports: dict[str, float] = {}
        self._judged: set[str] = set()
        self._held: list[Text] = []
        self._pauses = 0

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Hold lines back while a person is asked on the same terminal."""
        self._pauses += 1
        try:
            with self._bars.pause():
                yield
        finally:
            self._pauses -= 1
            self._flush_lines()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Make room for other text on the same terminal."""
        with self._bars.pause():
            yield

    def restart(self) -> None:
        """Count seconds from the next line."""
        self._began = None

    def close(self) -> None:
        """Write the lines that are held back, and remove the rows."""
        self._bars.close()
        self._flush_lines()

    def heading(self, text: str) -> None:
        """Write the heading of a part."""
        self._write(Text())
        self._write(Text(to_encoding(text, self._console), style="bold"))

    def note(self, label: str, text: str) -> None:
        """Write a line with a label."""
        self._write(Text.assemble((label, "dim"), to_encoding(text, self._console)))

    def model_text(self, text: str) -> None:
        """Write a text of the model."""
        self._write_line("·", "", Text(to_encoding(printable(text.strip()), self._console), style="italic"))

    def event(self, event: Event) -> None:
        """Write one event of the runner. A start gets no line, nor does an allow without a rule or a person."""
        self.report(event)
        if event.kind not in ("tool:progress", "tool:started"):
            self._safely(event, self._show_event)

    def report(self, event: Event) -> None:
        """Write the progress of a running call, and end its rows. Ignore other events."""
        if event.kind == "tool:progress":
            self._safely(event, self._show_report)
        elif event.kind in _ENDS:
            self._safely(event, self._end_call)

    def _safely(self, event: Event, show: Callable[[Event], None]) -> None:
        try:
            show(event)
        except Exception as error:  # a value of a tool or a model must not end the run
            self._write_call(event, event.kind, f"(cannot show it: {type(error).__name__})")

    def _show_event(self, event: Event) -> None:
        details = _describe_event(event, is_answer=event.call.id in self._judged)
        if event.kind == "tool:decided":
            self._judged.add(event.call.id)  # its next decision is an answer
        if details is not None:
            self._write_call(event, *details)

    def _show_report(self, event: Event) -> None:
        key, report = event.call.id, event.data
        if "attempt" in report:
            self._write_call(event, "attempt", _attempt(report))
            return
        if "chunk" in report:
            if self._with_chunks:
                self._write_lines(event, self._chunks.setdefault(key, Chunks()).take(report["chunk"]))
        elif (not self._rows or "done" not in report) and self._is_due(key):
            self._write_call(event, event.kind, _progress(report))
        if self._rows:
            self._bars.show(key, self._label(event), report)

    def _end_call(self, event: Event) -> None:
        key = event.call.id
        self._bars.drop(key)
        self._last_reports.pop(key, None)
        self._judged.discard(key)
        if (chunks := self._chunks.pop(key, None)) is not None:
            self._write_lines(event, chunks.end())

    def _is_due(self, key: str) -> bool:
        """Return whether a call gets another line. It may report thousands of times."""
        now = self._clock()
        if key in self._last_reports and now - self._last_reports[key] < _EVERY:
            return False
        self._last_reports[key] = now
        return True

    def _write_lines(self, event: Event, lines: list[str]) -> None:
        for line in lines:
            self._write_call(event, "tool:progress", line)

    def _label(self, event: Event) -> str:
        number = self._numbers.setdefault(event.call.id, len(self._numbers) + 1)
        return f"#{number} {printable(shorten(event.call.name, NAME_WIDTH))}"

    def _write_call(self, event: Event, key: str, text: str) -> None:
        sign, style = get_sign(key)
        number, _, name = self._label(event).partition(" ")
        line = Text(f"{number} ", style="dim").append(name, style="bold not dim")
        self._write_line(
            sign, style, line.append("  " + to_encoding(printable(text), self._console), style="not bold not dim")
        )

    def _write_line(self, sign: str, style: str, text: Text) -> None:
        """Write one event. A long one continues on the next line, indented."""
        now = self._clock()
        self._began = now if self._began is None else self._began
        start = format_start(now - self._began, 8, sign, style, self._console)
        for line in wrap_after(start, text, self._console):
            self._write(line)

    def _write(self, line: Text) -> None:
        if self._pauses:
            self._held.append(line)
        else:
            self._console.print(line, soft_wrap=True)

    def _flush_lines(self) -> None:
        lines, self._held = self._held, []
        for line in lines:
            self._write(line)


def _describe_event(event: Event, *, is_answer: bool) -> tuple[str, str] | None:
    """Return the key of the sign, and the text after the tool's name."""
    data = event.data
    result, decision = data.get("result"), data.get("decision")
    if isinstance(result, ToolResult):
        return result.status, format_outcome(result)
    if event.kind == "tool:suspended" and isinstance(decision, Decision):
        return event.kind, f"suspended: {_reason_text(decision)}"
    if isinstance(decision, Decision):
        text = _format_decision(decision, data.get("by"), is_answer=is_answer)
        return (event.kind, text) if text else None
    return event.kind, format_arguments(data.get("input"))


def _format_decision(decision: Decision, by: str | None, *, is_answer: bool) -> str:
    """Return the decision with its rule or with the person who answered, or an empty text if both are unknown. The end
    of the call has the reason of a denial.
    """
    if decision.kind == "ask":
        return f"asked: {_reason_text(decision)}{f' ({decision.rule})' if decision.rule else ''}"
    is_grant = (decision.rule or "").startswith("grant ")  # nobody asked the author of the grant this time
    author = decision.rule if is_grant or not is_answer else by or decision.by
    return f"{'allowed' if decision.kind == 'allow' else 'denied'} by {shorten(author, _OUTCOME)}" if author else ""


def _progress(report: Mapping[str, Any]) -> str:
    if "done" not in report:
        own = {
            name: value for name, value in report.items() if name not in ("tool_name", "input")
        }  # any event has these
        return shorten(format_chunk(own), _OUTCOME)
    message = format_value(report.get("message", ""), _OUTCOME)
    return f"{format_progress(report['done'], report.get('total'))} {message}".rstrip()


def _attempt(report: Mapping[str, Any]) -> str:
    wait = report["wait"]
    when = f"in {wait:.1f} s" if wait >= 0.1 else "at once"
    error = format_value(report.get("error") or "", _OUTCOME)
    return f"attempt {report['attempt'] + 1} of {report['of']} {when}: {error}"


def _reason_text(decision: Decision) -> str:
    return shorten(shorten_path(decision.reason), _OUTCOME)


def format_outcome(result: ToolResult) -> str:
    """Return the duration, the repairs, and the output or the error."""
    parts = [f"{result.duration_ms:.{0 if result.duration_ms >= 10 else 1}f} ms"]
    if result.repairs:
        parts.append(f"repaired: {'; '.join(result.repairs)}")
    if result.is_replayed:
        parts.append("replayed: an earlier run of this call has the result")
    if result.success:
        text = result.text
        lines = f"{text.count(chr(10)) + 1} lines, " if "\n" in text else ""
        parts.append(f"{lines}{format_count(len(text), 'character')}: {shorten(' '.join(text.split()), 60)}")
    else:
        parts.append(shorten(format_refusal(result), _OUTCOME))
    return " · ".join(parts)
