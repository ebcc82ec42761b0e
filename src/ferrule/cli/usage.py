"""What was written on the command line cannot be meant: one line that says what is wrong and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UsageError(Exception):
    """Ends the program with exit code 2; the text is shown after `ferrule: `."""


def choices(wrong: str, right: Iterable[str]) -> str:
    """`did you mean …?` where one of `right` is close, else all of them."""
    names = list(right)
    close = difflib.get_close_matches(wrong, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(names) or 'none at all'}"
