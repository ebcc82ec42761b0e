"""What a call is known by when it comes again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from os import urandom
from typing import Any

from pydantic_core import to_json

from ferrule.pipeline.state import CallState
from ferrule.values.content import jsonable
from ferrule.values.frozen import thaw
from ferrule.values.kept import Intent, Kept
from ferrule.values.result import ToolResult

TICKET = "work_"
"""What the ticket of a call in the background begins with; the rest is its key."""
_KEY_CHARACTERS = 32
_WRITE_SORTED = json.JSONEncoder(sort_keys=True).encode  # `json.dumps` makes one for each text, which takes as long


@dataclass(slots=True, eq=False)
class InJournal:
    """How far the journal has a call; the same for all of its attempts."""

    key: str
    """What the call is known by when it comes again."""
    intent: Intent | None = None
    """What it has committed, or was about to."""
    claimed: bool = False
    """Whether that has no outcome yet."""
    after: Kept | None = None
    """What there is of the call from before, whose place it takes."""


def in_journal(state: CallState) -> InJournal:
    """How far the journal has the call, which is known by its key from now on."""
    found = state.attempt.in_journal
    if found is None:
        found = state.attempt.in_journal = InJournal(_key_of(state))
    return found


def is_claimed(state: CallState) -> bool:
    """Whether the journal may have its intent, and no outcome."""
    found = state.attempt.in_journal
    return found is not None and found.claimed


def _key_of(state: CallState) -> str:
    """The same whenever the call comes again, in any process; without a session another one each time."""
    if state.origin.answered is not None:
        key: str = state.origin.answered.record["idempotency_key"]
        return key
    if state.fields.session:
        return call_key(_place_of(state), state.sent.raw)
    return urandom(_KEY_CHARACTERS // 2).hex()


def call_key(place: tuple[str | None, ...], arguments: object) -> str:
    """What a call of a session is known by, from its principal, session, turn, tool and id, and the arguments as they
    were sent, as JSON or its text."""
    return _hashed(*place, _as_received(arguments))


def ticket_result(key: str) -> ToolResult:
    """The result of a call whose work has that key, and is done in the background."""
    ticket = TICKET + key
    return ToolResult({"ticket": ticket, "status": "running"}, metadata={"ticket": ticket})


def reference_of(state: CallState) -> str:
    """What all calls under the same id have, whatever their arguments."""
    return _hashed(*_place_of(state)) if state.fields.session else in_journal(state).key


def _place_of(state: CallState) -> tuple[str | None, ...]:
    fields = state.fields
    return fields.principal, fields.session, state.origin.turn, state.plan.name, state.sent.id


def _hashed(*parts: str | None) -> str:
    from hashlib import sha256  # loads OpenSSL, which most programs never need

    return sha256(_json(parts)).hexdigest()[:_KEY_CHARACTERS]


def _as_received(raw: Any) -> str:
    """The arguments as JSON that is written in one way, no arguments at all too; what is no JSON as it is."""
    text = raw if isinstance(raw, str) else _json(thaw(raw) if isinstance(raw, Mapping) else {}).decode()
    try:
        return _sorted_json(_decode_shortest(text.strip() or "{}") or {})
    except (ValueError, RecursionError):
        return text


def _shortest(text: str) -> float:
    """A number in the form that equal ones have: JSON does not tell 5.0 from 5 (RFC 8785, 3.2.2.3)."""
    number = float(text)
    return int(number) if number.is_integer() else number


_decode_shortest = json.JSONDecoder(parse_float=_shortest).decode  # as above


def _json(value: object) -> bytes:
    try:
        return to_json(value, inf_nan_mode="constants")  # in a tenth of the time of `json`
    except (ValueError, RecursionError):  # half of a surrogate pair, or a value of a caller's own
        return _sorted_json(value).encode()


def _sorted_json(value: object) -> str:
    try:
        return _WRITE_SORTED(value)
    except (TypeError, ValueError, RecursionError):  # of a caller's own, which `run` does not look at
        return _WRITE_SORTED(jsonable(value))
