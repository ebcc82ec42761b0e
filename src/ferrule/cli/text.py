"""Text of models and tools as printable lines, and one-line messages on standard error."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from ferrule import ToolError, ToolResult
from ferrule.approval import printable
from ferrule.values.content import Block, Text

_MESSAGE_LENGTH = 2000
_VALUE_LENGTH = 60
_ARGUMENTS_LENGTH = 160
_AMOUNT_LENGTH = 60
_EXACT = 10**15


def shorten(text: str, limit: int) -> str:
    """Return `text` in at most `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def to_line(text: str, limit: int) -> str:
    """Return `text` in one line, in at most `limit` characters."""
    return printable(shorten(" ".join(text.split()), limit))


def shorten_path(text: str) -> str:
    """Return the text without the path of the working directory, so that paths below it start there."""
    return text.replace(os.getcwd() + os.sep, "")


def warn(message: object) -> None:
    """Print one line on standard error. The message may contain text of a file, a server or a model."""
    print(to_line(f"ferrule: {message}", _MESSAGE_LENGTH), file=sys.stderr, flush=True)


def print_json(value: object) -> None:
    """Print a value as indented JSON in ASCII, which cannot affect a terminal."""
    print(json.dumps(value, indent=2))


def format_value(value: Any, limit: int) -> str:
    """Return a value of a tool in one line. Some values have no text, such as an integer with too many digits."""
    try:
        return to_line(str(value), limit)
    except Exception as error:
        return f"({type(error).__name__})"


def format_arguments(arguments: Any) -> str:
    """Return arguments on one line. Paths below the working directory start there."""
    if not isinstance(arguments, Mapping):
        return shorten(str(arguments), _ARGUMENTS_LENGTH)
    texts = (f"{name}={_format_argument(value)}" for name, value in arguments.items())
    return shorten(", ".join(texts), _ARGUMENTS_LENGTH)


def _format_argument(value: Any) -> str:
    value = value.removeprefix(os.getcwd() + os.sep) if isinstance(value, str) else value
    return shorten(json.dumps(value, ensure_ascii=False), _VALUE_LENGTH)


def format_json(value: Any) -> str:
    """Return a value as JSON, in one line."""
    return json.dumps(value, ensure_ascii=False)


def format_progress(done: Any, total: Any) -> str:
    """Return `3/10`, or `3` without a total."""
    return format_amount(done) if total is None else f"{format_amount(done)}/{format_amount(total)}"


def format_amount(value: Any) -> str:
    """Return a number in readable form. A tool may report anything, even an integer too large for a float."""
    try:
        whole = float(value).is_integer() and abs(value) < _EXACT
        return f"{int(value):,}" if whole else f"{value:g}"
    except (TypeError, ValueError, OverflowError):
        return format_value(value, _AMOUNT_LENGTH)


def format_blocks(blocks: Iterable[Block]) -> str:
    """Return the blocks of a result in readable form."""
    return "\n".join(block.text if isinstance(block, Text) else _format_media(block) for block in blocks)


def format_refusal(result: ToolResult) -> str:
    """Return why a call gave no value. The text starts with the status."""
    text = result.error or format_blocks(result.content)
    return text if text.lower().startswith(result.status) else f"{result.status}: {text}"


def has_traceback(result: ToolResult) -> bool:
    """Return whether the log has a traceback: the tool raised an exception other than `ToolError`."""
    error = result.exception
    return result.status == "failed" and error is not None and not isinstance(error, ToolError)


def _format_media(block: Block) -> str:
    assert not isinstance(block, Text)
    size = f"{len(block.data)} bytes" if block.data is not None else block.uri
    return f"[{block.kind}: {block.name + ', ' if block.name else ''}{block.mime_type}, {size}]"
