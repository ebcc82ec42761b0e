"""`--mcp`: the tools of MCP servers, for each command, in processes of their own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import preloaded
from ferrule.cli.program import main

ROOT = Path(__file__).parent.parent.parent
SERVER = {"command": sys.executable, "args": [str(ROOT / "tests" / "sources" / "stdio_server.py")]}
STEPS = """
steps = [[("calc__echo", {"text": "from a model"})], lambda messages: f"It says: {messages[-1]['content']}."]
"""


def ferrule(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ferrule", *words]
    environment = {**os.environ, "COLUMNS": "200", "PYTHONIOENCODING": "utf-8"}
    return preloaded.run(command, cwd=folder, timeout=60, env=environment)


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command in this process, where the SDK is imported: that is a second for each. Its exit code and outputs."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "stdin", io.StringIO())

    def run(*words: str) -> tuple[int, str, str]:
        code = main(words)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


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
    assert (
        "missing is down: the program '/nowhere/at-all' does not exist" in done.stderr
        and "read_file" not in done.stdout
    )


def test_lint_and_schema_read_their_definitions(command: Command) -> None:
    found = json.loads(command("lint", "--mcp", "mcp.json", "--provider", "anthropic", "--json")[1])
    assert "calc__echo" in json.dumps(found)
    schema = json.loads(command("schema", "--mcp", "mcp.json", "--provider", "anthropic")[1])
    assert schema[0]["name"] == "calc__echo"


def test_a_call_goes_there_where_it_is_allowed(command: Command) -> None:
    call = ("call", "calc__echo", "text=words", "--mcp", "mcp.json")
    assert command(*call, "--yes", "calc__echo")[:2] == (0, "words\n")
    code, _, errors = command(*call)
    assert code == 1 and "nobody is there to ask" in errors


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


def test_a_file_that_cannot_be_meant_is_said_in_one_line(folder: Path, command: Command) -> None:
    (folder / "mcp.json").write_text('{"mcpServers": {"a": {"command": "x", "disabledTools": []}}}')
    code, _, errors = command("list", "--mcp", "mcp.json")
    assert code == 2 and "'disabledTools' is unknown" in errors and errors.count("\n") == 1


def test_a_server_that_does_not_start_alone_is_an_error(folder: Path, command: Command) -> None:
    (folder / "mcp.json").write_text('{"mcpServers": {"a": {"command": "/nowhere/at-all"}}}')
    code, _, errors = command("list", "--mcp", "mcp.json")
    assert code == 2 and "a is down" in errors
