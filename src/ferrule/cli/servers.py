"""What `--mcp` names: the tools of MCP servers, while a command works with them."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ferrule import Toolset
from ferrule.approval import printable
from ferrule.cli import find
from ferrule.cli.text import short
from ferrule.sources import mcp

_MOST_OF_A_LINE = 500


@contextmanager
def connected(options: argparse.Namespace) -> Iterator[tuple[asyncio.Runner, Toolset | None]]:
    """A loop, and in it the tools of the servers of each `--mcp`; `None` where there is none. What is wrong with a
    server or with one of its tools is said on standard error.

    Raises:
        DefinitionError, ServersDownError: where a file cannot be meant, or no server starts.
    """
    with asyncio.Runner() as work:
        if not options.mcp:
            yield work, None
            return
        servers = mcp.connect(*options.mcp)
        toolset = work.run(servers.__aenter__())
        try:
            for status in servers.status.values():
                if status.state != "ready":
                    _tell_of(status)
            for left_out in servers.left_out:
                _tell_of(left_out)
            yield work, toolset
        finally:
            work.run(servers.__aexit__(None, None, None))


def tools(options: argparse.Namespace) -> Toolset:
    """The tools that `--tools` and `--mcp` name, for who only looks at them."""
    with connected(options) as (_, more):
        return find.runner(options.tools, more=more, lock=getattr(options, "lock", None)).tools


def _tell_of(about: object) -> None:
    print(printable(short(f"ferrule: {' '.join(str(about).split())}", _MOST_OF_A_LINE)), file=sys.stderr)
