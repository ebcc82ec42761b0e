"""Streams: the same calls, turn and stop as without one, however the bytes were cut, and nothing before the end."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
from anthropic import _models as anthropic_models
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from openai import _models as openai_models
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent
from test_providers import ADD, APIS, GREET, anthropic_dict, chat_dict, responses_dict

from ferrule import Runner, tool
from ferrule.providers import anthropic, mistral, openai_chat, openai_responses

Response = dict[str, Any]
Cut = Callable[[str], list[str]]


def whole(text: str) -> list[str]:
    return [text]


def letters(text: str) -> list[str]:
    return list(text)


def anthropic_events(response: Response, cut: Cut = letters) -> Iterator[Response]:
    yield {"type": "message_start", "message": {**response, "content": [], "stop_reason": None}}
    fields = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking")}
    for index, block in enumerate(response["content"]):
        start, deltas = dict(block), []
        if block["type"] == "tool_use":
            start["input"] = {}
            text = block["input"] if isinstance(block["input"], str) else json.dumps(block["input"])
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in cut(text)]
        elif block["type"] in fields:
            kind, field = fields[block["type"]]
            start[field] = ""
            deltas = [{"type": kind, field: piece} for piece in cut(block[field])]
        if "signature" in block:
            start["signature"] = ""
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        yield {"type": "content_block_start", "index": index, "content_block": start}
        yield {"type": "ping"}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    if response["stop_reason"] is not None:
        delta = {"stop_reason": response["stop_reason"], "stop_sequence": None}
        yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 4}}
        yield {"type": "message_stop"}


def responses_events(response: Response, cut: Cut = letters) -> Iterator[Response]:
    begun = {**response, "output": [], "status": "in_progress", "incomplete_details": None}
    yield {"type": "response.created", "response": begun, "sequence_number": 0}
    for index, item in enumerate(response["output"]):
        at = {"output_index": index, "item_id": item.get("id"), "sequence_number": index + 1}
        start: Response = {**item, "status": "in_progress"}
        pieces: list[Response] = []
        if item["type"] == "function_call":
            start["arguments"] = ""
            kind = "response.function_call_arguments.delta"
            pieces = [{"type": kind, "delta": piece, **at} for piece in cut(item["arguments"])]
        elif item["type"] == "message":
            start["content"] = []
            kind, text = "response.output_text.delta", item["content"][0].get("text", "")
            pieces = [{"type": kind, "delta": p, "content_index": 0, "logprobs": [], **at} for p in cut(text)]
        elif item["type"] == "reasoning":
            start = {key: value for key, value in start.items() if key != "status"} | {"encrypted_content": "early"}
        added = {"type": "response.output_item.added", "item": start, **at}
        done = {"type": "response.output_item.done", "item": item, **at}
        yield from (
            {k: v for k, v in e.items() if k != "item_id"} if "item" in e else e for e in (added, *pieces, done)
        )
    if response["status"] != "in_progress":
        yield {"type": f"response.{response['status']}", "response": response, "sequence_number": 9}


def chat_events(response: Response, cut: Cut = letters) -> Iterator[Response]:
    choice = response["choices"][0]
    base = {"id": response["id"], "object": "chat.completion.chunk", "created": 1, "model": "m"}

    def chunk(delta: Response, reason: str | None = None) -> Response:
        return {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}

    yield chunk({"role": "assistant", "content": None, "refusal": None})
    for piece in cut(choice["message"]["content"]) if choice["message"]["content"] else ():
        yield chunk({"content": piece})
    for index, call in enumerate(choice["message"].get("tool_calls", ())):
        begun = {**call, "index": index, "function": {**call["function"], "arguments": ""}}
        yield chunk({"tool_calls": [begun]})
        for piece in cut(call["function"]["arguments"]):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    if choice["finish_reason"]:
        yield chunk({}, choice["finish_reason"])
        yield {**base, "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}


def sdk(module: Any, kind: Any) -> Callable[[Response], Any]:
    """How the SDK makes an object of an event: it validates nothing, and keeps what it does not know."""
    return lambda event: module.construct_type(type_=kind, value=event)


@dataclass(frozen=True)
class Streaming:
    """How one API streams a response, and how its SDK reads an event."""

    module: ModuleType
    write: Callable[[str, list[Any], str | None], Response]
    events: Callable[..., Iterator[Response]]
    sdk: Callable[[Response], Any]

    def fed(self, events: Any) -> Any:
        stream = self.module.Stream()
        for event in events:
            stream.feed(event)
        return stream


_ANTHROPIC = sdk(anthropic_models, RawMessageStreamEvent)
STREAMS = {
    "anthropic": Streaming(
        anthropic,
        anthropic_dict,
        anthropic_events,
        lambda event: _ANTHROPIC(event) if event["type"] != "ping" else event,
    ),
    "openai_responses": Streaming(
        openai_responses, responses_dict, responses_events, sdk(openai_models, ResponseStreamEvent)
    ),
    "openai_chat": Streaming(openai_chat, chat_dict, chat_events, sdk(openai_models, ChatCompletionChunk)),
}


@pytest.fixture(params=STREAMS)
def api(request: pytest.FixtureRequest) -> Streaming:
    return STREAMS[request.param]


def told(calls: Any) -> list[Any]:
    return [(call.id, call.name, dict(call.arguments), call.problem, call.data) for call in calls]


# Every stream


@pytest.mark.parametrize("form", ["dict", "sdk"])
@pytest.mark.parametrize("asked", [[], [ADD], [ADD, GREET]])
def test_a_stream_gives_what_the_response_gives(api: Streaming, asked: list[Any], form: str) -> None:
    response = api.write("Let me see.", asked, "calls" if asked else "done")
    events = api.events(response)
    stream = api.fed(map(api.sdk, events) if form == "sdk" else events)
    assert told(stream.calls()) == told(api.module.calls(response))
    assert all(call.problem is None for call in stream.calls())
    assert stream.turn() == api.module.turn(response)
    assert stream.stop == api.module.stop(response)


def test_what_is_there_so_far_reads_like_a_response(api: Streaming) -> None:
    response = api.write("Let me see.", [ADD, GREET], "calls")
    partial = api.fed(api.events(response)).partial()
    assert told(api.module.calls(partial)) == told(api.module.calls(response))
    assert json.loads(json.dumps(partial)) == partial
    assert APIS[api.module.__name__.rpartition(".")[2]].sdk(partial)


def test_a_stream_without_its_end_runs_nothing(api: Streaming) -> None:
    events = list(api.events(api.write("Text.", [ADD, GREET], "calls")))
    last = next(n for n in range(len(events), 0, -1) if any(c.problem for c in api.fed(events[:n]).calls()))
    assert last >= len(events) - 2
    for end in range(last + 1):
        stream = api.fed(events[:end])
        assert all(call.problem and "Nothing was run" in call.problem for call in stream.calls()), events[end - 1]
        assert stream.stop == "other"
    assert len(api.fed(events[:last]).calls()) == 2


def test_a_call_that_a_stream_cut_off_is_answered_and_never_run(api: Streaming) -> None:
    ran = []

    @tool
    def add(a: int, b: int = 0) -> int:
        """Add."""
        ran.append(a)
        return a + b

    events = list(api.events(api.write("", [("c", "add", '{"a": 1}')], "calls")))
    for end in range(len(events) - 2):
        calls = api.fed(events[:end]).calls()
        results = Runner([add]).run_sync(calls[0]) if calls else None
        assert results is None or results.status == "invalid"
    assert ran == []


def test_a_turn_that_was_cut_off_runs_nothing(api: Streaming) -> None:
    stream = api.fed(api.events(api.write("", [ADD], "cut")))
    assert stream.stop == "cut"
    assert [call.problem is None for call in stream.calls()] == [False]


@pytest.mark.parametrize("missing", [None, "", "null"])
def test_missing_ids_are_those_that_the_response_would_give(api: Streaming, missing: Any) -> None:
    response = api.write("", [(missing, "add", {"a": 1}), (missing, "add", {"a": 2})], "calls")
    ids = [call.id for call in api.fed(api.events(response)).calls()]
    assert len(set(ids)) == 2
    assert ids == [call.id for call in api.module.calls(response)]
    assert ids == [call.id for call in api.module.calls(api.fed(api.events(response, whole)).partial())]


def test_missing_ids_of_a_response_without_an_id_are_the_same_too(api: Streaming) -> None:
    response = api.write("", [(None, "add", {"a": 1}), (None, "add", {"a": 2})], "calls")
    for key in ("id", "created", "created_at"):
        response.pop(key, None)
    events = [e | {"id": None, "created": None} if "choices" in e else e for e in api.events(response | {"id": None})]
    ids = [call.id for call in api.fed(events).calls()]
    assert len(set(ids)) == 2
    assert ids == [call.id for call in api.module.calls(response)] == [c.id for c in api.fed(events).calls()]


def test_feeding_changes_no_event(api: Streaming) -> None:
    events = list(api.events(api.write("Text.", [ADD, GREET], "calls")))
    before = copy.deepcopy(events)
    stream = api.fed(events)
    stream.calls(), stream.turn(), stream.partial()
    assert events == before


def test_reading_in_the_middle_changes_nothing(api: Streaming) -> None:
    response = api.write("Text.", [ADD, GREET], "calls")
    stream = api.module.Stream()
    for event in api.events(response):
        stream.feed(event)
        stream.calls(), stream.partial(), stream.turn(), stream.stop
    assert told(stream.calls()) == told(api.module.calls(response))


@pytest.mark.parametrize("junk", [None, "", 0, [], {}, {"type": 1}, {"choices": [None]}, {"choices": {"a": 1}}, [1]])
def test_an_event_of_a_strange_shape_is_passed_over(api: Streaming, junk: Any) -> None:
    response = api.write("Text.", [ADD], "calls")
    events = [other for event in api.events(response) for other in (junk, event)]
    assert told(api.fed(events).calls()) == told(api.module.calls(response))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] + [place for key, item in inner for place in places(item, (*path, key))]


@pytest.mark.parametrize("junk", [None, "", "{bad", 0, True, [], {}, [None], {"a": 1}], ids=repr)
def test_no_event_breaks_the_stream(api: Streaming, junk: Any) -> None:
    events = list(api.events(api.write("Text.", [ADD], "calls"), whole))
    for number, event in enumerate(events):
        for place in places(event)[1:]:
            broken: Any = copy.deepcopy(event)
            inner = broken
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = junk
            stream = api.fed([*events[:number], broken, *events[number + 1 :]])
            assert isinstance(stream.stop, str)
            json.dumps([stream.partial(), stream.turn()])
            assert all(isinstance(call.id, str) and call.id for call in stream.calls())


TEXT = '{"a": "ä😀\\" \\ud83d\\ude00", "b": [1, {"c": null}]}'


@given(st.lists(st.integers(0, len(TEXT)), max_size=8))
@pytest.mark.parametrize("name", STREAMS)
def test_any_chunking_gives_the_same_calls(name: str, cuts: list[int]) -> None:
    api = STREAMS[name]
    edges = [0, *sorted(cuts), len(TEXT)]

    def cut(text: str) -> list[str]:
        return [text[a:b] for a, b in itertools.pairwise(edges)] if text == TEXT else [text]

    response = api.write("Text.", [("c1", "add", TEXT), ("c2", "add", TEXT)], "calls")
    calls = api.fed(api.events(response, cut)).calls()
    assert [(call.id, call.raw) for call in calls] == [("c1", TEXT), ("c2", TEXT)]


def test_a_character_that_was_cut_in_two_is_whole_again(api: Streaming) -> None:
    halves = '{"a": "\ud83d', '\ude00"}'
    events = api.events(api.write("", [("c", "add", "{}")], "calls"), lambda text: list(halves))
    if api.module is openai_responses:
        events = (event for event in events if "done" not in event["type"] and "response" not in event)
    raw = api.fed(events).calls()[0].raw
    assert raw == '{"a": "😀"}'


# Anthropic


def test_anthropic_thinking_and_its_signature_return_from_a_stream() -> None:
    response = anthropic_dict("Hm.", [ADD], "calls")
    thinking = [
        {"type": "thinking", "thinking": "step by step", "signature": "sig=="},
        {"type": "redacted_thinking", "data": "xyz"},
    ]
    response["content"] = [*thinking, *response["content"]]
    stream = STREAMS["anthropic"].fed(map(STREAMS["anthropic"].sdk, anthropic_events(response)))
    assert stream.turn()[0]["content"] == response["content"]
    assert Message.model_validate(stream.partial()).content[0].type == "thinking"


def test_anthropic_a_new_id_under_a_used_index_is_a_new_call() -> None:
    events = list(anthropic_events(anthropic_dict("", [ADD, GREET], "calls")))
    for event in events:
        if "index" in event:
            event["index"] = 0
    assert told(STREAMS["anthropic"].fed(events).calls()) == told(
        anthropic.calls(anthropic_dict("", [ADD, GREET], "calls"))
    )


def test_anthropic_citations_and_unknown_deltas_are_kept() -> None:
    stream = anthropic.Stream()
    stream.feed({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
    for citation in ({"cited_text": "a"}, {"cited_text": "b"}):
        delta = {"type": "citations_delta", "citation": citation}
        stream.feed({"type": "content_block_delta", "index": 0, "delta": delta})
    stream.feed({"type": "content_block_delta", "index": 0, "delta": {"type": "new_delta", "glow": "x"}})
    assert stream.partial()["content"] == [
        {"type": "text", "text": "", "glow": "x", "citations": [{"cited_text": "a"}, {"cited_text": "b"}]}
    ]


def test_anthropic_keys_that_came_twice_are_not_decided_by_the_stream() -> None:
    text = '{"path": "a", "path": "b"}'
    stream = STREAMS["anthropic"].fed(anthropic_events(anthropic_dict("", [("c", "read", text)], "calls")))
    assert stream.calls()[0].raw == text
    assert anthropic.calls(stream.partial())[0].raw == text


# OpenAI Responses


def test_responses_encrypted_content_is_that_of_the_item_when_it_was_done() -> None:
    response = responses_dict("", [ADD], "calls")
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "late"}
    response["output"].insert(0, reasoning)
    events = list(responses_events(response))
    events[-1]["response"] = {
        **response,
        "output": [{**reasoning, "encrypted_content": "other"}, response["output"][1]],
    }
    assert STREAMS["openai_responses"].fed(events).turn()[0]["encrypted_content"] == "late"


def test_responses_an_end_without_output_keeps_the_items() -> None:
    response = responses_dict("Text.", [ADD], "calls")
    events = list(responses_events(response))
    events[-1]["response"] = {**response, "output": []}
    assert STREAMS["openai_responses"].fed(events).turn() == openai_responses.turn(response)


def test_responses_items_whose_id_changes_with_every_event_stay_together() -> None:
    response = responses_dict("", [ADD, GREET], "calls")
    events = list(responses_events(response))
    for number, event in enumerate(events):
        if "item_id" in event:
            event["item_id"] = f"x{number}"
        if "item" in event:
            event["item"] = {**event["item"], "id": f"x{number}"}
    events[-1]["response"] = {**response, "output": []}
    assert told(STREAMS["openai_responses"].fed(events).calls()) == told(openai_responses.calls(response))


def test_responses_an_error_event_ends_without_calls_to_run() -> None:
    events = list(responses_events(responses_dict("", [ADD], "calls")))[:-1]
    stream = STREAMS["openai_responses"].fed([*events, {"type": "error", "message": "overloaded"}])
    assert stream.stop == "other" and stream.calls()[0].problem


def test_responses_custom_input_is_streamed() -> None:
    item = {"type": "custom_tool_call", "id": "i", "call_id": "c", "name": "sql", "input": ""}
    events = [{"type": "response.output_item.added", "output_index": 0, "item": item}]
    for piece in ("select", " 1"):
        at = {"item_id": "i", "output_index": 0}
        events.append({"type": "response.custom_tool_call_input.delta", "delta": piece, **at})
    stream = STREAMS["openai_responses"].fed(events)
    assert dict(stream.calls()[0].arguments) == {"input": "select 1"} and stream.calls()[0].problem


# OpenAI Chat


def chunk(*calls: Response, reason: str | None = None) -> Response:
    return {"id": "x", "choices": [{"index": 0, "delta": {"tool_calls": list(calls)}, "finish_reason": reason}]}


def piece(index: int | None, arguments: Any, name: str | None = None, id: str | None = None) -> Response:
    found: Response = {"function": {"arguments": arguments} | ({"name": name} if name else {})}
    return found | ({"id": id} if id is not None else {}) | ({} if index is None else {"index": index})


END = {"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}


def chat_calls(*pieces: Response) -> list[tuple[str, Any]]:
    stream = STREAMS["openai_chat"].fed([*map(chunk, pieces), END])
    assert len({call.id for call in stream.calls()}) == len(stream.calls())
    return [(call.name, call.raw) for call in stream.calls()]


@pytest.mark.parametrize(
    "pieces",
    [
        # every call under the index 0, with ids of their own
        [piece(0, '{"a":1}', "one", "i1"), piece(0, '{"a":2}', "two", "i2")],
        # the same, in fragments that repeat the id
        [piece(0, '{"a"', "one", "i1"), piece(0, ":1}", None, "i1"), piece(0, '{"a":2}', "two", "i2")],
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
        # the name with every fragment, no ids
        [piece(0, '{"a":', "one"), piece(0, "1}", "one"), piece(1, '{"a":2}', "two")],
        # the id after the name
        [piece(0, "", "one"), piece(0, '{"a":1}', None, "i1"), piece(1, '{"a":2}', "two", "i2")],
    ],
)
def test_chat_fragments_find_their_call(pieces: list[Response]) -> None:
    assert chat_calls(*pieces) == [("one", '{"a":1}'), ("two", '{"a":2}')]


def test_chat_two_whole_calls_of_one_tool_without_ids_are_two() -> None:
    assert chat_calls(piece(0, '{"a":1}', "one"), piece(0, '{"a":2}', "one")) == [
        ("one", '{"a":1}'),
        ("one", '{"a":2}'),
    ]


def test_chat_a_name_in_pieces_is_put_together() -> None:
    assert chat_calls(piece(0, "", "read_", "i"), piece(0, "", "notes", "i"), piece(0, "{}")) == [("read_notes", "{}")]


def test_chat_arguments_that_come_as_an_object_are_taken() -> None:
    assert chat_calls(piece(0, {"a": 1}, "one", "i1")) == [("one", {"a": 1})]


def test_chat_what_compatible_servers_add_returns_with_the_turn() -> None:
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


def test_chat_another_choice_is_not_read() -> None:
    other = chunk(piece(0, '{"a":9}', "nine", "i9"))
    other["choices"][0]["index"] = 1
    assert [c.name for c in STREAMS["openai_chat"].fed([chunk(piece(0, "{}", "one", "i")), other, END]).calls()] == [
        "one"
    ]


@pytest.mark.parametrize("arguments", ["", "{}", '{"a":1}', {"a": 1}, None])
@pytest.mark.parametrize("index", [0, None])
def test_chat_two_calls_in_one_delta_are_two(arguments: Any, index: int | None) -> None:
    calls = [piece(index, arguments, "one"), piece(index, arguments, "one")]
    stream = STREAMS["openai_chat"].fed([chunk(*calls), END])
    assert [call.name for call in stream.calls()] == ["one", "one"]
    assert len({call.id for call in stream.calls()}) == 2
    assert len({str(call.raw) for call in stream.calls()}) == 1


def test_chat_the_second_of_two_calls_in_one_delta_has_no_id_of_the_first() -> None:
    stream = STREAMS["openai_chat"].fed([chunk(piece(0, "", "one", "i1"), piece(0, "", "one")), END])
    assert [call.id == "i1" for call in stream.calls()] == [True, False]


def test_chat_a_known_id_whose_index_is_left_out_goes_on() -> None:
    pieces = [piece(0, '{"a":', "one", "i1"), piece(1, '{"a":2}', "two", "i2"), piece(None, "1}", "one", "i1")]
    assert chat_calls(*pieces) == [("one", '{"a":1}'), ("two", '{"a":2}')]


def test_chat_one_id_under_two_indexes_is_two_calls_whose_fragments_come_in_turns() -> None:
    pieces = [piece(0, "", "one", "i1"), piece(1, "", "two", "i1")]
    pieces += [piece(at, text, None, id) for text in ('{"a":', "1}") for at in (0, 1) for id in ("i1", "")[at:][:1]]
    assert chat_calls(*pieces) == [("one", '{"a":1}'), ("two", '{"a":1}')]
    several = chunk(*pieces[2:4])  # more than one fragment in a delta
    stream = STREAMS["openai_chat"].fed([*map(chunk, pieces[:2]), several, several, END])
    assert [(call.name, call.raw) for call in stream.calls()] == [("one", '{"a":{"a":'), ("two", '{"a":{"a":')]


@pytest.mark.parametrize("module", [openai_chat, mistral])
@pytest.mark.parametrize("more", [{}, {"role": "assistant"}])
def test_what_a_chunk_of_text_says_of_usage_is_kept(module: ModuleType, more: Response) -> None:
    stream = module.Stream()
    for count in (1, 2):
        choice = {"index": 0, "delta": {**more, "content": "a"}, "finish_reason": None}
        stream.feed({"id": "c", "choices": [choice], "usage": {"completion_tokens": count}})
    assert stream.partial()["usage"] == {"completion_tokens": 2}


@pytest.mark.parametrize("module", [openai_chat, mistral])
def test_what_is_no_call_in_a_list_of_calls_is_passed_over(module: ModuleType) -> None:
    stream = module.Stream()
    stream.feed({"id": "c", "choices": [{"index": 0, "delta": {"tool_calls": [None, "x"]}, "finish_reason": "stop"}]})
    assert (stream.calls(), stream.turn(), stream.stop) == ([], [], "end")
