"""The registry of seed c: its two loops as they are written there, with the real SDKs and a transport in memory."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from anthropic import Anthropic
from pydantic import BaseModel

from ferrule import DefinitionError, Runner, ToolContext, ask, deny, tool
from ferrule.adapters.chapter1 import ToolRegistry


class TheirContext(BaseModel):
    """The chapter's `ToolContext`."""

    working_directory: str
    session_id: str
    model_config = {"frozen": True}


class TheirResult(BaseModel):
    """The chapter's `ToolResult`."""

    output: Any
    error: str | None = None
    duration_ms: float = 0
    model_config = {"frozen": True}


class ReadFileTool:
    name = "read_file"
    description = "Read the contents of a file from disk."
    input_schema = {
        "type": "object",
        "properties": {
            "file_path": {"type": "string", "description": "Absolute path to the file to read."},
            "offset": {"type": "integer", "description": "Line number to start reading from (1-based)."},
            "limit": {"type": "integer", "description": "Maximum number of lines to read."},
        },
        "required": ["file_path"],
    }

    async def execute(self, payload: dict[str, Any], context: TheirContext) -> TheirResult:
        lines = Path(payload["file_path"]).read_text().splitlines(keepends=True)
        offset = payload.get("offset", 1)
        selected = lines[offset - 1 : offset - 1 + payload.get("limit", 2000)]
        return TheirResult(output="".join(f"{i + offset}\t{line}" for i, line in enumerate(selected)))

    async def check_permissions(self, payload: dict[str, Any], context: TheirContext) -> None:
        path = payload["file_path"]
        if not os.path.isabs(path):
            raise PermissionError("File path must be absolute")
        if not path.startswith(context.working_directory):
            raise PermissionError(f"Path outside working directory: {path}")

    def is_read_only(self) -> bool:
        return True

    def is_concurrency_safe(self) -> bool:
        return True


@pytest.fixture
def context(tmp_path: Path) -> TheirContext:
    (tmp_path / "test.py").write_text("one\ntwo\n")
    return TheirContext(working_directory=str(tmp_path), session_id="session-001")


def transport(sent: list[Any], reply: dict[str, Any]) -> httpx2.Client:
    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(json.loads(request.content))
        return httpx2.Response(200, json=reply)

    return httpx2.Client(transport=httpx2.MockTransport(answer))


@pytest.mark.filterwarnings("ignore:The model:DeprecationWarning")
async def test_the_anthropic_loop_of_the_chapter_runs(context: TheirContext) -> None:
    use = {"type": "tool_use", "id": "toolu_1", "name": "read_file"}
    use["input"] = {"file_path": f"{context.working_directory}/test.py", "limit": 1}  # type: ignore[assignment]
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-20250514"}
    message |= {"stop_reason": "tool_use", "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}  # type: ignore[dict-item]
    sent: list[Any] = []
    client = Anthropic(api_key="k", http_client=transport(sent, message | {"content": [use]}))
    results = []
    registry = ToolRegistry()
    registry = registry.register(ReadFileTool())
    response = client.messages.create(
        model="claude-sonnet-4-20250514",
        max_tokens=4096,
        messages=[{"role": "user", "content": "Read the file at /tmp/test.py"}],
        tools=registry.to_anthropic_tools(),  # type: ignore[arg-type]
    )
    for block in response.content:
        if block.type == "tool_use":
            tool = registry.get(block.name)
            await tool.check_permissions(block.input, context)
            result = await tool.execute(block.input, context)
            results.append(result)
    [result] = results
    assert (result.output, result.error) == ("1\tone\n", None)
    assert result.duration_ms > 0
    assert [*sent[0]["tools"][0]] == ["name", "description", "input_schema"]
    assert sent[0]["tools"][0]["input_schema"]["properties"] == ReadFileTool.input_schema["properties"]


async def test_execute_checks_permissions_itself(context: TheirContext) -> None:
    held = ToolRegistry().register(ReadFileTool()).get("read_file")
    for path in ("test.py", "/etc/hostname"):
        with pytest.raises(PermissionError, match=r"must be absolute|outside working directory"):
            await held.check_permissions({"file_path": path}, context)
        result = await held.execute({"file_path": path}, context)
        assert (result.status, result.executed, result.output) == ("denied", False, None)
        assert "absolute" in str(result.error) or "outside" in str(result.error)


def runner_that(answer: Callable[..., Any] | None, **options: Any) -> Runner:
    return Runner([], guards=[lambda call, context: ask("really?")], approve=answer, **options)


async def test_guards_and_approver_of_the_runner_apply(context: TheirContext) -> None:
    payload = {"file_path": f"{context.working_directory}/test.py"}

    def held(runner: Runner) -> Any:
        return ToolRegistry(runner).register(ReadFileTool()).get("read_file")

    with pytest.raises(PermissionError, match="really"):
        await held(runner_that(None)).check_permissions(payload, context)
    assert (await held(runner_that(None)).execute(payload, context)).status == "denied"
    asked = held(runner_that(lambda call, decision, context: True))
    assert await asked.check_permissions(payload, context) is None
    assert (await asked.execute(payload, context)).output == "1\tone\n2\ttwo\n"
    with pytest.raises(PermissionError, match="never"):
        await held(Runner([], guards=[lambda call, context: deny("never")])).check_permissions(payload, context)


def test_register_returns_a_new_registry_and_replaces_by_name() -> None:
    @tool(name="read_file")
    def other() -> str:
        """Other."""
        return "other"

    empty = ToolRegistry()
    one = empty.register(ReadFileTool())
    two = one.register(other)
    with pytest.raises(KeyError, match="Unknown tool: 'read_file'"):
        empty.get("read_file")
    assert one.get("read_file").description == ReadFileTool.description
    assert two.get("read_file").description == "Other."
    assert len(two.to_anthropic_tools()) == 1
    [shown] = one.to_openai_tools()
    assert (shown["type"], shown["name"], shown["strict"]) == ("function", "read_file", False)
    assert shown["parameters"]["required"] == ["file_path"]


async def test_chapter_tools_get_their_context_and_other_tools_get_ours(context: TheirContext) -> None:
    seen: list[Any] = []

    class Look(ReadFileTool):
        async def execute(self, payload: dict[str, Any], context: Any) -> TheirResult:
            seen.append(context)
            return TheirResult(output="")

        async def check_permissions(self, payload: dict[str, Any], context: Any) -> None:
            seen.append(context)

    @tool
    def mine(context: ToolContext[str]) -> str:
        return f"{context.session} {context.deps}"

    registry = ToolRegistry(Runner([], deps="DEPS")).register(Look()).register(mine)
    assert (await registry.get("read_file").execute({"file_path": "/x"}, context)).success
    assert seen == [context, context] and seen[0] is context
    assert (await registry.get("mine").execute({}, context)).output == "session-001 DEPS"
    ours = ToolContext(session="s")
    assert (await registry.get("read_file").execute({"file_path": "/x"}, ours)).success
    assert [type(one) is not TheirContext and one.session for one in seen[2:]] == ["s", "s"]


async def test_a_wrong_context_or_tool_is_refused() -> None:
    with pytest.raises(DefinitionError, match="session_id"):
        await ToolRegistry().register(ReadFileTool()).get("read_file").execute({"file_path": "/x"}, object())  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="is no tool"):
        ToolRegistry().register(3)  # type: ignore[arg-type]
