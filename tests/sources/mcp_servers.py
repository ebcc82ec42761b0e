"""MCP servers for tests: in memory, as a program, and over HTTP on loopback, all over the SDK's low-level server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler

from ferrule import mcp
from waits import BOUND

T = TypeVar("T")
PROGRAM = [sys.executable, str(Path(__file__).parent / "stdio_server.py")]
ERAS = ("auto", "legacy")
"""With the SDK's own server: 2026-07-28, and 2025-11-25."""
Handler = Callable[[Any, dict[str, Any]], Awaitable[Any]]
ANYTHING = {"type": "object"}


def go(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` on a loop of its own, at most `BOUND` seconds, and see that no task is left."""

    async def bounded() -> T:
        async with asyncio.timeout(BOUND):
            found = await work
        # sse_starlette's own, of which each loop of a server has one
        left = {task for task in asyncio.all_tasks() if "_shutdown_watcher" not in str(task.get_coro())}
        left.discard(asyncio.current_task())  # type: ignore[arg-type]
        assert not left, left
        return found

    return asyncio.run(bounded())


def text(said: str, **more: Any) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=said)], **more)


class Made:
    """A server whose tools may change.

    Attributes:
        tools: Each with its handler, by name.
        calls: The parameters of each call.
        ttl: Milliseconds for which its list may be kept.
    """

    def __init__(self, page: int = 1000) -> None:
        self.tools: dict[str, tuple[types.Tool, Handler]] = {}
        self.calls: list[types.CallToolRequestParams] = []
        self.lists = self.ttl = 0
        self.page = page
        self.bus = InMemorySubscriptionBus()
        self.server: Server[Any] = Server(
            "made",
            version="1.2",
            on_list_tools=self._list,
            on_call_tool=self._call,
            on_subscriptions_listen=ListenHandler(self.bus),
        )

    def add(self, name: str, handler: Handler | None = None, schema: Any = None, **more: Any) -> Made:
        async def nothing(context: Any, arguments: dict[str, Any]) -> Any:
            return text(f"{name} {arguments}")

        definition = types.Tool(name=name, input_schema=ANYTHING if schema is None else schema, **more)
        self.tools[name] = definition, handler or nothing
        return self

    async def _list(self, context: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        self.lists += 1
        begin = int(params.cursor) if params is not None and params.cursor else 0
        found = [definition for definition, _ in self.tools.values()]
        more = str(begin + self.page) if begin + self.page < len(found) else None
        return types.ListToolsResult(tools=found[begin : begin + self.page], next_cursor=more, ttl_ms=self.ttl)

    async def _call(self, context: Any, params: types.CallToolRequestParams) -> Any:
        self.calls.append(params)
        return await self.tools[params.name][1](context, params.arguments or {})

    def memory(self, mode: Any = "auto", name: str | None = None) -> mcp.Memory:
        return mcp.Memory(self.server, mode=mode, name=name)


def made(name: str = "one", handler: Handler | None = None, schema: Any = None, **more: Any) -> Made:
    """A server with one tool."""
    return Made().add(name, handler, schema, **more)


def http(server: Server[Any], port: int = 0) -> contextlib.AbstractAsyncContextManager[str]:
    """The address of the server, over HTTP on loopback, while it is served."""
    return serving(server.streamable_http_app(), port)


@contextlib.asynccontextmanager
async def serving(app: Any, port: int = 0, before: Callable[[int], object] | None = None) -> AsyncIterator[str]:
    """The address of an ASGI application while it is served.

    Args:
        before: Is told the port before anything is served there.
    """
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen()
    if before is not None:
        before(listening.getsockname()[1])
    served = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    task = asyncio.create_task(served.serve(sockets=[listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
    finally:
        served.should_exit = True
        await task
        listening.close()
