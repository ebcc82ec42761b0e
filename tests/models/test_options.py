"""What a model is made with: options of the request, and switches for models and servers that differ from the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from unittest.mock import AsyncMock

import openai as openai_sdk
import pytest
from google.genai import types
from tests.models.cases import BY_NAME, Case, converse, each, run, serving
from tests.models.servers.ollama import Ollama
from tests.models.servers.openai_chat import OpenAIChat
from tests.models.servers.serving import Api, Asked, Request, Turn, refuse_unless, served

from cast import Person, ask_always
from ferrule import Runner, ToolCall, ToolResult, deny, models, tool
from ferrule import ask as ask_a_person
from ferrule.errors import DefinitionError
from ferrule.loop import resume
from ferrule.loop import run as loop

pytestmark = pytest.mark.slow
STREAMED = pytest.mark.parametrize("stream", [True, False])
NOWHERE = "http://127.0.0.1:9"
# One letter is missing.
MISSPELT = {
    "anthropic": ("stop_sequence", "stop_sequences"),
    "openai": ("instruction", "instructions"),
    "compatible": ("max_completion_token", "max_completion_tokens"),
    "gemini": ("system_instructio", "system_instruction"),
    "vertex": ("systemInstructio", "systemInstruction"),
    "bedrock": ("inferenceConfi", "inferenceConfig"),
    "mistral": ("random_see", "random_seed"),
    "cohere": ("temperatur", "temperature"),
    "ollama": ("option", "options"),
}
ITS_PLACE = "make the SDK's client with it and give that as client="


@each(*MISSPELT)
def test_an_option_that_the_sdk_does_not_take_is_refused(case: Case) -> None:
    wrong, right = MISSPELT[case.name]
    with pytest.raises(DefinitionError, match=f"no option '{wrong}'; did you mean '{right}'"):
        case.model("model-1", base_url=NOWHERE, **{wrong: 1})
    with pytest.raises(DefinitionError, match=f"has no option 'api_key'.*{ITS_PLACE}"):
        case.model("model-1", base_url=NOWHERE, api_key="dummy")


# A choice among tools

OWN_SEARCH = {"type": "web_search_20250305", "name": "web_search"}
OWN_FUNCTION = {"type": "function", "function": {"name": "own", "parameters": {"type": "object", "properties": {}}}}
NAMED = {"type": "function", "function": {"name": "weigh"}}
AT = {"latLng": {"latitude": 1.5, "longitude": 2.5}}
MODES: dict[str, Any] = {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["weigh"]}}
NONE = {"tool_choice": {"type": "none"}}
NOT_PARALLEL = {"parallel_tool_calls": False}
# Tools of the request's own beside a choice, and what is left of that choice if ours are offered no more.
BESIDE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("anthropic", {"tools": [OWN_SEARCH], "tool_choice": {"type": "tool", "name": "weigh"}}, {}),
    ("anthropic", {"tools": [OWN_SEARCH], **NONE}, NONE),
    ("openai", {"tools": [{"type": "web_search"}], "tool_choice": {"type": "function", "name": "weigh"}}, {}),
    ("openai", {"tools": [{"type": "web_search"}], **NOT_PARALLEL, "tool_choice": "required"}, NOT_PARALLEL),
    ("openai", {"tools": [{"type": "web_search"}], "tool_choice": "auto"}, {"tool_choice": "auto"}),
    ("compatible", {"tools": [OWN_FUNCTION], "tool_choice": NAMED}, {}),
    ("gemini", {"tools": [{"google_search": {}}], "tool_config": {**MODES, "retrievalConfig": AT}}, {}),
    ("vertex", {"tools": [{"google_search": {}}], "toolConfig": MODES}, {}),
    ("mistral", {"tools": [OWN_FUNCTION], "tool_choice": NAMED}, {}),
    ("cohere", {"tools": [OWN_FUNCTION], "tool_choice": "REQUIRED"}, {}),
]


def name_of(value: Any) -> str:
    return value if isinstance(value, str) else str(value)[-40:]


@pytest.mark.parametrize(("case", "given", "left"), BESIDE, ids=name_of)
async def test_an_answer_without_our_tools_is_asked_for_without_force(
    case: str, given: dict[str, Any], left: dict[str, Any]
) -> None:
    with serving(BY_NAME[case]) as (api, address):
        result = await converse(BY_NAME[case], address, on_failure="degrade", **given)
    assert (api.refusals, result.status, result.text) == ([], "degraded", "It weighs 12 oz.")
    first, last = (request.body for request in api.requests)
    assert len(first["tools"]) > len(last["tools"]) == 1
    said = {"tool_choice", "parallel_tool_calls"}
    assert {key: last[key] for key in said & last.keys()} == left
    assert "functionCallingConfig" not in str(last)
    assert "functionCallingConfig" in str(first) or said & first.keys()
    assert ("retrievalConfig" in str(given)) is ("latitude" in str(last))


CHOICES: dict[str, dict[str, Any]] = {
    "anthropic": {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    "openai": {"tool_choice": "required", "parallel_tool_calls": False},
    "cohere": {"tool_choice": "REQUIRED", "strict_tools": True},
}


@each(*CHOICES)
async def test_an_answer_without_tools_is_asked_for_without_a_choice(case: Case) -> None:
    with serving(case) as (api, address):
        result = await converse(case, address, on_failure="degrade", **CHOICES[case.name])
    assert (api.refusals, result.status, result.text) == ([], "degraded", "It weighs 12 oz.")
    first, last = (request.body for request in api.requests)
    assert CHOICES[case.name].keys() <= first.keys()
    assert last.get("tools") or not {"tool_choice", "parallel_tool_calls", "strict_tools"} & last.keys()


ONE = {"disable_parallel_tool_use": True}
ALLOWED = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weigh"}]}
SDK_MODE = types.ToolConfig(function_calling_config=types.FunctionCallingConfig(mode="ANY"))


def allowed_in_chat(mode: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [NAMED]}}


# A choice that forces a call, and what is left of it from the second turn on.
FORCED: list[tuple[str, dict[str, Any], Any]] = [
    ("anthropic", {"tool_choice": {"type": "any"}}, None),
    ("anthropic", {"tool_choice": {"type": "tool", "name": "weigh", **ONE}}, {"type": "auto", **ONE}),
    ("openai", {"tool_choice": "required"}, None),
    ("openai", {"tool_choice": ALLOWED}, {**ALLOWED, "mode": "auto"}),
    ("compatible", {"tool_choice": allowed_in_chat("required")}, allowed_in_chat("auto")),
    ("gemini", {"tool_config": {"function_calling_config": {"mode": "any"}}}, {"mode": "AUTO"}),
    ("gemini", {"tool_config": SDK_MODE}, {"mode": "AUTO"}),
    ("vertex", {"toolConfig": MODES}, {"mode": "VALIDATED", "allowed_function_names": ["weigh"]}),
    ("bedrock", {"toolConfig": {"toolChoice": {"any": {}}}}, None),
    ("mistral", {"tool_choice": "any"}, None),
    ("cohere", {"tool_choice": "REQUIRED"}, None),
    # A choice that forces nothing stays as it is.
    ("anthropic", NONE, {"type": "none"}),
    ("openai", {"tool_choice": "auto"}, "auto"),
    ("bedrock", {"toolConfig": {"toolChoice": {"auto": {}}}}, {"auto": {}}),
    ("vertex", {"toolConfig": {"functionCallingConfig": {"mode": "NONE"}}}, {"mode": "NONE"}),
]


@pytest.mark.parametrize(("case", "given", "left"), FORCED, ids=name_of)
async def test_a_choice_that_forces_a_call_holds_for_the_first_turn(
    case: str, given: dict[str, Any], left: Any
) -> None:
    def choice(body: Mapping[str, Any]) -> Any:
        config = body.get("toolConfig", {})
        return body.get("tool_choice") or config.get("toolChoice") or config.get("functionCallingConfig")

    with serving(BY_NAME[case]) as (api, address):
        result = await converse(BY_NAME[case], address, **given)
    assert (api.refusals, result.status) == ([], "done")
    first, last = (request.body for request in api.requests)
    assert choice(first) and choice(last) == left
    assert first.get("tools") == last.get("tools")


@tool(read_only=True)
async def weigh(item: str) -> str:
    """Weigh an item."""
    return f"{item}: 12 oz"


WEIGHING = Turn("", [Asked("call_1", "weigh", {"item": "a"})])


def chat_model(address: str, **given: Any) -> Any:
    return models.OpenAI("model-1", base_url=f"{address}/v1", api="chat", **given)


async def test_a_resumed_run_is_not_forced() -> None:
    def runner_with(person: Person) -> Runner:
        return Runner([weigh], guards=[ask_always], approve=person, resume_key=b"k" * 32)

    api = OpenAIChat([WEIGHING, Turn("12 oz.")])
    with served(api) as address:
        async with chat_model(address, tool_choice="required") as model:
            waiting = await loop(model, model.user("How heavy?"), runner_with(Person(ask_a_person("not now"))))
            result = await resume(waiting.suspended, {"call_1": True}, model, runner_with(Person(deny("no"))))
    assert result.status == "done"
    assert [request.body.get("tool_choice") for request in api.requests] == ["required", None]


# Calls in a text

HERMES = 'I will weigh it.\n<tool_call>\n{"name": "weigh", "arguments": {"item": "a"}}\n</tool_call>'
FENCED = 'I call:\n```json\n{"name": "weigh", "arguments": {"item": "a"}}\n```'


def ollama_model(address: str, **given: Any) -> Any:
    return models.Ollama("model-1", base_url=address, **given)


SERVERS = pytest.mark.parametrize(("server", "make"), [(OpenAIChat, chat_model), (Ollama, ollama_model)])


@STREAMED
@pytest.mark.parametrize("text", [HERMES, FENCED])
@SERVERS
async def test_calls_in_a_text_run_with_text_calls(server: type[Api], make: Any, text: str, stream: bool) -> None:
    api = server([Turn(text), Turn("12 oz.")])
    with served(api) as address:
        async with make(address, stream=stream, text_calls=True) as model:
            result = await run(model, [weigh])
    assert (api.refusals, result.status, result.text) == ([], "done", "12 oz.")
    assert [one.output for one in result.results] == ["a: 12 oz"]
    sent = api.requests[1].body["messages"]
    assert "<tool_call>" not in str(sent) and "a: 12 oz" in str(sent[-1])


@STREAMED
@SERVERS
async def test_calls_in_a_text_are_malformed_without_text_calls(server: type[Api], make: Any, stream: bool) -> None:
    with served(server([Turn(HERMES)] * 3)) as address:
        async with make(address, stream=stream) as model:
            result = await run(model, [weigh])
    assert (result.status, result.results, result.turns) == ("failed", [], 3)
    assert result.reason is not None and "call" in result.reason


@pytest.mark.parametrize("given", [{"text_calls": True}, {"send_reasoning": False}])
def test_switches_of_chat_completions_are_refused_with_responses(given: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match="api='chat'"):
        models.OpenAI("model-1", **given)


# Servers that differ


class Reasoning(OpenAIChat):
    """Gives its reasoning; takes it back, or not."""

    takes = True

    def check(self, request: Request) -> None:
        for message in request.body["messages"]:
            keys = [key for key in ("reasoning_content", "reasoning", "reasoning_details") if key in message]
            given = [message.pop(key) for key in keys]
            if message["role"] == "assistant":
                refuse_unless(self.takes == bool(given), "property 'reasoning_content' is unsupported or missing")
        super().check(request)

    def whole(self, turn: Turn, number: int) -> dict[str, Any]:
        found = super().whole(turn, number)
        found["choices"][0]["message"] |= {"reasoning_content": "I wonder.", "reasoning_details": [{"text": "I"}]}
        return found

    def stream(self, turn: Turn, number: int) -> tuple[list[bytes], list[bytes]]:
        body, end = super().stream(turn, number)
        first = json.loads(body[0].removeprefix(b"data: "))
        first["choices"][0]["delta"] |= {"reasoning_content": "I wonder.", "reasoning_details": [{"text": "I"}]}
        return [f"data: {json.dumps(first)}\n\n".encode(), *body[1:]], end


@STREAMED
@pytest.mark.parametrize("takes", [True, False])
async def test_reasoning_goes_back_to_servers_that_want_it(takes: bool, stream: bool) -> None:
    api = Reasoning([WEIGHING, Turn("12 oz.")])
    api.takes = takes
    with served(api) as address:
        async with chat_model(address, stream=stream, send_reasoning=takes) as model:
            result = await run(model, [weigh])
    assert (api.refusals, result.status) == ([], "done")
    assert result.messages[1]["reasoning_content"] == "I wonder."


@pytest.mark.parametrize("address", ["https://api.openai.com/v1", "https://mine.openai.azure.com/openai/v1"])
async def test_a_description_that_chat_refuses_is_an_error_before_it_is_sent(address: str) -> None:
    @tool(description="x" * 1_025)
    async def long() -> str:
        """Nothing."""
        return ""

    client = openai_sdk.AsyncOpenAI(api_key="k", base_url=address)
    client.chat.completions._post = AsyncMock(side_effect=AssertionError("it was sent"))  # type: ignore[method-assign]
    model = models.OpenAI("a-model", client=client, api="chat")
    with pytest.raises(DefinitionError, match=r"'long' has a description of 1,025 characters"):
        await run(model, [long])


def test_a_bedrock_result_can_be_sent_without_a_status() -> None:
    failed = ToolResult(error="no", status="failed", call=ToolCall("call_1", "weigh"))
    for options, is_said in (({}, True), ({"result_status": False}, False)):
        model = models.Bedrock("model-1", base_url=NOWHERE, **options)
        assert ("'status'" in str(model.results([failed]))) is is_said
