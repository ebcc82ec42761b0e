"""MCP servers for tests: in memory, as a program, and over HTTP on loopback, all over the SDK's low-level server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler

from ferrule import mcp

PROGRAM = [sys.executable, str(Path(__file__).parent / "stdio_server.py")]
ERAS = ("auto", "legacy")
"""With the SDK's own server: 2026-07-28, and 2025-11-25."""
Handler = Callable[[Any, dict[str, Any]], Awaitable[Any]]
ANYTHING = {"type": "object"}


def text(said: str, **more: Any) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=said)], **more)


class Made:
    """A server whose tools may change.

    Attributes:
        tools: Each tool with its handler, by name.
        calls: The parameters of each call.
        lists: How often its list was read.
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
            on_list_tools=self.list_tools,
            on_call_tool=self._call,
            on_subscriptions_listen=ListenHandler(self.bus),
        )

    def add(self, name: str, handler: Handler | None = None, schema: Any = None, **more: Any) -> Made:
        async def nothing(context: Any, arguments: dict[str, Any]) -> Any:
            return text(f"{name} {arguments}")

        definition = types.Tool(name=name, input_schema=ANYTHING if schema is None else schema, **more)
        self.tools[name] = definition, handler or nothing
        return self

    async def list_tools(self, context: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
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

    def app(self, **options: Any) -> Any:
        """The server as an ASGI application."""
        return self.server.streamable_http_app(**options)


def made(name: str = "one", handler: Handler | None = None, schema: Any = None, **more: Any) -> Made:
    """A server with one tool."""
    return Made().add(name, handler, schema, **more)


def http(server: Made, port: int = 0) -> contextlib.AbstractAsyncContextManager[str]:
    """The address of the server, over HTTP on loopback, while it is served."""
    return serving(server.app(), port)


@contextlib.asynccontextmanager
async def serving(app: Any, port: int = 0, before: Callable[[int], object] | None = None) -> AsyncIterator[str]:
    """The address of an ASGI application while it is served; `before` is called with the port before that."""
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


async def respond(send: Any, status: int, body: bytes = b"", **headers: str) -> None:
    """Send a whole HTTP response."""
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


async def until_disconnected(receive: Any) -> None:
    """Wait until the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def start_error(*servers: Any, **options: Any) -> str:
    """Connect to servers that cannot start, and return the error."""
    with pytest.raises(mcp.ServersDownError) as raised:
        async with mcp.connect(*servers, **options):
            pass
    return str(raised.value)
