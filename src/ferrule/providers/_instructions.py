"""Finds hidden characters and instructions to the model in the texts of a definition.

`SIGNS` are the signs of an instruction; docs/command-line.md describes them. A text without one may still instruct a
model: the signs find only known forms, so that a person looks.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ferrule.security.characters import HIDDEN

if TYPE_CHECKING:
    from ferrule.definition.tool import Tool

_SECRET_FILES = (
    r"(?:~|\$home|/root|/home/\w+)/\.\w|\bid_(?:rsa|ed25519|ecdsa)\b|/etc/(?:passwd|shadow)\b|\.aws/credentials|"
    r"(?<!\w)\.(?:env|npmrc|pypirc|netrc|git-credentials|pgpass)\b(?!\.)|\bmcp\.json\b|claude_desktop_config\.json"
)
_SECRETS = r"(?:api|private|ssh|access|secret)[ -]?keys?|passwords?|credentials|secrets|environment variables"
_CONVERSATION = rf"system (?:prompt|message)|conversation|chat history|instructions|tokens?|{_SECRETS}"
_TAKE = (
    r"(?:read|open|cat|send|include|pass|provide|attach|put|copy|upload|forward|post|paste|append|fetch|leak|output)"
)
_TOOL = r"(?:this|any|the|an?|other|another|all|every|each)\b[^.!?]{0,30}?\btools?"
SIGNS: dict[str, re.Pattern[str]] = {
    sign: re.compile(pattern, re.IGNORECASE)
    for sign, pattern in {
        "ignores instructions": (
            r"\b(?:ignore|disregard|forget|override|bypass)\b[^.!?]{0,40}\b"
            r"(?:instructions?|prompts?|rules|guidelines|guardrails|polic(?:y|ies)|(?:previous|prior|earlier) messages)"
            r"\b|\b(?:new|updated|real|actual|hidden) (?:system )?(?:instructions|prompt)\b|\byou are now\b"
        ),
        "keeps something from the user": (
            r"\b(?:do not|don't|never|must not|without|avoid)\b[^.!?]{0,30}\b"
            r"(?:tell|telling|mention|mentioning|inform|informing|notify|notifying|alert|alerting|reveal|revealing)\b"
            r"[^.!?]{0,40}\b(?:user|human|person|anyone|anybody|this)\b"
            r"|\b(?:hide|conceal|keep)\b[^.!?]{0,40}\bfrom (?:the )?(?:user|human)\b"
        ),
        "says what to do before a tool is used": (
            rf"\b(?:before|prior to|whenever|every time|each time|when)\b[^.!?]{{0,20}}?\b(?:using|calling|invoking|"
            rf"running|you (?:use|call|invoke|run))\b[^.!?]{{0,10}}?\b{_TOOL}\b[^.!?]{{0,15}}?\b(?:you|must|always|"
            rf"first|please|{_TAKE}|call|use|run|execute)\b"
            rf"|\b(?:must|always|first)\b[^.!?]{{0,80}}\bbefore (?:using|calling|invoking|running) {_TOOL}\b"
        ),
        "is marked as for the model": (
            r"</?\s*(?:important|system|instructions?|secret|critical|hidden|admin|assistant|user_instructions?)\b[^<>]{0,80}>"
            r"|<\|[a-z_]{2,20}\|>|\[/?INST\]|<</?SYS>>"
        ),
        "asks for secrets": (
            rf"\b{_TAKE}\b[^!?]{{0,60}}?(?:{_SECRET_FILES})"
            rf"|\b{_TAKE}\b[^.!?]{{0,40}}?\b(?:your|the user['’]?s?|user['’]s)\b[^.!?]{{0,25}}?\b(?:{_CONVERSATION})\b"
            rf"|\b{_TAKE}\b[^.!?]{{0,20}}?\b(?:all|any|every)\b[^.!?]{{0,25}}?\b(?:{_SECRETS})\b"
        ),
    }.items()
}
"""The pattern of each sign: words that follow one another within one sentence."""
HOSTILE_SIGNS = frozenset({"ignores instructions", "keeps something from the user", "asks for secrets"})
"""The signs that no honest description has."""
_ORDERS = re.compile(
    r"\b(?:must|always|never|instead|do not|don't|before|after|whenever|when|every time|first|ignore|replaces?|only)\b",
    re.IGNORECASE,
)
_QUOTED_AROUND = 30
_MOST_QUOTED = 120
_TAGS = range(0xE0020, 0xE007F)
"""Unicode's tags: invisible copies of ASCII."""


def find_hidden_characters(text: str) -> str | None:
    """Return the invisible characters of a text, quoted with escapes, or `None` if it has none."""
    if text.isascii() and text.isprintable():
        return None
    places = {found.start() for found in re.finditer(HIDDEN, text)}
    if not places:
        return None
    begin, end = max(0, min(places) - _QUOTED_AROUND), min(places) + _QUOTED_AROUND
    shown = "".join(ascii(text[at])[1:-1] if at in places else text[at] for at in range(begin, min(end, len(text))))
    spelt = "".join(chr(ord(c) - 0xE0000) for c in text if ord(c) in _TAGS)
    return f"{len(places)} in '{shown}'" + (f", which spell {spelt[:_MOST_QUOTED]!r}" if spelt else "")


def find_instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield the signs of an instruction in a text, each with a quotation."""
    if text.isidentifier():  # as most texts of a schema are
        return
    plain = _normalize_text(text)
    for sign, pattern in SIGNS.items():
        if (found := pattern.search(plain)) is not None:
            yield sign, _quote_sign(plain, found)


def find_orders(text: str, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the other tools about which a text gives orders, by their names, each with a quotation.

    Args:
        names: The tools, by their names in texts.
    """
    if not names:
        return
    plain = _normalize_text(text)
    for sentence in re.split(r"(?<=[.!?]) ", plain):
        if _ORDERS.search(sentence):
            words = {*re.findall(r"[\w-]+", sentence)}
            for name in sorted(words & names.keys()):
                yield names[name], f"'{sentence[:_MOST_QUOTED]}'"


def list_texts(tool: Tool) -> Iterator[tuple[str, str]]:
    """Yield every text in the definition of a tool, with its place in the schema or the name of its field."""
    yield "", tool.name
    yield "", tool.description
    yield "title", tool.title or ""
    yield from _walk_texts(tool.input_schema, "$")
    yield from _walk_texts(tool.output_schema, "output")
    yield from _walk_texts(tool.examples, "examples")


def _walk_texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield path, key
            yield from _walk_texts(inner, f"{path}.{key}")
    elif isinstance(value, Sequence):
        for at, inner in enumerate(value):
            yield from _walk_texts(inner, f"{path}[{at}]")


def _normalize_text(text: str) -> str:
    """Return the text as a reader sees it: no hidden characters, one blank between words."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", re.sub(HIDDEN, "", text)).replace("’", "'")
    return " ".join(text.split())


def _quote_sign(text: str, found: re.Match[str]) -> str:
    begin, end = max(0, found.start() - _QUOTED_AROUND), min(len(text), found.end() + _QUOTED_AROUND)
    return f"'{'…' if begin else ''}{text[begin:end][:_MOST_QUOTED]}{'…' if end < len(text) else ''}'"
