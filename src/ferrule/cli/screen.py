"""Where the program writes: a terminal, or a file that must not get control sequences."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from ferrule import ToolResult
from ferrule.values.content import Block, Text

_WIDTH = 120


def screen(*, errors: bool = False) -> Console:
    """Standard output, or standard error."""
    if (sys.stderr if errors else sys.stdout).isatty():
        return Console(highlight=False, markup=False, emoji=False, stderr=errors)
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isascii() and columns.isdecimal() and int(columns) >= 40 else _WIDTH
    return Console(
        highlight=False,
        markup=False,
        emoji=False,
        stderr=errors,
        force_terminal=False,
        force_interactive=False,
        color_system=None,
        no_color=True,
        width=width,
    )


def lay(console: Console, table: Table) -> None:
    """Print a table, without blanks at the ends of its lines."""
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())


def printable(text: str) -> str:
    """`text` without what could move a terminal's cursor, or hide or turn round what stands beside it: it comes from
    models and tools."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


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


def _media(block: Block) -> str:
    assert not isinstance(block, Text)
    size = f"{len(block.data)} bytes" if block.data is not None else block.uri
    return f"[{block.kind}: {block.name + ', ' if block.name else ''}{block.mime_type}, {size}]"
