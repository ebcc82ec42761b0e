"""Amazon Bedrock's Converse API: what only it has, streamed and not."""

from __future__ import annotations

import json
import re
from typing import Any

import boto3
import pytest
from apis import ADD, ALL, TOOLS, result
from botocore.validate import ParamValidator

from ferrule.errors import DefinitionError
from ferrule.providers import bedrock
from ferrule.values.call import ToolCall
from ferrule.values.content import Media

API = ALL["bedrock"]
CLIENT = boto3.client("bedrock-runtime", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")


def must_be_accepted(**request: Any) -> None:
    """Checks a request as boto3 does before it sends one."""
    model = CLIENT.meta.service_model.operation_model("Converse")
    report = ParamValidator().validate({"modelId": "m", **request}, model.input_shape)
    assert not report.has_errors(), report.generate_report()


def test_boto3_accepts_the_config() -> None:
    config = bedrock.tools(TOOLS, strict=["add"], cache=True, deferred=["greet"])
    assert config is not None
    must_be_accepted(toolConfig=config | bedrock.tool_choice("add"))
    assert [next(iter(entry)) for entry in config["tools"]] == ["toolSpec", "toolSpec", "cachePoint", "toolSpec"]
    assert [entry["toolSpec"].get("strict") for entry in config["tools"] if "toolSpec" in entry] == [True, None, None]


@pytest.mark.parametrize("id", ["x" * 65, "a b", "", "\ud800"])
def test_a_foreign_id_is_the_same_in_the_turn_and_in_the_result(id: str) -> None:
    response = API.write("", [(id or "x y", "add", {})], "calls")
    (call,) = bedrock.calls(response)
    turn, answer = bedrock.turn(response), bedrock.results([result(call, 1)])
    must_be_accepted(messages=[*turn, *answer])
    assert API.ids(turn) == [API.answers(answer)[0][0]] == [bedrock.wire_id(call.id)]
    assert bedrock.wire_id(bedrock.wire_id(id)) == bedrock.wire_id(id) != id
    assert all(bedrock.wire_id(fits) == fits for fits in ("toolu_1", "a.b:c-d", "x" * 64))


def test_blank_text_stays_behind() -> None:
    response = API.write(" \n", [ADD], "calls")
    assert [next(iter(block)) for block in bedrock.turn(response)[0]["content"]] == ["toolUse"]


def test_tools_of_the_server_are_not_ours() -> None:
    response = API.write("", [ADD], "done")
    response["output"]["message"]["content"][0]["toolUse"]["type"] = "server_tool_use"
    assert bedrock.calls(response) == [] and bedrock.stop(response) == "end"
    assert bedrock.turn(response)[0]["content"] == response["output"]["message"]["content"]


def test_without_a_status_the_text_says_that_it_is_an_error() -> None:
    given = [result(ToolCall("c1", "add"), {"sum": 3}), result(ToolCall("c2", "add"), error="no")]
    messages = bedrock.results(given, status=False)
    assert [block["toolResult"] for block in messages[0]["content"]] == [
        {"toolUseId": "c1", "content": [{"json": {"sum": 3}}]},
        {"toolUseId": "c2", "content": [{"text": "Error: no"}]},
    ]
    must_be_accepted(messages=messages)


@pytest.mark.parametrize("output", ['{"a":1}', '{"a": 1, "a": 2}', '{"a": 1e400}', "{", [1], 0, None])
def test_an_output_that_would_change_as_json_goes_as_text(output: Any) -> None:
    (message,) = bedrock.results([result(ToolCall("c", "add"), output)])
    text = output if isinstance(output, str) else json.dumps(output)
    assert message["content"][0]["toolResult"]["content"] == [{"text": text}]


def document_names(messages: list[dict[str, Any]]) -> list[str]:
    results = [block["toolResult"]["content"] for message in messages for block in message["content"]]
    return [item["document"]["name"] for content in results for item in content]


@pytest.mark.parametrize("name", [None, "a.pdf", "x" * 300, "x" * 179 + " y", "äöü"])
def test_no_two_documents_of_a_history_have_one_name(name: str | None) -> None:
    file = Media("file", b"%PDF", "application/pdf", name=name)
    first = bedrock.results([result(ToolCall(id, "add"), [file, file]) for id in ("c1", "c2")])
    second = bedrock.results([result(ToolCall("c3", "add"), [file])])
    assert second == bedrock.results([result(ToolCall("c3", "add"), [file])])
    must_be_accepted(messages=[*first, *second])
    names = document_names([*first, *second])
    assert len(set(names)) == 5
    assert all(re.fullmatch(r"(?!.*\s\s)[a-zA-Z0-9\s()\[\]-]{1,200}", name) for name in names)


def test_a_thought_that_botocore_does_not_know_stays_behind() -> None:
    stream = bedrock.Stream()
    for delta in ({"reasoningContent": {"SDK_UNKNOWN_MEMBER": {"name": "new"}}}, {"text": "Hello."}):
        stream.feed({"contentBlockDelta": {"contentBlockIndex": 0, "delta": delta}})
    assert stream.turn() == [{"role": "assistant", "content": [{"text": "Hello."}]}]


def turns_of(response: Any) -> list[Any]:
    """The turn, as it is read at once and from a stream."""
    return [bedrock.turn(response), API.feed(API.events(response)).turn()]


def test_unsigned_reasoning_stays_behind() -> None:
    response = API.write("Done.", [ADD], "calls")
    response["output"]["message"]["content"].insert(
        0, {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": ""}}}
    )
    for turn in turns_of(response):
        assert [next(iter(block)) for block in turn[0]["content"]] == ["text", "toolUse"]
        must_be_accepted(messages=turn)
    del response["output"]["message"]["content"][0]["reasoningContent"]["reasoningText"]["signature"]
    assert bedrock.turn(response)[0]["content"] == response["output"]["message"]["content"][1:]


@pytest.mark.parametrize("more", [{"type": "tool_use"}, {"type": None}, {"glow": 1}])
def test_a_call_goes_back_with_the_fields_that_botocore_knows(more: dict[str, Any]) -> None:
    response = API.write("", [ADD], "calls")
    sent = dict(response["output"]["message"]["content"][0]["toolUse"])
    response["output"]["message"]["content"][0]["toolUse"] |= more
    for turn in turns_of(response):
        assert turn[0]["content"] == [{"toolUse": sent}]
        must_be_accepted(messages=turn)


def test_a_text_with_citations_is_text() -> None:
    cited = {"citationsContent": {"content": [{"text": "Twelve "}, {"text": "kilos"}], "citations": [{"title": "a"}]}}
    response = API.write("So: ", [], "done")
    response["output"]["message"]["content"].append(cited)
    assert bedrock.text(response) == "So: Twelve kilos"
    stream = bedrock.Stream()
    for delta in ({"text": "Twelve kilos"}, {"citation": {"title": "a"}}):
        stream.feed({"contentBlockDelta": {"contentBlockIndex": 0, "delta": delta}})
    stream.feed({"messageStop": {"stopReason": "end_turn"}})
    assert bedrock.text(stream.partial()) == "Twelve kilos"


MEDIA = {
    "image": Media("image", b"\x89PNG", "image/png"),
    "document": Media("file", b"%PDF", "application/pdf"),
    "address": Media("image", None, "image/png", "s3://bucket/a.png", fetch=True),
}


def kinds_of_blocks(**options: Any) -> dict[str, str]:
    given = result(ToolCall("c", "look"), content=list(MEDIA.values()))
    messages = bedrock.results([given], **options)
    must_be_accepted(messages=messages)
    content = messages[0]["content"][0]["toolResult"]["content"]
    return dict(zip(MEDIA, (next(iter(block)) for block in content), strict=True))


def test_a_result_holds_the_media_that_the_model_takes() -> None:
    assert kinds_of_blocks() == {"image": "image", "document": "document", "address": "text"}
    assert kinds_of_blocks(media="image") == {"image": "image", "document": "text", "address": "text"}
    assert kinds_of_blocks(media=()) == dict.fromkeys(MEDIA, "text")
    with pytest.raises(DefinitionError, match="'films'"):
        bedrock.results([], media=["films"])
