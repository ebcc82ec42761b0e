"""`ferrule list`: the tools, and the effect of each."""

from __future__ import annotations

import argparse

from rich.table import Column, Table

from ferrule import Tool, Toolset
from ferrule.cli import servers
from ferrule.cli.screen import make_console, make_table, print_table, wide
from ferrule.cli.shared_options import add_shared
from ferrule.cli.text import to_line
from ferrule.cli.timeline import NAME_WIDTH

_DESCRIPTION = 300


def options(parser: argparse.ArgumentParser) -> None:
    """Add the option of the lock."""
    add_shared(parser, "--lock")


def command(options: argparse.Namespace) -> int:
    """Print the table."""
    print_table(tools_table(servers.load_tools(options)))
    return 0


def tools_table(tools: Toolset) -> Table:
    """Return a table of the tools and their effects."""
    # A long name or a narrow terminal must not cut the effect of a tool.
    name = Column("tool", no_wrap=True, max_width=make_console().width // 2)
    table = make_table(name, Column("effect", no_wrap=True, min_width=len("destructive")), wide("description"))
    for tool in tools:
        first = tool.description.strip().partition("\n")[0]
        table.add_row(to_line(tool.name, NAME_WIDTH), describe_effect(tool), to_line(first, _DESCRIPTION))
    return table


def describe_effect(tool: Tool) -> str:
    """Return the effect of a tool. A trait that depends on the arguments counts as its worse value."""
    if tool.read_only is True:
        return "read-only"
    return "changes" if tool.destructive is False else "destructive"
