"""What a server says in each chunk anew is said once, and what a model writes is continued; an answer that takes the
place of another is all that there is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_provider_contract import ALL, WAYS

from ferrule import Runner, tool

CHUNK = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
CHAT = ALL["openai_chat"]


def message(form: str, deltas: list[dict[str, Any]]) -> dict[str, Any]:
    """The assistant's message that these deltas come to."""
    chunks = [{**CHUNK, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    end = {**CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    [found] = CHAT.fed([*chunks, end], form).turn()
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize("form", ["dict", "sdk"])
@pytest.mark.parametrize("times", [1, 2, 5])
@pytest.mark.parametrize("key", ["role", "name", "channel", "recipient", "provider_state"])
def test_what_each_chunk_says_anew_is_said_once(key: str, times: int, form: str) -> None:
    """At the top of a message, in an object in it, and in a call."""
    said = "assistant" if key == "role" else "analysis"
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "add", "arguments": ""}}
    deltas: list[dict[str, Any]] = [{"content": "Hi"}]
    deltas += [{"content": "!", key: said, "meta": {key: said}}] * times
    deltas += [{"tool_calls": [{**call, "extra_content": {key: said}}]}]
    deltas += [{"tool_calls": [{"index": 0, "function": {"arguments": "{}"}, "extra_content": {key: said}}]}]
    found = message(form, deltas)
    assert found["content"] == "Hi" + "!" * times
    assert (found[key], found["meta"], found["tool_calls"][0]["extra_content"]) == (said, {key: said}, {key: said})


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_a_channel_that_changes_is_the_newest(form: str) -> None:
    found = message(form, [{"content": "", "channel": channel} for channel in ("analysis", "analysis", "final")])
    assert found["channel"] == "final"


@given(st.lists(st.sampled_from(["ha", "", " ", "x"]), min_size=1, max_size=6))
@pytest.mark.parametrize("key", ["content", "refusal", "reasoning", "reasoning_content"])
def test_what_a_model_writes_is_continued_though_it_repeats_itself(key: str, chunks: list[str]) -> None:
    found = message("dict", [{"content": "."}, *({key: chunk} for chunk in chunks)])
    assert found[key] == "." * (key == "content") + "".join(chunks)
    details = [{"index": 0, "type": "reasoning.text", "text": chunk, "format": "f"} for chunk in chunks]
    found = message("dict", [{"content": "."}, *({"reasoning_details": [one]} for one in details)])
    assert found["reasoning_details"] == [{**details[0], "text": "".join(chunks)}]


def test_a_text_that_nobody_knows_is_continued_where_its_chunks_differ() -> None:
    found = message("dict", [{"content": "."}, {"analysis": "a"}, {"analysis": "a"}, {"analysis": "b"}])
    assert found["analysis"] == "aab"


# Another answer


BEGIN = ["anthropic", "openai_responses", "cohere", "interactions"]
"""The APIs whose streams begin with the id of the response."""


@pytest.mark.parametrize("way", [way for way in WAYS if "stream" in way])
@pytest.mark.parametrize("name", BEGIN)
def test_an_answer_that_another_takes_the_place_of_runs_nothing(name: str, way: str) -> None:
    api, form = ALL[name], "sdk" if "sdk" in way else "dict"
    first = {**api.write("One.", [("call_1", "pay", {"to": "ada"})], "calls"), "id": "resp_first"}
    second = api.write("Two.", [("call_2", "pay", {"to": "bob"})], "calls")
    before = list(api.events(first))
    paid = []

    @tool
    def pay(to: str) -> str:
        """Pay somebody."""
        paid.append(to)
        return to

    alone = api.fed(api.events(second), form)
    for cut in range(1, len(before) + 1):
        stream = api.fed([*before[:cut], *api.events(second)], form)
        assert (stream.turn(), stream.stop) == (alone.turn(), "calls"), before[cut - 1]
        assert [call.id for call in stream.calls()] == ["call_2"]
    Runner([pay]).run_sync(stream.calls()[0])
    assert paid == ["bob"]


@pytest.mark.parametrize("name", BEGIN)
def test_a_beginning_that_is_sent_twice_changes_nothing(name: str) -> None:
    api = ALL[name]
    first, *others = api.events(api.write("Text.", [("call_1", "add", {"a": 1})], "calls"))
    once, twice = api.fed([first, *others]), api.fed([first, others[0], first, *others[1:]])
    assert twice.turn() == once.turn() and twice.calls() == once.calls()


@pytest.mark.parametrize("name", BEGIN)
def test_an_error_of_the_first_answer_still_counts(name: str) -> None:
    api = ALL[name]
    other = {**api.write("One.", [], "done"), "id": "resp_first"}
    following = api.events(api.write("", [("c", "add", {})], "calls"))
    stream = api.fed([*api.events(other), {"error": {"message": "Full."}}, *following])
    assert stream.error == "Full." and all(call.problem for call in stream.calls())
