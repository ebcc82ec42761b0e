"""Reads run without a question; a person is asked before every change."""

from __future__ import annotations

from ferrule.definition.tool import Tool
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, ask

_QUOTE_LENGTH = 80


def ask_before_changes(call: ToolCall, context: ToolContext) -> Decision | None:
    """Ask a person before a call unless it is read-only for its arguments. See docs/guards.md.

    A tool without a declaration is not read-only. A `recorded` tool only makes calls, and each of these is judged. The
    reason leaves out the arguments, because the approver has the call and shows them once.
    """
    tool = getattr(context, "tool", None)
    if tool is not None and (tool.read_only is True or tool.recorded is True):
        return None
    name = call.name if call.name.isidentifier() and call.name.isprintable() else repr(call.name)
    return ask(f"{name if len(name) <= _QUOTE_LENGTH else name[:_QUOTE_LENGTH] + '…'} changes things")


def _may_ask(tool: Tool) -> bool:
    """Return whether the guard may ask about a call of the tool."""
    return tool.read_only is not True and not tool.recorded


vars(ask_before_changes)["asks"] = _may_ask
