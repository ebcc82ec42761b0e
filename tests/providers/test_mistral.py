"""Mistral's chat API: what only it has, streamed and not."""

from __future__ import annotations

import re
from typing import Any

import pytest
from apis_more import MORE
from asked import ADD, GREET, PNG, TOOLS, result
from mistralai.client.models import Tool, ToolMessage

from ferrule.errors import DefinitionError
from ferrule.providers import mistral as MODULE
from ferrule.values.call import ToolCall
from ferrule.values.content import Media, Text

API = MORE["mistral"]


def test_definitions_are_those_that_the_sdk_takes() -> None:
    written = MODULE.tools(TOOLS, strict=["add"], deferred=["add"])
    assert [Tool.model_validate(item).function.name for item in written] == ["greet", "add"]
    assert [item["function"].get("strict") for item in written] == [None, True]


def test_required_is_any_and_a_name_is_a_function() -> None:
    assert MODULE.tool_choice("required") == {"tool_choice": "any"}
    assert MODULE.tool_choice("add", parallel=False) == {
        "tool_choice": {"type": "function", "function": {"name": "add"}},
        "parallel_tool_calls": False,
    }
    with pytest.raises(DefinitionError, match="Mistral"):
        MODULE.tool_choice("auto", only=["add"])


@pytest.mark.parametrize("id", ["call_a", "toolu_01A09q90qw90lq917835lq9", "123456789", "x" * 500, "ä", "\ud800"])
def test_every_id_becomes_nine_letters_or_digits_the_same_in_turn_and_results(id: str) -> None:
    response = API.write("", [(id, "add", {})], "calls")
    (call,) = MODULE.calls(response)
    (sent,) = API.ids(MODULE.turn(response))
    assert re.fullmatch("[a-zA-Z0-9]{9}", sent)
    assert API.answers(MODULE.results([result(call, 1)]))[0][0] == sent == MODULE.wire_id(sent)
    assert (sent == id) is (id == "123456789")


def test_foreign_ids_stay_apart() -> None:
    assert len({MODULE.wire_id(f"call_{number}") for number in range(10_000)}) == 10_000


def test_the_sdks_null_is_no_id() -> None:
    response = API.write("", [ADD, GREET], "calls")
    for call in response["choices"][0]["message"]["tool_calls"]:
        del call["id"]
    for form in ("dict", "sdk"):
        ids = [call.id for call in MODULE.calls(API.read(response, form))]
        assert len(set(ids)) == 2 and "null" not in ids and API.ids(MODULE.turn(API.read(response, form))) == ids


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_arguments_may_be_an_object(form: str) -> None:
    response = API.write("", [ADD], "calls")
    response["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] = {"a": 1, "b": 2}
    whole = API.read(response, form)
    assert [dict(call.arguments) for call in MODULE.calls(whole)] == [{"a": 1, "b": 2}]
    assert MODULE.turn(whole)[0]["tool_calls"][0]["function"]["arguments"] == {"a": 1, "b": 2}


@pytest.mark.parametrize("form", ["dict", "sdk"])
@pytest.mark.parametrize("index", [{}, {"index": 0}])
@pytest.mark.parametrize("arguments", ['{"a": 1}', {"a": 1}])
def test_whole_calls_without_ids_are_as_many_as_came(form: str, index: dict[str, int], arguments: Any) -> None:
    call = {"function": {"name": "add", "arguments": arguments}, **index}
    together = [{"tool_calls": [call, call]}, {}]
    apart = [{"tool_calls": [call]}, {"tool_calls": [call]}]
    for deltas in (together, apart):
        chunks = [
            {"id": "c", "model": "m", "choices": [{"index": 0, "delta": d, "finish_reason": None}]} for d in deltas
        ]
        chunks[-1]["choices"][0]["finish_reason"] = "tool_calls"
        calls = API.fed(chunks, form).calls()
        assert [dict(call.arguments) for call in calls] == [{"a": 1}, {"a": 1}]
        assert len({call.id for call in calls}) == 2 and not any(call.problem for call in calls)


def test_a_new_id_under_a_used_index_is_a_new_call_and_a_known_one_is_not() -> None:
    def chunk(id: str, text: str) -> dict[str, Any]:
        call = {"id": id, "index": 0, "function": {"name": "add", "arguments": text}}
        return {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}

    stream = API.fed([chunk("aaaaaaaaa", '{"a"'), chunk("bbbbbbbbb", "{}"), chunk("aaaaaaaaa", ": 1}")])
    assert [(call.id, call.raw) for call in stream.calls()] == [("aaaaaaaaa", '{"a": 1}'), ("bbbbbbbbb", "{}")]


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_thinking_goes_back_with_its_signature_and_as_one(form: str) -> None:
    response = API.write("", [ADD], "calls")
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}], "signature": "s=="}
    response["choices"][0]["message"]["content"] = [thought, {"type": "text", "text": "So."}]
    assert MODULE.turn(API.read(response, form))[0]["content"] == [thought, {"type": "text", "text": "So."}]
    events = list(API.events(response))
    start = {"type": "thinking", "thinking": [{"type": "text", "text": "H"}]}
    events[1]["choices"][0]["delta"]["content"] = [start]
    events.insert(2, {**events[1], "choices": [{"index": 0, "delta": {"content": [thought]}, "finish_reason": None}]})
    content = API.fed(events, form).turn()[0]["content"]
    assert content[0] == {**thought, "thinking": [{"type": "text", "text": "HHm."}]}
    assert content[1] == {"type": "text", "text": "So."}


def test_a_turn_that_ended_in_an_error_runs_nothing() -> None:
    response = API.write("", [ADD], "calls")
    response["choices"][0]["finish_reason"] = "error"
    assert MODULE.stop(response) == "other" and MODULE.calls(response)[0].problem


def test_images_and_documents_are_chunks_that_the_sdk_takes() -> None:
    files = [Media("image", PNG, "image/png"), Media("file", b"%PDF", "application/pdf", name="a.pdf")]
    (message,) = MODULE.results([result(ToolCall("c", "add"), [Text("Two files:"), *files])])
    assert [chunk["type"] for chunk in message["content"]] == ["text", "image_url", "document_url"]
    assert [chunk.type for chunk in ToolMessage.model_validate(message).content] == [
        "text",
        "image_url",
        "document_url",
    ]


def test_an_error_says_that_it_is_one() -> None:
    (message,) = MODULE.results([result(ToolCall("123456789", "add"), error="no")])
    assert message == {"role": "tool", "tool_call_id": "123456789", "name": "add", "content": "Error: no"}


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_another_choice_is_not_read(form: str) -> None:
    def chunk(index: int, text: str, reason: str | None = None) -> dict[str, Any]:
        return {"id": "c", "model": "m", "choices": [choice(index, text, reason)]}

    def choice(index: int, text: str, reason: str | None = None) -> dict[str, Any]:
        return {"index": index, "delta": {"content": text}, "finish_reason": reason}

    both = {"id": "c", "model": "m", "choices": [choice(1, "Y"), choice(0, "B")]}
    stream = API.fed([chunk(0, "A"), chunk(1, "X"), both, chunk(0, "C", "stop")], form)
    assert stream.turn() == [{"role": "assistant", "content": "ABC"}]
