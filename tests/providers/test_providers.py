"""Every provider module against one suite, and each against what only its API has; real SDK objects throughout."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
from anthropic.types import Message
from openai.types.chat import ChatCompletion, ParsedChatCompletion
from openai.types.responses import ParsedResponse, Response

from ferrule import Toolset, tool
from ferrule.errors import DefinitionError
from ferrule.providers import anthropic, openai_chat, openai_responses
from ferrule.values.call import ToolCall
from ferrule.values.content import Media, Text
from ferrule.values.result import ToolResult

PNG = b"\x89PNG\r\n\x1a\n"


@tool(read_only=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def greet(name: str, greeting: str = "Hello") -> str:
    """Greet somebody."""
    return f"{greeting} {name}"


@tool(name="notes.read")
def read_notes(path: str) -> str:
    """Read a note."""
    return path


TOOLS = Toolset([add, greet, read_notes])
Asked = tuple[str | None, str, Any]


def anthropic_dict(text: str, asked: list[Asked], stop: str | None) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    for id, name, arguments in asked:
        content.append({"type": "tool_use", "id": id, "name": name, "input": arguments})
    reason = {"done": "end_turn", "calls": "tool_use", "cut": "max_tokens", "refused": "refusal", None: None}[stop]
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": content,
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 3, "output_tokens": 4},
    }


def _text(arguments: Any) -> Any:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def responses_dict(text: str, asked: list[Asked], stop: str | None) -> dict[str, Any]:
    output: list[dict[str, Any]] = []
    if text:
        part = {"type": "output_text", "text": text, "annotations": []}
        output.append({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]})
    for place, (id, name, arguments) in enumerate(asked):
        output.append(
            {
                "type": "function_call",
                "id": f"fc_{place}",
                "call_id": id,
                "name": name,
                "arguments": _text(arguments),
                "status": "completed",
            }
        )
    reason = {"cut": "max_output_tokens", "refused": "content_filter"}.get(stop or "")
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1.0,
        "model": "m",
        "output": output,
        "status": "in_progress" if stop is None else "incomplete" if reason else "completed",
        "incomplete_details": {"reason": reason} if reason else None,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def chat_dict(text: str, asked: list[Asked], stop: str | None) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text or None, "refusal": None}
    if asked:
        message["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": _text(arguments)}}
            for id, name, arguments in asked
        ]
    reasons = {"done": "stop", "calls": "tool_calls", "cut": "length", "refused": "content_filter", None: None}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": reasons[stop], "logprobs": None}],
    }


@dataclass(frozen=True)
class Api:
    """One provider: its module, how it writes a response, and how its SDK reads one."""

    module: ModuleType
    write: Callable[[str, list[Asked], str | None], dict[str, Any]]
    sdk: Callable[[dict[str, Any]], Any]

    def schema(self, definition: dict[str, Any]) -> Any:
        inner = definition.get("function", definition)
        return inner.get("input_schema", inner.get("parameters"))

    def name(self, definition: dict[str, Any]) -> Any:
        return definition.get("function", definition)["name"]

    def answers(self, messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
        """The ids answered and the text that answers them."""
        found = []
        for message in messages:
            if message.get("role") == "user":
                found += [(b["tool_use_id"], "".join(c["text"] for c in b["content"])) for b in message["content"]]
            elif message.get("role") == "tool":
                found.append((message["tool_call_id"], message["content"]))
            else:
                found.append((message["call_id"], message["output"]))
        return found

    def ids(self, turn: list[dict[str, Any]]) -> list[str]:
        """The ids of the calls in an assistant's turn."""
        found = []
        for item in turn:
            if item.get("type") == "function_call":
                found.append(item["call_id"])
            found += [call["id"] for call in item.get("tool_calls", ())]
            if self.module is anthropic:
                found += [block["id"] for block in item["content"] if block.get("type") == "tool_use"]
        return found


APIS = {
    "anthropic": Api(anthropic, anthropic_dict, Message.model_validate),
    "openai_responses": Api(openai_responses, responses_dict, Response.model_validate),
    "openai_chat": Api(openai_chat, chat_dict, ChatCompletion.model_validate),
}
ADD: Asked = ("call_a", "add", {"a": 1, "b": 2})
GREET: Asked = ("call_b", "greet", {"name": "Ada"})


