"""The status of a call in the journal."""

from __future__ import annotations

from dataclasses import dataclass
from os import urandom

from ferrule.kernel.state import CallState
from ferrule.values.call_key import KEY_CHARACTERS, call_key, hash_parts
from ferrule.values.journal_entry import Intent, JournalEntry
from ferrule.values.result import ToolResult

TICKET = "work_"
"""The prefix of a background job's ticket; the rest is the key of the call."""


@dataclass(slots=True, eq=False)
class JournalStatus:
    """The status of a call in the journal, the same for all of its attempts."""

    key: str
    """The key by which the call is found when it comes again."""
    intent: Intent | None = None
    """The intent that was committed, or was about to be."""
    is_open: bool = False
    """Whether the intent has no outcome yet."""
    replaces: JournalEntry | None = None
    """The earlier entry of the call, which the intent replaces."""


def journal_status(state: CallState) -> JournalStatus:
    """Return the call's status in the journal. The first call of this function computes the key."""
    found = state.attempt.in_journal
    if found is None:
        found = state.attempt.in_journal = JournalStatus(_make_key(state))
    return found


def has_open_intent(state: CallState) -> bool:
    """Return whether the journal may have the call's intent, and no outcome."""
    found = state.attempt.in_journal
    return found is not None and found.is_open


def _make_key(state: CallState) -> str:
    """Return the key of a call: the same in any process if the call has a session, else a new one each time."""
    if state.origin.answered is not None:
        key: str = state.origin.answered.record["idempotency_key"]
        return key
    if state.fields.session:
        return call_key(_get_place(state), state.sent.raw)
    return urandom(KEY_CHARACTERS // 2).hex()


def ticket_result(key: str) -> ToolResult:
    """Return the result of a call whose background job has this key."""
    ticket = TICKET + key
    return ToolResult({"ticket": ticket, "status": "running"}, metadata={"ticket": ticket})


def get_reference(state: CallState) -> str:
    """Return what all calls under one id share, whatever their arguments are."""
    return hash_parts(*_get_place(state)) if state.fields.session else journal_status(state).key


def _get_place(state: CallState) -> tuple[str | None, ...]:
    fields = state.fields
    return fields.principal, fields.session, state.origin.turn, state.plan.name, state.sent.id
