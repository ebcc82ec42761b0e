"""Tools as any object with `execute(input)`: structural, results as dicts, and three events round each call."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from ferrule import DefinitionError, Event, Runner, ToolCall, ToolResult, Toolset
from ferrule.providers import anthropic


class ReadFileTool:
    """No base class; the configuration is its own business."""

    name = "read_file"
    description = "Read the contents of a file"
    input_schema = {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "File path to read"},
            "encoding": {"type": "string", "description": "File encoding", "default": "utf-8"},
        },
        "required": ["path"],
    }

    def __init__(self, config: dict[str, Any]) -> None:
        self.allowed = [Path(path).resolve() for path in config.get("allowed_paths", [])]

    async def execute(self, input: dict[str, Any]) -> dict[str, Any]:
        path = Path(input["path"]).resolve()
        if not any(path.is_relative_to(folder) for folder in self.allowed):
            return {"success": False, "error": "Path not allowed"}
        try:
            return {"success": True, "output": path.read_text(encoding=input.get("encoding", "utf-8"))}
        except Exception as error:
            return {"success": False, "error": str(error)}


def run(thing: Any, arguments: Any, name: str = "read_file") -> tuple[ToolResult, list[Event]]:
    events: list[Event] = []
    runner = Runner([thing], observers=[events.append])
    result = asyncio.run(runner.run(ToolCall("c1", name, arguments)))
    return result, [event for event in events if event.kind != "tool:started"]


class Returning:
    """A tool that returns what it was made with."""

    name = "give"
    description = "Give"

    def __init__(self, value: Any) -> None:
        self.value = value

    async def execute(self, input: dict[str, Any]) -> Any:
        return self.value


def test_an_object_with_the_protocol_is_a_tool(tmp_path: Path) -> None:
    (tool,) = Toolset([ReadFileTool({})])
    assert (tool.name, tool.description) == ("read_file", "Read the contents of a file")
    assert tool.input_schema["properties"]["encoding"]["default"] == "utf-8"


def test_a_success_gives_its_output(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    result, _ = run(ReadFileTool({"allowed_paths": [tmp_path]}), {"path": str(tmp_path / "a.txt")})
    assert (result.success, result.output, result.error) == (True, "hello", None)


def test_a_failure_told_by_a_dict_is_a_failure_and_not_an_output(tmp_path: Path) -> None:
    result, _ = run(ReadFileTool({"allowed_paths": [tmp_path / "in"]}), {"path": str(tmp_path / "a.txt")})
    assert (result.status, result.success) == ("failed", False)
    assert "Path not allowed" in str(result.error)
    (message,) = anthropic.results([result])
    assert message["content"][0]["is_error"] is True


def test_the_configuration_of_one_object_is_not_that_of_another(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    arguments = {"path": str(tmp_path / "a.txt")}
    assert run(ReadFileTool({"allowed_paths": [tmp_path]}), arguments)[0].success
    assert not run(ReadFileTool({}), arguments)[0].success


def test_arguments_are_validated_before_the_object_sees_them() -> None:
    class Watched(ReadFileTool):
        async def execute(self, input: dict[str, Any]) -> dict[str, Any]:
            raise AssertionError("ran")

    for arguments in ({}, {"path": 5}, {"path": "a", "other": 1}):
        assert run(Watched({}), arguments)[0].status == "invalid"


def test_metadata_is_kept_on_the_result() -> None:
    result, _ = run(Returning({"success": True, "output": "x", "metadata": {"lines": 3}}), None, "give")
    assert result.output == "x" and result.metadata == {"lines": 3}
    failed, _ = run(Returning({"success": False, "error": "no", "metadata": {"tries": 2}}), None, "give")
    assert failed.error == "no" and failed.metadata == {"tries": 2}


def test_an_error_may_be_a_dict_with_a_message() -> None:
    assert run(Returning({"success": False, "error": {"message": "gone", "code": 4}}), None, "give")[0].error == "gone"


def test_a_failure_without_a_word_is_still_a_failure() -> None:
    result, _ = run(Returning({"success": False}), None, "give")
    assert not result.success and result.error


@pytest.mark.parametrize("output", ["", 0, [], None, False])
def test_an_output_that_is_false_is_a_success(output: Any) -> None:
    result, _ = run(Returning({"success": True, "output": output}), None, "give")
    assert result.success and result.output == output


@pytest.mark.parametrize(
    "value",
    [
        {"success": 1, "output": "x"},
        {"success": True, "output": "x", "page": 2},
        {"output": "x", "error": None},
        {"error": "x"},
        "text",
    ],
)
def test_a_dict_that_only_looks_alike_is_data(value: Any) -> None:
    result, _ = run(Returning(value), None, "give")
    assert result.success and result.output == value


def test_a_result_object_of_another_library_is_understood() -> None:
    class Theirs:
        def __init__(self, success: bool, output: Any = None, error: Any = None, metadata: Any = None) -> None:
            self.success, self.output, self.error, self.metadata = success, output, error, metadata

    good, _ = run(Returning(Theirs(True, "x", metadata={"a": 1})), None, "give")
    bad, _ = run(Returning(Theirs(False, error="no")), None, "give")
    assert (good.output, good.metadata) == ("x", {"a": 1})
    assert (bad.success, bad.error) == (False, "no")


def test_an_object_without_a_schema_takes_any_object() -> None:
    class Echo:
        name = "echo"
        description = "Give back"

        async def execute(self, input: dict[str, Any]) -> Any:
            return input

    assert run(Echo(), {"a": [1]}, "echo")[0].output == {"a": [1]}
    assert run(Echo(), None, "echo")[0].output == {}
    assert run(Echo(), "[1]", "echo")[0].status == "invalid"


def test_name_and_description_may_be_properties_and_execute_may_be_plain() -> None:
    class Echo:
        def __init__(self, name: str) -> None:
            self._name = name

        @property
        def name(self) -> str:
            return self._name

        @property
        def description(self) -> str:
            return "Give back"

        def execute(self, input: dict[str, Any]) -> dict[str, Any]:
            return {"success": True, "output": sorted(input)}

    tools = Toolset([Echo("one"), Echo("two")])
    assert [tool.name for tool in tools] == ["one", "two"]
    assert run(Echo("echo"), {"b": 1, "a": 2}, "echo")[0].output == ["a", "b"]


def test_an_object_that_says_nothing_changes_things_and_runs_alone() -> None:
    (tool,) = Toolset([Returning(1)])
    assert tool.read_only is False and tool.parallel is False


def test_a_class_instead_of_an_object_is_refused_with_the_way_out() -> None:
    with pytest.raises(DefinitionError, match="instance"):
        Toolset([ReadFileTool])


def test_a_success_is_told_before_and_after(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    result, events = run(ReadFileTool({"allowed_paths": [tmp_path]}), {"path": str(tmp_path / "a.txt")})
    assert [event.kind for event in events] == ["tool:pre", "tool:post"]
    pre, post = (event.data for event in events)
    assert pre["tool_name"] == post["tool_name"] == "read_file"
    assert dict(pre["input"]) == {"path": str(tmp_path / "a.txt")}
    assert post["result"] is result
    assert "error" not in post


@pytest.mark.parametrize("arguments", ['{"path": "/nowhere"}', "{}", '{"path'])
def test_a_failure_of_any_kind_is_told_as_an_error(arguments: str) -> None:
    result, events = run(ReadFileTool({}), arguments)
    assert [event.kind for event in events] == ["tool:pre", "tool:error"]
    data = events[1].data
    assert data["tool_name"] == "read_file"
    assert data["error"] == result.error


def test_what_an_object_raises_is_told_as_an_error_too() -> None:
    class Raises(Returning):
        async def execute(self, input: dict[str, Any]) -> Any:
            raise self.value

    result, events = run(Raises(RuntimeError("x")), None, "give")
    assert [event.kind for event in events] == ["tool:pre", "tool:error"]
    assert isinstance(events[1].data["exception"], RuntimeError) and not result.success


def test_events_can_be_read_as_data_and_changed_by_nobody() -> None:
    _, events = run(Returning("x"), {"a": 1}, "give")
    with pytest.raises((TypeError, AttributeError)):
        events[0].data["tool_name"] = "other"  # type: ignore[index]
    with pytest.raises((TypeError, AttributeError)):
        events[0].data["input"]["a"] = 2
    with pytest.raises(AttributeError):
        events[0].kind = "tool:post"
    json.dumps(dict(events[0].data["input"]))