@pytest.fixture(params=APIS)
def api(request: pytest.FixtureRequest) -> Api:
    return APIS[request.param]


def result(call: ToolCall, output: Any = None, **more: Any) -> ToolResult:
    return ToolResult(output, call=call, tool_name=call.name, **more)


# Definitions


def test_definitions_keep_the_order_of_the_toolset(api: Api) -> None:
    assert [api.name(item) for item in api.module.tools(TOOLS)] == [t.wire_name for t in TOOLS]


def test_definitions_are_valid_json(api: Api) -> None:
    written = json.loads(json.dumps(api.module.tools(TOOLS)))
    assert api.schema(written[0])["properties"].keys() == {"a", "b"}


def test_a_schema_is_shared_and_the_dicts_round_it_are_new(api: Api) -> None:
    first, second = api.module.tools(TOOLS), api.module.tools(TOOLS)
    assert first is not second and first[0] is not second[0]
    assert api.schema(first[0]) is api.schema(second[0]) is add.input_schema


def test_no_tools_are_no_definitions(api: Api) -> None:
    assert api.module.tools(Toolset([]), cache=True) == []


def test_deferred_tools_stand_behind_the_others_in_the_order_they_came(api: Api) -> None:
    names = [api.name(item) for item in api.module.tools(TOOLS, deferred=["greet", "add"])]
    assert names == [read_notes.wire_name, "greet", "add"]


def test_a_deferred_tool_is_found_by_its_own_name_or_its_wire_name(api: Api) -> None:
    for name in (read_notes.name, read_notes.wire_name):
        assert api.name(api.module.tools(Toolset([read_notes, add]), deferred=[name])[-1]) == read_notes.wire_name


def test_strict_can_be_wanted_for_single_tools(api: Api) -> None:
    flags = [item.get("function", item).get("strict", False) for item in api.module.tools(TOOLS, strict=["add"])]
    assert flags == [True, False, False]


def test_strict_for_a_tool_that_is_not_there_is_refused(api: Api) -> None:
    with pytest.raises(DefinitionError, match="'subtract'"):
        api.module.tools(TOOLS, strict=["subtract"])


def test_a_schema_that_does_not_fit_strict_mode_is_refused_with_its_path(api: Api) -> None:
    @tool
    def tally(counts: dict[str, int]) -> int:
        """Add up."""
        return sum(counts.values())

    with pytest.raises(DefinitionError, match=r"'tally'.*\$\.properties\.counts.*make it a list of pairs"):
        api.module.tools(Toolset([tally]), strict=True)
    assert api.module.tools(Toolset([tally]))


def test_a_deferred_tool_that_is_not_there_is_refused(api: Api) -> None:
    with pytest.raises(DefinitionError, match=r"deferred=.*'subtract'"):
        api.module.tools(TOOLS, deferred=["subtract"])


def one_parameter(schema: dict[str, Any], **beside: Any) -> Toolset:
    whole = {"type": "object", "properties": {"x": schema}, "required": ["x"], "additionalProperties": False, **beside}
    return Toolset([{"name": "odd", "input_schema": whole, "execute": lambda input: input}])


TREE = {"type": "object", "properties": {"x": {"$ref": "#/$defs/Tree"}}, "additionalProperties": False}
TREE["required"] = ["x"]


def test_anthropic_strict_refuses_recursion() -> None:
    tools = one_parameter({"$ref": "#/$defs/Tree"}, **{"$defs": {"Tree": TREE}})
    with pytest.raises(DefinitionError, match=r"'odd'.*Anthropic.*recursive"):
        anthropic.tools(tools, strict=True)
    assert openai_chat.tools(tools) and openai_chat.tools(tools, strict=True)


