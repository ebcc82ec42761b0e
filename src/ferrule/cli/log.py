"""`ferrule log`: the calls of a journal, one a line, also while programs write it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import datetime

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from ferrule import Journal
from ferrule.approval import printable
from ferrule.cli import journal_calls
from ferrule.cli.bars import cut_end
from ferrule.cli.event_lines import get_sign, to_encoding
from ferrule.cli.screen import make_console
from ferrule.cli.text import to_line, warn
from ferrule.cli.usage import UsageError, parse_count
from ferrule.journal.reading import LoggedCall, Reader
from ferrule.values.count import format_count

_LINES = 100
_POLL_SECONDS = 0.5
_COLUMNS = ("time", "status", "took", "tool", "for", "id", "by", "arguments")
_CELL_WIDTH = 40
_FILTERS = ("tool", "principal", "session", "status", "since", "until", "limit", "follow", "json", "every")


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the calls, and the form of the output."""
    journal_calls.add_filters(parser)
    parser.add_argument(
        "--limit", type=parse_count, metavar="N", help=f"only the newest N (default: {_LINES} on a terminal, else all)"
    )
    parser.add_argument(
        "--every",
        action="store_true",
        help="show each record. Otherwise the records of one call (same session, principal, id and arguments) are one "
        "line, which counts attempts and replays",
    )
    parser.add_argument("--follow", action="store_true", help="continue with new calls until ctrl-C")
    parser.add_argument(
        "--prune",
        metavar="AGE",
        help="delete the calls that ended longer ago, such as 90d; unfinished calls stay. If a deleted call comes "
        "again, it runs again",
    )


def command(options: argparse.Namespace) -> int:
    """Print the calls, or delete old ones."""
    if options.prune is not None:
        return _prune(options)
    reader, wanted = Reader(options.path), journal_calls.make_filter(options)
    console = make_console()
    newest = options.limit or (None if options.json or not console.is_terminal else _LINES)
    show = _print_json if options.json else Lines(console).show
    if options.follow:
        following = reader.follow(wanted, newest=newest)
        while True:
            show(following.news())
            time.sleep(_POLL_SECONDS)
    found = reader.newest(wanted, None if newest is None else newest + 1)
    left_out = newest is not None and len(found) > newest
    show(reader.load_calls(found[1:] if left_out else found))
    if not (found or options.json):
        warn("there are no such calls in the journal")
    if lost := reader.count_missing(wanted.since):
        warn(f"{format_count(lost, 'event')} missing: the disk was too slow to write them")
    if left_out and options.limit is None:
        warn(f"these are the newest {_LINES}; --limit N shows more")
    return 0


def _prune(options: argparse.Namespace) -> int:
    others = [name for name in _FILTERS if getattr(options, name)]
    if others:
        raise UsageError(f"--prune deletes the old calls of all tools and sessions: leave out --{others[0]}")
    seconds = journal_calls.parse_age("--prune", options.prune)
    Reader(options.path).newest(limit=1)  # raises if the file is not a journal
    with closing(Journal.open(options.path)) as journal:
        pruned = journal.prune(seconds / journal_calls.SECONDS["d"])
    print(f"deleted {format_count(pruned.calls, 'call')} ({format_count(pruned.events, 'event')})")
    return 0


def _print_json(calls: Iterable[LoggedCall]) -> None:
    for call in calls:
        print(journal_calls.to_json(call))
    sys.stdout.flush()


class Lines:
    """Prints calls, one a line. A column grows with its cells, on a terminal to at most a sixth of the width."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._widths: list[int] = []
        self._most = max(console.width // 6, 8) if console.is_terminal else _CELL_WIDTH

    def show(self, calls: Iterable[LoggedCall]) -> None:
        """Print the calls."""
        now, today = time.time(), datetime.now() if self._console.is_terminal else None
        rows: list[tuple[str, list[str]]] = []
        for call in calls:
            rows.append((call.status, self._cells(call, now, today)))
            if len(rows) == _LINES:  # a batch, so that a large file shows its first calls soon
                self._print(rows)
                rows = []
        self._print(rows)

    def _cells(self, call: LoggedCall, now: float, today: datetime | None) -> list[str]:
        """Return the cells of a call. Untrusted text is reduced to printable characters."""
        texts = (call.tool_name, journal_calls.format_owner(call), call.call_id, journal_calls.format_approval(call))
        return [
            journal_calls.format_time(call.began_at, today=today),
            printable(call.status),
            journal_calls.format_call_duration(call, now),
            *(cut_end(to_line(text, _CELL_WIDTH), self._most, "…") for text in texts),
            journal_calls.format_input(call),
        ]

    def _print(self, rows: Sequence[tuple[str, list[str]]]) -> None:
        is_first, before = not self._widths, self._widths or list(map(cell_len, _COLUMNS))
        columns = zip(before, *(cells for _, cells in rows), strict=True)
        self._widths = [max(width, *map(cell_len, cells)) if cells else width for width, *cells in columns]
        if is_first and self._console.is_terminal:  # a program that reads the lines needs no header
            self._print_line(Text("  ").append(self._row(_COLUMNS), style="bold"))
        for status, cells in rows:
            mark, style = get_sign(status)
            self._print_line(
                Text(to_encoding(mark, self._console), style)
                .append(" ")
                .append(self._row(cells), style="not bold default")
            )
        sys.stdout.flush()

    def _row(self, cells: Sequence[str]) -> str:
        *padded, last = map(set_cell_size, cells, self._widths)
        return to_encoding("  ".join([*padded, last.rstrip()]), self._console)

    def _print_line(self, line: Text) -> None:
        line.rstrip()
        if self._console.is_terminal:
            line.truncate(self._console.width, overflow="ellipsis")
        self._console.print(line, soft_wrap=True)
