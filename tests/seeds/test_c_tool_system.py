"""Tools as protocol objects, an immutable registry for every provider, factories that fail closed, a stable pool."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from anthropic.types import Message, ToolParam
from openai.types.responses import FunctionToolParam, Response
from pydantic import TypeAdapter

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
    deny,
)
from ferrule.adapters.chapter1 import assemble_tool_pool
from ferrule.guards import within
from ferrule.providers import anthropic, openai_responses


class ReadFileTool:
    """Satisfies the protocol with no base class."""

    name = "read_file"
    description = "Read a file from disk."
    input_schema = {
        "type": "object",
        "properties": {
            "file_path": {"type": "string", "description": "Absolute path of the file."},
            "offset": {"type": "integer", "description": "First line, counted from 1."},
            "limit": {"type": "integer", "description": "How many lines at most."},
        },
        "required": ["file_path"],
    }

    async def execute(self, payload: dict[str, Any], context: ToolContext) -> ToolResult:
        start = time.monotonic()
        lines = Path(payload["file_path"]).read_text().splitlines(keepends=True)
        first = payload.get("offset", 1)
        chosen = lines[first - 1 : first - 1 + payload.get("limit", 2000)]
        text = "".join(f"{number}\t{line}" for number, line in enumerate(chosen, first))
        return ToolResult(output=text, duration_ms=(time.monotonic() - start) * 1000)

    async def check_permissions(self, payload: dict[str, Any], context: ToolContext) -> None:
        path = Path(payload["file_path"])
        if not path.is_absolute():
            raise PermissionError("the path must be absolute")
        if not path.resolve().is_relative_to(Path(context.working_directory).resolve()):
            raise PermissionError(f"outside the working directory: {path}")

    def is_read_only(self) -> bool:
        return True

    def is_concurrency_safe(self) -> bool:
        return True


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    (made / "test.py").write_text("one\ntwo\nthree\n")
    (tmp_path / "work-private").mkdir()
    (tmp_path / "work-private" / "secret.txt").write_text("secret")
    return made


def context_in(folder: Path) -> ToolContext:
    return ToolContext(working_directory=folder, session="session-001")


def message(*calls: tuple[str, str, dict[str, Any]]) -> Message:
    return Message.model_validate(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [{"type": "tool_use", "id": i, "name": n, "input": a} for i, n, a in calls],
            "stop_reason": "tool_use",
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
    )


def response(*calls: tuple[str, str, dict[str, Any]]) -> Response:
    items = [
        {
            "type": "function_call",
            "id": f"fc_{i}",
            "call_id": i,
            "name": n,
            "arguments": json.dumps(a),
            "status": "completed",
        }
        for i, n, a in calls
    ]
    return Response.model_validate(
        {
            "id": "resp_1",
            "object": "response",
            "created_at": 1.0,
            "model": "m",
            "output": items,
            "status": "completed",
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        }
    )


# The protocol


def test_an_object_of_the_protocol_is_a_tool(folder: Path) -> None:
    (tool,) = Toolset([ReadFileTool()])
    assert (tool.name, tool.description) == ("read_file", "Read a file from disk.")
    assert tool.read_only is True and tool.parallel is True
    assert tool.input_schema["properties"] == ReadFileTool.input_schema["properties"]


async def test_the_context_is_frozen_and_reaches_execute_and_check_permissions(folder: Path) -> None:
    seen: list[ToolContext] = []

    class Look(ReadFileTool):
        async def execute(self, payload: dict[str, Any], context: ToolContext) -> ToolResult:
            seen.append(context)
            return ToolResult(output=context.session)

        async def check_permissions(self, payload: dict[str, Any], context: ToolContext) -> None:
            seen.append(context)

    context = context_in(folder)
    result = await Runner([Look()]).run("read_file", {"file_path": "/x"}, context)
    assert result.output == "session-001"
    assert [one.working_directory for one in seen] == [str(folder)] * 2
    with pytest.raises(AttributeError):
        context.session = "other"  # type: ignore[misc]


def test_a_result_is_frozen() -> None:
    result = ToolResult(output="x")
    with pytest.raises(AttributeError):
        result.output = "y"
    assert (result.error, result.duration_ms) == (None, 0)


async def test_reading_numbers_the_chosen_lines_and_measures_the_call(folder: Path) -> None:
    arguments = {"file_path": str(folder / "test.py"), "offset": 2, "limit": 1}
    result = await Runner([ReadFileTool()]).run("read_file", arguments, context_in(folder))
    assert (result.status, result.output) == ("ok", "2\ttwo\n")
    assert result.duration_ms > 0


@pytest.mark.parametrize("path", ["test.py", "../work-private/secret.txt"])
async def test_a_relative_path_is_refused_with_the_reason_that_was_raised(folder: Path, path: str) -> None:
    result = await Runner([ReadFileTool()]).run("read_file", {"file_path": path}, context_in(folder))
    assert result.status == "denied" and result.executed is False
    assert "the path must be absolute" in str(result.error)


@pytest.mark.parametrize("where", ["{0}-private/secret.txt", "{0}/../work-private/secret.txt"])
def test_a_folder_whose_name_only_starts_alike_is_outside(folder: Path, where: str) -> None:
    path = where.format(folder)
    tools = [ReadFileTool()]
    result = asyncio.run(Runner(tools).run("read_file", {"file_path": path}, context_in(folder)))
    assert result.status == "denied" and "secret" not in result.text.replace("secret.txt", "")
    guarded = Runner([build_tool({**definition(), "check_permissions": lambda payload, context: None})],
                     guards=[within(folder)])  # fmt: skip
    assert asyncio.run(guarded.run("search_code", {"pattern": "x", "path": path})).status == "denied"


async def test_a_link_out_of_the_folder_does_not_lead_out(folder: Path) -> None:
    (folder / "link").symlink_to(folder.parent / "work-private")
    arguments = {"file_path": str(folder / "link" / "secret.txt")}
    result = await Runner([ReadFileTool()]).run("read_file", arguments, context_in(folder))
    assert result.status == "denied"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        *((yes, None) for yes in (None, True, allow())),
        *((False, "Denied: not permitted."), (deny("not on Mondays"), "Denied: not on Mondays.")),
        (ask("really?"), "Denied: nobody is there to ask (really?)."),
        *((odd, "a check must return True, None or allow() to permit a call")
          for odd in ("no", 0, {}, {"behavior": "deny"})),
    ],
)  # fmt: skip
async def test_a_permission_check_says_yes_by_true_none_or_allow_and_no_by_all_else(
    folder: Path, answer: Any, said: str | None
) -> None:
    class Checked(ReadFileTool):
        async def check_permissions(self, payload: dict[str, Any], context: ToolContext) -> Any:
            return answer

    result = await Runner([Checked()]).run("read_file", {"file_path": str(folder / "test.py")})
    assert (result.status, result.executed) == (("ok", True) if said is None else ("denied", False))
    assert (said or "") in str(result.error)


async def test_what_a_permission_check_raises_denies_with_its_text(folder: Path) -> None:
    class Broken(ReadFileTool):
        async def check_permissions(self, payload: dict[str, Any], context: ToolContext) -> None:
            raise RuntimeError("no database")

    result = await Runner([Broken()]).run("read_file", {"file_path": str(folder / "test.py")})
    assert (result.status, result.error) == ("denied", "Denied: no database. Nothing was run.")


async def test_a_permission_check_cannot_change_what_runs(folder: Path) -> None:
    class Sly(ReadFileTool):
        async def check_permissions(self, payload: dict[str, Any], context: ToolContext) -> None:
            payload["file_path"] = "/etc/hostname"

    arguments = {"file_path": str(folder / "test.py"), "limit": 1}
    assert (await Runner([Sly()]).run("read_file", arguments)).output == "1\tone\n"


# The registry


def test_registering_gives_a_new_toolset_and_leaves_the_old_one() -> None:
    empty = Toolset()
    one = empty.register(ReadFileTool())
    assert (len(empty), len(one)) == (0, 1)
    assert one.get("read_file").name == "read_file"
    with pytest.raises(KeyError, match="read_fil"):
        one.get("read_fil")
    with pytest.raises(AttributeError):
        one.extra = 1  # type: ignore[attr-defined]


def test_a_second_tool_of_one_name_is_an_error_and_not_a_silent_replacement() -> None:
    with pytest.raises(DefinitionError, match="read_file"):
        Toolset().register(ReadFileTool()).register(ReadFileTool())


def test_one_toolset_gives_the_definitions_of_both_apis() -> None:
    tools = Toolset().register(ReadFileTool())
    (theirs,) = anthropic.tools(tools)
    (others,) = openai_responses.tools(tools)
    assert {"name", "description", "input_schema"} <= theirs.keys() and "parameters" not in theirs
    assert {"type", "name", "description", "parameters"} <= others.keys() and others["type"] == "function"
    assert theirs["input_schema"] == others["parameters"]
    TypeAdapter(ToolParam).validate_python(json.loads(json.dumps(theirs)))
    TypeAdapter(FunctionToolParam).validate_python(json.loads(json.dumps(others)))


async def test_the_loop_of_one_api_goes_from_its_reply_to_its_results(folder: Path) -> None:
    runner = Runner(Toolset().register(ReadFileTool()))
    reply = message(
        ("toolu_1", "read_file", {"file_path": str(folder / "test.py"), "limit": 1}),
        ("toolu_2", "read_file", {"file_path": "relative"}),
    )
    results = await runner.run_all(anthropic.calls(reply), context_in(folder))
    (answer,) = anthropic.results(results)
    assert [block["tool_use_id"] for block in answer["content"]] == ["toolu_1", "toolu_2"]
    assert "1\tone\n" in str(answer["content"][0]["content"][0]["text"])
    assert answer["content"][1]["is_error"] is True


async def test_the_loop_of_the_other_api_does_too(folder: Path) -> None:
    runner = Runner(Toolset().register(ReadFileTool()))
    reply = response(
        ("call_1", "read_file", {"file_path": str(folder / "test.py"), "limit": 1}),
        ("call_2", "unknown_tool", {}),
    )
    results = await runner.run_all(openai_responses.calls(reply), context_in(folder))
    answers = openai_responses.results(results)
    assert [(item["type"], item["call_id"]) for item in answers] == [
        ("function_call_output", "call_1"),
        ("function_call_output", "call_2"),
    ]
    assert answers[0]["output"] == "1\tone\n"
    assert "read_file" in answers[1]["output"]


# The factory


async def find(payload: dict[str, Any], context: ToolContext) -> str:
    return f"{payload['pattern']} in {payload.get('glob', '*')}"


def definition(**more: Any) -> dict[str, Any]:
    return {
        "name": "search_code",
        "description": "Search the files for a pattern.",
        "input_schema": {
            "type": "object",
            "properties": {"pattern": {"type": "string"}, "glob": {"type": "string"}, "path": {"type": "string"}},
            "required": ["pattern"],
        },
        "execute": find,
        **more,
    }


def no_objection(payload: dict[str, Any], context: ToolContext) -> None:
    return None


async def test_a_definition_becomes_a_tool_with_what_it_says() -> None:
    tool = build_tool(
        definition(
            is_read_only=lambda: True, is_concurrency_safe=staticmethod(lambda: True), check_permissions=no_objection
        )
    )
    assert isinstance(tool, Tool)
    assert tool.read_only is True and tool.parallel is True
    result = await Runner([tool]).run("search_code", {"pattern": "x"})
    assert (result.status, result.output) == ("ok", "x in *")


def test_flags_that_are_left_out_have_their_safest_value() -> None:
    tool = build_tool(definition())
    assert tool.read_only is False
    assert tool.parallel is False
    assert tool.destructive is True


def test_read_only_alone_does_not_let_it_run_beside_others() -> None:
    assert build_tool(definition(is_read_only=lambda: True)).parallel is False


def test_a_tool_without_a_permission_check_asks_and_does_not_run() -> None:
    ran: list[str] = []

    async def execute(payload: dict[str, Any], context: ToolContext) -> str:
        ran.append("x")
        return "ran"

    tool = build_tool(definition(execute=execute))
    call = ToolCall("c1", "search_code", {"pattern": "x"})
    assert asyncio.run(Runner([tool]).decide(call)).kind == "ask"
    assert asyncio.run(Runner([tool]).run(call)).status == "denied"
    assert ran == []
    assert asyncio.run(Runner([tool], approve=lambda call, decision, context: True).run(call)).output == "ran"


async def test_no_guard_in_the_definition_takes_the_asking_away() -> None:
    tool = build_tool(definition(guards=[lambda call, context: None]))
    call = ToolCall("c1", "search_code", {"pattern": "x"})
    assert (await Runner([tool]).decide(call)).kind == "ask"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"is_readonly": lambda: True}, "is_readonly"),
        ({"is_read_only": lambda: "yes"}, "is_read_only"),
        ({"is_concurrency_safe": 1}, "is_concurrency_safe"),
        ({"check_permissions": True}, "check_permissions"),
        ({"check_permissions": lambda: None}, "check_permissions"),
        ({"execute": "find"}, "execute"),
        ({"input_schema": {"type": "array"}}, "object"),
        ({"input_schema": {"type": "object", "properties": {"a": {"type": "nonsense"}}}}, "schema"),
    ],
)
def test_a_wrong_definition_is_refused_at_once(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        build_tool(definition(**wrong))


@pytest.mark.parametrize("key", ["name", "execute"])
def test_a_definition_without_its_essentials_is_refused(key: str) -> None:
    with pytest.raises(DefinitionError, match=key):
        build_tool({k: v for k, v in definition().items() if k != key})


async def test_a_schema_with_properties_and_no_word_on_others_is_closed_and_says_so() -> None:
    tool = build_tool(definition(check_permissions=no_objection))
    assert tool.input_schema["additionalProperties"] is False
    result = await Runner([tool]).run("search_code", {"pattern": "x", "patern": "y"})
    assert result.status == "invalid" and "'patern'" in str(result.error)


def test_what_becomes_of_the_definition_afterwards_does_not_reach_the_tool() -> None:
    given = definition(check_permissions=no_objection)
    tool = build_tool(given)
    given["input_schema"]["properties"]["added"] = {"type": "string"}
    given["execute"] = None
    assert "added" not in tool.input_schema["properties"]


async def test_a_guard_of_the_runner_still_counts() -> None:
    tool = build_tool(definition(check_permissions=no_objection))
    runner = Runner([tool], guards=[lambda call, context: ask("sure?")])
    assert (await runner.run("search_code", {"pattern": "x"})).status == "denied"


# The pool


def named(name: str, origin: str = "built in") -> Tool:
    async def run() -> str:
        return origin

    return Tool(name=name, handler=run, description=origin)


def test_the_pool_is_sorted_with_the_built_in_ones_first_whatever_the_order_they_came_in() -> None:
    pool = assemble_tool_pool([named("write"), named("bash")], [named("zoo", "mcp"), named("alpha", "mcp")], set())
    assert [tool.name for tool in pool] == ["bash", "write", "alpha", "zoo"]
    again = assemble_tool_pool([named("bash"), named("write")], [named("alpha", "mcp"), named("zoo", "mcp")], set())
    assert pool.fingerprint == again.fingerprint


def test_the_built_in_tool_wins_over_one_of_its_name() -> None:
    pool = assemble_tool_pool([named("bash")], [named("bash", "mcp"), named("other", "mcp")], set())
    assert [(tool.name, tool.description) for tool in pool] == [("bash", "built in"), ("other", "mcp")]


def test_what_is_denied_is_left_out_of_both() -> None:
    pool = assemble_tool_pool([named("bash"), named("read")], [named("mcp_bash", "mcp")], {"bash", "mcp_*"})
    assert [tool.name for tool in pool] == ["read"]


def test_a_denied_built_in_lets_the_one_of_its_name_in_no_more_than_itself() -> None:
    assert len(assemble_tool_pool([named("bash")], [named("bash", "mcp")], {"bash"})) == 0


def test_another_tool_does_not_change_the_order_of_those_before_it() -> None:
    before = [tool.name for tool in assemble_tool_pool([named("b"), named("a")], [named("m")], set())]
    after = [tool.name for tool in assemble_tool_pool([named("b"), named("a")], [named("m"), named("x")], set())]
    assert after[: len(before)] == before
