"""What a call over MCP and HTTP costs with Ferrule at one end, or at both, beside two ends of the SDK.

Both ends of a pair run in one loop, so the CPU time is that of both. The bare server looks at no arguments.
"""

from __future__ import annotations

import asyncio
import importlib.util
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from statistics import median
from typing import Any

from cases import CONTEXT
from measure import Block, Line, measure_rounds

from ferrule import Runner, ToolCall, mcp, serve, tool

ARGUMENTS = {"a": 1, "b": 2}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@tool(read_only=True)
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def bare_server() -> Any:
    """The same tool, written by hand on the SDK."""
    import mcp_types as wire
    from mcp.server.lowlevel import Server

    async def list_tools(context: Any, params: Any) -> wire.ListToolsResult:
        made = wire.Tool(
            name="add", description="Add two integers.", input_schema=SCHEMA, output_schema={"type": "integer"}
        )
        return wire.ListToolsResult(tools=[made], ttl_ms=0, cache_scope="public")

    async def call_tool(context: Any, params: wire.CallToolRequestParams) -> wire.CallToolResult:
        given = params.arguments or {}
        value = given["a"] + given["b"]
        return wire.CallToolResult(content=[wire.TextContent(text=str(value))], structured_content=value)

    return Server("bare", on_list_tools=list_tools, on_call_tool=call_tool)


@asynccontextmanager
async def listening(app: Any) -> AsyncIterator[str]:
    """Serve an ASGI app on the loopback, and give its address."""
    import uvicorn

    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else each answer waits 40 ms
        config = uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        serving = asyncio.ensure_future(server.serve(sockets=[sock]))
        try:
            while not server.started:
                await asyncio.sleep(0.01)
            yield f"http://127.0.0.1:{sock.getsockname()[1]}/mcp"
        finally:
            server.should_exit = True
            await serving


async def bare_client(stack: AsyncExitStack, url: str) -> Block:
    from mcp.client import Client

    client = await stack.enter_async_context(Client(url))
    await client.list_tools()

    async def block(calls: int) -> None:
        for _ in range(calls):
            assert (await client.call_tool("add", ARGUMENTS)).structured_content == 3

    return block


async def our_client(stack: AsyncExitStack, url: str) -> Block:
    runner = Runner(await stack.enter_async_context(mcp.connect(url, trusted=True)))

    async def block(calls: int) -> None:
        for _ in range(calls):
            assert (await runner.run(ToolCall("call_1", "add", ARGUMENTS), CONTEXT)).success

    return block


async def measure_pairs() -> dict[str, float]:
    """The medians of each pair of ends, in µs."""
    async with AsyncExitStack() as stack:
        ours = await stack.enter_async_context(listening(serve.mcp(Runner([add]))))
        bare = await stack.enter_async_context(listening(bare_server().streamable_http_app()))
        blocks = {
            "both": await our_client(stack, ours),
            "server": await bare_client(stack, ours),
            "client": await our_client(stack, bare),
            "neither": await bare_client(stack, bare),
        }
        times = await measure_rounds(blocks, calls=40, rounds=15)
    return {name: median(found) for name, found in times.items()}


def measure() -> Iterator[Line]:
    """Both ends, then each end alone."""
    work = "MCP call over HTTP, ÷ two ends of the SDK"
    missing = [name for name in ("mcp", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        yield Line(work, "×", None, 1.0, note=f"the package {missing[0]} is not installed")
        return
    found = asyncio.run(measure_pairs())
    alone = {name: found[name] / found["neither"] for name in ("server", "client")}
    note = ", ".join(f"our {name} alone {figure:.2f}" for name, figure in alone.items())
    yield Line(work, "×", found["both"] / found["neither"], 1.0, note=note)
