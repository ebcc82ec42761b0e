"""Replace the served toolset by each new one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ferrule import DefinitionError, Toolset
from ferrule.values.log import make_logger

if TYPE_CHECKING:
    from ferrule.mcp.serve._http import MCPApp
    from ferrule.mcp.serve._server import RunnerServer

log = make_logger("ferrule.mcp.serve")


@asynccontextmanager
async def serve_changes(server: MCPApp | RunnerServer, changes: AsyncIterable[Toolset] | None) -> AsyncIterator[None]:
    """Serve each toolset of `changes` within, in place of the one before."""
    task = None if changes is None else asyncio.ensure_future(_follow(server, changes))
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
            await asyncio.wait({task})


async def _follow(server: MCPApp | RunnerServer, changes: AsyncIterable[Toolset]) -> None:
    try:
        async for tools in changes:
            try:
                await server.use(server.runner.replace(tools=tools))
            except DefinitionError as error:
                log.error("a changed list of tools cannot be served, so the earlier one stays: %s", error)
    except Exception as error:
        log.error("Ferrule no longer follows changes of the tools: %r", error, exc_info=error)
