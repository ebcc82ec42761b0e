"""A result as a client gets it: blocks, structured content where the tool has an output schema, and `isError`."""

from __future__ import annotations

import base64
from typing import Any

import mcp_types as wire
from pydantic_core import from_json

from ferrule import Media, Text, Tool, ToolResult

_MISSHAPEN = (
    "The tool was run, and its result follows. It is not in the form that the tool declares: it was cut or changed on "
    "its way, or has no such form in JSON."
)


def call_result(result: ToolResult, tool: Tool, *, structured: bool) -> dict[str, Any]:
    """What one call came to, as it is written: the SDK validates that anyway, and a model of it would be made and taken
    apart before, which takes 5 µs.

    Args:
        structured: Whether the client was told an output schema for this tool.
    """
    content = [_content_block(block, place) for place, block in enumerate(result.content)]
    if not structured or result.status != "ok":
        return _complete(content, is_error=result.status != "ok")
    try:
        value = _shown_value(result, tool)
    except ValueError:
        return _complete([_text_block(_MISSHAPEN), *content], is_error=True)
    return {"content": content, "structuredContent": value, "isError": False, "resultType": "complete"}


def _complete(content: list[dict[str, Any]], *, is_error: bool) -> dict[str, Any]:
    return {"content": content, "isError": is_error, "resultType": "complete"}


def _shown_value(result: ToolResult, tool: Tool) -> Any:
    """The value that the content shows, and no more than that: middleware bounds and masks the content alone.

    Raises:
        ValueError: where the content shows nothing that fits the output schema.
    """
    text, output = result.text, result.output
    value = text if isinstance(output, str) else from_json(text)
    if value is None:
        raise ValueError("null is no structured content")
    if value == output and len(result.content) == 1:
        return output
    if tool.output.misfit(value, value):
        raise ValueError("it does not fit the output schema")
    return value


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _content_block(block: Text | Media, place: int) -> dict[str, Any]:
    if isinstance(block, Text):
        return _text_block(block.text)
    return _media_block(block, place).model_dump(by_alias=True, mode="json", exclude_none=True)


def _media_block(block: Media, place: int) -> wire.ContentBlock:
    if block.data is None:
        if block.uri is None:
            return wire.TextContent(text=f"[{block.kind} of the type {block.mime_type}, without data]")
        name = block.name or block.uri.rstrip("/").rpartition("/")[2] or block.uri
        return wire.ResourceLink(name=name, uri=block.uri, mime_type=block.mime_type)
    data = base64.b64encode(block.data).decode()
    if block.kind == "image":
        return wire.ImageContent(data=data, mime_type=block.mime_type)
    if block.kind == "audio":
        return wire.AudioContent(data=data, mime_type=block.mime_type)
    uri = block.uri or f"ferrule:result/{place}"
    meta = {"name": block.name} if block.name else None
    held = wire.BlobResourceContents(uri=uri, blob=data, mime_type=block.mime_type, _meta=meta)
    return wire.EmbeddedResource(resource=held)
