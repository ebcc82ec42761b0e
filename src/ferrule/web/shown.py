"""Values and results as parts that a template can draw. Nothing in them is loaded from elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from ferrule import ToolResult
from ferrule.approval import preview_lines
from ferrule.values.content import Media, Text, to_jsonable
from ferrule.values.decision import Diff
from ferrule.values.frozen import thaw

Kind: TypeAlias = Literal["text", "tree", "table", "diff", "image", "audio", "file", "link"]
IMAGES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""The images that the page shows. Every other one is a file to download: an SVG is a program."""
SOUNDS: Final = ("audio/mpeg", "audio/wav", "audio/x-wav", "audio/ogg", "audio/webm", "audio/mp4", "audio/flac")
_MOST_TEXT = 100_000
_MOST_ROWS, _MOST_COLUMNS = 200, 20
_MOST_NODES = 2_000
_MOST_LINES = 2_000


class Node(NamedTuple):
    """One value of a JSON tree.

    Attributes:
        key: Its key or number in the value around it; empty for the root.
        kind: `object`, `array`, `text`, `number` or `word`.
        text: A plain value, or the number of values inside.
        children: The values inside.
    """

    key: str
    kind: str
    text: str
    children: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a result.

    Attributes:
        kind: How to draw it.
        text: Its text; the name or the address of a file.
        cut: The number of characters, rows or lines that are left out.
        number: The number of its block, for the address of its data.
        lines: The lines of a difference: `+`, `-`, `@` or a blank, and the text.
    """

    kind: Kind
    text: str = ""
    cut: int = 0
    number: int = 0
    mime_type: str = ""
    size: int = 0
    tree: Node | None = None
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    lines: tuple[tuple[str, str], ...] = ()


def show_result(result: ToolResult) -> list[Part]:
    """Return the parts of a result: its blocks, or its output as a table or a tree."""
    blocks = result.content
    output = to_jsonable(result.output)
    if isinstance(output, dict | list) and not any(isinstance(block, Media) for block in blocks):
        return show_value(output)
    return [_show_block(block, number) for number, block in enumerate(blocks)]


def _show_block(block: Any, number: int) -> Part:
    if isinstance(block, Text):
        return show_text(block.text)
    name, size = block.name or "", len(block.data or b"")
    if block.data is None:
        return Part(kind="link", text=block.uri or name, mime_type=block.mime_type)
    kind = block.mime_type.partition(";")[0].lower()
    drawn: Kind = "image" if kind in IMAGES else "audio" if kind in SOUNDS else "file"
    return Part(kind=drawn, text=name, number=number, mime_type=block.mime_type, size=size)


def show_value(value: Any) -> list[Part]:
    """Return the parts of a JSON value: a text, or a table of equal objects and a tree."""
    if isinstance(value, str):
        return [show_text(value)]
    table = _make_table(value)
    tree = Part(kind="tree", tree=make_tree(value), text=_cut(json.dumps(value, ensure_ascii=False, indent=2))[0])
    return [tree] if table is None else [table, tree]


def show_text(text: str) -> Part:
    """Return a text, as a difference if it is one, or as a tree if it is JSON."""
    if re.match(r"--- [^\n]*\n\+\+\+ [^\n]*\n@@ ", text):
        return show_difference(text.split("\n"))
    if text[:1] in ("{", "[") and len(text) <= _MOST_TEXT:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            pass
        else:
            return Part(kind="tree", tree=make_tree(value), text=text)
    shown, cut = _cut(text)
    return Part(kind="text", text=shown, cut=cut)


def show_difference(lines: Sequence[str]) -> Part:
    """Return the lines of a unified difference."""
    heads = 2 if len(lines) > 1 and lines[0].startswith("--- ") and lines[1].startswith("+++ ") else 0
    shown = tuple(
        ("@" if number < heads else line[:1] if line[:1] in ("+", "-", "@") else " ", line)
        for number, line in enumerate(lines[:_MOST_LINES])
    )
    return Part(kind="diff", lines=shown, cut=max(len(lines) - _MOST_LINES, 0))


def compare_values(before: Any, after: Any, name: str = "") -> Part | None:
    """Return the difference of two JSON values, or None if they are equal."""
    before, after = thaw(before), thaw(after)
    if before == after:
        return None
    texts = [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True) + "\n"
             for value in (before, after)]  # fmt: skip
    return show_difference(preview_lines(Diff(texts[0], texts[1], name)))


def make_tree(value: Any) -> Node:
    """Return a JSON value as a tree with a bounded number of nodes."""
    return _make_node("", value, iter(range(_MOST_NODES)))


def _make_node(key: str, value: Any, budget: Iterator[int]) -> Node:
    if isinstance(value, Mapping | list | tuple):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        children: list[Node] = []
        for inner_key, inner in items:
            if next(budget, None) is None:
                children.append(Node("…", "word", f"{len(value) - len(children):,} more"))
                break
            children.append(_make_node(str(inner_key), inner, budget))
        kind = "object" if isinstance(value, Mapping) else "array"
        return Node(key, kind, f"{len(value):,}", tuple(children))
    if isinstance(value, str):
        return Node(key, "text", _cut(value if "\n" in value else json.dumps(value, ensure_ascii=False))[0])
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return Node(key, "number" if is_number else "word", json.dumps(value))


def _make_table(value: Any) -> Part | None:
    """Return a list of flat objects as a table, or None."""
    if not isinstance(value, list) or len(value) < 2 or not all(isinstance(row, dict) and row for row in value):
        return None
    columns = list(dict.fromkeys(key for row in value[:_MOST_ROWS] for key in row))
    values = (cell for row in value[:_MOST_ROWS] for cell in row.values())
    if len(columns) > _MOST_COLUMNS or any(isinstance(cell, dict | list) for cell in values):
        return None
    rows = tuple(tuple(_write_cell(row.get(column)) for column in columns) for row in value[:_MOST_ROWS])
    return Part(kind="table", columns=tuple(columns), rows=rows, cut=max(len(value) - _MOST_ROWS, 0))


def _write_cell(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cut(text: str) -> tuple[str, int]:
    return (text, 0) if len(text) <= _MOST_TEXT else (text[:_MOST_TEXT], len(text) - _MOST_TEXT)
