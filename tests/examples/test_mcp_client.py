"""The example client lists a server's tools, calls each, and answers what the server asks."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SERVER = """
import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

ADD = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 4}}}
FORM = {"type": "object", "properties": {"size": {"type": "string", "default": "large"}}}

async def list_tools(context, params):
    tools = [types.Tool(name="add", input_schema=ADD), types.Tool(name="order", input_schema={"type": "object"})]
    return types.ListToolsResult(tools=tools)

async def call_tool(context, params):
    if params.name == "add":
        text = str(params.arguments["a"] + params.arguments["b"])
    elif params.input_responses is None:
        form = types.ElicitRequestFormParams(message="Which size?", requested_schema=FORM)
        return types.InputRequiredResult(input_requests={"size": types.ElicitRequest(params=form)})
    else:
        text = params.input_responses["size"].content["size"]
    return types.CallToolResult(content=[types.TextContent(text=text)])

async def main():
    server = Server("shop", version="2", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())

anyio.run(main)
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    (tmp_path / "server.py").write_text(SERVER)
    entry = {"command": sys.executable, "args": [str(tmp_path / "server.py")]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"shop": entry}}))
    return str(tmp_path / "mcp.json")


async def test_it_lists_and_calls_the_tools(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    program: dict[str, Any] = runpy.run_path(str(ROOT / "examples" / "mcp_client.py"))
    assert await program["main"](config) == 0
    assert capsys.readouterr().out.splitlines() == [
        "shop is ready (shop 2, 2026-07-28)",
        "shop__add {'a': 3, 'b': 4}",
        "  ok: 7",
        "shop__order {}",
        "  asked: shop asks: Which size?",
        "  ok: large",
    ]
