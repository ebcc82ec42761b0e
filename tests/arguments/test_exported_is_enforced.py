"""A tool accepts exactly the texts that its exported schema allows, formats included."""

from __future__ import annotations

import asyncio
import copy
import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, Optional

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, create_model
from typing_extensions import TypeAliasType

import probe
from ferrule import Tool, ToolCall, ToolResult, tool
from ferrule.arguments.parameters import Invalid, Parameters
from ferrule.runner import Runner


class Pair(NamedTuple):
    left: int
    right: str = "r"
    when: datetime | None = None


class Lax(BaseModel):
    model_config = ConfigDict(strict=False)
    number: Annotated[int, Field(strict=False, ge=0)]
    when: datetime
    some: set[int] = set()


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog", "hound"] = "dog"
    name: str = "Rex"


class Pack(BaseModel):
    kind: Literal["pack"] = "pack"
    of: list[Annotated[Dog | Pack, Field(discriminator="kind")]] = []


class Black(BaseModel):
    kind: Literal["cat"] = "cat"
    colour: Literal["black"] = "black"


class White(BaseModel):
    kind: Literal["cat"] = "cat"
    colour: Literal["white"] = "white"
    from_: int = Field(0, alias="from")


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]
Coloured = Annotated[Black | White, Field(discriminator="colour")]

STAMPS = ["1700000000", "0", "-1", "1700000000.5", "0000001700000000", "1e9", 1700000000, 1.5]

# The annotation, what is taken, and what is refused.
KINDS: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "datetime": (
        datetime,
        ["2026-03-01T12:00:00Z", "2026-03-01T12:00:00.123456+01:30", "2026-03-01T12:00:00"],
        [*STAMPS, "2026-03-01", "x", "", "2026-03-01T24:00:00Z", True],
    ),
    "datetime after another": (
        Annotated[datetime, Field(gt=datetime(2020, 1, 1, tzinfo=UTC), description="When")],
        ["2026-03-01T12:00:00Z"],
        [*STAMPS, "2019-03-01T12:00:00Z"],
    ),
    "date": (
        date,
        ["2026-03-01"],
        [*STAMPS, "86400", "0000000000", "0000086400", 86400, "2026-03-01T00:00:00", "20260301", "2026-3-1", "x"],
    ),
    "time": (time, ["12:30:00", "12:30:00Z"], [*STAMPS, "3600", 3600, "12", "24:00:00"]),
    "timedelta": (timedelta, ["P1D", "PT36H", "-P1D"], [*STAMPS, "5", "P", 3600, True]),
    "decimal": (Decimal, ["1.10", "1e5", 1, 1.5, -7, 10**30, 1e22], ["0x1", "", "NaN", "x", True, None, [], {}]),
    "set": (set[int], [[], [1], [1, 2]], [["a"], {"a": 1}, [True]]),
    "named tuple": (Pair, [[1], [1, "a"], [1, "a", "2026-03-01T12:00:00Z"]], [["1"], [1, "a", "0"], [True]]),
    "keys of integers": (dict[int, int], [{"1": 1, "-12": 2}, {}], [{"x": 1}, {"1": True}]),
    "union": (datetime | int, ["2026-03-01T12:00:00Z", 5], ["5", "1700000000", 1.5]),
    "a model that would be lax": (
        Lax,
        [{"number": 1, "when": "2026-03-01T12:00:00Z", "some": [1]}],
        [
            {"number": "1", "when": "2026-03-01T12:00:00Z"},
            {"number": 1, "when": "0"},
            {"number": 1, "when": "2026-03-01T12:00:00Z", "some": ["1"]},
            {"number": 1, "when": "2026-03-01T12:00:00Z", "other": 1},
        ],
    ),
}
# Of these the schema says all: what fits is valid, and what does not is not.
SAID: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "keys with a pattern": (dict[Annotated[str, Field(pattern="^a")], int], [{"ab": 1}], [{"b": 1}, {"ab": "x"}]),
    "tagged union": (
        Pet,
        [{"kind": "cat"}, {"kind": "hound"}, {"kind": "cat", "lives": 3}],
        [{}, {"lives": 3}, {"kind": None}, {"kind": "cow"}, {"kind": "cat", "name": "x"}],
    ),
    "recursive tagged union": (
        Pack,
        [{"kind": "pack", "of": [{"kind": "dog"}, {"kind": "pack", "of": [{"kind": "pack"}]}]}],
        [{"kind": "pack", "of": [wrong]} for wrong in ({}, {"name": "x"}, {"kind": "pack", "of": [{}]})],
    ),
    "tagged union in a tagged union and alone": (
        tuple[Annotated[Coloured | Dog, Field(discriminator="kind")], Coloured],
        [[{"kind": "cat", "colour": "black"}, {"kind": "cat", "colour": "black"}]],
        [[{"kind": "cat", "colour": "black"}, {"kind": "cat"}], [{"colour": "black"}, {"colour": "black"}]],
    ),
}
PLACES: dict[str, tuple[Any, Any]] = {
    "alone": (lambda kind: kind, lambda value: value),
    "tuple": (lambda kind: tuple[kind, int], lambda value: [value, 1]),  # type: ignore[valid-type]
    "optional": (lambda kind: Optional[kind], lambda value: value),  # noqa: UP045
    "member of a union": (lambda kind: kind | Literal["none"], lambda value: value),
    "model": (lambda kind: create_model("Made", field=(kind, ...)), lambda value: {"field": value}),
}


