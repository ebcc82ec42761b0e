"""What a model is made with: options of the request, and switches for models and servers that differ from the rest."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import wraps
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import openai as openai_sdk
import pytest
from google.genai import types
from tests.models.cases import CASES, Case, serving, told
from tests.models.servers.bedrock import Bedrock
from tests.models.servers.ollama import Ollama
from tests.models.servers.openai_chat import OpenAIChat
from tests.models.servers.serving import BOUND, Api, Asked, Request, Turn, refuse_unless, served

from ferrule import Decision, Runner, ToolCall, ToolContext, Toolset, ask, models, tool
from ferrule.errors import DefinitionError
from ferrule.loop import LoopResult, resume
from ferrule.loop import run as loop
from ferrule.models import Reply

pytestmark = pytest.mark.slow
STREAMED = pytest.mark.parametrize("stream", [True, False])
OURS = [case for case in CASES if case.name != "interactions"]
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
# What each SDK has beside the API's own fields, or takes in a form of its own.
PASSED_ON: dict[str, dict[str, Any]] = {
    "anthropic": {"extra_headers": {"x-mark": "here"}, "extra_body": {"metadata": {"user_id": "0.25"}}},
    "openai": {"extra_headers": {"x-mark": "here"}, "extra_body": {"temperature": 0.25}},
    "compatible": {"extra_headers": {"x-mark": "here"}, "extra_body": {"temperature": 0.25}},
    "gemini": {"http_options": {"headers": {"x-mark": "here"}}, "temperature": 0.25},
    "vertex": {"httpOptions": {"headers": {"x-mark": "here"}}, "temperature": 0.25},
    "mistral": {"http_headers": {"x-mark": "here"}, "temperature": 0.25},
    "cohere": {"request_options": {"additional_headers": {"x-mark": "here"}}, "temperature": 0.25},
}
CHOICES: dict[str, dict[str, Any]] = {
    "anthropic": {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    "openai": {"tool_choice": "required", "parallel_tool_calls": False},
    "compatible": {"tool_choice": "required", "parallel_tool_calls": False},
    "gemini": {"tool_config": {"function_calling_config": {"mode": "ANY"}}},
    "vertex": {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}},
    "bedrock": {"toolConfig": {"toolChoice": {"any": {}}}},
    "mistral": {"tool_choice": "any", "parallel_tool_calls": False},
    "cohere": {"tool_choice": "REQUIRED", "strict_tools": True},
}


@pytest.fixture(autouse=True)
def credentials(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    case: Case | None = getattr(request.node, "callspec", None) and request.node.callspec.params.get("case")
    named = dict.fromkeys(("ANTHROPIC_API_KEY", "OPENAI_API_KEY"), "dummy") if case is None else case.environment
    for name, value in {"NO_PROXY": "127.0.0.1", **named}.items():
        monkeypatch.setenv(name, value)


def cases(names: Mapping[str, Any]) -> Any:
    return pytest.mark.parametrize("case", [one for one in OURS if one.name in names], ids=lambda case: case.name)


@cases(MISSPELT)
def test_an_option_that_the_sdk_does_not_take_is_refused_when_the_model_is_made_with_the_nearest_name(
    case: Case,
) -> None:
    wrong, right = MISSPELT[case.name]
    with pytest.raises(DefinitionError, match=f"no option '{wrong}'; did you mean '{right}'"):
        case.model("model-1", base_url="http://127.0.0.1:9", **{wrong: 1})


ITS_PLACE = "make the SDK's client with it and give that as client="


@cases(MISSPELT)
def test_a_key_as_an_option_is_refused_with_the_client_as_its_place(case: Case) -> None:
    with pytest.raises(DefinitionError, match=f"has no option 'api_key'.*{ITS_PLACE}"):
        case.model("model-1", base_url="http://127.0.0.1:9", api_key="dummy")


def test_a_missing_key_is_told_with_the_client_as_another_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    with pytest.raises(DefinitionError, match=rf"set ANTHROPIC_API_KEY\n.*{ITS_PLACE}"):
        models.Anthropic("model-1", api_key="dummy")


@cases(PASSED_ON)
@STREAMED
async def test_headers_and_fields_that_the_sdk_takes_beside_the_request_reach_the_api(case: Case, stream: bool) -> None:
    async def main(address: str) -> Reply:
        async with case.model("model-1", base_url=address, stream=stream, **PASSED_ON[case.name]) as model:
            return await asyncio.wait_for(model(model.user("Hi."), Toolset([])), BOUND)

    with serving(case, [Turn("Hello.")]) as (api, address):
        assert (await main(address)).text == "Hello."
    assert api.requests[0].headers["x-mark"] == "here"
    assert "0.25" in str(api.requests[0].body)


DOUBLES = [
    (make, double)
    for make in (models.Anthropic, models.OpenAI, models.Cohere, models.Mistral, models.Ollama)
    for double in (MagicMock, AsyncMock)
]


@pytest.mark.parametrize(("make", "double"), [*DOUBLES, (models.Bedrock, MagicMock)])
def test_the_options_of_a_client_that_does_not_say_what_it_takes_are_not_checked(make: Any, double: Any) -> None:
    make("model-1", client=double(), frobnicate=True)


def test_the_options_of_a_function_that_has_no_signature_to_read_are_not_checked() -> None:
    client = openai_sdk.AsyncOpenAI()
    completions: Any = client.chat.completions
    completions.create = vars
    models.OpenAI("model-1", client=client, api="chat", frobnicate=True)


def test_the_options_of_a_function_that_is_wrapped_as_instruments_do_it_are_checked() -> None:
    client = openai_sdk.AsyncOpenAI()
    completions: Any = client.chat.completions
    completions.create = wraps(completions.create)(lambda **given: None)
    with pytest.raises(DefinitionError, match="no option 'temperatur'"):
        models.OpenAI("model-1", client=client, api="chat", temperatur=0.5)


class Choosing:
    """Refuses a choice among no tools, as the APIs do."""

    def check(self, request: Request) -> None:
        super().check(request)
        body = request.body
        config = body.get("toolConfig", {})
        offered = body.get("tools") or config.get("tools")
        choices = {"parallel_tool_calls", "strict_tools"} & body.keys()
        choices |= {"tool_choice"} if body.get("tool_choice", {"type": "none"}) != {"type": "none"} else set()
        choices |= {"toolChoice", "functionCallingConfig"} & config.keys()
        refuse_unless(offered or not choices, f"{choices} is only allowed when tools are specified")


@cases(CHOICES)
@STREAMED
async def test_an_answer_without_tools_is_asked_for_without_a_choice_among_them(case: Case, stream: bool) -> None:
    async def main(address: str) -> LoopResult:
        async with case.model("model-1", base_url=address, stream=stream, **CHOICES[case.name]) as model:
            return await told(model, [], on_failure="degrade")

    class Server(Choosing, case.api):
        pass

    api = Server([*_conversation(case), Turn("It weighs 12 oz.")])
    with served(api) as address:
        result = await main(address + case.home)
    assert api.refusals == []
    assert (result.status, result.text) == ("degraded", "It weighs 12 oz.")
    first = api.requests[0].body
    wanted = CHOICES[case.name]
    assert "functionCallingConfig" in str(first) if case.name in {"gemini", "vertex"} else _is_in(wanted, first)


OWN_SEARCH = {"type": "web_search_20250305", "name": "web_search"}
OWN_FUNCTION = {"type": "function", "function": {"name": "own", "parameters": {"type": "object", "properties": {}}}}
NAMED = {"type": "function", "function": {"name": "weigh"}}
AT = {"latLng": {"latitude": 1.5, "longitude": 2.5}}
MODES: dict[str, Any] = {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["weigh"]}}
# Tools of the request's own beside a choice, and what is left of that choice where ours are offered no more.
BESIDE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("anthropic", {"tools": [OWN_SEARCH], "tool_choice": {"type": "tool", "name": "weigh"}}, {}),
    ("anthropic", {"tools": [OWN_SEARCH], "tool_choice": {"type": "any"}}, {}),
    ("anthropic", {"tools": [OWN_SEARCH], "tool_choice": {"type": "none"}}, {"tool_choice": {"type": "none"}}),
    ("openai", {"tools": [{"type": "web_search"}], "tool_choice": {"type": "function", "name": "weigh"}}, {}),
    (
        "openai",
        {"tools": [{"type": "web_search"}], "tool_choice": "required", "parallel_tool_calls": False},
        {"parallel_tool_calls": False},
    ),
    ("openai", {"tools": [{"type": "web_search"}], "tool_choice": "auto"}, {"tool_choice": "auto"}),
    ("compatible", {"tools": [OWN_FUNCTION], "tool_choice": NAMED}, {}),
    ("gemini", {"tools": [{"google_search": {}}], "tool_config": {**MODES, "retrievalConfig": AT}}, {}),
    ("vertex", {"tools": [{"google_search": {}}], "toolConfig": MODES}, {}),
    ("mistral", {"tools": [OWN_FUNCTION], "tool_choice": NAMED}, {}),
    ("mistral", {"tools": [OWN_FUNCTION], "tool_choice": "none"}, {"tool_choice": "none"}),
    ("cohere", {"tools": [OWN_FUNCTION], "tool_choice": "REQUIRED"}, {}),
]
BY_NAME = {case.name: case for case in CASES}


@pytest.mark.parametrize(
    ("case", "given", "left"),
    [(BY_NAME[name], given, left) for name, given, left in BESIDE],
    ids=[f"{name} {next(reversed(given.values()))}"[:40] for name, given, _ in BESIDE],
)
def test_an_answer_without_our_tools_is_asked_for_without_a_choice_that_forces_a_call(
    case: Case, given: dict[str, Any], left: dict[str, Any]
) -> None:
    async def main(address: str) -> LoopResult:
        async with case.model("model-1", base_url=address, **given) as model:
            return await told(model, [], on_failure="degrade")

    with serving(case, [*_conversation(case), Turn("It weighs 12 oz.")]) as (api, address):
        result = asyncio.run(main(address))
    assert (api.refusals, result.status, result.text) == ([], "degraded", "It weighs 12 oz.")
    first, last = (request.body for request in api.requests)
    assert len(first["tools"]) > len(last["tools"]) == 1
    said = {"tool_choice", "parallel_tool_calls"}
    assert {key: last[key] for key in said & last.keys()} == left
    assert "functionCallingConfig" not in str(last)
    assert ("functionCallingConfig" in str(first)) or said & first.keys()
    assert ("retrievalConfig" in str(given)) is ("latitude" in str(last))


ALLOWED = {"mode": "required", "tools": [{"type": "function", "name": "weigh"}]}
ALLOWED_IN_CHAT = {"mode": "required", "tools": [NAMED]}
SDK_MODE = types.ToolConfig(function_calling_config=types.FunctionCallingConfig(mode="ANY"))
# A choice that forces a call, and what is left of it from the second turn on.
FORCED: list[tuple[str, dict[str, Any], Any]] = [
    ("anthropic", {"tool_choice": {"type": "any"}}, None),
    (
        "anthropic",
        {"tool_choice": {"type": "tool", "name": "weigh", "disable_parallel_tool_use": True}},
        {"type": "auto", "disable_parallel_tool_use": True},
    ),
    ("openai", {"tool_choice": "required"}, None),
    ("openai", {"tool_choice": {"type": "function", "name": "weigh"}}, None),
    (
        "openai",
        {"tool_choice": {"type": "allowed_tools", **ALLOWED}},
        {"type": "allowed_tools", **ALLOWED, "mode": "auto"},
    ),
    ("compatible", {"tool_choice": "required"}, None),
    ("compatible", {"tool_choice": NAMED}, None),
    (
        "compatible",
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": ALLOWED_IN_CHAT}},
        {"type": "allowed_tools", "allowed_tools": {**ALLOWED_IN_CHAT, "mode": "auto"}},
    ),
    ("gemini", {"tool_config": {"function_calling_config": {"mode": "any"}}}, {"mode": "AUTO"}),
    ("gemini", {"tool_config": SDK_MODE}, {"mode": "AUTO"}),
    ("vertex", {"toolConfig": MODES}, {"mode": "VALIDATED", "allowed_function_names": ["weigh"]}),
    ("bedrock", {"toolConfig": {"toolChoice": {"any": {}}}}, None),
    ("bedrock", {"toolConfig": {"toolChoice": {"tool": {"name": "weigh"}}}}, None),
    ("mistral", {"tool_choice": "any"}, None),
    ("mistral", {"tool_choice": NAMED}, None),
    ("cohere", {"tool_choice": "REQUIRED"}, None),
    # What forces nothing stays as it is.
    ("anthropic", {"tool_choice": {"type": "none"}}, {"type": "none"}),
    ("openai", {"tool_choice": "auto"}, "auto"),
    ("bedrock", {"toolConfig": {"toolChoice": {"auto": {}}}}, {"auto": {}}),
    ("vertex", {"toolConfig": {"functionCallingConfig": {"mode": "NONE"}}}, {"mode": "NONE"}),
]


def choice_in(body: Mapping[str, Any]) -> Any:
    config = body.get("toolConfig", {})
    return body.get("tool_choice") or config.get("toolChoice") or config.get("functionCallingConfig")


@pytest.mark.parametrize(
    ("case", "given", "left"),
    [(BY_NAME[name], given, left) for name, given, left in FORCED],
    ids=[f"{name} {next(reversed(given.values()))}"[:50] for name, given, _ in FORCED],
)
def test_a_choice_that_forces_a_call_holds_for_the_first_turn(case: Case, given: dict[str, Any], left: Any) -> None:
    async def main(address: str) -> LoopResult:
        async with case.model("model-1", base_url=address, **given) as model:
            return await told(model, [])

    with serving(case) as (api, address):
        result = asyncio.run(main(address))
    assert (api.refusals, result.status) == ([], "done")
    first, last = (request.body for request in api.requests)
    assert choice_in(first) and choice_in(last) == left
    assert first.get("tools") == last.get("tools")


async def test_a_resumed_run_is_not_forced() -> None:
    def asks(call: ToolCall, context: ToolContext) -> Decision:
        return ask("really?")

    async def main(address: str) -> LoopResult:
        async with chat_model(address, tool_choice="required") as model:
            waiting = await loop(model, model.user("How heavy?"), runner_that(ask("not now")))
            return await resume(waiting.suspended, {"call_1": True}, model, runner_that(True))

    def runner_that(answer: Any) -> Runner:
        return Runner([weigh], guards=[asks], approve=lambda *given: answer, resume_key=b"k" * 32)

    turns = [Turn("", [Asked("call_1", "weigh", {"item": "a"})]), Turn("12 oz.")]
    api = OpenAIChat(turns)
    with served(api) as address:
        result = await main(address)
    assert result.status == "done"
    assert [request.body.get("tool_choice") for request in api.requests] == ["required", None]


def _conversation(case: Case) -> list[Turn]:
    weigh = Asked(case.ids[0], "weigh", {"item": "a", "scale": {"unit": "g"}})
    return [Turn("", [weigh, Asked(case.ids[1], "look", {"path": "b"})])]


def _is_in(wanted: Mapping[str, Any], body: Mapping[str, Any]) -> bool:
    return all(
        _is_in(value, body[key]) if isinstance(value, dict) else body[key] == value for key, value in wanted.items()
    )


@tool(read_only=True)
async def weigh(item: str) -> str:
    """Weigh an item."""
    return f"{item}: 12 oz"


@tool(read_only=True)
async def look(path: str) -> str:
    """Look at a file."""
    raise LookupError(f"there is no {path!r}")


def go(model: Any, **limits: Any) -> LoopResult:
    async def main() -> LoopResult:
        async with model, Runner([weigh, look]) as runner, asyncio.timeout(BOUND):
            return await loop(model, model.user("How heavy?"), runner, **limits)

    return asyncio.run(main())


HERMES = 'I will weigh it.\n<tool_call>\n{"name": "weigh", "arguments": {"item": "a"}}\n</tool_call>'
QWEN = "<function=weigh>\n<parameter=item>\na\n</parameter>\n</function>"
FENCED = 'I call:\n```json\n{"name": "weigh", "arguments": {"item": "a"}}\n```'


def chat_model(address: str, **given: Any) -> Any:
    return models.OpenAI("model-1", base_url=f"{address}/v1", api="chat", **given)


def ollama_model(address: str, **given: Any) -> Any:
    return models.Ollama("model-1", base_url=address, **given)


@STREAMED
@pytest.mark.parametrize("text", [HERMES, QWEN, FENCED])
@pytest.mark.parametrize(("server", "make"), [(OpenAIChat, chat_model), (Ollama, ollama_model)])
def test_calls_in_a_text_are_run_where_the_model_was_made_with_text_calls(
    server: type[Api], make: Any, text: str, stream: bool
) -> None:
    api = server([Turn(text), Turn("12 oz.")])
    with served(api) as address:
        result = go(make(address, stream=stream, text_calls=True))
    assert (api.refusals, result.status, result.text) == ([], "done", "12 oz.")
    assert [one.output for one in result.results] == ["a: 12 oz"]
    sent = api.requests[1].body["messages"]
    assert "<tool_call>" not in str(sent) and "<function=" not in str(sent)
    assert "a: 12 oz" in str(sent[-1])


@STREAMED
@pytest.mark.parametrize("text", [HERMES, FENCED])
@pytest.mark.parametrize(("server", "make"), [(OpenAIChat, chat_model), (Ollama, ollama_model)])
def test_without_text_calls_such_a_turn_is_malformed_and_nothing_runs(
    server: type[Api], make: Any, text: str, stream: bool
) -> None:
    api = server([Turn(text)] * 3)
    with served(api) as address:
        result = go(make(address, stream=stream))
    assert (result.status, result.results, result.turns) == ("failed", [], 3)
    assert result.reason is not None and "call" in result.reason


@STREAMED
async def test_what_the_api_said_is_in_raw_though_calls_were_read_from_it(stream: bool) -> None:
    async def main(address: str) -> Reply:
        async with chat_model(address, stream=stream, text_calls=True) as model:
            return await asyncio.wait_for(model(model.user("Hi."), Toolset([weigh])), BOUND)

    with served(OpenAIChat([Turn(HERMES)])) as address:
        reply = await main(address)
    assert reply.raw["choices"][0]["message"]["content"] == HERMES
    assert (reply.text, [call.name for call in reply.calls]) == ("I will weigh it.", ["weigh"])


@pytest.mark.parametrize("given", [{"text_calls": True}, {"send_reasoning": False}])
def test_switches_of_chat_completions_are_refused_with_responses(given: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match="api='chat'"):
        models.OpenAI("model-1", **given)


class Reasoning(OpenAIChat):
    """Gives its reasoning; takes it back, or not."""

    takes = True

    def check(self, request: Request) -> None:
        for message in request.body["messages"]:
            given = [
                message.pop(key) for key in ("reasoning_content", "reasoning", "reasoning_details") if key in message
            ]
            ours = message["role"] == "assistant"
            refuse_unless(
                not ours or self.takes == bool(given), "property 'reasoning_content' is unsupported or missing"
            )
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
def test_reasoning_goes_back_to_servers_that_want_it_and_not_to_those_that_refuse_it(takes: bool, stream: bool) -> None:
    api = Reasoning([Turn("", [Asked("call_1", "weigh", {"item": "a"})]), Turn("12 oz.")])
    api.takes = takes
    with served(api) as address:
        result = go(chat_model(address, stream=stream, send_reasoning=takes))
    assert (api.refusals, result.status) == ([], "done")
    assert result.messages[1]["reasoning_content"] == "I wonder."


class WithoutStatus(Bedrock):
    """A model that takes no status."""

    def check(self, request: Request) -> None:
        super().check(request)
        refuse_unless("'status'" not in str(request.body["messages"]), "This model doesn't support the status field.")


@STREAMED
@pytest.mark.parametrize("case", [case for case in CASES if case.name == "bedrock"], ids=["bedrock"])
def test_a_result_on_bedrock_has_no_status_for_a_model_that_takes_none(case: Case, stream: bool) -> None:
    turns = [
        Turn("", [Asked("call_1", "weigh", {"item": "a"}), Asked("call_2", "look", {"path": "b"})]),
        Turn("12 oz."),
    ]
    api = WithoutStatus(turns)
    with served(api) as address:
        result = go(models.Bedrock("model-1", base_url=address, result_status=False, stream=stream))
    assert (api.refusals, result.status) == ([], "done")
    assert [one.status for one in result.results] == ["ok", "failed"]
    with served(WithoutStatus(turns)) as address, pytest.raises(Exception, match="status field"):
        go(models.Bedrock("model-1", base_url=address, stream=stream))


async def test_a_choice_among_the_tools_of_the_request_alone_is_sent() -> None:
    given: dict[str, Any] = {"tools": [{"type": "web_search"}], "tool_choice": "required"}
    case = BY_NAME["openai"]

    async def main(address: str) -> None:
        async with case.model("model-1", base_url=address, **given) as model:
            await model(model.user("How heavy is it?"), Toolset([]))

    with serving(case, [Turn("It weighs 12 oz.")]) as (api, address):
        await main(address)
    (request,) = api.requests
    assert {key: request.body[key] for key in given} == given


@pytest.mark.parametrize("address", ["https://api.openai.com/v1", "https://mine.openai.azure.com/openai/v1"])
async def test_a_description_that_chat_completions_refuse_is_told_before_it_is_sent(address: str) -> None:
    @tool(description="x" * 1_025)
    async def long() -> str:
        """Nothing."""
        return ""

    client = openai_sdk.AsyncOpenAI(api_key="k", base_url=address)
    model = models.OpenAI("a-model", client=client, api="chat")

    async def answered() -> None:
        await loop(model, [model.user("Go")], Runner([long]))

    client.chat.completions._post = AsyncMock(side_effect=AssertionError("it was sent"))  # type: ignore[method-assign]
    with pytest.raises(DefinitionError, match=r"'long' has a description of 1,025 characters"):
        await answered()
