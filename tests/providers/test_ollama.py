"""Ollama's chat API: what only it has, streamed and not."""

from __future__ import annotations

from typing import Any

import pytest
from apis import ADD, ALL, TOOLS, add, read_notes

from ferrule.providers import ollama

API = ALL["ollama"]


def test_definitions_carry_what_its_server_reads_of_the_schema() -> None:
    written = ollama.tools(TOOLS, deferred=["add"], cache=True)
    assert [item["function"]["name"] for item in written] == ["greet", read_notes.wire_name, "add"]
    read = {key: item for key, item in add.input_schema.items() if key != "additionalProperties"}
    assert written[2]["function"]["parameters"] == read != add.input_schema


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_ids_come_from_the_time_stamp_and_the_place(form: str) -> None:
    response = API.write("", [ADD, ADD], "calls")
    later = response | {"created_at": "2026-11-20T00:00:01Z"}
    ids = [call.id for item in (response, later, response) for call in ollama.calls(API.in_form(item, form))]
    assert ids[:2] == ids[4:] and len(set(ids)) == 4


def test_an_id_that_a_server_sends_is_kept() -> None:
    response = API.write("", [ADD], "calls")
    response["message"]["tool_calls"][0]["id"] = "call_x"
    assert [call.id for call in ollama.calls(response)] == ["call_x"]
    assert ollama.turn(response)[0]["tool_calls"][0]["id"] == "call_x"


@pytest.mark.parametrize("bad", ["{oops", "[1]", '{"a": NaN}', None, 3])
def test_arguments_that_are_no_object_go_back_as_an_empty_one(bad: Any) -> None:
    response = API.write("", [("", "add", bad)], "calls")
    assert ollama.turn(response)[0]["tool_calls"][0]["function"]["arguments"] == {}


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_thinking_goes_back(form: str) -> None:
    response = API.write("So.", [ADD], "calls")
    response["message"]["thinking"] = "Hm."
    for turn in (ollama.turn(API.in_form(response, form)), API.feed(API.events(response, list), form).turn()):
        assert turn == [{"role": "assistant", **response["message"]}]
