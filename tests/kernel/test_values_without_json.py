"""Values that JSON has no form for fit the declared schema once they are sent, or the call fails and says why."""

from __future__ import annotations

import enum
import json
import math
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, NamedTuple

import jsonschema_rs
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, FiniteFloat, PlainSerializer, computed_field, field_serializer

from ferrule import Tool, tool
from ferrule.executors.process.transfer import pack, unpack
from ferrule.values.frozen import thaw
from watched import plain, run


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Reading:
    at: datetime
    value: float
    price: Decimal | None = None


class Stats(BaseModel):
    mean: float = Field(alias="average")
    raw: Any = None
    levels: dict[Level, float] = {}

    @computed_field
    def double(self) -> float:
        return self.mean * 2


class Marked(BaseModel):
    number: Annotated[int, PlainSerializer(lambda value: f"#{value}")]
    text: str = ""

    @field_serializer("text")
    def length(self, text):  # type: ignore[no-untyped-def]  # which does not say what it writes
        return len(text)


class Pair(NamedTuple):
    first: float
    second: int


def stats(mean: float, raw: Any, levels: dict[Level, float]) -> Stats:
    return Stats(average=mean, raw=raw, levels=levels)


floats = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf])
decimals = st.decimals(allow_nan=True, allow_infinity=True)
readings = st.builds(Reading, st.datetimes(), floats, st.none() | decimals)
scalars = (
    floats
    | decimals
    | st.sampled_from(
        [numpy.float32(1.5), numpy.int64(5), numpy.bool_(True), numpy.float64("nan"), numpy.float32("inf")]
    )
)
KINDS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "float": (float, floats),
    "integer for a float": (float, st.integers(-(2**53), 2**53)),
    "decimal": (Decimal, decimals),
    "from below": (Annotated[float, Field(ge=0)], st.floats(0, allow_infinity=True) | st.just(math.nan)),
    "optional": (float | None, st.none() | floats),
    "named tuple": (Pair, st.builds(Pair, floats, st.integers(-9, 9))),
    "set": (frozenset[date], st.frozensets(st.dates(), max_size=3)),
    "by text": (dict[str, float], st.dictionaries(st.text(max_size=3), floats, max_size=3)),
    "by date": (dict[date, timedelta], st.dictionaries(st.dates(), st.timedeltas(), max_size=3)),
    "by number": (dict[float, float], st.dictionaries(st.floats(), floats, max_size=3)),
    "by integer enum": (dict[Level, int], st.dictionaries(st.sampled_from(Level), st.integers(-9, 9))),
    "dataclasses": (list[Reading], st.lists(readings, max_size=2)),
    "model": (Stats, st.builds(stats, floats, scalars, st.dictionaries(st.sampled_from(Level), floats))),
    "model with serializers": (Marked, st.builds(Marked, number=st.integers(-9, 9), text=st.text(max_size=3))),
    "union": (int | Reading | list[float], st.integers(-9, 9) | readings | st.lists(floats, max_size=2)),
    "anything": (Any, st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner))),
    "array": (list[float], st.lists(floats, max_size=3).map(numpy.array)),
    "number of numpy": (int, st.integers(-9, 9).map(numpy.int16)),
    "truth of numpy": (bool, st.booleans().map(numpy.bool_)),
    "complex": (complex, st.complex_numbers()),
}  # fmt: skip


def make_tool(value: Any, returns: Any, **options: Any) -> Tool:
    def give() -> Any:
        return value

    give.__annotations__["return"] = returns
    return tool(give, name="give", **options)


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
def test_an_output_of_its_type_fits_its_declared_schema(kind: str, data: st.DataObject) -> None:
    returns, values = KINDS[kind]
    made = make_tool(data.draw(values), returns)
    result, _ = run(made, "give")
    assert result.success, result.error
    if not isinstance(result.output, str):
        assert json.loads(plain(result), parse_constant=pytest.fail) == result.output
    if made.output_schema is not None:
        assert jsonschema_rs.validator_for(thaw(made.output_schema)).is_valid(result.output)


NUMBERS = [math.nan, -math.inf, Decimal("NaN"), numpy.float32("inf")]
EITHER = {"anyOf": [{"type": "number"}, {"type": "string"}]}


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(
    ("returns", "schema", "holding"),
    [
        (FiniteFloat, None, lambda number: number),
        (str, None, lambda number: number),
        (Annotated[float, Field(gt=0, lt=9)], None, lambda number: number),
        (dict[str, list[FiniteFloat]], None, lambda number: {"a": [1.5, number]}),
        (Any, {"type": "number"}, lambda number: number),
        (Any, {"properties": {"a": EITHER}}, lambda number: {"a": number, "b": None}),
    ],
)
def test_a_number_without_json_fails_the_call_if_null_does_not_fit(
    number: Any, returns: Any, schema: Any, holding: Any
) -> None:
    result, _ = run(make_tool(holding(number), returns, output_schema=schema), "give")
    assert (result.status, result.executed) == ("failed", True)
    assert "does not fit its output schema" in str(result.error)


def test_an_error_names_the_place_of_a_value_that_does_not_fit() -> None:
    result, _ = run(make_tool({"mean": math.nan, "max": "high"}, dict[str, float]), "give")
    assert str(result.error).endswith("its output schema: max must be a number")
    result, _ = run(make_tool({"mean": None}, dict[str, FiniteFloat]), "give")
    assert str(result.error).endswith("its output schema: mean must be a number")


def test_numpy_scalars_and_arrays_become_python_values() -> None:
    value = {
        "matrix": numpy.arange(4, dtype="uint8").reshape(2, 2),
        "text": numpy.str_("a"),
        "moment": numpy.datetime64("2026-01-01T00:00:00.000000001"),
        "no moment": numpy.datetime64("NaT"),
        "masked": numpy.ma.array([1.5, 2.5], mask=[True, False]),
        "alone": numpy.array(5),
        "wide": numpy.longdouble(1.5),
    }
    result, _ = run(make_tool(value, dict), "give")
    assert result.output == {
        "matrix": [[0, 1], [2, 3]],
        "text": "a",
        "moment": "2026-01-01T00:00:00.000000001",
        "no moment": None,
        "masked": [None, 2.5],
        "alone": 5,
        "wide": 1.5,
    }


@pytest.mark.parametrize("name", ["NAType", "NaTType"])
def test_missing_values_of_pandas_are_null(name: str) -> None:
    missing = type(name, (), {"__module__": "pandas.api.typing", "__str__": lambda self: "<NA>"})()
    result, _ = run(make_tool([missing], list), "give")
    assert result.output == [None]


@given(st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text() | floats, inner)))
def test_a_worker_process_writes_the_same_values(value: Any) -> None:
    for returns in (Any, FiniteFloat):
        here, _ = run(make_tool(value, returns), "give")
        there, _ = run(make_tool(unpack(pack(value, "json"), "json"), returns), "give")
        assert (here.status, here.error, here.output) == (there.status, there.error, there.output)
