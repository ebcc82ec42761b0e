"""Read credentials for HTTP from the secrets of a context, in the forms that developers give them."""

from __future__ import annotations

import base64
import re
from typing import Any, Final

PRINTABLE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")
"""The texts that can be the value of a header."""
HOW_TO_PASS: Final = "name it in credentials={…}, and pass its value in Runner(…, secrets={…}) or the context's"


def read_token(name: str, secret: Any) -> str:
    """Return a secret as the text of a header.

    Args:
        name: Its name in `context.secrets`, for the error.

    Raises:
        ValueError: It is no text in printable ASCII.
    """
    text = secret.get_secret_value() if hasattr(secret, "get_secret_value") else secret
    if not isinstance(text, str) or not PRINTABLE.fullmatch(text):
        raise ValueError(f"{name!r} must be a text in printable ASCII")
    return text


def encode_login(name: str, secret: Any) -> tuple[str, str]:
    """Return the value of `Authorization: Basic`, and the password.

    Args:
        name: Its name in `context.secrets`, for the error.
        secret: `"user:password"`, or a pair of both.

    Raises:
        ValueError: It is neither.
    """
    if isinstance(secret, tuple | list) and len(secret) == 2:
        user, password = read_token(name, secret[0]), read_token(name, secret[1])
    else:
        user, colon, password = read_token(name, secret).partition(":")
        if not colon:
            raise ValueError(f"{name!r} must be 'user:password' or a pair of both")
    return base64.b64encode(f"{user}:{password}".encode()).decode(), password
