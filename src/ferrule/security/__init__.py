"""Analysis of input from outside, without knowledge of any call: secrets, names, characters, schemas, patterns.

These names are for handlers and guards of your own; see docs/guards.md#opening-what-was-judged.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ferrule.security.commands import CommandPattern, has_match, is_allowed, read_line
    from ferrule.security.http import NotReachableError, async_client, client
    from ferrule.security.paths import open_inside
    from ferrule.security.patterns import ForeignSchema

__all__ = [
    "CommandPattern",
    "ForeignSchema",
    "NotReachableError",
    "async_client",
    "client",
    "has_match",
    "is_allowed",
    "open_inside",
    "read_line",
]

_MODULES = {
    "CommandPattern": "commands",
    "ForeignSchema": "patterns",
    "NotReachableError": "http",
    "async_client": "http",
    "client": "http",
    "has_match": "commands",
    "is_allowed": "commands",
    "open_inside": "paths",
    "read_line": "commands",
}


def __getattr__(name: str) -> object:
    # The kernel imports this package, and a program pays only for the analysis that it uses.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
