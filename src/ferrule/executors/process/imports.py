"""Find out from where another process can import a function or class."""

from __future__ import annotations

import sys

from ferrule.errors import DefinitionError

ImportPlace = tuple[str, str, str | None]
"""Module, qualified name, and the module's file if it has one."""


def find_import_place(function: object, tool_name: str) -> ImportPlace:
    """Return the place from where another process can import `function`, which may be a class.

    Only the definition is checked, not the import itself.

    Raises:
        DefinitionError: No other process can import it. The message says where to move it.
    """
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    owner = getattr(function, "__self__", None)
    needs_object = owner is not None and not isinstance(owner, type | type(sys))  # a class is found by its name
    if not isinstance(module, str) or not isinstance(qualname, str) or needs_object or "<" in qualname:
        raise DefinitionError(
            f"tool {tool_name!r}: an isolated tool is imported by another process, which cannot find {function!r}: "
            "write a def at the top level of a module, which makes or looks up the object that it needs"
        )
    if module in {"__main__", "__mp_main__"}:
        raise DefinitionError(
            f"tool {tool_name!r} is defined in the script or notebook that runs, and no script is run again: an "
            "isolated tool is imported by another process, so move it to a module of its own, such as my_tools.py"
        )
    return module, qualname, getattr(sys.modules.get(module), "__file__", None)
