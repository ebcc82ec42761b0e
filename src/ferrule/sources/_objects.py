"""The tools that somebody means by an object: a toolset, a runner, a list, a tool, or what has tools in it."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ferrule import Runner, Tool, Toolset


def toolset_of(what: Any) -> Toolset:
    """The tools of an object.

    Raises:
        DefinitionError: for what has none, and what cannot be tools.
    """
    if isinstance(what, Toolset):
        return what
    if isinstance(what, Runner):
        return Toolset(what.as_tools())
    if isinstance(what, list | tuple):
        return Toolset(what)
    if isinstance(what, ModuleType | type):
        return Toolset.of(what)
    return Toolset([what]) if isinstance(what, Tool) or callable(what) else Toolset.of(what)
