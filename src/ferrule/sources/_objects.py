"""The tools of an object: a toolset, a runner, a list, a tool, or an object that has tools."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ferrule import Runner, Tool, Toolset


def to_toolset(what: Any) -> Toolset:
    """Return the tools of an object.

    Raises:
        DefinitionError: The object has no tools, or they are invalid.
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
