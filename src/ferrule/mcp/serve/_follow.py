"""Replace the served toolset by each new one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from ferrule import DefinitionError, Runner, Toolset
from ferrule.values.log import make_logger

log = make_logger("ferrule.mcp.serve")


class Server(Protocol):
    """A server of a runner."""

    @property
    def runner(self) -> Runner: ...

    async def use(self, runner: Runner) -> None: ...


@asynccontextmanager
async def serve_changes(server: Server, changes: AsyncIterable[Toolset] | None) -> AsyncIterator[None]:
    """Serve each toolset of `changes` within, in place of the one before."""
    following = None if changes is None else asyncio.ensure_future(_follow(server, changes))
    try:
        yield
    finally:
        if following is not None:
            following.cancel()
            await asyncio.wait({following})


async def _follow(server: Server, changes: AsyncIterable[Toolset]) -> None:
    try:
        async for tools in changes:
            try:
                await server.use(server.runner.replace(tools=tools))
            except DefinitionError as error:
                log.error("a changed list of tools cannot be served, so the earlier one stays: %s", error)
    except Exception as error:
        log.error("Ferrule no longer follows changes of the tools: %r", error, exc_info=error)
