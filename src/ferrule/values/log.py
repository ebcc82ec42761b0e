"""Ferrule's log: no text of a model, a tool or a server can begin a line or move the cursor of a terminal.

`make_logger` adds a filter to each logger of Ferrule. It escapes every record: the message, arguments, attributes
and traceback. No caller has to escape anything.
"""

from __future__ import annotations

import sys
import traceback
from contextlib import suppress
from logging import Logger, LogRecord, getLogger
from typing import Any

LogAttributes = dict[str, "str | None"]
_NEXT_LINE = "\n  "
_ATTRIBUTES = frozenset({"tool_name", "tool_call_id", "session", "principal"})


class LogLines(str):
    """Several lines for the log, such as a traceback. Each is escaped and indented."""

    __slots__ = ()

    def __str__(self) -> str:
        return "".join(_NEXT_LINE + escape_text(line) for line in str.split(self, "\n"))


class _Escaped:
    """An argument of a log record. Its text is escaped when the record is written."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return escape_text(str(self._value))

    def __repr__(self) -> str:
        return escape_text(repr(self._value))


def escape_text(text: str) -> str:
    """Return `text` as one printable line, with `\\n` for a line break and `\\x1b` for an escape character."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def make_logger(name: str) -> Logger:
    """Return a logger of Ferrule. Its records are escaped, and have the attributes of the running call."""
    logger = getLogger(name)
    logger.addFilter(_escape_record)
    return logger


def _escape_record(record: LogRecord) -> bool:
    if _ATTRIBUTES.isdisjoint(record.__dict__):
        record.__dict__.update(_describe_running_call())
    record.msg = escape_text(str(record.msg))
    if isinstance(record.args, tuple):
        record.args = tuple(map(_escape_argument, record.args))
    elif record.args:
        record.args = {name: _escape_argument(value) for name, value in record.args.items()}
    if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
        _drop_foreign_contexts(record.exc_info[1])
        lines = "".join(traceback.format_exception(record.exc_info[1])).rstrip("\n")
        record.exc_text = str(LogLines(lines)).removeprefix("\n")
    return True


def _describe_running_call() -> LogAttributes:
    """Return the attributes of the call whose code logs; each is None outside of calls."""
    from ferrule.values.context import find_running_call  # which imports this module

    call = find_running_call()
    if call is None:
        return dict.fromkeys(_ATTRIBUTES)
    fields = call.context.fields
    return log_attributes(call.tool.name, call.call.id, fields.session, fields.principal)


def _drop_foreign_contexts(error: BaseException) -> None:
    """Remove each `__context__` that a caller is still handling, such as the handler of a tool.

    Python makes it the context of whatever is raised meanwhile, so an observer's error would show a handler's secrets.
    """
    running = {frame for frame, _ in traceback.walk_stack(sys._getframe(1))}
    seen: set[int] = set()
    found: list[BaseException | None] = [error]
    for one in found:
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        context = one.__context__
        if context is not None and any(frame in running for frame, _ in traceback.walk_tb(context.__traceback__)):
            one.__context__ = None
        found += [one.__cause__, one.__context__, *(one.exceptions if isinstance(one, BaseExceptionGroup) else ())]


def _escape_argument(value: Any) -> Any:
    if value is None or isinstance(value, int | float | LogLines) or (type(value) is str and value.isprintable()):
        return value
    return _Escaped(value)


log = make_logger("ferrule")


def log_attributes(tool_name: str, call_id: str, session: str | None, principal: str | None) -> LogAttributes:
    """Return the attributes of a log record about a call. The model has chosen some of them, so they are escaped."""
    facts = {"tool_name": tool_name, "tool_call_id": call_id, "session": session, "principal": principal}
    return {name: None if value is None else escape_text(value) for name, value in facts.items()}


def write_log(
    level: int, facts: LogAttributes, message: str, *about: object, error: BaseException | None = None
) -> None:
    """Log a line about a call. If logging raises, the call goes on."""
    for extra in (facts, None):  # the program may give all its records attributes with these names
        with suppress(Exception):
            log.log(level, message, *about, exc_info=error, extra=extra)
            return
