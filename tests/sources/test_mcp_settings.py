"""The forms in which servers are named, and mcp.json: what says nothing is told, and secrets are not shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mcp_servers import PROGRAM, go, made

from ferrule import DefinitionError, Runner
from ferrule.sources import mcp


def config(**servers: Any) -> dict[str, Any]:
    return {"mcpServers": servers}


def test_an_mcp_json_of_several_servers_is_connected_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

    assert go(main()) == ["from outside", "left"]


STDIO = {"command": "x"}


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, "has no servers"),
        ({"mcpServers": []}, "has no servers"),
        ({"mcpServers": {}, "servers": {}}, "'servers' is not known"),
        (config(a="x"), "an object with 'command' or 'url'"),
        (config(a={}), "either 'command' or 'url'"),
        (config(a={"command": "x", "url": "http://x"}), "either 'command' or 'url'"),
        (config(a={**STDIO, "headers": {}}), "'headers' is not known"),
        (config(a={**STDIO, "autoApprove": ["x"]}), "'autoApprove' is not known"),
        (config(a={**STDIO, "disabled": "yes"}), "true or false"),
        (config(a={**STDIO, "type": "sse"}), "'type' is 'sse'"),
        (config(a={**STDIO, "args": "x y"}), "list of texts"),
        (config(a={**STDIO, "args": [1]}), "list of texts"),
        (config(a={**STDIO, "env": {"A": 1}}), "mapping of texts"),
        (config(a={**STDIO, "args": ["${NOT_THERE}"]}), "the environment has no NOT_THERE"),
        (config(a={"url": "ftp://x"}), "begins with http"),
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


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ([], "at least one server"),
        ([[]], "empty"),
        ([5], "no MCP server"),
        (["/nowhere/mcp.json"], "cannot be read"),
        ([["a"], ["b"]], "'a' has none"),
        ([mcp.Stdio("a", name="x"), mcp.Stdio("b", name="x")], "called 'x'"),
        ([""], "cannot be read"),
    ],
)
def test_servers_that_cannot_be_meant_are_told(given: Any, error: str) -> None:
    with pytest.raises(DefinitionError, match=error):
        mcp.connect(*given)


def test_a_file_that_is_no_json_or_too_large_is_told(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    for text, error in [("{", "is no JSON"), (" " * 1_100_000, "more than 1,000,000 bytes")]:
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
    with pytest.raises(DefinitionError, match=f"mcp.json': '{key}' stands twice"):
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
