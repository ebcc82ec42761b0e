"""The characters that no reader sees: one table for terminals, for foreign texts and for comparing names."""

from __future__ import annotations

# Control characters that lay out no text, Unicode's Default_Ignorable_Code_Point (zero width, bidirectional, fillers,
# tags), and the other format characters without a shape.
INVISIBLE = (
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u034f\u061c\u070f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f"
    "\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""The inside of a character class for `re`. Joiners and U+FE0E and U+FE0F are left out: beside some characters they
change what is seen."""

INVISIBLE_IN_NAMES = rf"[{INVISIBLE}\u200c\u200d\u2028\u2029\u2800\ufe0e\ufe0f\U00016fe4\U0001d159]"
"""A pattern for one character that a name may lose without looking different. U+2800 is a Braille pattern without
dots."""
