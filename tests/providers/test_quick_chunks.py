"""The quick way of a chunk into its text is taken only where the chunk says nothing else: with it and without, a stream
says the same, whatever servers add."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import getitem
from typing import Any

import pytest
from pydantic import ValidationError
from test_contract import ALL
from test_streams import places

Event = dict[str, Any]
ASKED = [("call_a", "add", {"a": "xyz"})]
ADDED: list[Any] = [{"google": {"thought_signature": "s"}}, None]
CHUNK = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
LINE = {"model": "m", "created_at": "2026-11-20T00:00:00Z", "done": False}


def chat(**delta: Any) -> Event:
    return {**CHUNK, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def anthropic_delta(**delta: Any) -> Event:
    return {"type": "content_block_delta", "index": 7, "delta": delta}


def cohere_content(kind: str, text: str) -> Event:
    return {"type": f"content-{kind}", "index": 8, "delta": {"message": {"content": {"thinking": text}}}}


BEGUN = {"type": "content_block_start", "index": 7, "content_block": {"type": "thinking", "thinking": ""}}
THINKING: dict[str, list[Event]] = {
    "anthropic": [
        BEGUN,
        *(anthropic_delta(type="thinking_delta", thinking=text) for text in "ab"),
        *(anthropic_delta(type="signature_delta", signature=text) for text in "cd"),
    ],
    "openai_chat": [chat(role="assistant", content="", reasoning=text) for text in "ab"],
    "mistral": [chat(content=[{"type": "thinking", "thinking": [{"type": "text", "text": text}]}]) for text in "ab"],
    "gemini": [{"candidates": [{"content": {"parts": [{"text": t, "thought": True}], "role": "model"}}]} for t in "ab"],
    "bedrock": [
        {"contentBlockDelta": {"contentBlockIndex": 8, "delta": {"reasoningContent": {"text": t}}}} for t in "ab"
    ],
    "cohere": [cohere_content("start", ""), cohere_content("delta", "a"), cohere_content("delta", "b")],
    "ollama": [{**LINE, "message": {"role": "assistant", "content": "", "thinking": t}} for t in "ab"],
}


def pieces(text: str) -> list[str]:
    return [text[:1], text[1:3], text[3:]]


def events_of(name: str) -> list[Event]:
    api = ALL[name]
    first, *others = api.events(api.write("Some text.", ASKED, "calls"), pieces)
    return [first, *THINKING.get(name, ()), *others]


def with_more(event: Any, more: Any) -> Iterator[Any]:
    """The event once for each object in it, with a key that nobody knows in that one."""
    for path in places(event):
        if isinstance(reduce(getitem, path, event), dict):
            yield _with(event, path, more)


def _with(value: Any, path: tuple[Any, ...], more: Any) -> Any:
    if not path:
        return {**value, "extra_content": more}
    inner = _with(value[path[0]], path[1:], more)
    if isinstance(value, list):
        return [*value[: path[0]], inner, *value[path[0] + 1 :]]
    return {**value, path[0]: inner}


def said(api: Any, events: list[Any], quick: bool) -> Any:
    class Stream(api.module.Stream):  # type: ignore[name-defined, misc]
        if not quick:

            def _append_chunk(self, event: Any) -> bool:
                return False

    stream = Stream()
    for event in events:
        stream.feed(event)
    return stream.partial(), stream.turn(), stream.calls(), stream.stop, stream.reason


def as_given(api: Any, event: Event, form: str) -> Any:
    """As the SDK gives it; `None` where it takes no such event."""
    if form == "dict":
        return event
    try:
        return api.sdk_event(event)
    except (ValidationError, ValueError, TypeError):
        return None


@pytest.mark.parametrize("form", ["dict", "sdk"])
@pytest.mark.parametrize("name", ALL)
def test_a_stream_says_the_same_without_the_quick_way(name: str, form: str) -> None:
    api, events = ALL[name], events_of(name)
    given = [as_given(api, event, form) for event in events]
    assert None not in given and said(api, given, True) == said(api, given, False)
    for place, event in enumerate(events):
        for more in ADDED:
            for changed in with_more(event, more):
                one = as_given(api, changed, form)
                if one is not None:
                    fed = [*given[:place], one, *given[place + 1 :]]
                    assert said(api, fed, True) == said(api, fed, False), changed


def test_what_counts_a_thought_as_it_comes_stands_in_no_block() -> None:
    """anthropic.types.beta.BetaThinkingDelta"""
    events = events_of("anthropic")
    counted = [with_more_in_delta(event, {"estimated_tokens": 50}) for event in events]
    assert counted != events and said(ALL["anthropic"], counted, True) == said(ALL["anthropic"], events, True)


def with_more_in_delta(event: Event, more: Event) -> Event:
    delta = event.get("delta", {})
    return {**event, "delta": {**delta, **more}} if delta.get("type") == "thinking_delta" else event


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_what_openrouter_and_ollama_say_beside_an_empty_content_is_kept(form: str) -> None:
    """As their recorded streams have it: the SDK makes objects that name no extra field among those that were set."""
    detail = {"type": "reasoning.text", "text": "hm", "format": "unknown", "index": 0}
    cited = {"type": "url_citation", "url_citation": {"url": "https://a.example", "start_index": 0, "end_index": 1}}
    deltas: list[Event] = [
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": "", "reasoning": "h", "reasoning_details": [{**detail, "text": "h"}]},
        {"role": "assistant", "content": "", "reasoning": "m", "reasoning_details": [{**detail, "text": "m"}]},
        {"role": "assistant", "content": "Done."},
        {"role": "assistant", "content": "", "annotations": [cited]},
    ]
    api = ALL["openai_chat"]
    events = [{**CHUNK, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    events.append({**CHUNK, "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}]})
    assert api.fed(events, form).turn() == [
        {
            "role": "assistant",
            "content": "Done.",
            "reasoning": "hm",
            "reasoning_details": [detail],
            "annotations": [cited],
        }
    ]
