"""What a terminal is told before a question, and what of somebody else's text it may be given at all."""

from __future__ import annotations

import os
import re
import sys

from ferrule.security.characters import HIDDEN

RESET = "".join(
    [
        "\x1b\\",  # the end of a title or another string that was begun, and would take in all that follows
        "\x1b7\x1b[?69l\x1b[r\x1b8",  # margins; setting them moves the cursor
        "\x1b7\x1b[?1049l",  # another screen; where this is none of those, the cursor goes to where it is
        "\x1b[m\x1b[4l\x1b[?5l\x1b[?7h\x1b[?25h\x1b[?2026l",  # colours and what is concealed, modes, updates held back
        "\x0f\x1b(B",  # letters that are drawn as lines
        "\x1b]110\x1b\\\x1b]111\x1b\\",  # a foreground that was given the colour of the background
        "\r\x1b[J",  # what stands below, where a question is to be read
    ]
)
"""Takes back what text that was written before may have set, as in xterm's "Control Sequences" and ECMA-48."""


def reset() -> str:
    """`RESET`, for a terminal that reads such sequences: of one that does not, nothing can have been set."""
    return RESET if os.environ.get("TERM") != "dumb" and _reads_sequences() else ""


def _reads_sequences() -> bool:
    """A console of Windows does where something has turned it on, as many programs do for their colours."""
    reads: bool = True
    if sys.platform == "win32":  # pragma: no cover
        import ctypes

        # GetConsoleMode of standard output and standard error: ENABLE_VIRTUAL_TERMINAL_PROCESSING is 4.
        kernel, mode = ctypes.windll.kernel32, ctypes.c_ulong()
        found = (kernel.GetConsoleMode(kernel.GetStdHandle(which), ctypes.byref(mode)) for which in (-11, -12))
        reads = any(has_mode and mode.value & 4 for has_mode in found)
    return reads


def printable(text: str) -> str:
    """`text` as a terminal may be given it: each character but line breaks and tabs that could move the cursor, set
    colours, hide or turn round what stands beside it, or is not seen itself, is a replacement character.

    What models, tools and servers say goes through this wherever a program prints it; see docs/approvals.md.
    """
    shown = "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
    return re.sub(HIDDEN, "\N{REPLACEMENT CHARACTER}", shown)