def test_anthropic_strict_takes_one_item_and_references_that_end() -> None:
    assert anthropic.tools(one_parameter({"type": "array", "items": {"type": "string"}, "minItems": 1}), strict=True)
    ending = {"$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"type": "string"}}}
    assert anthropic.tools(
        one_parameter({"anyOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}]}, **ending), strict=True
    )


# Choices


@pytest.mark.parametrize("choice", ["auto", "required", "none", "add"])
def test_a_choice_gives_keyword_arguments(api: Api, choice: str) -> None:
    said = api.module.tool_choice(choice)
    assert said.keys() == {"tool_choice"}
    assert choice != "add" or "add" in json.dumps(said)


def test_a_choice_uses_the_name_on_the_wire(api: Api) -> None:
    assert read_notes.wire_name in json.dumps(api.module.tool_choice("notes.read"))


def test_only_beside_a_forced_tool_is_refused(api: Api) -> None:
    with pytest.raises(DefinitionError):
        api.module.tool_choice("add", only=["add"])


def test_an_empty_choice_is_refused(api: Api) -> None:
    with pytest.raises(DefinitionError):
        api.module.tool_choice("")


# Calls and turns


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_calls_come_in_order_with_their_ids_and_arguments(api: Api, form: str) -> None:
    response: Any = api.write("Let me see.", [ADD, GREET], "calls")
    calls = api.module.calls(api.sdk(response) if form == "sdk" else response)
    assert [(call.id, call.name, dict(call.arguments)) for call in calls] == [ADD, GREET]
    assert [call.problem for call in calls] == [None, None]
    assert [call.data for call in calls] == [None, None]


@pytest.mark.parametrize("asked", [[], [ADD], [ADD, GREET]])
def test_sdk_objects_and_dicts_are_read_alike(api: Api, asked: list[Asked]) -> None:
    response = api.write("Text.", asked, "calls" if asked else "done")
    sdk = api.sdk(response)
    assert api.module.calls(sdk) == api.module.calls(response)
    assert api.module.turn(sdk) == api.module.turn(response)
    assert api.module.stop(sdk) == api.module.stop(response)


def test_reading_changes_nothing_in_the_response(api: Api) -> None:
    response = api.write("Text.", [(None, "add", "{oops")], "calls")
    before = copy.deepcopy(response)
    api.module.calls(response), api.module.turn(response)
    assert response == before


@pytest.mark.parametrize("missing", [None, "", "null"])
def test_a_missing_id_is_the_same_in_calls_turn_and_results(api: Api, missing: str | None) -> None:
    response = api.write("", [(missing, "add", {}), (missing, "add", {})], "calls")
    calls = api.module.calls(response)
    ids = [call.id for call in calls]
    assert len(set(ids)) == 2 and all(0 < len(id) <= 64 for id in ids)
    assert api.ids(api.module.turn(response)) == ids
    assert [id for id, _ in api.answers(api.module.results([result(call, 3) for call in calls]))] == ids


def test_missing_ids_of_two_responses_differ(api: Api) -> None:
    one, other = (api.write("", [(None, "add", {})], "calls") | {"id": id} for id in ("r1", "r2"))
    assert api.module.calls(one)[0].id != api.module.calls(other)[0].id


@pytest.mark.parametrize("bad", ["{oops", "[1]", "", '{"a": NaN}', '{"a": "\\ud800"}'])
def test_arguments_that_are_no_object_go_back_as_an_empty_one(api: Api, bad: str) -> None:
    response = api.write("", [("call_a", "add", bad)], "calls")
    assert api.module.calls(response)[0].raw == bad
    turn = json.dumps(api.module.turn(response))
    assert '"arguments": "{}"' in turn or '"input": {}' in turn


@pytest.mark.parametrize("stop", ["cut", "refused", None])
def test_calls_of_a_turn_that_did_not_end_well_must_not_run(api: Api, stop: str | None) -> None:
    for call in api.module.calls(api.sdk(api.write("", [ADD], stop)) if stop else api.write("", [ADD], stop)):
        assert call.problem and "Nothing was run" in call.problem


@pytest.mark.parametrize("reason", ["weird", "error"])
def test_calls_of_a_turn_that_ended_for_an_unknown_reason_must_not_run(reason: str) -> None:
    message = anthropic_dict("", [ADD], "calls") | {"stop_reason": reason}
    chat = {"choices": [{"message": chat_dict("", [ADD], "calls")["choices"][0]["message"], "finish_reason": reason}]}
    for module, response in ((anthropic, message), (openai_chat, chat)):
        assert module.stop(response) == "other"
        assert [call.problem is not None and reason in call.problem for call in module.calls(response)] == [True]


def test_the_stop_says_why(api: Api) -> None:
    stops = [
        api.module.stop(api.write("Hello.", [], "done")),
        api.module.stop(api.write("", [ADD], "calls")),
        api.module.stop(api.write("", [ADD], "cut")),
        api.module.stop(api.write("", [], "refused")),
        api.module.stop(api.write("", [], None)),
    ]
    assert stops == ["end", "calls", "cut", "refused", "other"]


def test_calls_beside_an_ordinary_end_are_calls(api: Api) -> None:
    response = api.write("", [ADD], "done")
    assert api.module.stop(response) == "calls"
    assert api.module.calls(response)[0].problem is None


def test_a_turn_without_content_is_nothing(api: Api) -> None:
    assert api.module.turn(api.write("", [], "done")) == []
    assert api.module.calls(api.write("", [], "done")) == []


def test_an_empty_response_is_read_as_nothing(api: Api) -> None:
    assert api.module.calls({}) == [] and api.module.turn({}) == []
    assert api.module.stop({}) in {"end", "other"}


def test_text_that_utf8_cannot_hold_does_not_reach_the_history(api: Api) -> None:
    for response in (api.write("a\ud800b", [], "done"), api.sdk(api.write("a\ud800b", [], "done"))):
        json.dumps(api.module.turn(response), ensure_ascii=False).encode()


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] + [place for key, item in inner for place in places(item, (*path, key))]


@pytest.mark.parametrize("junk", [None, "", "{bad", 0, 1.5, True, [], {}, [None], [1], {"a": 1}], ids=repr)
def test_no_response_of_a_strange_shape_breaks_the_reading(api: Api, junk: Any) -> None:
    for base in (api.write("Text.", [ADD, GREET], "calls"), api.write("Text.", [], "done")):
        for place in places(base)[1:]:
            response = copy.deepcopy(base)
            inner: Any = response
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = junk
            ids = [call.id for call in api.module.calls(response)]
            assert api.ids(api.module.turn(response)) == ids, place
            assert isinstance(api.module.stop(response), str)


# Results


def test_every_result_answers_its_call_in_order(api: Api) -> None:
    calls = api.module.calls(api.write("", [ADD, GREET], "calls"))
    messages = api.module.results([result(calls[0], 3), result(calls[1], "Hello Ada")])
    assert api.answers(messages) == [("call_a", "3"), ("call_b", "Hello Ada")]


def test_no_results_are_no_messages(api: Api) -> None:
    assert api.module.results([]) == []


@pytest.mark.parametrize("status", ["invalid", "not_found", "denied", "limited", "timeout", "cancelled", "unknown"])
def test_an_error_result_is_marked_as_one(api: Api, status: Any) -> None:
    messages = api.module.results([result(ToolCall("c", "add"), error="no such path", status=status)])
    text = api.answers(messages)[0][1]
    assert "no such path" in text
    assert text.startswith("Error") or messages[0]["content"][0]["is_error"] is True


def test_an_error_text_is_never_empty(api: Api) -> None:
    cases: list[tuple[str | None, list[Text] | None]] = [("", []), (" ", []), (None, []), (None, None)]
    for error, content in cases:
        messages = api.module.results([result(ToolCall("c", "add"), error=error, status="failed", content=content)])
        assert "failed" in api.answers(messages)[0][1]


def test_an_error_shows_the_content_that_came_with_it(api: Api) -> None:
    blocks = [Text("line 3: oops"), Media("image", PNG, "image/png")]
    messages = api.module.results([result(ToolCall("c", "add"), error="exit code 2", content=blocks)])
    text = api.answers(messages)[0][1]
    assert "exit code 2" in text and "line 3: oops" in text and "image/png" in text


def test_a_suspended_result_names_its_call_and_says_to_resume(api: Api) -> None:
    text = api.answers(api.module.results([result(ToolCall("call_7", "add"), status="suspended", executed=False)]))[0][
        1
    ]
    assert "'call_7'" in text and "resume first" in text


@pytest.mark.parametrize(("output", "shown"), [(0, "0"), (False, "false"), ([], "[]"), ({}, "{}"), (None, "null")])
def test_a_falsy_output_is_shown_as_it_is(api: Api, output: Any, shown: str) -> None:
    assert api.answers(api.module.results([result(ToolCall("c", "add"), output)]))[0][1] == shown


def test_results_read_the_content_and_never_the_output(api: Api) -> None:
    messages = api.module.results([result(ToolCall("c", "add"), "x" * 1000, content=[Text("short")])])
    assert api.answers(messages)[0][1] == "short"


def test_a_result_without_a_call_is_refused(api: Api) -> None:
    with pytest.raises(DefinitionError, match="no call"):
        api.module.results([ToolResult("x")])


def test_media_that_an_api_does_not_take_are_named_honestly(api: Api) -> None:
    sound = Media("audio", b"1234", "audio/wav", name="a.wav")
    text = api.answers(api.module.results([result(ToolCall("c", "add"), sound)]))[0][1]
    assert "audio of 4 bytes" in text and "a.wav" in text


def test_a_text_file_is_shown_as_its_text(api: Api) -> None:
    file = Media("file", b"a,b\n1,2\n", "text/csv")
    assert api.answers(api.module.results([result(ToolCall("c", "add"), file)]))[0][1] == "a,b\n1,2\n"


# Anthropic alone


def test_anthropic_answers_all_calls_in_one_user_message() -> None:
    messages = anthropic.results([result(ToolCall("c1", "add"), 1), result(ToolCall("c2", "add"), error="no")])
    assert messages == [
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "1"}]},
                {
                    "type": "tool_result",
                    "tool_use_id": "c2",
                    "content": [{"type": "text", "text": "no"}],
                    "is_error": True,
                },
            ],
        }
    ]


