"""What a text does beside saying something, and how it is kept from that: one table for terminals, for the texts of
servers and for what tools give back."""

from __future__ import annotations

import re

from ferrule.values.content import clean_text
from ferrule.values.invisible_characters import INVISIBLE

__all__ = ["HIDDEN", "REFERENCE", "inert", "reference", "visible"]

# Where emoji and symbols stand that may be followed by U+FE0E or U+FE0F, which say whether they are coloured, and the
# keycaps: https://www.unicode.org/Public/UCD/latest/ucd/emoji/emoji-variation-sequences.txt
_SYMBOL = (
    "[\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u21ff\u2300-\u23ff\u24c2\u25a0-\u27bf\u2934\u2935\u2b00-\u2bff"
    "\u3030\u303d\u3297\u3299\U0001f000-\U0001f9ff]"
)
_KEYCAP = "(?<=[#*0-9])\ufe0f\u20e3"
# Beside which a joiner shows something: it makes one emoji of two, and shapes the letters of Persian and of India.
_BESIDE_JOINERS = f"[^\x00-\x7f\ufe0e\ufe0f\u200c\u200d\u2028\u2029{INVISIBLE}]"
_JOINERS = f"(?<!{_BESIDE_JOINERS})(?<!{_SYMBOL}\ufe0f)[\u200c\u200d]|[\u200c\u200d](?!{_BESIDE_JOINERS})"
HIDDEN = f"[{INVISIBLE}]|(?<!{_SYMBOL})(?!{_KEYCAP})[\ufe0e\ufe0f]|{_JOINERS}"
"""One such character, as a text for `re`, as all here: to compile them takes milliseconds, and most programs need none.
Those that say behind a symbol or a key whether that is coloured are none, nor is a joiner between two characters that
are not ASCII."""


_LINE_BREAKS = "\r\n|[\r\x0b\x0c\x85\u2028\u2029]"
# ECMA-48: control sequences; strings for the terminal, such as titles and links, with their ends; other escapes.
_ESCAPES = (
    "(?:\x1b\\[|\x9b)[0-?]*+[ -/]*+[@-~]"
    "|(?:\x1b[]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9c-\x9f]*+(?:\x07|\x1b\\\\|\x9c)"
    "|\x1b[ -/]*+[0-OQ-WYZ\\\\`-~]"
)


def visible(text: str) -> tuple[str, int]:
    """The text without what nobody sees and what moves a cursor, every line break as `\\n`; and how many characters it
    had too many."""
    text = clean_text(text)
    if text.isascii() and text.isprintable():
        return text, 0
    lines = re.sub(_LINE_BREAKS, "\n", text)
    seen = re.sub(HIDDEN, "", re.sub(_ESCAPES, "", lines))
    return seen, len(lines) - len(seen)


REFERENCE = r"&(?:amp;)*+(?:lt|#\d{2,5});"
"""A first character that was written by `reference` before."""


def reference(found: re.Match[str]) -> str:
    """What was found, a character or a `REFERENCE`, as a reference of HTML: `&lt;` for `<`, `&#91;` for `[`, and
    `&amp;lt;` for what was `&lt;`, so that it can be turned back."""
    text = found[0]
    if text.startswith("&"):
        return f"&amp;{text[1:]}"
    return "&lt;" if text == "<" else f"&#{ord(text)};"


# A tag stays that runs nothing and loads nothing from elsewhere: without a style, an event, and an address but one
# beside it. So does a link to a page, as one in Markdown does: nobody but a person follows it.
_QUIET_VALUE = r"""(?:"(?:[^"<>:\\&/\t\n]|/(?!/))*+"|'(?:[^'<>:\\&/\t\n]|/(?!/))*+'|(?:[^\s"'<>:\\&/=`]|/(?![/>]))++)"""
_QUIET = rf"(?:(?!on|style|srcdoc|http-equiv)[\w-]++(?:\s*+=\s*+{_QUIET_VALUE})?\s*+)*+/?>"
_TO_A_PAGE = rf"""(?<=<a\s)\s*+href=(?:"https?://[^"<>\\]*+"|'https?://[^'<>\\]*+')\s*+{_QUIET}"""
_LOADING_TAG = rf"(?i:<(?:script|style)\b|<[a-z][\w-]*+[\s/](?=[^<>]*=)(?!{_TO_A_PAGE}|\s*+{_QUIET}))[^<>]*+"
_QUIET_IMAGE = r"""[^\[\]]*\]\((?:[\w.%+-]|(?<!\()/(?!/))++(?:\s++"[^"<>]*")?\)"""
_LOADING_IMAGE = rf"!\[(?!{_QUIET_IMAGE})(?:[^\[\]]*+\]\([^\s()]*+)?"
_QUERIES = r"""(//[^\s"'<>()?#]*+)(?:[?#][^\s"'<>()]*+)?"""
_ENDS_IMAGES = r"\][(\[:\]]"
"""Without one of these, `![` is no image anywhere."""

_IN_ANGLES = (
    "s|bos|eos|pad|unk|start_of_turn|end_of_turn|think|tool_calls?|tool_response|tool_results?|function_calls"
    "|function_results"
)
_IN_BRACKETS = "INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|ARGS|CALL_ID|THINK"
_ROLE_NAMES = "Human|HUMAN|Assistant|ASSISTANT|SYSTEM|USER"
# The marks of chat templates, and of what Ferrule itself has left out.
_TEMPLATE_MARKS = (
    rf"(?:{REFERENCE}|<)(?=[|\uff5c][^|\uff5c<>\[&\n]{{1,100}}[|\uff5c]>|/?(?:{_IN_ANGLES})>|</?SYS>>)"
    rf"|(?:{REFERENCE}|\[)(?=/?(?:{_IN_BRACKETS})\]|cut(?:\]|: \d))"
    rf"|(?:(?m:^)|(?<=\\n))(?:{REFERENCE}(?=(?:uman|UMAN|ssistant|SSISTANT|YSTEM|SER):)|(?=(?:{_ROLE_NAMES}):)[A-Z])"
)


def inert(text: str) -> str:
    """The text whose HTML and Markdown load and run nothing, and which holds no mark of a chat template."""
    if "<" in text:
        text = re.sub(_LOADING_TAG, _as_text, text)
    if "![" in text and re.search(_ENDS_IMAGES, text):
        text = re.sub(_LOADING_IMAGE, _as_text, text)
    return re.sub(_TEMPLATE_MARKS, reference, text)


def _as_text(found: re.Match[str]) -> str:
    """What would have loaded something, as text, with no data in its address."""
    whole = re.sub(_QUERIES, r"\1", found[0])
    return f"!&#91;{whole[2:]}" if whole.startswith("![") else f"&lt;{whole[1:]}"
