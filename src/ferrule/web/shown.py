"""Values and results as parts that a template can draw. Nothing in them is loaded from elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from ferrule import ToolResult
from ferrule.approval import preview_lines
from ferrule.values.content import Media, Text, to_jsonable
from ferrule.values.diff import Diff
from ferrule.values.frozen import thaw

Kind: TypeAlias = Literal["text", "tree", "table", "diff", "image", "audio", "file", "link"]
IMAGES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""The images that the page shows. Every other one is a file to download: an SVG is a program."""
SOUNDS: Final = ("audio/mpeg", "audio/wav", "audio/x-wav", "audio/ogg", "audio/webm", "audio/mp4", "audio/flac")
_MOST_TEXT, _SHORT_TEXT = 100_000, 200
_MOST_ROWS, _MOST_COLUMNS = 200, 20
_MOST_NODES = 2_000
_MOST_LEVELS = 50
_MOST_LINES, _MOST_DIFF = 2_000, 1_000_000
_MOST_BLOCKS = 200


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
    left, parts = _MOST_TEXT, []
    for number, block in enumerate(blocks[:_MOST_BLOCKS]):
        parts.append(_show_block(block, number, left))
        left -= min(len(block.text), left) if isinstance(block, Text) else 0
    if len(blocks) > _MOST_BLOCKS:
        parts.append(show_text(f"… {len(blocks) - _MOST_BLOCKS:,} more parts, not shown"))
    return parts


def _show_block(block: Any, number: int, most: int) -> Part:
    if isinstance(block, Text):
        return show_text(block.text, most)
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
    tree = Part(kind="tree", tree=make_tree(value), text=_cut(_write_json(value))[0])
    return [tree] if table is None else [table, tree]


def show_text(text: str, most: int = _MOST_TEXT) -> Part:
    """Return a text of at most this many characters, as a difference if it is one, or as a tree if it is JSON."""
    if re.match(r"--- [^\n]*\n\+\+\+ [^\n]*\n@@ ", text):
        return show_difference(text.split("\n"), most)
    if text[:1] in ("{", "[") and len(text) <= most:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            pass
        else:
            return Part(kind="tree", tree=make_tree(value), text=text)
    shown, cut = _cut(text, most)
    return Part(kind="text", text=shown, cut=cut)


def show_difference(lines: Sequence[str], most: int = _MOST_DIFF) -> Part:
    """Return the lines of a unified difference, as many as fit into this many characters."""
    heads = 2 if len(lines) > 1 and lines[0].startswith("--- ") and lines[1].startswith("+++ ") else 0
    shown = [
        ("@" if number < heads else line[:1] if line[:1] in ("+", "-", "@") else " ", line)
        for number, line in enumerate(lines[: _count_fitting(map(len, lines[:_MOST_LINES]), most)])
    ]
    return Part(kind="diff", lines=tuple(shown), cut=len(lines) - len(shown))


def compare_values(before: Any, after: Any, name: str = "") -> Part | None:
    """Return the difference of two JSON values, or None if they are equal."""
    before, after = thaw(before), thaw(after)
    if before == after:
        return None
    texts = [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True) + "\n"
             for value in (before, after)]  # fmt: skip
    return show_difference(preview_lines(Diff(texts[0], texts[1], name)))


@dataclass(slots=True)
class _Room:
    """The room that is left in a tree. A short text always has some, or a long one could hide it from an approver."""

    nodes: int = _MOST_NODES
    characters: int = _MOST_TEXT

    def cut(self, text: str) -> str:
        """Return as much of a text as there is room for."""
        most = max(self.characters, _SHORT_TEXT)
        self.characters = max(self.characters - len(text), 0)
        return text if len(text) <= most else f"{text[:most]}…"


def make_tree(value: Any) -> Node:
    """Return a JSON value as a tree with a bounded number of nodes, levels and characters."""
    return _make_node("", value, _Room(), 0)


def _make_node(key: str, value: Any, room: _Room, level: int) -> Node:
    key = room.cut(key)
    if isinstance(value, Mapping | list | tuple):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        children: list[Node] = []
        for inner_key, inner in items:
            if room.nodes == 0 or level == _MOST_LEVELS:
                children.append(Node("…", "word", f"{len(value) - len(children):,} more"))
                break
            room.nodes -= 1
            children.append(_make_node(str(inner_key), inner, room, level + 1))
        kind = "object" if isinstance(value, Mapping) else "array"
        return Node(key, kind, f"{len(value):,}", tuple(children))
    if isinstance(value, str):
        return Node(key, "text", room.cut(value if "\n" in value else json.dumps(value, ensure_ascii=False)))
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return Node(key, "number" if is_number else "word", json.dumps(value))


def _write_json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, indent=2)
    except RecursionError:  # the writer of lines is in Python, and each level is a frame
        return json.dumps(value, ensure_ascii=False)


def _make_table(value: Any) -> Part | None:
    """Return a list of flat objects as a table, or None."""
    if not isinstance(value, list) or len(value) < 2 or not all(isinstance(row, dict) and row for row in value):
        return None
    columns = list(dict.fromkeys(key for row in value[:_MOST_ROWS] for key in row))
    values = (cell for row in value[:_MOST_ROWS] for cell in row.values())
    if len(columns) > _MOST_COLUMNS or any(isinstance(cell, dict | list) for cell in values):
        return None
    rows = [tuple(_write_cell(row.get(column)) for column in columns) for row in value[:_MOST_ROWS]]
    fitting = _count_fitting((sum(map(len, row)) for row in rows), _MOST_TEXT)
    if fitting == 0 or sum(map(len, columns)) > _MOST_TEXT:
        return None
    return Part(kind="table", columns=tuple(columns), rows=tuple(rows[:fitting]), cut=len(value) - fitting)


def _count_fitting(sizes: Iterable[int], most: int) -> int:
    """Return how many of the first pieces fit into this many characters."""
    return sum(whole <= most for whole in accumulate(sizes))


def _write_cell(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cut(text: str, most: int = _MOST_TEXT) -> tuple[str, int]:
    return (text, 0) if len(text) <= most else (text[:most], len(text) - most)