def test_anthropic_marks_the_last_tool_that_is_not_deferred_for_the_cache() -> None:
    definitions = anthropic.tools(TOOLS, cache=True, deferred=["greet"])
    assert [item.get("cache_control") for item in definitions] == [None, {"type": "ephemeral"}, None]
    assert [item.get("defer_loading") for item in definitions] == [None, None, True]


def test_anthropic_strict_leaves_optional_properties_optional() -> None:
    assert anthropic.tools(Toolset([greet]), strict=True)[0]["strict"] is True


def test_anthropic_thinking_goes_back_unchanged_and_in_place() -> None:
    response = anthropic_dict("", [ADD], "calls")
    thinking = [{"type": "thinking", "thinking": "hm", "signature": "s=="}, {"type": "redacted_thinking", "data": "x"}]
    response["content"] = [*thinking, *response["content"]]
    assert anthropic.turn(Message.model_validate(response)) == [{"role": "assistant", "content": response["content"]}]


def test_anthropic_empty_text_blocks_stay_behind() -> None:
    response = anthropic_dict("", [ADD], "calls")
    response["content"].insert(0, {"type": "text", "text": ""})
    assert [block["type"] for block in anthropic.turn(response)[0]["content"]] == ["tool_use"]


def test_anthropic_a_block_newer_than_the_sdk_goes_back_unchanged() -> None:
    response = anthropic_dict("", [], "done")
    response["content"] = [{"type": "hologram", "volume": {"x": 1}}]
    sdk = Message.construct(**response)
    assert anthropic.turn(sdk) == [{"role": "assistant", "content": response["content"]}]


