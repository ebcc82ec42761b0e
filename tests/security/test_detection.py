"""The scanner finds secrets of documented forms, however a text is cut, and nothing in ordinary texts."""

from __future__ import annotations

import re
from base64 import b64encode
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ferrule.security.detection import BY_DEFAULT, NAMES, Scanner
from ferrule.security.detectors import SERVICES, has_iban_digits, has_luhn_digit

SCANNER = Scanner(NAMES)
RANDOM = "aB3dE5gH7jK9mN1pQ2sT4vW6xY8zA0cD"
FOUND = {
    "card": [
        *("4111 1111 1111 1111", "4111111111111111", "3782-822463-10005", "5555555555554444", "30569309025904"),
        *("6200000000000005", "6200 0000 0000 0005 123", "6759649826438453", "3530111333300000"),
    ],
    "iban": ["CH93\xa00076\xa02011\xa06238\xa05295\xa07", "of_DE89370400440532013000", "GB82 WEST 1234 5698 7654 32"],
    "email": ["mail ada.l+x@example.co.uk."],
    "phone": ["call +41 44 668 18 00", "call (415) 555-2671 now", "+14155552671"],
    "url password": [f"postgres://u:{RANDOM}@h/db", f"mongodb+srv://ada:{RANDOM}@c.example.net"],
    "connection string": [f"Server=db;Database=x;Password={RANDOM};", f"host=db user=ada password={RANDOM}"],
    "webhook": ["https://hooks.slack.com/services/" + "T00000000/B00000000/" + "x" * 24],
    "signed url": [f"https://a.blob.core.windows.net/x?sv=1&sig={RANDOM}%3D"],
    "random word": [f"the key is {RANDOM}", f"deploy_key {RANDOM}"],
    "named value": [f"password: {RANDOM}", f'"client_secret": "{RANDOM}"'],
    "setting": ["docker run -e DB_PASSWORD=hunter2 x", "a=1;API_KEY='a b'"],
    "telegram": ["bot 123456789:" + "AA" + RANDOM + "x"],
    "azure": ["abc8Q~" + RANDOM, "x7Y8Q~" + RANDOM],
}
ORDINARY = """
order 4111 1111 1111 1112 and 1234567890123456, DE00370400440532013000, 2026-11-30T10:32:00.123456789Z
the cache key is 0123456789abcdef, the keyboard layout getSecondaryKeyboardLayoutNames, monkey-patching-is-fine-here
token = tokenizer.encode(text); key=lambda item: item.name; keys = sorted(d, key=str.lower); auth/AuthorizationCodeFlow
git commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b, 0.4111111111111111, .4111111111111111, +378282246310005
feed4111111111111111 4111111111111111beef 14111111111111111 41111111111111110 4111111111111111.25
sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
"""


def service_keys() -> st.SearchStrategy[tuple[str, str]]:
    patterns = [(name, re.compile(one, re.ASCII)) for name, every in SERVICES.items() for one in every]
    return st.sampled_from(patterns).flatmap(
        lambda one: st.tuples(st.just(one[0]), st.from_regex(one[1], fullmatch=True).filter(is_long_and_no_hash))
    )


def is_long_and_no_hash(key: str) -> bool:
    """Whether a key is long enough, and not by a chance of 1 to 10^22 a word of hexadecimal digits alone."""
    return len(key) >= 20 and re.fullmatch("[0-9a-fA-F-]+", key) is None


@given(service_keys(), st.sampled_from(["{}", "x = '{}'", '{{"k": "{}"}}', "a\\n{}", "?t={}&b=1", "-{}", "%0A{}"]))
def test_the_key_of_each_service_is_found(found: tuple[str, str], around: str) -> None:
    _, key = found
    assert key not in SCANNER.redact(around.format(key))
    assert SCANNER.find(b64encode(f" {key} ".encode()).decode())


@pytest.mark.parametrize("name", FOUND)
def test_each_detector_finds_its_own(name: str) -> None:
    without = Scanner(NAMES - {name})
    for text in FOUND[name]:
        assert name in {one.detector for one in SCANNER.find(text)}, text
        assert name not in {one.detector for one in without.find(text)}


def test_ordinary_lines_stay() -> None:
    assert Scanner(BY_DEFAULT).find(ORDINARY) == []


def test_a_finding_has_its_place() -> None:
    text = f"café \u200b sk-\u200bproj-{RANDOM} and 4111 1111 1111 1111."
    assert [(one.detector, text[one.start : one.end]) for one in SCANNER.find(text)] == [
        ("openai", f"sk-\u200bproj-{RANDOM}"),
        ("card", "4111 1111 1111 1111"),
    ]


