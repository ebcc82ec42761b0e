"""Amazon Bedrock's Converse API: what only it has, streamed and not."""

from __future__ import annotations

import json
import re
from typing import Any

import boto3
import pytest
from apis_more import MORE
from asked import ADD, PNG, TOOLS, result
from botocore.validate import ParamValidator

from ferrule import Toolset
from ferrule.errors import DefinitionError
from ferrule.providers import bedrock as MODULE
from ferrule.values.call import ToolCall
from ferrule.values.content import Media, Text

API = MORE["bedrock"]


CLIENT = boto3.client("bedrock-runtime", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")


def accepted(**request: Any) -> None:
    """Checks a request as boto3 does before it sends one."""
    model = CLIENT.meta.service_model.operation_model("Converse")
    report = ParamValidator().validate({"modelId": "m", **request}, model.input_shape)
    assert not report.has_errors(), report.generate_report()


def test_the_config_is_one_that_boto3_takes() -> None:
    config = MODULE.tools(TOOLS, strict=["add"], cache=True, deferred=["greet"])
    assert config is not None
    accepted(toolConfig=config | MODULE.tool_choice("add"))
    assert [next(iter(entry)) for entry in config["tools"]] == ["toolSpec", "cachePoint", "toolSpec"]
    assert [entry["toolSpec"].get("strict") for entry in config["tools"] if "toolSpec" in entry] == [True, None]


def test_no_tools_are_no_config() -> None:
    assert MODULE.tools(Toolset([]), cache=True) is None


@pytest.mark.parametrize("said", [{"choice": "none"}, {"parallel": False}, {"only": ["add"]}])
def test_what_this_api_cannot_say_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match="Bedrock"):
        MODULE.tool_choice(**said)


def test_required_is_any() -> None:
    assert MODULE.tool_choice("required") == {"toolChoice": {"any": {}}}


@pytest.mark.parametrize("id", ["toolu_1", "a.b:c-d", "x" * 64])
def test_an_id_that_fits_stays(id: str) -> None:
    assert MODULE.wire_id(id) == id


@pytest.mark.parametrize("id", ["x" * 65, "a b", "ä", "", "\ud800", "fc|1"])
def test_a_foreign_id_is_the_same_in_the_turn_and_in_the_result(id: str) -> None:
    response = API.write("", [(id or "x y", "add", {})], "calls")
    (call,) = MODULE.calls(response)
    turn, answer = MODULE.turn(response), MODULE.results([result(call, 1)])
    accepted(messages=[*turn, *answer])
    assert API.ids(turn) == [API.answers(answer)[0][0]] == [MODULE.wire_id(call.id)]
    assert MODULE.wire_id(MODULE.wire_id(id)) == MODULE.wire_id(id) != id


def test_reasoning_goes_back_with_its_signature_and_redacted_bytes_stay_bytes() -> None:
    response = API.write("", [ADD], "calls")
    content = response["output"]["message"]["content"]
    content.insert(0, {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "s=="}}})
    content.insert(1, {"reasoningContent": {"redactedContent": b"\xff\x00"}})
    for turn in (MODULE.turn(response), API.fed(API.events(response, list)).turn()):
        assert turn == [{"role": "assistant", "content": content}]
        accepted(messages=turn)


def test_blank_text_stays_behind() -> None:
    response = API.write(" \n", [ADD], "calls")
    assert [next(iter(block)) for block in MODULE.turn(response)[0]["content"]] == ["toolUse"]


@pytest.mark.parametrize("reason", ["malformed_tool_use", "malformed_model_output"])
def test_a_malformed_turn_runs_nothing(reason: str) -> None:
    response = API.write("", [ADD], "calls") | {"stopReason": reason}
    assert MODULE.stop(response) == "malformed"
    assert [call.problem and reason in call.problem for call in MODULE.calls(response)] == [True]


