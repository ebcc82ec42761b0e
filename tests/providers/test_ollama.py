"""Ollama's chat API: what only it has, streamed and not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from apis_more import MORE
from asked import ADD, PNG, TOOLS, add, result
from ollama import Message

from ferrule.errors import DefinitionError
from ferrule.providers import ollama as MODULE
from ferrule.values.call import ToolCall
from ferrule.values.content import Media, Text

API = MORE["ollama"]


def test_definitions_carry_what_its_server_reads_of_the_schema() -> None:
    written = MODULE.tools(TOOLS, deferred=["add"], cache=True)
    assert [item["function"]["name"] for item in written] == ["greet", "add"]
    read = {key: item for key, item in add.input_schema.items() if key != "additionalProperties"}
    assert written[1]["function"]["parameters"] == read != add.input_schema


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
