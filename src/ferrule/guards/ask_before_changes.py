"""Reading is free; whatever changes things is asked about first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ferrule.values.arguments import starred
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, ask
from ferrule.values.frozen import thaw

_EACH = 80
_ALTOGETHER = 400


def ask_before_changes(call: ToolCall, context: ToolContext) -> Decision | None:
    """Ask a person before a call that is not read-only for its arguments, and say what it would do.

    A tool that says nothing about itself changes things. Parameters that no model sees are named but not shown.
    """
    tool = getattr(context, "tool", None)
    if tool is not None and tool.read_only is True:
        return None
    summary = _summary(starred(call.arguments, getattr(tool, "hidden", ())))
    return ask(f"{_name_text(call.name)} changes things{summary and ': ' + summary}")


def _summary(arguments: Mapping[str, Any]) -> str:
    """The arguments in one bounded line; what cannot be printed is escaped."""
    shown: list[str] = []
    room = _ALTOGETHER
    for name in arguments:
        text = f"{_name_text(name)}={_value_in_line(arguments[name])}"
        room -= len(text)
        if room < 0 and shown:
            return f"{', '.join(shown)}, … ({len(arguments) - len(shown)} more arguments)"
        shown.append(text)
    return ", ".join(shown)


def _value_in_line(value: Any) -> str:
    if isinstance(value, str):
        return repr(value) if len(value) <= _EACH else f"{value[:_EACH]!r}… ({len(value)} characters)"
    text = repr(thaw(value))
    return text if len(text) <= _EACH else f"{text[:_EACH]}…"


def _name_text(name: str) -> str:
    text = name if name.isidentifier() and name.isprintable() else repr(name)
    return text if len(text) <= _EACH else f"{text[:_EACH]}…"