@pytest.mark.parametrize(
    ("word", "stop", "asked"),
    [
        ("guardrail_intervened", "refused", [ADD]),
        ("content_filtered", "refused", []),
        ("max_tokens", "cut", [ADD]),
        ("brand_new", "other", []),
    ],
)
def test_what_ends_a_turn_early_is_the_reason(word: str, stop: str, asked: list[Any]) -> None:
    response = API.write("Text.", asked, "calls") | {"stopReason": word}
    stream = API.fed(API.events(response, list))
    assert (MODULE.stop(response), MODULE.reason(response)) == (stream.stop, stream.reason) == (stop, word)


def test_a_turn_without_an_end_and_one_without_its_call_have_a_reason() -> None:
    unfinished = API.write("Text.", [], None)
    assert MODULE.reason(unfinished) == API.fed(API.events(unfinished)).reason
    assert "stopReason" in str(MODULE.reason(unfinished))
    no_call = API.write("Text.", [], "calls")
    assert MODULE.stop(no_call) == "malformed" and "'tool_use'" in str(MODULE.reason(no_call))


def test_an_ordinary_turn_has_no_reason_and_needs_nothing_in_the_next_request() -> None:
    for response in (API.write("Done.", [], "done"), API.write("", [ADD], "calls")):
        stream = API.fed(API.events(response))
        assert MODULE.reason(response) is stream.reason is None
        assert MODULE.state(response) == stream.state() == {}


def test_an_empty_object_before_the_arguments_is_not_theirs() -> None:
    response = API.write("", [("t", "add", {})], "calls")
    for pieces in (["{}", '{"a": "b', " ", 'c"}'], ["", "{}", " ", '{"a": "b c"}']):
        stream = API.fed(API.events(response, lambda text, pieces=pieces: pieces))
        assert [dict(call.arguments) for call in stream.calls()] == [{"a": "b c"}]


def test_tools_of_the_server_are_not_ours() -> None:
    response = API.write("", [ADD], "done")
    response["output"]["message"]["content"][0]["toolUse"]["type"] = "server_tool_use"
    assert MODULE.calls(response) == [] and MODULE.stop(response) == "end"
    assert MODULE.turn(response)[0]["content"] == response["output"]["message"]["content"]


