"""`ferrule list`: the tools, and the effect of each on the world."""

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
    """Add the option of the lock."""
    find.add_lock(parser)


def command(options: argparse.Namespace) -> int:
    """Print the table."""
    console = screen()
    lay(console, tools_table(servers.tools(options), console.width))
    return 0


def tools_table(tools: Toolset, width: int) -> Table:
    """Return a table of the tools and their effects, for a screen of this many columns."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    # The effect of a tool is shown in full, however long its name is and however narrow the terminal.
    table.add_column("tool", no_wrap=True, max_width=width // 2)
    table.add_column("does", no_wrap=True, min_width=len("destructive"))
    table.add_column("description")
    for tool in tools:
        first = tool.description.strip().partition("\n")[0]
        table.add_row(one_line(tool.name, NAME_WIDTH), does(tool), one_line(first, _DESCRIPTION))
    return table


def does(tool: Tool) -> str:
    """Return the effect of a tool on the world. A trait that depends on the arguments counts as its worse value."""
    if tool.read_only is True:
        return "read-only"
    return "changes" if tool.destructive is False else "destructive"
