"""Cohere's chat API: what only it has, streamed and not."""

from __future__ import annotations

from typing import Any

import pytest
from apis import ADD, ALL

from ferrule.providers import cohere

API = ALL["cohere"]


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_the_plan_goes_back_with_the_calls(form: str) -> None:
    response = API.write("I will add.", [ADD], "calls")
    for turn in (cohere.turn(API.in_form(response, form)), API.feed(API.events(response, list), form).turn()):
        assert turn[0]["tool_plan"] == "I will add."
        assert turn[0]["tool_calls"] == response["message"]["tool_calls"]


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_arguments_that_are_null_are_none_and_go_back_as_an_object(form: str) -> None:
    response = API.write("", [ADD], "calls")
    response["message"]["tool_calls"][0]["function"]["arguments"] = None
    whole = API.in_form(response, form)
    assert [dict(call.arguments) for call in cohere.calls(whole)] == [{}]
    assert cohere.turn(whole)[0]["tool_calls"][0]["function"]["arguments"] == "{}"


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_thinking_and_text_are_two_items(form: str) -> None:
    response = API.write("So.", [], "done")
    response["message"]["content"].insert(0, {"type": "thinking", "thinking": "Hm."})
    assert API.feed(API.events(response, list), form).turn() == cohere.turn(API.in_form(response, form))
    assert [item["type"] for item in cohere.turn(response)[0]["content"]] == ["thinking", "text"]


def test_citations_go_back() -> None:
    response = API.write("So.", [], "done")
    citation = {"start": 0, "end": 2, "text": "So", "sources": []}
    events = list(API.events(response))
    events.insert(-1, {"type": "citation-start", "index": 0, "delta": {"message": {"citations": citation}}})
    for form in ("dict", "sdk"):
        assert API.feed(events, form).turn()[0]["citations"] == [citation]


def test_a_start_under_a_used_index_is_a_new_call() -> None:
    def event(kind: str, index: int, **call: Any) -> dict[str, Any]:
        return {"type": f"tool-call-{kind}", "index": index, "delta": {"message": {"tool_calls": call}}}

    def more(index: int, text: str) -> dict[str, Any]:
        return event("delta", index, function={"arguments": text})

    begun = [event("start", index, id=id, function={"name": "f"}) for index, id in ((0, "a"), (1, "b"))]
    stream = API.feed(
        [*begun, more(1, '{"x"'), more(0, "{}"), more(1, ": 1}"), event("start", 0, id="c"), more(0, "{")]
    )
    assert [(call.id, call.raw) for call in stream.calls()] == [("a", "{}"), ("b", '{"x": 1}'), ("c", "{")]
