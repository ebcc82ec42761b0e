"""The forms in which servers are named, and mcp.json: invalid entries are errors, and no secret is shown."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from mcp_servers import PROGRAM

from cast import Person
from ferrule import DefinitionError, Runner, mcp
from ferrule.guards import ask_before_changes

STDIO = {"command": "x"}
LAUNCH = {"command": PROGRAM[0], "args": PROGRAM[1:]}


def config(**servers: Any) -> dict[str, Any]:
    return {"mcpServers": servers}


@pytest.mark.large
async def test_the_files_of_the_usual_clients_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As VS Code, Claude Code and Cursor write them."""
    monkeypatch.setenv("WORD", "from outside")
    (tmp_path / ".env").write_text("# of the server\nexport A=one\nB = 'two words'\n\nC=three\n")
    variables = {"C": "${input:key}", "D": "${input:place}", "E": "${env:WORD}", "F": "${workspaceFolder}"}
    vscode = {
        "inputs": [
            {"type": "promptString", "id": "key", "description": "The key", "password": True},
            {"type": "promptString", "id": "place", "default": "here"},
        ],
        "servers": {
            "code": {
                "type": "stdio",
                **LAUNCH,
                "envFile": "${workspaceFolder}/.env",
                "env": variables | {"G": "${WORD}", "H": "${NOT_THERE:-left}"},
                "gallery": True,
                "dev": {"watch": "src/**/*.py"},
            },
            "off": {**LAUNCH, "disabled": True},
        },
    }
    own = {"A": "${userHome}${/}${workspaceFolderBasename}"}
    cursor = config(cursor={**LAUNCH, "env": own, "timeout": 60, "alwaysLoad": True})
    others = config(tools={**LAUNCH, "autoApprove": ["*"], "alwaysAllow": ["echo", "gone"]})
    files = [tmp_path / ".vscode" / "mcp.json", tmp_path / ".cursor" / "mcp.json"]
    for file, content in zip(files, (vscode, cursor), strict=True):
        file.parent.mkdir()
        file.write_text(json.dumps(content))

    servers, person = mcp.connect(*files, others, inputs={"key": "the key"}), Person()
    async with servers as toolset:
        assert sorted(servers.status) == ["code", "cursor", "tools"]
        runner = Runner(toolset)
        asked = [("code", name) for name in "ABCDEFGH"] + [("cursor", "A")]
        results = [await runner.run(f"{server}__environment", {"text": name}) for server, name in asked]
        # No file lets a tool run without asking.
        guarded = Runner(toolset, guards=[ask_before_changes], approve=person)
        assert (await guarded.run("tools__echo", {"text": "a"})).success
    code = ["one", "two words", "the key", "here", "from outside", str(tmp_path), "from outside", "left"]
    assert [result.output for result in results] == [*code, f"{Path.home()}{os.sep}{tmp_path.name}"]
    assert [call.name for call in person.questions] == ["tools__echo"]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, "has no servers"),
        ({"mcpServers": {}, "servers": {}}, "both 'mcpServers' and 'servers'"),
        ({"mcpServers": {}, "other": {}}, "'other' is unknown"),
        ({"servers": {"a": STDIO}, "inputs": [{"type": "promptString"}]}, "each with an 'id'"),
        (config(a={}), "either 'command' or 'url'"),
        (config(a={**STDIO, "envFile": "/nowhere/.env"}), "the envFile '/nowhere/.env' cannot be read"),
        (config(a={**STDIO, "args": ["${env:NOT_THERE}"]}), "the environment has no NOT_THERE"),
        (config(a={**STDIO, "args": ["${workspaceFolder}"]}), "is the folder of a file, but this is a mapping"),
        (config(a={**STDIO, "args": ["${command:pick}"]}), r"\$\{command:pick\} is unknown"),
        (config(a={**STDIO, "env": {"A": "${input:key}"}}), r"inputs=\{'key': …\}"),
        (config(a={**STDIO, "type": "sse"}), "'type' is 'sse'"),
        (config(a={**STDIO, "args": "x y"}), "list of texts"),
        (config(a={**STDIO, "env": {"A": 1}}), "mapping of texts"),
        (config(a={"url": "ftp://x"}), "begin with http"),
        (config(a=STDIO, A=STDIO), "look the same"),
        ("/nowhere/mcp.json", "cannot be read"),
    ],
)
def test_a_server_that_cannot_be_meant_is_an_error(given: Any, error: str) -> None:
    with pytest.raises(DefinitionError, match=error):
        mcp.connect(given)


def test_an_invalid_line_of_an_env_file_is_an_error_that_does_not_show_it(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("A=1\nsk-secret\n")
    with pytest.raises(DefinitionError, match="line 2 of the envFile") as raised:
        mcp.connect(config(a={**STDIO, "envFile": str(tmp_path / ".env")}))
    assert "sk-secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "is not JSON"),
        ('{"mcpServers": {"a": {"command": "x"}, "a": {"command": "z"}}}', "'a' appears twice"),
        ('{"mcpServers": {"a": {"command": "x", "env": {"KEY": "1", "KEY": "2"}}}}', "'KEY' appears twice"),
    ],
)
def test_a_file_that_cannot_be_read_or_names_something_twice_is_an_error(text: str, error: str, tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(text)
    with pytest.raises(DefinitionError, match=error):
        mcp.connect(file)


def test_no_repr_shows_a_possible_secret() -> None:
    for server in (
        mcp.Stdio("run", ["--key", "sk-1"], env={"KEY": "sk-1"}),
        mcp.Http("https://me:sk-1@example.com/mcp?key=sk-1", headers={"Authorization": "Bearer sk-1"}),
    ):
        assert "sk-1" not in repr(server) and "sk-1" not in repr(mcp.connect(server).status)
