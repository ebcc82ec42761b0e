"""What a search tool found, in the forms of the APIs that have one: `tool_reference` and `tool_search_output`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from anthropic.types import MessageParam, ToolUnionParam
from openai.types.responses import Response as OpenAIResponse
from openai.types.responses import ResponseInputItemParam, ToolParam
from pydantic import TypeAdapter

from ferrule import Runner, Tool, ToolCall, ToolResult, Toolset, deny, tool
from ferrule.cli.models import NamedModel
from ferrule.errors import DefinitionError
from ferrule.loop import LoopResult, run
from ferrule.models import Anthropic, OpenAI
from ferrule.providers import anthropic, openai_chat, openai_responses
from ferrule.selection import Match, Query, search_tool
from waits import BOUND

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


def found(call: ToolCall, tools: Toolset = TOOLS, **options: Any) -> ToolResult:
    return asyncio.run(Runner(tools, **options).run(call))


def search_call(query: str = "price", id: str = "toolu_1") -> ToolCall:
    return ToolCall(id, "search_tools", {"query": query})


# Anthropic


def test_anthropic_is_told_of_what_was_found_by_references() -> None:
    messages = anthropic.results([found(search_call())])
    (block,) = messages[0]["content"]
    assert block == {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": [{"type": "tool_reference", "tool_name": WIRE}],
    }
    ANTHROPIC_MESSAGES.validate_python(messages, strict=False)
    assert anthropic.find_referred_tools(messages) == [WIRE]


def test_anthropic_is_told_in_words_where_nothing_was_found() -> None:
    (message,) = anthropic.results([found(search_call("nothing"))])
    (block,) = message["content"]
    assert block["content"][0]["type"] == "text" and "No tool fits 'nothing'" in block["content"][0]["text"]
    assert anthropic.find_referred_tools([message]) == []


def test_a_search_that_was_denied_refers_to_nothing() -> None:
    result = found(search_call(), guards=[lambda call, context: deny("no")])
    (block,) = anthropic.results([result])[0]["content"]
    assert block["is_error"] and block["content"][0]["type"] == "text"


@pytest.mark.parametrize(
    "kept",
    [
        3,
        "shop_price",
        [{"name": "a.txt"}],
        [{"name": "x", "description": "y", "input_schema": {}, "more": 1}],
        [{"name": "x y", "description": "z", "input_schema": {}}],
        [{"name": "x", "description": None, "input_schema": {}}],
        [{"name": "x", "description": "y", "input_schema": {}}, {"name": "z"}],
    ],
    ids=str,
)
def test_what_another_tool_keeps_under_the_same_name_is_no_reference(kept: Any) -> None:
    @tool(name="search_tools")
    def files(query: str) -> ToolResult:
        """Find files."""
        return ToolResult("two files", metadata={"found": kept})

    result = found(search_call(), Toolset([files]))
    assert anthropic.results([result])[0]["content"][0]["content"] == [{"type": "text", "text": "two files"}]
    call = result.call.replace(data={"type": "tool_search_call"}) if result.call else None
    assert openai_responses.results([result.replace(call=call)])[0]["tools"] == []


def test_references_of_messages_are_found_wherever_they_stand_and_once() -> None:
    of_server = {
        "type": "tool_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": {
            "type": "tool_search_tool_search_result",
            "tool_references": [{"type": "tool_reference", "tool_name": "weigh"}],
        },
    }
    failed = {**of_server, "content": {"type": "tool_search_tool_result_error", "error_code": "unavailable"}}
    messages: list[Any] = [
        {"role": "user", "content": "tool_reference"},
        {"role": "assistant", "content": [of_server, failed, {"type": "text", "text": "Hm."}]},
        *anthropic.results([found(search_call()), found(search_call("weigh", "toolu_2"))]),
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_3", "content": "plain"}]},
    ]
    assert anthropic.find_referred_tools(messages) == ["weigh", WIRE]


def test_beside_a_search_tool_no_definition_has_examples_so_that_the_first_find_changes_none() -> None:
    before, after = anthropic.tools(TOOLS.without("weigh")), anthropic.tools(TOOLS, deferred=["weigh"])
    assert json.dumps(after[: len(before)]) == json.dumps(before) and "input_examples" not in json.dumps(before)
    assert "input_examples" in json.dumps(anthropic.tools(CATALOGUE))
    assert after[-1]["defer_loading"] is True


# OpenAI Responses


def response(*items: Any, status: str = "completed") -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "gpt-5.6",
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "status": status,
        "output": list(items),
    }


def search_item(arguments: Any = None, **more: Any) -> dict[str, Any]:
    asked = {"query": "price"} if arguments is None else arguments
    return {
        "type": "tool_search_call",
        "id": "tsc_1",
        "call_id": "call_1",
        "status": "completed",
        "execution": "client",
        "arguments": asked,
        **more,
    }


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
def test_a_search_of_openais_is_a_call_of_the_search_tool_and_its_answer_has_the_definitions(
    form: str, arguments: Any
) -> None:
    came = response(search_item(arguments))
    given: Any = OpenAIResponse.model_validate(came) if form == "sdk" else came
    (call,) = openai_responses.calls(given)
    assert (call.id, call.name, call.problem, dict(call.arguments)) == (
        "call_1",
        "search_tools",
        None,
        {"query": "price"},
    )
    assert openai_responses.stop(given) == "calls"
    (item,) = openai_responses.results([found(call)])
    (written,) = openai_responses.tools([price])
    assert item == {
        "type": "tool_search_output",
        "execution": "client",
        "status": "completed",
        "call_id": "call_1",
        "tools": [{**written, "defer_loading": True}],
    }
    assert written["strict"] is False
    OPENAI_ITEMS.validate_python([*openai_responses.turn(given), item])
    assert openai_responses.find_referred_tools([*openai_responses.turn(given), item]) == [WIRE]


def test_a_search_that_found_nothing_or_did_not_run_is_answered_with_no_tools() -> None:
    (call,) = openai_responses.calls(response(search_item({"query": "nothing"})))
    refused = found(call, guards=[lambda call, context: deny("no")])
    unknown = found(call, CATALOGUE)
    assert (refused.status, unknown.status) == ("denied", "not_found")
    for result in (found(call), refused, unknown):
        (item,) = openai_responses.results([result])
        assert (item["type"], item["tools"]) == ("tool_search_output", [])
        OPENAI_ITEMS.validate_python([item])


def test_a_search_that_was_cut_off_is_not_run() -> None:
    (call,) = openai_responses.calls(response(search_item(status="incomplete"), status="incomplete"))
    assert call.problem is not None and found(call).executed is False


def test_what_openai_takes_in_no_schema_is_told_in_words() -> None:
    (call,) = openai_responses.calls(response(search_item()))
    odd = {"name": "odd", "description": "Odd.", "input_schema": {"type": "object", "not": {"required": ["a"]}}}
    (item,) = openai_responses.results([ToolResult("x", metadata={"found": [odd]}, call=call)])
    (definition,) = item["tools"]
    assert "not" not in definition["parameters"] and "required" in json.dumps(definition)


@pytest.mark.parametrize("ended_as", ["call_1", "call_2"])
def test_a_search_that_is_streamed_is_one_call_with_the_id_that_it_has_at_its_end(ended_as: str) -> None:
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


def test_openais_own_searches_define_nothing_of_ours() -> None:
    tools = [{"type": "function", "name": "weigh", "parameters": {}}]
    group = {"type": "namespace", "name": "crm", "description": "", "tools": [{"type": "function", "name": "lookup"}]}
    items: list[Any] = [
        {"type": "tool_search_output", "execution": "server", "tools": tools},
        {"type": "message", "role": "user", "content": "tool_search_output"},
        {"type": "tool_search_output", "execution": "client", "tools": [group, {"type": "web_search"}]},
    ]
    assert openai_responses.find_referred_tools(items) == ["lookup"]


def test_a_call_of_what_was_found_keeps_the_namespace_that_it_came_with() -> None:
    item = {"type": "function_call", "call_id": "c", "name": WIRE, "namespace": WIRE, "arguments": '{"item": "anvil"}'}
    (call,) = openai_responses.calls(response(item))
    (answer,) = openai_responses.results([found(call)])
    assert answer["namespace"] == WIRE and answer["output"] == "anvil: 12"


# The models over the SDKs, in the loop


def anthropic_message(*blocks: Any) -> dict[str, Any]:
    stop = "tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn"
    return {"id": "msg_1", "type": "message", "role": "assistant", "content": list(blocks), "stop_reason": stop}


def use(id: str, name: str, given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": given}


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


def go(model: Any, tools: Toolset = TOOLS, messages: Any = None, **options: Any) -> LoopResult:
    async def main() -> LoopResult:
        async with asyncio.timeout(BOUND):
            return await run(model, messages or model.user("How dear is an anvil?"), Runner(tools), **options)

    return asyncio.run(main())


def names(request: dict[str, Any]) -> list[tuple[str, bool]]:
    return [(one.get("name", one.get("type")), one.get("defer_loading", False)) for one in request.get("tools", ())]


FOUND_BY_ANTHROPIC = [
    anthropic_message(use("t1", "search_tools", {"query": "price"})),
    anthropic_message(use("t2", WIRE, {"item": "anvil"})),
    anthropic_message({"type": "text", "text": "12."}),
]


def test_anthropic_gets_what_was_found_deferred_behind_an_unchanged_prefix() -> None:
    api = Api(FOUND_BY_ANTHROPIC)
    came = go(Anthropic("m", client=api.client, stream=False, cache=True), selector=Only("weigh"))
    assert came.status == "done" and [result.status for result in came.results] == ["ok", "ok"]
    prefix = [("weigh", False), ("search_tools", False)]
    assert [names(request) for request in api.requests] == [prefix, [*prefix, (WIRE, True)], [*prefix, (WIRE, True)]]
    assert all(json.dumps(request["tools"][:2]) == json.dumps(api.requests[0]["tools"]) for request in api.requests)
    for request in api.requests:
        ANTHROPIC_MESSAGES.validate_python(request["messages"])
        ANTHROPIC_TOOLS.validate_python(request["tools"])


def test_a_later_run_over_the_same_messages_defines_what_they_refer_to() -> None:
    api = Api([*FOUND_BY_ANTHROPIC, anthropic_message(use("t3", WIRE, {"item": "bell"})), FOUND_BY_ANTHROPIC[-1]])
    model = Anthropic("m", client=api.client, stream=False)
    before = go(model, selector=Only("weigh"))
    after = go(model, messages=[*before.messages, *model.user("And a bell?")], selector=Only("weigh"))
    assert names(api.requests[3]) == [("weigh", False), ("search_tools", False), (WIRE, True)]
    assert after.results[0].status == "ok"


def test_what_messages_refer_to_and_the_runner_has_no_more_is_defined_and_cannot_be_called() -> None:
    api = Api([*FOUND_BY_ANTHROPIC, anthropic_message(use("t3", WIRE, {"item": "bell"})), FOUND_BY_ANTHROPIC[-1]])
    model = Anthropic("m", client=api.client, stream=False)
    before = go(model, selector=Only("weigh"))
    after = go(model, Toolset([weigh]), [*before.messages, *model.user("And a bell?")])
    assert names(api.requests[3]) == [("weigh", False), (WIRE, True)] and after.results[0].status == "not_found"
    ANTHROPIC_TOOLS.validate_python(api.requests[3]["tools"])


@tool
def fail() -> str:
    """Fail."""
    raise ValueError("broken")


def test_a_run_that_degrades_defines_what_its_messages_refer_to() -> None:
    api = Api([FOUND_BY_ANTHROPIC[0], anthropic_message(use("t2", "fail", {})), FOUND_BY_ANTHROPIC[-1]])
    model = Anthropic("m", client=api.client, stream=False, strict=["weigh"])
    came = go(model, TOOLS.register(fail), selector=Only("fail"), on_failure="degrade")
    assert came.status == "degraded" and api.requests[2]["tool_choice"] == {"type": "none"}
    assert names(api.requests[2]) == [("fail", False), ("search_tools", False), (WIRE, True)]


def test_names_that_the_model_was_given_have_no_effect_where_a_run_without_a_selector_degrades() -> None:
    answers = [anthropic_message(use("t1", "fail", {})), FOUND_BY_ANTHROPIC[-1]]
    model = Anthropic("m", client=Api(answers).client, stream=False, strict=["weigh"], deferred=["weigh"])
    assert go(model, CATALOGUE.register(fail), on_failure="degrade").status == "degraded"


@pytest.mark.parametrize("given", [{"strict": ["wiegh"]}, {"deferred": ["wiegh"]}], ids=str)
def test_a_name_that_the_model_was_given_and_no_tool_has_is_an_error_where_all_are_offered(given: Any) -> None:
    api = Api([FOUND_BY_ANTHROPIC[-1]])
    with pytest.raises(DefinitionError, match="wiegh"):
        go(Anthropic("m", client=api.client, stream=False, **given), CATALOGUE)
    assert api.requests == []


def test_one_definition_at_least_is_not_deferred() -> None:
    before = go(Anthropic("m", client=Api(FOUND_BY_ANTHROPIC).client, stream=False), selector=Only("weigh"))
    api = Api([FOUND_BY_ANTHROPIC[-1]])
    go(Anthropic("m", client=api.client, stream=False), CATALOGUE, before.messages, selector=Only())
    assert names(api.requests[0]) == [("search_tools", False), (WIRE, False)]  # for what nobody can call


def test_anthropic_defers_what_messages_refer_to_and_neither_anything_else_nor_all() -> None:
    model = Anthropic("m", client=Api([]).client, stream=False)
    referring = anthropic.results([found(ToolCall("t1", "search_tools", {"query": "price"}))])
    some = Toolset([weigh, price])
    assert names(model.request(referring, some, {}, [WIRE])) == [("weigh", False), (WIRE, True)]
    assert names(model.request(model.user("Hi."), some, {}, [WIRE])) == [("weigh", False), (WIRE, False)]
    assert names(model.request(referring, Toolset([price]), {}, [WIRE])) == [(WIRE, False)]


def test_the_command_line_hands_on_what_was_found() -> None:
    api = Api(FOUND_BY_ANTHROPIC)
    came = go(NamedModel("anthropic:m", Anthropic("m", client=api.client, stream=False)), selector=Only("weigh"))
    assert came.status == "done" and names(api.requests[1])[-1] == (WIRE, True)


def test_names_that_the_model_was_given_and_that_were_not_chosen_have_no_effect() -> None:
    api = Api([FOUND_BY_ANTHROPIC[-1]])
    model = Anthropic("m", client=api.client, stream=False, strict=[WIRE], deferred="shop.price")
    go(model, selector=Only("weigh"))
    assert names(api.requests[0]) == [("weigh", False), ("search_tools", False)]


OPENAI_TEXT = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "12.", "annotations": []}],
}
FOUND_BY_OPENAI = [
    response(search_item()),
    response(
        {"type": "function_call", "id": "fc_1", "call_id": "call_2", "name": WIRE, "arguments": '{"item": "anvil"}'}
    ),
    response(OPENAI_TEXT),
]


def test_openai_gets_the_definitions_in_the_answer_and_the_tools_stay_as_they_were() -> None:
    api = Api(FOUND_BY_OPENAI)
    came = go(OpenAI("m", client=api.client, stream=False), selector=Only("weigh"))
    assert came.status == "done" and [result.status for result in came.results] == ["ok", "ok"]
    assert [names(request) for request in api.requests] == [[("weigh", False), ("tool_search", False)]] * 3
    outputs = [item for item in api.requests[1]["input"] if item.get("type") == "tool_search_output"]
    assert [(one["name"], one["defer_loading"]) for one in outputs[0]["tools"]] == [(WIRE, True)]
    for request in api.requests:
        OPENAI_ITEMS.validate_python([item for item in request["input"] if "type" in item])
        OPENAI_TOOLS.validate_python(request["tools"])


def test_openai_gets_ordinary_definitions_where_the_search_tool_has_another_name() -> None:
    finder = TOOLS.get("search_tools").replace(name="find_tools")
    asked = {
        "type": "function_call",
        "id": "fc_0",
        "call_id": "call_1",
        "name": "find_tools",
        "arguments": '{"query":"p"}',
    }
    api = Api([response(asked), *FOUND_BY_OPENAI[1:]])
    came = go(OpenAI("m", client=api.client, stream=False), CATALOGUE.register(finder), selector=Only("weigh"))
    assert came.results[1].status == "ok"
    assert names(api.requests[1]) == [("weigh", False), ("find_tools", False), (WIRE, False)]


def test_openai_gets_ordinary_definitions_where_nothing_in_the_messages_has_them() -> None:
    model = OpenAI("m", client=Api([]).client, stream=False)
    request = model.request(model.user("Hi."), Toolset([weigh, TOOLS.get("search_tools"), price]), {}, [WIRE])
    assert names(request) == [("weigh", False), ("tool_search", False), (WIRE, False)]


def test_openai_gets_the_definition_of_what_was_chosen_also_where_the_messages_have_it() -> None:
    model = OpenAI("m", client=Api([]).client, stream=False)
    told = openai_responses.results([found(openai_responses.calls(response(search_item()))[0])])
    tools = Toolset([price, TOOLS.get("search_tools"), weigh])
    assert names(model.request(told, tools, {}, ["weigh"])) == [
        (WIRE, False),
        ("tool_search", False),
        ("weigh", False),
    ]
