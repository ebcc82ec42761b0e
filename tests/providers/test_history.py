"""What goes back into a history is what its API takes again: one refused name would break every later request."""

from __future__ import annotations

import re
from typing import Any

import pytest
from apis import ADD, ALL, WAYS, Response, dicts_in, encode, result

from ferrule.values.content import clean_text

COMMON = re.compile(r"[a-zA-Z0-9_-]{1,64}")
GEMINI = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}")
PATTERNS = {
    **dict.fromkeys(ALL, COMMON),
    **dict.fromkeys(("gemini", "interactions"), GEMINI),
    "ollama": re.compile(r".*", re.DOTALL),
}


def names_in(messages: list[Response]) -> list[str]:
    """The tools that messages name, whatever the API calls it."""
    return [found[key] for found in dicts_in(messages) for key in ("name", "tool_name") if key in found]


@pytest.mark.parametrize("name", ["add", "browser.tabs.open", "", "$x", "n" * 80, "n" * 200, "1st", "\ud800"])
@pytest.mark.parametrize("of", ALL)
def test_a_name_that_the_api_refuses_stays_out_of_the_history(of: str, name: str) -> None:
    api = ALL[of]
    for way in WAYS:
        calls, turn, _ = api.read(api.write("", [("call_a", name, {})], "calls"), way)
        (sent,) = names_in(turn)
        assert [call.name for call in calls] == [clean_text(name)], way
        assert PATTERNS[of].fullmatch(sent)
        assert sent == clean_text(name) or not PATTERNS[of].fullmatch(clean_text(name))
        assert set(names_in(api.module.results([result(calls[0], 1)]))) <= {sent}


@pytest.mark.parametrize("of", ALL)
def test_names_that_do_not_fit_stay_apart_and_are_text(of: str) -> None:
    api = ALL[of]
    response = api.write("", [("call_a", "a.b c", {}), ("call_b", "a b.c", {})], "calls")
    assert len(set(names_in(api.module.turn(response)))) == 2
    for odd in (None, 3, ["x"], {"a": 1}):
        response = api.write("", [ADD], "calls")
        for found in dicts_in(response):
            if found.get("name") == "add":
                found["name"] = odd
        assert [type(sent) for sent in names_in(api.module.turn(response))] == [str]


# Tools of the server


def anthropic_served(text: str, stop: str) -> Any:
    block = {"type": "server_tool_use", "id": "srv", "name": "web.search", "input": {}}
    delta = {"type": "input_json_delta", "partial_json": text}
    return [
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "message_delta", "delta": {"stop_reason": stop}},
        {"type": "message_stop"},
    ]


def bedrock_served(text: str, stop: str) -> Any:
    start = {"toolUseId": "srv", "name": "web.search", "type": "server_tool_use"}
    return [
        {"contentBlockStart": {"contentBlockIndex": 0, "start": {"toolUse": start}}},
        {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"toolUse": {"input": text}}}},
        {"messageStop": {"stopReason": stop}},
    ]


@pytest.mark.parametrize(("name", "events"), [("anthropic", anthropic_served), ("bedrock", bedrock_served)])
def test_the_input_of_a_servers_tool_is_an_object_and_its_name_stays(name: str, events: Any) -> None:
    for text, given in (('{"query": "x"}', {"query": "x"}), ('{"query": "x', {}), ("[1]", {})):
        stream = ALL[name].feed(events(text, "max_tokens"))
        for said in (stream.turn(), stream.partial()):
            (found,) = [found for found in dicts_in(said) if "input" in found]
            assert (found["input"], found["name"]) == (given, "web.search")
        assert stream.calls() == []
    for number in ("1" * 5_000, "1e999"):
        stream = ALL[name].feed(events(f'{{"a": {number}}}', "end_turn"))
        encode([stream.turn(), stream.partial()])


# Thoughts

THOUGHTS: dict[str, list[Any]] = {
    "anthropic": [
        {"type": "thinking", "thinking": "Hm.", "signature": "s=="},
        {"type": "redacted_thinking", "data": "xyz"},
    ],
    "openai_responses": [{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "late"}],
    "bedrock": [
        {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "s=="}}},
        {"reasoningContent": {"redactedContent": b"\xff"}},
    ],
}


@pytest.mark.parametrize("name", THOUGHTS)
def test_thoughts_stay_if_something_follows_them(name: str) -> None:
    api = ALL[name]
    for text, asked, stop in (("", [], "cut"), ("", [ADD], "calls")):
        response = api.write(text, asked, stop)
        whole = response["output"]["message"] if name == "bedrock" else response
        items = whole["content" if "content" in whole else "output"]
        before = list(items)
        items[:] = [*THOUGHTS[name], *before, *THOUGHTS[name]]
        for turn in (api.module.turn(response), api.feed(api.events(response)).turn()):
            kept = turn if name == "openai_responses" else [block for message in turn for block in message["content"]]
            assert kept == ([*THOUGHTS[name], *before] if before else [])
