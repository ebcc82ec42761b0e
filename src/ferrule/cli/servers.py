"""Resolves `--mcp` and `--openapi`: the tools of servers, while a command works with them."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from ferrule import DefinitionError, Toolset, mcp
from ferrule.approval import printable
from ferrule.cli import find, openapi
from ferrule.cli.text import short

_MOST_OF_A_LINE = 500


@contextmanager
def connected(
    options: argparse.Namespace, budget: int | None = None, *, calls: bool = True
) -> Iterator[tuple[asyncio.Runner, Toolset | None]]:
    """Yield the loop and the tools of `followed`, for a command that ends before a list of tools changes."""
    with followed(options, budget, calls=calls) as (work, tools, _):
        yield work, tools


@contextmanager
def followed(
    options: argparse.Namespace, budget: int | None = None, *, calls: bool = True
) -> Iterator[tuple[asyncio.Runner, Toolset | None, AsyncIterator[Toolset] | None]]:
    """Yield a loop, and in it the tools of each `--mcp` and `--openapi`, or None if there is none; and these tools anew
    whenever a server's list changes. Faults of a server or of one of its tools are reported on standard error.

    Args:
        budget: The most tokens for the operations of a document.
        calls: Whether tools are called, and not only looked at.

    Raises:
        DefinitionError, ServersDownError: A file has no possible meaning, or no server starts.
    """
    operations = openapi.tools(options, budget, calls=calls)
    with asyncio.Runner() as work:
        if not options.mcp:
            yield work, operations if options.openapi else None, None
            return
        servers = mcp.connect(*options.mcp)
        toolset = work.run(servers.__aenter__())
        try:
            for status in servers.status.values():
                if status.state != "ready":
                    _tell_of(status)
            for left_out in servers.left_out:
                _tell_of(left_out)
            yield work, toolset + operations, with_others(servers.changes(), operations)
        finally:
            work.run(servers.__aexit__(None, None, None))


async def with_others(
    changes: AsyncIterator[Toolset], others: Toolset, lock: str | None = None
) -> AsyncIterator[Toolset]:
    """Yield each toolset with the others, under the lock. An unusable one is reported on standard error."""
    async for listed in changes:
        try:
            together = listed + others
            locked = together if lock is None else find.locked_by(together, lock)
        except DefinitionError as error:
            _tell_of(f"a changed list of tools is not used: {error}")
        else:
            yield locked


def named(options: argparse.Namespace) -> list[str]:
    """Return the values of `--mcp` and `--openapi`."""
    return [*(options.mcp or ()), *([] if options.openapi is None else [options.openapi])]


def tools(options: argparse.Namespace) -> Toolset:
    """Return the tools that `--tools`, `--mcp` and `--openapi` name, for a command that only looks at them."""
    with connected(options, calls=False) as (_, more):
        return find.runner(options.tools, more=more, lock=getattr(options, "lock", None)).tools


def _tell_of(about: object) -> None:
    print(printable(short(f"ferrule: {' '.join(str(about).split())}", _MOST_OF_A_LINE)), file=sys.stderr)
