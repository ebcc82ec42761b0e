"""Read the rows of tables and draw figures, by the methods of their own classes: no library is imported for it.

Arrow's PyCapsule protocol and the older `__dataframe__` mark a table, numpy's `__array__` marks an array. The rows come
from the table's own method, because the protocols hand out memory that only another library can read.
"""

from __future__ import annotations

import math
from functools import lru_cache
from io import BytesIO
from typing import Any

_PHOTO_MODES = ("CMYK", "YCbCr", "HSV", "RGBX")
"""Modes of Pillow that a PNG lacks, with the range of RGB. Other modes (`F`) would be cut off."""
_TABLE_PROTOCOLS = ("__arrow_c_stream__", "__arrow_c_array__", "__dataframe__")


@lru_cache
def is_table(kind: type) -> bool:
    """Return whether a class is a data frame, or a column of one."""
    return any(hasattr(kind, name) for name in _TABLE_PROTOCOLS)


def count_cells(table: Any) -> int:
    """Return the number of cells of a table; 0 if it does not say."""
    return math.prod(getattr(table, "shape", (0,)))


def read_rows(table: Any) -> list[Any] | None:
    """Return a table as a list of dicts, and a column as a list of values; None if its class has no method for it.

    The index of pandas comes first in each row, unless it counts the rows from 0.

    Raises:
        ValueError: Two columns have the same name.
    """
    for name in ("to_dicts", "to_pylist"):  # polars; pyarrow
        if hasattr(table, name):
            return list(getattr(table, name)())
    if not hasattr(table, "index"):
        return table.to_list() if hasattr(table, "to_list") else None  # a column of polars
    index = table.index
    numbers_rows = index.names == [None] and (getattr(index, "start", 1), getattr(index, "step", 0)) == (0, 1)
    if hasattr(table, "to_frame"):  # a column of pandas
        if numbers_rows:
            return list(table.to_list())
        table = table.to_frame()
    frame = table if numbers_rows else table.reset_index()
    if not frame.columns.is_unique:
        raise ValueError("a table with two columns of one name")
    return list(frame.to_dict("records"))


@lru_cache
def is_image(kind: type) -> bool:
    """Return whether a class is nothing but a picture. SymPy's formulas can draw themselves too, and are texts."""
    return hasattr(kind, "savefig") or (hasattr(kind, "_repr_png_") and hasattr(kind, "save"))


@lru_cache
def is_figure(kind: type) -> bool:
    """Return whether a class can draw itself as a PNG: a figure of matplotlib, an image of Pillow."""
    return hasattr(kind, "savefig") or hasattr(kind, "_repr_png_")


def draw_figure(figure: Any) -> bytes | None:
    """Return a PNG of the figure, or None if it does not draw itself. A photo in other colors is converted to RGB."""
    if hasattr(figure, "savefig"):
        file = BytesIO()
        figure.savefig(file, format="png")
        return file.getvalue()
    drawn = figure._repr_png_()
    if drawn is None and getattr(figure, "mode", None) in _PHOTO_MODES:
        drawn = figure.convert("RGB")._repr_png_()
    return drawn if isinstance(drawn, bytes) else None
