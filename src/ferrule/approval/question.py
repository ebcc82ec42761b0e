"""The text of a question: the call and the reason. Its contents cannot leave their line or move the cursor."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ferrule.security.characters import HIDDEN
from ferrule.values.arguments import redact_hidden
from ferrule.values.call import ToolCall
from ferrule.values.count import format_count
from ferrule.values.decision import Decision
from ferrule.values.frozen import thaw

_MOST_CHARACTERS_SHOWN = 500
_MOST_ARGUMENTS = 30
_MOST_LINES = 40
_LAST_LINES = 10
_MARK = "  │ "


class Question:
    """A question in words. Long values are shortened; the `whole` text is there for those who want it.

    See docs/approvals.md.

    Args:
        call: The call in question.
        decision: The decision to ask.
        hidden: The names of the arguments to show as stars.
        preview: The lines of the preview, shown instead of the arguments; or a text with the reason why there are none;
            or `None` for a tool without a preview.
        offers: The choices for "always", as lines. They are numbered from 1.
        edited: Whether a person has changed the arguments.
        whole: Whether to show everything in full.

    Attributes:
        text: The question, as complete lines.
        has_more: Whether the whole question shows more, or shows it in another form.
    """

    def __init__(
        self,
        call: ToolCall,
        decision: Decision,
        hidden: Sequence[str] = (),
        preview: Sequence[str] | str | None = None,
        *,
        offers: Sequence[str] = (),
        edited: bool = False,
        whole: bool = False,
    ) -> None:
        self.has_more = False
        self._whole = whole
        arguments = redact_hidden(call.arguments, hidden)
        action = "would run with your changes" if edited else "wants to run"
        if decision.schema is not None:
            action = "wants to know more" if decision.schema else "wants to go on"
        lines = ["", f"{format_name(call.name)} {action}:"]
        if preview is None:
            lines += self._list_arguments(arguments)
        elif isinstance(preview, str):
            lines += [f"  no preview: {self._escape(preview)}", *self._list_arguments(arguments)]
        else:
            lines += self._mark_lines(preview)
            lines += self._list_arguments(arguments) if whole else self._list_names(arguments)
        if decision.reason:
            lines.append(f"  {'because' if decision.schema is None else 'asked'}: {self._escape(decision.reason)}")
        if decision.rule:
            lines.append(f"  by rule: {self._escape(decision.rule)}")
        lines += [f"  {number} = always: {self._escape(text)}" for number, text in enumerate(offers, 1)]
        self.text = _escape_hidden("\n".join(lines)) + "\n"

    def hint(self, name: str, node: object) -> str:
        """Return the text for one requested property: its name, its choices or type, and its description."""
        schema = node if isinstance(node, Mapping) else {}
        choices = schema.get("enum")
        kind = schema.get("format", schema.get("type"))
        if isinstance(choices, Sequence):
            kind = " or ".join(map(str, choices))
        about = schema.get("description") or schema.get("title")
        parts = [format_name(name), f"({self._escape(str(kind))})" if kind else "", self._escape(str(about or ""))]
        return _escape_hidden(" ".join(filter(None, parts)))

    def _mark_lines(self, lines: Sequence[str]) -> list[str]:
        """Return a text of several lines, each with a mark, so that it cannot pass for a line of the question."""
        left_out = 0 if self._whole else max(len(lines) - _MOST_LINES, 0)
        if not left_out:
            return [_MARK + self._escape(line) for line in lines]
        self.has_more = True
        first, last = lines[: _MOST_LINES - _LAST_LINES], lines[-_LAST_LINES:]
        note = f"  … {format_count(len(lines) - len(first) - len(last), 'line')} not shown …"
        return [*self._mark_lines(first), note, *self._mark_lines(last)]

    def _list_names(self, arguments: Mapping[str, Any]) -> list[str]:
        """Return the names alone, because a preview replaces the values."""
        if not arguments:
            return []
        self.has_more = True
        names = [format_name(name) for name in list(arguments)[:_MOST_ARGUMENTS]]
        more = len(arguments) - len(names)
        return [f"  arguments, not shown: {', '.join(names)}{f' and {more} more' if more else ''}"]

    def _list_arguments(self, arguments: Mapping[str, Any]) -> list[str]:
        lines: list[str] = []
        for name in list(arguments)[: None if self._whole else _MOST_ARGUMENTS]:
            lines += self._list_value(format_name(name), arguments[name])
        more = 0 if self._whole else len(arguments) - _MOST_ARGUMENTS
        if more <= 0:
            return lines
        self.has_more = True
        return [*lines, f"  … and {more} more arguments, not shown"]

    def _list_value(self, name: str, value: Any) -> list[str]:
        if not isinstance(value, str):
            return [f"  {name} = {self._shorten(repr(thaw(value)), str)}"]
        if self._whole and "\n" in value:
            return [f"  {name} =", *self._mark_lines(value.split("\n"))]
        self.has_more = self.has_more or "\n" in value
        return [f"  {name} = {self._shorten(value, repr)}"]

    def _escape(self, text: str) -> str:
        return self._shorten(text, lambda part: "".join(c if c.isprintable() else repr(c)[1:-1] for c in part))

    def _shorten(self, text: str, format_text: Callable[[str], str]) -> str:
        """Return `text` as `format_text` writes it. A long text keeps its beginning and end, where things hide."""
        if self._whole or len(text) <= _MOST_CHARACTERS_SHOWN:
            return format_text(text)
        self.has_more = True
        half = _MOST_CHARACTERS_SHOWN // 2
        return f"{format_text(text[:half])} … {len(text) - 2 * half} characters not shown … {format_text(text[-half:])}"


def _escape_hidden(text: str) -> str:
    """Return `text` with escapes for characters that no terminal shows."""
    return re.sub(HIDDEN, lambda found: found[0].encode("unicode_escape").decode(), text)


def format_name(name: str) -> str:
    """Return the name of a tool or an argument, safe to show even if a model invented it."""
    return name if name.isidentifier() and name.isprintable() and len(name) <= 100 else repr(name[:100])
