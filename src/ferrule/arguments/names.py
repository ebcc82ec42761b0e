"""The names that look most like another."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect
from collections.abc import Iterable

from ferrule.values.invisible import INVISIBLE_IN_NAMES

_AROUND = 8
_LEAST_RATIO = 0.5
"""What `difflib` calls the ratio of two names that are alike."""


class Names:
    """Names in which those that look like another are found, among ten thousand in under a millisecond.

    Args:
        names: The names; they are compared without case, and with `_` for `-`.
    """

    __slots__ = ("_by_folded", "_from_the_end", "_sorted")

    def __init__(self, names: Iterable[str]) -> None:
        self._by_folded = {folded(name): name for name in names}
        self._sorted = sorted(self._by_folded)
        self._from_the_end = sorted(name[::-1] for name in self._by_folded)

    def nearest(self, name: str, most: int = 3) -> list[str]:
        """The names that look most like `name`, best first."""
        wanted = folded(name)[:200]
        names = self._neighbours(wanted)
        alike = [one for one in names if _may_be_alike(wanted, one)]
        if alike:
            from difflib import get_close_matches

            alike = get_close_matches(wanted, alike, most, _LEAST_RATIO)
        inside = [item for item in names if item not in alike and (item in wanted or wanted in item) and len(item) > 2]
        return [self._by_folded[item] for item in [*alike, *inside][:most]]

    def _neighbours(self, wanted: str) -> list[str]:
        """All names where they are few, else those that begin or end most like it: `difflib` takes too long for all."""
        if len(self._sorted) <= 4 * _AROUND:
            return list(self._by_folded)
        begin = _around(self._sorted, wanted)
        end = [name[::-1] for name in _around(self._from_the_end, wanted[::-1])]
        return list(dict.fromkeys([*begin, *end]))


def _may_be_alike(one: str, other: str) -> bool:
    """Whether two names share as many characters as `difflib` wants in their order, in a tenth of the time."""
    return 2 * sum(map(one.count, {*one} & {*other})) >= _LEAST_RATIO * (len(one) + len(other))


def folded(name: str) -> str:
    """`name` without what names are often confused in."""
    return name.casefold().replace("-", "_")


_LATIN = str.maketrans("авекмнорстухіјѕԁһԛԝӏαβεζηικμνορτυχı", "abekmhopctyxijsdhqwlabezhikmvoptyxi")
"""Small letters of Cyrillic and Greek, and the Latin ones that they, or their capitals, look like: the common ones of
https://www.unicode.org/Public/security/latest/confusables.txt, of which Python has none."""


def as_seen(name: str) -> str:
    """Return `name` as a reader tells it from others: without case, invisible characters and extra blanks, and with one
    letter for those that look alike."""
    if not (name.isascii() and name.isprintable()):
        visible = re.sub(INVISIBLE_IN_NAMES, "", name)
        name = unicodedata.normalize("NFKC", visible).casefold().translate(_LATIN)
    return " ".join(name.casefold().split())


def _around(names: list[str], name: str) -> list[str]:
    at = bisect(names, name)
    return names[max(0, at - _AROUND) : at + _AROUND]
