"""Counts in texts: `1 line`, `2 lines`."""

from __future__ import annotations


def pluralize(count: int, noun: str, plural: str = "") -> str:
    """Return the form of a noun that stands behind this count: `line` or `lines`."""
    return noun if count == 1 else plural or noun + "s"


def format_count(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun: `1 test`, `2,000 tests`."""
    return f"{count:,} {pluralize(count, noun, plural)}"
