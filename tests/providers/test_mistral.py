"""Mistral's chat API: what only it has, streamed and not."""

from __future__ import annotations

import re

import pytest
from apis import ADD, ALL, result

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


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_arguments_may_be_an_object(form: str) -> None:
    response = API.write("", [ADD], "calls")
    response["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] = {"a": 1, "b": 2}
    whole = API.in_form(response, form)
    assert [dict(call.arguments) for call in mistral.calls(whole)] == [{"a": 1, "b": 2}]
    assert mistral.turn(whole)[0]["tool_calls"][0]["function"]["arguments"] == {"a": 1, "b": 2}


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
