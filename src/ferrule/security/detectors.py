"""The table of secrets that have a documented form: keys of services, and numbers with a checksum.

`detection.py` searches for them. Every pattern takes linear time: repetitions are possessive or bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import log2
from typing import NamedTuple

__all__ = ["DETECTORS", "ON_REQUEST", "SERVICES", "Detector"]

SERVICES: dict[str, tuple[str, ...]] = {
    "age": ("AGE-SECRET-KEY-1[A-Z0-9]{20,}",),
    "airtable": (r"pat[A-Za-z0-9]{14}\.[a-f0-9]{64}",),
    "alibaba": ("LTAI[A-Za-z0-9]{17,21}",),
    "anthropic": (r"sk-ant-[\w-]{8,}",),
    "artifactory": ("AKC[a-zA-Z0-9]{40,}", "cmVmd[A-Za-z0-9]{59}"),
    "atlassian": (r"AT[AC]TT3[\w=-]{40,}",),
    "aws": ("AKIA[A-Z0-9]{12,}", "ASIA[A-Z0-9]{12,}", "ABIA[A-Z0-9]{12,}", "ACCA[A-Z0-9]{12,}"),
    "buildkite": ("bk(?:ua|at)_[a-f0-9]{40}",),
    "circleci": ("CCI(?:PAT|PRJ)_[A-Za-z0-9]{22}_[a-f0-9]{40}",),
    "clojars": ("CLOJARS_[a-z0-9]{60}",),
    "crates.io": ("cio[A-Za-z0-9]{32}",),
    "databricks": ("dapi[a-f0-9]{24,}",),
    "dependency track": ("odt_[A-Za-z0-9]{32,}",),
    "digitalocean": ("do[opr]_v1_[a-f0-9]{16,}",),
    "discord": tuple(rf"{first}[A-Za-z0-9_-]{{23,27}}\.[\w-]{{6}}\.[\w-]{{27,}}" for first in "MNO"),
    "docker": (r"dckr_(?:pat|oat)_[\w-]{16,}",),
    "doppler": (r"dp\.(?:pt|st|ct|sa|scim|audit)\.[\w.-]{40,}",),
    "dropbox": (r"sl\.[\w-]{60,}",),
    "dynatrace": (r"dt0[a-z][0-9]{2}\.[A-Z0-9]{24}\.[A-Z0-9]{64}",),
    "facebook": ("EAA[A-Za-z0-9]{50,}",),
    "figma": (r"fig[dou][rh]?_[\w-]{40,}",),
    "github": ("gh[pousr]_[A-Za-z0-9_-]{16,}", r"github_pat_\w{16,}"),
    "gitlab": (r"gl(?:pat|dt|rt|ptt|ft|imt|agent|soat|cbt|oas|ffct)-[\w.-]{8,}", r"GR1348941[\w-]{20}"),
    "google": (r"AIza[\w-]{16,}", r"ya29\.[\w.-]{8,}", r"GOCSPX-[\w-]{20,}"),
    "grafana": ("glsa_[A-Za-z0-9]{32}_[A-Fa-f0-9]{8}", "glc_[A-Za-z0-9+/]{32,}", "eyJrIjoi[A-Za-z0-9+/]{50,}={0,2}"),
    "groq": (r"gsk_\w{16,}",),
    "heroku": (r"HRKU-[\w-]{30,}",),
    "hubspot": ("pat-(?:na|eu)1-[a-f0-9]{8}-[a-f0-9-]{27}",),
    "hugging face": ("hf_[A-Za-z0-9]{16,}", "api_org_[A-Za-z0-9]{16,}"),
    "linear": ("lin_(?:api|oauth)_[A-Za-z0-9]{32,}",),
    "mailgun": ("key-[a-f0-9]{32}", "pubkey-[a-f0-9]{32}"),
    "mapbox": (r"sk\.[A-Za-z0-9]{60,}\.[\w-]{20,}", r"pk\.[A-Za-z0-9]{60,}\.[\w-]{20,}"),
    "netlify": ("nfp_[A-Za-z0-9]{36}",),
    "new relic": (
        r"NR(?:AK-[A-Z0-9]{27}|II-[\w-]{32}|JS-[a-f0-9]{19}|AA-[a-f0-9]{27}|RA-[a-f0-9]{42})",
        "px-(?:dep|api)-[a-f0-9-]{36}",
    ),
    "notion": ("ntn_[A-Za-z0-9]{40,}", "secret_[A-Za-z0-9]{43}"),
    "npm": ("npm_[A-Za-z0-9]{16,}",),
    "nuget": ("oy2[a-z0-9]{43}",),
    "nvidia": (r"nvapi-[\w-]{24,}",),
    "openai": (r"sk-(?:proj|svcacct|admin)-[\w-]{8,}", "sk[_-][A-Za-z0-9]{20,}", "rk[_-][A-Za-z0-9]{20,}"),
    "openrouter": (r"sk-or-[\w-]{8,}",),
    "perplexity": (r"pplx-?\w{24,}",),
    "planetscale": (r"pscale_(?:tkn|pw|oauth)_[\w.-]{32,}",),
    "postman": ("PMAK-[a-f0-9]{24}-[a-f0-9]{34}",),
    "prefect": ("pn[ub]_[A-Za-z0-9]{36}",),
    "pulumi": ("pul-[a-f0-9]{40}",),
    "pypi": ("pypi-[A-Za-z0-9_-]{16,}",),
    "replicate": ("r8_[A-Za-z0-9]{37,}",),
    "rubygems": ("rubygems_[a-f0-9]{48}",),
    "sendgrid": (r"SG\.[\w-]{16,}\.[\w-]{16,}",),
    "sendinblue": ("xkeysib-[a-f0-9]{64}-[A-Za-z0-9]{16}",),
    "sentry": (r"sntr(?:ys|yu)_[\w=+/-]{40,}",),
    "shippo": ("shippo_(?:live|test)_[a-f0-9]{40}",),
    "shopify": (r"shp(?:at|ss|ca|pa)_\w{16,}",),
    "slack": (r"xox[a-z][.-][\w.-]{8,}", r"xapp-[\w-]{8,}"),
    "sourcegraph": ("sgp_(?:[a-f0-9]{16}_|local_)?[a-f0-9]{40}",),
    "square": (r"sq0[a-z]{3}-[\w-]{22,}", r"EAAA[\w-]{60}"),
    "stripe": (r"sk_(?:live|test)_[\w-]{8,}", r"rk_(?:live|test)_[\w-]{8,}", r"whsec_\w{16,}"),
    "supabase": ("sbp_[a-f0-9]{40}", r"sb_secret_[\w-]{20,}"),
    "tailscale": (r"tskey-[a-z]+-[\w-]{16,}",),
    "tavily": (r"tvly-[\w-]{30,}",),
    "twilio": ("SK[a-f0-9]{32}",),
    "twitch": (r"live_\d{6,}_[A-Za-z0-9]{28,}",),
    "typeform": (r"tfp_[\w.-]{40,}",),
    "vault": (r"hv[sbr]\.[\w-]{16,}",),
    "xai": (r"xai-?\w{24,}",),
}
"""For each service, the patterns of its keys: words of letters, digits and `_-.+/=~`. Each begins with a letter."""


class Detector(NamedTuple):
    """A kind of secret.

    Attributes:
        name: The name in findings, and in the options of `redact`.
        signs: Texts in small letters. Each secret of this kind has one of them. A sign with a `1` is a shape: `1` is a
            digit, `A` a capital letter, and `-` a space, a dot, a dash, or a character that is not in Latin-1.
        pattern: The text from the sign on. The group `secret`, if there is one, is the part to hide.
        before: The text in front of the sign, in its line. A group `secret` here is a part to hide, too.
        reach: The most characters that `before` reads.
        is_secret: A further check of the part to hide.
    """

    name: str
    signs: tuple[bytes, ...]
    pattern: str
    before: str = ""
    reach: int = 40
    is_secret: Callable[[str], bool] | None = None


_DOUBLED = str.maketrans("0123456789", "0246813579")


def has_luhn_digit(text: str) -> bool:
    """Return whether the last digit of a number is right by Luhn's formula (ISO/IEC 7812-1)."""
    digits = "".join(filter(str.isdigit, text))[::-1]
    total = sum(map(int, digits[::2])) + sum(map(int, digits[1::2].translate(_DOUBLED)))
    return total % 10 == 0 and len(set(digits)) > 1


