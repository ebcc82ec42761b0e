"""Texts of models and tools in printable form, in a line or a few."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ferrule import ToolError, ToolResult
from ferrule.approval import printable
from ferrule.values.content import Block, Text


def short(text: str, limit: int) -> str:
    """Return `text` in at most `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def one_line(text: str, limit: int) -> str:
    """Return `text` in one line, in at most `limit` characters."""
    return printable(short(" ".join(text.split()), limit))


def told(value: Any, limit: int) -> str:
    """Return a value of a tool in one line. Some values have no text, such as an integer too long to be written."""
    try:
        return one_line(str(value), limit)
    except Exception as error:
        return f"({type(error).__name__})"


def shown(blocks: Iterable[Block]) -> str:
    """Return the blocks of a result in readable form."""
    return "\n".join(block.text if isinstance(block, Text) else _media(block) for block in blocks)


def refusal(result: ToolResult) -> str:
    """Return why a call gave no value, with its status if the text does not begin with it."""
    text = result.error or shown(result.content)
    return text if text.lower().startswith(result.status) else f"{result.status}: {text}"


def traced(result: ToolResult) -> bool:
    """Return whether the log has more than the text: an exception of the tool that was not a `ToolError`."""
    error = result.exception
    return result.status == "failed" and error is not None and not isinstance(error, ToolError)


def _media(block: Block) -> str:
    assert not isinstance(block, Text)
    size = f"{len(block.data)} bytes" if block.data is not None else block.uri
    return f"[{block.kind}: {block.name + ', ' if block.name else ''}{block.mime_type}, {size}]"
