"""Find secrets in a text, also as JSON, Python, URLs, HTML, base64 and hex write them, and put stars in their place."""

from __future__ import annotations

import re
import struct
from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum
from functools import lru_cache, partial
from os import PathLike, fspath
from typing import Any

from ferrule.values.frozen import get_fields
from ferrule.values.json_text import SECRET_STARS

_AFTER_SLASH = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}
_HTML_NAMES = {"&": "amp", "<": "lt", ">": "gt", '"': "quot", "'": "apos"}
_CREDENTIAL = re.compile(r"[a-z][\w+.-]*://[^/?#@:\s]*:([^/?#@\s]{8,})@|(?:bearer|token) (\S{8,})\Z", re.I).match
"""Match the password of a URL, or the token after the scheme of an `Authorization` header."""
_READ_AS_NUMBER = re.compile(r"\+?0*+(\d++(?:\.\d*[1-9])?)\.?0*", re.ASCII).fullmatch
"""Match a number, and in it the rest after a program reads and writes it: `00471147` comes back as `471147`."""
_ESCAPED_BREAK = rb"(?i)(?:%(?:25)*|\\u00)(0[ad]|20|2[bf]|3a|5c)"
"""Matches characters of base64 and hex, and the breaks in them, as URLs and JSON escape them."""
_LONGEST_ESCAPED = 10_000
_SHORTEST = 4
_SHORTEST_ANYWHERE = 8
"""The least length of a secret to redact inside words, too. A shorter one, such as `read`, must not cut `ready`."""
_WRITTEN_BY_STR = ("uuid", "decimal", "datetime", "ipaddress")
_BREAK = r"(?:[\s:]|(?:\\|%(?:25)*5[Cc]){1,9}+[nrx]|%(?:25)*(?:0[ADad]|20|3[Aa]))*+"
"""Matches breaks between the characters of base64 and hex, also as JSON, `repr` and URLs escape them."""
_AND, _HASH, _SEMICOLON = r"(?:&|(?<=[\\Cc])u0026|%(?:25)*26)", r"(?:#|%(?:25)*23)", r"(?:;|%(?:25)*3b)"
"""Match the signs of an HTML escape, also as JSON and URLs escape them."""
_WORD_BEGINS = r"(?:(?<!\w)|(?<=\\[nrtbf])|(?<=%[0-9A-Fa-f]{2})|(?<=\\x[0-9a-f]{2})|(?<=\\u[0-9A-Fa-f]{4}))"
"""Matches the beginning of a word, also after an escape that ends in a letter or a digit."""
_NO_UTF8 = "".join(map(chr, range(0xDC80, 0xDD00)))
"""Bytes that are no UTF-8, as `surrogateescape` decodes them."""
_MANY_STEPS = 20_000_000
"""Bytes of a text times number of forms; beyond that, searching for all forms at once is faster."""


def make_redactor(secrets: object) -> Callable[[str], str]:
    """Return a function that replaces all secrets of a value in a text by stars; `str` if there are none."""
    forms = [_find_written_forms(secret) for secret in set(_iter_secrets(secrets))]
    texts = sorted({one for found, _ in forms for one in found}, key=lambda one: len(one[1]), reverse=True)
    encoded = sorted({one for _, found in forms for one in found}, key=len, reverse=True)
    return partial(_redact_text, texts, encoded) if texts else str


def _iter_secrets(value: Any) -> Iterator[str | bytes]:
    """Yield the texts and bytes in `value` at any depth, without keys and field names."""
    value = value.value if isinstance(value, Enum) else value
    unveiled = getattr(value, "get_secret_value", None)
    if unveiled is not None:
        yield from _iter_secrets(unveiled())
    elif isinstance(value, str):
        yield from _iter_secret_texts(str.__str__(value))  # a class may write stars of its own
    elif isinstance(value, bytes | bytearray | memoryview):
        yield bytes(value).strip()
    elif isinstance(value, PathLike):
        yield from _iter_secrets(fspath(value))
    elif (
        isinstance(value, int | float) or hasattr(value, "unicode_string") or type(value).__module__ in _WRITTEN_BY_STR
    ):
        yield from () if isinstance(value, bool) else _iter_secret_texts(str(value))
        yield from (value.hex,) if type(value).__module__ == "uuid" else ()
    else:
        for inner in _iter_members(value):
            yield from _iter_secrets(inner)


