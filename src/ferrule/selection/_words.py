"""Split a text into terms for the comparison: words, split at the joints of names, without endings and stop words."""

from __future__ import annotations

import re
import unicodedata

from ferrule.selection._stem import stem

_ONE_WORD = re.compile(r"[A-Z]+(?![^\W\d_A-Z])|[A-Z]?[^\W\d_A-Z]+|[0-9]+")
"""A word of lower-case letters in any alphabet, with an optional capital before it; capitals; or digits."""
_STOP_WORDS = """
a able about above additional additionally after again all already also always am an and another any appreciate
appreciated are as assist assistance at based be been before being below bit both but by can certain come comes
could curious d did different do does doing during each ensure entire etc even ever every few finally for from
further furthermore gather general get gets getting give given gives go going got great had has have having he hello
help her here hers hey hi him his how however i if in interested into is it its itself just kind kindly know known
lastly lately later let lets like little ll look looking lot love m make makes making many may maybe me might more
moreover most much must my myself need never no nor not now obtain of off often ok okay on once one ones only or
other our ours out over overall own particular per perhaps planning please possible possibly provide provided
provides providing put quite re really recently regarding relevant s said same say see seem seems several shall she
should so some soon specific still such suggest sure t take taking tell than thank thanks that the their theirs them
themselves then there therefore these they think this those through thus to too try trying under up upon us use used
using various ve very via want wanted wants was way we well were what when where which while who whole whom whose
why will wish with within wondering working would yes yet you your yours yourself
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""Words without information about the request: those of English grammar, and those of polite requests."""
_MOST_KNOWN = 200_000


def _term(word: str) -> str | None:
    small = word.lower()
    return None if small in STOP_WORDS else stem(small)


class _Known(dict[str, str | None]):
    """The term of each written word. A look-up takes a tenth of the time to make it."""

    def __missing__(self, word: str) -> str | None:
        if len(self) >= _MOST_KNOWN:
            self.clear()
        found = self[word] = _term(word)
        return found


_known = _Known()


def split_terms(text: str) -> list[str]:
    """Return the terms of a text in their order, with repetitions.

    The words in `readMyFile2`, `READ_MY_FILE` and `read-my-file` are words by themselves.
    """
    if not text.isascii():  # accents are ignored: people omit them
        text = "".join([one for one in unicodedata.normalize("NFKD", text) if not unicodedata.combining(one)])
    known = _known
    return [term for word in _ONE_WORD.findall(text) if (term := known[word]) is not None]
