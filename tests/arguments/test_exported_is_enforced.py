"""Text by text: what a tool takes is what its exported schema allows, with formats, and the other way round."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from ipaddress import IPv4Address
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple, Optional
from uuid import UUID

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    FutureDatetime,
    NaiveDatetime,
    PastDate,
    SecretBytes,
    SecretStr,
    ValidationInfo,
    WithJsonSchema,
    create_model,
    model_validator,
)
from typing_extensions import TypeAliasType, TypedDict

from ferrule import Tool, ToolCall, ToolHandler, ToolResult, tool
from ferrule.arguments.argument_errors import Mistakes
from ferrule.arguments.parameters import Invalid, Parameters
from ferrule.runner import Runner
from ferrule.values.json_text import loads


class Pair(NamedTuple):
    left: int
    right: str = "r"
    when: datetime | None = None


class Small(IntEnum):
    ONE = 1


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

IDENTITY = "12345678-1234-5678-1234-567812345678"
STAMPS = [
    "1700000000",
    "0",
    "170",
    "-1",
    "1700000000000",
    "1700000000.5",
    "0000001700000000",
    "1e9",
    1700000000,
    0,
    1.5,
]

# The annotation, what fits, and what does not: of the one the schema has to say yes, of the other no.
KINDS: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "datetime": (
        datetime,
        [
            "2026-03-01T12:00:00Z",
            "2026-03-01t12:00:00z",
            "2026-03-01T12:00:00.123456789+01:30",
            "2026-03-01T12:00:00-00:00",
            "2026-03-01T12:00:00",
            "2026-03-01 12:00",
        ],
        [
            *STAMPS,
            "2026-03-01",
            "2026-03-01_12:00:00Z",
            "2026-03-01T12:00:00+0100",
            "2026-03-01T12:00:00,5Z",
            "x",
            "",
            "2026-03-01T24:00:00Z",
            "2026-03-01T00:00:60Z",
            "2026-03-01T00:60",
            "2026-13-01T00:00",
            "2026-03-32 00:00",
            "2026-00-01T00:00",
            "2026-03-01T00:00:00+24:00",
            "2026-03-01T00:00:00+01:60",
        ],
    ),
    "aware": (
        AwareDatetime,
        ["2026-03-01T12:00:00Z", "2026-03-01T12:00:00.5+01:00"],
        [*STAMPS, "2026-03-01T12:00:00", "2026-03-01T12:00Z", "2026-03-01 12:00:00", "2026-03-01T24:00:00Z"],
    ),
    "naive": (
        NaiveDatetime,
        ["2026-03-01T12:00:00", "2026-03-01 12:00:00.5"],
        [*STAMPS, "2026-03-01T12:00:00Z", "2026-03-01T12:00:00+01:00", "2026-03-01T24:00:00"],
    ),
    "datetime after another": (
        Annotated[datetime, Field(gt=datetime(2020, 1, 1, tzinfo=UTC), description="When")],
        ["2026-03-01T12:00:00Z"],
        STAMPS,
    ),
    "date": (date, ["2026-03-01"], [*STAMPS, "19000", 19000, "2026-03-01T00:00:00", "20260301", "2026-3-1"]),
    "time": (
        time,
        ["12:30:00", "12:30", "12:30:00.5", "12:30:00Z", "12:30:00+01:00"],
        [*STAMPS, "3600", 3600, "12:30Z", "T12:30:00", "12", "24:00:00", "12:60", "12:30:60", "12:30:00+24:00"],
    ),
    "timedelta": (
        timedelta,
        ["P1D", "PT36H", "P1DT2H3M4S", "PT0.5S", "-P1D", "P1Y35DT1S", "PT1H1S", "P2W", "PT0S"],
        [*STAMPS, "12:30:00", "12:30", "1 day, 02:00:00", "1d", "+P1D", "P1DT", "P1.5D", "PT1,5S", "P", "PT", 3600],
    ),
    "decimal": (
        Decimal,
        ["1.10", "1e5", "1E-5", "+1", "-.5", "1.", "00012", 1, 1.5, -7, 10**30, 1e22],
        ["1_000", " 1 ", "\u0661", "0x1", "-.", "", "NaN", "Infinity", "x", True, None, [], {}],
    ),
    "uuid": (
        UUID,
        [IDENTITY, IDENTITY[:-1] + "A"],
        [IDENTITY.replace("-", ""), "{" + IDENTITY + "}", "urn:uuid:" + IDENTITY, IDENTITY + " ", 5],
    ),
    "complex": (complex, ["1+2j", "1"], [1, 1.5, True]),
    "set": (set[int], [[], [1], [1, 2]], [[1, 1], [1, 2, 1], ["a"], {"a": 1}]),
    "frozenset": (frozenset[str], [["a", "b"]], [["a", "a"], [1]]),
    "set with bounds": (Annotated[set[int], Field(min_length=2, max_length=3)], [[1, 2]], [[1, 1], [1], [1, 1, 1, 1]]),
    "set of dates": (set[date], [["2026-03-01"]], [["2026-03-01", "2026-03-01"], [0]]),
    "named tuple": (
        Pair,
        [[1], [1, "a"], [1, "a", "2026-03-01T12:00:00Z"], [1, "a", None]],
        [{"left": 1}, {"left": 1, "right": "a"}, [], ["1"], [1, "a", "0"], [1, "a", None, 1], {}],
    ),
    "keys of integers": (
        dict[int, int],
        [{"1": 1, "-12": 2, "0": 3}, {}],
        [{"01": 1}, {"1_0": 1}, {" 1": 1}, {"+1": 1}],
    ),
    "keys of dates": (
        dict[datetime, int],
        [{"2026-03-01T12:00:00Z": 1}, {"2026-03-01T12:00:00": 1}],
        [{"0": 1}, {"1700000000": 1}],
    ),
    "keys of naive dates": (dict[NaiveDatetime, int], [{"2026-03-01T12:00:00": 1}], [{"2026-03-01T12:00:00Z": 1}]),
    "keys of times": (dict[time, int], [{"12:30": 1}], [{"3600": 1}]),
    "keys of durations": (dict[timedelta, int], [{"PT0.5S": 1}], [{"12:30:00": 1}, {"5": 1}]),
    "keys of decimals": (dict[Decimal, int], [{"1.5": 1}], [{"1_0": 1}, {"x": 1}]),
    "keys of identities": (dict[UUID, int], [{IDENTITY: 1}], [{IDENTITY.replace("-", ""): 1}]),
    "keys with a pattern": (dict[Annotated[str, Field(pattern="^a")], int], [{"ab": 1}], [{"b": 1}, {"ab": "x"}]),
    "union": (datetime | int, ["2026-03-01T12:00:00Z", 5], ["5", "1700000000", 1.5]),
    "union of two": (date | timedelta, ["2026-03-01", "P1D"], ["5", 5, "12:30:00"]),
    "a model that would be lax": (
        Lax,
        [{"number": 1, "when": "2026-03-01T12:00:00Z", "some": [1]}],
        [
            {"number": "1", "when": "2026-03-01T12:00:00Z"},
            {"number": 1, "when": "0"},
            {"number": 1, "when": "2026-03-01T12:00:00Z", "some": [1, 1]},
            {"number": 1, "when": "2026-03-01T12:00:00Z", "other": 1},
        ],
    ),
    "tagged union": (
        Pet,
        [{"kind": "cat"}, {"kind": "hound"}, {"kind": "cat", "lives": 3}],
        [{}, {"lives": 3}, {"kind": None}, {"kind": "cow"}, {"kind": "cat", "name": "x"}],
    ),
    "tagged union and one of its branches alone": (
        tuple[Pet, Cat],
        [[{"kind": "cat"}, {}], [{"kind": "dog"}, {"kind": "cat"}], [{"kind": "cat"}, {"lives": 3}]],
        [[{}, {}], [{"lives": 3}, {"kind": "cat"}], [{"kind": "dog"}, {"kind": "dog"}]],
    ),
    "tagged unions that share a branch": (
        tuple[Pet, Annotated[Cat | Pack, Field(discriminator="kind")]],
        [[{"kind": "cat"}, {"kind": "cat"}], [{"kind": "dog"}, {"kind": "pack"}]],
        [[{"kind": "cat"}, {}], [{}, {"kind": "cat"}], [{"kind": "cat"}, {"kind": "dog"}]],
    ),
    "recursive tagged union": (
        Pack,
        [{}, {"of": [{"kind": "dog"}, {"kind": "pack"}]}, {"of": [{"kind": "pack", "of": [{"kind": "pack"}]}]}],
        [{"of": [{}]}, {"of": [{"name": "x"}]}, {"of": [{"kind": "pack", "of": [{}]}]}],
    ),
    "tagged union in a tagged union": (
        Annotated[Coloured | Dog, Field(discriminator="kind")],
        [{"kind": "dog"}, {"kind": "cat", "colour": "white", "from": 1}],
        [{}, {"kind": "cat"}, {"colour": "black"}, {"kind": "dog", "colour": "black"}],
    ),
    "tagged union in a tagged union and alone": (
        tuple[Annotated[Coloured | Dog, Field(discriminator="kind")], Coloured],
        [[{"kind": "cat", "colour": "black"}, {"colour": "black"}], [{"kind": "dog"}, {"colour": "white"}]],
        [[{"kind": "cat", "colour": "black"}, {"kind": "cat"}], [{"colour": "black"}, {"colour": "black"}]],
    ),
    "address": (IPv4Address, ["127.0.0.1"], [2130706433, "2130706433", "127.1"]),
}
PLACES: dict[str, tuple[Any, Any]] = {
    "alone": (lambda kind: kind, lambda value: value),
    "list": (lambda kind: list[kind], lambda value: [value]),  # type: ignore[valid-type]
    "dict": (lambda kind: dict[str, kind], lambda value: {"k": value}),  # type: ignore[valid-type]
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
    return tool(take)._handling.parameters


def taken(parameters: Parameters, value: Any) -> bool:
    text = json.dumps({"value": value})
    found = []
    for read in (parameters.values, parameters.quick):
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
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_taken_is_what_is_exported_wherever_it_stands(kind: str, place: str) -> None:
    annotation, fits, refused = KINDS[kind]
    around, put = PLACES[place]
    parameters = parameters_of(around(annotation))
    for value in fits:
        assert (taken(parameters, put(value)), valid(parameters, put(value))) == (True, True), value
    for value in refused:
        if value is not None or place != "optional":
            assert (taken(parameters, put(value)), valid(parameters, put(value))) == (False, False), value


@pytest.mark.parametrize("kind", KINDS)
def test_the_ladder_makes_no_guess_of_it_either(kind: str) -> None:
    annotation, _, refused = KINDS[kind]
    parameters = parameters_of(annotation)
    for value in refused:
        if not isinstance(value, dict | list) and kind not in {"union", "union of two"}:  # "5" is lossless for an int
            with pytest.raises(Invalid):
                parameters.decode("take", json.dumps({"value": value}))


OBJECTS = {
    "datetime": (datetime, st.datetimes(timezones=st.none() | st.just(UTC) | st.just(timezone(timedelta(hours=-3))))),
    "date": (date, st.dates()),
    "time": (time, st.times(timezones=st.none() | st.just(UTC))),
    "timedelta": (timedelta, st.timedeltas()),
    "decimal": (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    "uuid": (UUID, st.uuids()),
    "set": (set[int], st.sets(st.integers())),
}


@pytest.mark.parametrize("kind", OBJECTS)
@given(st.data())
def test_what_pydantic_writes_is_exported_and_read_back(kind: str, data: st.DataObject) -> None:
    annotation, objects = OBJECTS[kind]
    parameters = parameters_of(annotation)
    value = data.draw(objects)
    values, text, _ = parameters.decode("take", {"value": value})
    assert values["value"] == value and type(values["value"]) is type(value)
    assert valid(parameters, json.loads(text)["value"])


@pytest.mark.parametrize("kind", ["datetime", "aware", "naive", "date", "time", "timedelta", "decimal", "uuid"])
@given(st.data())
def test_no_string_is_taken_that_is_not_exported(kind: str, data: st.DataObject) -> None:
    parameters = parameters_of(KINDS[kind][0])
    known = [value for value in KINDS[kind][1] + KINDS[kind][2] if isinstance(value, str)]
    parts = st.sampled_from([*known, *"0123456789-+:.,TtZzPYMWDHS _{}eE\u0661\u2212", "2026-03-01", "12:30"])
    value = data.draw(st.lists(parts, min_size=1, max_size=4).map("".join))
    cut = data.draw(st.integers(0, len(value)))
    for text in (value, value[:cut], value[cut:]):
        if taken(parameters, text):
            assert valid(parameters, text), text


@pytest.mark.parametrize("kind", ["aware", "uuid", "decimal", "timedelta", "set", "keys of integers"])
@given(st.data())
def test_nothing_is_exported_that_is_not_taken(kind: str, data: st.DataObject) -> None:
    parameters = parameters_of(KINDS[kind][0])
    drawn = {
        "aware": st.datetimes(timezones=st.just(UTC)).map(lambda d: d.isoformat()),
        "uuid": st.uuids().map(str).map(str.upper),
        "decimal": st.from_regex(r"\A[+-]?([0-9]{1,9}(\.[0-9]{0,9})?|\.[0-9]{1,9})([eE][+-]?[0-9]{1,3})?\Z"),
        "timedelta": st.from_regex(
            r"\A-?P([0-9]{1,3}[YMWD]){1,3}(T([0-9]{1,3}[HM]){0,2}[0-9]{1,2}(\.[0-9]{1,6})?S)?\Z"
        ),
        "set": st.lists(st.integers(0, 5), max_size=4),
        "keys of integers": st.dictionaries(st.text("0123-+ ", max_size=3), st.integers(0, 1)),
    }
    value = data.draw(drawn[kind])
    if valid(parameters, value):
        assert taken(parameters, value), value


def test_an_errors_text_says_what_is_wanted() -> None:
    async def plan(when: datetime, wait: timedelta, price: Decimal, tags: set[str], id: UUID) -> str:
        return "ran"

    error = str(run(plan, {"when": "1700000000", "wait": 5, "price": "x", "tags": ["a", "a"], "id": "x"}).error)
    for word in ("2026-03-01T12:30:00Z", "ISO 8601", "decimal number", "twice", "UUID"):
        assert word in error, error
    assert "pattern" not in error and "[0-9]" not in error


def test_a_schema_of_the_authors_own_word_is_left_as_it_is() -> None:
    parameters = parameters_of(Annotated[datetime, WithJsonSchema({"type": "string", "pattern": "^[0-9]+$"})])
    assert parameters.exported["properties"]["value"] == {"type": "string", "pattern": "^[0-9]+$"}
    assert taken(parameters, "1700000000")


def test_formats_and_descriptions_are_still_shown() -> None:
    async def plan(when: Annotated[datetime, Field(description="When")], until: AwareDatetime, id: UUID) -> str:
        return "ran"

    shown = tool(plan).input_schema["properties"]
    assert shown["when"]["description"] == "When"
    assert shown["when"]["anyOf"][0] == {"type": "string", "format": "date-time"}
    assert shown["until"] == {"type": "string", "format": "date-time"}
    assert shown["id"] == {"type": "string", "format": "uuid"}


# Digits of decimals

LONG = [
    "0.1000000000000000055511151231257827",
    "123456789012345678.5",
    "1e-400",
    "4.9e-324",
    "1.00000000000000000001e0",
]


class Priced(BaseModel):
    price: Decimal
    weight: float = 0.0


@tool
async def price(
    value: Decimal, other: float = 0.0, more: Priced | None = None, rest: dict[str, Decimal] | None = None
) -> Any:
    """Price."""
    return [str(value), other, str(more), str(rest)]


@pytest.mark.parametrize("number", LONG)
def test_a_decimal_is_never_rounded(number: str) -> None:
    for text in (
        f'{{"value": {number}}}',
        f'{{"value": 1, "more": {{"price": {number}}}}}',
        f'{{"value": 1, "rest": {{"a": {number}}}}}',
    ):
        for sent in (text, f"```json\n{text}\n```"):
            result = run(price, sent)
            assert (result.status, result.executed) == ("invalid", False), sent
            assert "must be a string" in str(result.error)
    assert run(price, json.dumps({"value": number})).output[0] == str(Decimal(number))


@pytest.mark.parametrize("number", LONG)
def test_a_float_beside_a_decimal_takes_what_a_float_takes(number: str) -> None:
    result = run(price, f'{{"value": 1.5, "other": {number}, "more": {{"price": "1", "weight": {number}}}}}')
    assert (result.status, result.output[:2]) == ("ok", ["1.5", float(number)])


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers())
def test_a_number_that_a_double_keeps_is_taken_with_its_digits(number: float, whole: int) -> None:
    for text in (repr(number), str(whole)):
        assert Decimal(run(price, f'{{"value": {text}}}').output[0]) == Decimal(text)


@given(st.from_regex(r"\A-?[1-9][0-9]{0,24}(\.[0-9]{1,24})?([eE][+-]?[0-9]{1,3})?\Z"))
def test_a_number_for_a_decimal_is_exact_or_refused(number: str) -> None:
    result = run(price, f'{{"value": {number}}}')
    assert result.status == "invalid" or Decimal(result.output[0]) == Decimal(number)


def test_an_exponent_beyond_decimals_breaks_nothing() -> None:
    assert run(price, '{"value": 1e-99999999999999999999}').status == "invalid"
    assert run(price, '{"value": 1e99999999999999999999}').status == "invalid"
    assert run(price, '{"value": "1e99999999999999999999"}').status == "invalid"


# Keys that came twice


class Item(BaseModel):
    id: str
    note: str = ""


@tool
async def order(
    id: str,
    items: list[Item],
    customer: Item,
    tags: set[str] | None = None,
    note: str = "",
    extra: dict[str, str] | None = None,
    when: datetime | None = None,
    either: list[str] | str = "",
) -> str:
    """Order."""
    return id


TEXTS = st.sampled_from(["x", "a,b", '"id": 1', "[", "]", "{", "}", "a: b", "\\", ",", '","id":"', "\u00e4", "\n"])
ITEM = st.fixed_dictionaries({"id": TEXTS}, optional={"note": TEXTS})
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "id": TEXTS,
    "items": st.lists(ITEM, max_size=2),
    "customer": ITEM,
    "tags": st.none() | st.lists(TEXTS, max_size=2, unique=True),
    "note": TEXTS,
    "extra": st.none() | st.dictionaries(TEXTS, TEXTS, max_size=2),
    "when": st.none() | st.just("2026-03-01T12:00:00Z"),
    "either": TEXTS | st.lists(TEXTS, max_size=2),
}


@given(st.data(), st.sampled_from([None, 1]), st.booleans())
def test_no_key_of_the_top_level_comes_twice_with_another_value(data: st.DataObject, indent: Any, escape: bool) -> None:
    more = data.draw(st.lists(st.sampled_from(sorted(FIELDS)), max_size=4))
    names = data.draw(st.permutations(["id", "items", "customer", *more]))
    pairs = [(name, data.draw(FIELDS[name])) for name in names]
    keys = [json.dumps(name) for name, _ in pairs]
    if escape:
        keys[-1] = '"' + "".join(f"\\u{ord(char):04x}" for char in pairs[-1][0]) + '"'
    space = data.draw(st.sampled_from(["", " ", "\n"]))
    values = [json.dumps(value, indent=indent, ensure_ascii=False) for _, value in pairs]
    text = space + "{" + ",".join(f"{k}{space}:{space}{v}" for k, v in zip(keys, values, strict=True)) + "}"
    differ = any(one[0] == other[0] and one[1] != other[1] for one in pairs for other in pairs)
    result = run(order, text)
    assert result.status == ("invalid" if differ else "ok"), result.error


@pytest.mark.parametrize(
    "text",
    [
        '{"items": [], "note": "[", "id": "a", "id": "b", "customer": {"id": "]"}}',
        '{"note": "[", "id": "a", "id": "b", "items": [], "customer": {"id": "c"}}',
        '{"items": [], "customer": {"id": "c"}, "note": "{", "id": "a", "id": "b", "extra": {}}',
        ' {"items": [], "customer": {"id": "}"}, "id": "a", "id": "b", "extra": {"a": "{"}}',
        '{"items": [], "customer": {"id": "c"}, "either": "[", "id": "a", "id": "b", "note": "]"}',
    ],
)
def test_brackets_in_strings_hide_no_key(text: str) -> None:
    assert run(order, text).status == "invalid"
    assert run(order, text.replace('"id": "a", ', "")).status == "ok"


def test_a_key_that_can_be_written_with_an_escaped_slash_is_found_twice() -> None:
    @tool
    async def take(path: str = Field(alias="a/b"), lines: list[int] = Field(alias="c/d")) -> str:  # noqa: B008
        """Take."""
        return path

    assert run(take, '{"a/b": "x", "c/d": []}').status == "ok"
    assert run(take, '{"a/b": "x", "c/d": [], "a\\/b": "y"}').status == "invalid"


def test_what_a_models_own_validator_makes_of_the_keys_hides_none() -> None:
    class Old(ToolHandler):
        path: str = ""
        parts: list[str] = []

        @model_validator(mode="before")
        @classmethod
        def rename(cls, data: Any) -> Any:
            return {"path": data["file"]} if "file" in data else data

        @model_validator(mode="after")
        def forget(self) -> Old:
            self.__pydantic_fields_set__.clear()
            return self

        async def __call__(self) -> str:
            return self.path

    for text in ('{"file": "a", "file": "b"}', '{"path": "a", "path": "b"}'):
        assert run(Tool("old", Old), text).status == "invalid"


# Defaults that are made


def counted() -> tuple[list[int], Any]:
    made: list[int] = []

    def make() -> int:
        made.append(len(made))
        return made[-1]

    return made, make


def maker(way: str) -> tuple[list[int], Tool]:
    """A tool with a default that is made for each call, and how often it was."""
    made, make = counted()

    async def function(count: int, value: int = Field(default_factory=make)) -> Any:
        return value

    class Handling(ToolHandler):
        count: int
        value: int = Field(default_factory=make)

        async def __call__(self) -> Any:
            return self.value

    class Checked(Handling):
        def model_post_init(self, context: Any) -> None:
            assert isinstance(self.value, int)

    return made, {"function": tool(function), "class": Tool("h", Handling), "checked": Tool("h", Checked)}[way]


@pytest.mark.parametrize("way", ["function", "class", "checked"])
@pytest.mark.parametrize(
    "arguments", ['{"count": 1}', '{"count": "1"}', '```json\n{"count": "1"}\n```', {"count": "1"}]
)
def test_a_default_is_made_once_whatever_is_repaired(way: str, arguments: Any) -> None:
    made, one = maker(way)
    result = run(one, arguments)
    assert (result.status, result.output, made) == ("ok", 0, [0])
    assert run(one, arguments).output == 1


@pytest.mark.parametrize("way", ["function", "class", "checked"])
def test_what_will_be_judged_can_be_read_without_a_default_being_made(way: str) -> None:
    made, one = maker(way)
    parameters = one._handling.parameters
    assert dict(parameters.foreseen("take", '{"count": "1"}')) == {"count": 1}
    assert dict(parameters.foreseen("take", '{"count": 1, "value": 5}')) == {"count": 1, "value": 5}
    with pytest.raises(Invalid):
        parameters.foreseen("take", '{"count": "x"}')
    assert made == []


def test_what_will_be_judged_is_the_same_where_nothing_is_made() -> None:
    async def take(a: int, b: str = "x", **rest: Any) -> str:
        return b

    _, make = counted()

    async def made(a: int, c: int = Field(default_factory=make), b: str = "x", **rest: Any) -> str:
        return b

    for one in (tool(take), tool(made)):
        assert dict(one._handling.parameters.foreseen("take", '{"a": 1, "z": 2}')) == {"a": 1, "b": "x", "z": 2}


# Unknown keys of raw schemas that are composed


def raw(schema: dict[str, Any], **more: Any) -> Tool:
    async def execute(payload: dict[str, Any]) -> Any:
        return payload

    return Tool("raw", execute, input_schema=schema, description="Take.", **more)


INTEGER = {"type": "integer"}
COMPOSED: dict[str, dict[str, Any]] = {
    "allOf": {"properties": {"a": INTEGER}, "allOf": [{"properties": {"b": INTEGER}}]},
    "anyOf": {"properties": {"a": INTEGER}, "anyOf": [{"properties": {"b": INTEGER}}, {"required": ["z"]}]},
    "$ref": {"properties": {"a": INTEGER}, "$ref": "#/$defs/more", "$defs": {"more": {"properties": {"b": INTEGER}}}},
    "pattern": {"properties": {"a": INTEGER}, "patternProperties": {"^b$": INTEGER}, "additionalProperties": False},
    "own word": {"allOf": [{"properties": {"a": INTEGER, "b": INTEGER}}], "unevaluatedProperties": False},
    "plain": {"properties": {"a": INTEGER, "b": INTEGER}},
}


@pytest.mark.parametrize("kind", COMPOSED)
def test_unknown_keys_of_a_composed_schema_are_dropped_and_recorded(kind: str) -> None:
    one = raw(COMPOSED[kind], unknown="drop")
    result = run(one, '{"a": 1, "b": 2, "c": 3, "d": {"e": 1}}')
    assert (result.status, result.output) == ("ok", {"a": 1, "b": 2}), result.error
    assert len(result.repairs) == 2 and "'c'" in result.repairs[0] and "'d'" in result.repairs[1]
    assert run(raw(COMPOSED[kind]), '{"a": 1, "b": 2, "c": 3}').status == "invalid"
    assert run(one, '{"a": 1, "b": 2}').repairs == ()


@pytest.mark.parametrize("kind", COMPOSED)
def test_a_known_key_that_is_wrong_is_not_dropped(kind: str) -> None:
    one = raw(COMPOSED[kind], unknown="drop")
    assert run(one, '{"a": 1, "b": "x", "c": 3}').status == "invalid"
    assert run(one, '{"a": "x", "b": 1}').status == "invalid"
    mended = run(one, '{"a": "1", "b": 2, "c": 3}')
    assert (mended.status, mended.output) == ("ok", {"a": 1, "b": 2}), mended.error


def test_a_key_of_another_branch_is_dropped_where_the_validator_reports_it() -> None:
    cat = {"properties": {"kind": {"const": "cat"}, "lives": INTEGER}, "required": ["kind"]}
    dog = {"properties": {"kind": {"const": "dog"}, "name": {"type": "string"}}, "required": ["kind"]}
    one = raw({"properties": {}, "oneOf": [cat, dog]}, unknown="drop")
    assert run(one, '{"kind": "cat", "lives": 9, "name": "x"}').output == {"kind": "cat", "lives": 9}
    assert run(one, '{"kind": "cow", "lives": 9}').status == "invalid"


def test_what_a_model_may_not_fill_is_dropped_there_too() -> None:
    schema = {"properties": {"a": INTEGER, "pin": {"type": "string"}}, "allOf": [{"properties": {"b": INTEGER}}]}
    one = raw(schema, unknown="drop", private=("pin",))
    seen: list[Any] = []
    run(one, '{"a": 1, "pin": "1234", "c": 1}', guards=[lambda call, context: seen.append(dict(call.arguments))])
    assert seen and all(arguments == {"a": 1} for arguments in seen)


def test_an_open_schema_keeps_what_it_takes() -> None:
    for schema in ({}, {"properties": {"a": {}}, "additionalProperties": True}):
        assert run(raw(schema, unknown="drop"), '{"c": 3}').output == {"c": 3}


# What an author's own validators see


def test_a_validator_sees_no_context_where_nobody_gave_one() -> None:
    contexts: list[Any] = []

    def look(value: int, info: ValidationInfo) -> int:
        contexts.append(info.context)
        return value

    async def take(value):  # type: ignore[no-untyped-def]
        return value

    take.__annotations__ = {"value": Annotated[int, AfterValidator(look)]}
    assert run(take, '{"value": 1}').output == run(take, '{"value": "1"}').output == 1
    assert set(contexts) == {None}


def test_a_mistake_is_still_told_by_its_place() -> None:
    parameters = parameters_of(list[Priced])
    with pytest.raises(Mistakes) as caught:
        parameters.values('{"value": [{"price": "1"}, {"price": "x"}]}')
    assert [mistake.path for mistake in caught.value.found] == [("value", 1, "price")]


# What does not come back from its own JSON


class Client:
    """An object without a JSON form."""


def made_by(way: str, annotation: Any, make: Any, ran: list[Any]) -> Tool:
    if way == "function":

        async def function(count=0, value=Field(default_factory=make)):  # type: ignore[no-untyped-def]  # noqa: B008
            ran.append(value)

        function.__annotations__ = {"count": int, "value": annotation}
        return tool(function)

    class Handling(ToolHandler):
        count: int = 0
        value: annotation = Field(default_factory=make)

        async def __call__(self) -> None:
            ran.append(self.value)

    return Tool("function", Handling)


MADE: dict[str, tuple[Any, Any, Any]] = {
    "bytes": (bytes, b"plain", "plain"),
    "bytes that are no text": (bytes, b"\xff\x00raw", "_wByYXc="),
    "secret": (SecretStr, SecretStr("hunter2"), "*" * 10),
    "secret bytes": (SecretBytes, SecretBytes(b"hunter2"), "*" * 10),
    "date for anything": (Any, date(2026, 3, 1), "2026-03-01"),
    "path for anything": (Any, PurePosixPath("a/b"), "a/b"),
    "object for anything": (Any, Client(), None),
    "integer for a text": (str, 5, 5),
    "tuple for anything": (Any, (1, 2), [1, 2]),
    "member for an integer": (int, Small.ONE, 1),
    "date": (date, date(2026, 3, 1), "2026-03-01"),
    "list": (list[int], [1, 2], [1, 2]),
    "not a number": (Any, float("nan"), "nan"),
}


@pytest.mark.parametrize("way", ["function", "class"])
@pytest.mark.parametrize("kind", MADE)
def test_the_handler_gets_what_was_made_and_not_what_its_json_says(way: str, kind: str) -> None:
    annotation, value, shown = MADE[kind]
    ran: list[Any] = []
    seen: list[Any] = []
    one = made_by(way, annotation, lambda: value, ran)
    result = run(one, '{"count": "1"}', guards=[lambda call, context: seen.append(dict(call.arguments))])
    assert result.status == "ok", result.error
    assert type(ran[0]) is type(value) and (ran[0] == value or ran[0] is value)
    assert seen[0]["count"] == 1 and "hunter2" not in str(seen) + str(result.record())
    assert seen[0]["value"] == (str(value) if shown is None else shown)


@pytest.mark.parametrize("way", ["function", "class"])
@pytest.mark.parametrize("kind", MADE)
def test_it_does_so_when_the_judged_text_is_read_again(way: str, kind: str) -> None:
    annotation, value, _ = MADE[kind]
    made: list[Any] = []
    parameters = made_by(way, annotation, lambda: made.append(value) or value, [])._handling.parameters
    values, text, _ = parameters.decode("take", '{"count": 1}')
    for again in (parameters.values(str(text)), parameters.judge("take", {**loads(text), "count": 2}, text)[0]):
        first, second = (v["value"] if isinstance(v, dict) else v.value for v in (values, again))
        assert type(second) is type(first) and (second == first or second is first)
    assert len(made) == 1
    assert json.loads(pickle.loads(pickle.dumps(text))) == json.loads(text)


@pytest.mark.parametrize("way", ["function", "class"])
def test_the_stars_of_a_secret_never_become_the_secret(way: str) -> None:
    ran: list[Any] = []
    one = made_by(way, SecretStr, lambda: SecretStr("hunter2"), ran)
    run(one, "{}", guards=[lambda call, context: {**call.arguments, "count": 2}])
    assert ran == [SecretStr("hunter2")]


def test_a_made_value_that_a_guard_replaces_is_replaced() -> None:
    ran: list[Any] = []
    one = made_by("function", SecretStr, lambda: SecretStr("hunter2"), ran)
    run(one, "{}", guards=[lambda call, context: {**call.arguments, "value": "other"}])
    run(one, '{"value": "given"}')
    run(one, json.dumps({"value": "*" * 10}))
    assert ran == [SecretStr("other"), SecretStr("given"), SecretStr("*" * 10)]


def test_an_iterator_that_was_made_is_not_read_before_the_handler_has_it() -> None:
    ran: list[Any] = []
    assert run(made_by("function", Any, lambda: (n for n in (1, 2)), ran), "{}").status == "ok"
    assert list(ran[0]) == [1, 2]


def test_a_made_value_that_cannot_be_compared_stays_what_it_is() -> None:
    class Odd(str):
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no answer")

        __hash__ = None  # type: ignore[assignment]

    ran: list[Any] = []
    assert run(made_by("function", str, lambda: Odd("x"), ran), "{}").status == "ok"
    assert type(ran[0]) is Odd


# Keys that came twice beside what may be null

Nested = TypeAliasType("Nested", "dict[str, Nested] | None")
Whole = TypeAliasType("Whole", "list[int] | None")
Sure = TypeAliasType("Sure", "list[int]")


class Tree(BaseModel):
    name: str = ""
    below: list[Tree] = []


class Loose(TypedDict, total=False):
    name: str
    items: list[int]


MaybeTree = TypeAliasType("MaybeTree", "Tree | None")


@tool
async def recursive(a: Nested, s: str) -> str:
    """Take."""
    return s


@tool
async def twice(a: Whole, b: Whole, s: str) -> str:
    """Take."""
    return s


@tool
async def many(
    s: str, a: Nested, b: MaybeTree, c: Tree, d: Sure, e: Sure, f: Loose, g: tuple[int, ...] | None, h: set[str] | None
) -> str:
    """Take."""
    return s


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (recursive, ' {"a":null,"s":"x","s":"y"}'),
        (recursive, '{"a":null,"s":"{","s":"}"}'),
        (recursive, '\n\t{"a":{},"s":"{","s":"}"}'),
        (twice, '{"a":null,"b":[],"s":"[","s":"x]"}'),
        (twice, ' {"a":null,"b":null,"s":"[","s":"x]"}'),
    ],
)
def test_what_may_be_null_by_another_name_hides_no_key(one: Tool, text: str) -> None:
    assert run(one, text).status == "invalid"
    found = text.index('"s"')
    assert run(one, text[:found] + text[text.index('"s"', found + 1) :]).status == "ok"


NESTED = st.recursive(st.none(), lambda inner: st.dictionaries(TEXTS, inner, max_size=2), max_leaves=4)
TREE = st.recursive(
    st.fixed_dictionaries({}, optional={"name": TEXTS}),
    lambda inner: st.fixed_dictionaries({"below": st.lists(inner, max_size=2)}, optional={"name": TEXTS}),
    max_leaves=3,
)
WHOLE = st.lists(st.integers(0, 9), max_size=2)
MANY: dict[str, st.SearchStrategy[Any]] = {
    "a": NESTED,
    "b": st.none() | TREE,
    "c": TREE,
    "d": WHOLE,
    "e": WHOLE,
    "f": st.fixed_dictionaries({}, optional={"name": TEXTS, "items": WHOLE}),
    "g": st.none() | WHOLE,
    "h": st.none() | st.lists(TEXTS, max_size=2, unique=True),
    "s": TEXTS,
}
FEW = {"recursive": ("a", "s"), "twice": ("a", "b", "s"), "many": tuple(MANY)}


@pytest.mark.parametrize("one", [recursive, twice, many], ids=lambda one: one.name)
@given(st.data(), st.booleans())
def test_no_key_comes_twice_beside_such_types(one: Tool, data: st.DataObject, escape: bool) -> None:
    names = FEW[one.name]
    drawn = {**MANY, "a": NESTED if one is not twice else st.none() | WHOLE, "b": MANY["b"] if one is many else WHOLE}
    order = data.draw(st.permutations([*names, *data.draw(st.lists(st.sampled_from(names), max_size=3))]))
    pairs = [(name, data.draw(drawn[name])) for name in order]
    keys = [json.dumps(name) for name, _ in pairs]
    if escape:
        keys[-1] = '"' + "".join(f"\\u{ord(char):04x}" for char in pairs[-1][0]) + '"'
    space, ascii_only = data.draw(st.sampled_from(["", " ", "\r\n\t"])), data.draw(st.booleans())
    values = [json.dumps(value, ensure_ascii=ascii_only) for _, value in pairs]
    text = space + "{" + ",".join(f"{k}{space}:{space}{v}" for k, v in zip(keys, values, strict=True)) + "}"
    differ = any(a[0] == b[0] and json.dumps(a[1]) != json.dumps(b[1]) for a in pairs for b in pairs)
    assert run(one, text).status == ("invalid" if differ else "ok"), text


# Bounds that JSON Schema has no word for


DESCRIBED: dict[str, tuple[Any, str]] = {
    "date after": (Annotated[date, Field(gt=date(2026, 1, 1))], "after 2026-01-01"),
    "date between": (
        Annotated[date, Field(ge=date(2026, 1, 1), le=date(2026, 2, 1))],
        "2026-01-01 or later, 2026-02-01 or earlier",
    ),
    "past": (PastDate, "in the past"),
    "future": (FutureDatetime, "in the future"),
    "datetime before": (
        Annotated[datetime, Field(lt=datetime(2026, 1, 1, tzinfo=UTC))],
        "before 2026-01-01T00:00:00Z",
    ),
    "naive": (Annotated[NaiveDatetime, Field(gt=datetime(2026, 1, 1))], "after 2026-01-01T00:00:00"),
    "time": (Annotated[time, Field(lt=time(5))], "before 05:00:00"),
    "timedelta": (Annotated[timedelta, Field(ge=timedelta(days=1))], "at least P1D"),
    "digits": (
        Annotated[Decimal, Field(max_digits=5, decimal_places=2, gt=1)],
        "at most 5 digits, at most 2 after the point, more than 1",
    ),
    "set of bools and integers": (set[bool | int], "no two items may be equal, even if they are written differently"),
    "set of decimals": (set[Decimal], "no two items may be equal, even if they are written differently"),
    "keys": (dict[Annotated[Decimal, Field(max_digits=3)], int], "each key at most 3 digits"),
}


@pytest.mark.parametrize("kind", DESCRIBED)
def test_what_json_schema_has_no_word_for_is_in_the_description(kind: str) -> None:
    annotation, said = DESCRIBED[kind]
    assert parameters_of(annotation).exported["properties"]["value"]["description"] == said
    assert f'"description": "{said}"' in json.dumps(parameters_of(list[annotation]).exported)

    async def take(value, other):  # type: ignore[no-untyped-def]
        """Take.

        Args:
            value: What it is.
        """

    take.__annotations__ = {"value": annotation, "other": Annotated[annotation, Field(description="Another")]}
    shown = tool(take).input_schema["properties"]
    assert shown["value"]["description"] == f"What it is. ({said})"
    assert shown["other"]["description"] == f"Another ({said})"
    rebuilt = tool(take)._handling.parameters._rebuilt(frozenset(), {})
    assert rebuilt.exported["properties"]["value"]["description"] == f"What it is. ({said})"
    assert "ferrule" not in json.dumps(shown)


@pytest.mark.parametrize(
    "annotation", [date, datetime, Decimal, set[int], set[str], set[date], set[int | str], set[Literal["a", "b"]], time]
)
def test_nothing_is_added_where_the_schema_says_it_all(annotation: Any) -> None:
    assert "description" not in json.dumps(parameters_of(annotation).exported)


def test_items_that_are_equal_are_named_where_they_look_different() -> None:
    for annotation, value, said in (
        (set[bool | int], [1, True], "true equals 1"),
        (set[Decimal], ["1.0", "1.00"], '"1.00" equals "1.0"'),
        (frozenset[Decimal], ["2", "1.0", "1.00"], '"1.00" equals "1.0"'),
    ):
        with pytest.raises(Invalid, match=f"no item twice, and {said}"):
            parameters_of(annotation).decode("take", {"value": value})
    with pytest.raises(Invalid, match="no item twice, got"):
        parameters_of(set[int]).decode("take", {"value": [1, 1]})


def test_a_tagged_union_refers_to_definitions_of_its_own_where_others_may_leave_out_the_tag() -> None:
    async def take(pet: Pet, cat: Cat) -> None:
        """Take."""

    schema = tool(take).input_schema
    union, cat = schema["properties"]["pet"], schema["properties"]["cat"]
    assert [branch["$ref"] for branch in union["oneOf"]] == ["#/$defs/Cat_kind", "#/$defs/Dog"]
    assert union["discriminator"]["mapping"]["cat"] == "#/$defs/Cat_kind"
    assert cat == {"$ref": "#/$defs/Cat"} and "required" not in schema["$defs"]["Cat"]
    assert schema["$defs"]["Cat_kind"]["required"] == ["kind"]
    assert "default" not in schema["$defs"]["Dog"]["properties"]["kind"]
