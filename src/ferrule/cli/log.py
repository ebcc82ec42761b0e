"""`ferrule log`: the calls of a journal, one in a line, also while programs write it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from ferrule import Journal
from ferrule.approval import printable
from ferrule.cli import logged
from ferrule.cli.bars import fitting
from ferrule.cli.screen import screen
from ferrule.cli.text import one_line
from ferrule.cli.usage import UsageError, at_least_one
from ferrule.journal.reading import LoggedCall, Reader

_LINES = 100
_POLL_SECONDS = 0.5
_COLUMNS = ("time", "status", "took", "tool", "for", "id", "by", "arguments")
_CELL_WIDTH = 40
_FILTERS = ("tool", "principal", "session", "status", "since", "until", "limit", "follow", "json", "every")


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the calls, and the form of the output."""
    logged.add_filters(parser)
    parser.add_argument(
        "--limit", type=at_least_one, metavar="N", help=f"the newest N alone (default: {_LINES} on a terminal, or all)"
    )
    parser.add_argument(
        "--every",
        action="store_true",
        help="each record by itself; otherwise the records of one call (the same session, principal, id and arguments) "
        "are one line, which counts attempts and replays",
    )
    parser.add_argument("--follow", action="store_true", help="go on as calls come, until ctrl-C")
    parser.add_argument(
        "--prune",
        metavar="AGE",
        help="delete the calls that ended longer ago than that, such as 90d; what is not finished stays. A call that "
        "was deleted and comes again runs again",
    )


def command(options: argparse.Namespace) -> int:
    """Print the calls, or delete old ones."""
    if options.prune is not None:
        return _prune(options)
    reader, wanted = Reader(options.path), logged.filter_of(options)
    console = screen()
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
    if lost := reader.count_missing(wanted.since):
        print(f"ferrule: {lost:,} events are missing, as the disk was slower than they came", file=sys.stderr)
    if left_out and options.limit is None:
        print(f"ferrule: these are the newest {_LINES}; --limit N shows more", file=sys.stderr)
    return 0


def _prune(options: argparse.Namespace) -> int:
    given = [name for name in _FILTERS if getattr(options, name)]
    if given:
        raise UsageError(f"--prune AGE deletes the calls of all that ended so long ago: it goes without --{given[0]}")
    seconds = logged.age("--prune", options.prune)
    Reader(options.path).newest(limit=1)  # a file that is no journal must not become one
    journal = Journal.open(options.path)
    try:
        pruned = journal.prune(seconds / logged.SECONDS["d"])
    finally:
        journal.close()
    print(f"deleted {pruned.calls:,} {'call' if pruned.calls == 1 else 'calls'} ({pruned.events:,} events)")
    return 0


def _print_json(calls: Iterable[LoggedCall]) -> None:
    for call in calls:
        print(logged.as_json(call))
    sys.stdout.flush()


class Lines:
    """Prints calls, one in a line. A column is as wide as its cells so far, and on a terminal at most a sixth of it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._widths: list[int] = []
        self._most = max(console.width // 6, 8) if console.is_terminal else _CELL_WIDTH

    def show(self, calls: Iterable[LoggedCall]) -> None:
        """Print the calls."""
        now, today = time.time(), datetime.now() if self._console.is_terminal else None
        some: list[tuple[str, list[str]]] = []
        for call in calls:
            some.append((call.status, self._cells(call, now, today)))
            if len(some) == _LINES:  # print in batches, so that a large file shows its first calls soon
                self._print(some)
                some = []
        self._print(some)

    def _cells(self, call: LoggedCall, now: float, today: datetime | None) -> list[str]:
        """Return the cells of a call. Untrusted text is reduced to printable characters."""
        cut = (call.tool_name, logged.whose(call), call.call_id, logged.allowed_by(call))
        return [
            logged.when(call.began_at, today=today),
            printable(call.status),
            logged.took(call, now),
            *(fitting(one_line(text, _CELL_WIDTH), self._most, "…") for text in cut),
            logged.in_a_line(call),
        ]

    def _print(self, some: Sequence[tuple[str, list[str]]]) -> None:
        is_first, before = not self._widths, self._widths or list(map(cell_len, _COLUMNS))
        columns = zip(before, *(cells for _, cells in some), strict=True)
        self._widths = [max(width, *map(cell_len, cells)) if cells else width for width, *cells in columns]
        if is_first and self._console.is_terminal:  # another program counts the lines
            self._line(Text("  ").append(self._row(_COLUMNS), style="bold"))
        for status, cells in some:
            mark, style = logged.sign(status, self._console.encoding)
            self._line(Text(mark, style).append(" ").append(self._row(cells), style="not bold default"))
        sys.stdout.flush()

    def _row(self, cells: Sequence[str]) -> str:
        *padded, last = map(set_cell_size, cells, self._widths)
        return logged.writable("  ".join([*padded, last.rstrip()]), self._console.encoding)

    def _line(self, line: Text) -> None:
        line.rstrip()
        if self._console.is_terminal:
            line.truncate(self._console.width, overflow="ellipsis")
        self._console.print(line, soft_wrap=True)