def test_anthropic_server_tools_are_not_calls_of_ours() -> None:
    response = anthropic_dict("", [], "done")
    response["content"] = [{"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {"query": "x"}}]
    assert anthropic.calls(response) == []
    assert anthropic.stop(response) == "end"


def test_anthropic_a_paused_turn_is_to_be_sent_back() -> None:
    response = anthropic_dict("Searching.", [], "done") | {"stop_reason": "pause_turn"}
    assert anthropic.stop(response) == "pause"
    assert anthropic.turn(response)[0]["content"] == response["content"]


def test_anthropic_keeps_caller_and_toolset() -> None:
    response = anthropic_dict("", [ADD], "calls")
    caller = {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}
    response["content"][0] |= {"caller": caller, "toolset_name": "browser"}
    call = anthropic.calls(response)[0]
    assert call.data == {"caller": caller, "toolset_name": "browser"}
    assert anthropic.results([result(call, 1)])[0]["content"][0]["toolset_name"] == "browser"


def test_anthropic_images_and_documents_are_shown() -> None:
    blocks = [Text("Two files:"), Media("image", PNG, "image/png"), Media("file", b"%PDF", "application/pdf")]
    content = anthropic.results([result(ToolCall("c", "add"), blocks)])[0]["content"][0]["content"]
    assert [block["type"] for block in content] == ["text", "image", "document"]
    assert content[1]["source"] == {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}


def test_anthropic_an_empty_text_goes_as_its_json() -> None:
    for given in (result(ToolCall("c", "add"), ""), result(ToolCall("c", "add"), content=[])):
        assert anthropic.results([given])[0]["content"][0]["content"] == [{"type": "text", "text": '""'}]


def test_anthropic_input_that_came_as_text_is_run_and_goes_back_as_an_object() -> None:
    response = anthropic_dict("", [("c", "add", '{"a": 1}')], "calls")
    assert dict(anthropic.calls(response)[0].arguments) == {"a": 1}
    assert anthropic.turn(response)[0]["content"][0]["input"] == {"a": 1}


def test_anthropic_cannot_say_which_tools_are_allowed() -> None:
    with pytest.raises(DefinitionError, match="only"):
        anthropic.tool_choice("auto", only=["add"])


def test_anthropic_turns_parallel_calls_off_inside_the_choice() -> None:
    assert anthropic.tool_choice("required", parallel=False) == {
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True}
    }
    assert anthropic.tool_choice("none", parallel=False) == {"tool_choice": {"type": "none"}}


# OpenAI Responses alone


def test_responses_definitions_always_say_strict() -> None:
    assert [item["strict"] for item in openai_responses.tools(TOOLS)] == [False, False, False]


def test_responses_deferred_tools_are_marked() -> None:
    marks = [item.get("defer_loading") for item in openai_responses.tools(TOOLS, deferred=["add"])]
    assert marks == [None, None, True]


def test_responses_reasoning_goes_back_with_its_encrypted_content() -> None:
    response = responses_dict("", [ADD], "calls")
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
    response["output"].insert(0, reasoning)
    assert openai_responses.turn(Response.model_validate(response)) == response["output"]


def test_responses_what_is_spelled_otherwise_in_python_goes_back_as_it_came() -> None:
    response = responses_dict("", [ADD], "calls")
    response["output"][0]["async"] = True
    assert openai_responses.turn(Response.model_validate(response))[0]["async"] is True


def test_responses_a_custom_call_is_answered_as_one() -> None:
    response = responses_dict("", [], "calls")
    response["output"] = [{"type": "custom_tool_call", "id": "i", "call_id": "c", "name": "sql", "input": "select 1"}]
    call = openai_responses.calls(Response.model_validate(response))[0]
    assert dict(call.arguments) == {"input": "select 1"}
    assert openai_responses.results([result(call, "1")]) == [
        {"type": "custom_tool_call_output", "call_id": "c", "output": "1"}
    ]
    assert openai_responses.turn(response) == response["output"]


def test_responses_namespace_and_caller_go_back_with_the_answer() -> None:
    response = responses_dict("", [ADD], "calls")
    caller = {"type": "program", "caller_id": "p1"}
    response["output"][0] |= {"namespace": "maths", "caller": caller}
    item = openai_responses.results([result(openai_responses.calls(response)[0], 3)])[0]
    assert (item["namespace"], item["name"], item["caller"]) == ("maths", "add", caller)


def test_responses_a_call_that_is_incomplete_itself_must_not_run() -> None:
    response = responses_dict("", [ADD, GREET], "calls")
    response["output"][1]["status"] = "incomplete"
    assert [call.problem is None for call in openai_responses.calls(response)] == [True, False]


def test_responses_images_go_as_data_urls_and_documents_as_files() -> None:
    blocks = [Text("See:"), Media("image", PNG, "image/png"), Media("file", b"%PDF", "application/pdf", name="a.pdf")]
    output = openai_responses.results([result(ToolCall("c", "add"), blocks)])[0]["output"]
    assert output == [
        {"type": "input_text", "text": "See:"},
        {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="},
    ]


def test_responses_what_the_sdk_parsed_stays_behind() -> None:
    response = responses_dict("Text.", [ADD], "calls")
    extended = copy.deepcopy(response)
    extended["output"][0]["content"][0]["parsed"] = None
    extended["output"][1]["parsed_arguments"] = {"a": 1, "b": 2}
    assert openai_responses.turn(ParsedResponse.model_validate(extended)) == response["output"]


def test_responses_a_refusal_in_words_is_a_refusal() -> None:
    response = responses_dict("x", [], "done")
    response["output"][0]["content"] = [{"type": "refusal", "refusal": "No."}]
    assert openai_responses.stop(response) == "refused"


def test_responses_allowed_tools_are_flat_and_those_of_chat_nested() -> None:
    assert openai_responses.tool_choice("auto", only=["add"], parallel=False) == {
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "add"}]},
        "parallel_tool_calls": False,
    }
    assert openai_chat.tool_choice("required", only=["add"]) == {
        "tool_choice": {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "add"}}]},
        }
    }


