"""The forms in which servers are named, and mcp.json: what says nothing is told, and secrets are not shown."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from mcp_servers import PROGRAM, made

from ferrule import Decision, DefinitionError, Runner, ToolCall, ToolContext, ToolResult, mcp
from ferrule.guards import ask_before_changes


def config(**servers: Any) -> dict[str, Any]:
    return {"mcpServers": servers}


async def test_an_mcp_json_of_several_servers_is_connected_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORD", "from outside")
    file = tmp_path / "mcp.json"
    entry = {"command": PROGRAM[0], "args": PROGRAM[1:], "env": {"A": "${WORD}", "B": "${NOT_THERE:-left}"}}
    file.write_text(json.dumps(config(first=entry, off={**entry, "disabled": True}, second={**entry, "type": "stdio"})))

    async def main() -> list[str]:
        servers = mcp.connect(file)
        async with servers as toolset:
            assert sorted(servers.status) == ["first", "second"]
            runner = Runner(toolset)
            found = [await runner.run("first__environment", {"text": name}) for name in "AB"]
            return [result.output for result in found]

    assert (await main()) == ["from outside", "left"]


STDIO = {"command": "x"}


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, "has no servers"),
        ({"mcpServers": []}, "has no servers"),
        ({"mcpServers": {}, "servers": {}}, "both 'mcpServers' and 'servers'"),
        ({"mcpServers": {}, "other": {}}, "'other' is unknown"),
        ({"servers": {}, "inputs": {}}, "'inputs' must be a list of objects"),
        ({"servers": {"a": STDIO}, "inputs": [{"type": "promptString"}]}, "each with an 'id'"),
        (config(a="x"), "an object with 'command' or 'url'"),
        (config(a={}), "either 'command' or 'url'"),
        (config(a={"command": "x", "url": "http://x"}), "either 'command' or 'url'"),
        (config(a={**STDIO, "headers": {}}), "'headers' is unknown"),
        (config(a={**STDIO, "disabledTools": ["x"]}), "'disabledTools' is unknown"),
        (config(a={**STDIO, "envFile": "/nowhere/.env"}), "the envFile '/nowhere/.env' cannot be read"),
        (config(a={"url": "http://x", "envFile": "x"}), "'envFile' is unknown"),
        (config(a={**STDIO, "args": ["${env:NOT_THERE}"]}), "the environment has no NOT_THERE"),
        (config(a={**STDIO, "args": ["${workspaceFolder}"]}), "is the folder of a file, but this is a mapping"),
        (config(a={**STDIO, "args": ["${command:pick}"]}), r"\$\{command:pick\} is unknown"),
        (config(a={**STDIO, "env": {"A": "a ${1}"}}), r"\$\{1\} is unknown"),
        (config(a={**STDIO, "env": {"A": "${input:key}"}}), r"inputs=\{'key': …\}"),
        (config(a={**STDIO, "disabled": "yes"}), "true or false"),
        (config(a={**STDIO, "type": "sse"}), "'type' is 'sse'"),
        (config(a={**STDIO, "args": "x y"}), "list of texts"),
        (config(a={**STDIO, "args": [1]}), "list of texts"),
        (config(a={**STDIO, "env": {"A": 1}}), "mapping of texts"),
        (config(a={**STDIO, "args": ["${NOT_THERE}"]}), "the environment has no NOT_THERE"),
        (config(a={"url": "ftp://x"}), "begin with http"),
        (config(a__b=STDIO), "no two underscores"),
        (config(a_=STDIO), "none at its end"),
        (config(a=STDIO, A=STDIO), "look the same"),
        (config(a={**STDIO, "type": []}), r"'type' is \[\]"),
        (config(a={"url": "http://x", "type": None}), "'type' is None"),
    ],
)
def test_what_says_nothing_or_cannot_be_meant_is_told(given: Any, error: str) -> None:
    with pytest.raises(DefinitionError, match=error):
        mcp.connect(given)


async def test_the_files_of_the_usual_clients_are_read_as_what_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As VS Code, Claude Code and Cursor write them, in what they have in common and in what they have not."""
    monkeypatch.setenv("WORD", "from outside")
    (tmp_path / ".env").write_text("# of the server\nexport A=one\nB = 'two words'\n\nC=three\n")
    program = {"command": PROGRAM[0], "args": PROGRAM[1:]}
    of_vscode = {
        "inputs": [
            {"type": "promptString", "id": "key", "description": "The key", "password": True},
            {"type": "promptString", "id": "place", "default": "here"},
        ],
        "servers": {
            "code": {
                "type": "stdio",
                **program,
                "envFile": "${workspaceFolder}/.env",
                "env": {"C": "${input:key}", "D": "${input:place}", "E": "${env:WORD}", "F": "${workspaceFolder}"},
                "gallery": True,
                "dev": {"watch": "src/**/*.py"},
            }
        },
    }
    of_cursor = config(
        cursor={**program, "env": {"A": "${userHome}${/}${workspaceFolderBasename}"}, "timeout": 60, "alwaysLoad": True}
    )
    of_others = config(tools={**program, "autoApprove": ["echo"], "alwaysAllow": ["pid", "gone"]})
    files = [tmp_path / ".vscode" / "mcp.json", tmp_path / ".cursor" / "mcp.json"]
    for file, content in zip(files, (of_vscode, of_cursor), strict=True):
        file.parent.mkdir()
        file.write_text(json.dumps(content))

    async def main() -> list[str]:
        async with mcp.connect(*files, of_others, inputs={"key": "the key"}) as toolset:
            runner = Runner(toolset)
            asked = [("code", name) for name in "ABCDEF"] + [("cursor", "A")]
            found = [await runner.run(f"{server}__environment", {"text": name}) for server, name in asked]
            return [result.output for result in found]

    found = await main()
    home = f"{Path.home()}{os.sep}{tmp_path.name}"
    assert found == ["one", "two words", "the key", "here", "from outside", str(tmp_path), home]