def parameters_of(annotation: Any) -> Parameters:
    async def take(value):  # type: ignore[no-untyped-def]
        """Take."""
        return value

    take.__annotations__ = {"value": annotation}
    return probe.parameters(tool(take))


def taken(parameters: Parameters, value: Any) -> bool:
    text = json.dumps({"value": value})
    found = []
    for read in (parameters.validate, parameters.validate_strictly):
        assert read is not None
        try:
            read(text)
            found.append(True)
        except Exception:
            found.append(False)
    assert found[0] == found[1], "the quick way and the other differ"
    return found[0]


def valid(parameters: Parameters, value: Any) -> bool:
    schema = copy.deepcopy(parameters.exported)
    jsonschema_rs.meta.validate(schema)
    return bool(jsonschema_rs.validator_for(schema, validate_formats=True).is_valid({"value": value}))


def run(one: Any, arguments: Any = None, **options: Any) -> ToolResult:
    made = one if isinstance(one, Tool) else tool(one)
    return asyncio.run(Runner([made], **options).run(ToolCall("c1", made.name, arguments)))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", [*KINDS, *SAID])
def test_a_type_is_enforced_wherever_it_stands(kind: str, place: str) -> None:
    annotation, fits, refused = (KINDS | SAID)[kind]
    around, put = PLACES[place]
    parameters = parameters_of(around(annotation))
    assert [value for value in fits if not taken(parameters, put(value))] == []
    wrong = [value for value in refused if value is not None or place != "optional"]
    assert [value for value in wrong if taken(parameters, put(value))] == []
    for value in refused if kind in KINDS and place == "alone" else ():  # and repairs guess nothing
        if not isinstance(value, dict | list) and kind != "union":  # "5" is lossless for an int
            with pytest.raises(Invalid):
                parameters.validate_with_repairs("take", json.dumps({"value": value}))
    if kind in SAID:
        assert [value for value in fits if not valid(parameters, put(value))] == []
        assert [value for value in wrong if valid(parameters, put(value))] == []


def test_an_authors_own_schema_is_kept() -> None:
    parameters = parameters_of(Annotated[datetime, WithJsonSchema({"type": "string", "pattern": "^[0-9]+$"})])
    assert parameters.exported["properties"]["value"] == {"type": "string", "pattern": "^[0-9]+$"}


@tool
async def price(value: Decimal, other: float = 0.0) -> str:
    """Price."""
    return str(value)


@given(st.floats(1e-300, 1e300) | st.floats(-1e300, -1e-300) | st.just(0.0), st.integers())
def test_a_number_that_fits_a_double_keeps_its_digits(number: float, whole: int) -> None:
    for text in (f"{number:.15g}", str(whole)):  # every double keeps 15 digits (DBL_DIG of IEEE 754)
        assert Decimal(run(price, f'{{"value": {text}}}').output) == Decimal(text)


TEXTS = st.sampled_from(
    ["x", "a,b", '"id": 1', "a: b", "\\", ",", '","id":"', "\u00e4", "\n", "id", "note", "y" * 1200]
)


def raw(schema: dict[str, Any], **more: Any) -> Tool:
    async def execute(payload: dict[str, Any]) -> Any:
        return payload

    return Tool("raw", execute, input_schema=schema, description="Take.", **more)


INTEGER = {"type": "integer"}
COMPOSED: dict[str, dict[str, Any]] = {
    "allOf": {"properties": {"a": INTEGER}, "allOf": [{"properties": {"b": INTEGER}}]},
    "anyOf": {"properties": {"a": INTEGER}, "anyOf": [{"properties": {"b": INTEGER}}, {"required": ["z"]}]},
    "$ref": {"properties": {"a": INTEGER}, "$ref": "#/$defs/more", "$defs": {"more": {"properties": {"b": INTEGER}}}},
    "own word": {"allOf": [{"properties": {"a": INTEGER, "b": INTEGER}}], "unevaluatedProperties": False},
    "plain": {"properties": {"a": INTEGER, "b": INTEGER}},
}


