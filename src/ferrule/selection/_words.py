"""Split a text into terms for the comparison: words, split at the joints of names, without endings and stop words."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

from ferrule.selection._stem import stem

_ONE_WORD = re.compile(r"[A-Z]+(?![^\W\d_A-Z])|[A-Z]?[^\W\d_A-Z]+|[0-9]+")
"""A word of lower-case letters in any alphabet, with an optional capital before it; capitals; or digits."""
STOP_WORDS = frozenset(Path(__file__).with_name("stop_words.txt").read_text("utf-8").split())
"""Words without information about the request: those of English grammar, and those of polite requests."""
_MOST_KNOWN = 200_000


def _term(word: str) -> str | None:
    small = word.lower()
    return None if small in STOP_WORDS else stem(small)


class _TermCache(dict[str, str | None]):
    """The term of each written word. A look-up takes a tenth of the time to make it."""

    def __missing__(self, word: str) -> str | None:
        if len(self) >= _MOST_KNOWN:
            self.clear()
        found = self[word] = _term(word)
        return found


_TERMS = _TermCache()


def split_terms(text: str) -> list[str]:
    """Return the terms of a text in their order, with repetitions.

    The words in `readMyFile2`, `READ_MY_FILE` and `read-my-file` are words by themselves.
    """
    if not text.isascii():  # accents are ignored: people omit them
        text = "".join([one for one in unicodedata.normalize("NFKD", text) if not unicodedata.combining(one)])
    known = _TERMS
    return [term for word in _ONE_WORD.findall(text) if (term := known[word]) is not None]
