"""What an MCP server answers: every kind of content, one rule for the output, and clear failures."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError
from mcp_servers import ERAS, go, made, text

from ferrule import Event, Media, Runner, Text, ToolResult, mcp

PNG = b"\x89PNG\r\n"
ENCODED = base64.b64encode(PNG).decode()


def answered(answer: Any, *, mode: Any = "auto", observers: Any = (), **definition: Any) -> ToolResult:
    async def handler(context: Any, arguments: Any) -> Any:
        return await answer(context) if callable(answer) else answer

    async def main() -> ToolResult:
        async with mcp.connect(made("one", handler, **definition).memory(mode)) as toolset:
            return await Runner(toolset, observers=observers).run("one")

    return go(main())


@pytest.mark.parametrize("mode", ERAS)
def test_every_kind_of_content_arrives(mode: str) -> None:
    content = [
        types.TextContent(text="words"),
        types.ImageContent(data=ENCODED, mime_type="image/png"),
        types.AudioContent(data=ENCODED, mime_type="audio/wav"),
        types.ResourceLink(uri="file:///a.txt", name="a.txt", mime_type="text/plain"),
        types.EmbeddedResource(resource=types.TextResourceContents(uri="file:///b.txt", text="b")),
        types.EmbeddedResource(resource=types.BlobResourceContents(uri="file:///c", blob=ENCODED)),
    ]
    result = answered(types.CallToolResult(content=content), mode=mode)
    assert result.status == "ok" and result.content == (
        Text("words"),
        Media("image", PNG, "image/png"),
        Media("audio", PNG, "audio/wav"),
        Media("resource", None, "text/plain", "file:///a.txt", "a.txt"),
        Media("resource", b"b", "text/plain", "file:///b.txt"),
        Media("resource", PNG, "application/octet-stream", "file:///c"),
    )
    assert result.output == list(result.content)


def test_structured_content_is_the_output_and_content_is_what_the_model_sees() -> None:
    result = answered(text("five degrees", structured_content={"degrees": 5}))
    assert (result.output, result.text) == ({"degrees": 5}, "five degrees")


def test_structured_content_alone_is_shown_as_json() -> None:
    result = answered(types.CallToolResult(content=[], structured_content=[1, None]))
    assert (result.output, result.text) == ([1, None], "[1, null]")


def test_texts_alone_are_one_text() -> None:
    content = [types.TextContent(text="a"), types.TextContent(text="b")]
    assert answered(types.CallToolResult(content=content)).output == "a\nb"
    nothing = answered(types.CallToolResult(content=[]))
    assert (nothing.status, nothing.output) == ("ok", "")


def test_an_error_of_the_tool_is_a_failure_whose_text_the_model_gets() -> None:
    result = answered(text("there is no such city: Rom", is_error=True))
    assert (result.status, result.error, result.executed) == ("failed", "there is no such city: Rom", True)
    silent = answered(types.CallToolResult(content=[], is_error=True))
    assert silent.error == "the server reports a failure without a text"
    shown = [types.TextContent(text="see"), types.ImageContent(data=ENCODED, mime_type="image/png")]
    pictured = answered(types.CallToolResult(content=shown, is_error=True))
    assert pictured.error == "see" and Media("image", PNG, "image/png") in pictured.content


OUTPUT = {"type": "object", "properties": {"degrees": {"type": "integer"}}, "required": ["degrees"]}


@pytest.mark.parametrize(
    ("structured", "status"), [({"degrees": 5}, "ok"), ({"degrees": "5"}, "failed"), ({}, "failed"), (None, "failed")]
)
@pytest.mark.parametrize("mode", ERAS)
def test_the_output_schema_is_held_to(structured: Any, status: str, mode: str) -> None:
    more = {} if structured is None else {"structured_content": structured}
    result = answered(text("t", **more), mode=mode, output_schema=OUTPUT)
    assert result.status == status and result.executed is True
    assert result.success or "output schema" in str(result.error)


def test_an_error_need_not_fit_the_output_schema() -> None:
    assert answered(text("no", is_error=True), output_schema=OUTPUT).error == "no"


def test_an_output_schema_need_not_be_of_an_object() -> None:
    result = answered(
        text("1", structured_content=[1, 2]), output_schema={"type": "array", "items": {"type": "integer"}}
    )
    assert result.output == [1, 2]


@pytest.mark.parametrize(
    ("block", "error"),
    [
        (types.ImageContent(data="iVBO!Rw0K", mime_type="image/png"), "is not base64"),
        (types.ImageContent(data=ENCODED, mime_type="evil\r\nX: y"), "mime_type"),
        (types.ImageContent(data=base64.b64encode(bytes(51_000_000)).decode(), mime_type="image/png"), "50,000,000"),
    ],
    ids=["no base64", "no type", "too large"],
)
def test_media_that_cannot_be_read_are_a_clear_failure(block: Any, error: str) -> None:
    result = answered(types.CallToolResult(content=[block]))
    assert (result.status, result.executed) == ("failed", True) and error in str(result.error)


def test_what_stands_beside_the_content_is_kept_in_the_metadata() -> None:
    block = types.TextContent(text="a", annotations=types.Annotations(audience=["user"]), _meta={"x/y": 1})
    result = answered(types.CallToolResult(content=[block], _meta={"trace": "t"}))
    kept = result.metadata["mcp"]
    assert kept["_meta"]["trace"] == "t"
    assert kept["content"] == [{"block": 0, "annotations": {"audience": ["user"]}, "_meta": {"x/y": 1}}]


def test_of_much_beside_the_content_its_length_is_kept() -> None:
    block = types.TextContent(text="a", _meta={"x/y": "a" * 3_000_000})
    kept = answered(types.CallToolResult(content=[block])).record()["metadata"]
    assert kept["mcp"] == {"left_out": "3,000,049 characters of JSON; at most 1,000,000 are kept"}


@pytest.mark.parametrize("mode", ERAS)
def test_a_refusal_by_the_protocol_is_a_failure_that_may_have_run(mode: str) -> None:
    async def refuse(context: Any) -> Any:
        raise MCPError(-32602, "unknown tool\u200b: one")

    result = answered(refuse, mode=mode)
    assert (result.status, result.executed) == ("failed", None)
    assert "refused the call: unknown tool: one (error -32602)" in str(result.error)


@pytest.mark.parametrize("mode", ERAS)
def test_an_error_with_the_code_of_a_closed_connection_is_what_the_server_says(mode: str) -> None:
    async def refuse(context: Any) -> Any:
        raise MCPError(types.CONNECTION_CLOSED, "rate limit reached")

    assert "refused the call: rate limit reached" in str(answered(refuse, mode=mode).error)


@pytest.mark.parametrize("mode", ERAS)
async def test_a_server_that_breaks_fails_the_call_and_nothing_else(mode: str) -> None:
    async def main() -> list[str]:
        async def broken(context: Any, arguments: Any) -> Any:
            raise ZeroDivisionError("inside")

        async with mcp.connect(made("one", broken).add("two").memory(mode)) as toolset:
            runner = Runner(toolset)
            return [(await runner.run(name)).status for name in ("one", "two")]

    assert (await main()) == ["failed", "ok"]


@pytest.mark.parametrize("mode", ERAS)
def test_progress_arrives(mode: str) -> None:
    events: list[Event] = []

    async def slow(context: Any) -> Any:
        await context.session.report_progress(1, 4, "a quarter")
        return text("done")

    assert answered(slow, mode=mode, observers=[events.append]).success
    told = [dict(event.data) for event in events if event.kind == "tool:progress"]
    assert [(one["done"], one["total"], one["message"]) for one in told] == [(1, 4, "a quarter")]


@pytest.mark.parametrize("mode", ERAS)
async def test_many_calls_at_once_are_not_mixed_up(mode: str) -> None:
    async def slow(context: Any, arguments: Any) -> Any:
        for _ in range(arguments["turns"]):
            await asyncio.sleep(0)
        return text(str(arguments["number"]))

    async def main() -> list[Any]:
        async with mcp.connect(made("one", slow).memory(mode)) as toolset:
            runner = Runner(toolset, concurrency=64)
            calls = [runner.run("one", {"number": number, "turns": number % 7}) for number in range(200)]
            return [result.output for result in await asyncio.gather(*calls)]

    assert (await main()) == [str(number) for number in range(200)]