def _iter_secret_texts(text: str) -> Iterator[str]:
    """Yield a text without surrounding blanks, and the credential in it."""
    yield text.strip()
    found = _CREDENTIAL(text)
    credential = (found[1] or found[2]) if found else ""
    if text.count(credential) == 1:  # not `postgres` of a database of that name
        from urllib.parse import unquote  # 3 ms

        yield from (credential, unquote(credential))


def _iter_members(value: Any) -> Iterable[Any]:
    value = get_fields(value) or value
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, Iterable) else ()


@lru_cache(maxsize=256)
def _find_written_forms(secret: str | bytes) -> tuple[list[tuple[bytes, str]], list[bytes]]:
    """Return the forms of a secret: texts, each after a part of it that no escaping changes; and base64 and hex."""
    text = secret.decode("utf-8", "surrogateescape") if isinstance(secret, bytes) else secret
    number = _READ_AS_NUMBER(text)
    plain = [one for one in (text, *(number.groups() if number else ())) if len(one) >= _SHORTEST]
    if len(secret) < _SHORTEST_ANYWHERE:
        return [(_find_plain_part(one), one) for one in plain], []
    data, wide = secret, list[bytes]()
    if not isinstance(data, bytes):
        wide = [text.encode(f"utf-16-{end}", "surrogatepass") for end in ("le", "be")]
        data = text.encode("utf-8", "surrogatepass")
    wide_texts = [one.decode("utf-8", "surrogateescape") for one in wide]
    wide_texts += [repr(one)[1:-1] for one in wide_texts]
    lines = [line.strip() for line in text.splitlines() if sum(map(str.isalnum, line)) >= _SHORTEST_ANYWHERE]
    inner = text.strip(_NO_UTF8)  # the bytes around may make characters with those at the ends
    lines += [inner] if len(inner) >= _SHORTEST_ANYWHERE else []
    texts = [(_find_plain_part(one), one) for one in (*plain, *lines)]
    texts += [(one.encode("utf-8", "surrogatepass"), one) for one in wide_texts]
    return texts, [
        form.encode() for one in (data, *wide) for form in (*_make_base64_forms(one), one.hex(), one.hex().upper())
    ]


def _find_plain_part(text: str) -> bytes:
    """Return the longest part of a text that no escaping changes."""
    parts: list[str] = re.findall(r"[A-Za-z0-9.-]*", text)
    return max(parts, key=len).encode()


def _make_expression(secret: str) -> str:
    """Return a pattern for a text as it is and as JSON, Python, URLs and HTML escape it, also nested."""
    if len(secret) > _LONGEST_ESCAPED:
        return re.escape(secret)
    parts = re.findall(r"(?s)(\\*)(?:([\w.-]+)|(.)|\Z)", secret, re.ASCII)
    expression = "".join(
        _make_slashes(len(slashes), 9 * len(slashes)) + re.escape(plain).replace("_", r"\\*+_")  # of Markdown
        if plain or not char
        else _make_character_expression(char, len(slashes))
        for slashes, plain, char in parts
    )
    if re.search(r"%(?:25)*5c", secret, re.IGNORECASE):  # the pattern reads it as an escaped backslash
        expression = rf"(?:{re.escape(secret).replace('%', '%(?:25)*')}|{expression})"
    return expression if len(secret) >= _SHORTEST_ANYWHERE else rf"{_WORD_BEGINS}{expression}(?!\w)"


def _make_slashes(least: int, most: int) -> str:
    return rf"(?:\\|%(?:25)*5[cC]){{{least},{most}}}+" if most else ""


