"""Reading and repairing text takes steps that grow with its length, whatever it says. `benchmarks/work.py` has the time
of the same texts, with what C does in one step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.values.json_text import Malformed, parse_json_object, repair_and_parse_json
from products import sampled
from steps import lines

SIZE = 1_200
PIECES = [
    *(",", "[", "]", "{", "}", '"', "\\", "\\\\", '\\"', ":", " ", "\n", "\t", "\x00", "```", "```json\n", "\n```"),
    *("[],", "{},", '"":', '"a":1,', '"a":"a",', '{"a":1}', '{"a":1}\n', '"\\u0061":1,', '"[",', '"]",', ", ]", ",}"),
    *("1", "1e9", "1e999,", "0.1234567890123456789,", "-", "12345678901234567,", "e+", "NaN", "-Infinity,", "null,"),
    *("\ufeff", "\ud800", "é", '"é":[', '{"a":', '[{"a":[', "None", "true", "\r\n"),
]
WHOLE: list[Callable[[str], str]] = [
    lambda text: text,
    lambda text: "{" + text,
    lambda text: '{"a": [' + text + "]}",
    lambda text: '{"a": "' + text + '"}',
    lambda text: "{" + text.removesuffix(",") + "}",
    lambda text: '[1.00000000000000000001, "\x01", ] "' + text,  # what each repair looks for, and then a string
    lambda text: "```json\n" + text + "\n```",
    lambda text: '{"a": 1' + text,
    lambda text: '{"a": 1}' + text,
    lambda text: '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"',
]


def read(text: str) -> None:
    """Read a text in each of the ways in which arguments are read."""
    for way in (repair_and_parse_json, parse_json_object):
        try:
            way(text)
        except Malformed:
            pass


def grows_with_its_length(make: Callable[[int], str]) -> bool:
    """Whether five times the text takes less than ten times the steps: a square would take 25 times as many."""
    small, large = make(SIZE), make(5 * SIZE)
    read(small)  # compiles the patterns, once for the process
    return lines(lambda: read(large)) < 10 * lines(lambda: read(small)) + 500


@pytest.mark.parametrize("piece", sampled(PIECES, one_in=3))
def test_one_piece_many_times(piece: str) -> None:
    for whole in WHOLE:
        assert grows_with_its_length(lambda size, whole=whole: whole(piece * (size // len(piece))))  # type: ignore[misc]


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=6), st.sampled_from(PIECES), st.sampled_from(WHOLE))
def test_several_pieces_many_times(pieces: list[str], last: str, whole: Callable[[str], str]) -> None:
    unit = "".join(pieces)
    start, end = unit * (SIZE // len(unit)), last * (SIZE // len(last))
    # Both texts have an odd number of quotes, or both an even one: else a tail in quotes is compared with a bare one.
    assert grows_with_its_length(lambda size: whole(start * (size // SIZE) + end * (size // SIZE)))


def test_as_many_keys_as_there_is_room_for() -> None:
    for key, value in (("a[", "1"), ("a\\u0061", '"]"'), ('\\"', "[[{}]]")):

        def keys(size: int, key: str = key, value: str = value) -> str:
            return "{" + ",".join(f'"{key}{number}":{value}' for number in range(size // 3)) + "}"

        assert grows_with_its_length(keys)
