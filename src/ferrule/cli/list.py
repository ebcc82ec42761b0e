"""`ferrule list`: the tools there are, and what each does to the world."""

from __future__ import annotations

import argparse

from rich.table import Table

from ferrule import Tool
from ferrule.cli import find
from ferrule.cli.screen import lay, printable, screen

NAME = "list"
HELP = "show the tools, and what each does to the world"


def options(parser: argparse.ArgumentParser) -> None:
    """It has none of its own."""


def command(options: argparse.Namespace) -> int:
    """Print the table."""
    tools = find.runner(options.tools).tools
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("tool", no_wrap=True)
    table.add_column("does", no_wrap=True)
    table.add_column("description")
    for tool in tools:
        table.add_row(printable(tool.name), does(tool), printable((tool.description or "").strip().partition("\n")[0]))
    lay(screen(), table)
    return 0


def does(tool: Tool) -> str:
    """What a tool does to the world; a trait that depends on the arguments counts as its worse value."""
    if tool.read_only is True:
        return "read-only"
    return "destructive" if tool.destructive is True else "changes"
