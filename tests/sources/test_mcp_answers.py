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


async def test_the_meta_of_a_result_is_kept_in_its_metadata_up_to_a_bound() -> None:
    found = (await call(types.CallToolResult(content=[], _meta={"trace": "t"}))).metadata["mcp"]
    assert found["_meta"]["trace"] == "t"
    large = types.TextContent(text="a", _meta={"x/y": "a" * 3_000_000})
    found = (await call(types.CallToolResult(content=[large]))).record()["metadata"]["mcp"]
    assert found == {"left_out": "3,000,049 characters of JSON; at most 1,000,000 are kept"}