def has_iban_digits(text: str) -> bool:
    """Return whether the check digits of an account number are right (ISO 13616)."""
    number = "".join(text.split()).upper()
    moved = number[4:] + number[:4]
    return 15 <= len(number) <= 34 and int("".join(str(int(one, 36)) for one in moved)) % 97 == 1


def looks_random(text: str) -> bool:
    """Return whether a word looks like a key made at random: hex, or letters of both cases with digits."""
    word = text.rstrip("=")
    counts = [word.count(one) for one in set(word)]
    entropy = -sum(count / len(word) * log2(count / len(word)) for count in counts)
    digits = sum(map(str.isdigit, word))
    if re.fullmatch(r"[0-9a-f]+|[0-9A-F]+", word):
        return len(word) >= 32 and entropy > 3.2 and 0.3 < digits / len(word) < 0.9
    is_mixed = word != word.lower() and word != word.upper()
    return is_mixed and digits >= 2 and entropy > (3.9 if len(word) < 32 else 4.2)


_VALUE = (
    r"""["'\\]{0,4}[ \t]{0,3}[:=][ \t]{0,3}["'\\]{0,4}"""
    r"""(?P<secret>(?=[^\s"',;&<>\\]{0,200}\d)(?i:(?=[^\s"',;&<>\\]{0,200}[a-z]))"""
    r"""(?:[^\s"',;&<>(){}\[\]$\\]{8,200}+(?=[\s"',;&<}\]\\]|\Z)|[^\s"',;&<>(){}\[\]$\\]{201,}+))"""
)
"""A separator, and letters with digits. Program code such as `get_password2()` does not match."""
_PEM = (
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:(?!-----END)(?:[\w+/=:,.\s-]|\\[nr]))*+"
    r"(?:-----END [A-Z ]{0,50}-----)?"
)
_SPACES = r" \xa0\u2000-\u200a\u202f"
_GAP = rf"[{_SPACES}\u2010-\u2015.-]?"
_MAESTRO = r"50(?:18|20|38)|5893|6304|6759|676[1-3]"
_CARD = (
    rf"(?:(?:4\d{{3}}|5[1-5]\d\d|2[2-7]\d\d|6(?:011|5\d\d|4[4-9]\d)|35\d\d|62\d\d|{_MAESTRO})(?:{_GAP}\d{{4}}){{3}}"
    rf"|3[47]\d\d{_GAP}\d{{6}}{_GAP}\d{{5}}|3(?:0[0-5]|[68]\d)\d{_GAP}\d{{6}}{_GAP}\d{{4}})"
    r"(?!\.?\d|[A-Fa-f]++(?![G-Zg-z]))"
)
"""The numbers of eight networks, in one piece or in groups. One behind or in front of letters counts, unless
these could be a word of hexadecimal digits."""
_BEFORE_CARD = r"(?:^|[^A-Za-z0-9.+]|[G-Zg-z][A-Fa-f]*|(?:[A-Za-z_]|[^\x00-\x7f])[.+])"
_CARD_SHAPES = (b"1111-1111-1111-1111", b"1111-111111-1111", b"1" * 14)
_CONNECTION = (
    r"(?<!\w)(?i:server|data source|endpoint|accountname|database|user id|uid)=[^;\n]{0,200};.{0,200}"
    r"|(?<!\w)(?i:host|dbname|user)=\S{1,200} .{0,200}"
)
_SETTING = (b"secret=", b"token=", b"password=", b"passwd=", b"passphrase=", b"credential=", b"credentials=")

