"""Rows of a text: of CSV, of JSON, or lines."""

from __future__ import annotations

import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.stores.text_rows import describe_text, read_text_rows

fields = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=5)


@given(st.lists(st.tuples(fields, fields, st.integers().map(str)), min_size=2, max_size=30), st.sampled_from(",;\t"))
def test_rows_of_csv_are_its_records(records: list[tuple[str, ...]], delimiter: str) -> None:
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=delimiter, quoting=csv.QUOTE_ALL).writerows(records)
    found = read_text_rows(file.getvalue())
    assert (found.format, list(found.names)) == ("CSV", list(records[0]))
    shown = io.StringIO("".join(f"{row}\r\n" for row in (found.header, *found.iterate())), newline="")
    assert [tuple(record) for record in csv.reader(shown, delimiter=delimiter)] == records


@given(st.text())
def test_rows_of_any_text_can_be_read(text: str) -> None:
    found = read_text_rows(text)
    rows = [*found.iterate()]
    assert len(rows) == len(found.rows) and [*found.iterate(1)] == rows[1:]
    if found.format == "text":
        assert "\n".join(rows) in (text, text.removesuffix("\n"))


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("a,b\n" + "1,2\n" * 50_000, "CSV, 50,000 rows, 200,004 characters, columns a, b"),
        ("a;b\n1;2\n", "CSV, 1 row, 8 characters, columns a, b"),
        ("a,b\n1,2\n3\n", "text, 3 lines, 10 characters"),
        ("a,b\n" * 30 + "c", "text, 31 lines, 121 characters"),
        ('[{"a": 1}, {"b": 2}]', "JSON, 2 rows, 20 characters, columns a, b"),
        ("[1, 2]", "JSON, 2 items, 6 characters"),
        ('{"items": [1], "next": null}', "JSON, 6 lines, 28 characters, keys items, next"),
        ("[1, NaN]", "text, 1 line, 8 characters"),
        ("[" * 300 + "]" * 300, "text, 1 line, 600 characters"),
    ],
)
def test_the_shape_is_told_in_words(text: str, shape: str) -> None:
    assert describe_text(text) == shape


def test_long_names_of_columns_are_cut_and_stay_on_one_line() -> None:
    names = ["first\nline", "x" * 500, *(f"column {number}" for number in range(9_000))]
    shape = describe_text(json.dumps([dict.fromkeys(names, 0)]))
    assert "columns first line, xxx" in shape and "\n" not in shape
    assert len(shape) < 320 and shape.endswith(" more")
