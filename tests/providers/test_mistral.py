"""Mistral's chat API: what only it has, streamed and not."""

from __future__ import annotations

import re
from typing import Any

import pytest
from apis import ADD, ALL, GREET, result

from ferrule.providers import mistral

API = ALL["mistral"]


@pytest.mark.parametrize("id", ["call_a", "123456789", "x" * 500, "\ud800"])
def test_an_id_is_nine_letters_or_digits_in_turn_and_results(id: str) -> None:
    response = API.write("", [(id, "add", {})], "calls")
    (call,) = mistral.calls(response)
    (sent,) = API.ids(mistral.turn(response))
    assert re.fullmatch("[a-zA-Z0-9]{9}", sent)
    assert API.answers(mistral.results([result(call, 1)]))[0][0] == sent == mistral.wire_id(sent)
    assert (sent == id) is (id == "123456789")


def test_the_sdks_null_is_no_id() -> None:
    response = API.write("", [ADD, GREET], "calls")
    for call in response["choices"][0]["message"]["tool_calls"]:
        del call["id"]
    for form in ("dict", "sdk"):
        ids = [call.id for call in mistral.calls(API.in_form(response, form))]
        assert len(set(ids)) == 2 and "null" not in ids and API.ids(mistral.turn(API.in_form(response, form))) == ids


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_arguments_may_be_an_object(form: str) -> None:
    response = API.write("", [ADD], "calls")
    response["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] = {"a": 1, "b": 2}
    whole = API.in_form(response, form)
    assert [dict(call.arguments) for call in mistral.calls(whole)] == [{"a": 1, "b": 2}]
    assert mistral.turn(whole)[0]["tool_calls"][0]["function"]["arguments"] == {"a": 1, "b": 2}


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
        calls = API.feed(chunks, form).calls()
        assert [dict(call.arguments) for call in calls] == [{"a": 1}, {"a": 1}]
        assert len({call.id for call in calls}) == 2 and not any(call.problem for call in calls)


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_thinking_goes_back_with_its_signature_and_as_one(form: str) -> None:
    response = API.write("", [ADD], "calls")
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}], "signature": "s=="}
    response["choices"][0]["message"]["content"] = [thought, {"type": "text", "text": "So."}]
    assert mistral.turn(API.in_form(response, form))[0]["content"] == [thought, {"type": "text", "text": "So."}]
    events = list(API.events(response))
    start = {"type": "thinking", "thinking": [{"type": "text", "text": "H"}]}
    events[1]["choices"][0]["delta"]["content"] = [start]
    events.insert(2, {**events[1], "choices": [{"index": 0, "delta": {"content": [thought]}, "finish_reason": None}]})
    content = API.feed(events, form).turn()[0]["content"]
    assert content[0] == {**thought, "thinking": [{"type": "text", "text": "HHm."}]}
    assert content[1] == {"type": "text", "text": "So."}