def _make_character_expression(char: str, slashes: int) -> str:
    """Return a pattern for a character that follows `slashes` backslashes of the text itself."""
    number, units = ord(char), char.encode("utf-16-be", "surrogatepass").hex()
    is_byte = "\udc80" <= char <= "\udcff"  # of bytes that are no UTF-8
    octets = [f"{octet:02x}" for octet in char.encode("utf-8", "surrogateescape" if is_byte else "surrogatepass")]
    again, most = _make_slashes(1, 9), 9 + 9 * slashes
    after_slash = [f"U{number:08x}", again.join(f"x{octet}" for octet in octets), *_AFTER_SLASH.get(char, ())]
    after_slash += [again.join(f"u{units[at : at + 4]}" for at in range(0, len(units), 4))]
    after_slash += [f"x{number:02x}"] if number < 256 else []
    ways = [
        "".join(rf"[%=](?:25)*{octet}" for octet in octets),
        rf"{_AND}(?:amp{_SEMICOLON})*(?:{_HASH}(?:0*{number}|x0*{number:x})|{_HTML_NAMES.get(char, '#')}){_SEMICOLON}",
        *((r"\+", r"%(?:25)*2b", r"(?<=\\)u002b") if char == " " else ()),
    ]
    plain = rf"{_make_slashes(slashes, most)}(?:{re.escape(char)}|(?i:{'|'.join(ways)}))"
    return rf"(?:{plain}|{_make_slashes(slashes or 1, most)}(?i:{'|'.join(after_slash)}))"


def _make_base64_forms(data: bytes) -> list[str]:
    """Return the characters for `data` at any offset in longer base64, in both alphabets."""
    forms = []
    for before in range(3):
        encoded = b64encode(bytes(before) + data).decode().rstrip("=")
        # The first characters hold bits of the bytes before, and the last one may hold bits of the bytes after.
        inner = encoded[-(-before * 4 // 3) : (before + len(data)) * 4 // 3]
        forms += [inner, inner.replace("+", "-").replace("/", "_")]
    return forms


def _redact_text(texts: list[tuple[bytes, str]], encoded: list[bytes], text: str) -> str:
    """Return `text` with stars for each of `texts`, escaped or not, and for each of `encoded`, with breaks or not."""
    data = text.encode("utf-8", "surrogatepass")
    parts = _find_forms(data, {part for part, _ in texts})
    if found := [secret for part, secret in texts if part in parts]:  # to compile all would take 8 ms
        text = re.sub("|".join(map(_make_expression, found)), SECRET_STARS, text)
    if present := _find_forms(_remove_breaks(text), encoded):
        expressions = [_BREAK.join(map(_make_encoded_expression, one.decode())) for one in present]
        text = re.sub("|".join(expressions), SECRET_STARS, text)
    return text


def _make_encoded_expression(char: str) -> str:
    """Return a pattern for a character of base64 or hex."""
    return char if char.isalnum() else _make_character_expression(char, 0)


def _remove_breaks(text: str) -> bytes:
    data = text.encode("ascii", "replace")
    data = re.sub(_ESCAPED_BREAK, lambda found: bytes.fromhex(found[1].decode()), data).translate(None, b" \t\n\r\v\f:")
    while b"\\\\" in data:
        data = data.replace(b"\\\\", b"\\")
    for escaped, plain in ((b"\\n", b""), (b"\\r", b""), (b"\\x", b""), (b"\\/", b"/"), (b"\\+", b"+")):
        data = data.replace(escaped, plain)
    return data


def _find_forms(text: bytes, forms: Collection[bytes]) -> list[bytes]:
    """Return the forms found in a text.

    In a long text, every eighth byte is compared for forms of at least 15 bytes: 5 ms for a megabyte and any number.
    """
    if len(text) * len(forms) > _MANY_STEPS:
        eights = memoryview(text)[: len(text) // 8 * 8].cast("Q")
        found = frozenset(eight for form in forms for eight in _read_eights(form)).intersection(eights)
        forms = [form for form in forms if len(form) < 15 or not found.isdisjoint(_read_eights(form))]
    return [form for form in forms if form in text]


def _read_eights(form: bytes) -> list[int]:
    """Return the first eight runs of eight bytes as numbers. One of them begins at a multiple of 8 in any text."""
    return [struct.unpack_from("Q", form, at)[0] for at in range(8)] if len(form) >= 15 else []
