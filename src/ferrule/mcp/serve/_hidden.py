"""The tools that a client does not see: those that a guard denies to its principal, whatever the arguments."""

from __future__ import annotations

from collections.abc import Iterable

from ferrule import Runner, Tool, ToolContext
from ferrule.types import Guard
from ferrule.values.log import make_logger

log = make_logger("ferrule.mcp.serve")


def find_hidden(runner: Runner, context: ToolContext) -> frozenset[str]:
    """Return the names of the tools that are not listed for this context."""
    return frozenset(tool.name for tool in runner.tools if is_hidden(tool, runner.guards, context))


def is_hidden(tool: Tool, guards: Iterable[Guard], context: ToolContext) -> bool:
    """Return whether the `denies_tool` of a guard denies each call of the tool. One that raises hides it."""
    for guard in (*guards, *tool.guards):
        denies = getattr(guard, "denies_tool", None)
        if not callable(denies):
            continue
        try:
            if denies(tool, context):
                return True
        except Exception:
            log.exception("the denies_tool of a guard raised, so clients do not see %r", tool.name)
            return True
    return False
