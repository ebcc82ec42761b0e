"""Tools as protocol objects, definitions that fail closed, and a pool whose order stays stable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ferrule import (
    DefinitionError,
    Runner,
    Tool,
    ToolCall,
    ToolContext,
    ToolResult,
    Toolset,
    allow,
    ask,
    build_tool,
)
from ferrule.adapters.chapter1 import assemble_tool_pool


class ReadFileTool:
    """Satisfies the protocol with no base class."""

    name = "read_file"
    description = "Read a file from disk."
    input_schema = {
        "type": "object",
        "properties": {
            "file_path": {"type": "string", "description": "Absolute path of the file."},
            "limit": {"type": "integer", "description": "How many lines at most."},
        },
        "required": ["file_path"],
    }

    async def execute(self, payload: dict[str, Any], context: ToolContext) -> ToolResult:
        lines = Path(payload["file_path"]).read_text().splitlines(keepends=True)
        return ToolResult(output="".join(lines[: payload.get("limit", 2000)]), duration_ms=7)

    async def check_permissions(self, payload: dict[str, Any], context: ToolContext) -> None:
        if not Path(payload["file_path"]).is_absolute():
            raise PermissionError("the path must be absolute")

    def is_read_only(self) -> bool:
        return True

    def is_concurrency_safe(self) -> bool:
        return True


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "test.py").write_text("one\ntwo\nthree\n")
    return str(tmp_path / "test.py")


async def test_an_object_of_the_protocol_is_a_tool(file: str) -> None:
    (tool,) = Toolset([ReadFileTool()])
    assert (tool.name, tool.description) == ("read_file", "Read a file from disk.")
    assert tool.read_only is True and tool.parallel is True
    assert tool.input_schema["properties"] == ReadFileTool.input_schema["properties"]
    result = await Runner([ReadFileTool()]).run("read_file", {"file_path": file, "limit": 1})
    assert (result.status, result.output) == ("ok", "one\n") and result.duration_ms > 0
    with pytest.raises(AttributeError):
        result.output = "y"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        *((yes, None) for yes in (None, True, allow())),
        (False, "Denied: not permitted."),
        (ask("really?"), "Denied: nobody is there to ask (really?)."),
        ({"behavior": "x"}, "a check must return True, None or allow() to permit a call"),
    ],
)
async def test_only_true_none_or_allow_permit_a_call(file: str, answer: Any, error: str | None) -> None:
    class Checked(ReadFileTool):
        async def check_permissions(self, payload: dict[str, Any], context: ToolContext) -> Any:
            payload["file_path"] = "/etc/hostname"  # a check cannot change what runs
            return answer

    result = await Runner([Checked()]).run("read_file", {"file_path": file, "limit": 1})
    if error is None:
        assert (result.status, result.output) == ("ok", "one\n")
    else:
        assert (result.status, result.executed) == ("denied", False) and error in str(result.error)


# Definitions


async def find(payload: dict[str, Any], context: ToolContext) -> str:
    return f"{payload['pattern']} in {payload.get('glob', '*')}"


def definition(**more: Any) -> dict[str, Any]:
    return {
        "name": "search_code",
        "description": "Search the files for a pattern.",
        "input_schema": {
            "type": "object",
            "properties": {"pattern": {"type": "string"}, "glob": {"type": "string"}},
            "required": ["pattern"],
        },
        "execute": find,
        **more,
    }


def no_objection(payload: dict[str, Any], context: ToolContext) -> None:
    return None


CALL = ToolCall("c1", "search_code", {"pattern": "x"})


async def test_a_definition_becomes_a_tool() -> None:
    flags = {"is_read_only": lambda: True, "is_concurrency_safe": staticmethod(lambda: True)}
    given = definition(**flags, check_permissions=no_objection)
    tool = build_tool(given)
    given["input_schema"]["properties"]["added"] = {"type": "string"}
    given["execute"] = None
    assert isinstance(tool, Tool) and tool.read_only is True and tool.parallel is True
    assert "added" not in tool.input_schema["properties"] and tool.input_schema["additionalProperties"] is False
    assert (await Runner([tool]).run(CALL)).output == "x in *"


@pytest.mark.parametrize("more", [{}, {"guards": [lambda call, context: None]}])
async def test_a_tool_without_a_permission_check_asks(more: dict[str, Any]) -> None:
    tool = build_tool(definition(**more))
    assert (tool.read_only, tool.parallel, tool.destructive) == (False, False, True)
    assert (await Runner([tool]).decide(CALL)).kind == "ask"
    result = await Runner([tool]).run(CALL)
    assert (result.status, result.executed) == ("denied", False)
    assert (await Runner([tool], approve=lambda call, decision, context: True).run(CALL)).output == "x in *"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"is_readonly": lambda: True}, "is_readonly"),
        ({"is_read_only": lambda: "yes"}, "is_read_only"),
        ({"is_concurrency_safe": 1}, "is_concurrency_safe"),
        ({"check_permissions": True}, "check_permissions"),
        ({"check_permissions": lambda: None}, "check_permissions"),
    ],
)
def test_a_wrong_definition_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        build_tool(definition(**wrong))


# The pool


def named(name: str, origin: str = "built in") -> Tool:
    async def run() -> str:
        return origin

    return Tool(name=name, handler=run, description=origin)


def test_the_pool_sorts_built_in_tools_first_then_the_others() -> None:
    pool = assemble_tool_pool([named("write"), named("bash")], [named("zoo", "mcp"), named("alpha", "mcp")], set())
    assert [tool.name for tool in pool] == ["bash", "write", "alpha", "zoo"]
    again = assemble_tool_pool([named("bash"), named("write")], [named("alpha", "mcp"), named("zoo", "mcp")], set())
    assert pool.fingerprint == again.fingerprint


def test_a_built_in_tool_wins_over_another_with_its_name() -> None:
    pool = assemble_tool_pool([named("bash")], [named("bash", "mcp"), named("other", "mcp")], set())
    assert [(tool.name, tool.description) for tool in pool] == [("bash", "built in"), ("other", "mcp")]


def test_denied_tools_are_left_out_wherever_they_come_from() -> None:
    others = [named("mcp_bash", "mcp"), named("bash", "mcp")]
    pool = assemble_tool_pool([named("bash"), named("read")], others, {"bash", "mcp_*"})
    assert [tool.name for tool in pool] == ["read"]
