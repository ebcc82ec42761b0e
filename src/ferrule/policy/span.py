"""A span of time in the form for people: `30m`, `8h`."""

from __future__ import annotations

import re

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(\d{1,6})\s*([smhd])[a-z]*", re.ASCII)


def format_span(seconds: float) -> str:
    """Return a span of time in the form for people: `8h`, `30m`."""
    unit = next((unit for unit in reversed(_UNITS) if seconds % _UNITS[unit] == 0 and seconds >= _UNITS[unit]), "s")
    return f"{seconds / _UNITS[unit]:g}{unit}"


def parse_span(text: str) -> float:
    """Return the seconds of a span of time.

    Raises:
        ValueError: The text is no span of time.
    """
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise ValueError(f"{text!r} is no duration: write a number with its unit, such as 30m, 8h or 7d")
    return float(found[1]) * _UNITS[found[2]]
