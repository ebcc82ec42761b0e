"""What a call of an MCP server's tool costs by way of a runner, against the package `mcp`'s own client doing the same,
in the same run: over a connection in memory, of both eras, and over stdio.

Run: python benchmarks/mcp_client.py
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.server.lowlevel import Server
from measure import Block, interleaved, ratio

from ferrule import Runner, ToolCall, ToolContext
from ferrule.sources import mcp

PROGRAM = str(Path(__file__).parent.parent / "tests" / "sources" / "stdio_server.py")
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
LIMIT = 1.25


async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[types.Tool(name="echo", input_schema=SCHEMA)])


async def list_checked(context: Any, params: Any) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[types.Tool(name="echo", input_schema=SCHEMA, output_schema=SCHEMA)])


async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    text = (params.arguments or {})["text"]
    return types.CallToolResult(content=[types.TextContent(text=text)])


async def call_checked(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    text = (params.arguments or {})["text"]
    return types.CallToolResult(content=[types.TextContent(text=text)], structured_content={"text": text})


def bare(client: Client) -> Block:
    async def block(calls: int) -> None:
        for _ in range(calls):
            await client.call_tool("echo", {"text": "x"})

    return block


def ours(runner: Runner) -> Block:
    context = ToolContext(session="s", principal="p")

    async def block(calls: int) -> None:
        for _ in range(calls):
            result = await runner.run(ToolCall("call_1", "echo", '{"text": "x"}'), context)
            assert result.text == "x"

    return block


def timed(block: Block, times: list[float]) -> Block:
    """The same, which also notes how long it took: over stdio most of the time is another process's."""

    async def measured(calls: int) -> None:
        begin = time.perf_counter()
        await block(calls)
        times.append((time.perf_counter() - begin) / calls * 1e6)

    return measured


async def compare(name: str, server: Any, target: Any, mode: Any, calls: int, rounds: int) -> None:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(target, mode=mode))
        await client.list_tools()
        toolset = await stack.enter_async_context(mcp.connect(server))
        runner = Runner(toolset)
        elapsed: dict[str, list[float]] = {"mcp": [], "ferrule": []}
        blocks = {"mcp": timed(bare(client), elapsed["mcp"]), "ferrule": timed(ours(runner), elapsed["ferrule"])}
        found = await interleaved(blocks, calls=calls, rounds=rounds)
    least, median = ratio(found["ferrule"], found["mcp"])
    clock, _ = ratio(elapsed["ferrule"], elapsed["mcp"])
    times = f"{min(found['mcp']):8.0f} {min(found['ferrule']):8.0f}"
    print(f"  {name:24} {times} µs   {least:5.2f} × (median {median:.2f}, by the clock {clock:.2f})")


async def report() -> None:
    """The limit is the issue's: at most 1.25 × of the bare client."""
    server: Server[Any] = Server("echo", on_list_tools=list_tools, on_call_tool=call_tool)
    print(f"\nPython {sys.version.split()[0]}: CPU of a call by mcp's client, and by a runner")
    checked: Server[Any] = Server("echo", on_list_tools=list_checked, on_call_tool=call_checked)
    await compare("in memory, 2026-07-28", mcp.Memory(server), server, "auto", 200, 20)
    await compare("with an output schema", mcp.Memory(checked), checked, "auto", 200, 20)
    await compare("in memory, 2025-11-25", mcp.Memory(server, mode="legacy"), server, "legacy", 200, 20)
    program = StdioServerParameters(command=sys.executable, args=[PROGRAM])
    await compare("stdio, 2026-07-28", [sys.executable, PROGRAM], stdio_client(program), "auto", 100, 20)
    print(f"  asked for: at most {LIMIT} ×")


if __name__ == "__main__":
    asyncio.run(report())