@pytest.mark.parametrize("module", [openai_responses, openai_chat])
def test_openai_allowing_no_tool_is_refused(module: ModuleType) -> None:
    with pytest.raises(DefinitionError, match="none"):
        module.tool_choice("auto", only=[])


# OpenAI Chat alone


def test_chat_definitions_have_no_sign_of_deferral() -> None:
    definitions = openai_chat.tools(TOOLS, deferred=["add"], cache=True)
    assert all(item.keys() == {"type", "function"} for item in definitions)
    assert "defer_loading" not in json.dumps(definitions)


def test_chat_a_custom_call_keeps_its_kind_and_goes_back_unchanged() -> None:
    response = chat_dict("", [], "calls")
    response["choices"][0]["message"]["tool_calls"] = [
        {"id": "c", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}
    ]
    call = openai_chat.calls(ChatCompletion.model_validate(response))[0]
    assert dict(call.arguments) == {"input": "select 1"} and call.data == {"type": "custom"}
    assert openai_chat.turn(response) == [response["choices"][0]["message"]]


def test_chat_extra_fields_of_compatible_servers_go_back_unchanged() -> None:
    response = chat_dict("Hello.", [], "done")
    response["choices"][0]["message"] |= {"reasoning_content": "hm", "tool_calls": [], "function_call": None}
    assert openai_chat.turn(ChatCompletion.model_validate(response)) == [
        {"role": "assistant", "content": "Hello.", "refusal": None, "reasoning_content": "hm"}
    ]


