"""Reading is free; whatever changes things is asked about first."""

from __future__ import annotations

from ferrule.definition.tool import Tool
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, ask

_EACH = 80


def ask_before_changes(call: ToolCall, context: ToolContext) -> Decision | None:
    """Ask a person before a call that is not read-only for its arguments. See docs/guards.md.

    A tool that says nothing about itself changes things. The arguments are not part of the reason: whoever is asked
    has the call, and shows them once.
    """
    tool = getattr(context, "tool", None)
    if tool is not None and tool.read_only is True:
        return None
    name = call.name if call.name.isidentifier() and call.name.isprintable() else repr(call.name)
    return ask(f"{name if len(name) <= _EACH else name[:_EACH] + '…'} changes things")


def _may_ask(tool: Tool) -> bool:
    """Whether it may ask about a call of a tool."""
    return tool.read_only is not True


vars(ask_before_changes)["asks"] = _may_ask
