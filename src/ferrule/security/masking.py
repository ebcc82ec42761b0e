"""Mask credentials in a text for a model. Every pattern takes linear time: repetitions are possessive or bounded."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from pydantic import ValidationError

from ferrule.values.content import clean_text, safe_str
from ferrule.values.json_text import MASK
from ferrule.values.log import LogLines

if TYPE_CHECKING:
    from ferrule.security.detection import Scanner

# Texts and not `re.compile`: to compile them takes 3 ms, and most programs never need them.
_SAYS_SECRET = (
    r"(?i)token(?!i[sz])|secret(?!ar)|passw|passphrase|passcode|(?<![a-z])pass(?![a-z])|pwd|signature"
    r"|(?<![a-z])sig(?![a-z])|credential|auth(?!or(?!i[sz]))|bearer|session|jwt|key(?:[_-]?id)?(?![a-z])"
    r"|(?:api|access|secret|private)[_-]?keys"
)
# `token=…` in a query or a program, `"token": …` in JSON, and `api_key: …` in headers and settings.
_NAMED = r"""(?i)(?<![\w.\]-])([\w.\]-]++)([\\"'\]]{0,4}+)(?:\s*+(?:[=:]|%3[AD])>?)++\s*+\\{0,3}+"""
_VALUE = (
    r"""(?s)[\[({][^\])}]*+[\])}]?|(?:[\w.]{0,40}\(?b?(?=["']))?"""
    r"""(?:"(?:[^"\\]|\\.)*+"?|'(?:[^'\\]|\\.)*+'?|<?[^\s&"'<>]+)"""
)
_COUNT = r"""\d{1,9}(?=[\s,;)\]}&"']|\.?\Z)"""
"""The rest of a plural name."""
_PROSE = (
    r"""(?i)(?:invalid|unexpected|unknown|missing|illegal|bad|expired)\s(?:token|session|signature|credentials)"""
    r"""(?=:\s(?-i:[a-z]{1,16})\s)|(?<![\w.\]-])keys?(?=:\s["']?(?-i:[a-z_]{1,16})(?![\w.-]))"""
)
"""Prose with a secret-like name: a complaint, or the name of a key, followed by a plain word."""
_HEADERS = r"""(?i)((?:authorization|cookie)[\\"'\]]{0,4}+\s*+[:=]\s*+\\?b?["']?)[^\n"']+"""
_BEARER = r"""(?i)((?<![a-z])bearer(?:[\s:=]|%20)++\\?["']?)[^\s"'<>]+"""
_LOOSE_KEYS = r"(?<![A-Za-z0-9])[sr]k[_-][\w-]{8,}|AKIA[A-Z0-9]{12,}|eyJ[\w-]{8,}(?:\.[\w-]*)*"
_PRIVATE_KEY = r"(?s)(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)(?:(?!-----END).)*"
_ADDRESS = r"://\S+"
_USER = r"(?s)://[^/?#@:]*(?::(?!//).*|(?=@|\Z))"
_INPUT = r"input_value=[^\n]*"


def mask_credentials(text: str, most: int = 500) -> str:
    """Return at most `most` characters of `text`, with stars for everything that looks like a credential.

    These are passwords in URLs, values with telling names, bearer tokens, keys of well-known shapes, and inputs in
    Pydantic's errors.
    """
    read = text[: 20 * most]
    masked = re.sub(_ADDRESS, _mask_url_user, re.sub(_INPUT, f"input_value={MASK}", read))
    for named in (_PRIVATE_KEY, _HEADERS, _BEARER):
        masked = re.sub(named, rf"\1{MASK}", masked)
    masked = mask_certain_credentials(re.sub(_LOOSE_KEYS, MASK, _mask_named_values(masked)))
    if len(read) < len(text) and len(masked) <= most:  # its last word may be half a credential
        masked = masked[: max(masked.rfind(" "), masked.rfind("\n")) + 1]
    return masked[:most]


def mask_certain_credentials(text: str) -> str:
    """Return all of `text`, with stars for certain credentials, also if they are in base64.

    It leaves everything ambiguous: program code, commit ids, names and prose.
    """
    return _load_scanner().redact(text)


@cache
def _load_scanner() -> Scanner:
    from ferrule.security.detection import Scanner  # most programs never need it

    return Scanner()


def format_traceback(error: BaseException, redact: Callable[[str], str] = str) -> LogLines:
    """Return the traceback of an exception for the log, with stars by `redact` and for certain credentials."""
    return LogLines(mask_certain_credentials(redact("".join(traceback.format_exception(error)).rstrip())))


def _mask_named_values(text: str) -> str:
    """Return the text without the values of secret names. Values of other names are searched too: `url=…?token=…`."""
    next_name, value_at = re.compile(_NAMED).search, re.compile(_VALUE).match
    prose = {found.end() for found in re.finditer(_PROSE, text)}
    pieces, at, read = [], 0, 0
    while named := next_name(text, read):
        read = named.end()
        if not re.search(_SAYS_SECRET, named[1]) or named.end(1) in prose:
            continue
        is_count = named[1][-1] in "sS" and re.compile(_COUNT).match(text, read)
        if not is_count and (value := value_at(text, read)):
            pieces += [text[at:read], MASK]
            at = read = value.end()
    return "".join([*pieces, text[at:]])


def _mask_url_user(found: re.Match[str]) -> str:
    """Return the address without its user and password.

    A password may hold any character, also `/`, `?`, `#` and `@`. So after a user, all up to the last `@` goes.
    """
    before, at, after = found[0].rpartition("@")
    return re.sub(_USER, f"://{MASK}", before) + at + after


def format_masked_error(error: BaseException, redact: Callable[[str], str] = str) -> str:
    """Return the text of an exception for a model, with stars for credentials, and by `redact` for known secrets."""
    if isinstance(error, ValidationError):
        found = error.errors(include_input=False, include_url=False, include_context=False)
        lines = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in found[:10]]
        text = f"{error.error_count()} validation error(s) for {error.title}: {'; '.join(lines)}"
    else:
        text = safe_str(error.args[0] if isinstance(error, KeyError) and error.args else error)
    return mask_credentials(redact(clean_text(text)))
