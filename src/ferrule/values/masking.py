"""Credentials in a text that a model may read, made unreadable. Every expression takes time that grows with the text: a
repetition that may fail is bounded, and all others take what they have read."""

from __future__ import annotations

import re
from collections.abc import Callable

from pydantic import ValidationError

from ferrule.values.content import clean, text_of

MASK = "***"
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
"""What may follow a name in the plural."""
_PROSE = (
    r"""(?i)(?:invalid|unexpected|unknown|missing|illegal|bad|expired)\s(?:token|session|signature|credentials)"""
    r"""(?=:\s(?-i:[a-z]{1,16})\s)|(?<![\w.\]-])keys?(?=:\s["']?(?-i:[a-z_]{1,16})(?![\w.-]))"""
)
"""A complaint, and the name of a key, which go on in a plain word."""
_HEADERS = r"""(?i)((?:authorization|cookie)[\\"'\]]{0,4}+\s*+[:=]\s*+\\?b?["']?)[^\n"']+"""
_BEARER = r"""(?i)((?<![a-z])bearer(?:[\s:=]|%20)++\\?["']?)[^\s"'<>]+"""
_KEY_SHAPES = (
    r"(?<![A-Za-z0-9])[sr]k[_-][\w-]{8,}|(?:gh[pousr]_|hf_|npm_)[A-Za-z0-9]{16,}|github_pat_\w{16,}"
    r"|(?:glpat|xapp)-[\w-]{8,}|(?:AKIA|ASIA)[A-Z0-9]{12,}|xox[a-z][.-][\w.-]{8,}|AIza[\w-]{16,}|ya29\.[\w.-]{8,}"
    r"|eyJ[\w-]{8,}(?:\.[\w-]*)*"
)
_PRIVATE_KEY = r"(?s)(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)(?:(?!-----END).)*"
_ADDRESS = r"://\S+"
_USER = r"(?s)://[^/?#@:]*(?::(?!//).*|(?=@|\Z))"
_INPUT = r"input_value=[^\n]*"


def without_credentials(text: str, most: int = 500) -> str:
    """At most `most` characters of `text`, with stars in the place of what looks like a credential: passwords in URLs,
    values whose names say so, bearer tokens, keys of well-known shapes, and what Pydantic shows of an input."""
    read = text[: 20 * most]
    masked = re.sub(_ADDRESS, _without_password, re.sub(_INPUT, f"input_value={MASK}", read))
    for named in (_PRIVATE_KEY, _HEADERS, _BEARER):
        masked = re.sub(named, rf"\1{MASK}", masked)
    masked = re.sub(_KEY_SHAPES, MASK, _without_named(masked))
    if len(read) < len(text) and len(masked) <= most:  # its last word may be half a credential
        masked = masked[: max(masked.rfind(" "), masked.rfind("\n")) + 1]
    return masked[:most]


def _without_named(text: str) -> str:
    """Text without the values of names that say secret. What follows other names is read on, as `url=…?token=…` is."""
    next_name, value_at = re.compile(_NAMED).search, re.compile(_VALUE).match
    prose = {found.end() for found in re.finditer(_PROSE, text)}
    kept, at, read = [], 0, 0
    while named := next_name(text, read):
        read = named.end()
        if not re.search(_SAYS_SECRET, named[1]) or named.end(1) in prose:
            continue
        is_count = named[1][-1] in "sS" and re.compile(_COUNT).match(text, read)
        if not is_count and (value := value_at(text, read)):
            kept += [text[at:read], MASK]
            at = read = value.end()
    return "".join([*kept, text[at:]])


def _without_password(found: re.Match[str]) -> str:
    """Text up to a blank, without what names a user in addresses. A password may have any characters, `/`, `?`, `#` and
    `@` too: where something like a user comes first, all up to the last `@` goes."""
    before, at, after = found[0].rpartition("@")
    return re.sub(_USER, f"://{MASK}", before) + at + after


def masked_text(error: BaseException, hide: Callable[[str], str] = str) -> str:
    """The text of an exception, as a model may read it, with stars by `hide` for what is known to be secret."""
    if isinstance(error, ValidationError):
        found = error.errors(include_input=False, include_url=False, include_context=False)
        lines = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in found[:10]]
        text = f"{error.error_count()} validation error(s) for {error.title}: {'; '.join(lines)}"
    else:
        text = text_of(error.args[0] if isinstance(error, KeyError) and error.args else error)
    return without_credentials(hide(clean(text)))
