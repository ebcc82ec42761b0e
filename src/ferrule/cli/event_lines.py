"""The signs of events and statuses, and lines that begin with one."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from ferrule.journal.reading import NOT_STARTED

SIGNS = {
    "tool:pre": ("→", "cyan"),
    "tool:decided": ("?", "yellow"),
    "tool:started": ("▸", "cyan"),
    "tool:progress": ("…", "cyan"),
    "tool:suspended": ("‖", "yellow"),
    "attempt": ("↻", "yellow"),
    "more": ("…", "dim"),
    "ok": ("✓", "green"),
    "invalid": ("!", "yellow"),
    "not_found": ("!", "yellow"),
    "denied": ("⊘", "magenta"),
    "running": ("▸", "cyan"),
    "asked": ("?", "yellow"),
    "suspended": ("‖", "yellow"),
    "deferred": ("‖", "yellow"),
    "cut_off": ("?", "red"),
    NOT_STARTED: ("!", "yellow"),
    "unknown": ("?", "red"),
}
"""The sign and the style of each kind of event and of each status."""
_FAILED = ("✗", "red")
_ASCII = str.maketrans("→…↻‖✓⊘✗▸━·", ">~^=+-x>#|")


def get_sign(key: str) -> tuple[str, str]:
    """Return the sign of an event or a status, with its style."""
    return SIGNS.get(key, _FAILED)


def to_encoding(text: str, console: Console) -> str:
    """Return the text with signs that the console can write."""
    return text if console.encoding.lower().startswith("utf") else text.translate(_ASCII)


def format_start(offset: float, width: int, sign: str, style: str, console: Console) -> Text:
    """Return the start of a line: the seconds since the first event, and a sign."""
    start = Text(f"{f'+{offset:.3f}s':>{width}} ", style="dim")
    return start.append(to_encoding(sign, console), style=f"not dim {style}").append(" ")


def wrap_after(start: Text, text: Text, console: Console) -> Iterator[Text]:
    """Yield the lines of a text after `start`. They all begin in the same column."""
    for line in text.wrap(console, max(console.width - start.cell_len, 20)):
        line.rstrip()
        yield start + line
        start = Text(" " * start.cell_len)
