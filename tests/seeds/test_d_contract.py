"""Tools as any object with `execute(input)`: structural, with results as dicts."""

from __future__ import annotations

from typing import Any

import pytest

from ferrule import DefinitionError, Runner, ToolCall, ToolResult, Toolset
from ferrule.providers import anthropic


class Give:
    """A tool that returns the value that it was made with."""

    name = "give"
    description = "Give"

    def __init__(self, value: Any) -> None:
        self.value = value

    async def execute(self, input: dict[str, Any]) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


class Echo:
    """A tool with properties and a plain `execute`, and without a schema."""

    def __init__(self, name: str = "give") -> None:
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    @property
    def description(self) -> str:
        return "Give back"

    def execute(self, input: dict[str, Any]) -> Any:
        return input


class ReadFileTool(Give):
    name = "read_file"
    input_schema = {
        "type": "object",
        "properties": {"path": {"type": "string"}, "encoding": {"type": "string", "default": "utf-8"}},
        "required": ["path"],
    }


async def run(tool: Any, arguments: Any = None) -> ToolResult:
    return await Runner([tool]).run(ToolCall("c1", tool.name, arguments))


def test_an_object_with_the_protocol_is_a_tool_that_changes_things() -> None:
    (tool,) = Toolset([ReadFileTool("x")])
    assert (tool.name, tool.description) == ("read_file", "Give")
    assert tool.input_schema["properties"]["encoding"]["default"] == "utf-8"
    assert tool.read_only is False and tool.parallel is False
    assert [one.name for one in Toolset([Echo("one"), Echo("two")])] == ["one", "two"]


def test_a_class_instead_of_an_object_is_refused() -> None:
    with pytest.raises(DefinitionError, match="instance"):
        Toolset([ReadFileTool])


async def test_invalid_arguments_do_not_reach_the_object() -> None:
    for arguments in ({}, {"path": 5}, {"path": "a", "other": 1}):
        result = await run(ReadFileTool("x"), arguments)
        assert (result.status, result.executed) == ("invalid", False)


async def test_an_object_without_a_schema_takes_any_object() -> None:
    assert (await run(Echo(), {"a": [1]})).output == {"a": [1]}
    assert (await run(Echo())).output == {}
    assert (await run(Echo(), "[1]")).status == "invalid"


@pytest.mark.parametrize("output", ["x", [], None])
async def test_a_success_gives_its_output(output: Any) -> None:
    result = await run(Give({"success": True, "output": output, "metadata": {"lines": 3}}))
    assert (result.success, result.output, result.error) == (True, output, None)
    assert result.metadata == {"lines": 3}


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ({"success": False, "error": "no", "metadata": {"tries": 2}}, "no"),
        ({"success": False, "error": {"message": "gone", "code": 4}}, "gone"),
        ({"success": False}, None),
    ],
)
async def test_a_failure_in_a_dict_is_a_failure(value: Any, error: str | None) -> None:
    result = await run(Give(value))
    assert result.status == "failed" and result.error and error in (None, result.error)
    assert result.metadata == value.get("metadata", {})
    (message,) = anthropic.results([result])
    assert message["content"][0]["is_error"] is True


@pytest.mark.parametrize(
    "value",
    [{"success": 1, "output": "x"}, {"success": True, "output": "x", "page": 2}, {"output": "x", "error": None}],
)
async def test_a_dict_that_only_looks_similar_is_data(value: Any) -> None:
    result = await run(Give(value))
    assert result.success and result.output == value


async def test_a_result_object_of_another_library_is_understood() -> None:
    class Theirs:
        def __init__(self, success: bool, output: Any = None, error: Any = None, metadata: Any = None) -> None:
            self.success, self.output, self.error, self.metadata = success, output, error, metadata

    good, bad = await run(Give(Theirs(True, "x", metadata={"a": 1}))), await run(Give(Theirs(False, error="no")))
    assert (good.output, good.metadata) == ("x", {"a": 1})
    assert (bad.success, bad.error) == (False, "no")
