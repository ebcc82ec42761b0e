"""Search a text for secrets that nobody named: keys of services, passwords, numbers with a checksum, random words.

A secret stands in one line, except a private key. So a text can be searched in pieces of whole lines.
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

from ferrule.security.characters import find_hidden
from ferrule.security.detectors import DETECTORS, ON_REQUEST, SERVICES, Detector, looks_random
from ferrule.values.json_text import MASK

__all__ = ["BY_DEFAULT", "CREDENTIALS", "NAMES", "Finding", "Scanner", "ScannerStream"]

RANDOM_WORD = "random word"
NAMES = frozenset({*SERVICES, *(one.name for one in (*DETECTORS, *ON_REQUEST)), RANDOM_WORD})
"""The names of all detectors. See docs/guides/untrusted-content.md#find-secrets."""
BY_DEFAULT = NAMES - {one.name for one in ON_REQUEST}
"""The detectors that search if you choose none. See docs/guides/untrusted-content.md#find-secrets."""
CREDENTIALS = BY_DEFAULT - {"card", "iban"}

_WORD_CHARACTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-+/=~"
_AS_WORDS = bytes(120 if byte in _WORD_CHARACTERS else 32 for byte in range(256))
_AS_SHAPES = bytes(
    65 if 65 <= byte <= 90 else 49 if 48 <= byte <= 57 else 45 if byte in b" .?\xa0" else byte for byte in range(256)
)
_DIGIT = 49
_ESCAPE_LENGTHS = {"\\": 1, "%": 2}
_LONG_WORD = b"x" * 20
_HEX = b"0123456789abcdef-"
"""The characters of hashes and UUIDs. Neither a key of a service nor the base64 of a secret has only these."""
_STEMS = (b"pass", b"secret", b"token", b"key", b"sig", b"hook", b"q~", b"pwd")
"""Parts of signs. Several signs with one stem cost one search."""
_BEGINNING: Callable[[str], Any] = re.compile(r"\w{1,2}").match
_RANDOM = r"[A-Za-z0-9+/_-]{20,}={0,2}"
_BASE64 = r"[\w+/-]{24,}={0,2}"
_NEARBY_WORD = re.compile(rb"key|token|secret|passw|credential|auth").search
_NEARBY = 40


class Finding(NamedTuple):
    """A secret in a text. See docs/guides/untrusted-content.md#find-secrets.

    Attributes:
        detector: The name of the detector.
        start, end: The first character, and the one after the last.
    """

    detector: str
    start: int
    end: int


