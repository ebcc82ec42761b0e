"""Floats that stand for integers, in parameters that come as a JSON Schema, wherever they stand."""

from __future__ import annotations

import pytest

from ferrule.arguments.argument_errors import ArgumentErrors
from ferrule.arguments.schema_parameters import SchemaParameters

INTEGER = {"type": "integer"}
TAKEN = SchemaParameters(
    {
        "type": "object",
        "properties": {
            "n": INTEGER,
            "items": {"type": "array", "items": INTEGER},
            "price": {"type": "number"},
            "text": {"type": "string"},
        },
    }
)


@pytest.mark.parametrize(
    "text",
    [
        '{"n": 3.0}',
        '{"n": 3.0, "text": "x"}',
        '{"items": [1, 2.0]}',
        '{"items": [2.0, 1]}',
        '{"n": 1e3}',
        '{"n": 1E20}',
        '{"n": 12.5e1}',
        '{"n": -4.0}',
        '{"items": [9007199254740993.0]}',
        '{"n": 5.00000000000000000000001}',
    ],
)
def test_a_float_that_stands_for_an_integer_is_not_taken_as_one(text: str) -> None:
    with pytest.raises(ArgumentErrors) as raised:
        TAKEN.validate(text)
    assert [error.json_type for error in raised.value.errors] == ["integer"]


@pytest.mark.parametrize("text", ['{"price": 3.0}', '{"price": 1e20, "n": 3}', '{"text": "3.0, 1e5", "price": 2.05}'])
def test_a_whole_float_is_taken_where_a_number_is_wanted(text: str) -> None:
    assert isinstance(TAKEN.validate(text)["price"], float)
