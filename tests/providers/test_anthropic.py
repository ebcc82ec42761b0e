"""Anthropic's Messages API: what only it has, streamed and not."""

from __future__ import annotations

from anthropic.types import Message
from anthropic.types.beta import BetaMessage
from apis import ADD, ALL, GREET, TOOLS, result

from ferrule.providers import anthropic

API = ALL["anthropic"]


def test_the_cache_marker_is_on_the_last_tool_that_is_not_deferred() -> None:
    definitions = anthropic.tools(TOOLS, cache=True, deferred=["greet"])
    assert [item.get("cache_control") for item in definitions] == [None, {"type": "ephemeral"}, None]


def test_empty_text_blocks_stay_behind() -> None:
    response = API.write("", [ADD], "calls")
    response["content"].insert(0, {"type": "text", "text": ""})
    assert [block["type"] for block in anthropic.turn(response)[0]["content"]] == ["tool_use"]


def test_a_block_newer_than_the_sdk_goes_back_unchanged() -> None:
    response = API.write("", [], "done")
    response["content"] = [{"type": "hologram", "volume": {"x": 1}}]
    sdk = Message.construct(**response)
    assert anthropic.turn(sdk) == [{"role": "assistant", "content": response["content"]}]


def test_server_tools_are_not_calls_of_ours() -> None:
    response = API.write("", [], "done")
    response["content"] = [{"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {"query": "x"}}]
    assert anthropic.calls(response) == []
    assert anthropic.stop(response) == "end"


def test_a_paused_turn_is_to_be_sent_back() -> None:
    response = API.write("Searching.", [], "done") | {"stop_reason": "pause_turn"}
    assert anthropic.stop(response) == "pause"
    assert anthropic.turn(response)[0]["content"] == response["content"]


def test_input_that_came_as_text_runs_and_goes_back_as_an_object() -> None:
    response = API.write("", [("c", "add", '{"a": 1}')], "calls")
    assert dict(anthropic.calls(response)[0].arguments) == {"a": 1}
    assert anthropic.turn(response)[0]["content"][0]["input"] == {"a": 1}


def test_a_call_keeps_its_caller_and_its_toolset() -> None:
    response = API.write("", [ADD, GREET], "calls")
    caller = {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}
    response["content"][0] |= {"caller": caller, "toolset_name": "browser"}
    own, other = anthropic.calls(response)
    assert own.data == {"caller": caller, "toolset_name": "browser"} and other.problem is None
    assert "browser" in str(own.problem)  # no tool of ours runs for it
    (block,) = anthropic.results([result(own, error="no")])[0]["content"]
    assert block["toolset_name"] == "browser" and block["is_error"]


def test_a_compaction_is_a_pause_and_runs_nothing() -> None:
    response = API.write("", [ADD], "calls") | {"stop_reason": "compaction"}
    assert anthropic.stop(response) == "pause" and anthropic.turn(response)
    assert "compaction" in str(anthropic.calls(response)[0].problem)


CONTAINER = {"id": "container_1", "expires_at": "2026-11-22T10:00:00Z"}


def test_a_container_is_what_the_next_request_needs() -> None:
    response = API.write("", [ADD], "calls")
    assert anthropic.state(response) == {}
    response |= {"container": CONTAINER}
    assert anthropic.state(response) == {"container": "container_1"}
    assert anthropic.state(BetaMessage.model_validate(response)) == {"container": "container_1"}
    stream = anthropic.Stream()
    for event in API.events(response):
        if event["type"] == "message_start":
            event["message"].pop("container", None)
        if event["type"] == "message_delta":
            event["delta"]["container"] = CONTAINER
        stream.feed(event)
    assert stream.state() == {"container": "container_1"}


# Streams


def test_citations_and_unknown_deltas_are_kept() -> None:
    stream = anthropic.Stream()
    stream.feed({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
    for citation in ({"cited_text": "a"}, {"cited_text": "b"}):
        delta = {"type": "citations_delta", "citation": citation}
        stream.feed({"type": "content_block_delta", "index": 0, "delta": delta})
    stream.feed({"type": "content_block_delta", "index": 0, "delta": {"type": "new_delta", "glow": "x"}})
    assert stream.partial()["content"] == [
        {"type": "text", "text": "", "glow": "x", "citations": [{"cited_text": "a"}, {"cited_text": "b"}]}
    ]
