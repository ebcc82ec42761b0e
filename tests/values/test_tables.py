"""Data frames are rows, arrays are lists, and figures are images."""

from __future__ import annotations

import math
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy
import pandas
import polars
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from PIL import Image

from ferrule import Media, Runner, Text, ToolError, ToolResult, tool
from ferrule.executors.process.transfer import pack, unpack
from ferrule.values.content import MAX_VALUES

PNG = b"\x89PNG\r\n\x1a\n"


def give(value: Any, **options: Any) -> ToolResult:
    @tool(read_only=True, **options)
    def handler() -> Any:
        """Give it."""
        return value

    return Runner([handler]).run_sync("handler")


cells = {
    "number": st.none() | st.integers(-(2**53), 2**53),
    "share": st.none() | st.floats(allow_nan=False, allow_infinity=False),
    "text": st.none() | st.text(st.characters(exclude_categories=["Cs"])),
    "day": st.none() | st.dates(date(1700, 1, 1), date(2200, 1, 1)),
}
SCHEMA = {"number": polars.Int64, "share": polars.Float64, "text": polars.String, "day": polars.Date}


@given(st.lists(st.fixed_dictionaries(cells), max_size=4))
def test_every_data_frame_is_its_rows(rows: list[dict[str, Any]]) -> None:
    frame = polars.DataFrame(rows, schema=SCHEMA)
    expected = [{**row, "day": row["day"] and row["day"].isoformat()} for row in rows]
    assert give(frame).output == expected
    assert give({"found": [frame]}).output == {"found": [expected]}
    assert give(frame["number"]).output == [row["number"] for row in rows]
    table = frame.to_arrow()
    assert give(table).output == expected
    for batch in table.to_batches():
        assert give(batch).output == expected
    pandas_frame = pandas.DataFrame(rows, columns=list(SCHEMA), dtype=object)
    assert give(pandas_frame).output == expected


def test_missing_values_of_a_frame_are_null_and_its_types_are_those_of_json() -> None:
    frame = pandas.DataFrame(
        {
            "share": [1.5, math.nan],
            "at": pandas.to_datetime(["2026-01-01 10:00", None]),
            "count": pandas.array([1, None], dtype="Int64"),
            "kind": pandas.Categorical(["a", None]),
            "price": [Decimal("1.10"), None],
        }
    )
    assert give(frame).output == [
        {"share": 1.5, "at": "2026-01-01T10:00:00", "count": 1, "kind": "a", "price": "1.10"},
        {"share": None, "at": None, "count": None, "kind": None, "price": None},
    ]
    assert give(pandas.Series([datetime(2026, 1, 1), None])).output == ["2026-01-01T00:00:00", None]
    assert give(pyarrow.array([1, None])).output == [1, None]


def test_an_index_of_pandas_with_a_meaning_is_a_column() -> None:
    frame = pandas.DataFrame({"city": ["Bern", "Bern", "Thun"], "year": [1, 2, 1], "euros": [1, 2, 3]})
    assert give(frame.groupby("city")["euros"].sum()).output == [
        {"city": "Bern", "euros": 3},
        {"city": "Thun", "euros": 3},
    ]
    assert give(frame[frame.euros > 2]).output == [{"index": 2, "city": "Thun", "year": 1, "euros": 3}]
    assert give(pandas.Series({"a": 1})).output == [{"index": "a", "0": 1}]


def test_a_frame_with_two_columns_of_one_name_fails() -> None:
    result = give([pandas.DataFrame([[1, 2]], columns=["a", "a"])])
    assert result.status == "failed" and "two columns of one name" in str(result.error)


def test_a_frame_beyond_the_limit_fails_before_it_is_read() -> None:
    class Large(polars.DataFrame):
        def to_dicts(self) -> Any:
            raise AssertionError("it was read")

    frame = Large({"n": polars.zeros(MAX_VALUES + 1, eager=True)})
    for value in (frame, {"rows": frame}, pandas.DataFrame(numpy.zeros((1_001, 1_000)))):
        result = give(value)
        assert (result.status, result.executed) == ("failed", True)
        assert "more than 1,000,000 values" in str(result.error)


def test_other_arrays_become_lists() -> None:
    class Tensor:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return numpy.array([[1, 2], [3, 4]])

    assert give({"tensor": Tensor()}).output == {"tensor": [[1, 2], [3, 4]]}


def draw() -> Figure:
    figure = Figure()
    figure.subplots().plot([1, 2])
    return figure


@pytest.mark.parametrize("value", [draw(), Image.new("RGB", (2, 2)), Image.new("CMYK", (2, 2)), ToolResult(draw())])
def test_a_figure_is_an_image(value: Any) -> None:
    for returned in (value, unpack(pack(value, "json"), "json")):  # as a worker gives it
        result = give(returned)
        [picture] = result.content
        assert isinstance(picture, Media) and picture == result.output
        assert (picture.kind, picture.mime_type, (picture.data or b"")[:8]) == ("image", "image/png", PNG)


def test_figures_stand_among_texts() -> None:
    value = [Text("Sales:"), draw(), Image.new("L", (1, 1))]
    for returned in (value, unpack(pack(value, "json"), "json")):
        assert [type(block) for block in give(returned).content] == [Text, Media, Media]


@pytest.mark.parametrize(
    "value",
    [
        *(Image.new("F", (2, 2)), Image.new("RGB", (0, 0))),
        *([Text("Sales:"), Image.new("F", (2, 2))], {"chart": draw()}),
        pandas.DataFrame({"photo": [Image.new("RGB", (2, 2))]}),
    ],
)
def test_an_image_never_becomes_its_repr(value: Any) -> None:
    result = give(value)
    assert (result.status, result.output) == ("failed", None) and "an image (" in str(result.error)
    with pytest.raises(ToolError, match=r"an image \("):
        pack(value, "json")


def test_a_table_without_rows_never_becomes_its_repr() -> None:
    class Relation:
        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            raise NotImplementedError

    result = give({"found": Relation()})
    assert result.status == "failed" and "a table (Relation)" in str(result.error)