class Scanner:
    """Searches texts for secrets, with chosen detectors.

    Args:
        names: The names of detectors.
        own: Regular expressions for secrets of your own, by name. Each searches one line at a time.
    """

    def __init__(self, names: Iterable[str] = CREDENTIALS, own: Mapping[str, str] | None = None) -> None:
        chosen = frozenset(names)
        self._by_stem: dict[bytes, list[tuple[bytes, int, Detector]]] = {}
        for one in (*DETECTORS, *ON_REQUEST):
            for sign in one.signs if one.name in chosen else ():
                stem = next((stem for stem in _STEMS if stem in sign), sign)
                self._by_stem.setdefault(stem, []).append((sign, sign.index(stem), one))
        self._services: dict[str, list[tuple[str, str]]] = {}
        for name, patterns in SERVICES.items():
            for pattern in patterns if name in chosen else ():
                self._services.setdefault(_BEGINNING(pattern)[0], []).append((name, pattern))
        beginnings = "|".join(self._services) or "(?!)"
        self._find_beginnings = re.compile(f"[_.+/=~-](?={beginnings})").finditer
        self._finds_random = RANDOM_WORD in chosen
        self._patterns = {name: re.compile(pattern) for name, pattern in (own or {}).items()}

    def find(self, text: str) -> list[Finding]:
        """Return the secrets in a text, the first first. They do not overlap.

        Invisible characters in a secret do not hide it, nor does `\\/`, as some programs write a slash in JSON.
        """
        visible, places, locate = _remove_hidden(text)
        if visible == text:
            return _merge(self._find_visible(text))
        found = [
            Finding(one.detector, locate(one.start), locate(one.end - 1) + 1)
            for one in self._find_visible(visible, places)
        ]
        # A terminal sequence such as `\x9bg` may take the first letter of a key: search the words as they are, too.
        return _merge([*found, *self._find_words(text, _encode(text).lower(), ())])

    def redact(self, text: str) -> str:
        """Return the text with stars for each secret."""
        found = self.find(text)
        if not found:
            return text
        gaps = _gaps([(one.start, one.end) for one in found], len(text))
        return MASK.join(text[start:end] for start, end in gaps)

    def stream(self) -> ScannerStream:
        """Return an object that redacts a text in pieces."""
        return ScannerStream(self)

    def find_open_key(self, text: str) -> int:
        """Return the start of the line with a key that goes on behind these lines, or the length of the text."""
        visible, _, locate = _remove_hidden(text)
        at = visible.find("-----BEGIN ")
        keys = list(_compile(DETECTORS[0].pattern).finditer(visible, at)) if at >= 0 else []
        end = len(visible)
        for key in reversed(keys):
            if key.end() > end or key.end() == len(visible):
                end = visible.rfind("\n", 0, key.start()) + 1
        if end == len(visible):
            return len(text)
        return locate(end - 1) + 1 if end else 0

    def _find_visible(self, text: str, joints: Sequence[int] = ()) -> Iterator[Finding]:
        """Yield the secrets in a text without hidden characters. `joints` are the places where some stood, in order:
        a secret may begin there, too."""
        data = _encode(text)
        lowered = data.lower()
        yield from self._find_by_sign(text, lowered, data.translate(_AS_SHAPES), frozenset(joints))
        yield from self._find_words(text, lowered, joints)
        if self._patterns:
            at = 0
            for line in text.split("\n"):
                for name, pattern in self._patterns.items():
                    yield from (
                        Finding(name, at + one.start(), at + one.end()) for one in pattern.finditer(line) if one[0]
                    )
                at += len(line) + 1

    def _find_by_sign(self, text: str, lowered: bytes, shapes: bytes, joints: frozenset[int]) -> Iterator[Finding]:
        for stem, signs in self._by_stem.items():
            searched = shapes if b"1" in stem else lowered
            ends = [0] * len(signs)  # no secret begins inside of another: the search takes linear time
            at = searched.find(stem)
            while at >= 0:
                if not (at and stem[0] == searched[at - 1] == _DIGIT) or at in joints:
                    for number, (sign, offset, detector) in enumerate(signs):
                        begin = at - offset
                        if ends[number] <= begin and searched.startswith(sign, begin):
                            found = _match(detector, text, begin)
                            if found is not None:
                                ends[number] = found.end
                                yield found
                at = searched.find(stem, at + 1)

    def _find_words(self, text: str, lowered: bytes, joints: Sequence[int]) -> Iterator[Finding]:
        """Yield the keys of services, the random words and the encoded secrets among the long words."""
        words = lowered.translate(_AS_WORDS)
        harmless = set[str]()  # most words come again
        start = words.find(_LONG_WORD)
        while start >= 0:
            end = words.find(b" ", start)
            end = len(words) if end < 0 else end
            word = text[max(start - 1, 0) : end]
            if lowered[start:end].translate(None, _HEX) and word not in harmless:
                inside = joints[bisect_right(joints, start) : bisect_right(joints, end)]
                found = [*self._find_services(text, start, end, inside), *self._find_encoded(text, start, end)]
                yield from found
                if not (found or inside):
                    harmless.add(word)
            yield from self._find_random(text, lowered, start, end)
            start = words.find(_LONG_WORD, end)

    def _find_services(self, text: str, start: int, end: int, joints: Sequence[int]) -> Iterator[Finding]:
        """Yield the keys of services at the beginning of a long word, or behind a sign or a joint in it."""
        escape = _ESCAPE_LENGTHS.get(text[start - 1 : start], 0)  # a letter of `\n` or `%20` is no part of the word
        begins = [start, start + escape] if escape else [start]
        begins += [one.end() for one in self._find_beginnings(text, start, end)]
        if joints:
            begins = sorted({*begins, *joints})
        for at in begins:
            for beginning in (text[at : at + 2], text[at : at + 1]):
                for name, pattern in self._services.get(beginning, ()) if at >= start else ():
                    if found := _compile(pattern).match(text, at):
                        yield Finding(name, at, found.end())
                        start = found.end()

    def _find_random(self, text: str, lowered: bytes, start: int, end: int) -> Iterator[Finding]:
        first = max(start - _NEARBY, 0)
        if not (self._finds_random and _NEARBY_WORD(lowered, first, end)):
            return
        near = lowered[first:end].rpartition(b"\n")[2]
        shift = end - len(near)
        for found in _compile(_RANDOM).finditer(text, start, end):
            context = near[max(found.start() - shift - _NEARBY, 0) : found.start() - shift]
            if _NEARBY_WORD(context) and looks_random(found[0]):
                yield Finding(RANDOM_WORD, found.start(), found.end())

    def _find_encoded(self, text: str, start: int, end: int) -> Iterator[Finding]:
        """Yield the base64 in a long word that has a secret inside."""
        for found in _compile(_BASE64).finditer(text, start, end):
            encoded = found[0].rstrip("=").replace("-", "+").replace("_", "/")
            if len(encoded) % 4 == 1:
                continue
            try:
                decoded = a2b_base64(encoded + "=" * (-len(encoded) % 4)).decode()
            except UnicodeDecodeError:
                continue
            for inner in self._find_visible(decoded):
                yield Finding(inner.detector, found.start(), found.end())
                break


