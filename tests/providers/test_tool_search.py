"""What a search tool found, in the forms of the APIs that have one: `tool_reference` and `tool_search_output`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from anthropic.types import MessageParam, ToolUnionParam
from apis import ALL
from openai.types.responses import Response as OpenAIResponse
from openai.types.responses import ResponseInputItemParam, ToolParam
from pydantic import TypeAdapter

from ferrule import Runner, Tool, ToolCall, ToolResult, Toolset, deny, tool
from ferrule.loop import LoopResult, run
from ferrule.models import Anthropic, OpenAI
from ferrule.providers import anthropic, openai_chat, openai_responses
from ferrule.selection import Match, Query, search_tool

ANTHROPIC_MESSAGES: TypeAdapter[Any] = TypeAdapter(list[MessageParam])
ANTHROPIC_TOOLS: TypeAdapter[Any] = TypeAdapter(list[ToolUnionParam])
OPENAI_ITEMS: TypeAdapter[Any] = TypeAdapter(list[ResponseInputItemParam])
OPENAI_TOOLS: TypeAdapter[Any] = TypeAdapter(list[ToolParam])


class All:
    """Ranks all in the order of the toolset, but for the query "nothing"."""

    async def select(self, messages: Query, tools: Iterable[Tool]) -> list[Tool]:
        return []

    def rank(self, tools: Iterable[Tool], query: Query, *, limit: int = 10) -> list[Match]:
        return [] if query == "nothing" else [Match(one, 1.0) for one in tools][:limit]


class Only:
    """Selects by names."""

    def __init__(self, *names: str) -> None:
        self.names = names

    async def select(self, messages: Query, tools: Iterable[Tool]) -> list[Tool]:
        return [one for one in tools if one.name in self.names]


@tool(name="shop.price", read_only=True, examples=[{"item": "anvil"}])
async def price(item: str, tax: float | None = None) -> str:
    """Look up the price of an item."""
    return f"{item}: 12"


@tool(read_only=True, examples=[{"item": "anvil"}])
async def weigh(item: str) -> str:
    """Weigh an item."""
    return f"{item}: 3 kg"


CATALOGUE = Toolset([price, weigh])
TOOLS = CATALOGUE.register(search_tool(CATALOGUE, All(), limit=1))
WIRE = price.wire_name


async def run_call(call: ToolCall, tools: Toolset = TOOLS, **options: Any) -> ToolResult:
    return await Runner(tools, **options).run(call)


def search_call(query: str = "price", id: str = "toolu_1") -> ToolCall:
    return ToolCall(id, "search_tools", {"query": query})


# Anthropic


async def test_anthropic_gets_references_to_the_tools_found() -> None:
    messages = anthropic.results([await run_call(search_call())])
    (block,) = messages[0]["content"]
    content = [{"type": "tool_reference", "tool_name": WIRE}]
    assert block == {"type": "tool_result", "tool_use_id": "toolu_1", "content": content}
    ANTHROPIC_MESSAGES.validate_python(messages, strict=False)
    assert anthropic.find_referred_tools(messages) == [WIRE]


async def test_anthropic_gets_words_if_nothing_was_found() -> None:
    (message,) = anthropic.results([await run_call(search_call("nothing"))])
    (block,) = message["content"]
    assert block["content"][0]["type"] == "text" and "No tool fits 'nothing'" in block["content"][0]["text"]
    assert anthropic.find_referred_tools([message]) == []
    denied = await run_call(search_call(), guards=[lambda call, context: deny("no")])
    (block,) = anthropic.results([denied])[0]["content"]
    assert block["is_error"] and block["content"][0]["type"] == "text"


@pytest.mark.parametrize(
    "kept",
    [
        3,
        [{"name": "x", "description": "y", "input_schema": {}, "more": 1}],
        [{"name": "x y", "description": "z", "input_schema": {}}],
        [{"name": "x", "description": "y", "input_schema": {}}, {"name": "z"}],
    ],
    ids=str,
)
async def test_metadata_of_another_tool_is_no_reference(kept: Any) -> None:
    @tool(name="search_tools")
    def files(query: str) -> ToolResult:
        """Find files."""
        return ToolResult("two files", metadata={"found": kept})

    result = await run_call(search_call(), Toolset([files]))
    assert anthropic.results([result])[0]["content"][0]["content"] == [{"type": "text", "text": "two files"}]
    call = result.call.replace(data={"type": "tool_search_call"}) if result.call else None
    assert openai_responses.results([result.replace(call=call)])[0]["tools"] == []


async def test_references_are_found_wherever_they_stand_and_once() -> None:
    reference = {"type": "tool_reference", "tool_name": "weigh"}
    content = {"type": "tool_search_tool_search_result", "tool_references": [reference]}
    of_server = {"type": "tool_search_tool_result", "tool_use_id": "srvtoolu_1", "content": content}
    failed = {**of_server, "content": {"type": "tool_search_tool_result_error", "error_code": "unavailable"}}
    messages: list[Any] = [
        {"role": "user", "content": "tool_reference"},
        {"role": "assistant", "content": [of_server, failed, {"type": "text", "text": "Hm."}]},
        *anthropic.results([await run_call(search_call()), await run_call(search_call("weigh", "toolu_2"))]),
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_3", "content": "plain"}]},
    ]
    assert anthropic.find_referred_tools(messages) == ["weigh", WIRE]


# OpenAI Responses


def response(*items: Any, status: str = "completed") -> dict[str, Any]:
    return ALL["openai_responses"].write("", [], "done") | {"output": list(items), "status": status}


def search_item(arguments: Any = None, **more: Any) -> dict[str, Any]:
    given = {"arguments": {"query": "price"} if arguments is None else arguments}
    head = {"type": "tool_search_call", "id": "tsc_1", "call_id": "call_1", "execution": "client"}
    return {**head, "status": "completed", **given, **more}


def test_openai_gets_the_search_tool_as_its_own_tool_search() -> None:
    written = openai_responses.tools(TOOLS)
    assert [one["type"] for one in written] == ["function", "function", "tool_search"]
    assert written[-1] == {
        "type": "tool_search",
        "execution": "client",
        "description": TOOLS.get("search_tools").description,
        "parameters": TOOLS.get("search_tools").input_schema,
    }
    OPENAI_TOOLS.validate_python(written)
    assert openai_responses.tools(iter(TOOLS), strict=["weigh"])[-1]["type"] == "tool_search"


@pytest.mark.parametrize("change", [{"name": "find_tools"}, {"tags": []}], ids=str)
def test_a_search_tool_of_another_name_is_a_function_for_openai(change: Any) -> None:
    finder = TOOLS.get("search_tools").replace(**change)
    (written,) = openai_responses.tools([finder])
    assert written["type"] == "function" and written["name"] == finder.name
    assert openai_chat.tools(TOOLS)[-1]["function"]["name"] == "search_tools"


@pytest.mark.parametrize("form", ["dict", "sdk"])
@pytest.mark.parametrize("arguments", [{"query": "price"}, '{"query": "price"}'], ids=str)
async def test_openais_search_is_a_call_answered_with_definitions(form: str, arguments: Any) -> None:
    came = response(search_item(arguments))
    given: Any = OpenAIResponse.model_validate(came) if form == "sdk" else came
    (call,) = openai_responses.calls(given)
    assert (call.id, call.name, call.problem) == ("call_1", "search_tools", None)
    assert dict(call.arguments) == {"query": "price"}
    assert openai_responses.stop(given) == "calls"
    (item,) = openai_responses.results([await run_call(call)])
    (written,) = openai_responses.tools([price])
    head = {"type": "tool_search_output", "execution": "client", "status": "completed", "call_id": "call_1"}
    assert item == {**head, "tools": [{**written, "defer_loading": True}]}
    assert written["strict"] is False
    OPENAI_ITEMS.validate_python([*openai_responses.turn(given), item])
    assert openai_responses.find_referred_tools([*openai_responses.turn(given), item]) == [WIRE]


async def test_a_search_without_a_find_is_answered_with_no_tools() -> None:
    (call,) = openai_responses.calls(response(search_item({"query": "nothing"})))
    refused = await run_call(call, guards=[lambda call, context: deny("no")])
    unknown = await run_call(call, CATALOGUE)
    assert (refused.status, unknown.status) == ("denied", "not_found")
    for result in (await run_call(call), refused, unknown):
        (item,) = openai_responses.results([result])
        assert (item["type"], item["tools"]) == ("tool_search_output", [])
        OPENAI_ITEMS.validate_python([item])


def test_a_found_schema_is_rewritten_for_openai() -> None:
    (call,) = openai_responses.calls(response(search_item()))
    odd = {"name": "odd", "description": "Odd.", "input_schema": {"type": "object", "not": {"required": ["a"]}}}
    (item,) = openai_responses.results([ToolResult("x", metadata={"found": [odd]}, call=call)])
    (definition,) = item["tools"]
    assert "not" not in definition["parameters"] and "required" in json.dumps(definition)


@pytest.mark.parametrize("ended_as", ["call_1", "call_2"])
def test_a_streamed_search_is_one_call_with_its_last_id(ended_as: str) -> None:
    stream = openai_responses.Stream()
    stream.feed({"type": "response.created", "response": response(status="in_progress") | {"output": []}})
    begun = search_item({}, status="in_progress")
    stream.feed({"type": "response.output_item.added", "output_index": 0, "item": begun})
    assert all(call.problem for call in stream.calls())
    ended = search_item(call_id=ended_as)
    stream.feed({"type": "response.output_item.done", "output_index": 0, "item": ended})
    stream.feed({"type": "response.completed", "response": response() | {"output": []}})
    assert [(call.id, call.name, call.problem) for call in stream.calls()] == [(ended_as, "search_tools", None)]
    assert stream.turn() == [ended]


# The models over the SDKs, in the loop


class Api:
    """Answers requests one after the other, and keeps them; `client` is what an SDK's client has."""

    def __init__(self, answers: Sequence[Any]) -> None:
        self.requests: list[dict[str, Any]] = []
        self._answers = list(answers)
        surface = SimpleNamespace(create=self._create)
        self.client = SimpleNamespace(messages=surface, responses=surface)

    async def _create(self, **request: Any) -> Any:
        self.requests.append(json.loads(json.dumps(request)))
        return self._answers[len(self.requests) - 1]


