"""What was written on the command line cannot be meant: one line that says what is wrong and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MOST_CHOICES = 12


class UsageError(Exception):
    """Ends the program with exit code 2; the text is shown after `ferrule: `."""


def choices(wrong: str, right: Iterable[str]) -> str:
    """`did you mean …?` where one of `right` is close, else the first of them."""
    names = list(right)
    close = difflib.get_close_matches(wrong, names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    more = f" and {len(names) - _MOST_CHOICES} more" if len(names) > _MOST_CHOICES else ""
    return f"there are: {', '.join(names[:_MOST_CHOICES]) or 'none at all'}{more}"
