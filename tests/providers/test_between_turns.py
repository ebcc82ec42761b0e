"""What is kept from one turn to the next: repaired arguments, why a turn ended, and an answer that is no text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from apis import ADD, ALL, WAYS, Response, dicts_in
from hypothesis import given
from hypothesis import strategies as st

from ferrule import Runner, tool
from ferrule.loop import LoopResult, run
from ferrule.models import Reply, Scripted
from ferrule.providers import openai_chat

TEXT_ARGUMENTS = [name for name, api in ALL.items() if api.text_arguments]


def arguments_in(turn: list[Response]) -> list[Any]:
    """The arguments in a turn, as objects."""
    found = [item[key] for item in dicts_in(turn) for key in ("arguments", "input", "args") if key in item]
    return [json.loads(value) if isinstance(value, str) else value for value in found]


# Arguments that were repaired

REPAIRED = [
    ('{"a": 1, "b": 2,}', {"a": 1, "b": 2}),
    ('```json\n{"a": 1, "b": 2}\n```', {"a": 1, "b": 2}),
    ('"{\\"a\\": 1, \\"b\\": 2}"', {"a": 1, "b": 2}),
    ("", {}),
    ("{oops", {}),
]


@pytest.mark.parametrize(("text", "meant"), REPAIRED)
def test_arguments_go_back_as_the_repairs_read_them(text: str, meant: Any) -> None:
    for name in TEXT_ARGUMENTS:
        for way in WAYS:
            calls, turn, _ = ALL[name].read(ALL[name].write("", [("call_a", "add", text)], "calls"), way)
            assert arguments_in(turn) == [meant], (name, way)
            assert [call.raw for call in calls] == [text]


def test_arguments_that_need_no_repair_go_back_letter_by_letter() -> None:
    text = '{ "a":1.0,"b" : 2e3}'
    (message,) = openai_chat.turn(ALL["openai_chat"].write("", [("call_a", "add", text)], "calls"))
    assert message["tool_calls"][0]["function"]["arguments"] == text


@given(st.text(st.sampled_from('{}[]":,\\ \n1ae'), max_size=24))
def test_any_arguments_go_back_as_the_json_of_an_object(text: str) -> None:
    for name in [*TEXT_ARGUMENTS, "anthropic", "ollama"]:
        turn = ALL[name].module.turn(ALL[name].write("", [("call_a", "add", text)], "calls"))
        assert [type(found) for found in arguments_in(turn)] == [dict], name


@pytest.mark.parametrize("form", ["dict", "sdk"])
@pytest.mark.parametrize("name", [*TEXT_ARGUMENTS, "anthropic", "interactions", "bedrock"])
def test_an_empty_object_before_the_arguments_is_no_part_of_them(name: str, form: str) -> None:
    api = ALL[name]
    events = api.events(api.write("", [("call_a", "add", {"a": 1, "b": 2})], "calls"), lambda text: ["{}", *text])
    stream = api.feed(events, form)
    assert [dict(call.arguments) for call in stream.calls()] == [{"a": 1, "b": 2}]
    assert arguments_in(stream.turn()) == [{"a": 1, "b": 2}]
    empty = api.feed(api.events(api.write("", [("call_a", "add", {}), ("call_b", "add", {})], "calls")), form)
    assert [(dict(call.arguments), call.problem) for call in empty.calls()] == [({}, None)] * 2
    assert arguments_in(empty.turn()) == [{}, {}]


# Why a turn ended

STOPS = {
    "anthropic": {"weird": "other", "error": "other"},
    "openai_chat": {"weird": "other", "error": "other", "eos": "calls", "end_turn": "calls", "STOP": "calls"},
    "gemini": {
        **dict.fromkeys(["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE"], "malformed"),
        "LANGUAGE": "other",
    },
    "interactions": {"failed": "other", "cancelled": "other", "brand_new": "other", "queued": "other"},
    "bedrock": {
        "malformed_tool_use": "malformed",
        "malformed_model_output": "malformed",
        "guardrail_intervened": "refused",
        "content_filtered": "refused",
        "brand_new": "other",
    },
    "mistral": {"error": "other"},
    "cohere": {"ERROR": "other", "TIMEOUT": "other", "BRAND_NEW": "other"},
    "ollama": {"unload": "other"},
}


def with_word(name: str, response: Response, word: Any) -> Response:
    """The response with this word for its end."""
    if name in ("openai_chat", "mistral"):
        response["choices"][0]["finish_reason"] = word
    elif name == "gemini":
        response["candidates"][0]["finishReason"] = word
    else:
        keys = {"anthropic": "stop_reason", "bedrock": "stopReason", "cohere": "finish_reason", "ollama": "done_reason"}
        response[keys.get(name, "status")] = word
    return response


@pytest.mark.parametrize(("name", "word"), [(name, word) for name, words in STOPS.items() for word in words])
def test_the_words_of_an_api_say_how_a_turn_ended(name: str, word: str) -> None:
    api, stop = ALL[name], STOPS[name][word]
    response = with_word(name, api.write("Text.", [ADD], "calls"), word)
    whole = api.in_form(response, "sdk" if name == "gemini" else "dict")
    stream = api.feed(api.events(response))
    assert api.module.stop(whole) == stream.stop == stop
    for call in (*api.module.calls(whole), *stream.calls()):
        assert (call.problem is None) if stop == "calls" else word in str(call.problem)
    reason = api.module.reason(whole)
    assert reason is None if stop == "calls" else word in str(reason)


def test_a_bedrock_turn_without_its_call_is_malformed() -> None:
    response = ALL["bedrock"].write("Text.", [], "calls")
    assert ALL["bedrock"].module.stop(response) == "malformed"
    assert "'tool_use'" in str(ALL["bedrock"].module.reason(response))


@pytest.mark.parametrize("name", [name for name in ALL if name != "anthropic"])
def test_most_apis_need_nothing_but_the_messages(name: str) -> None:
    api = ALL[name]
    response = api.write("", [ADD], "calls")
    assert api.module.state(response) == api.feed(api.events(response)).state() == {}


# An answer that is no text

THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "An image of a cat."}]}
DRAWN = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "aGk="}
FILE = {"type": "file", "file_id": "3f0b6a1c-5d2e-4c8e-9a53-0d8a4c1b7e11"}
MEDIA: dict[str, Response] = {
    "openai_responses": {"output": [THOUGHT, DRAWN]},
    "openai_chat": {"content": None, "audio": {"id": "a", "data": "aGk=", "expires_at": 1, "transcript": "Hi."}},
    "gemini": {"parts": [{"inlineData": {"mimeType": "image/png", "data": "aGk="}}]},
    "interactions": {"steps": [{"type": "model_output", "content": [{"type": "image", "data": "aGk="}]}]},
    "bedrock": {"content": [{"image": {"format": "png", "source": {"bytes": b"hi"}}}]},
    "mistral": {"content": [FILE]},
}


def with_content(name: str, content: Response) -> Response:
    """A response that ended, and says this."""
    response: Response = ALL[name].write("", [], "done")
    if name in ("openai_chat", "mistral"):
        response["choices"][0]["message"] |= content
    elif name == "gemini":
        response["candidates"][0]["content"] |= content
    elif name == "bedrock":
        response["output"]["message"] |= content
    else:
        response |= content
    return response


async def run_with(name: str, response: Any) -> LoopResult:
    """What the loop makes of this answer."""
    read = ALL[name].module
    said = Reply(read.text(response), read.calls(response), read.turn(response), read.stop(response))
    return await run(Scripted([said]), [], Runner([]))


@pytest.mark.parametrize("name", MEDIA)
async def test_an_image_a_sound_or_a_file_alone_is_an_answer(name: str) -> None:
    for form in ("dict", "sdk"):
        found = await run_with(name, ALL[name].in_form(with_content(name, MEDIA[name]), form))
        assert (found.status, found.text.strip(), found.reason) == ("done", "", None)


async def test_thoughts_alone_are_no_answer() -> None:
    response = with_content("openai_responses", {"output": [THOUGHT]})
    assert (await run_with("openai_responses", response)).status == "failed"
    message = {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}]}
    assert Reply("", (), [message]).is_empty


# Another answer in the same stream

BEGIN = ["anthropic", "openai_responses", "cohere", "interactions"]
"""The APIs whose streams begin with the id of the response."""


@pytest.mark.parametrize("form", ["dict", "sdk"])
@pytest.mark.parametrize("name", BEGIN)
def test_an_answer_that_another_replaces_runs_nothing(name: str, form: str) -> None:
    api = ALL[name]
    first = {**api.write("One.", [("call_1", "pay", {"to": "ada"})], "calls"), "id": "resp_first"}
    second = api.write("Two.", [("call_2", "pay", {"to": "bob"})], "calls")
    before = list(api.events(first))
    paid = []

    @tool
    def pay(to: str) -> str:
        """Pay somebody."""
        paid.append(to)
        return to

    alone = api.feed(api.events(second), form)
    for cut in range(1, len(before) + 1):
        stream = api.feed([*before[:cut], *api.events(second)], form)
        assert (stream.turn(), stream.stop) == (alone.turn(), "calls"), before[cut - 1]
        assert [call.id for call in stream.calls()] == ["call_2"]
    Runner([pay]).run_sync(stream.calls()[0])
    assert paid == ["bob"]
