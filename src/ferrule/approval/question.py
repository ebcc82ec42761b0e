"""The text of a question: the call and the reason. Its contents cannot leave their line or move the cursor."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ferrule.security.characters import HIDDEN
from ferrule.values.arguments import redact_hidden
from ferrule.values.call import ToolCall
from ferrule.values.decision import Decision
from ferrule.values.frozen import thaw

_MOST_CHARACTERS_SHOWN = 500
_MOST_ARGUMENTS = 30
_MOST_LINES = 40
_LAST_LINES = 10
_BESIDE = "  │ "


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
        wants = "would run with your changes" if edited else "wants to run"
        lines = ["", f"{shown_name(call.name)} {wants if decision.schema is None else 'wants to know more'}:"]
        if preview is None:
            lines += self._argument_lines(arguments)
        elif isinstance(preview, str):
            lines += [f"  there is no preview: {self._escaped(preview)}", *self._argument_lines(arguments)]
        else:
            lines += self._lines_beside(preview)
            lines += self._argument_lines(arguments) if whole else self._argument_names(arguments)
        if decision.reason:
            lines.append(f"  {'because' if decision.schema is None else 'asked'}: {self._escaped(decision.reason)}")
        if decision.rule:
            lines.append(f"  by rule: {self._escaped(decision.rule)}")
        lines += [f"  {number} = always: {self._escaped(text)}" for number, text in enumerate(offers, 1)]
        self.text = _seen("\n".join(lines)) + "\n"

    def hint(self, name: str, node: object) -> str:
        """Return the text for one requested property: its name, its choices or type, and its description."""
        said = node if isinstance(node, Mapping) else {}
        choices = said.get("enum")
        kind = " or ".join(map(str, choices)) if isinstance(choices, Sequence) else said.get("format", said.get("type"))
        about = said.get("description") or said.get("title")
        parts = [shown_name(name), f"({self._escaped(str(kind))})" if kind else "", self._escaped(str(about or ""))]
        return _seen(" ".join(filter(None, parts)))

    def _lines_beside(self, lines: Sequence[str]) -> list[str]:
        """Return a text of several lines, each with a mark, so that it cannot pass for a line of the question."""
        left_out = 0 if self._whole else max(len(lines) - _MOST_LINES, 0)
        if not left_out:
            return [_BESIDE + self._escaped(line) for line in lines]
        self.has_more = True
        first, last = lines[: _MOST_LINES - _LAST_LINES], lines[-_LAST_LINES:]
        note = f"  … {len(lines) - len(first) - len(last)} lines not shown …"
        return [*self._lines_beside(first), note, *self._lines_beside(last)]

    def _argument_names(self, arguments: Mapping[str, Any]) -> list[str]:
        """Return the names alone, because a preview replaces the values."""
        if not arguments:
            return []
        self.has_more = True
        names = [shown_name(name) for name in list(arguments)[:_MOST_ARGUMENTS]]
        more = len(arguments) - len(names)
        return [f"  arguments, not shown: {', '.join(names)}{f' and {more} more' if more else ''}"]

    def _argument_lines(self, arguments: Mapping[str, Any]) -> list[str]:
        lines: list[str] = []
        for name in list(arguments)[: None if self._whole else _MOST_ARGUMENTS]:
            lines += self._value_lines(shown_name(name), arguments[name])
        more = 0 if self._whole else len(arguments) - _MOST_ARGUMENTS
        if more <= 0:
            return lines
        self.has_more = True
        return [*lines, f"  … and {more} more arguments, not shown"]

    def _value_lines(self, name: str, value: Any) -> list[str]:
        if not isinstance(value, str):
            return [f"  {name} = {self._ends(repr(thaw(value)), str)}"]
        if self._whole and "\n" in value:
            return [f"  {name} =", *self._lines_beside(value.split("\n"))]
        self.has_more = self.has_more or "\n" in value
        return [f"  {name} = {self._ends(value, repr)}"]

    def _escaped(self, text: str) -> str:
        return self._ends(text, lambda part: "".join(c if c.isprintable() else repr(c)[1:-1] for c in part))

    def _ends(self, text: str, written: Callable[[str], str]) -> str:
        """Return `text` as `written` formats it. A long text is reduced to its beginning and end, where things hide."""
        if self._whole or len(text) <= _MOST_CHARACTERS_SHOWN:
            return written(text)
        self.has_more = True
        each = _MOST_CHARACTERS_SHOWN // 2
        return f"{written(text[:each])} … {len(text) - 2 * each} characters not shown … {written(text[-each:])}"


def _seen(text: str) -> str:
    """Return `text` with escapes for characters that no terminal shows."""
    return re.sub(HIDDEN, lambda found: found[0].encode("unicode_escape").decode(), text)


def shown_name(name: str) -> str:
    """Return the name of a tool or an argument, safe to show even if a model invented it."""
    return name if name.isidentifier() and name.isprintable() and len(name) <= 100 else repr(name[:100])
