"""`ferrule list`: the tools there are, and what each does to the world."""

from __future__ import annotations

import argparse

from rich.table import Table

from ferrule import Tool, Toolset
from ferrule.cli import find, servers
from ferrule.cli.screen import lay, screen
from ferrule.cli.text import one_line
from ferrule.cli.timeline import NAME_WIDTH

_DESCRIPTION = 300


def options(parser: argparse.ArgumentParser) -> None:
    """By which lock."""
    find.add_lock(parser)


def command(options: argparse.Namespace) -> int:
    """Print the table."""
    console = screen()
    lay(console, tools_table(servers.tools(options), console.width))
    return 0


def tools_table(tools: Toolset, width: int) -> Table:
    """The tools and what each does, for a screen of so many columns."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    # What a tool does is shown whole, however long its name is and however narrow the terminal.
    table.add_column("tool", no_wrap=True, max_width=width // 2)
    table.add_column("does", no_wrap=True, min_width=len("destructive"))
    table.add_column("description")
    for tool in tools:
        first = tool.description.strip().partition("\n")[0]
        table.add_row(one_line(tool.name, NAME_WIDTH), does(tool), one_line(first, _DESCRIPTION))
    return table


def does(tool: Tool) -> str:
    """What a tool does to the world; a trait that depends on the arguments counts as its worse value."""
    if tool.read_only is True:
        return "read-only"
    return "changes" if tool.destructive is False else "destructive"
