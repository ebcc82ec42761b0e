"""OpenAI's Chat Completions, and compatible servers: what only they have, streamed and not."""

from __future__ import annotations

import json
import re
from types import ModuleType
from typing import Any

import pytest
from apis import ALL, Response
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from ferrule.providers import mistral, openai_chat

API = ALL["openai_chat"]


def test_a_custom_call_keeps_its_kind_and_goes_back() -> None:
    response = API.write("", [], "calls")
    response["choices"][0]["message"]["tool_calls"] = [
        {"id": "c", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}
    ]
    call = openai_chat.calls(ChatCompletion.model_validate(response))[0]
    assert dict(call.arguments) == {"input": "select 1"} and call.data == {"type": "custom"}
    assert openai_chat.turn(response) == [response["choices"][0]["message"]]
    response["choices"][0]["message"]["tool_calls"][0]["custom"]["name"] = "sql.run"
    assert re.fullmatch("[a-zA-Z0-9_-]{1,64}", openai_chat.turn(response)[0]["tool_calls"][0]["custom"]["name"])


def test_a_refusal_in_words_is_a_refusal() -> None:
    response = API.write("", [], "done")
    response["choices"][0]["message"]["refusal"] = "No."
    assert openai_chat.stop(response) == "refused"


def test_announced_calls_that_did_not_come_are_malformed() -> None:
    assert openai_chat.stop(API.write("", [], "calls")) == "malformed"


def test_a_voice_goes_back_by_its_id_alone() -> None:
    response = API.write("", [], "done")
    audio = {"id": "audio_1", "data": "AAAA", "expires_at": 1, "transcript": "Hello."}
    response["choices"][0]["message"]["audio"] = audio
    for form in (response, ChatCompletion.model_validate(response)):
        assert openai_chat.turn(form)[0]["audio"] == {"id": "audio_1"}


@pytest.mark.parametrize("empty", [None, {"name": "", "arguments": ""}, "x"])
def test_an_empty_function_call_stays_behind(empty: Any) -> None:
    response = API.write("Done.", [], "done")
    response["choices"][0]["message"]["function_call"] = empty
    assert "function_call" not in openai_chat.turn(response)[0]
    response["choices"][0]["message"]["function_call"] = {"name": "add", "arguments": "{}"}
    assert openai_chat.turn(response)[0]["function_call"] == {"name": "add", "arguments": "{}"}


@pytest.mark.parametrize(
    "content", [{"type": "text", "text": "Done."}, {"text": "Done."}, ["Do", {"type": "text", "text": "ne."}]], ids=str
)
def test_content_that_is_a_part_is_text(content: Any) -> None:
    response = API.write("x", [], "done")
    response["choices"][0]["message"]["content"] = content
    assert openai_chat.text(response) == "Done."
    assert openai_chat.text({"choices": [{"message": {"content": {"type": "image_url", "text": "no"}}}]}) == ""
    json.dumps(openai_chat.turn(response))


@pytest.mark.parametrize("where", ["choice", "beside"])
@pytest.mark.parametrize("way", ["whole", "stream"])
def test_calls_beside_an_error_do_not_run(way: str, where: str) -> None:
    response = API.write("", [("call_a", "add", {"a": 1, "b": 2})], "calls")
    error = {"message": "boom", "code": "server_error"}
    if way == "whole":
        (response["choices"][0] if where == "choice" else response)["error"] = error
        calls, stop, reason = openai_chat.calls(response), openai_chat.stop(response), openai_chat.reason(response)
    else:
        stream = openai_chat.Stream()
        *events, last = API.events(response)
        content = {"index": 0, "delta": {"content": "x"}, "finish_reason": None}
        broken = {"choices": [content | ({"error": error} if where == "choice" else {})]}
        for event in [*events, broken | ({"error": error} if where == "beside" else {}), last]:
            stream.feed(event)
        calls, stop, reason = stream.calls(), stream.stop, stream.reason
    assert [call.problem is not None for call in calls] == [True]
    assert stop == "other" and "boom" in str(reason)


