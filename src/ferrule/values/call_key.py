"""The key by which a call is found again, in any process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from ferrule.values.content import to_jsonable
from ferrule.values.frozen import thaw

KEY_CHARACTERS = 32
_WRITE_SORTED = json.JSONEncoder(sort_keys=True).encode  # `json.dumps` would make a new encoder for each text


def make_call_key(place: tuple[str | None, ...], arguments: object) -> str:
    """Return the key of a call.

    Args:
        place: Principal, session, turn, tool and call id.
        arguments: The arguments as they were sent, as JSON or its text.
    """
    return hash_parts(*place, _canonicalize_arguments(arguments))


def hash_parts(*parts: str | None) -> str:
    """Return a digest of texts, the same in any process."""
    from hashlib import sha256  # loads OpenSSL, only when needed

    return sha256(_json(parts)).hexdigest()[:KEY_CHARACTERS]


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
