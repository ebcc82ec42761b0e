"""The answer of an MCP server as a result: `structuredContent` is the output, `content` is for the model."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any

import mcp_types as types

from ferrule.errors import ToolError
from ferrule.mcp.content import OUTCOME
from ferrule.values.content import Media, Text, is_text_type, to_blocks, to_json_text, to_output
from ferrule.values.result import Status, ToolResult

_MOST_MEDIA = 50_000_000
"""Most bytes of all media of one result."""
_MOST_METADATA = 1_000_000
"""Most characters of JSON for everything beside the content: nobody else bounds it, as no model reads it."""
_NO_ERROR_TEXT = "the server reports a failure without a text"
_NO_TYPE = "application/octet-stream"
Check = Callable[[object], str]
_FAILED: tuple[Status, bool | None] = ("failed", True)
_PASSED_ON = ("invalid", "not_found", "denied", "limited", "timeout", "cancelled", "failed", "unknown")
"""The statuses of a server that its client takes over."""


def to_result(answer: types.CallToolResult, check: Check | None, *, trusted: bool = False) -> ToolResult | str:
    """Return the result of a call.

    Args:
        check: Describes the misfit of the output and the tool's output schema; `None` without a schema.
        trusted: Whether to believe a Ferrule server's word on the status of a failure, and whether anything ran.

    Raises:
        ToolError: The content cannot be read, or the output does not fit the schema.
    """
    structured = "structured_content" in answer.model_fields_set
    metadata = _metadata(answer)
    if metadata is None and check is None and not structured and not answer.is_error and len(answer.content) == 1:
        only = answer.content[0]
        if isinstance(only, types.TextContent):  # returning a plain text costs the kernel a tenth
            return only.text
    blocks = _blocks(answer.content)
    texts = [block.text for block in blocks if isinstance(block, Text)]
    only_texts = len(texts) == len(blocks)
    output: Any = "\n".join(texts) if only_texts else blocks
    if structured:
        output = answer.structured_content
        blocks = blocks or [*to_blocks(to_output(output))]
    if answer.is_error:
        error = "\n".join(texts).strip() or _NO_ERROR_TEXT
        status, executed = _read_outcome(answer) if trusted else _FAILED
        content = None if only_texts else (Text(error), *blocks)
        return ToolResult(output if structured else None, error, metadata, content, status=status, executed=executed)
    if check is not None:
        if not structured:
            text = "the server gave no structuredContent, although it declares an output schema"
            raise ToolError(text, retryable=False)
        if misfit := check(output):
            text = f"the server's structuredContent does not fit its output schema: {misfit}"
            raise ToolError(text, retryable=False)
    return ToolResult(output, None, metadata, blocks or None)


def _read_outcome(answer: types.CallToolResult) -> tuple[Status, bool | None]:
    """Return the status and `executed` that a Ferrule server gives for an unsuccessful call."""
    outcome = (answer.meta or {}).get(OUTCOME)
    if not isinstance(outcome, Mapping) or outcome.get("status") not in _PASSED_ON or "executed" not in outcome:
        return _FAILED
    executed = outcome["executed"]
    return (outcome["status"], executed) if executed is None or isinstance(executed, bool) else _FAILED


def _metadata(answer: types.CallToolResult) -> dict[str, Any] | None:
    """Return everything beside the content, for programs: no model sees it."""
    about: dict[str, Any] = {}
    meta = answer.meta
    if meta and (len(meta) > 1 or types.SERVER_INFO_META_KEY not in meta):
        # Every answer of 2026-07-28 names its server; `status` has that, too.
        about["_meta"] = {key: value for key, value in meta.items() if key != types.SERVER_INFO_META_KEY}
    block_details = []
    # An error's text stands before blocks that are not all texts.
    first = int(answer.is_error and not all(isinstance(block, types.TextContent) for block in answer.content))
    for index, block in enumerate(answer.content, first):
        details: dict[str, Any] = {"_meta": dict(block.meta or {})}
        if block.annotations is not None:
            details["annotations"] = block.annotations.model_dump(exclude_none=True, by_alias=True, mode="json")
        if isinstance(block, types.ResourceLink):
            details |= {"title": block.title, "description": block.description, "size": block.size}
        if filled := {key: value for key, value in details.items() if value}:
            block_details.append({"block": index, **filled})
    if block_details:
        about["content"] = block_details
    length = len(to_json_text(about))
    if length > _MOST_METADATA:
        about = {"left_out": f"{length:,} characters of JSON; at most {_MOST_METADATA:,} are kept"}
    return {"mcp": about} if about else None


def _blocks(content: list[types.ContentBlock]) -> list[Text | Media]:
    left = _MOST_MEDIA
    found: list[Text | Media] = []
    for index, block in enumerate(content):
        try:
            media = _block(block)
        except (TypeError, ValueError) as error:
            raise ToolError(f"block {index} of the server's answer, of the type {block.type!r}, {error}") from None
        if isinstance(media, Media):
            left -= len(media.data or b"")
        if left < 0:
            raise ToolError(f"the server's answer has more than {_MOST_MEDIA:,} bytes of media; ask for less at a time")
        found.append(media)
    return found


def _block(block: types.ContentBlock) -> Text | Media:
    """Return one block. Addresses of a server are for people and programs; a model's API may fetch none of them."""
    match block:
        case types.TextContent():
            return Text(block.text)
        case types.ImageContent():
            return Media("image", _from_base64(block.data), block.mime_type)
        case types.AudioContent():
            return Media("audio", _from_base64(block.data), block.mime_type)
        case types.ResourceLink():
            return Media("resource", None, block.mime_type or _NO_TYPE, str(block.uri), block.name)
        case types.EmbeddedResource(resource=types.TextResourceContents() as resource):
            kind = resource.mime_type or "text/plain"
            if not is_text_type(kind):  # it declares itself as text for later readers
                kind = f"{kind}; charset=utf-8"
            return Media("resource", resource.text.encode("utf-8", "replace"), kind, str(resource.uri))
        case types.EmbeddedResource(resource=types.BlobResourceContents() as resource):
            return Media("resource", _from_base64(resource.blob), resource.mime_type or _NO_TYPE, str(resource.uri))
    raise TypeError("is unknown")


def _from_base64(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"is not base64: {error}") from None