# Streams


def feed(*events: Any) -> Any:
    return API.feed(events)


def chunk(*calls: Response, reason: str | None = None) -> Response:
    return {"id": "x", "choices": [{"index": 0, "delta": {"tool_calls": list(calls)}, "finish_reason": reason}]}


def piece(index: int | None, arguments: Any, name: str | None = None, id: str | None = None) -> Response:
    found: Response = {"function": {"arguments": arguments} | ({"name": name} if name else {})}
    return found | ({"id": id} if id is not None else {}) | ({} if index is None else {"index": index})


END = {"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}


def chat_calls(*pieces: Response) -> list[tuple[str, Any]]:
    stream = feed(*map(chunk, pieces), END)
    assert len({call.id for call in stream.calls()}) == len(stream.calls())
    return [(call.name, call.raw) for call in stream.calls()]


@pytest.mark.parametrize(
    "pieces",
    [
        # every call under the index 0, with ids of their own
        [piece(0, '{"a":1}', "one", "i1"), piece(0, '{"a":2}', "two", "i2")],
        # whole calls without ids, all under the index 0 or under none
        [piece(0, '{"a":1}', "one", ""), piece(0, '{"a":2}', "two", "")],
        [piece(None, '{"a":1}', "one"), piece(None, '{"a":2}', "two")],
        # fragments by index, in turns
        [piece(0, "{", "one", "i1"), piece(1, "{", "two", "i2"), piece(0, '"a":1}'), piece(1, '"a":2}')],
        # the id alone, in turns, under an index that says nothing
        [
            piece(0, "{", "one", "i1"),
            piece(0, "{", "two", "i2"),
            piece(0, '"a":1}', id="i1"),
            piece(0, '"a":2}', id="i2"),
        ],
        # the name and the id with every fragment
        [piece(0, '{"a":', "one", "i1"), piece(0, "1}", "one", "i1"), piece(1, '{"a":2}', "two", "i2")],
        # the id after the name
        [piece(0, "", "one"), piece(0, '{"a":1}', None, "i1"), piece(1, '{"a":2}', "two", "i2")],
        # a known id whose index is left out
        [piece(0, '{"a":', "one", "i1"), piece(1, '{"a":2}', "two", "i2"), piece(None, "1}", "one", "i1")],
    ],
)
def test_fragments_find_their_call(pieces: list[Response]) -> None:
    assert chat_calls(*pieces) == [("one", '{"a":1}'), ("two", '{"a":2}')]


def test_a_name_in_pieces_is_put_together() -> None:
    assert chat_calls(piece(0, "", "read_", "i"), piece(0, "", "notes", "i"), piece(0, "{}")) == [("read_notes", "{}")]


def test_fields_of_compatible_servers_return_with_the_turn() -> None:
    call = piece(0, "{}", "one", "i1") | {"extra_content": {"google": {"thought_signature": "sig"}}}
    first = {"role": "assistant", "reasoning_content": "step "}
    deltas = [first, {"role": "assistant", "reasoning_content": "by step"}, {"tool_calls": [call]}]
    details = [{"type": "reasoning.text", "index": 0, "text": text} for text in ("ab", "cd")]
    deltas += [{"reasoning_details": [item]} for item in details]
    for form in (dict, ChatCompletionChunk.model_validate):
        stream = openai_chat.Stream()
        for delta in deltas:
            base = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
            stream.feed(form({**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}))
        stream.feed(END)
        (message,) = stream.turn()
        assert message["role"] == "assistant" and message["reasoning_content"] == "step by step"
        assert message["reasoning_details"] == [{"type": "reasoning.text", "index": 0, "text": "abcd"}]
        assert message["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": "sig"}}


def test_another_choice_is_not_read() -> None:
    other = chunk(piece(0, '{"a":9}', "nine", "i9"))
    other["choices"][0]["index"] = 1
    assert [c.name for c in feed(chunk(piece(0, "{}", "one", "i")), other, END).calls()] == ["one"]


