"""What models and tools say, as it can be shown in a line or a few."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ferrule import ToolError, ToolResult
from ferrule.approval import printable
from ferrule.values.content import Block, Text


def short(text: str, limit: int) -> str:
    """`text` in at most `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def one_line(text: str, limit: int) -> str:
    """`text` as it can stand in a line, in at most `limit` characters."""
    return printable(short(" ".join(text.split()), limit))


def told(value: Any, limit: int) -> str:
    """Whatever a tool said, as it can stand in a line; an integer too long to be written is among it."""
    try:
        return one_line(str(value), limit)
    except Exception as error:
        return f"({type(error).__name__})"


def shown(blocks: Iterable[Block]) -> str:
    """The blocks of a result as a person can read them."""
    return "\n".join(block.text if isinstance(block, Text) else _media(block) for block in blocks)


def refusal(result: ToolResult) -> str:
    """Why a call gave no value, with its status where the text does not begin with it."""
    text = result.error or shown(result.content)
    return text if text.lower().startswith(result.status) else f"{result.status}: {text}"


def traced(result: ToolResult) -> bool:
    """Whether the log has more of it than its text: what the tool raised, and did not say to the model itself."""
    error = result.exception
    return result.status == "failed" and error is not None and not isinstance(error, ToolError)


def _media(block: Block) -> str:
    assert not isinstance(block, Text)
    size = f"{len(block.data)} bytes" if block.data is not None else block.uri
    return f"[{block.kind}: {block.name + ', ' if block.name else ''}{block.mime_type}, {size}]"