@pytest.mark.parametrize("kind", ["http", "streamable-http", "streamableHttp", "sse"])
def test_each_type_of_an_address_is_taken(kind: str) -> None:
    assert len(mcp.connect(config(web={"type": kind, "url": "http://127.0.0.1:9/mcp"})).status) == 1


async def test_a_file_lets_no_tool_run_without_asking() -> None:
    asked: list[str] = []

    def approve(call: ToolCall, decision: Decision, context: ToolContext) -> bool:
        asked.append(call.name)
        return True

    program = {"command": PROGRAM[0], "args": PROGRAM[1:], "autoApprove": ["*"], "alwaysAllow": ["echo"]}

    async def main() -> ToolResult:
        async with mcp.connect(config(tools=program)) as toolset:
            return await Runner(toolset, guards=[ask_before_changes], approve=approve).run("tools__echo", {"text": "a"})

    assert (await main()).success and asked == ["tools__echo"]


def test_a_line_of_an_env_file_that_is_none_is_told_without_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("A=1\nsk-secret\n")
    with pytest.raises(DefinitionError, match="line 2 of the envFile") as raised:
        mcp.connect(config(a={**STDIO, "envFile": str(tmp_path / ".env")}))
    assert "sk-secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ([], "at least one server"),
        ([[]], "empty"),
        ([5], "not an MCP server"),
        (["/nowhere/mcp.json"], "cannot be read"),
        ([["a"], ["b"]], "'a' has none"),
        ([mcp.Stdio("a", name="x"), mcp.Stdio("b", name="x")], "have the name 'x'"),
        ([""], "cannot be read"),
    ],
)
def test_servers_that_cannot_be_meant_are_told(given: Any, error: str) -> None:
    with pytest.raises(DefinitionError, match=error):
        mcp.connect(*given)


def test_a_file_that_is_no_json_or_too_large_is_told(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    for text, error in [("{", "is not JSON"), (" " * 1_100_000, "more than 1,000,000 bytes")]:
        file.write_text(text)
        with pytest.raises(DefinitionError, match=error):
            mcp.connect(file)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('{"mcpServers": {"a": {"command": "x"}, "b": {"command": "y"}, "a": {"command": "z"}}}', "a"),
        ('{"mcpServers": {"a": {"command": "x", "disabled": true}, "a": {"command": "z"}}}', "a"),
        ('{"mcpServers": {"a": {"command": "x"}}, "mcpServers": {"b": {"command": "y"}}}', "mcpServers"),
        ('{"mcpServers": {"a": {"command": "x", "env": {"KEY": "1", "KEY": "2"}}}}', "KEY"),
    ],
)
def test_what_stands_twice_in_a_file_is_told_and_none_of_the_two_wins(text: str, key: str, tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(text)
    with pytest.raises(DefinitionError, match=f"mcp.json': '{key}' appears twice"):
        mcp.connect(file)


def test_no_repr_shows_what_may_be_a_secret() -> None:
    servers = [
        mcp.Stdio("run", ["--key", "sk-1"], env={"KEY": "sk-1"}),
        mcp.Http("https://me:sk-1@example.com/mcp?key=sk-1", headers={"Authorization": "Bearer sk-1"}),
    ]
    for server in servers:
        assert "sk-1" not in repr(server) and "sk-1" not in repr(mcp.connect(server).status)


def test_the_forms_of_one_server() -> None:
    for server in [made().server, made().memory(), PROGRAM, tuple(PROGRAM), "http://127.0.0.1:9/mcp"]:
        assert len(mcp.connect(server, name="a").status) == 1
