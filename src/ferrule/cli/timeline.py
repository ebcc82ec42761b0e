"""What happens in a run, one event a line, as it happens."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from ferrule import Decision, Event, ToolResult
from ferrule.cli.screen import printable, refusal

_SIGNS = {
    "tool:pre": ("→", "cyan"),
    "tool:decided": ("?", "yellow"),
    "tool:progress": ("…", "cyan"),
    "tool:suspended": ("‖", "yellow"),
    "ok": ("✓", "green"),
    "invalid": ("!", "yellow"),
    "not_found": ("!", "yellow"),
    "denied": ("⊘", "magenta"),
}
_FAILED = ("✗", "red")
_PLAIN = str.maketrans("→…‖✓⊘✗·", ">~=+-x|")
NAME_WIDTH = 80
_VALUE = 60
_ARGUMENTS = 160
_OUTCOME = 300


class Timeline:
    """Writes the lines.

    Args:
        console: Where to.
        clock: Gives seconds; offsets count from its first value.
    """

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self._console = console
        self._clock = clock
        self._began = clock()
        self._numbers: dict[str, int] = {}

    def heading(self, text: str) -> None:
        """A line that begins a part."""
        self._console.print()
        self._console.print(Text(self._writable(text), style="bold"))

    def words(self, text: str) -> None:
        """What the model said."""
        self._line("·", "", Text(self._writable(printable(text.strip())), style="italic"))

    def event(self, event: Event) -> None:
        """One event of the runner; an allow has no line of its own, its call's end says enough."""
        try:
            details = _details(event)
        except Exception as error:  # what a tool or a model made of it must not end the run
            details = event.kind, f"(it cannot be shown: {type(error).__name__})"
        if details is None:
            return
        key, text = details
        sign, style = _SIGNS.get(key, _FAILED)
        number = self._numbers.setdefault(event.call.id, len(self._numbers) + 1)
        line = Text(f"#{number} ", style="dim").append(
            printable(short(event.call.name, NAME_WIDTH)), style="bold not dim"
        )
        self._line(sign, style, line.append("  " + self._writable(printable(text)), style="not bold not dim"))

    def _line(self, sign: str, style: str, text: Text) -> None:
        """One line; where it is too long it goes on below, indented."""
        offset = f"+{self._clock() - self._began:.3f}s"
        start = Text(f"{offset:>8} ", style="dim").append(self._writable(sign), style=f"not dim {style}").append(" ")
        for line in text.wrap(self._console, max(self._console.width - start.cell_len, 20)):
            line.rstrip()
            self._console.print(start + line, soft_wrap=True)
            start = Text(" " * start.cell_len)

    def _writable(self, text: str) -> str:
        return text if self._console.encoding.lower().startswith("utf") else text.translate(_PLAIN)


def _details(event: Event) -> tuple[str, str] | None:
    """The key of the sign, and what the line says after the tool's name."""
    data = event.data
    result, decision = data.get("result"), data.get("decision")
    if isinstance(result, ToolResult):
        return result.status, outcome(result)
    if event.kind == "tool:suspended" and isinstance(decision, Decision):
        return event.kind, f"suspended: {_reason(decision)}"
    if isinstance(decision, Decision):
        return (event.kind, f"asked: {_reason(decision)}") if decision.kind == "ask" else None
    if event.kind == "tool:progress":
        total = f"/{_amount(data['total'])}" if data.get("total") is not None else ""
        return (
            event.kind,
            f"{_amount(data.get('done', 0))}{total} {short(str(data.get('message', '')), _OUTCOME)}".rstrip(),
        )
    return event.kind, arguments(data.get("input"))


def _amount(value: Any) -> str:
    """A tool may say anything, an integer that no float can hold among it."""
    try:
        return f"{value:g}"
    except (TypeError, ValueError, OverflowError):
        return short(str(value), _VALUE)


def _reason(decision: Decision) -> str:
    return short(decision.reason.replace(os.getcwd() + os.sep, ""), _OUTCOME)


def arguments(given: Any) -> str:
    """Arguments on one line; paths below the working directory are shown from there."""
    if not isinstance(given, Mapping):
        return short(str(given), _ARGUMENTS)
    here = os.getcwd() + os.sep
    shown = [
        f"{name}={short(json.dumps(_plain(value, here), ensure_ascii=False), _VALUE)}" for name, value in given.items()
    ]
    return short(", ".join(shown), _ARGUMENTS)


def _plain(value: Any, here: str) -> Any:
    return value.removeprefix(here) if isinstance(value, str) else value


def outcome(result: ToolResult) -> str:
    """Duration, repairs, and what came out or stood in the way."""
    parts = [f"{result.duration_ms:.{0 if result.duration_ms >= 10 else 1}f} ms"]
    if result.repairs:
        parts.append(f"repaired: {'; '.join(result.repairs)}")
    if result.success:
        text = result.text
        lines = f"{text.count(chr(10)) + 1} lines, " if "\n" in text else ""
        parts.append(f"{lines}{len(text):,} characters: {short(' '.join(text.split()), 60)}")
    else:
        parts.append(short(refusal(result), _OUTCOME))
    return " · ".join(parts)


def short(text: str, limit: int) -> str:
    """`text` in at most `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
