"""What a call is known by when it comes again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import urandom
from typing import Any

from ferrule.pipeline.state import CallState
from ferrule.values.content import jsonable
from ferrule.values.frozen import thaw

TICKET = "work_"
"""What the ticket of a call in the background begins with; the rest is its key."""
_KEY_CHARACTERS = 32


def key_of(state: CallState) -> str:
    """What the call is known by when it comes again, in any process; without a session it is another one each time."""
    if not state.attempt.key:
        answered = state.origin.answered
        if answered is not None:
            state.attempt.key = answered.record["idempotency_key"]
        elif state.fields.session:
            state.attempt.key = _hashed(*_place_of(state), _as_received(state.sent.raw))
        else:
            state.attempt.key = urandom(_KEY_CHARACTERS // 2).hex()
    return state.attempt.key


def work_key(state: CallState) -> str:
    """The key of the work that a call begins in the background."""
    return _hashed("work", key_of(state))


def reference_of(state: CallState) -> str:
    """What all calls under the same id have, whatever their arguments."""
    return _hashed(*_place_of(state)) if state.fields.session else key_of(state)


def _place_of(state: CallState) -> tuple[str | None, ...]:
    fields = state.fields
    return fields.principal, fields.session, state.origin.turn, state.plan.name, state.sent.id


def _hashed(*parts: object) -> str:
    from hashlib import sha256  # loads OpenSSL, which most programs never need

    return sha256(_sorted_json(parts).encode()).hexdigest()[:_KEY_CHARACTERS]


def _as_received(raw: Any) -> str:
    """The arguments as JSON that is written in one way; what is no JSON as it is."""
    if not isinstance(raw, str):
        return _sorted_json(thaw(raw) if isinstance(raw, Mapping) else {})
    try:
        return _sorted_json(json.loads(raw))
    except (ValueError, RecursionError):
        return raw


def _sorted_json(value: object) -> str:
    try:
        return json.dumps(value, sort_keys=True)
    except (TypeError, ValueError, RecursionError):  # of a caller's own, which `run` does not look at
        return json.dumps(jsonable(value), sort_keys=True)
