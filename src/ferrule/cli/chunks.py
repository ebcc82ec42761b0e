"""The chunks of a handler as lines: a text when a line of it is complete, anything else as JSON."""

from __future__ import annotations

import json
from typing import Any

from ferrule.cli.text import told

_LINE_LENGTH = 200
_LINES = 40
_CHARACTERS = 4000
_MORE = "(more follows, not shown here)"


class Chunks:
    """The chunks of one call. A person sees the first few thousand characters."""

    def __init__(self) -> None:
        self._open = ""
        self._lines = _LINES
        self._left = _CHARACTERS

    def take(self, chunk: Any) -> list[str]:
        """Add a chunk, and return the lines that are complete now."""
        if self._left < 0:
            return []
        text = chunk if isinstance(chunk, str) else f"\n{written(chunk)}\n"
        *lines, self._open = (self._open + text[: self._left + 1]).split("\n")
        self._left -= len(text)
        while len(self._open) > _LINE_LENGTH:
            cut = self._open.rfind(" ", 1, _LINE_LENGTH) + 1 or _LINE_LENGTH
            lines.append(self._open[:cut])
            self._open = self._open[cut:]
        return self._bounded([line for line in lines if line.strip()])

    def end(self) -> list[str]:
        """Return the unfinished line."""
        return [self._open] if self._open.strip() else []

    def _bounded(self, lines: list[str]) -> list[str]:
        if len(lines) <= self._lines and self._left >= 0:
            self._lines -= len(lines)
            return lines
        self._open, self._left = "", -1
        return [*lines[: self._lines], _MORE]


def written(chunk: Any) -> str:
    """Return a chunk that is no text as a line."""
    try:
        return json.dumps(chunk, ensure_ascii=False, default=str)
    except Exception:  # keys that are no texts, a list in itself
        return told(chunk, _LINE_LENGTH)
