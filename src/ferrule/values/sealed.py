"""Seal JSON by an HMAC that only the holder of a key can make."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ferrule.values.frozen import thaw


def canonical_json(value: object) -> str:
    """Return the one text that stands for this JSON value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def sign(key: bytes, purpose: str, text: str) -> str:
    """Return the HMAC of a text for one purpose, in hex."""
    from hmac import digest  # loads OpenSSL, which most programs never need

    return digest(key, f"ferrule {purpose} {text}".encode(), "sha256").hex()


def seal(record: Mapping[str, Any], key: bytes, purpose: str) -> dict[str, Any]:
    """Return plain JSON with its seal."""
    return {**record, "seal": sign(key, purpose, canonical_json(record))}


def open_sealed(record: Mapping[str, Any], keys: Iterable[bytes], purpose: str) -> tuple[dict[str, Any], bytes] | None:
    """Return the sealed JSON and the key of its seal, or None if none of the keys has sealed it."""
    try:
        from hmac import compare_digest  # loads OpenSSL, which most programs never need

        seal = str(record.get("seal")).encode("utf-8", "replace")
        sealed = json.loads(json.dumps({name: value for name, value in thaw(record).items() if name != "seal"}))
        text = canonical_json(sealed)
    except Exception:  # no JSON, or a foreign mapping that raises anything
        return None
    for key in keys:
        if compare_digest(sign(key, purpose, text).encode(), seal):
            return sealed, key  # a copy with its keys in their order, not a mapping that may change
    return None
