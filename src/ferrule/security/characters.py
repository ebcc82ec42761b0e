"""Find and neutralize the parts of a text that act on a reader: escapes, invisible characters, HTML, template marks.

One table serves terminals, the texts of servers and the results of tools.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from ferrule.security.invisible_characters import INVISIBLE
from ferrule.values.content import clean_text

__all__ = ["HIDDEN", "REFERENCE", "disarm", "escape_reference", "find_hidden", "remove_hidden"]

# The emoji and symbols before an optional U+FE0E or U+FE0F (text or coloured presentation), and the keycaps:
# https://www.unicode.org/Public/UCD/latest/ucd/emoji/emoji-variation-sequences.txt
_SYMBOL = (
    "[\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u21ff\u2300-\u23ff\u24c2\u25a0-\u27bf\u2934\u2935\u2b00-\u2bff"
    "\u3030\u303d\u3297\u3299\U0001f000-\U0001f9ff]"
)
_KEYCAP = "(?<=[#*0-9])\ufe0f\u20e3"
# A joiner beside one of these is visible: it makes one emoji of two, and shapes the letters of Persian and of India.
_BESIDE_JOINERS = f"[^\x00-\x7f\ufe0e\ufe0f\u200c\u200d\u2028\u2029{INVISIBLE}]"
_JOINERS = f"(?<!{_BESIDE_JOINERS})(?<!{_SYMBOL}\ufe0f)[\u200c\u200d]|[\u200c\u200d](?!{_BESIDE_JOINERS})"
HIDDEN = f"[{INVISIBLE}]|(?<!{_SYMBOL})(?!{_KEYCAP})[\ufe0e\ufe0f]|{_JOINERS}"
"""One hidden character, as a pattern text for `re`. The patterns here are not compiled: compiling takes milliseconds,
and most programs need none.

A presentation selector behind a symbol or a keycap does not match, nor does a joiner between two characters outside
ASCII.
"""


_LINE_BREAKS = "\r\n|[\r\x0b\x0c\x85\u2028\u2029]"
# ECMA-48: control sequences; strings for the terminal, such as titles and links, with their ends; other escapes.
_ESCAPES = (
    "(?:\x1b\\[|\x9b)[0-?]*+[ -/]*+[@-~]"
    "|(?:\x1b[]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9c-\x9f]*+(?:\x07|\x1b\\\\|\x9c)"
    "|\x1b[ -/]*+[0-OQ-WYZ\\\\`-~]"
)


_SEQUENCE = "(?:\x1b\\[|\x9b)[0-?]*+[ -/]*+[@-~]"
_MAY_BE_HIDDEN = f"[{INVISIBLE}\u200c\u200d\ufe0e\ufe0f]"
_VISIBLE_ASCII = bytes(range(32, 127)) + b"\t\n\r"


def find_hidden(text: str) -> list[tuple[int, int]]:
    """Return the start and the end of each run of invisible characters and terminal codes, in one line each."""
    if not may_have_hidden(text):
        return []
    hidden = re.compile(f"(?:{_SEQUENCE}|{HIDDEN})+")
    spans, at = list[tuple[int, int]](), 0
    while candidate := re.compile(_MAY_BE_HIDDEN).search(text, at):
        found = hidden.match(text, candidate.start())
        spans += [found.span()] if found else []
        at = found.end() if found else candidate.end()
    return spans


def may_have_hidden(text: str) -> bool:
    """Return whether the text has a character that may be invisible. This is fast if it has none."""
    if text.isascii():
        return bool(text.encode().translate(None, _VISIBLE_ASCII))
    return re.search(_MAY_BE_HIDDEN, "".join(set(text))) is not None


def remove_hidden(text: str) -> tuple[str, int]:
    """Return the text without escapes and invisible characters, and the number of removed characters.

    Every line break becomes `\\n`.
    """
    text = clean_text(text)
    if text.isascii() and text.isprintable():
        return text, 0
    if not may_have_hidden(text):
        return re.sub(_LINE_BREAKS, "\n", text), 0
    lines = re.sub(_LINE_BREAKS, "\n", text)
    seen = re.sub(HIDDEN, "", re.sub(_ESCAPES, "", lines))
    return seen, len(lines) - len(seen)


REFERENCE = r"&(?:amp;)*+(?:lt|#\d{2,5});"
"""A first character that `escape_reference` wrote earlier."""


def escape_reference(found: re.Match[str]) -> str:
    """Return the match, a character or a `REFERENCE`, as a reference of HTML.

    `<` becomes `&lt;`, `[` becomes `&#91;`, and `&lt;` becomes `&amp;lt;`, so the change can be reversed.
    """
    text = found[0]
    if text.startswith("&"):
        return f"&amp;{text[1:]}"
    return "&lt;" if text == "<" else f"&#{ord(text)};"


# A quiet tag runs nothing and loads nothing from elsewhere: it has no style, no event, and no address except a relative
# one. A quiet tag stays. A link to a page also stays, like one in Markdown: only a person follows it.
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
# The marks of chat templates, and Ferrule's own marks for omitted text.
_TEMPLATE_MARKS = (
    rf"(?:{REFERENCE}|<)(?=[|\uff5c][^|\uff5c<>\[&\n]{{1,100}}[|\uff5c]>|/?(?:{_IN_ANGLES})>|</?SYS>>)"
    rf"|(?:{REFERENCE}|\[)(?=/?(?:{_IN_BRACKETS})\]|cut(?:\]|: (?:\d|the whole )))"
    rf"|(?:(?m:^)|(?<=\\n))(?:{REFERENCE}(?=(?:uman|UMAN|ssistant|SSISTANT|YSTEM|SER):)|(?=(?:{_ROLE_NAMES}):)[A-Z])"
)


def disarm(text: str, counts: Counter[str] | None = None, may_load: Callable[[str], bool] | None = None) -> str:
    """Return the text with no HTML or Markdown that loads or runs something, and no mark of a chat template.

    Args:
        counts: Gets the numbers of `active_elements`, `images` and `marks`.
        may_load: Whether a Markdown image may load from an address.
    """
    counts = Counter() if counts is None else counts

    def disarm_image(found: re.Match[str]) -> str:
        address = found[0].partition("](")[2].strip("<>")
        if address and may_load is not None and may_load(address):
            return found[0]
        counts["images"] += 1
        return _as_text(found)

    if "<" in text:
        text, elements = re.subn(_LOADING_TAG, _as_text, text)
        counts["active_elements"] += elements
    if "![" in text and re.search(_ENDS_IMAGES, text):
        text = re.sub(_LOADING_IMAGE, disarm_image, text)
    text, marks = re.subn(_TEMPLATE_MARKS, escape_reference, text)
    counts["marks"] += marks
    return text


def _as_text(found: re.Match[str]) -> str:
    """Return a loading tag or image as text, with no data in its address."""
    whole = re.sub(_QUERIES, r"\1", found[0])
    return f"!&#91;{whole[2:]}" if whole.startswith("![") else f"&lt;{whole[1:]}"