@pytest.mark.parametrize("text", ["mail='{}'", "x=`{}`", "['{}', '{}']", '{{"mail": "{}"}}'])
@pytest.mark.parametrize("address", ["c1@example.org", "d.o'brien+x@example.co.uk"])
def test_a_mail_address_ends_at_the_quotes_around_it(text: str, address: str) -> None:
    assert SCANNER.redact(text.format(address, address)) == text.format("***", "***")


@pytest.mark.parametrize("address", ["'ann'@example.org", "ann'@example.org", "ann`@example.org"])
def test_a_quote_before_the_at_sign_hides_no_address(address: str) -> None:
    assert "ann" not in SCANNER.redact(f"mail {address}.")


FRONTS = st.sampled_from(
    ["", " ", "invoice-", "card_", "Card", "no.", "№.", "card+", "2026-", "4 ", "(", "ü", ">", "a=", "\\n", "1,"]
)
BACKS = st.sampled_from(["", " ", ".pdf", ".", "-Visa", "-2026", "_x", "Visa", "end", ")", "ü", " 12/27", ",1", "\\n"])


@given(
    front=FRONTS,
    groups=st.sampled_from(
        [
            ("4111", "1111", "1111", "1111"),
            ("3782", "822463", "10005"),
            ("6759", "6498", "2643", "8453"),
            ("3056", "930902", "5904"),
        ]
    ),
    gap=st.sampled_from(["", " ", "-", ".", "\xa0", "\u202f", "\u2009", "\u2011", "\u2013", "\u200b"]),
    back=BACKS,
)
def test_a_card_number_is_found_whatever_stands_next_to_it(
    front: str, groups: tuple[str, ...], gap: str, back: str
) -> None:
    assert SCANNER.redact(front + gap.join(groups) + back) == f"{front}***{back}"


@given(st.integers(10**12, 10**18))
def test_one_wrong_digit_is_no_card_number(number: int) -> None:
    digits = [digit for digit in range(10) if has_luhn_digit(f"{number}{digit}")]
    assert len(digits) == 1


@given(st.integers(0, 10**20 - 1))
def test_one_pair_of_check_digits_is_right(account: int) -> None:
    valid = [check for check in range(2, 99) if has_iban_digits(f"DE{check:02}{account:020}")]
    assert len(valid) == 1


PIECES = [*(text for texts in FOUND.values() for text in texts), f"sk-proj-{RANDOM}", f"AKIA{RANDOM.upper()[:16]}"]
PIECES += [
    "-----BEGIN RSA PRIVATE KEY-----\n",
    "MIIB\n",
    "-----END RSA PRIVATE KEY-----",
    "-----BEGIN ",
    "-----",
    "(",
    "café",
]
PIECES += [
    "\n",
    "\n\n",
    " ",
    "\r\n",
    "a word ",
    "\u200b",
    "\x1b[1m",
    "\x1b]0;",
    "key: ",
    "password=",
    "://",
    "@",
    "=",
    "\u2028",
]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), st.lists(st.integers(0, 400), max_size=6))
@example("-----BEGIN RSA PRIVATE KEY-----\nMIIB\n-----BEGIN RSA PRIVATE KEY-----\nMIIB\n(", [40, 70])
@example("-----BEGIN RSA PRIVATE KEY-----\n\u200b-----BEGIN RSA PRIVATE KEY-----\n", [])
def test_pieces_are_redacted_like_the_whole(text: str, cuts: list[int]) -> None:
    stream = SCANNER.stream()
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    shown = [stream.feed(text[start:end]) for start, end in pairwise(places)]
    assert "".join(shown) + stream.close() == SCANNER.redact(text)


@given(service_keys(), st.sampled_from("\x1f\u200b\u00ad\u2060"), st.integers(1, 19))
def test_a_key_behind_a_hidden_character_is_found(found: tuple[str, str], hidden: str, cut: int) -> None:
    _, key = found
    assert SCANNER.redact(f"a0{hidden}{key[:cut]}{hidden}{key[cut:]} ") == f"a0{hidden}*** "


@given(service_keys(), st.sampled_from(["\x9b", "\x1b[", "\x1b"]))
def test_a_terminal_sequence_hides_no_key(found: tuple[str, str], opening: str) -> None:
    _, key = found
    assert key[1:] not in SCANNER.redact(f"a {opening}{key} ")
