"""Where the forms of others are known: what this package does not take itself is looked for there.

`ferrule.interop` stands around the kernel and imports it. So it is imported here alone, and only where something comes
that it may know: most programs never load it.
"""

from __future__ import annotations

from typing import Any


def of_others(function: str, *given: Any, **options: Any) -> Any:
    """What a function of `ferrule.interop` makes of what was given.

    Raises:
        DefinitionError: for what is none of its forms.
    """
    from ferrule import interop

    return getattr(interop, function)(*given, **options)
