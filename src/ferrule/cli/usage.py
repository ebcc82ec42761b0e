"""Errors of the command line: one line with the error and the correction."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable

_MOST_CHOICES = 12
_MOST_MEANT = 3
VERBOSE_SHOWS = "--verbose shows the whole exception"


class UsageError(Exception):
    """Ends the program with exit code 2; the text is shown after `ferrule: `."""


def choices(wrong: str, right: Iterable[str]) -> str:
    """Return `did you mean …?` if one of `right` is close or several begin so, else the first of them."""
    names = list(right)
    longer = [name for name in names if wrong.strip("-") and name.startswith(wrong)]
    meant = longer if 0 < len(longer) <= _MOST_MEANT else difflib.get_close_matches(wrong, names, n=1)
    if meant:
        return f"did you mean {' or '.join(map(repr, meant))}?"
    more = f" and {len(names) - _MOST_CHOICES} more" if len(names) > _MOST_CHOICES else ""
    return f"there are: {', '.join(names[:_MOST_CHOICES]) or 'none at all'}{more}"


def share(text: str) -> float:
    """Return the value of an option that is a share."""
    try:
        given = float(text)
    except ValueError:
        given = -1.0
    if not 0 <= given <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share: give a number from 0 to 1, such as 0.8")
    return given


def at_least_one(text: str) -> int:
    """Return the value of an option that is a whole number."""
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"it is a whole number of at least 1, not {text!r}")
    return int(text)
