"""What an API sends and does not take back stays out of the history, streamed and not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import boto3
import pytest
from botocore.validate import ParamValidator
from openai.types.responses import ResponseInputItemParam, ResponseOutputItem
from test_provider_contract import ALL

from ferrule import DefinitionError, Media, ToolCall, ToolResult
from ferrule.providers import bedrock, openai_chat, openai_responses

ADD = ("call_1", "add", {"a": 1})
CLIENT = boto3.client("bedrock-runtime", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
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


def accepted(messages: list[Any]) -> None:
    """As boto3 checks messages before it sends them."""
    model = CLIENT.meta.service_model.operation_model("Converse")
    report = ParamValidator().validate({"modelId": "m", "messages": messages}, model.input_shape)
    assert not report.has_errors(), report.generate_report()


def items(name: str, response: Any) -> list[Any]:
    """The list that the items of a response stand in."""
    if name == "bedrock":
        return response["output"]["message"]["content"]  # type: ignore[no-any-return]
    return response["content" if name == "anthropic" else "output"]  # type: ignore[no-any-return]


def turns(name: str, response: Any) -> Iterator[Any]:
    yield ALL[name].module.turn(response)
    yield ALL[name].fed(ALL[name].events(response)).turn()


def kept(name: str, turn: list[Any]) -> list[Any]:
    return turn if name == "openai_responses" else [block for message in turn for block in message["content"]]


@pytest.mark.parametrize("name", THOUGHTS)
def test_a_turn_of_thoughts_alone_is_none(name: str) -> None:
    response = ALL[name].write("", [], "cut")
    items(name, response)[:] = THOUGHTS[name]
    assert [*turns(name, response)] == [[], []]


@pytest.mark.parametrize("name", THOUGHTS)
def test_thoughts_that_something_follows_stay_and_the_last_do_not(name: str) -> None:
    response = ALL[name].write("", [ADD], "calls")
    before = list(items(name, response))
    items(name, response)[:] = [*THOUGHTS[name], *before, *THOUGHTS[name]]
    for turn in turns(name, response):
        assert kept(name, turn) == [*THOUGHTS[name], *before]


# Bedrock


def test_reasoning_that_nobody_signed_stays_behind() -> None:
    response = ALL["bedrock"].write("Done.", [ADD], "calls")
    response["output"]["message"]["content"].insert(
        0, {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": ""}}}
    )
    for turn in turns("bedrock", response):
        assert [next(iter(block)) for block in turn[0]["content"]] == ["text", "toolUse"]
        accepted(turn)
    del response["output"]["message"]["content"][0]["reasoningContent"]["reasoningText"]["signature"]
    assert bedrock.turn(response)[0]["content"] == response["output"]["message"]["content"][1:]


@pytest.mark.parametrize("more", [{"type": "tool_use"}, {"type": None}, {"glow": 1}])
def test_a_call_goes_back_as_the_three_fields_that_botocore_knows(more: dict[str, Any]) -> None:
    response = ALL["bedrock"].write("", [ADD], "calls")
    sent = dict(response["output"]["message"]["content"][0]["toolUse"])
    response["output"]["message"]["content"][0]["toolUse"] |= more
    for turn in turns("bedrock", response):
        assert turn[0]["content"] == [{"toolUse": sent}]
        accepted(turn)


def test_a_text_with_citations_is_said() -> None:
    cited = {"citationsContent": {"content": [{"text": "Twelve "}, {"text": "kilos"}], "citations": [{"title": "a"}]}}
    response = ALL["bedrock"].write("So: ", [], "done")
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


def kinds(**options: Any) -> dict[str, str]:
    given = ToolResult(content=list(MEDIA.values()), call=ToolCall("c", "look", {}))
    messages = bedrock.results([given], **options)
    accepted(messages)
    content = messages[0]["content"][0]["toolResult"]["content"]
    return dict(zip(MEDIA, (next(iter(block)) for block in content), strict=True))


def test_a_result_holds_the_media_that_the_model_is_said_to_take() -> None:
    assert kinds() == {"image": "image", "document": "document", "address": "text"}
    assert kinds(media="image") == {"image": "image", "document": "text", "address": "text"}
    assert kinds(media=()) == dict.fromkeys(MEDIA, "text")
    with pytest.raises(DefinitionError, match="'films'"):
        bedrock.results([], media=["films"])


# OpenAI


def members(union: Any) -> list[Any]:
    if get_origin(union) is Annotated:
        return members(get_args(union)[0])
    inner = get_args(union)
    if not inner or get_origin(union) is Literal:
        return [union]
    return [one for member in inner for one in members(member)]


def types_of(hint: Any) -> tuple[str, ...]:
    while get_origin(hint) is not Literal and get_args(hint):
        hint = get_args(hint)[0]
    return get_args(hint)


def test_no_item_goes_back_with_a_field_that_the_sdk_has_for_outputs_alone() -> None:
    taken: dict[str, set[str]] = {}
    for kind in members(ResponseInputItemParam):
        hints = get_type_hints(kind)
        for type in types_of(hints.get("type")):
            taken.setdefault(type, set()).update(hints)
    refused = 0
    for kind in members(ResponseOutputItem):
        [type] = get_args(kind.model_fields["type"].annotation)
        names = {field.alias or name for name, field in kind.model_fields.items()}
        refused += len(names - taken[type])
        follows = {"type": "message", "role": "assistant", "content": []}
        items = [{**dict.fromkeys(names, "x"), "type": type}, follows]
        first = openai_responses.turn({"output": items, "status": "completed"})[0]
        assert first["type"] == type and first.keys() <= taken[type], type
    assert refused > 5


@pytest.mark.parametrize("empty", [None, {}, {"name": "", "arguments": ""}, {"name": None, "arguments": None}, "x"])
def test_an_empty_function_call_stays_behind(empty: Any) -> None:
    response = ALL["openai_chat"].write("Done.", [], "done")
    response["choices"][0]["message"]["function_call"] = empty
    assert "function_call" not in openai_chat.turn(response)[0]
    response["choices"][0]["message"]["function_call"] = {"name": "add", "arguments": "{}"}
    assert openai_chat.turn(response)[0]["function_call"] == {"name": "add", "arguments": "{}"}


@pytest.mark.parametrize(
    "content", [{"type": "text", "text": "Done."}, {"text": "Done."}, ["Do", {"type": "text", "text": "ne."}]], ids=str
)
def test_content_that_is_a_part_is_text(content: Any) -> None:
    response = ALL["openai_chat"].write("x", [], "done")
    response["choices"][0]["message"]["content"] = content
    assert openai_chat.text(response) == "Done."
    assert openai_chat.text({"choices": [{"message": {"content": {"type": "image_url", "text": "no"}}}]}) == ""
    json.dumps(openai_chat.turn(response))
