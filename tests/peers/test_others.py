"""Servers and clients that others have written: three reference servers of MCP, its Inspector and the SDK's client."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from peer_programs import TOOLS, environment, serving

from ferrule import Decision, Event, Runner, ToolCall, ToolContext, ToolResult, allow, mcp
from ferrule.guards import ask_before_changes
from ferrule.providers.lint import findings
from needed import needed
from products import sampled

SECONDS = 60.0

pytestmark = pytest.mark.slow


def program(name: str, *arguments: str, **options: Any) -> mcp.Stdio:
    peers = needed("peers")
    return mcp.Stdio(peers["node"], [f"{peers['modules']}/{name}/dist/index.js", *arguments], name=name, **options)


def tools_of(name: str, *arguments: str, **options: Any) -> mcp.Servers:
    return mcp.connect(program(name, *arguments, **options), trusted=True, required=True)


def fill_in(call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
    assert decision.schema is not None
    return allow({"name": "Ann"})


async def test_every_kind_of_result_of_server_everything_arrives() -> None:
    events: list[Event] = []
    servers = tools_of("server-everything")
    async with servers as tools:
        assert [(one.tool, one.reason.partition(",")[0]) for one in servers.left_out] == [
            ("simulate-research-query", "it runs only as a task (execution.taskSupport)")
        ]
        assert servers.status["server-everything"].protocol == "2025-11-25"
        runner = Runner(tools, approve=fill_in, observers=[events.append])

        async def run(name: str, **arguments: Any) -> ToolResult:
            return await runner.run(f"server-everything__{name}", arguments)

        assert (await run("echo", message="hello")).output == "Echo: hello"
        image = await run("get-tiny-image")
        assert [block.kind for block in image.content if not hasattr(block, "text")] == ["image"]
        weather = await run("get-structured-content", location="Chicago")
        assert isinstance(weather.output["temperature"], int | float)
        resource = await run("get-resource-reference", resourceType="Text", resourceId=1)
        assert any(getattr(block, "uri", None) for block in resource.content)
        wrong = await run("get-sum", a="x", b=2)
        assert (wrong.status, wrong.executed) == ("invalid", False)
        told = await run("trigger-elicitation-request")
        assert "Ann" in told.text and told.success
        events.clear()
        assert (await run("trigger-long-running-operation", duration=0.2, steps=2)).success
        assert [event.data["done"] for event in events if event.kind == "tool:progress"] == [1, 2]


async def test_changes_by_server_filesystem_are_asked_about(tmp_path: Path) -> None:
    asked: list[str] = []

    def approve(call: ToolCall, decision: Decision, context: ToolContext) -> bool:
        asked.append(call.name)
        return True

    folder = tmp_path.resolve()
    async with tools_of("server-filesystem", str(folder)) as tools:
        runner = Runner(tools, guards=[ask_before_changes], approve=approve)
        write, read = "server-filesystem__write_file", "server-filesystem__read_text_file"
        assert (await runner.run(write, {"path": str(folder / "a.txt"), "content": "hello"})).success
        assert (folder / "a.txt").read_text(encoding="utf-8") == "hello"
        assert "hello" in (await runner.run(read, {"path": str(folder / "a.txt")})).text
        outside = await runner.run(read, {"path": "/etc/hostname"})
        assert outside.status == "failed" and "outside allowed directories" in str(outside.error)
        assert asked == [write]


# -- the Inspector -----------------------------------------------------------------------------------------------------

SERVE = [sys.executable, "-m", "ferrule", "serve", str(TOOLS)]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(*SERVE[1:], "--http", "0") as address:
        yield address


def inspect(*arguments: str) -> dict[str, Any]:
    """Run the Inspector, and return what it prints."""
    peers = needed("peers")
    command = [peers["node"], f"{peers['modules']}/inspector/clients/launcher/build/index.js", "--cli", *arguments]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    return found


def at(url: str) -> list[str]:
    return [url, "--transport", "http"]


@pytest.mark.parametrize("over", sampled(["http", "stdio"], 2))
def test_the_inspector_lists_and_calls_what_is_served(over: str, url: str) -> None:
    server = at(url) if over == "http" else ["-e", f"PYTHONPATH={environment()['PYTHONPATH']}", *SERVE]
    names = [tool["name"] for tool in inspect(*server, "--method", "tools/list")["tools"]]
    assert names[0] == "test_simple_text" and "json_schema_2020_12_tool" in names
    called = inspect(*server, "--method", "tools/call", "--tool-name", "test_simple_text")
    assert called["content"] == [{"type": "text", "text": "This is a simple text response for testing."}]


def test_the_inspector_follows_a_served_task(url: str) -> None:
    call = ("--method", "tools/call", "--tool-name", "slow_compute", "--tool-arg", "label=done")
    assert inspect(*at(url), "--protocol-era", "modern", *call)["content"] == [{"type": "text", "text": "done"}]


@pytest.mark.large
async def test_the_texts_of_the_reference_servers_hide_and_instruct_nothing(
    tmp_path: Path,
) -> None:
    names = ("server-everything", "server-memory")
    programs = [*map(program, names), program("server-filesystem", str(tmp_path))]
    async with mcp.connect(*programs, required=True) as tools:
        assert len(tools) > 30
        assert [one for one in findings(tools, []) if one.rule in ("hidden", "instruction")] == []
