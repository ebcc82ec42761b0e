"""Change every text of a result: in content, output, keys, numbers, error and metadata."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from ferrule.security.redaction import number_texts
from ferrule.values.content import Block, Media, Text, to_blocks, to_output
from ferrule.values.json_text import MASK
from ferrule.values.result import ToolResult

Change: TypeAlias = Callable[[str, str], str]
"""A function from a text and the name of its member (or `""`) to the new text."""
_IS_TEXT = re.compile(r"text/|application/([\w.+-]+\+)?json\s*(;|$)", re.IGNORECASE)


def is_text(media: Media) -> bool:
    """Return whether a provider shows the bytes of this media block as text."""
    return bool(_IS_TEXT.match(media.mime_type))


def change_texts(result: ToolResult, change: Change) -> ToolResult:
    """Return the result with each text replaced by `change`, or the same object if no text changes."""
    changes: dict[str, Any] = {}
    output = to_output(result.output, strict=False)
    new_output = _change_value(output, change)
    if new_output is not output:
        changes["output"] = new_output
    if result.error is not None and (error := change(result.error, "")) != result.error:
        changes["error"] = error
    metadata = _change_value(result.metadata, change)
    if metadata is not result.metadata:
        changes["metadata"] = metadata
    is_rendered = result.error is None and result.content == to_blocks(output)
    content = to_blocks(new_output) if is_rendered else _change_value(result.content, change)
    if content != result.content:
        changes["content"] = content
    return result.replace(**{"content": result.content, **changes}) if changes else result


def _change_value(value: Any, change: Change, name: str = "") -> Any:
    """Return the changed value, or `value` itself if nothing in it changes."""
    if isinstance(value, str):
        new = change(value, name)
        return value if new == value else new
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value if all(change(text, "") == text for text in number_texts(value)) else MASK
    if isinstance(value, bytes):
        return _change_bytes(value, change)
    if isinstance(value, Text | Media):
        return _change_block(value, change)
    if isinstance(value, Mapping):
        return _change_mapping(value, change)
    if isinstance(value, list | tuple):
        items = [_change_value(item, change) for item in value]
        is_same = all(new is old for new, old in zip(items, value, strict=True))
        return value if is_same else tuple(items) if isinstance(value, tuple) else items
    return value


def _change_bytes(value: bytes, change: Change, *, errors: str = "strict") -> bytes:
    try:
        text = value.decode(errors=errors)
    except UnicodeDecodeError:
        return value
    new = change(text, "")
    return value if new == text else new.encode()


def _change_block(block: Block, change: Change) -> Block:
    if isinstance(block, Text):
        text = change(block.text, "")
        return block if text == block.text else Text(text)
    data = block.data
    if data is not None and is_text(block):
        data = _change_bytes(data, change, errors="replace")  # as a provider shows it
    uri, name = (text and change(text, "") for text in (block.uri, block.name))
    mime_type = _change_mime_type(block.mime_type, change)
    if data is block.data and (uri, name, mime_type) == (block.uri, block.name, block.mime_type):
        return block
    return Media(block.kind, data, mime_type, uri, name, fetch=block.fetch and uri == block.uri)


def _change_mime_type(mime_type: str, change: Change) -> str:
    kind, semicolon, parameters = mime_type.partition(";")
    shown = kind if change(kind, "") == kind else "application/octet-stream"
    return f"{shown}{semicolon}{change(parameters, '')}"


def _change_mapping(value: Mapping[Any, Any], change: Change) -> Mapping[Any, Any]:
    """Return the changed mapping. Two keys with the same new name stay two."""
    changed: dict[Any, Any] = {}
    is_same, taken = True, set(value)
    for key, item in value.items():
        new = change(key, "") if isinstance(key, str) else key
        if new != key:
            while new in taken:
                new += "_"
            taken.add(new)
        changed[new] = _change_value(item, change, str(key))
        is_same = is_same and new == key and changed[new] is item
    return value if is_same else changed
