"""`--mcp`: the tools of MCP servers, for each command, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import preloaded

ROOT = Path(__file__).parent.parent.parent
SERVER = {"command": sys.executable, "args": [str(ROOT / "tests" / "sources" / "stdio_server.py")]}
STEPS = """
steps = [[("calc__echo", {"text": "from a model"})], lambda messages: f"It says: {messages[-1]['content']}."]
"""


def ferrule(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ferrule", *words]
    environment = {**os.environ, "COLUMNS": "200", "PYTHONIOENCODING": "utf-8"}
    return preloaded.run(command, cwd=folder, timeout=60, env=environment)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    servers = {"calc": SERVER, "missing": {"command": "/nowhere/at-all"}}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    (tmp_path / "steps.py").write_text(STEPS)
    return tmp_path


def test_list_shows_the_tools_and_says_which_server_is_down(folder: Path) -> None:
    done = ferrule(folder, "list", "--mcp", "mcp.json")
    assert done.returncode == 0, done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:3]] == [
        ["calc__echo", "destructive"],
        ["calc__pid", "destructive"],
    ]
    assert "missing is down: there is no program '/nowhere/at-all'" in done.stderr and "read_file" not in done.stdout


def test_lint_and_schema_read_their_definitions(folder: Path) -> None:
    found = json.loads(ferrule(folder, "lint", "--mcp", "mcp.json", "--provider", "anthropic", "--json").stdout)
    assert "calc__echo" in json.dumps(found)
    schema = json.loads(ferrule(folder, "schema", "--mcp", "mcp.json", "--provider", "anthropic").stdout)
    assert schema[0]["name"] == "calc__echo"


def test_a_call_goes_there_where_it_is_allowed(folder: Path) -> None:
    allowed = ferrule(folder, "call", "calc__echo", "text=words", "--mcp", "mcp.json", "--yes", "calc__echo")
    assert (allowed.returncode, allowed.stdout) == (0, "words\n")
    asked = ferrule(folder, "call", "calc__echo", "text=words", "--mcp", "mcp.json")
    assert asked.returncode == 1 and "nobody is there to ask" in asked.stderr


def test_a_model_works_with_them_and_with_other_tools(folder: Path) -> None:
    words = [
        "--mcp",
        "mcp.json",
        "--tools",
        "ferrule.tools.files",
        "--model",
        "scripted:steps.py",
        "--yes",
        "calc__echo",
    ]
    done = ferrule(folder, "run", "Say it", *words)
    assert done.returncode == 0, done.stderr
    assert "It says: from a model." in done.stdout and "read_file" in done.stdout


def test_a_file_that_cannot_be_meant_is_said_in_one_line(folder: Path) -> None:
    (folder / "mcp.json").write_text('{"mcpServers": {"a": {"command": "x", "disabledTools": []}}}')
    done = ferrule(folder, "list", "--mcp", "mcp.json")
    assert done.returncode == 2 and "'disabledTools' is not known" in done.stderr and done.stderr.count("\n") == 1


def test_a_server_that_does_not_start_alone_is_an_error(folder: Path) -> None:
    (folder / "mcp.json").write_text('{"mcpServers": {"a": {"command": "/nowhere/at-all"}}}')
    done = ferrule(folder, "list", "--mcp", "mcp.json")
    assert done.returncode == 2 and "a is down" in done.stderr