DETECTORS = (
    Detector("private key", (b"-----begin ",), _PEM),
    Detector("jwt", (b"eyj",), r"eyJ[\w-]{8,}+\.[\w-]{2,}+\.[\w-]*", r"(?:^|[^\w-]|\\n)"),
    Detector(
        "url password",
        (b"://",),
        r"""://(?P<secret>[^\s/?#@:"'<>\\]*+:[^\s/?#@"'<>\\]++|[^\s/?#@:"'<>\\]{20,}+)(?=@)""",
    ),
    Detector(
        "connection string",
        (b"password=", b"pwd=", b"accountkey=", b"sharedaccesskey="),
        r"""(?i:password|pwd|accountkey|sharedaccesskey)=(?P<secret>[^\s;"']{4,500})""",
        _CONNECTION,
        reach=400,
    ),
    Detector("webhook", (b"hooks.slack.com/services/",), r"(?i:hooks\.slack\.com/services/)[\w/]{16,}"),
    Detector("webhook", (b"/api/webhooks/",), r"(?i:/api/webhooks/)\d{15,22}/[\w-]{40,}"),
    Detector("webhook", (b".webhook.office.com/",), r"(?i:\.webhook\.office\.com/)[\w@/-]{60,}"),
    Detector("webhook", (b"outlook.office.com/webhook/",), r"(?i:outlook\.office\.com/webhook/)[\w@/-]{60,}"),
    Detector(
        "signed url", (b"sig=", b"signature="), r"(?i:sig|signature)=(?P<secret>[\w%+/-]{32,}={0,2})", r"[?&;](?:\w+-)*"
    ),
    Detector(
        "authorization",
        (b"authorization",),
        r"""(?i:authorization["'\\]{0,4}[ \t]{0,3}[:=][ \t]{0,3}["'\\]{0,4}(?:basic|bearer|digest|token)[ \t]{1,3})"""
        r"""(?P<secret>[^\s"',\\]{6,})""",
    ),
    Detector(
        "authorization",
        (b"bearer",),
        r"(?i:bearer)[ \t]{1,3}(?P<secret>(?=[\w.~+/-]*\d)[\w.~+/-]{16,}=*)",
        r"(?:^|[^a-zA-Z])",
    ),
    # A setting in capitals, as in a file `.env` or in a command.
    Detector(
        "setting",
        (*_SETTING, b"key="),
        r"(?:SECRET|TOKEN|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|(?<=API)KEY"
        r"|(?:(?<=API_)|(?<=AUTH_)|(?<=SECRET_)|(?<=ACCESS_)|(?<=PRIVATE_)|(?<=ACCOUNT_)|(?<=SIGNING_))KEY)="
        r"""(?P<secret>(\\?["'])(?:(?!\2)[^\n])*+\2|(?![$<=\s"'\\])(?:(?!\\n)[^\s"'])++)""",
        r"""(?:^|[\s"';&|(,{]|\\n)(?:[A-Z0-9]++_)*+(?:API)?""",
    ),
    Detector("named value", (b"passw", b"passphrase", b"secret"), rf"(?i:passw(?:or)?d|passphrase|secret){_VALUE}"),
    Detector(
        "named value",
        (b"key",),
        rf"(?i:key){_VALUE}",
        r"(?i:api|secret|access|private|account|encryption|signing)[_-]?",
    ),
    Detector("named value", (b"token",), rf"(?i:token){_VALUE}", r"(?i:access|refresh|auth|api|bot)[_-]?"),
    Detector("django", (b"django-insecure-",), r"""django-insecure-[^\s"']{20,200}"""),
    Detector("new relic", (b"nral",), r"NRAL(?!\w)", r"(?<!\w)(?P<secret>\w{36})"),
    Detector(
        "named value",
        (b"password ",),
        r"(?i:password)[ \t]{1,8}(?P<secret>(?=\S{0,200}[^a-zA-Z\s])\S{4,200})",
        r"(?i:login)[ \t]{1,8}\S{1,100}[ \t]{1,8}",
        reach=130,
    ),  # a line of .netrc
    Detector("azure", (b"jqqj9",), r"JQQJ9[A-Za-z0-9]{20,}", r"(?P<secret>[A-Za-z0-9]{40,80})", 80),
    Detector("azure", (b"7q~", b"8q~"), r"[78]Q~[\w~.-]{31,34}", r"(?P<secret>[\w~.]{3})"),
    Detector("mailchimp", (b"-us",), r"-us\d{1,2}(?!\w)", r"(?:^|\W)(?P<secret>[a-f0-9]{32})"),
    Detector("telegram", (b":aa",), r":AA[\w-]{32,33}(?![\w-])", r"(?:^|\D)(?P<secret>\d{8,10})"),
    Detector("terraform", (b".atlasv1.",), r"\.atlasv1\.[\w-]{60,}", r"(?P<secret>[A-Za-z0-9]{14})"),
    Detector("card", _CARD_SHAPES, _CARD, _BEFORE_CARD, 20, has_luhn_digit),
    Detector(
        "iban",
        (b"AA11",),
        rf"[A-Z]{{2}}\d\d(?:[{_SPACES}]?[A-Z0-9]{{4}}){{2,7}}(?:[{_SPACES}]?[A-Z0-9]{{1,3}})?(?![A-Za-z0-9])",
        r"(?:^|[\W_])",
        1,
        has_iban_digits,
    ),
)
ON_REQUEST = (
    Detector(
        "email",
        (b"@",),
        r"@(?:[A-Za-z0-9-]{1,63}\.){1,5}[A-Za-z]{2,24}",
        # A quote before the name ends the text before it, such as mail='ann@…', and belongs to no address.
        r"(?P<secret>(?:[A-Za-z0-9.!#$%&*+/=?^_{|}~-]|(?<=\w)['`](?=\w|\Z)){1,64}+)",
        64,
    ),
    Detector("phone", (b"+1",), r"\+\d(?:[ ()/.-]{0,2}\d){7,14}(?!\d)", r"(?:^|[^\w+])", 1),
    Detector(
        "phone",
        (b"111-1111",),
        r"\d{3}[ .-]\d{4}(?![\w-])",
        r"(?:^|[^\w.-])(?P<secret>(?:1[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-]))",
    ),
)
"""Detectors of data that is no secret in most texts."""
