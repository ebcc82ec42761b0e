"""Reading and repairing text takes time that grows with its length, whatever it says."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrule.values.json_text import Malformed, check_digits, loads_repaired, to_object

SIZE = 10_000
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


def seconds(text: str) -> float:
    """The processor time of reading a text in each of the ways in which arguments are read."""
    gc.disable()  # a collection reads all that the program holds
    begin = time.process_time()
    for read in (loads_repaired, to_object, lambda text: to_object(text, exact=True), check_digits):
        try:
            read(text)
        except Malformed:
            pass
    taken = time.process_time() - begin
    gc.enable()
    return taken


def grows_with_its_length(make: Callable[[int], str]) -> bool:
    """Whether four times the text takes less than eight times as long, beside what a busy machine adds."""
    return any(seconds(make(4 * SIZE)) < 8 * seconds(make(SIZE)) + 0.1 for _ in range(3))


@pytest.mark.parametrize("whole", WHOLE, ids=range(len(WHOLE)))
@pytest.mark.parametrize("piece", PIECES)
def test_one_piece_many_times(piece: str, whole: Callable[[str], str]) -> None:
    assert grows_with_its_length(lambda size: whole(piece * (size // len(piece))))


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=6), st.sampled_from(PIECES), st.sampled_from(WHOLE))
def test_several_pieces_many_times(pieces: list[str], last: str, whole: Callable[[str], str]) -> None:
    unit = "".join(pieces)
    assert grows_with_its_length(lambda size: whole(unit * (size // len(unit)) + last * (size // len(last))))


def test_as_many_keys_as_there_is_room_for() -> None:
    for key in ("{}", "a[{}", "a\\u0061{}", '\\"{}'):
        for value in ("1", '"]"', "[[{}]]", '"' + "x" * 2000 + '"'):

            def keys(size: int, key: str = key, value: str = value) -> str:
                pairs = (f'"{key.replace("{}", str(number))}":{value}' for number in range(size // (len(value) + 8)))
                return "{" + ",".join(pairs) + "}"

            assert grows_with_its_length(keys)


def test_one_number_as_long_as_there_is_room_for() -> None:
    for number in ("9", "0.9", "0.", "1e", "1e-", "-0.0"):
        assert grows_with_its_length(lambda size, number=number: '{"a":' + number + "9" * size + "}")  # type: ignore[misc]
