"""What a call of an MCP server's tool costs by way of a runner, against the package `mcp`'s own client doing the same,
in the same run: over a connection in memory, of both eras, and over stdio.

Both go from the JSON text that a model writes to the text that it gets, and declare the same capabilities. The runner
looks at the arguments besides, and the client at neither. Both compare what comes with the output schema, where there
is one.

Run: python benchmarks/mcp_client.py
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.server.lowlevel import Server
from measure import Block, measure_rounds, ratio

from ferrule import Runner, ToolCall, ToolContext, mcp

PROGRAM = str(Path(__file__).parent.parent / "tests" / "sources" / "stdio_server.py")
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}
LINE = {"sku": {"type": "string"}, "quantity": {"type": "integer"}, "price": {"type": "number"}}
ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "lines": {"type": "array", "items": {"type": "object", "properties": LINE, "required": ["sku", "quantity"]}},
    },
    "required": ["text", "lines"],
}
SMALL = json.dumps({"text": "x"})
LARGE = json.dumps(
    {"text": "x" * 40, "lines": [{"sku": f"SKU-{n:06}", "quantity": n, "price": n + 0.99} for n in range(37)]}
)
"""An order of 2 KB, which is answered with 4 KB of text."""
LIMIT = 1.25


def echo(*, large: bool = False, checked: bool = False) -> Server[Any]:
    """A server whose tool gives back the text that it gets, a hundred times as much of it where it is `large`."""

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        output = SCHEMA if checked else None
        described = types.Tool(name="echo", input_schema=ORDER if large else SCHEMA, output_schema=output)
        return types.ListToolsResult(tools=[described])

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        text = (params.arguments or {})["text"] * (100 if large else 1)
        content: list[types.ContentBlock] = [types.TextContent(text=text)]
        if checked:
            return types.CallToolResult(content=content, structured_content={"text": text})
        return types.CallToolResult(content=content)

    return Server("echo", on_list_tools=list_tools, on_call_tool=call_tool)


async def decline(context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="decline")


def bare(client: Client, arguments: str, expected: str) -> Block:
    async def block(calls: int) -> None:
        for _ in range(calls):
            result = await client.call_tool("echo", json.loads(arguments))
            only = result.content[0]
            assert isinstance(only, types.TextContent) and only.text == expected

    return block


def ours(runner: Runner, arguments: str, expected: str) -> Block:
    context = ToolContext(session="s", principal="p")

    async def block(calls: int) -> None:
        for _ in range(calls):
            result = await runner.run(ToolCall("call_1", "echo", arguments), context)
            assert result.text == expected

    return block


def record_times(block: Block, times: list[float]) -> Block:
    """The same, which also notes how long it took: over stdio most of the time is another process's."""

    async def timed_block(calls: int) -> None:
        begin = time.perf_counter()
        await block(calls)
        times.append((time.perf_counter() - begin) / calls * 1e6)

    return timed_block


async def compare(
    name: str, server: Any, target: Any, mode: Any = "auto", *, large: bool = False, calls: int = 200, rounds: int = 20
) -> bool:
    """Measure one way, and tell of it; whether the limit is kept."""
    arguments, expected = (LARGE, "x" * 4000) if large else (SMALL, "x")
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(target, mode=mode, elicitation_callback=decline))
        await client.list_tools()
        toolset = await stack.enter_async_context(mcp.connect(server))
        elapsed: dict[str, list[float]] = {"mcp": [], "ferrule": []}
        blocks = {
            "mcp": record_times(bare(client, arguments, expected), elapsed["mcp"]),
            "ferrule": record_times(ours(Runner(toolset), arguments, expected), elapsed["ferrule"]),
        }
        found = await measure_rounds(blocks, calls=calls, rounds=rounds)
    least, median = ratio(found["ferrule"], found["mcp"])
    clock, _ = ratio(elapsed["ferrule"], elapsed["mcp"])
    times = f"{min(found['mcp']):8.0f} {min(found['ferrule']):8.0f}"
    print(f"  {name:24} {times} µs   {least:5.2f} × (median {median:.2f}, by the clock {clock:.2f})")
    return least <= LIMIT


async def report() -> bool:
    """The limit is the issue's: at most 1.25 × of the bare client; whether it is kept."""
    print(f"\nPython {sys.version.split()[0]}: CPU of a call by mcp's client, and by a runner")
    server, checked, large = echo(), echo(checked=True), echo(large=True)
    program = StdioServerParameters(command=sys.executable, args=[PROGRAM])
    kept = [
        await compare("in memory, 2026-07-28", mcp.Memory(server), server),
        await compare("with an output schema", mcp.Memory(checked), checked),
        await compare("2 KB there, 4 KB back", mcp.Memory(large), large, large=True),
        await compare("in memory, 2025-11-25", mcp.Memory(server, mode="legacy"), server, "legacy"),
        await compare("stdio, 2026-07-28", [sys.executable, PROGRAM], stdio_client(program), calls=100),
    ]
    print(f"  asked for: at most {LIMIT} ×")
    return all(kept)


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(report()) else 1)
