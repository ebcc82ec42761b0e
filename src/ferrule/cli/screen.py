"""The output of the program: a terminal, or a file that must not get control sequences."""

from __future__ import annotations

import os
import sys
from typing import Any, TypeAlias

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

_WIDTH = 120
Cell: TypeAlias = str | Text


def make_console(*, errors: bool = False) -> Console:
    """Return standard output, or standard error."""
    options: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False, "stderr": errors}
    if not (sys.stderr if errors else sys.stdout).isatty():
        columns = os.environ.get("COLUMNS", "")
        width = int(columns) if columns.isascii() and columns.isdecimal() and int(columns) >= 40 else _WIDTH
        options |= {"force_terminal": False, "force_interactive": False, "color_system": None, "no_color": True}
        options["width"] = width
    return Console(**options)


def wide(title: str, **options: Any) -> Column:
    """Return a column for long text, which may wrap."""
    return Column(title, overflow="fold", **options)


def number(title: str, **options: Any) -> Column:
    """Return a column of numbers."""
    return Column(title, justify="right", no_wrap=True, **options)


def make_table(*columns: str | Column, **options: Any) -> Table:
    """Return an empty table without lines. The cells of a column that is only a title never wrap."""
    cells = [Column(column, no_wrap=True) if isinstance(column, str) else column for column in columns]
    return Table(*cells, box=None, pad_edge=False, header_style="bold", **options)


def print_table(table: Table) -> None:
    """Print a table on standard output, without blanks at the ends of its lines."""
    console = make_console()
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())