def test_a_new_id_under_a_used_index_is_a_new_call() -> None:
    stream = MODULE.Stream()
    for id, text in (("t1", '{"a": 1}'), ("t2", '{"a": 2}')):
        stream.feed(
            {"contentBlockStart": {"contentBlockIndex": 0, "start": {"toolUse": {"toolUseId": id, "name": "f"}}}}
        )
        stream.feed({"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"toolUse": {"input": text}}}})
    stream.feed({"messageStop": {"stopReason": "tool_use"}})
    assert [(call.id, dict(call.arguments)) for call in stream.calls()] == [("t1", {"a": 1}), ("t2", {"a": 2})]


def test_a_call_without_arguments_has_an_empty_object() -> None:
    stream = API.fed(API.events(API.write("", [("t", "add", "")], "calls")))
    assert stream.partial()["output"]["message"]["content"][0]["toolUse"]["input"] == {}
    assert [dict(call.arguments) for call in stream.calls()] == [{}]


def test_keys_that_came_twice_in_a_stream_are_still_seen() -> None:
    (call,) = API.fed(API.events(API.write("", [("t", "add", '{"a": 1, "a": 2}')], "calls"))).calls()
    assert call.raw == '{"a": 1, "a": 2}'


def test_all_results_stand_in_one_message_and_errors_are_marked() -> None:
    messages = MODULE.results([result(ToolCall("c1", "add"), {"sum": 3}), result(ToolCall("c2", "add"), error="no")])
    assert messages == [
        {
            "role": "user",
            "content": [
                {"toolResult": {"toolUseId": "c1", "content": [{"json": {"sum": 3}}]}},
                {"toolResult": {"toolUseId": "c2", "content": [{"text": "no"}], "status": "error"}},
            ],
        }
    ]
    accepted(messages=messages)


def test_without_the_status_field_the_text_says_that_it_is_an_error() -> None:
    given = [result(ToolCall("c1", "add"), {"sum": 3}), result(ToolCall("c2", "add"), error="no")]
    messages = MODULE.results(given, status=False)
    assert [block["toolResult"] for block in messages[0]["content"]] == [
        {"toolUseId": "c1", "content": [{"json": {"sum": 3}}]},
        {"toolUseId": "c2", "content": [{"text": "Error: no"}]},
    ]
    accepted(messages=messages)


@pytest.mark.parametrize("output", ['{"a":1}', '{"a": 1, "a": 2}', '{"a": 1e400}', "{", [1], 0, None])
def test_what_is_no_object_or_would_change_goes_as_text(output: Any) -> None:
    (message,) = MODULE.results([result(ToolCall("c", "add"), output)])
    text = output if isinstance(output, str) else json.dumps(output)
    assert message["content"][0]["toolResult"]["content"] == [{"text": text}]


def test_an_empty_text_goes_as_its_json() -> None:
    for given in (result(ToolCall("c", "add"), ""), result(ToolCall("c", "add"), content=[])):
        assert MODULE.results([given])[0]["content"][0]["toolResult"]["content"] == [{"text": '""'}]


def test_images_and_documents_are_bytes_with_names_that_are_taken() -> None:
    files = [Media("image", PNG, "image/png"), Media("file", b"%PDF", "application/pdf", name="a_b/é  (1).pdf")]
    messages = MODULE.results([result(ToolCall("c", "add"), [Text("Two files:"), *files])])
    accepted(messages=messages)
    text, image, document = messages[0]["content"][0]["toolResult"]["content"]
    assert text == {"text": "Two files:"}
    assert image == {"image": {"format": "png", "source": {"bytes": PNG}}}
    assert document == {"document": {"format": "pdf", "name": "a b (1) pdf 8698fecb", "source": {"bytes": b"%PDF"}}}


def document_names(messages: list[dict[str, Any]]) -> list[str]:
    results = [block["toolResult"]["content"] for message in messages for block in message["content"]]
    return [item["document"]["name"] for content in results for item in content]


@pytest.mark.parametrize("name", [None, "a.pdf", "x" * 300, "x" * 179 + " y", "äöü"])
def test_no_two_documents_of_a_history_have_one_name(name: str | None) -> None:
    file = Media("file", b"%PDF", "application/pdf", name=name)
    first = MODULE.results([result(ToolCall(id, "add"), [file, file]) for id in ("c1", "c2")])
    second = MODULE.results([result(ToolCall("c3", "add"), [file])])
    accepted(messages=[*first, *second])
    names = document_names([*first, *second])
    assert len(set(names)) == 5
    assert all(re.fullmatch(r"(?!.*\s\s)[a-zA-Z0-9\s()\[\]-]{1,200}", name) for name in names)


def test_a_document_has_the_same_name_whenever_its_result_is_written() -> None:
    given = [result(ToolCall("c1", "add"), [Media("file", b"%PDF", "application/pdf", name="a.pdf")])]
    assert document_names(MODULE.results(given)) == document_names(MODULE.results(given))


def test_what_is_nested_without_end_is_cut_off_in_the_history() -> None:
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]
    block = {"toolResult": {"toolUseId": "srv", "content": [{"json": {"a": deep}}]}}
    response = API.write("", [ADD], "calls")
    response["output"]["message"]["content"].insert(0, block)
    json.dumps(MODULE.turn(response))


@pytest.mark.parametrize("strange", [None, 1, "x", [], {}, [None], {"a": 1}], ids=str)
@pytest.mark.parametrize("key", ["output", "stopReason"])
def test_no_response_of_a_strange_shape_breaks_the_reading(key: str, strange: Any) -> None:
    response = API.write("Text.", [ADD], "calls") | {key: strange}
    told = [MODULE.stop(response), MODULE.reason(response), MODULE.state(response), MODULE.turn(response)]
    json.dumps([told, [call.problem for call in MODULE.calls(response)]]).encode()


def test_a_kind_of_thought_that_botocore_does_not_know_stays_out_of_the_history() -> None:
    stream = MODULE.Stream()
    for delta in ({"reasoningContent": {"SDK_UNKNOWN_MEMBER": {"name": "new"}}}, {"text": "Hello."}):
        stream.feed({"contentBlockDelta": {"contentBlockIndex": 0, "delta": delta}})
    assert stream.turn() == [{"role": "assistant", "content": [{"text": "Hello."}]}]
