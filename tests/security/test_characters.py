"""Invisible characters are removed from a text, and visible ones stay."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.security.characters import remove_hidden
from ferrule.security.similar_names import lookalike_key

SHOWN_FORMATS = set(range(0x600, 0x606)) | {0x6DD, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
"""Of the category Cf, those that are signs to be seen: Unicode's Prepended_Concatenation_Mark."""


def test_invisible_characters_are_removed_from_a_word() -> None:
    kinds = {"Cc", "Cf", "Cs"}
    unseen = {code for code in range(0x110000) if unicodedata.category(chr(code)) in kinds} - SHOWN_FORMATS
    breaks = "\x0b\x0c\x85"
    unseen -= {*map(ord, f"\t\n\r{breaks}"), *range(0xD800, 0xE000)}
    assert [hex(code) for code in unseen if remove_hidden(f"a{chr(code)}\u4e2d") != ("a\u4e2d", 1)] == []
    assert [remove_hidden(f"a{one}b") for one in (*breaks, "\r", "\r\n", "\u2028", "\u2029")] == 7 * [("a\nb", 0)]
    assert remove_hidden("a\ud800b") == ("a\ufffdb", 0)


@pytest.mark.parametrize(
    "text",
    [
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",  # Persian, with a joiner that it is spelled with
        "\u0915\u094d\u200d\u0937",  # Devanagari
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",  # a family
        "\u2764\ufe0f\u200d\U0001f525",  # a heart on fire
        "\U0001f44d\U0001f3fd e\u0301 \u00e9 \u3000\u2003\u06dd tea\tfor 2\n",
    ],
)
def test_visible_characters_stay(text: str) -> None:
    assert remove_hidden(text) == (text, 0)


@pytest.mark.parametrize(
    "text",
    ["a\u200db", "a\u200c", "\u200d\u0645", "\u0645\u200c", "\u0645\u200c\u200d\u0645", "\u0645\u200c\u200b\u0645"],
)
def test_a_joiner_that_joins_nothing_is_removed(text: str) -> None:
    assert remove_hidden(text)[0] == text.translate(dict.fromkeys((0x200B, 0x200C, 0x200D)))


ODD = st.sampled_from("ab\u0645\u2764\U0001f525\u200c\u200d\u200b\ufe0f\ufe0e\u20e31\u3164\u00ad\x1b\U000e0041\n")


@given(st.text(ODD, max_size=12))
def test_removing_hidden_characters_twice_changes_nothing_more(text: str) -> None:
    assert remove_hidden(remove_hidden(text)[0]) == (remove_hidden(text)[0], 0)


INVISIBLE_ANYWHERE = [
    code
    for code in range(0x110000)
    if unicodedata.category(chr(code)) in {"Cc", "Cf"} and code not in SHOWN_FORMATS and not chr(code).isspace()
] + [0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x2800, 0x3164, 0xFE00, 0xFE0F, 0xFFA0, 0xE0100]


def test_a_name_with_an_invisible_character_is_the_name_without_it() -> None:
    seen = [lookalike_key(f"An{chr(code)}n\u00e9{chr(code)}") for code in INVISIBLE_ANYWHERE]
    assert set(seen) == {"ann\u00e9"}
    assert {lookalike_key(f"e{chr(code)}\u0301") for code in INVISIBLE_ANYWHERE} == {"\u00e9"}


@given(st.text())
def test_a_look_alike_key_ignores_spaces_and_fillers(name: str) -> None:
    assert lookalike_key(f"  {name}\u3164") == lookalike_key(name)