async def converse(model: Any, tools: Toolset = TOOLS, messages: Any = None, **options: Any) -> LoopResult:
    return await run(model, messages or model.user("How dear is an anvil?"), Runner(tools), **options)


def names(request: dict[str, Any]) -> list[tuple[str, bool]]:
    return [(one.get("name", one.get("type")), one.get("defer_loading", False)) for one in request.get("tools", ())]


def said_by_anthropic(text: str = "", *asked: Any) -> dict[str, Any]:
    return ALL["anthropic"].write(text, list(asked), "calls" if asked else "done")


FOUND_BY_ANTHROPIC = [
    said_by_anthropic("", ("t1", "search_tools", {"query": "price"})),
    said_by_anthropic("", ("t2", WIRE, {"item": "anvil"})),
    said_by_anthropic("12."),
]


async def test_a_found_tool_is_deferred_behind_an_unchanged_prefix() -> None:
    api = Api(FOUND_BY_ANTHROPIC)
    came = await converse(Anthropic("m", client=api.client, stream=False, cache=True), selector=Only("weigh"))
    assert came.status == "done" and [result.status for result in came.results] == ["ok", "ok"]
    prefix = [("weigh", False), ("search_tools", False)]
    assert [names(request) for request in api.requests] == [prefix, [*prefix, (WIRE, True)], [*prefix, (WIRE, True)]]
    assert all(json.dumps(request["tools"][:2]) == json.dumps(api.requests[0]["tools"]) for request in api.requests)
    for request in api.requests:
        ANTHROPIC_MESSAGES.validate_python(request["messages"])
        ANTHROPIC_TOOLS.validate_python(request["tools"])


