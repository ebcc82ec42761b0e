"""The key by which a call is found again, and its status in the journal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from os import urandom
from typing import Any

from pydantic_core import to_json

from ferrule.kernel.state import CallState
from ferrule.values.content import to_jsonable
from ferrule.values.frozen import thaw
from ferrule.values.journal_entry import Intent, JournalEntry
from ferrule.values.result import ToolResult

TICKET = "work_"
"""The prefix of a background job's ticket; the rest is the key of the call."""
_KEY_CHARACTERS = 32
_WRITE_SORTED = json.JSONEncoder(sort_keys=True).encode  # `json.dumps` would make a new encoder for each text


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
    return urandom(_KEY_CHARACTERS // 2).hex()


def call_key(place: tuple[str | None, ...], arguments: object) -> str:
    """Return the key of a call.

    Args:
        place: Principal, session, turn, tool and call id.
        arguments: The arguments as they were sent, as JSON or its text.
    """
    return _hash_parts(*place, _canonicalize_arguments(arguments))


def ticket_result(key: str) -> ToolResult:
    """Return the result of a call whose background job has this key."""
    ticket = TICKET + key
    return ToolResult({"ticket": ticket, "status": "running"}, metadata={"ticket": ticket})


def get_reference(state: CallState) -> str:
    """Return what all calls under one id share, whatever their arguments are."""
    return _hash_parts(*_get_place(state)) if state.fields.session else journal_status(state).key


def _get_place(state: CallState) -> tuple[str | None, ...]:
    fields = state.fields
    return fields.principal, fields.session, state.origin.turn, state.plan.name, state.sent.id


def _hash_parts(*parts: str | None) -> str:
    from hashlib import sha256  # loads OpenSSL, only when needed

    return sha256(_json(parts)).hexdigest()[:_KEY_CHARACTERS]


def _canonicalize_arguments(raw: Any) -> str:
    """Return the arguments as canonical JSON. A text that is no JSON stays as it is."""
    text = raw if isinstance(raw, str) else _json(thaw(raw) if isinstance(raw, Mapping) else {}).decode()
    try:
        return _sorted_json(_decode_shortest(text.strip() or "{}") or {})
    except (ValueError, RecursionError):
        return text


def _parse_number(text: str) -> float:
    """Return a number in canonical form: in JSON, 5.0 and 5 are the same number (RFC 8785, 3.2.2.3)."""
    number = float(text)
    return int(number) if number.is_integer() else number


_decode_shortest = json.JSONDecoder(parse_float=_parse_number).decode


def _json(value: object) -> bytes:
    try:
        return to_json(value, inf_nan_mode="constants")  # ten times as fast as `json`
    except (ValueError, RecursionError):  # a lone surrogate, or a foreign value
        return _sorted_json(value).encode()


def _sorted_json(value: object) -> str:
    try:
        return _WRITE_SORTED(value)
    except (TypeError, ValueError, RecursionError):  # a foreign value, which `run` does not check
        return _WRITE_SORTED(to_jsonable(value))
