"""The chunks of a handler as lines: text when a line is complete, any other value as JSON."""

from __future__ import annotations

import json
from typing import Any

from ferrule.cli.text import format_value

_LINE_LENGTH = 200
_LINES = 40
_CHARACTERS = 4000
_MORE = "(more output is not shown)"


class Chunks:
    """The chunks of one call. Only the first few thousand characters become lines."""

    def __init__(self) -> None:
        self._open = ""
        self._lines = _LINES
        self._left = _CHARACTERS

    def take(self, chunk: Any) -> list[str]:
        """Add a chunk, and return the lines that it completes."""
        if self._left < 0:
            return []
        text = chunk if isinstance(chunk, str) else f"\n{format_chunk(chunk)}\n"
        *lines, self._open = (self._open + text[: self._left + 1]).split("\n")
        self._left -= len(text)
        while len(self._open) > _LINE_LENGTH:
            cut = self._open.rfind(" ", 1, _LINE_LENGTH) + 1 or _LINE_LENGTH
            lines.append(self._open[:cut])
            self._open = self._open[cut:]
        return self._limit_lines([line for line in lines if line.strip()])

    def end(self) -> list[str]:
        """Return the unfinished line."""
        return [self._open] if self._open.strip() else []

    def _limit_lines(self, lines: list[str]) -> list[str]:
        if len(lines) <= self._lines and self._left >= 0:
            self._lines -= len(lines)
            return lines
        self._open, self._left = "", -1
        return [*lines[: self._lines], _MORE]


def format_chunk(chunk: Any) -> str:
    """Return a chunk that is not text as a line."""
    try:
        return json.dumps(chunk, ensure_ascii=False, default=str)
    except Exception:  # keys that are not text, or a list that contains itself
        return format_value(chunk, _LINE_LENGTH)