def test_chat_arguments_that_came_as_an_object_go_back_as_text() -> None:
    response = chat_dict("", [ADD], "calls")
    response["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] = {"a": 1}
    assert dict(openai_chat.calls(response)[0].arguments) == {"a": 1}
    assert openai_chat.turn(response)[0]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'


def test_chat_what_the_sdk_parsed_stays_behind() -> None:
    response = chat_dict("", [ADD], "calls")
    message = response["choices"][0]["message"]
    extended = copy.deepcopy(response)
    extended["choices"][0]["message"]["parsed"] = None
    extended["choices"][0]["message"]["tool_calls"][0]["function"]["parsed_arguments"] = {"a": 1, "b": 2}
    assert openai_chat.turn(ParsedChatCompletion.model_validate(extended)) == [message]


def test_chat_a_refusal_in_words_is_a_refusal() -> None:
    response = chat_dict("", [], "done")
    response["choices"][0]["message"]["refusal"] = "No."
    assert openai_chat.stop(response) == "refused"


def test_chat_announced_calls_that_did_not_come_are_malformed() -> None:
    assert openai_chat.stop(chat_dict("", [], "calls")) == "malformed"


def test_chat_a_response_without_choices_is_nothing() -> None:
    assert openai_chat.turn({"choices": []}) == [] and openai_chat.stop({"choices": []}) == "other"


def test_chat_images_are_named_and_not_sent() -> None:
    content = openai_chat.results([result(ToolCall("c", "add"), Media("image", PNG, "image/png"))])[0]["content"]
    assert content.startswith("[image of 8 bytes, image/png")


def test_chat_what_a_voice_said_goes_back_by_its_id_alone() -> None:
    response = chat_dict("", [], "done")
    audio = {"id": "audio_1", "data": "AAAA", "expires_at": 1, "transcript": "Hello."}
    response["choices"][0]["message"]["audio"] = audio
    for form in (response, ChatCompletion.model_validate(response)):
        assert openai_chat.turn(form)[0]["audio"] == {"id": "audio_1"}
