"""Reset a terminal before a question, and make text from others safe to print."""

from __future__ import annotations

import os
import re
import sys

from ferrule.security.characters import HIDDEN

RESET = "".join(
    [
        "\x1b\\",  # ends an unfinished title or other string, which would swallow all later text
        "\x1b7\x1b[?69l\x1b[r\x1b8",  # margins; setting them moves the cursor
        "\x1b7\x1b[?1049l",  # the main screen; if it is already shown, the cursor stays in place
        "\x1b[m\x1b[4l\x1b[?5l\x1b[?7h\x1b[?25h\x1b[?2026l",  # colours, concealed text, modes, held-back updates
        "\x0f\x1b(B",  # letters drawn as lines
        "\x1b]110\x1b\\\x1b]111\x1b\\",  # a foreground with the colour of the background
        "\r\x1b[J",  # text below, in the place of the question
    ]
)
"""The sequences that undo the settings of earlier text, from xterm's "Control Sequences" and ECMA-48."""


def reset() -> str:
    """Return `RESET`, or "" for a terminal that does not read such sequences: nothing can have been set there."""
    return RESET if os.environ.get("TERM") != "dumb" and _can_read_sequences() else ""


def _can_read_sequences() -> bool:
    """Return whether the terminal reads sequences. A Windows console does if a program has turned it on, as many do."""
    reads: bool = True
    if sys.platform == "win32":  # pragma: no cover
        import ctypes

        # GetConsoleMode of standard output and standard error: ENABLE_VIRTUAL_TERMINAL_PROCESSING is 4.
        kernel, mode = ctypes.windll.kernel32, ctypes.c_ulong()
        found = (kernel.GetConsoleMode(kernel.GetStdHandle(which), ctypes.byref(mode)) for which in (-11, -12))
        reads = any(has_mode and mode.value & 4 for has_mode in found)
    return reads


def printable(text: str) -> str:
    """Return `text` without harmful characters for a terminal. Each becomes a replacement character.

    A harmful character may move the cursor, set colours, hide or reverse the text beside it, or is invisible. Line
    breaks and tabs stay. Print all text of models, tools and servers through this function; see docs/approvals.md.
    """
    shown = "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
    return re.sub(HIDDEN, "\N{REPLACEMENT CHARACTER}", shown)
