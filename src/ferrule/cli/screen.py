"""The output of the program: a terminal, or a file that must not get control sequences."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection

from rich.console import Console
from rich.table import Table

_WIDTH = 120


def screen(*, errors: bool = False) -> Console:
    """Return standard output, or standard error."""
    if (sys.stderr if errors else sys.stdout).isatty():
        return Console(highlight=False, markup=False, emoji=False, stderr=errors)
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isascii() and columns.isdecimal() and int(columns) >= 40 else _WIDTH
    return Console(
        highlight=False,
        markup=False,
        emoji=False,
        stderr=errors,
        force_terminal=False,
        force_interactive=False,
        color_system=None,
        no_color=True,
        width=width,
    )


def table_of(*columns: str, wrapped: Collection[str]) -> Table:
    """Return an empty table without lines. Long text is broken in the wrapped columns alone."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, no_wrap=name not in wrapped)
    return table


def lay(console: Console, table: Table) -> None:
    """Print a table, without blanks at the ends of its lines."""
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())
