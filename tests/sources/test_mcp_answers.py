"""What an MCP server answers: every kind of content, one rule for the output, and clear failures."""

from __future__ import annotations

import base64
from typing import Any

import mcp_types as types
import pytest
from mcp_servers import ERAS, made, text

from ferrule import Media, Runner, Text, ToolResult, mcp

PNG = b"\x89PNG\r\n"
ENCODED = base64.b64encode(PNG).decode()
OUTPUT = {"type": "object", "properties": {"degrees": {"type": "integer"}}, "required": ["degrees"]}


async def call(answer: Any, *, mode: Any = "auto", observers: Any = (), **definition: Any) -> ToolResult:
    """Call a tool that gives this answer."""

    async def handler(context: Any, arguments: Any) -> Any:
        return await answer(context) if callable(answer) else answer

    async with mcp.connect(made("one", handler, **definition).memory(mode)) as toolset:
        return await Runner(toolset, observers=observers).run("one")


@pytest.mark.parametrize("mode", ERAS)
async def test_every_kind_of_content_arrives(mode: str) -> None:
    content = [
        types.TextContent(text="words"),
        types.ImageContent(data=ENCODED, mime_type="image/png"),
        types.AudioContent(data=ENCODED, mime_type="audio/wav"),
        types.ResourceLink(uri="file:///a.txt", name="a.txt", mime_type="text/plain"),
        types.EmbeddedResource(resource=types.TextResourceContents(uri="file:///b.txt", text="b")),
        types.EmbeddedResource(resource=types.BlobResourceContents(uri="file:///c", blob=ENCODED)),
    ]
    result = await call(types.CallToolResult(content=content), mode=mode)
    assert result.status == "ok" and result.content == (
        Text("words"),
        Media("image", PNG, "image/png"),
        Media("audio", PNG, "audio/wav"),
        Media("resource", None, "text/plain", "file:///a.txt", "a.txt"),
        Media("resource", b"b", "text/plain", "file:///b.txt"),
        Media("resource", PNG, "application/octet-stream", "file:///c"),
    )
    assert result.output == list(result.content)


async def test_structured_content_is_the_output_and_the_model_reads_the_content() -> None:
    both = await call(text("five degrees", structured_content={"degrees": 5}))
    assert (both.output, both.text) == ({"degrees": 5}, "five degrees")
    alone = await call(types.CallToolResult(content=[], structured_content=[1, None]))
    assert (alone.output, alone.text) == ([1, None], "[1, null]")


async def test_texts_alone_are_one_text() -> None:
    content = [types.TextContent(text="a"), types.TextContent(text="b")]
    assert (await call(types.CallToolResult(content=content))).output == "a\nb"
    nothing = await call(types.CallToolResult(content=[]))
    assert (nothing.status, nothing.output) == ("ok", "")


async def test_an_error_of_the_tool_is_a_failure_with_the_tools_text() -> None:
    result = await call(text("there is no such city: Rom", is_error=True))
    assert (result.status, result.error, result.executed) == ("failed", "there is no such city: Rom", True)
    silent = await call(types.CallToolResult(content=[], is_error=True))
    assert silent.error == "the server reports a failure without a text"
    content = [types.TextContent(text="see"), types.ImageContent(data=ENCODED, mime_type="image/png")]
    with_picture = await call(types.CallToolResult(content=content, is_error=True))
    assert with_picture.error == "see" and Media("image", PNG, "image/png") in with_picture.content


@pytest.mark.parametrize("mode", ERAS)
async def test_a_success_that_does_not_fit_the_output_schema_is_a_failure(mode: str) -> None:
    for structured in ({"degrees": "5"}, {}, None):
        more = {} if structured is None else {"structured_content": structured}
        result = await call(text("t", **more), mode=mode, output_schema=OUTPUT)
        assert (result.status, result.executed) == ("failed", True) and "output schema" in str(result.error)
        assert result.retryable is False
    assert (await call(text("t", structured_content={"degrees": 5}), mode=mode, output_schema=OUTPUT)).success
    assert (await call(text("no", is_error=True), mode=mode, output_schema=OUTPUT)).error == "no"


@pytest.mark.parametrize(
    ("block", "error"),
    [
        (types.ImageContent(data="iVBO!Rw0K", mime_type="image/png"), "is not base64"),
        (types.ImageContent(data=ENCODED, mime_type="evil\r\nX: y"), "mime_type"),
        (types.ImageContent(data=base64.b64encode(bytes(51_000_000)).decode(), mime_type="image/png"), "50,000,000"),
    ],
    ids=["no base64", "no type", "too large"],
)
async def test_unreadable_media_are_a_clear_failure(block: Any, error: str) -> None:
    result = await call(types.CallToolResult(content=[block]))
    assert (result.status, result.executed) == ("failed", True) and error in str(result.error)


async def test_annotations_and_meta_are_kept_in_the_metadata_up_to_a_bound() -> None:
    block = types.TextContent(text="a", annotations=types.Annotations(audience=["user"]), _meta={"x/y": 1})
    found = (await call(types.CallToolResult(content=[block], _meta={"trace": "t"}))).metadata["mcp"]
    assert found["_meta"]["trace"] == "t"
    assert found["content"] == [{"block": 0, "annotations": {"audience": ["user"]}, "_meta": {"x/y": 1}}]

    large = types.TextContent(text="a", _meta={"x/y": "a" * 3_000_000})
    found = (await call(types.CallToolResult(content=[large]))).record()["metadata"]["mcp"]
    assert found == {"left_out": "3,000,049 characters of JSON; at most 1,000,000 are kept"}
