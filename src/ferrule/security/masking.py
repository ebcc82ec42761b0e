"""Mask credentials in a text for a model. Every pattern takes linear time: repetitions are possessive or bounded."""

from __future__ import annotations

import re
import traceback
from binascii import a2b_base64
from collections.abc import Callable

from pydantic import ValidationError

from ferrule.values.content import clean_text, safe_str
from ferrule.values.log import LogLines

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
"""The rest of a plural name."""
_PROSE = (
    r"""(?i)(?:invalid|unexpected|unknown|missing|illegal|bad|expired)\s(?:token|session|signature|credentials)"""
    r"""(?=:\s(?-i:[a-z]{1,16})\s)|(?<![\w.\]-])keys?(?=:\s["']?(?-i:[a-z_]{1,16})(?![\w.-]))"""
)
"""Prose with a secret-like name: a complaint, or the name of a key, followed by a plain word."""
_HEADERS = r"""(?i)((?:authorization|cookie)[\\"'\]]{0,4}+\s*+[:=]\s*+\\?b?["']?)[^\n"']+"""
_BEARER = r"""(?i)((?<![a-z])bearer(?:[\s:=]|%20)++\\?["']?)[^\s"'<>]+"""
_SERVICE_KEYS = (
    r"(?=[ASadeghnprswxy])(?:(?<![A-Za-z0-9])(?:[sr]k[_-](?:(?:proj|ant|live|test|svcacct|admin|or)[_-][\w-]{8,}|[A-Za-z0-9]{20,})"
    r"|(?:AKIA|ASIA)[A-Z0-9]{12,}|(?:gsk|whsec|shp(?:at|ss|ca))_\w{16,}|(?:xai|pplx|nvapi|dapi)-?\w{24,}"
    r"|SG\.[\w-]{16,}\.[\w-]{16,}|hvs\.[\w-]{16,}|AGE-SECRET-KEY-1[A-Z0-9]{20,})"
    r"|(?:gh[pousr]_|hf_|npm_|dckr_pat_|dop_v1_|pypi-)[A-Za-z0-9_-]{16,}|github_pat_\w{16,}|(?:glpat|xapp)-[\w-]{8,}"
    r"|xox[a-z][.-][\w.-]{8,}|hooks\.slack\.com/services/[\w/]{16,}|AIza[\w-]{16,}|ya29\.[\w.-]{8,}"
    r"|(?:(?<![\w-])|(?<=\\n))eyJ[\w-]{8,}+\.[\w-]{2,}+\.[\w-]*)"
)
"""The prefixes of keys of well-known services."""
_KEY_SHAPES = rf"(?<![A-Za-z0-9])[sr]k[_-][\w-]{{8,}}|AKIA[A-Z0-9]{{12,}}|eyJ[\w-]{{8,}}(?:\.[\w-]*)*|{_SERVICE_KEYS}"
_PRIVATE_KEY = r"(?s)(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)(?:(?!-----END).)*"
_ADDRESS = r"://\S+"
_USER = r"(?s)://[^/?#@:]*(?::(?!//).*|(?=@|\Z))"
_INPUT = r"input_value=[^\n]*"
_ONLY_CREDENTIALS = (
    r"(?s)()-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:(?!-----END)(?:[\w+/=:,.\s-]|\\[nr]))*+"
    r"(?:-----END [A-Z ]{0,50}-----)?",
    rf"(){_SERVICE_KEYS}",
    r"""(://)(?:[^\s/?#@:"'<>\\]*+:[^\s/?#@"'<>\\]++|[^\s/?#@:"'<>\\]{20,}+)(?=@)""",
    r"""(?i)(authorization["'\\]{0,4}\s{0,3}[:=]\s{0,3}["'\\]{0,4}(?:basic|bearer|digest|token)\s{1,3})[^\s"',\\]{6,}""",
    r"""(?i)((?<![a-z])bearer\s{1,3})(?=[\w.~+/-]*\d)[\w.~+/-]{16,}=*""",
    # A setting in capitals, as in a file `.env`, in JSON too.
    r"""(?m)((?:^|\\n|")(?:export )?(?:[A-Z0-9]++_)*+(?:SECRET|TOKEN|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|APIKEY"""
    r"""|(?:(?<=API_)|(?<=AUTH_)|(?<=SECRET_)|(?<=ACCESS_)|(?<=PRIVATE_)|(?<=ACCOUNT_)|(?<=SIGNING_))KEY)=)"""
    r"""(?:(\\?["'])(?:(?!\2)[^\n])*+\2|(?![$<\s"'\\])(?:(?!\\n)[^\s"'])++)""",
    # Letters and digits under a name such as `password`; no program code.
    r"""(?i)(?=[acpbrs])((?:passw(?:or)?d|passphrase|(?:client|app)[_-]?secret|secret|api[_-]?key"""
    r"""|(?:secret|access|private|account)[_-]?key|(?:access|refresh|auth|api|bot)[_-]?token)["'\\]{0,4}\s{0,3}[:=]"""
    r"""\s{0,3}["'\\]{0,4})(?=[^\s"',;&<>\\]{0,200}\d)(?=[^\s"',;&<>\\]{0,200}[a-z])"""
    r"""(?:[^\s"',;&<>(){}\[\]$\\]{8,200}+(?=[\s"',;&<}\]\\]|\Z)|[^\s"',;&<>(){}\[\]$\\]{201,}+)""",
)
"""The first group of each stays in the text."""
_BASE64 = r"(?<![\w+/-])[\w+/-]{24,}+={0,2}"


def mask_credentials(text: str, most: int = 500) -> str:
    """Return at most `most` characters of `text`, with stars for everything that looks like a credential.

    These are passwords in URLs, values with telling names, bearer tokens, keys of well-known shapes, and inputs in
    Pydantic's errors.
    """
    read = text[: 20 * most]
    masked = re.sub(_ADDRESS, _mask_url_user, re.sub(_INPUT, f"input_value={MASK}", read))
    for named in (_PRIVATE_KEY, _HEADERS, _BEARER):
        masked = re.sub(named, rf"\1{MASK}", masked)
    masked = re.sub(_KEY_SHAPES, MASK, _mask_named_values(masked))
    if len(read) < len(text) and len(masked) <= most:  # its last word may be half a credential
        masked = masked[: max(masked.rfind(" "), masked.rfind("\n")) + 1]
    return masked[:most]


def mask_certain_credentials(text: str) -> str:
    """Return all of `text`, with stars for certain credentials, also if they are in base64.

    It leaves everything ambiguous: program code, commit ids, names and prose.
    """
    for expression in _ONLY_CREDENTIALS:
        text = re.sub(expression, rf"\1{MASK}", text)
    return re.sub(_BASE64, _mask_base64_credential, text)


def format_traceback(error: BaseException, redact: Callable[[str], str] = str) -> LogLines:
    """Return the traceback of an exception for the log, with stars by `redact` and for certain credentials."""
    return LogLines(mask_certain_credentials(redact("".join(traceback.format_exception(error)).rstrip())))


def _mask_base64_credential(found: re.Match[str]) -> str:
    """Return stars for a credential in base64, and any other match unchanged."""
    encoded = found[0].rstrip("=").replace("-", "+").replace("_", "/")
    if len(encoded) % 4 == 1 or not encoded.isascii():
        return found[0]
    decoded = a2b_base64(encoded + "=" * (-len(encoded) % 4)).decode("latin-1")
    is_key = any(re.search(expression, decoded) for expression in _ONLY_CREDENTIALS)
    return MASK if is_key else found[0]


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
