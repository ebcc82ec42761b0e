"""Similar names: suggestions for a misspelled name, and keys for lookalikes."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect
from collections.abc import Iterable

from ferrule.security.invisible_characters import INVISIBLE_IN_NAMES

_NEIGHBOURS = 8
_MIN_RATIO = 0.5
"""The least `difflib` ratio of two similar names."""


class NameIndex:
    """An index to find similar names, among ten thousand in under a millisecond.

    Args:
        names: The names. Case does not count, and `-` equals `_`.
    """

    __slots__ = ("_by_folded", "_reversed", "_sorted")

    def __init__(self, names: Iterable[str]) -> None:
        self._by_folded = {fold_name(name): name for name in names}
        self._sorted = sorted(self._by_folded)
        self._reversed = sorted(name[::-1] for name in self._by_folded)

    def find_nearest(self, name: str, limit: int = 3) -> list[str]:
        """Return the names most similar to `name`, best first."""
        wanted = fold_name(name)[:200]
        names = self._find_candidates(wanted)
        similar = [candidate for candidate in names if _can_be_similar(wanted, candidate)]
        if similar:
            from difflib import get_close_matches

            similar = get_close_matches(wanted, similar, limit, _MIN_RATIO)
        near = similar + [
            candidate
            for candidate in names
            if len(candidate) > 2 and candidate not in similar and (candidate in wanted or wanted in candidate)
        ]
        return [self._by_folded[folded] for folded in near[:limit]]

    def _find_candidates(self, wanted: str) -> list[str]:
        """Return all names if they are few, else those with the most similar beginning or end.

        `difflib` is too slow for thousands of names.
        """
        if len(self._sorted) <= 4 * _NEIGHBOURS:
            return list(self._by_folded)
        begin = _find_neighbours(self._sorted, wanted)
        end = [name[::-1] for name in _find_neighbours(self._reversed, wanted[::-1])]
        return list(dict.fromkeys([*begin, *end]))


def _can_be_similar(one: str, other: str) -> bool:
    """Return whether two names share enough characters for `difflib`; takes a tenth of its time."""
    return 2 * sum(map(one.count, {*other})) >= _MIN_RATIO * (len(one) + len(other))


def _find_neighbours(names: list[str], name: str) -> list[str]:
    position = bisect(names, name)
    return names[max(0, position - _NEIGHBOURS) : position + _NEIGHBOURS]


def fold_name(name: str) -> str:
    """Return `name` in lower case and with `_` for `-`, as models confuse them."""
    return name.casefold().replace("-", "_")


_LATIN_LOOKALIKES = str.maketrans("авекмнорстухіјѕԁһԛԝӏαβεζηικμνορτυχı", "abekmhopctyxijsdhqwlabezhikmvoptyxi")
"""Lower-case Cyrillic and Greek letters, and the Latin letters that they or their capitals resemble: the common ones of
https://www.unicode.org/Public/security/latest/confusables.txt. Python has no such table.
"""


def lookalike_key(name: str) -> str:
    """Return one key for all names that look the same to a reader.

    The key has no case, no invisible characters, no extra blanks, and one letter for all its lookalikes.
    """
    if not (name.isascii() and name.isprintable()):
        visible = re.sub(INVISIBLE_IN_NAMES, "", name)
        name = unicodedata.normalize("NFKC", visible).casefold().translate(_LATIN_LOOKALIKES)
    return " ".join(name.casefold().split())
