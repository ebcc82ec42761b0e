"""The status of a call in the journal."""

from __future__ import annotations

from os import urandom
from typing import TYPE_CHECKING

from ferrule.kernel.state import CallState
from ferrule.values.call_key import KEY_CHARACTERS, hash_parts, make_call_key
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.values.journal_entry import Intent, JournalEntry

TICKET = "work_"
"""The prefix of a background job's ticket; the rest is the call key."""


class JournalStatus:
    """The status of a call in the journal, the same for all of its attempts.

    Attributes:
        call_key: Identifies the call if it comes again, in any process.
        intent: The intent, committed or about to be.
        is_open: Whether the intent has no outcome yet.
        replaced_entry: The earlier entry of the call, to be replaced by the intent or the outcome.
    """

    intent: Intent | None = None
    is_open = False
    replaced_entry: JournalEntry | None = None

    def __init__(self, call_key: str) -> None:
        self.call_key = call_key


def journal_status(state: CallState) -> JournalStatus:
    """Return the call's status in the journal. The first call of this function computes the key."""
    found = state.attempt.in_journal
    if found is None:
        found = state.attempt.in_journal = JournalStatus(_find_call_key(state))
    return found


def has_open_intent(state: CallState) -> bool:
    """Return whether the journal may have the call's intent, and no outcome."""
    found = state.attempt.in_journal
    return found is not None and found.is_open


def _find_call_key(state: CallState) -> str:
    """Return the call key: the same in any process if the call has a session, else a new one each time."""
    if state.origin.resumed is not None:
        recorded: str = state.origin.resumed.record["idempotency_key"]
        return recorded
    if is_recognisable(state):
        return make_call_key(_get_place(state), state.sent.raw)
    return urandom(KEY_CHARACTERS // 2).hex()


def is_recognisable(state: CallState) -> bool:
    """Return whether the call has the same key if it comes again."""
    return bool(state.fields.session) or state.origin.has_fixed_id or state.origin.resumed is not None


def ticket_result(call_key: str) -> ToolResult:
    """Return the result of a call that started a background job."""
    ticket = TICKET + call_key
    return ToolResult({"ticket": ticket, "status": "running"}, metadata={"ticket": ticket})


def get_reference(state: CallState) -> str:
    """Return a digest shared by all calls under one id, with any arguments; for a fixed id, also of any tool."""
    if state.origin.has_fixed_id:
        return hash_parts("fixed", state.origin.turn, state.sent.id)
    return hash_parts(*_get_place(state)) if state.fields.session else journal_status(state).call_key


def _get_place(state: CallState) -> tuple[str | None, ...]:
    fields = state.fields
    return fields.principal, fields.session, state.origin.turn, state.plan.name, state.sent.id
