"""Tools that the code of an API calls: their marks in a request, and the calls that come from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from anthropic.types import CodeExecutionTool20260120Param, Message, ToolParam
from apis import ALL
from openai.types.responses import FunctionToolParam
from openai.types.responses import Response as OpenAIResponse
from openai.types.responses import ToolParam as OpenAIToolParam
from pydantic import TypeAdapter

from ferrule import Decision, Runner, ToolCall, ToolContext, Toolset, deny, tool
from ferrule.providers import anthropic, openai_responses


@tool(read_only=True)
async def stock(article: str) -> dict[str, int]:
    """Return how many there are."""
    return {article: 3}


@tool(provider={"anthropic": {"eager_input_streaming": True}})
async def order(article: str) -> str:
    return f"ordered {article}"


TOOLS = Toolset([stock, order])

ASKED: list[Any] = [("call_1", "stock", {"article": "tea"}), ("call_2", "order", {"article": "tea"})]


def from_claude() -> Any:
    """A response whose code calls `stock`; `order` is called by the model itself."""
    response = ALL["anthropic"].write("", ASKED, "calls")
    container = {"id": "container_1", "expires_at": "2026-12-01T00:00:00Z", "skills": None}
    code = {"type": "server_tool_use", "id": "srv_1", "name": "code_execution", "input": {"code": "await stock('tea')"}}
    response["content"][0]["caller"] = {"type": "code_execution_20260120", "tool_id": "srv_1"}
    response["content"][1]["caller"] = {"type": "direct"}
    return response | {"container": container, "content": [code, *response["content"]]}


def from_openai() -> Any:
    """The same of Responses."""
    response = ALL["openai_responses"].write("", ASKED, "calls")
    program = {"type": "program", "id": "prog_1", "call_id": "pc_1", "code": "stock()", "fingerprint": "f"}
    response["output"][0]["caller"] = {"type": "program", "caller_id": "pc_1"}
    response["output"][1]["caller"] = {"type": "direct"}
    return response | {"output": [program, *response["output"]]}


CLAUDE, OPENAI = from_claude(), from_openai()


def marked(definitions: Any) -> Iterator[Any]:
    return (one.get("allowed_callers") for one in definitions)


def test_the_chosen_tools_are_marked_for_anthropic() -> None:
    definitions = anthropic.tools(anthropic.callable_from_code(TOOLS, "stock"))
    assert list(marked(definitions)) == [["code_execution_20260120"], None]
    every = anthropic.tools(anthropic.callable_from_code(TOOLS, directly=True))
    assert list(marked(every)) == [["code_execution_20260120", "direct"]] * 2
    assert every[1]["eager_input_streaming"]  # what the tool had for this API stays
    for definition in every:
        TypeAdapter(ToolParam).validate_python(definition)
    TypeAdapter(CodeExecutionTool20260120Param).validate_python(anthropic.CODE_EXECUTION)


def test_the_chosen_tools_are_marked_for_openai() -> None:
    definitions = openai_responses.tools(openai_responses.callable_from_code(TOOLS))
    assert list(marked(definitions)) == [["programmatic"]] * 2
    assert definitions[0].get("output_schema") == stock.output_schema
    assert "output_schema" not in definitions[1]  # its text is no JSON
    for definition in definitions:
        TypeAdapter(FunctionToolParam).validate_python(definition)
    TypeAdapter(OpenAIToolParam).validate_python(openai_responses.CODE_EXECUTION)


@pytest.mark.parametrize(
    ("provider", "response", "sdk", "code"),
    [(anthropic, CLAUDE, Message, "srv_1"), (openai_responses, OPENAI, OpenAIResponse, "pc_1")],
)
async def test_a_call_from_code_says_which(provider: Any, response: Any, sdk: Any, code: str) -> None:
    def allowed(call: ToolCall, context: ToolContext) -> Decision | None:
        caller: Any = call.data
        return deny("not from code") if code in caller["caller"].values() else None

    for read in (response, sdk.model_validate(response)):
        results = await Runner(TOOLS, guards=[allowed]).run_all(provider.calls(read))
        assert [result.status for result in results] == ["denied", "ok"]


def test_the_answer_says_which_code_it_is_for() -> None:
    runner = Runner(TOOLS)
    (first, _) = [runner.run_sync(call) for call in openai_responses.calls(OPENAI)]
    (item,) = openai_responses.results([first])
    assert item["caller"] == {"type": "program", "caller_id": "pc_1"}  # type: ignore[typeddict-item]
    assert openai_responses.turn(OPENAI)[0]["fingerprint"] == "f"  # type: ignore[typeddict-item]
    assert anthropic.state(CLAUDE) == {"container": "container_1"}
