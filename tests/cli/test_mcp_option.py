"""`--mcp`: commands with the tools of MCP servers."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ferrule import mcp

ROOT = Path(__file__).parent.parent.parent
SERVER = {"command": sys.executable, "args": [str(ROOT / "tests" / "sources" / "stdio_server.py")]}
STEPS = """
steps = [[("calc__echo", {"text": "from a model"})], lambda messages: f"It says: {messages[-1]['content']}."]
"""
MCP = ("--mcp", "mcp.json")


@pytest.fixture(autouse=True)
def servers(folder: Path) -> None:
    servers = {"calc": SERVER, "missing": {"command": "/nowhere/at-all"}}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    (folder / "steps.py").write_text(STEPS)


def test_list_shows_the_tools_and_which_server_is_down(ferrule: Any) -> None:
    done = ferrule("list", *MCP)
    assert done.code == 0, done.err
    tools = [line.split()[:2] for line in done.out.splitlines()[1:3]]
    assert tools == [["calc__echo", "destructive"], ["calc__pid", "destructive"]]
    assert "missing is down: the program '/nowhere/at-all' does not exist" in done.err and "read_file" not in done.out


@pytest.mark.large
def test_call_and_run_reach_the_server_if_that_is_allowed(ferrule: Any) -> None:
    call = ("call", "calc__echo", "text=words", *MCP)
    assert ferrule(*call, "--yes", "calc__echo")[:2] == (0, "words\n")
    done = ferrule(*call)
    assert done.code == 1 and "nobody is there to ask" in done.err
    words = ("--tools", "ferrule.tools.files", "--model", "scripted:steps.py", "--yes", "calc__echo")
    done = ferrule("run", "Say it", *MCP, *words)
    assert done.code == 0 and "It says: from a model." in done.out and "read_file" in done.out


@pytest.mark.parametrize(
    ("server", "error"),
    [
        ({"command": "x", "disabledTools": []}, "'disabledTools' is unknown"),
        ({"command": "/nowhere/at-all"}, "a is down"),
    ],
)
def test_a_wrong_file_or_a_single_dead_server_is_an_error(
    folder: Path, ferrule: Any, server: dict[str, Any], error: str
) -> None:
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"a": server}}))
    done = ferrule("list", *MCP)
    assert done.code == 2 and error in done.err


HINTED = """
import asyncio
from ferrule import Runner, serve, tool

@tool(read_only=True)
def look(place: str) -> str:
    \"\"\"Look at a place.\"\"\"
    return f"seen: {place}"

asyncio.run(serve.stdio(Runner([look])))
"""


@pytest.mark.large
def test_a_lock_of_a_trusted_server_holds_its_tools_as_a_program_that_trusts_it_has_them(
    ferrule: Any, folder: Path
) -> None:
    (folder / "server.py").write_text(HINTED)
    (folder / "mcp.json").write_text(
        json.dumps({"mcpServers": {"desk": {"command": sys.executable, "args": ["server.py"]}}})
    )
    assert ferrule("lock", *MCP, "--trusted", "desk")[:2] == (0, "wrote 1 tool to 'ferrule.lock'\n")
    assert ferrule("lock", *MCP, "--trusted", "desk", "--check").code == 0
    assert ferrule("lock", *MCP, "--check").code == 1
    assert "'crm' names no server" in ferrule("lock", *MCP, "--trusted", "crm").err

    async def list_offered(*trusted: str) -> list[str]:
        async with mcp.connect("mcp.json", trusted=trusted, lock="ferrule.lock") as toolset:
            return [one.name for one in toolset]

    assert asyncio.run(list_offered("desk")) == ["desk__look"] and asyncio.run(list_offered()) == []
