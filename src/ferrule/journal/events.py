"""Observers for events: a log of calls, one line of JSON for each.

    runner = Runner([refund], observers=[events.to_file("calls.jsonl")])

An observer of your own is a function of an event. See docs/events.md.
"""

from __future__ import annotations

import json
import logging
import os
import weakref
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from ferrule.errors import DefinitionError
from ferrule.values.content import clean_text, truncate_text
from ferrule.values.decision import Decision
from ferrule.values.event import Event
from ferrule.values.result import ToolResult

__all__ = ["FileLog", "to_file"]

log = logging.getLogger("ferrule")
_LOGGED_KINDS = ("tool:post", "tool:error", "tool:suspended")
_INCLUDED = ("input", "output", "error", "repairs", "metadata")
_MOST_NAME_CHARACTERS = 200
_MOST_REASON_CHARACTERS = 1000


def to_file(path: str | os.PathLike[str], *, include: Iterable[str] = (), decisions: bool = False) -> FileLog:
    """Return an observer that appends a line of JSON to a file for each call that ends, whatever its result, or is
    suspended. See docs/events.md#a-log-of-what-was-done.

    Each line has `time` (UTC, of the end), `tool_name`, `call_id`, `parent` (the call that made it), `principal`,
    `session`, `status`, `executed`, `duration_ms` and `answered_by`, and no arguments and no results.

    Args:
        path: The file, opened now. A missing one is made, readable for nobody else.
        include: The further fields of each line, as in `ToolResult.record()`: any of `"input"`, `"output"`, `"error"`,
            `"repairs"` and `"metadata"`.
        decisions: Whether each decision has a line of its own as well, before the call's: `time`, `tool_name`,
            `call_id`, `parent`, `principal`, `session`, the `decision` (`"allow"`, `"ask"` or `"deny"`), its `reason`,
            the `rule` behind it, and `by`, the name of the person who answered.

    Raises:
        DefinitionError: `include` has another name.
        OSError: The file cannot be opened.
    """
    extra_fields = (include,) if isinstance(include, str) else tuple(include)
    if wrong := [name for name in extra_fields if name not in _INCLUDED]:
        raise DefinitionError(f"include must be some of {', '.join(map(repr, _INCLUDED))}, not {wrong[0]!r}")
    return FileLog(path, extra_fields, decisions=decisions)


class FileLog:
    """The observer of `to_file`, and a context manager that closes its file. See docs/events.md."""

    def __init__(self, path: str | os.PathLike[str], include: tuple[str, ...], *, decisions: bool) -> None:
        self._path = os.fspath(path)
        self._include = include
        self._kinds = (*_LOGGED_KINDS, "tool:decided") if decisions else _LOGGED_KINDS
        # No buffer: the line is in the file before the caller has the result. Each line is one write, and the system
        # appends it as a whole, between those of other processes.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        self._descriptor = os.open(path, flags, 0o600)
        self._open = weakref.finalize(self, os.close, self._descriptor)
        self._is_line_partial = _has_partial_line(self._path)
        self._missing_lines = 0

    def __call__(self, event: Event) -> None:
        """Write the line of a call that has ended, or of a decision."""
        if event.kind not in self._kinds:
            return
        if event.kind == "tool:decided":
            fields = _decision_fields(event)
        else:
            fields = self._result_fields(event.data["result"])
        line = json.dumps({**_call_fields(event), **fields}).encode() + b"\n"
        try:
            self._append(line)
        except OSError as error:
            self._missing_lines += 1
            if self._missing_lines == 1:
                log.error("%s cannot be written, so calls have no line there: %s", self._path, error)
            return
        if self._missing_lines:
            log.error("%s can be written again; %d calls have no line", self._path, self._missing_lines)
            self._missing_lines = 0

    def close(self) -> None:
        """Close the file. Later calls have no line. An unclosed file is closed with this object or the program."""
        self._open()

    def __enter__(self) -> FileLog:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _result_fields(self, result: ToolResult) -> dict[str, Any]:
        fields = {
            "status": result.status,
            "executed": result.executed,
            "duration_ms": round(result.duration_ms, 3),
            "answered_by": result.answered_by,
        }
        if self._include:
            record = result.record()
            fields |= {name: record[name] for name in self._include}
        return fields

    def _append(self, line: bytes) -> None:
        """Append a line. After a cut-off line, as on a full disk or by a crash, begin a new one first.

        Raises:
            OSError: The line is not in the file as a whole.
        """
        if not self._open.alive:
            raise OSError("it was closed")
        line = b"\n" + line if self._is_line_partial else line
        written = os.write(self._descriptor, line)
        if written:
            self._is_line_partial = written < len(line) and line[:written] != b"\n"
        if written < len(line):
            raise OSError("no space for a whole line")


def _call_fields(event: Event) -> dict[str, Any]:
    call = event.call
    return {
        "time": datetime.fromtimestamp(event.at, UTC).isoformat(timespec="milliseconds"),
        "tool_name": truncate_text(clean_text(call.name), _MOST_NAME_CHARACTERS),
        "call_id": truncate_text(clean_text(call.id), _MOST_NAME_CHARACTERS),
        "parent": call.parent,
        "principal": event.principal,
        "session": event.session,
    }


def _decision_fields(event: Event) -> dict[str, Any]:
    decision: Decision = event.data["decision"]
    return {
        "decision": decision.kind,
        "reason": truncate_text(clean_text(decision.reason), _MOST_REASON_CHARACTERS),
        "rule": decision.rule,
        "by": event.data.get("by"),
    }


def _has_partial_line(path: str | bytes) -> bool:
    """Return whether a file has a last line that was cut off."""
    with suppress(OSError):  # a file without permission to read
        if os.path.isfile(path) and os.path.getsize(path):
            with open(path, "rb") as file:
                file.seek(-1, os.SEEK_END)
                return file.read(1) != b"\n"
    return False
