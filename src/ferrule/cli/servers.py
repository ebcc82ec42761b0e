"""The tools of `--mcp` and `--openapi`, while a command uses them."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from ferrule import DefinitionError, Toolset, mcp
from ferrule.cli import openapi, runners
from ferrule.cli.text import warn


@contextmanager
def connect_servers(
    options: argparse.Namespace, budget: int | None = None, *, calls: bool = True
) -> Iterator[tuple[asyncio.Runner, Toolset | None]]:
    """Yield what `follow_servers` yields, for a command that ends before a list of tools changes."""
    with follow_servers(options, budget, calls=calls) as (work, tools, _):
        yield work, tools


@contextmanager
def follow_servers(
    options: argparse.Namespace, budget: int | None = None, *, calls: bool = True
) -> Iterator[tuple[asyncio.Runner, Toolset | None, AsyncIterator[Toolset] | None]]:
    """Yield an event loop and the tools of each `--mcp` and `--openapi`, or None without these options; and the tools
    again whenever the list of a server changes. Faults of a server or of a tool are reported on standard error.

    Args:
        budget: The most tokens for the operations of a document.
        calls: Whether the command calls the tools, and does not only read their definitions.

    Raises:
        DefinitionError, ServersDownError: A file is wrong, or no server starts.
    """
    operations = openapi.load_operations(options, budget, calls=calls)
    with asyncio.Runner() as work:
        if not options.mcp:
            yield work, operations if options.openapi else None, None
            return
        servers = mcp.connect(*options.mcp, trusted=getattr(options, "trusted", ()))
        toolset = work.run(servers.__aenter__())
        try:
            faults = [status for status in servers.status.values() if status.state != "ready"]
            for fault in (*faults, *servers.left_out):
                warn(fault)
            yield work, toolset + operations, merge_changes(servers.changes(), operations)
        finally:
            work.run(servers.__aexit__(None, None, None))


async def merge_changes(
    changes: AsyncIterator[Toolset], others: Toolset, lock: str | None = None
) -> AsyncIterator[Toolset]:
    """Yield each changed toolset together with the others, under the lock. Skip one that cannot be used, with a
    warning.
    """
    async for changed in changes:
        try:
            tools = changed + others
            merged = tools if lock is None else runners.apply_lock(tools, lock)
        except DefinitionError as error:
            warn(f"a changed list of tools is ignored: {error}")
        else:
            yield merged


def has_sources(options: argparse.Namespace) -> bool:
    """Return whether the options name tools."""
    return bool(options.tools or options.mcp or options.openapi)


def load_tools(options: argparse.Namespace) -> Toolset:
    """Return the tools that the options name, for a command that only reads their definitions."""
    with connect_servers(options, calls=False) as (_, extra):
        return runners.join_tools(options.tools, extra=extra, lock=getattr(options, "lock", None)).tools