@pytest.mark.parametrize("kind", COMPOSED)
def test_unknown_keys_of_a_composed_schema_are_refused(kind: str) -> None:
    one = raw(COMPOSED[kind])
    assert run(one, '{"a": 1, "b": 2}').output == {"a": 1, "b": 2}
    assert run(one, '{"a": 1, "b": 2, "c": 3}').status == "invalid"


def made_by(annotation: Any, make: Any, ran: list[Any]) -> Tool:
    async def function(count=0, value=Field(default_factory=make)):  # type: ignore[no-untyped-def]  # noqa: B008
        ran.append(value)

    function.__annotations__ = {"count": int, "value": annotation}
    return tool(function)


MADE: dict[str, tuple[Any, Any, Any]] = {
    "bytes": (bytes, b"plain", "plain"),
    "moment": (datetime, datetime(2026, 3, 1, microsecond=5, tzinfo=UTC), "2026-03-01T00:00:00.000005Z"),
    "model": (Cat, Cat(lives=3), {"kind": "cat", "lives": 3}),
    "nothing": (Cat | None, None, None),
}


@pytest.mark.parametrize("kind", MADE)
def test_a_made_default_is_judged_as_json(kind: str) -> None:
    annotation, value, shown = MADE[kind]
    ran: list[Any] = []
    seen: list[Any] = []
    one = made_by(annotation, lambda: value, ran)
    result = run(one, '{"count": "1"}', guards=[lambda call, context: seen.append(dict(call.arguments))])
    assert (result.status, ran) == ("ok", [value]), result.error
    assert seen == [{"count": 1, "value": shown}] and result.repairs


def test_a_made_default_survives_a_guards_change() -> None:
    numbers = iter(range(100))
    ran: list[Any] = []
    one = made_by(int, lambda: next(numbers), ran)
    seen: list[Any] = []
    guards = [
        lambda call, context: {**call.arguments, "count": 2} if not call.arguments["count"] else None,
        lambda call, context: seen.append(call.arguments["value"]),
    ]
    run(one, "{}", guards=guards)
    assert seen == ran == [0]
    run(one, "{}", guards=[lambda call, context: {**call.arguments, "value": 50}])
    run(one, '{"value": 60}')
    assert ran == [0, 50, 60]


# Keys that came twice beside what may be null

Nested = TypeAliasType("Nested", "dict[str, Nested] | None")


class Tree(BaseModel):
    name: str = ""
    below: list[Tree] = []


@tool
async def many(s: str, a: Nested, b: Tree | None, d: list[int]) -> dict[str, Any]:
    """Take."""
    return {"a": a, "d": d, "s": s}


NESTED = st.recursive(st.none(), lambda inner: st.dictionaries(TEXTS, inner, max_size=2), max_leaves=4)
TREE = st.recursive(
    st.fixed_dictionaries({}, optional={"name": TEXTS}),
    lambda inner: st.fixed_dictionaries({"below": st.lists(inner, max_size=2)}, optional={"name": TEXTS}),
    max_leaves=3,
)
MANY: dict[str, st.SearchStrategy[Any]] = {
    "a": NESTED,
    "b": st.none() | TREE,
    "d": st.lists(st.integers(0, 9), max_size=2),
    "s": TEXTS,
}


@given(st.data())
def test_the_last_of_two_keys_counts_for_guards_and_handler(data: st.DataObject) -> None:
    again = data.draw(st.lists(st.sampled_from(list(MANY)), max_size=3))
    pairs = [(name, data.draw(MANY[name])) for name in data.draw(st.permutations([*MANY, *again]))]
    keys = [json.dumps(name) for name, _ in pairs]
    space, ascii_only = data.draw(st.sampled_from(["", " ", "\r\n\t"])), data.draw(st.booleans())
    values = [json.dumps(value, ensure_ascii=ascii_only) for _, value in pairs]
    text = space + "{" + ",".join(f"{k}{space}:{space}{v}" for k, v in zip(keys, values, strict=True)) + "}"
    seen: list[Any] = []
    result = run(many, text, guards=[lambda call, context: seen.append(call.arguments.to_dict())])
    assert result.success, text
    expected = {name: dict(pairs)[name] for name in result.output}
    assert result.output == expected and {name: seen[0][name] for name in expected} == expected
