"""An index in an event is a name and no count: whatever it says costs nothing, and the turn can still be sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from apis import ALL, with_index

from steps import peak

Event = dict[str, Any]
ODD = [10**12, -1, 1.5, float("nan"), "0", True, None, []]
ASKED = [("call_a", "add", {"a": 1}), ("call_b", "add", {"a": 2})]
AT = {"output_index": 7, "item_id": "m", "sequence_number": 1}
ADDED = {"type": "response.output_item.added", "output_index": 7, "sequence_number": 1}
MORE_EVENTS: dict[str, list[Event]] = {
    "openai_responses": [
        {**ADDED, "item": {"type": "message", "id": "m", "role": "assistant", "status": "in_progress", "content": []}},
        {**AT, "type": "response.output_text.delta", "content_index": 0, "delta": "a", "logprobs": []},
        {**AT, "type": "response.output_text.annotation.added", "content_index": 0, "annotation_index": 0,
         "annotation": {"type": "file_path", "file_id": "f", "index": 0}},
        {**AT, "type": "response.refusal.delta", "content_index": 1, "delta": "b"},
        {**AT, "type": "response.reasoning_text.delta", "item_id": "r", "content_index": 0, "delta": "c"},
        {**AT, "type": "response.reasoning_summary_text.delta", "item_id": "r", "summary_index": 0, "delta": "d"},
    ],
    "openai_chat": [
        {"choices": [{"index": 0, "delta": {"reasoning_details": [{"index": 0, "type": "text", "text": "a"}]}}]},
        {"choices": [{"index": 0, "delta": {"content": "", "annotations": [{"index": 0, "type": "url_citation"}]}}]},
    ],
    "anthropic": [
        {"type": "content_block_delta", "index": 8, "delta": {"type": "text_delta", "text": "a"}},
        {"type": "content_block_delta", "index": 8, "delta": {"type": "citations_delta", "citation": {"x": 1}}},
    ],
    "bedrock": [
        {"contentBlockStart": {"contentBlockIndex": 8, "start": {"image": {"format": "png"}}}},
        {"contentBlockDelta": {"contentBlockIndex": 8, "delta": {"citation": {"title": "a"}}}},
    ],
    "interactions": [
        {"event_type": "step.delta", "index": 8, "delta": {"type": "thought_signature", "signature": "a"}},
    ],
    "cohere": [{"type": "citation-start", "index": 0, "delta": {"message": {"citations": {"start": 0, "end": 1}}}}],
}  # fmt: skip


def keys_of_indexes(event: Any) -> set[str]:
    """The names of the indexes in it."""
    if isinstance(event, list):
        return set().union(*map(keys_of_indexes, event))
    found = event.items() if isinstance(event, dict) else ()
    return {key for key, _ in found if _is_index(key)}.union(*(keys_of_indexes(value) for _, value in found))


def _is_index(key: str) -> bool:
    return key == "index" or key.endswith(("_index", "Index"))


def feed_and_read(api: Any, events: list[Event]) -> Any:
    """All that a stream says, with the end of the turn and without."""
    found: list[Any] = []
    for given in (events, events[:-2]):
        stream = api.feed(given)
        found += [stream.calls(), stream.turn(), stream.partial(), stream.stop, stream.reason]
    return found


def streams_with(name: str, odd: Any) -> Iterator[list[Event]]:
    """The events of a turn, once for each name of an index that is in them, with `odd` under all of these."""
    events = [*MORE_EVENTS.get(name, ()), *ALL[name].events(ALL[name].write("Text.", ASKED, "calls"))]
    for key in sorted(keys_of_indexes(events)):
        yield with_index(events, key, odd)


@pytest.mark.parametrize("name", ALL)
def test_any_index_is_read_in_little_memory(name: str) -> None:
    for odd in ODD:
        for events in streams_with(name, odd):
            found = feed_and_read(ALL[name], events)
            json.dumps([found[1], found[2], found[6], found[7]], default=repr, allow_nan=False)
            if odd == 10**12:
                assert peak(lambda events=events: feed_and_read(ALL[name], events)) < 1_000_000
    assert name == "ollama" or [*streams_with(name, 0)]


def test_parts_stand_in_the_order_of_their_beginnings() -> None:
    """Their indexes say which is continued, and nothing of how many there are."""
    stream = ALL["openai_responses"].module.Stream()
    part = {"type": "output_text", "text": "one ", "annotations": []}
    stream.feed({**ADDED, "item": {"type": "message", "id": "m", "content": [part]}})
    for at, text in [(10**12, "three"), (0, "two "), (-1, "four"), (10**12, "!")]:
        stream.feed({**AT, "type": "response.output_text.delta", "content_index": at, "delta": text})
    [item] = stream.partial()["output"]
    assert [part["text"] for part in item["content"]] == ["one two ", "three!", "four"]
