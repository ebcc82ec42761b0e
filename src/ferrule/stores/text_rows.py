"""Rows of a text: the items of a JSON list, the records of CSV, or lines."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Literal, TypeAlias

from pydantic_core import from_json, to_json

from ferrule.values.count import format_count

Format: TypeAlias = Literal["CSV", "JSON", "text"]

_format_item = json.JSONEncoder(ensure_ascii=False).encode
"""As the model has read the result, so that a `grep` for a part of it finds the row."""
_SAMPLE_LINES = 20
_SAMPLE_CHARACTERS = 10_000
_SHOWN_CHARACTERS = 200
_SHOWN_NAME = 40


@dataclass(frozen=True, slots=True)
class TextRows:
    """The rows of a text.

    Attributes:
        format: The format of the text.
        rows: The rows as values; `format_row` makes a text of one.
        unit: The word for several rows.
        names: The columns of a table, or the keys of a JSON object.
        header: The line above each page of rows, or an empty text.
    """

    format: Format
    rows: Sequence[Any]
    unit: str
    format_row: Callable[[Any], str]
    names: Sequence[str] = ()
    header: str = ""

    def iterate(self, start: int = 0) -> Iterator[str]:
        """Yield the texts of the rows from `start` on."""
        return map(self.format_row, islice(self.rows, start, None))


def describe_text(text: str) -> str:
    """Return the size and the shape of a text in a line: `CSV, 41,203 rows, 910,114 characters, columns day, euros`."""
    found = read_text_rows(text)
    names = f", {'keys' if found.unit == 'lines' else 'columns'} {_join_names(found.names)}" if found.names else ""
    rows, size = format_count(len(found.rows), found.unit.removesuffix("s")), format_count(len(text), "character")
    return f"{found.format}, {rows}, {size}{names}"


def _join_names(names: Sequence[str]) -> str:
    shown: list[str] = []
    room = _SHOWN_CHARACTERS
    for name in names:
        name = " ".join(name.split())
        name = name if len(name) <= _SHOWN_NAME else f"{name[:_SHOWN_NAME]}…"
        room -= len(name) + 2
        if room < 0:
            break
        shown.append(name)
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def read_text_rows(text: str) -> TextRows:
    """Return the rows of a text. JSON that nests more than 200 deep, and CSV with uneven records, are lines."""
    if re.match(r"\s*[\[{]", text):
        with suppress(ValueError):
            return _read_json(from_json(text, allow_inf_nan=False))
    delimiter = _find_delimiter(text)
    if delimiter:
        with suppress(csv.Error):
            records = [record for record in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if record]
            if all(len(record) == len(records[0]) for record in records):
                format_row = partial(_format_record, delimiter=delimiter)
                return TextRows("CSV", records[1:], "rows", format_row, records[0], format_row(records[0]))
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return TextRows("text", lines, "lines", str)


def _read_json(value: Any) -> TextRows:
    if isinstance(value, dict):
        lines = to_json(value, indent=1).decode().split("\n")
        return TextRows("JSON", lines, "lines", str, [*value])
    if not value or not all(type(item) is dict for item in value):
        return TextRows("JSON", value, "items", _format_item)
    return TextRows("JSON", value, "rows", _format_item, [*dict.fromkeys(name for item in value for name in item)])


def _find_delimiter(text: str) -> str:
    """Return the delimiter of a text that begins like CSV, or an empty text."""
    lines = text[:_SAMPLE_CHARACTERS].splitlines(keepends=True)
    if len(text) > _SAMPLE_CHARACTERS:
        del lines[-1:]  # it may be cut
    for delimiter in ",;\t":
        with suppress(csv.Error):
            records = [one for one in islice(csv.reader(lines, delimiter=delimiter), _SAMPLE_LINES) if one]
            if len(records) > 1 and len({len(record) for record in records}) == 1 and len(records[0]) > 1:
                return delimiter
    return ""


def _format_record(record: list[str], delimiter: str) -> str:
    line = io.StringIO()
    csv.writer(line, delimiter=delimiter).writerow(record)
    return line.getvalue().removesuffix("\r\n")
