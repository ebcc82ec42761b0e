"""The forms of others, as tools and guards. A file is one form, or several of one kind.

The kernel loads this where something comes that it does not take itself; nobody needs to import it. Each function here
takes what was given and makes of it what the kernel has:

    def from_object(thing):
        return Tool(thing.name, thing.execute, description=thing.description)
"""

from __future__ import annotations

from ferrule.adapters.args_model import from_args_model
from ferrule.adapters.checks import guard_of
from ferrule.adapters.definitions import from_definition, from_object, tool_of
from ferrule.adapters.payload import from_execute

__all__ = ["from_args_model", "from_definition", "from_execute", "from_object", "guard_of", "tool_of"]