async def test_a_removed_tool_is_defined_for_its_references_and_not_called() -> None:
    api = Api([*FOUND_BY_ANTHROPIC, said_by_anthropic("", ("t3", WIRE, {"item": "bell"})), FOUND_BY_ANTHROPIC[-1]])
    model = Anthropic("m", client=api.client, stream=False)
    before = await converse(model, selector=Only("weigh"))
    after = await converse(model, Toolset([weigh]), [*before.messages, *model.user("And a bell?")])
    assert names(api.requests[3]) == [("weigh", False), (WIRE, True)] and after.results[0].status == "not_found"
    ANTHROPIC_TOOLS.validate_python(api.requests[3]["tools"])


async def test_anthropic_defers_only_tools_that_messages_refer_to() -> None:
    model = Anthropic("m", client=Api([]).client, stream=False)
    referring = anthropic.results([await run_call(ToolCall("t1", "search_tools", {"query": "price"}))])
    some = Toolset([weigh, price])
    assert names(model.request(referring, some, {}, [WIRE])) == [("weigh", False), (WIRE, True)]
    assert names(model.request(model.user("Hi."), some, {}, [WIRE])) == [("weigh", False), (WIRE, False)]
    assert names(model.request(referring, Toolset([price]), {}, [WIRE])) == [(WIRE, False)]


FOUND_BY_OPENAI = [
    response(search_item()),
    ALL["openai_responses"].write("", [("call_2", WIRE, {"item": "anvil"})], "calls"),
    ALL["openai_responses"].write("12.", [], "done"),
]


async def test_openai_gets_definitions_in_the_answer_and_the_same_tools() -> None:
    api = Api(FOUND_BY_OPENAI)
    came = await converse(OpenAI("m", client=api.client, stream=False), selector=Only("weigh"))
    assert came.status == "done" and [result.status for result in came.results] == ["ok", "ok"]
    assert [names(request) for request in api.requests] == [[("weigh", False), ("tool_search", False)]] * 3
    outputs = [item for item in api.requests[1]["input"] if item.get("type") == "tool_search_output"]
    assert [(one["name"], one["defer_loading"]) for one in outputs[0]["tools"]] == [(WIRE, True)]
    for request in api.requests:
        OPENAI_ITEMS.validate_python([item for item in request["input"] if "type" in item])
        OPENAI_TOOLS.validate_python(request["tools"])
