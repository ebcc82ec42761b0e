"""Servers of others, mounted by `ferrule serve --mcp`, as a client of others sees them through it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import mcp_types as wire
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from peer_programs import environment

from needed import needed

SECONDS = 60.0

pytestmark = pytest.mark.slow


async def person(context: Any, params: Any) -> wire.ElicitResult:
    """Says yes to each call, and gives the name that a tool wants to know."""
    wanted = params.requested_schema["properties"]
    return wire.ElicitResult(action="accept", content={"approve": True} if "approve" in wanted else {"name": "Ann"})


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_results_of_the_servers_of_others_arrive_unchanged(mode: str, tmp_path: Path) -> None:
    peers = needed("peers")
    folder = tmp_path.resolve() / "notes"
    folder.mkdir()
    (folder / "a.txt").write_text("milk", encoding="utf-8")
    files = [f"{peers['modules']}/server-filesystem/dist/index.js", str(folder)]
    servers = {
        "files": {"command": peers["node"], "args": files},
        "everything": {"command": peers["node"], "args": [f"{peers['modules']}/server-everything/dist/index.js"]},
    }
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    serving = ["-m", "ferrule", "serve", "--mcp", str(tmp_path / "mcp.json")]
    program = StdioServerParameters(command=sys.executable, args=serving, cwd=tmp_path, env=environment())
    async with Client(program, mode=mode, elicitation_callback=person) as client:
        await client.list_tools()  # it compares results with the schemas that it was told

        async def call(tool: str, /, **arguments: Any) -> tuple[bool, Any]:
            result = await client.call_tool(tool, arguments)
            return result.is_error, result.structured_content or result.content

        read = await call("files__read_text_file", path=str(folder / "a.txt"))
        assert read == (False, {"content": "milk"})
        assert await call("files__list_directory", path=str(folder)) == (False, {"content": "[FILE] a.txt"})
        failed, told = await call("everything__trigger-elicitation-request")
        # It is one of 2025, which asks while its tool runs: a client of 2026 cannot be asked then.
        assert ("Ann" in str(told)) == (mode == "legacy") and not failed