@pytest.mark.parametrize("arguments", ["", '{"a":1}', {"a": 1}])
@pytest.mark.parametrize("index", [0, None])
def test_two_calls_in_one_delta_are_two(arguments: Any, index: int | None) -> None:
    calls = [piece(index, arguments, "one"), piece(index, arguments, "one")]
    stream = feed(chunk(*calls), END)
    assert [call.name for call in stream.calls()] == ["one", "one"]
    assert len({call.id for call in stream.calls()}) == 2
    assert len({str(call.raw) for call in stream.calls()}) == 1


@pytest.mark.parametrize("module", [openai_chat, mistral])
@pytest.mark.parametrize("more", [{}, {"role": "assistant"}])
def test_usage_beside_a_chunk_of_text_is_kept(module: ModuleType, more: Response) -> None:
    stream = module.Stream()
    for count in (1, 2):
        choice = {"index": 0, "delta": {**more, "content": "a"}, "finish_reason": None}
        stream.feed({"id": "c", "choices": [choice], "usage": {"completion_tokens": count}})
    assert stream.partial()["usage"] == {"completion_tokens": 2}


@pytest.mark.parametrize(
    ("pieces", "raws"),
    [
        (['{"a": "\\', '"{"}', '{"c": 1}'], ['{"a": "\\"{"}', '{"c": 1}']),
        (['{"a": "x\\\\"}', '{"c": 1}'], ['{"a": "x\\\\"}', '{"c": 1}']),
        (["{}", "{}", "{}"], ["{}", "{}", "{}"]),
        (["{a}", "{}"], ["{a}{}"]),
        (["{} x", "{}"], ["{} x{}"]),
    ],
)
def test_a_fragment_with_a_name_begins_a_call_if_the_last_is_whole(pieces: list[str], raws: list[str]) -> None:
    stream = openai_chat.Stream()
    for text in pieces:
        call = {"index": 0, "function": {"name": "add", "arguments": text}}
        stream.feed({"id": "c", "choices": [{"index": 0, "delta": {"tool_calls": [call]}}]})
    assert [call.raw for call in stream.calls()] == raws


# What a server says in each chunk anew

CHUNK = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def message(form: str, deltas: list[Response]) -> Response:
    """The assistant's message that these deltas come to."""
    chunks = [{**CHUNK, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    end = {**CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    [found] = API.feed([*chunks, end], form).turn()
    return found


@pytest.mark.parametrize("form", ["dict", "sdk"])
@pytest.mark.parametrize("key", ["role", "channel"])
def test_a_field_that_each_chunk_repeats_is_said_once(key: str, form: str) -> None:
    """At the top of a message, in an object in it, and in a call."""
    said = "assistant" if key == "role" else "analysis"
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "add", "arguments": ""}}
    deltas: list[Response] = [{"content": "Hi"}]
    deltas += [{"content": "!", key: said, "meta": {key: said}}] * 2
    deltas += [{"tool_calls": [{**call, "extra_content": {key: said}}]}]
    deltas += [{"tool_calls": [{"index": 0, "function": {"arguments": "{}"}, "extra_content": {key: said}}]}]
    found = message(form, deltas)
    assert found["content"] == "Hi!!"
    assert (found[key], found["meta"], found["tool_calls"][0]["extra_content"]) == (said, {key: said}, {key: said})


@given(st.lists(st.sampled_from(["ha", "", " ", "x"]), min_size=1, max_size=6))
@pytest.mark.parametrize("key", ["content", "reasoning_content"])
def test_a_text_is_continued_though_it_repeats_itself(key: str, chunks: list[str]) -> None:
    found = message("dict", [{"content": "."}, *({key: chunk} for chunk in chunks)])
    assert found[key] == "." * (key == "content") + "".join(chunks)
    details = [{"index": 0, "type": "reasoning.text", "text": chunk, "format": "f"} for chunk in chunks]
    found = message("dict", [{"content": "."}, *({"reasoning_details": [one]} for one in details)])
    assert found["reasoning_details"] == [{**details[0], "text": "".join(chunks)}]
