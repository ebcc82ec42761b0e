"""The tool and guard forms of other libraries, as tools and guards of Ferrule.

Each file is one form, or several of a kind.

The kernel loads this on demand for an object that it does not accept itself; nobody needs to import it. Each function
here turns such an object into one of the kernel's:

    def from_object(thing):
        return Tool(thing.name, thing.execute, description=thing.description)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ferrule.adapters.args_model import from_args_model
from ferrule.adapters.checks import make_check_guard
from ferrule.adapters.definitions import from_definition, from_object, is_tool_form, tool_from_object
from ferrule.adapters.payload import from_execute

if TYPE_CHECKING:
    from ferrule.adapters.adapter import Adapter, make_call_id, record_from_result, result_from_outside_error

__all__ = [
    "Adapter",
    "from_args_model",
    "from_definition",
    "from_execute",
    "from_object",
    "is_tool_form",
    "make_call_id",
    "make_check_guard",
    "record_from_result",
    "result_from_outside_error",
    "tool_from_object",
]


def __getattr__(name: str) -> object:
    # These are for an adapter of your own; the kernel loads this package for a form.
    if name in ("Adapter", "make_call_id", "record_from_result", "result_from_outside_error"):
        from ferrule.adapters import adapter

        return getattr(adapter, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
