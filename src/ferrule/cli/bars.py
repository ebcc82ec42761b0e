"""The rows at the bottom of the terminal: one for each running call that reports progress."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from ferrule.cli.chunks import format_chunk
from ferrule.cli.text import format_progress, format_value, to_line

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PLAIN_FRAMES = "-\\|/"
_PER_SECOND = 10
_ROWS = 10
_RESERVED_COLUMNS = 3  # room for the ^C that a terminal prints at the end of the last row
_LEAST_COLUMNS = 6  # with fewer, a text says nothing
_MESSAGE_LENGTH = 300


class Bars:
    """Rows at the bottom of a terminal. A row is removed when its call ends.

    Args:
        console: The terminal. Without a terminal there are no rows.
    """

    def __init__(self, console: Console) -> None:
        self.can_show = console.is_interactive
        """Whether there is a terminal that can show rows."""
        self._console = console
        self._rows: dict[str, Row] = {}
        self._live: Live | None = None
        self._pauses = 0

    def show(self, key: str, label: str, report: Mapping[str, Any]) -> None:
        """Update the row of the call `key` with its report."""
        if not self.can_show:
            return
        self._rows.setdefault(key, Row(label)).update(report)
        self._begin()

    def drop(self, key: str) -> None:
        """Remove the row of a call that has ended."""
        if self._rows.pop(key, None) is not None and not self._rows:
            self._end()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Hide the rows while other text is written on the terminal."""
        self._pauses += 1
        self._end()
        try:
            yield
        finally:
            self._pauses -= 1
            self._begin()

    def close(self) -> None:
        """Remove all rows."""
        self._rows.clear()
        self._end()

    def _begin(self) -> None:
        if self._live is not None or self._pauses or not self._rows:
            return
        self._live = Live(
            self,
            console=self._console,
            transient=True,
            refresh_per_second=_PER_SECOND,
            # The output of a tool goes above the rows. A stream that is not a terminal gets it unchanged.
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
            vertical_overflow="crop",
        )
        self._live.start(refresh=True)

    def _end(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows, width = list(self._rows.values()), max(options.max_width - _RESERVED_COLUMNS, 1)
        plain = options.ascii_only or options.legacy_windows
        most = max(min(_ROWS, options.size.height // 3), 1)
        labels = min(max((cell_len(row.label) for row in rows[:most]), default=0), max(width // 3, 8))
        for row in rows[:most]:
            yield row.line(width, labels, time.monotonic(), plain=plain)
        if len(rows) > most:
            yield Text(f"and {len(rows) - most} more calls", style="dim", no_wrap=True, overflow="crop")


class Row:
    """The progress of one call. Another thread draws the row."""

    def __init__(self, label: str) -> None:
        self.label = label
        self._share: float | None = None
        self._count = ""
        self._words = ""
        self._chunks = self._characters = 0
        self._last = ""

    def update(self, report: Mapping[str, Any]) -> None:
        """Store the last report of the call."""
        if "chunk" in report:
            self._add_chunk(report["chunk"])
        elif "done" in report:
            done, total = report["done"], report.get("total")
            self._share = compute_share(done, total)
            self._count = format_progress(done, total)
            self._words = format_value(report.get("message", ""), _MESSAGE_LENGTH)

    def _add_chunk(self, chunk: Any) -> None:
        self._chunks += 1
        if not isinstance(chunk, str):
            self._words = to_line(format_chunk(chunk), _MESSAGE_LENGTH)
            self._count = f"{self._chunks:,} chunks"
            return
        self._characters += len(chunk)
        self._count = f"{self._characters:,} characters"
        self._last = (self._last + chunk[-_MESSAGE_LENGTH:])[-_MESSAGE_LENGTH:]
        self._words = ""

    def line(self, width: int, labels: int, now: float, *, plain: bool) -> Text:
        """Return the row, in at most `width` columns. The label takes `labels` of them."""
        frames, mark = (_PLAIN_FRAMES, "~") if plain else (_FRAMES, "…")
        line = Text(no_wrap=True, overflow="crop")
        line.append(frames[int(now * _PER_SECOND) % len(frames)], "cyan")
        line.append(" ").append(set_cell_size(cut_end(self.label, labels, mark), labels), "bold")
        if self._share is not None:
            length = min(max(width // 4, 5), 30)
            done = int(self._share * length)
            line.append(" ").append(("#" if plain else "━") * done, "green")
            line.append(("-" if plain else "─") * (length - done), "dim")
        return self._add_text(line, width, mark)

    def _add_text(self, line: Text, width: int, mark: str) -> Text:
        line.append(" " + cut_end(self._count, max(width - line.cell_len - 1, 1), mark))
        left = width - line.cell_len - 2
        if left >= _LEAST_COLUMNS and self._words:
            line.append("  " + cut_end(self._words, left, mark), "dim")
        elif left >= _LEAST_COLUMNS and self._last:
            line.append("  " + cut_start(to_line(_last_line(self._last), _MESSAGE_LENGTH), left, mark), "italic")
        line.truncate(width, overflow="crop")
        return line


def _last_line(text: str) -> str:
    return text.rstrip().rpartition("\n")[2]


def compute_share(done: Any, total: Any) -> float | None:
    """Return the share of `total` that is done, 0 to 1, or None if it is unknown."""
    try:
        part = float(done) / float(total)
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        return None
    return min(max(part, 0.0), 1.0) if math.isfinite(part) and float(total) > 0 else None


def cut_end(text: str, columns: int, mark: str) -> str:
    """Return the beginning of `text`, in at most `columns`."""
    return text if cell_len(text) <= columns else set_cell_size(text, columns - 1).rstrip() + mark


def cut_start(text: str, columns: int, mark: str) -> str:
    """Return the end of `text`, in at most `columns`."""
    if cell_len(text) <= columns:
        return text
    start = len(text)
    while start and cell_len(text[start - 1 :]) < columns:
        start -= 1
    return mark + text[start:]