class ScannerStream:
    """Redacts a text that comes in pieces. It holds back the last line, and a private key that has not ended."""

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._held = ""

    def feed(self, piece: str) -> str:
        """Add a piece, and return the redacted text that no further piece can change."""
        last, self._held = piece.rfind("\n"), self._held + piece
        if last < 0:
            return ""
        ready = self._held[: len(self._held) - len(piece) + last + 1]
        ready = ready[: self._scanner.find_open_key(ready)]
        self._held = self._held[len(ready) :]
        return self._scanner.redact(ready)

    def close(self) -> str:
        """Return the rest, redacted."""
        held, self._held = self._held, ""
        return self._scanner.redact(held)


def _remove_hidden(text: str) -> tuple[str, list[int], Callable[[int], int]]:
    """Return a text without hidden characters, the places where some stood, and what finds a place in the first text.

    A backslash before a slash counts as hidden: some programs write a slash so in JSON.
    """
    hidden = find_hidden(text)
    if "\\/" in text:
        hidden = sorted([*hidden, *(found.span() for found in re.finditer(r"\\+(?=/)", text))])
    visible = "".join(text[start:end] for start, end in _gaps(hidden, len(text))) if hidden else text
    removed = list(accumulate((end - start for start, end in hidden), initial=0))
    places = [start - before for (start, _), before in zip(hidden, removed, strict=False)]
    return visible, places, lambda at: at + removed[bisect_right(places, at)]


def _encode(text: str) -> bytes:
    """Return one byte for each character, so that a place in the bytes is a place in the text."""
    return text.encode("latin-1", "replace")


def _match(detector: Detector, text: str, at: int) -> Finding | None:
    """Return the secret of this kind with its sign at a place, or None."""
    front = None
    if detector.before:
        head = text[max(at - detector.reach, 0) : at].rpartition("\n")[2]
        front = _compile(rf"(?:{detector.before})\Z").search(head)
        if front is None:
            return None
    found = _compile(detector.pattern).match(text, at)
    if found is None:
        return None
    start, end = found.span("secret" if "secret" in found.re.groupindex else 0)
    if front is not None and "secret" in front.re.groupindex:
        start = at - len(head) + front.start("secret")
    if detector.is_secret is not None and not detector.is_secret(text[start:end]):
        return None
    return Finding(detector.name, start, end)


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


def _merge(found: Iterable[Finding]) -> list[Finding]:
    """Return findings in order, with one for those that overlap."""
    merged: list[Finding] = []
    for one in sorted(found, key=lambda one: (one.start, -one.end)):
        if merged and one.start < merged[-1].end:
            merged[-1] = merged[-1]._replace(end=max(one.end, merged[-1].end))
        else:
            merged.append(one)
    return merged


def _gaps(spans: Iterable[tuple[int, int]], length: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a text between spans."""
    at = 0
    for start, end in spans:
        yield at, start
        at = end
    yield at, length
