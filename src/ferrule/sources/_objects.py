"""The tools of an object: a toolset, a runner, a list, a module, anything that a list of tools may have, or an instance
with methods."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ferrule import Runner, Toolset
from ferrule.definition.forms import call_interop


def to_toolset(what: Any) -> Toolset:
    """Return the tools of an object. An item that `Toolset([…])` takes is one tool here, too.

    Raises:
        DefinitionError: The object has no tools, or they are invalid.
    """
    if isinstance(what, Toolset):
        return what
    if isinstance(what, Runner):
        return Toolset(what.as_tools())
    if isinstance(what, list | tuple):
        return Toolset(what)
    if isinstance(what, ModuleType):
        listed = vars(what).get("TOOLS")
        return to_toolset(listed) if isinstance(listed, list | tuple | Toolset) else Toolset.of(what)
    return Toolset([what]) if call_interop("is_tool_form", what) else Toolset.of(what)
