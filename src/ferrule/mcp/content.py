"""A tool and a result in the form of MCP: name and hints; blocks, structured content if the tool has an output schema,
and `isError`."""

from __future__ import annotations

import base64
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

import mcp_types as wire
from pydantic_core import from_json

from ferrule.definition.tool import Tool
from ferrule.values.content import Block, Media, Text, is_text_type
from ferrule.values.frozen import thaw
from ferrule.values.json_text import format_json
from ferrule.values.result import Status, ToolResult, get_original

_MISSHAPEN = (
    "The tool ran, and its result follows. The result does not have the declared form: middleware cut or changed "
    "it, or JSON cannot express it."
)
_CUT_ITEMS = re.compile(r"\[cut: \d+ items left out\]")
_CUT_KEYS = re.compile(r"\[+cut\]+")
_MCP_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_HINTS = {"read_only": "readOnlyHint", "destructive": "destructiveHint", "idempotent": "idempotentHint"}
_HINTS |= {"open_world": "openWorldHint"}
_DETAILS = ("annotations", "_meta", "title", "description", "size")
"""The keys of a server's details about a block."""
_MOST_DETAILS = 10_000
"""Most characters of all details in one result, as JSON."""
OUTCOME = "ferrule/outcome"
"""The key of the outcome in the `_meta` of an unsuccessful result, for a client that trusts the server."""


def wire_name(tool: Tool) -> str:
    """Return the tool's own name if MCP allows it, else the name allowed by every provider; a toolset finds it by
    both."""
    return tool.name if _MCP_NAME.fullmatch(tool.name) else tool.wire_name


def make_annotations(tool: Tool) -> wire.ToolAnnotations:
    """Return the tool's title, and its effects on the world, as far as they do not depend on arguments."""
    values = {hint: getattr(tool, name) for name, hint in _HINTS.items()}
    hints = {hint: value for hint, value in values.items() if isinstance(value, bool)}
    return wire.ToolAnnotations.model_validate({**hints, "title": tool.title})


def has_sendable_schema(tool: Tool, around: Iterable[object]) -> bool:
    """Return whether clients may be sent the tool's output schema. A client that has the schema refuses results without
    structured content. So the schema must not allow null, because structured content is never null, and no middleware
    may wrap the content in an envelope.

    Args:
        around: The middleware of the runner. One with `envelops` writes texts in a form of its own.
    """
    mounts = (mount.settings.around for mount in tool.mounts)
    enveloped = any(getattr(one, "envelops", False) for one in chain(around, tool.around, *mounts))
    return not enveloped and bool(tool.output.describe_misfit(None))


def to_wire_result(
    result: ToolResult, tool: Tool, *, schema_listed: bool, unlisted_types: tuple[type, ...]
) -> dict[str, Any]:
    """Return the result of a call in the form for the wire. The SDK validates that anyway; making a model of it and
    taking it apart again would take 5 µs.

    If the handler of a successful call gave content of its own beside its output, both are sent unchanged. For all
    other successes the structured content is the value shown by the content: middleware bounds and masks the content
    alone.

    Args:
        schema_listed: Whether the client was sent an output schema for this tool.
        unlisted_types: The classes of outputs sent as structured content if it has not.
    """
    original = get_original(result)[1]
    content = [make_block(block, place) for place, block in enumerate(result.content)]
    if original is not None and result.content == original:  # otherwise a middleware has cut, masked or wrapped it
        _add_details(content, result)
    if result.status != "ok":
        return {**_complete(content, is_error=True), "_meta": make_outcome(result.status, result.executed)}
    if not schema_listed:
        is_unchanged = original is not None and result.content == original and result.output != [*original]
        if is_unchanged and isinstance(result.output, unlisted_types):
            return _complete(content, result.output)
        return _complete(content)
    declared: Mapping[str, Any] = {} if tool.output_schema is None else tool.output_schema.get("properties", {})
    for value in _find_candidates(result, original, declared):
        is_checked = original is None and value == result.output
        if value is not None and (is_checked or not tool.output.describe_misfit(value)):
            return _complete(content, value)
    return _complete([_text_block(_MISSHAPEN), *content], is_error=True)


def make_outcome(status: Status, executed: bool | None) -> dict[str, Any]:
    """Return the `_meta` with the outcome of an unsuccessful call."""
    return {OUTCOME: {"status": status, "executed": executed}}


