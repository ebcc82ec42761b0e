"""Ollama's chat API: what only it has, streamed and not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from apis_more import MORE, Asked
from ollama import Message

from ferrule import Toolset, tool
from ferrule.core.content import Media, Text
from ferrule.core.errors import DefinitionError
from ferrule.core.values import ToolCall, ToolResult
from ferrule.providers import ollama as MODULE

API = MORE["ollama"]

ADD: Asked = ("call_a", "add", {"a": 1, "b": 2})
GREET: Asked = ("call_b", "greet", {"name": "Ada"})
PNG = b"\x89PNG\r\n\x1a\n"


@tool(read_only=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def greet(name: str, greeting: str = "Hello") -> str:
    """Greet somebody."""
    return f"{greeting} {name}"


TOOLS = Toolset([add, greet])


def result(call: ToolCall, output: Any = None, **more: Any) -> ToolResult:
    return ToolResult(output, call=call, tool_name=call.name, **more)


def seen(calls: list[ToolCall]) -> list[Any]:
    return [(call.id, call.name, dict(call.arguments), call.problem, call.data) for call in calls]


@pytest.mark.parametrize("form", ["dict", "sdk"])
@pytest.mark.parametrize("asked", [[], [ADD], [ADD, GREET]])
def test_a_stream_says_what_the_response_says(form: str, asked: list[Asked]) -> None:
    response = API.write("Let me see.", asked, "calls" if asked else "done")
    stream, whole = API.fed(API.events(response, list), form), API.read(response, form)
    assert seen(stream.calls()) == seen(MODULE.calls(whole)) == seen(MODULE.calls(stream.partial()))
    assert stream.turn() == MODULE.turn(whole)
    assert stream.stop == MODULE.stop(whole) == ("calls" if asked else "end")


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_a_stream_that_ends_early_runs_nothing(form: str) -> None:
    events = list(API.events(API.write("Text.", [ADD, GREET], "calls"), list))
    stream, ended = MODULE.Stream(), False
    for event in events:
        assert ended or all(call.problem and "Nothing was run" in call.problem for call in stream.calls())
        assert ended or stream.stop == "other"
        stream.feed(API.sdk_event(event) if form == "sdk" else event)
        ended = ended or stream.stop != "other"
    assert [call.problem for call in stream.calls()] == [None, None]


@pytest.mark.parametrize("missing", [None, "", "null"])
def test_missing_ids_are_derived_alike_with_and_without_a_stream(missing: str | None) -> None:
    response = API.write("", [(missing, "add", {"a": 1}), (missing, "add", {"a": 1})], "calls")
    ids = [call.id for call in MODULE.calls(response)]
    assert len(set(ids)) == 2 and all(ids)
    stream = API.fed(API.events(response, list))
    assert [call.id for call in stream.calls()] == [call.id for call in MODULE.calls(stream.partial())] == ids
    assert API.ids(MODULE.turn(response)) == API.ids(stream.turn()) == (ids if API.call_ids else [])


def test_a_cut_turn_runs_nothing() -> None:
    response = API.write("", [ADD], "cut")
    for calls in (MODULE.calls(response), API.fed(API.events(response)).calls()):
        assert [call.problem and "cut off" in call.problem for call in calls] == [True]
    assert MODULE.stop(response) == "cut"


def test_what_is_no_event_is_passed_over() -> None:
    stream = MODULE.Stream()
    for junk in (
        None,
        1,
        "x",
        [],
        {},
        {"data": None},
        {"type": "?"},
        {"choices": [None]},
        {"message": 1},
        {"delta": []},
    ):
        stream.feed(junk)
    assert stream.calls() == [] and stream.turn() == [] and stream.stop == "other"


def test_definitions_carry_the_schema_as_it_is() -> None:
    written = MODULE.tools(TOOLS, deferred=["add"], cache=True)
    assert [item["function"]["name"] for item in written] == ["greet", "add"]
    assert written[1]["function"]["parameters"] is add.input_schema


def test_strict_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"'add'.*Ollama"):
        MODULE.tools(TOOLS, strict=["add"])
    with pytest.raises(DefinitionError, match="'subtract'"):
        MODULE.tools(TOOLS, strict=["subtract"])


@pytest.mark.parametrize(
    "said", [{"choice": "required"}, {"choice": "none"}, {"choice": "add"}, {"parallel": False}, {"only": ["add"]}]
)
def test_this_api_has_no_choice(said: dict[str, Any]) -> None:
    assert MODULE.tool_choice("auto") == {}
    with pytest.raises(DefinitionError, match="Ollama"):
        MODULE.tool_choice(**said)


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_ids_come_from_the_time_stamp_and_the_place(form: str) -> None:
    response = API.write("", [ADD, ADD], "calls")
    later = response | {"created_at": "2026-11-20T00:00:01Z"}
    ids = [call.id for item in (response, later, response) for call in MODULE.calls(API.read(item, form))]
    assert ids[:2] == ids[4:] and len(set(ids)) == 4


def test_an_id_that_a_server_sends_is_kept() -> None:
    response = API.write("", [ADD], "calls")
    response["message"]["tool_calls"][0]["id"] = "call_x"
    assert [call.id for call in MODULE.calls(response)] == ["call_x"]
    assert MODULE.turn(response)[0]["tool_calls"][0]["id"] == "call_x"


@pytest.mark.parametrize("bad", ["{oops", "[1]", '{"a": NaN}', None, 3])
def test_arguments_that_are_no_object_go_back_as_an_empty_one(bad: Any) -> None:
    response = API.write("", [("", "add", bad)], "calls")
    assert MODULE.turn(response)[0]["tool_calls"][0]["function"]["arguments"] == {}


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_thinking_goes_back(form: str) -> None:
    response = API.write("So.", [ADD], "calls")
    response["message"]["thinking"] = "Hm."
    for turn in (MODULE.turn(API.read(response, form)), API.fed(API.events(response, list), form).turn()):
        assert turn == [{"role": "assistant", **response["message"]}]


def test_a_reason_that_is_not_known_runs_nothing() -> None:
    response = API.write("", [ADD], "calls") | {"done_reason": "unload"}
    assert MODULE.stop(response) == "other"
    assert [call.problem and "unload" in call.problem for call in MODULE.calls(response)] == [True]


def test_results_stand_in_the_order_of_their_calls_with_the_tools_names() -> None:
    image = Media("image", PNG, "image/png")
    messages = MODULE.results(
        [result(ToolCall("1", "add"), [Text("See:"), image]), result(ToolCall("2", "f"), error="no")]
    )
    assert [(message["role"], message["tool_name"]) for message in messages] == [("tool", "add"), ("tool", "f")]
    assert messages[0]["content"].startswith("See:\n[image of 8 bytes, image/png")
    assert messages[1]["content"] == "Error: no"
    assert [Message.model_validate(message).tool_name for message in messages] == ["add", "f"]


def test_what_goes_back_is_valid_json() -> None:
    response = API.write("a\ud800b", [("", "add", {"n": float("nan"), "s": "\ud800", "i": 10**5000})], "calls")
    json.dumps(MODULE.turn(response), ensure_ascii=False, allow_nan=False).encode()
