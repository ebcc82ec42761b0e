"""Cohere's chat API: what only it has, streamed and not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from apis_more import MORE
from asked import ADD, PNG, TOOLS, result

from ferrule import Toolset
from ferrule.errors import DefinitionError
from ferrule.providers import cohere as MODULE
from ferrule.values.call import ToolCall
from ferrule.values.content import Media, Text

API = MORE["cohere"]


def test_definitions_have_no_sign_of_strictness() -> None:
    assert "strict" not in json.dumps(MODULE.tools(TOOLS, strict=True))


def test_strict_for_some_tools_is_refused_and_says_what_to_do() -> None:
    with pytest.raises(DefinitionError, match="strict_tools=True"):
        MODULE.tools(TOOLS, strict=["add"])
    with pytest.raises(DefinitionError, match="'subtract'"):
        MODULE.tools(TOOLS, strict=["subtract"])


@pytest.mark.parametrize(
    ("properties", "required", "rule"),
    [
        ({"x": {}}, ["x"], r"\$\.properties\.x.*without a type"),
        ({"x": {"type": "integer"}}, [], "required"),
        ({f"x{n}": {"type": "integer"} for n in range(201)}, ["x0"], "200.*201"),
    ],
)
def test_strict_refuses_what_the_api_cannot_hold(properties: dict[str, Any], required: list[str], rule: str) -> None:
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    odd = Toolset([{"name": "odd", "input_schema": schema, "execute": lambda input: input}])
    with pytest.raises(DefinitionError, match=f"Cohere.*{rule}"):
        MODULE.tools(odd, strict=True)
    assert MODULE.tools(odd)


def test_a_choice_is_required_or_none_or_not_said() -> None:
    said = [MODULE.tool_choice(choice) for choice in ("auto", "required", "none")]
    assert said == [{}, {"tool_choice": "REQUIRED"}, {"tool_choice": "NONE"}]


@pytest.mark.parametrize("said", [{"choice": "add"}, {"parallel": False}, {"only": ["add"]}, {"choice": ""}])
def test_what_this_api_cannot_say_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match="Cohere"):
        MODULE.tool_choice(**said)


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_the_plan_goes_back_with_the_calls(form: str) -> None:
    response = API.write("I will add.", [ADD], "calls")
    for turn in (MODULE.turn(API.read(response, form)), API.fed(API.events(response, list), form).turn()):
        assert turn[0]["tool_plan"] == "I will add."
        assert turn[0]["tool_calls"] == response["message"]["tool_calls"]


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_arguments_that_are_null_are_none_and_go_back_as_an_object(form: str) -> None:
    response = API.write("", [ADD], "calls")
    response["message"]["tool_calls"][0]["function"]["arguments"] = None
    whole = API.read(response, form)
    assert [dict(call.arguments) for call in MODULE.calls(whole)] == [{}]
    assert MODULE.turn(whole)[0]["tool_calls"][0]["function"]["arguments"] == "{}"


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_thinking_and_text_are_two_items(form: str) -> None:
    response = API.write("So.", [], "done")
    response["message"]["content"].insert(0, {"type": "thinking", "thinking": "Hm."})
    assert API.fed(API.events(response, list), form).turn() == MODULE.turn(API.read(response, form))
    assert [item["type"] for item in MODULE.turn(response)[0]["content"]] == ["thinking", "text"]


def test_citations_go_back() -> None:
    response = API.write("So.", [], "done")
    citation = {"start": 0, "end": 2, "text": "So", "sources": []}
    events = list(API.events(response))
    events.insert(-1, {"type": "citation-start", "index": 0, "delta": {"message": {"citations": citation}}})
    for form in ("dict", "sdk"):
        assert API.fed(events, form).turn()[0]["citations"] == [citation]


def test_calls_are_routed_by_index_and_a_start_under_a_used_one_is_a_new_call() -> None:
    def event(kind: str, index: int, **call: Any) -> dict[str, Any]:
        return {"type": f"tool-call-{kind}", "index": index, "delta": {"message": {"tool_calls": call}}}

    def more(index: int, text: str) -> dict[str, Any]:
        return event("delta", index, function={"arguments": text})

    begun = [event("start", index, id=id, function={"name": "f"}) for index, id in ((0, "a"), (1, "b"))]
    stream = API.fed([*begun, more(1, '{"x"'), more(0, "{}"), more(1, ": 1}"), event("start", 0, id="c"), more(0, "{")])
    assert [(call.id, call.raw) for call in stream.calls()] == [("a", "{}"), ("b", '{"x": 1}'), ("c", "{")]


@pytest.mark.parametrize("reason", ["ERROR", "TIMEOUT", "BRAND_NEW"])
def test_a_turn_that_did_not_end_well_runs_nothing(reason: str) -> None:
    response = API.write("", [ADD], "calls") | {"finish_reason": reason}
    assert MODULE.stop(response) == "other"
    assert [call.problem and reason in call.problem for call in MODULE.calls(response)] == [True]


def test_an_error_is_the_data_of_a_document() -> None:
    assert MODULE.results([result(ToolCall("c", "add"), error="no")]) == [
        {
            "role": "tool",
            "tool_call_id": "c",
            "content": [{"type": "document", "document": {"data": {"error": "no"}}}],
        }
    ]


def test_an_empty_text_goes_as_its_json_and_an_image_as_an_honest_text() -> None:
    for given in (result(ToolCall("c", "add"), ""), result(ToolCall("c", "add"), content=[])):
        assert MODULE.results([given])[0]["content"] == [{"type": "document", "document": {"data": {"output": '""'}}}]
    blocks = [Text("See:"), Media("image", PNG, "image/png")]
    content = MODULE.results([result(ToolCall("c", "add"), blocks)])[0]["content"]
    texts = [block["document"]["data"]["output"] for block in content]
    assert texts[0] == "See:" and texts[1].startswith("[image of 8 bytes, image/png")
