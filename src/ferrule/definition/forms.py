"""Call `ferrule.adapters` for the tool forms of other systems.

`ferrule.adapters` imports the kernel, so the kernel imports it only here, and only when needed. Most programs never
load it.
"""

from __future__ import annotations

from typing import Any


def call_interop(function: str, *given: Any, **options: Any) -> Any:
    """Call a function of `ferrule.adapters` by name, and return its result.

    Raises:
        DefinitionError: The form is unknown.
    """
    from ferrule import adapters

    return getattr(adapters, function)(*given, **options)
