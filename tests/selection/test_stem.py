"""Words lose the endings that Snowball's English stemmer takes off, and stay as they are where it has no rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.selection._stem import stem

# From the vocabulary that is published with the algorithm, and from the rules' own examples:
# https://snowballstem.org/algorithms/english/stemmer.html
PAIRS = """
caresses caress  flies fli  dies die  ties tie  cries cri  gaps gap  gas gas  kiwis kiwi  this this
feed feed  agreed agre  meeting meet  hopping hop  hoping hope  sized size  tanned tan  adding add  ebbed ebb
dying die  lying lie  cry cri  by by  say say  happiness happi  hopefulness hope  goodness good
itemization item  sensational sensat  traditional tradit  relational relat  reference refer  colonizer colon
consignment consign  consistency consist  knackeries knackeri  knightly knight  fluently fluentli
electricity electr  electrical electr  formalize formal  activate activ  adjustable adjust  effective effect
apologies apolog  controllers control  roll roll  controll control  cease ceas  rate rate  probate probat
generate generat  generally general  communism communism  university universiti  emergency emergenc
skis ski  skies sky  sky sky  news news  early earli  only onli  gently gentl
inning inning  outings outing  proceed proceed  exceeding exceed  succeed succeed
boyish boyish  youth youth  translations translat  currencies currenc  cancelled cancel  cancellation cancel
"""


@pytest.mark.parametrize("pair", [pair for line in PAIRS.strip().splitlines() for pair in line.split("  ")])
def test_stems_are_those_of_the_published_vocabulary(pair: str) -> None:
    word, stemmed = pair.split()
    assert stem(word) == stemmed


@pytest.mark.parametrize("word", ["", "is", "größen", "it's"])
def test_other_words_stay_unchanged(word: str) -> None:
    assert stem(word) == word


@given(st.text("aeiouybdlgmnprstz", max_size=12))
def test_a_stem_is_neither_empty_nor_longer_than_its_word(word: str) -> None:
    stemmed = stem(word)
    assert len(stemmed) <= len(word) and bool(stemmed) == bool(word)