def _complete(content: list[dict[str, Any]], structured: Any = None, *, is_error: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = {"content": content, "isError": is_error, "resultType": "complete"}
    if structured is not None:
        found["structuredContent"] = structured
    return found


def _find_candidates(
    result: ToolResult, original: tuple[Block, ...] | None, declared: Mapping[str, Any]
) -> Iterator[Any]:
    """Yield candidates for the value that the content shows, the most faithful first. The output schema declares
    properties."""
    output, content = result.output, result.content
    if original is not None and content == original:
        yield output
    if isinstance(output, str):
        yield result.text
    else:
        yield (value := _parse_json(result.text))
        yield _without_marks(value)
    if original is not None:
        with suppress(LookupError):
            yield _replace_texts(output, original, content, declared)


def _without_marks(value: Any) -> Any:
    """Return the value without the marks of `cut` for left-out parts."""
    if isinstance(value, list):
        return [_without_marks(item) for item in value if not (isinstance(item, str) and _CUT_ITEMS.fullmatch(item))]
    if isinstance(value, dict):
        return {key: _without_marks(item) for key, item in value.items() if not _CUT_KEYS.fullmatch(key)}
    return value


def _replace_texts(
    output: Any, original: tuple[Block, ...], shown: tuple[Block, ...], declared: Mapping[str, Any]
) -> Any:
    """Return the output with each text of the handler's blocks replaced by the text shown now, and without texts no
    longer shown. The output must hold nothing else: servers give a value, or a list of values, in blocks as well. That
    value may stand in an object with only keys from the output schema.

    Raises:
        LookupError: The output holds anything else, or a changed block is not in it.
    """
    left = len(original) - len(shown) + 1
    note = Text(f"[cut: {left} blocks left out]")
    if left > 1 and note in shown:
        place = shown.index(note)
        now: tuple[Block | None, ...] = (*shown[: place + 1], *[None] * (left - 1), *shown[place + 1 :])
    else:
        now = shown
    if len(now) != len(original):
        raise LookupError
    texts: deque[tuple[str, str | None]] = deque()
    for before, after in zip(original, now, strict=True):
        if isinstance(before, Text) and (after is None or isinstance(after, Text)):
            texts.append((before.text, None if after is None else after.text))
        elif before != after:
            raise LookupError

    def replace(value: Any) -> Any:
        if texts and (value == texts[0][0] or (not isinstance(value, str) and value == _parse_json(texts[0][0]))):
            after = texts.popleft()[1]
            return after if isinstance(value, str) or after is None else _without_marks(_parse_json(after))
        if isinstance(value, list) and value:
            return [item for item in map(replace, value) if item is not None]
        raise LookupError

    if isinstance(output, dict) and output.keys() <= declared.keys():
        found: Any = {key: replace(item) for key, item in output.items()}
    else:
        found = replace(output)
    if any(before != after for before, after in texts):
        raise LookupError
    return found


def _parse_json(text: str) -> Any:
    """Return the value of a JSON text; `None` if it is none."""
    with suppress(ValueError):
        return from_json(text)
    return None


def _add_details(content: list[dict[str, Any]], result: ToolResult) -> None:
    """Add a server's details to the blocks, from the metadata of a result of `ferrule.mcp`. Long details are left out:
    no middleware has checked them."""
    about = result.metadata.get("mcp")
    found = about.get("content", ()) if isinstance(about, Mapping) else ()
    if found and len(format_json(thaw(found))) > _MOST_DETAILS:
        return
    for details in found:
        place = details.get("block")
        if isinstance(place, int) and place < len(content):
            content[place] |= {key: thaw(value) for key, value in details.items() if key in _DETAILS}


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def make_block(block: Text | Media, place: int) -> dict[str, Any]:
    """Return a block of a result as content of MCP. `place` is its number among the blocks."""
    if isinstance(block, Text):
        return _text_block(block.text)
    return _media_block(block, place).model_dump(by_alias=True, mode="json", exclude_none=True)


def _media_block(block: Media, place: int) -> wire.ContentBlock:
    if block.data is None:
        if block.uri is None:
            return wire.TextContent(text=f"[{block.kind} of the type {block.mime_type}, without data]")
        name = block.name or block.uri.rstrip("/").rpartition("/")[2] or block.uri
        return wire.ResourceLink(name=name, uri=block.uri, mime_type=block.mime_type)
    if block.kind in ("file", "resource") and is_text_type(block.mime_type):
        with suppress(UnicodeDecodeError):
            return _resource(block, place, wire.TextResourceContents, text=block.data.decode())
    data = base64.b64encode(block.data).decode()
    if block.kind == "image":
        return wire.ImageContent(data=data, mime_type=block.mime_type)
    if block.kind == "audio":
        return wire.AudioContent(data=data, mime_type=block.mime_type)
    return _resource(block, place, wire.BlobResourceContents, blob=data)


def _resource(block: Media, place: int, kind: Any, **held: str) -> wire.EmbeddedResource:
    uri, meta = block.uri or f"ferrule:result/{place}", {"name": block.name} if block.name else None
    return wire.EmbeddedResource(resource=kind(uri=uri, mime_type=block.mime_type, _meta=meta, **held))
