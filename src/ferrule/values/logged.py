"""A line of the log about a call, with which one it is, and whose, as attributes of its record."""

from __future__ import annotations

from contextlib import suppress
from logging import getLogger

log = getLogger("ferrule")
CallFacts = dict[str, "str | None"]


def call_facts(tool_name: str, call_id: str, session: str | None, principal: str | None) -> CallFacts:
    """What a record about a call has as attributes."""
    return {"tool_name": tool_name, "tool_call_id": call_id, "session": session, "principal": principal}


def write_log(level: int, facts: CallFacts, message: str, *about: object, error: BaseException | None = None) -> None:
    """Write it down; without the facts where a program gives all its records attributes of these names. Logging that
    raises breaks no call: there is nowhere to tell it."""
    for extra in (facts, None):
        with suppress(Exception):
            log.log(level, message, *about, exc_info=error, extra=extra)
            return
