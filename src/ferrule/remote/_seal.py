"""Sign orders and messages, and encrypt both if there is a key for that."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import time
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any

from ferrule.errors import DefinitionError, FerruleError
from ferrule.stores.store import KEY_BYTES

KEY_VARIABLE = "FERRULE_REMOTE_KEY"
"""The environment variable for the signing keys, in hexadecimal, with commas between several keys."""
ENCRYPT_VARIABLE = "FERRULE_ENCRYPT_KEY"
"""The same for the encryption keys."""
_NONCE_BYTES = 12  # NIST SP 800-38D, 8.2: the length of a random nonce


class SealError(FerruleError):
    """A text was not signed with a known key, is for another recipient, or is too old."""


class Seal:
    """A signer of the traffic between a program and its remote handlers; see docs/beyond-one-machine.md.

    Args:
        keys: The signing key (HMAC-SHA256) of at least 32 bytes, or a list of such keys: the first signs and all
            verify. By default, those of the environment variable FERRULE_REMOTE_KEY.
        encrypt_key: The same for encryption (AES-256-GCM, with the package `cryptography`). By default, those of
            FERRULE_ENCRYPT_KEY, or none.

    Attributes:
        encrypts: Whether others cannot read the traffic.

    Raises:
        DefinitionError: A key is too short, there is no signing key, or `cryptography` is missing for encryption.
    """

    def __init__(
        self, keys: bytes | Sequence[bytes] | None = None, encrypt_key: bytes | Sequence[bytes] | None = None
    ) -> None:
        self._signing_keys = _read_keys("key", keys, KEY_VARIABLE)
        if not self._signing_keys:
            raise DefinitionError(
                f"orders need a signing key, the same for the program and its workers: set {KEY_VARIABLE} to the "
                'output of `python -c "import secrets; print(secrets.token_hex(32))"`, or give key=…'
            )
        self._ciphers = [_cipher(key) for key in _read_keys("encrypt_key", encrypt_key, ENCRYPT_VARIABLE)]

    @property
    def encrypts(self) -> bool:
        return bool(self._ciphers)

    def close(self, body: str, *, valid: float, **subject: object) -> str:
        """Return `body`, signed together with its subject, valid for `valid` seconds."""
        subject["expires"] = time.time() + valid
        if self._ciphers:
            nonce = os.urandom(_NONCE_BYTES)
            body = b64encode(nonce + self._ciphers[0].encrypt(nonce, body.encode(), None)).decode()
        subject_text = json.dumps(subject)
        return json.dumps(
            {"about": subject_text, "body": body, "seal": _signature(self._signing_keys[0], subject_text, body)}
        )

    def open(self, text: str, **expected: object) -> tuple[str, dict[str, Any]]:
        """Return the body and its subject. The subject must contain `expected`.

        Raises:
            SealError: The text is not from `close` with a known key, has another subject, or has expired.
        """
        try:
            sealed = json.loads(text)
            subject_text, body, seal = str(sealed["about"]), str(sealed["body"]), str(sealed["seal"]).encode()
            signatures = [_signature(key, subject_text, body).encode() for key in self._signing_keys]
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise SealError(f"it is not a signed text ({type(error).__name__})") from None
        if not any(hmac.compare_digest(one, seal) for one in signatures):
            raise SealError("it was not signed with a known key")
        subject: dict[str, Any] = json.loads(subject_text)
        if others := [name for name, value in expected.items() if subject.get(name) != value]:
            raise SealError(f"it was signed for another {others[0]}")
        if not time.time() <= subject["expires"]:
            raise SealError("it has expired")
        return (self._decrypt(body) if self._ciphers else body), subject

    def pseudonym(self, text: str) -> str:
        """Return a stand-in for a text that others must not read; the same for equal texts."""
        return hmac.new(self._signing_keys[0], text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:32]

    def _decrypt(self, body: str) -> str:
        for cipher in self._ciphers:
            try:
                data = b64decode(body)
                text: bytes = cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], None)
            except Exception:  # from a package that is imported on demand
                continue
            return text.decode()
        raise SealError("it was not encrypted with a known key")


def _signature(key: bytes, subject: str, body: str) -> str:
    """Return the signature over both, with the length of the first, so that no part can be moved to the other."""
    return hmac.new(key, f"{len(subject)} {subject}{body}".encode(), hashlib.sha256).hexdigest()


def _read_keys(name: str, value: object, variable: str) -> tuple[bytes, ...]:
    """Return the keys. Raise a `DefinitionError` for an invalid key."""
    if value is None:
        texts = [text.strip() for text in os.environ.get(variable, "").split(",") if text.strip()]
        try:
            value = [bytes.fromhex(text) for text in texts]
        except ValueError:
            raise DefinitionError(f"{variable} must be a key in hexadecimal, or several separated by commas") from None
    keys = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not all(isinstance(key, bytes) and len(key) >= KEY_BYTES for key in keys):
        raise DefinitionError(
            f"{name} must be at least {KEY_BYTES} bytes, such as secrets.token_bytes({KEY_BYTES}) made once, or a list "
            f"of such keys, of which the first is used; or set {variable} to the same in hexadecimal"
        )
    return keys


def _cipher(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # only for programs that need it
    except ImportError:
        raise DefinitionError("encrypt_key needs the package cryptography: pip install cryptography") from None
    return AESGCM(hashlib.sha256(key).digest())
