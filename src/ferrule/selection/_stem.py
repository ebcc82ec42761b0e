"""English words without their endings, by the rules of Snowball's English stemmer ("Porter2").

https://snowballstem.org/algorithms/english/stemmer.html has the rules by the names of the steps here.
"""

from __future__ import annotations

import re
from functools import lru_cache

_CHANGED = "skis:ski skies:sky idly:idl gently:gentl ugly:ugli early:earli only:onli singly:singl"
_EXCEPTIONS = {
    **dict(pair.split(":") for pair in _CHANGED.split()),
    **{word: word for word in ("sky", "news", "howe", "atlas", "cosmos", "bias", "andes")},
}
"""Words with a wrong result by the rules, and the right result."""
_STAY_AFTER_1A = frozenset(
    ("inning", "evening", "outing", "canning", "herring", "earring", "proceed", "exceed", "succeed")
)
_VOWEL = re.compile("[aeiouy]")
_REGION = re.compile("[aeiouy][^aeiouy]")
_LONG_START = re.compile("gener|commun|arsen|past|univers|later|emerg|organ|inter")
_SHORT_END = re.compile("(?:^[aeiouy][^aeiouy]|[^aeiouy][aeiouy][^aeiouywxY])$|^past$")
_STEP_2 = (
    *(("ization", "ize"), ("ational", "ate"), ("fulness", "ful"), ("ousness", "ous"), ("iveness", "ive")),
    *(("tional", "tion"), ("biliti", "ble"), ("lessli", "less"), ("entli", "ent"), ("ation", "ate")),
    *(("alism", "al"), ("aliti", "al"), ("ousli", "ous"), ("iviti", "ive"), ("fulli", "ful"), ("enci", "ence")),
    *(("anci", "ance"), ("abli", "able"), ("izer", "ize"), ("ator", "ate"), ("alli", "al"), ("ogist", "og")),
    *(("bli", "ble"), ("ogi", "og"), ("li", "")),
)
_STEP_3 = (
    *(("ational", "ate"), ("tional", "tion"), ("alize", "al"), ("icate", "ic"), ("iciti", "ic"), ("ative", "")),
    *(("ical", "ic"), ("ness", ""), ("ful", "")),
)
_STEP_4 = (
    *("ement", "ance", "ence", "able", "ible", "ment", "ant", "ent", "ism", "ate", "iti", "ous", "ive", "ize"),
    *("ion", "al", "er", "ic"),
)
_DOUBLES = ("bb", "dd", "ff", "gg", "mm", "nn", "pp", "rr", "tt")


@lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    """Return the common stem of English words of one family.

    For example, `"prices"`, `"priced"` and `"pricing"` give `"price"` or `"pric"`.

    Args:
        word: One word in lower case. A word with letters other than a to z stays as it is.
    """
    if len(word) < 3 or not word.isascii() or not word.isalpha():
        return word
    if word in _EXCEPTIONS:
        return _EXCEPTIONS[word]
    word = _mark_consonants(word)
    first, second = _regions(word)
    word = _step_1a(word)
    if word in _STAY_AFTER_1A:
        return word
    word = _step_1b(word, first)
    if word[-1] in "yY" and len(word) > 2 and word[-2] not in "aeiouy":
        word = word[:-1] + "i"
    word = _step_2(word, first)
    word = _step_3(word, first, second)
    word = _step_4(word, second)
    return _step_5(word, first, second).lower()


def _mark_consonants(word: str) -> str:
    """Return the word with `Y` for each y that is a consonant: at the beginning, and behind a vowel."""
    if "y" not in word:
        return word
    marked = "Y" + word[1:] if word[0] == "y" else word
    return re.sub("([aeiouy])y", r"\1Y", marked)


def _regions(word: str) -> tuple[int, int]:
    """Return the beginnings of the two regions for the removal of endings."""
    begun = _LONG_START.match(word) or _REGION.search(word)
    first = begun.end() if begun else len(word)
    again = _REGION.search(word, first)
    return first, again.end() if again else len(word)


def _step_1a(word: str) -> str:
    if word.endswith("sses"):
        return word[:-2]
    if word.endswith(("ied", "ies")):
        return word[:-2] if len(word) > 4 else word[:-1]
    if word.endswith("s") and not word.endswith(("us", "ss")) and _VOWEL.search(word, 0, len(word) - 2):
        return word[:-1]
    return word


def _step_1b(word: str, first: int) -> str:
    for ending in ("eedly", "eed"):
        if word.endswith(ending):
            return word[: -len(ending)] + "ee" if len(word) - len(ending) >= first else word
    ending = next((one for one in ("ingly", "edly", "ing", "ed") if word.endswith(one)), "")
    rest = word[: -len(ending)] if ending else ""
    if not _VOWEL.search(rest):
        return word
    if ending == "ing" and len(rest) == 2 and rest[1] == "y":
        return rest[0] + "ie"
    if rest.endswith(("at", "bl", "iz")):
        return rest + "e"
    if rest.endswith(_DOUBLES):
        return rest if len(rest) == 3 and rest[0] in "aeo" else rest[:-1]
    return rest + "e" if first >= len(rest) and _SHORT_END.search(rest) else rest


def _step_2(word: str, first: int) -> str:
    ending, instead = next((one for one in _STEP_2 if word.endswith(one[0])), ("", ""))
    at = len(word) - len(ending)
    if not ending or at < first:
        return word
    if (ending == "ogi" and word[at - 1] != "l") or (ending == "li" and word[at - 1] not in "cdeghkmnrt"):
        return word
    return word[:at] + instead


def _step_3(word: str, first: int, second: int) -> str:
    ending, instead = next((one for one in _STEP_3 if word.endswith(one[0])), ("", ""))
    at = len(word) - len(ending)
    if not ending or at < first or (ending == "ative" and at < second):
        return word
    return word[:at] + instead


def _step_4(word: str, second: int) -> str:
    ending = next((one for one in _STEP_4 if word.endswith(one)), "")
    at = len(word) - len(ending)
    if not ending or at < second or (ending == "ion" and word[at - 1] not in "st"):
        return word
    return word[:at]


def _step_5(word: str, first: int, second: int) -> str:
    at = len(word) - 1
    if word[-1] == "e" and (at >= second or (at >= first and not _SHORT_END.search(word[:-1]))):
        return word[:-1]
    if word[-1] == "l" and at >= second and word[-2] == "l":
        return word[:-1]
    return word
