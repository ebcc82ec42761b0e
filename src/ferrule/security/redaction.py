"""Redact whole values: JSON data, bytes, blocks and results."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from os import urandom
from typing import Any, TypeAlias

from ferrule.values.content import Media, Text, to_jsonable, to_output
from ferrule.values.json_text import MASK, SECRET_STARS
from ferrule.values.result import ToolResult

Redact: TypeAlias = Callable[[str], str]
"""Returns a text with stars in the place of secrets."""
_BETWEEN_TEXTS = f"\n\n\n\n(#{urandom(8).hex()}#)\n"
"""A separator that no secret contains. Searching thousands of texts one by one takes seconds."""
_MAY_NAME_SECRET = "(?i)pass|pwd|secret|token|key|cred|auth|cookie|sig|bearer|session|jwt"
_LONGEST_CREDENTIAL = 500
"""The most characters of a value that may be a credential because of its name."""


def redact_value(value: Any, redact: Redact) -> Any:
    """Return JSON data, bytes, blocks or results with every text redacted, in keys, numbers and media as well."""
    texts: dict[str, str] = {}
    unredacted = _redact_inside(value, lambda text: texts.setdefault(text, text))
    redacted = _redact_all(texts, redact)
    return unredacted if redacted == texts else _redact_inside(value, redacted.__getitem__)


def redact_texts(texts: Iterable[tuple[str, str]], redact: Redact) -> dict[tuple[str, str], str]:
    """Return each text redacted, by itself and the name of its member, `""` if it has none."""
    together = {(text, name): _join_member(name, text) for text, name in texts if _may_be_secret(name, text)}
    redacted = _redact_all(dict.fromkeys([*(text for text, _ in texts), *together.values()]), redact)
    secret = {place for place, whole in together.items() if redacted[whole] != whole and redacted[place[0]] == place[0]}
    return {(text, name): MASK if (text, name) in secret else redacted[text] for text, name in texts}


def _redact_all(texts: Iterable[str], redact: Redact) -> dict[str, str]:
    """Return each text redacted. They are searched at once."""
    listed = [*texts]
    redacted = redact(_BETWEEN_TEXTS.join(listed)).split(_BETWEEN_TEXTS)
    return dict(zip(listed, redacted if len(redacted) == len(listed) else map(redact, listed), strict=True))


def _redact_inside(value: Any, redact: Redact) -> Any:
    if isinstance(value, str):
        return redact(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return value if all(redact(text) == text for text in number_texts(value)) else SECRET_STARS
    if isinstance(value, bytes):
        return redact(value.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    if isinstance(value, Mapping):
        return {redact(str(key)): _redact_member(str(key), inner, redact) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_redact_inside(inner, redact) for inner in value]
    if isinstance(value, ToolResult):
        return _redact_result(value, redact)
    if isinstance(value, Text):
        return Text(redact(value.text))
    if isinstance(value, Media):
        changes = {name: _redact_inside(getattr(value, name), redact) for name in ("data", "uri", "name")}
        mime_type, semicolon, parameters = value.mime_type.partition(";")
        shown = mime_type if redact(mime_type) == mime_type else "application/octet-stream"
        return replace(value, **changes, mime_type=f"{shown}{semicolon}{redact(parameters)}")
    return value


def _redact_member(name: str, value: Any, redact: Redact) -> Any:
    """Return a member of an object redacted."""
    redacted = _redact_inside(value, redact)
    is_secret = isinstance(value, str) and redacted == value and is_secret_member(name, value, redact)
    return SECRET_STARS if is_secret else redacted


def is_secret_member(name: str, text: str, redact: Redact) -> bool:
    """Return whether a text is secret because of the name of its member."""
    together = _join_member(name, text)
    return _may_be_secret(name, text) and redact(together) != together


def _may_be_secret(name: str, text: str) -> bool:
    return 0 < len(text) <= _LONGEST_CREDENTIAL and re.search(_MAY_NAME_SECRET, name) is not None


def _join_member(name: str, text: str) -> str:
    return f'"{name}": "{text}"\n{name}={text}'


def _redact_result(result: ToolResult, redact: Redact) -> ToolResult:
    found = {"output": to_output(result.output, strict=False), "error": result.error}
    found |= {"metadata": to_jsonable(result.metadata), "repairs": result.repairs, "content": list(result.content)}
    redacted = {name: _redact_inside(part, redact) for name, part in found.items()}
    redacted["repairs"] = tuple(redacted["repairs"])
    return result if redacted == found else result.replace(**redacted)


def number_texts(number: float) -> list[str]:
    """Return the number as JSON and as a whole number."""
    is_whole = type(number) is float and number.is_integer()
    return [repr(number), repr(int(number))] if is_whole else [repr(number)]
