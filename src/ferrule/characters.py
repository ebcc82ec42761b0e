"""What nobody sees in a text, and what moves or turns round what is seen: one table for terminals, for the texts of
servers and for what tools give back."""

from __future__ import annotations

import re

from ferrule.values.content import clean

__all__ = ["HIDDEN", "visible"]

# Where emoji and symbols stand that may be followed by U+FE0E or U+FE0F, which say whether they are coloured, and the
# keycaps: https://www.unicode.org/Public/UCD/latest/ucd/emoji/emoji-variation-sequences.txt
_SYMBOL = (
    "[\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u21ff\u2300-\u23ff\u24c2\u25a0-\u27bf\u2934\u2935\u2b00-\u2bff"
    "\u3030\u303d\u3297\u3299\U0001f000-\U0001f9ff]"
)
_KEYCAP = "(?<=[#*0-9])\ufe0f\u20e3"
# Control characters but for those that lay out text, Unicode's Default_Ignorable_Code_Point (zero width, bidirectional,
# fillers, the tags U+E0000 ff.) and its other format characters that are not seen themselves.
_ALWAYS = (
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u034f\u061c\u070f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f"
    "\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
# Beside which a joiner shows something: it makes one emoji of two, and shapes the letters of Persian and of India.
_BESIDE_JOINERS = f"[^\x00-\x7f\ufe0e\ufe0f\u200c\u200d\u2028\u2029{_ALWAYS}]"
_JOINERS = f"(?<!{_BESIDE_JOINERS})(?<!{_SYMBOL}\ufe0f)[\u200c\u200d]|[\u200c\u200d](?!{_BESIDE_JOINERS})"
HIDDEN = re.compile(f"[{_ALWAYS}]|(?<!{_SYMBOL})(?!{_KEYCAP})[\ufe0e\ufe0f]|{_JOINERS}")
"""One such character. Those that say behind a symbol or a key whether that is coloured are none, nor is a joiner
between two characters that are not ASCII."""


def visible(text: str) -> tuple[str, int]:
    """The text without what nobody sees, and how many such characters it had."""
    text = clean(text)
    return HIDDEN.subn("", text) if not text.isascii() or not text.isprintable() else (text, 0)
