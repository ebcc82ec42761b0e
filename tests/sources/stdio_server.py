"""An MCP server as a program, for tests: python stdio_server.py [FILE], where it writes which calls were cancelled.

A call of `grow` adds a tool to its list.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
NAMES = ["echo", "pid", "die", "wait", "environment", "ask", "grow"]
BUS = InMemorySubscriptionBus()
DAY = {"type": "object", "properties": {"day": {"type": "integer"}}, "required": ["day"]}


async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[types.Tool(name=name, input_schema=SCHEMA) for name in NAMES])


async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    said = str((params.arguments or {}).get("text", ""))
    if params.name == "pid":
        said = str(os.getpid())
    elif params.name == "die":
        print("it was told to die", file=sys.stderr, flush=True)
        os._exit(3)
    elif params.name == "wait":
        await context.session.report_progress(1, 2)
        try:
            await anyio.sleep_forever()
        finally:
            Path(sys.argv[1]).write_text(f"cancelled {said}")
    elif params.name == "grow":
        NAMES.append("grown")
        await BUS.publish(ToolsListChanged())
    elif params.name == "environment":
        said = os.environ.get(said, "(not there)")
    elif params.name == "ask":
        answer = await context.session.elicit_form("Which day?", DAY)
        said = f"{answer.action} {answer.content} {(answer.meta or {}).get('reason')}"
    return types.CallToolResult(content=[types.TextContent(text=said)])


async def main() -> None:
    server: Server[Any] = Server(
        "program",
        version="1",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_subscriptions_listen=ListenHandler(BUS),
    )
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


anyio.run(main)
