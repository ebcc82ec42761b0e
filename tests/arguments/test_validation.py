"""From what a model sent to what the handler gets: nothing guessed, nothing lost, and mistakes are told in words."""

from __future__ import annotations

import asyncio
import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AliasChoices, BaseModel, ConfigDict, Field
from pydantic import ValidationError as PydanticError
from pydantic_core import InitErrorDetails
from pydantic_core._pydantic_core import list_all_errors

import probe
from ferrule import Runner, Sizes, Tool, ToolCall, ToolHandler, ToolResult, Toolset, build_tool, tool
from ferrule.arguments.argument_errors import explain_errors, from_pydantic
from ferrule.arguments.parameters import Invalid
from steps import lines


def run(one: Any, arguments: Any = None, **options: Any) -> ToolResult:
    tools = Toolset([one])
    name = next(iter(tools)).name
    return asyncio.run(Runner(tools, **options).run(ToolCall("c1", name, arguments)))


def judged(one: Any, arguments: Any) -> tuple[Mapping[str, Any], ToolResult]:
    """What a guard sees of a call, and its result."""
    seen: list[Mapping[str, Any]] = []

    def look(call: ToolCall, context: Any) -> None:
        seen.append(call.arguments)

    result = run(one, arguments, guards=[look])
    return (seen[0] if seen else {}), result


def raw(properties: dict[str, Any], **more: Any) -> Tool:
    async def execute(payload: dict[str, Any]) -> Any:
        return payload

    schema = {"type": "object", "properties": properties, **more}
    return build_tool(
        {"name": "raw", "input_schema": schema, "execute": execute, "check_permissions": lambda payload: None}
    )


class Line(BaseModel):
    sku: str
    count: int = 1


class Level(IntEnum):
    LOW = 1


class Colour(Enum):
    RED = "red"


@tool
async def order(lines: list[Line], note: str = "", express: bool = False) -> Any:
    """Order."""
    return {"lines": [(type(line).__name__, line.sku, line.count) for line in lines], "note": note, "express": express}


@tool
async def anything(value: Any) -> Any:
    """Take anything."""
    return value


@tool
async def number(value: int) -> Any:
    """Take a number."""
    return value


@tool
async def flat(a: int, b: str = "x", c: float = 0.5) -> Any:
    """Take three."""
    return [a, b, c]


ANY = {"typed": anything, "schema": raw({"value": {}})}


def value_of(result: ToolResult) -> Any:
    return result.output["value"] if isinstance(result.output, dict) and result.tool_name == "raw" else result.output


# Real objects


def test_the_handler_gets_real_objects_at_every_depth() -> None:
    result = run(order, '{"lines": [{"sku": "A"}, {"sku": "B", "count": 2}], "express": true}')
    assert result.output == {"lines": [["Line", "A", 1], ["Line", "B", 2]], "note": "", "express": True}


@pytest.mark.parametrize(
    "annotation",
    [int, float, Literal[1], Literal[0, 1], Level, Decimal, list[int], dict[str, int], int | str, timedelta, date,
     datetime],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("value", ["true", "false"])
def test_a_bool_is_no_number(annotation: Any, value: str) -> None:
    async def take(value):  # type: ignore[no-untyped-def]
        return value

    take.__annotations__ = {"value": annotation}
    text = {"list": f"[{value}]", "dict": f'{{"a": {value}}}'}.get(getattr(annotation, "__name__", ""), value)
    assert run(tool(take), f'{{"value": {text}}}').status == "invalid"


@pytest.mark.parametrize("kind", ["integer", "number"])
def test_a_bool_is_no_number_in_a_raw_schema_either(kind: str) -> None:
    assert run(raw({"value": {"type": kind}}), '{"value": true}').status == "invalid"
    assert run(raw({"value": {"enum": [1, 0]}}), '{"value": true}').status == "invalid"
    assert run(raw({"value": {"const": 1}}), '{"value": true}').status == "invalid"


@pytest.mark.parametrize("value", [0, 1, 1.0, "1", "0", "yes", "True"])
def test_a_number_or_a_word_is_no_bool(value: Any) -> None:
    assert run(order, json.dumps({"lines": [], "express": value})).status == "invalid"
    assert run(raw({"value": {"type": "boolean"}}), json.dumps({"value": value})).status == "invalid"


NOT_NUMBERS = ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"]


class Floats(BaseModel):
    value: float = 0
    more: dict[str, float] = {}
    anything: Any = None


@pytest.mark.parametrize("text", NOT_NUMBERS)
def test_what_is_no_json_number_is_refused_wherever_it_stands(text: str) -> None:
    @tool
    async def take(
        x: float = 0, d: Decimal = Decimal(0), m: Floats | None = None, f: dict[str, float] | None = None, a: Any = None
    ) -> str:
        """Take."""
        return "ran"

    for arguments in (
        f'{{"x": {text}}}',
        f'{{"d": {text}}}',
        f'{{"m": {{"value": {text}}}}}',
        f'{{"m": {{"more": {{"k": {text}}}}}}}',
        f'{{"m": {{"anything": [{text}]}}}}',
        f'{{"f": {{"k": {text}}}}}',
        f'{{"a": {text}}}',
        f'{{"a": [[{{"k": {text}}}]]}}',
    ):
        for one in (take, take.replace(guards=[lambda call, context: None])):
            result = run(one, arguments)
            assert (result.status, result.executed) == ("invalid", False), arguments
    for schema in ({}, {"type": "number"}, {"type": "array"}, {"type": "object"}):
        put = {"array": f"[{text}]", "object": f'{{"k": {text}}}'}.get(str(schema.get("type")), text)
        assert run(raw({"value": schema}), f'{{"value": {put}}}').status == "invalid"


class OnlyFloats(BaseModel):
    value: float = 0
    more: dict[str, float] = {}


@pytest.mark.parametrize("text", NOT_NUMBERS)
def test_it_is_refused_for_floats_alone_too_where_nothing_looks_at_the_text(text: str) -> None:
    @tool
    async def alone(x: float = 0, y: float | None = None) -> str:
        """Take."""
        return "ran"

    @tool
    async def nested(m: OnlyFloats) -> str:
        """Take."""
        return "ran"

    assert run(alone, f'{{"x": {text}}}').status == "invalid"
    assert run(alone, f'{{"y": {text}}}').status == "invalid"
    assert run(nested, f'{{"m": {{"value": {text}}}}}').status == "invalid"
    assert run(nested, f'{{"m": {{"more": {{"k": {text}}}}}}}').status == "invalid"


@pytest.mark.parametrize("value", [math.nan, math.inf, [math.nan], {"k": -math.inf}])
def test_python_numbers_that_json_has_no_word_for_are_refused_too(value: Any) -> None:
    for one in ANY.values():
        assert run(one, {"value": value}).status == "invalid"


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "sNaN"])
def test_words_for_such_numbers_are_strings_and_no_numbers(text: str) -> None:
    async def take(value: Decimal | None = None, other: float = 0) -> str:
        return "ran"

    assert run(take, json.dumps({"value": text})).status == "invalid"
    assert run(take, json.dumps({"other": text})).status == "invalid"
    assert run(anything, json.dumps({"value": text})).output == text


# Unknown, missing, default


def test_an_argument_that_is_not_known_is_refused_with_the_nearest_that_is() -> None:
    result = run(order, '{"lines": [], "nots": "x"}')
    assert result.status == "invalid"
    assert "'nots'" in str(result.error) and "did you mean 'note'?" in str(result.error)
    assert "lines" in str(run(raw({"lines": {}, "note": {}}), '{"zzz": 1}').error)


def test_an_unknown_key_deep_inside_is_refused_and_named_by_its_place() -> None:
    result = run(order, '{"lines": [{"sku": "A", "colour": "red"}]}')
    assert "lines[0].colour" in str(result.error)


class Named(NamedTuple):
    number: int
    word: str


def test_an_item_that_a_tuple_lacks_is_named_by_its_place() -> None:
    @tool
    async def take(
        pair: tuple[int, str] | None = None,
        pairs: list[tuple[int, str]] | None = None,
        named: Named | None = None,
    ) -> None:
        """Take."""

    def said(text: str) -> str:
        return str(run(take, text).error)

    assert "for take: 'pair[1]' is required and was not given." in said('{"pair": [2]}')
    assert "'pair[0]' is required and was not given; 'pair[1]' is required" in said('{"pair": []}')
    assert "'pairs[1][1]' is required and was not given." in said('{"pairs": [[1, "a"], [2]]}')
    assert "'named[1]' is required and was not given." in said('{"named": [1]}')


def test_what_is_required_and_what_has_a_default_is_as_in_python() -> None:
    assert "'a' is required" in str(run(flat, "{}").error)
    assert run(flat, '{"a": 1}').output == [1, "x", 0.5]

    @tool
    async def nothing_required(a: int | None = None, b: list[int] | None = None) -> Any:
        """Take."""
        return [a, b]

    @tool
    async def may_be_null(a: int | None) -> Any:
        """Take."""
        return a

    assert run(nothing_required, "{}").output == [None, None]
    assert run(may_be_null, "{}").status == "invalid"
    assert run(may_be_null, '{"a": null}').output is None
    assert run(flat, '{"a": null}').status == "invalid"
    assert run(flat, '{"a": 1, "b": null}').output == [1, "x", 0.5]


def test_null_for_what_is_optional_means_absent_at_every_depth_and_is_no_repair() -> None:
    result = run(order, '{"lines": [{"sku": "A", "count": null}], "note": null}')
    assert result.output == {"lines": [["Line", "A", 1]], "note": "", "express": False}
    assert result.repairs == ()


def test_null_is_kept_where_it_is_a_value_and_refused_where_it_is_data_of_another_type() -> None:
    @tool
    async def table(rows: dict[str, int | None], counts: dict[str, int] | None = None) -> Any:
        """Take."""
        return [rows, counts]

    assert run(table, '{"rows": {"a": null}}').output == [{"a": None}, None]
    assert run(table, '{"rows": {}, "counts": {"a": null}}').status == "invalid"
    assert run(raw({"value": {"type": "object", "additionalProperties": {"type": "integer"}}}),
               '{"value": {"a": null}}').status == "invalid"  # fmt: skip
    assert run(anything, '{"value": null}').status == "ok"


@pytest.mark.parametrize("arguments", [None, "", " ", "\n", "null", "{}", {}])
def test_no_arguments_are_no_arguments_however_they_are_written(arguments: Any) -> None:
    @tool
    async def ping() -> str:
        """Ping."""
        return "pong"

    for one in (ping, raw({})):
        result = run(one, arguments)
        assert (result.status, result.repairs) == ("ok", ())


@pytest.mark.parametrize("arguments", ["[]", "[{}]", "5", "true", '"x"', "{}{", "{", "}", "nul"])
def test_what_is_no_object_is_refused(arguments: str) -> None:
    @tool
    async def ping() -> str:
        """Ping."""
        return "pong"

    for one in (ping, raw({})):
        result = run(one, arguments)
        assert (result.status, result.executed) == ("invalid", False)


# Keys that came twice

TWICE = [
    '{"a": 1, "a": 2}',
    '{"a": 1, "b": "x", "a": 2}',
    '{"a": 1, "b": "x:y", "b": "z"}',
    '{"a": 1, "b": "x", "b": "x:"}',
    '{"a":1,"a":true}',
    '{"a": "1", "a": 1}',
]


@pytest.mark.parametrize("text", TWICE)
def test_a_key_that_came_twice_with_different_values_is_refused(text: str) -> None:
    for one in (flat, raw({"a": {}, "b": {}})):
        assert run(one, text).status == "invalid"


@pytest.mark.parametrize(
    "text",
    ['{"a": 1, "a": 1}', '{"a": 1, "\\u0061": 1}', '{"a": 1, "b": "\\"a\\": 2"}', '{"a": 1, "b": "{\\"a\\": 1}"}'],
)
def test_a_key_that_came_twice_with_the_same_value_or_only_in_a_string_is_fine(text: str) -> None:
    for one in (flat, raw({"a": {}, "b": {}})):
        result = run(one, text)
        assert (result.status, result.repairs) == ("ok", ())


@pytest.mark.parametrize(
    "text",
    [
        '{"lines": [], "lines": [{"sku": "A"}]}',
        '{"lines": [{"sku": "A"}], "lines": [{"sku": "B"}]}',
        '{"lines": [{"sku": "A"}], "note": "a", "note": "b"}',
    ],
)
def test_a_key_twice_beside_nested_values_is_refused(text: str) -> None:
    for one in (order, raw({"lines": {}, "note": {}})):
        assert run(one, text).status == "invalid"


def test_a_key_twice_for_a_handler_class_and_for_keywords_is_refused() -> None:
    class Flat(ToolHandler):
        a: int
        b: str = "x"

        async def __call__(self) -> Any:
            return [self.a, self.b]

    @tool
    async def keywords(**rest: Any) -> Any:
        """Take."""
        return rest

    for one in (Flat, keywords):
        assert run(one, '{"a": 1, "a": 2}').status == "invalid"
        assert run(one, '{"a": 1, "b": "y"}').status == "ok"


@pytest.mark.parametrize(
    "text",
    [
        '{"lines": [{"sku": "A", "sku": "B"}], "note": "given"}',
        '{"lines": [{"sku": "A", "count": 1, "count": 2}], "note": "given"}',
        '{"lines": [{"sku": "A", "\\u0073ku": "B"}], "note": "given"}',
    ],
)
def test_a_key_twice_further_down_is_refused_or_judged_as_it_runs(text: str) -> None:
    seen, result = judged(order, text)
    if result.status == "ok":
        ran = [{"sku": sku, "count": count} for _, sku, count in result.output["lines"]]
        assert [{"count": 1, **line} for line in seen["lines"]] == ran
        assert seen["note"] == result.output["note"] == "given"


class ByName(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    from_: str = Field(alias="from", default="nowhere")


class Renamed(ToolHandler):
    model_config = ConfigDict(validate_by_name=True)
    path: str = Field(validation_alias=AliasChoices("path", "file"), default="none")
    to_: str = Field(alias="to", default="nowhere")
    inner: ByName = ByName()

    async def __call__(self) -> Any:
        return {"path": self.path, "to": self.to_, "inner": {"from": self.inner.from_}}


@pytest.mark.parametrize("text", ['{"file": "x"}', '{"to_": "x"}', '{"inner": {"from_": "x"}}'])
def test_a_field_cannot_be_filled_under_a_name_that_no_guard_looks_at(text: str) -> None:
    seen, result = judged(Renamed, text)
    assert (result.status, dict(seen)) == ("invalid", {})


def test_a_field_is_filled_and_judged_under_the_name_that_is_shown() -> None:
    value = {"path": "x", "to": "y", "inner": {"from": "z"}}
    seen, result = judged(Renamed, json.dumps(value))
    assert dict(seen) == result.output == value
    assert list(Tool("renamed", Renamed).input_schema["properties"]) == ["path", "to", "inner"]

    @tool
    async def take(source: str = Field(validation_alias=AliasChoices("from", "source"))) -> str:
        """Take."""
        return source

    assert list(take.input_schema["properties"]) == ["from"]
    assert run(take, '{"from": "x"}').output == "x"
    assert run(take, '{"source": "x"}').status == "invalid"


# Texts for the model

JARGON = ("pydantic", "https://", "http://", "Traceback", "typed-dict", "core_schema", "type=", "input_value", "loc")


Many = Enum("Many", {f"V{n}": f"value_number_{n}_{'x' * 40}" for n in range(500)})  # type: ignore[misc]


class Choice(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["a"] = "a"
    deep: list[Line] = Field(default_factory=list, max_length=2)


@tool
async def much(
    number: int = 0,
    many: Many | None = None,  # type: ignore[valid-type]
    text: str = "",
    when: date | None = None,
    choice: Choice | None = None,
    either: int | list[int] | None = None,
    path: Path | None = None,
    id: UUID | None = None,
    bounded: int = Field(default=1, ge=1, le=5),
) -> str:
    """Take."""
    return "ran"


LONG = "y" * 900_000
MISTAKES: list[tuple[str, Any, list[str]]] = [
    ("number", "many", ["'number'", "integer", "string", "many"]),
    ("number", 1.5, ["'number'", "integer", "1.5"]),
    ("number", LONG, ["'number'", "integer", "string"]),
    ("number", list(range(100_000)), ["'number'", "integer", "array"]),
    ("number", {"k": LONG}, ["'number'", "integer", "object"]),
    ("many", "value_number_0", ["'many'", "value_number_0"]),
    ("many", LONG, ["'many'"]),
    ("text", 5, ["'text'", "string", "integer 5"]),
    ("when", "tomorrow", ["'when'", "date", "tomorrow"]),
    ("choice", {"kind": "b"}, ["choice.kind", '"b"', "a"]),
    ("choice", {"deep": [{"sku": 5}]}, ["choice.deep[0].sku", "string", "5"]),
    ("choice", {"deep": [{}]}, ["choice.deep[0].sku", "required"]),
    ("choice", {"deep": [{"sku": "a"}] * 3}, ["choice.deep", "2"]),
    ("choice", {"other": 1}, ["choice.other", "not known"]),
    ("either", "x", ["either"]),
    ("id", "x", ["'id'", "UUID"]),
    ("bounded", 9, ["'bounded'", "5", "9"]),
    ("nubmer", 1, ["'nubmer'", "did you mean 'number'"]),
    ("z" * 5000, 1, ["not a parameter"]),
]


@pytest.mark.parametrize(
    ("name", "value", "said"), MISTAKES, ids=[f"{n[:20]}-{i}" for i, (n, _, _) in enumerate(MISTAKES)]
)
def test_one_mistake_is_told_in_few_words_that_help(name: str, value: Any, said: list[str]) -> None:
    result = run(much, json.dumps({name: value}))
    assert (result.status, result.executed) == ("invalid", False)
    error = str(result.error)
    assert len(error.split()) <= 80 and len(error) <= 1200, error
    assert "Nothing was run" in error
    assert not [word for word in JARGON if word in error], error
    for word in said:
        assert word in error, error


RAW_MISTAKES: list[tuple[dict[str, Any], Any, list[str]]] = [
    ({"type": "integer"}, "many", ["'value'", "integer", "string", "many"]),
    ({"enum": [f"value_number_{n}_{'x' * 40}" for n in range(500)]}, LONG, ["'value'", "one of", "500"]),
    ({"type": "string", "pattern": "^a+$"}, LONG, ["'value'"]),
    ({"type": "string", "maxLength": 3}, LONG, ["'value'", "3"]),
    ({"type": "integer", "maximum": 3}, 9, ["'value'", "3", "9"]),
    ({"const": "a"}, "b", ["'value'", '"a"', '"b"']),
    ({"type": "array", "items": {"type": "integer"}}, [1, "x"], ["value[1]", "integer"]),
    ({"anyOf": [{"type": "integer"}, {"type": "array"}]}, "x", ["'value'", "integer", "array"]),
    (
        {"anyOf": [{"required": ["iban"]}, {"properties": {"to": {"required": ["card"]}}, "required": ["to"]}]},
        {"to": {}},
        ["'value'", "'iban' is required", "'to.card' is required"],
    ),
    ({"type": "array", "minItems": 2}, [1], ["'value'", "2"]),
    ({"type": "array", "uniqueItems": True}, [1] * 10_000, ["'value'"]),
    ({"type": "object", "properties": {"k": {}}, "required": ["k"]}, {}, ["value.k", "required"]),
    ({"type": "object", "properties": {"k": {}}, "additionalProperties": False}, {"j": LONG}, ["value.j", "not known"]),
    ({"not": {"type": "string"}}, LONG, ["'value'"]),
    ({"type": "string", "format": "date"}, "tomorrow", ["'value'", "date"]),
]


@pytest.mark.parametrize(("schema", "value", "said"), RAW_MISTAKES, ids=range(len(RAW_MISTAKES)))
def test_one_mistake_against_a_raw_schema_is_told_as_well(schema: dict[str, Any], value: Any, said: list[str]) -> None:
    result = run(raw({"value": schema}), json.dumps({"value": value}))
    assert (result.status, result.executed) == ("invalid", False)
    error = str(result.error)
    assert len(error.split()) <= 80 and len(error) <= 1200, error
    assert "Nothing was run" in error
    assert not [word for word in JARGON if word in error], error
    for word in said:
        assert word in error, error


def test_a_missing_argument_names_what_it_may_be() -> None:
    @tool
    async def paint(colour: Literal["red", "blue"], mood: Colour, size: int) -> str:
        """Paint."""
        return "x"

    error = str(run(paint, "{}").error)
    for word in ("'colour'", '"red"', '"blue"', "'mood'", "'size'", "integer"):
        assert word in error, error


def test_many_mistakes_are_few_words_too() -> None:
    result = run(order, json.dumps({"lines": [{"sku": n} for n in range(10_000)]}))
    assert len(str(result.error)) < 1500
    assert "more mistakes" in str(result.error)


def test_what_is_cut_off_is_told_as_cut_off() -> None:
    for text in ('{"lines": [{"sku": "A"', '{"lines": "', '{"lines"', "{"):
        error = str(run(order, text).error)
        assert "cut off" in error and "Nothing was run" in error


# Every JSON value survives

TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


def exactly(one: Any, other: Any) -> bool:
    """Equal with equal types, which `==` does not see in `1`, `1.0` and `True`."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(exactly(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(exactly, one, other))
    return repr(one) == repr(other)


@given(JSON, st.booleans(), st.sampled_from([None, 2]))
def test_every_json_value_survives_the_way_to_the_handler(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps({"value": value}, ensure_ascii=ascii_only, indent=indent)
    for one in ANY.values():
        seen, result = judged(one, text)
        if value is None:
            assert result.status == "ok"
            continue
        assert (result.status, result.repairs) == ("ok", ()), result.error
        assert exactly(value_of(result), value)
        assert seen["value"] == value
        json.dumps(result.record(), allow_nan=False)


@given(JSON)
def test_a_mapping_goes_the_same_way_as_its_text(value: Any) -> None:
    for one in ANY.values():
        if value is not None:
            assert exactly(value_of(run(one, {"value": value})), value)


@given(TEXT)
def test_a_string_stays_the_string_that_it_is(text: str) -> None:
    async def take(value: str) -> str:
        return value

    for one in (tool(take), raw({"value": {"type": "string"}})):
        result = run(one, json.dumps({"value": text}))
        assert (value_of(result), result.repairs) == (text, ())


@pytest.mark.parametrize(
    "text", ["true", "null", "42", "[]", '{"a": 1}', "NaN", "&amp;", "```json\n{}\n```", " x ", ""]
)
def test_a_string_that_looks_like_something_else_is_not_touched(text: str) -> None:
    async def take(value: str) -> str:
        return value

    for one in (tool(take), raw({"value": {"type": "string"}}), *ANY.values()):
        result = run(one, json.dumps({"value": text}))
        assert (value_of(result), result.repairs) == (text, ())


# Large, deep and strange


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[" * 100_000 + "]" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000]
)
@pytest.mark.parametrize("kind", ANY)
def test_very_deep_json_is_refused_or_taken_and_breaks_nothing(text: str, kind: str) -> None:
    result = run(ANY[kind], f'{{"value": {text}}}')
    assert result.status == "invalid" and len(str(result.error)) < 500
    assert run(ANY[kind], text).status == "invalid"


def test_deep_python_data_is_refused_and_breaks_nothing() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    for one in ANY.values():
        assert run(one, {"value": deep}).status == "invalid"
    while deep:  # a list this deep cannot be freed by recursion everywhere
        deep = deep[0]


def test_python_data_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    for one in ANY.values():
        assert run(one, {"value": loop}).status == "invalid"


def test_ten_megabytes_of_text_take_the_steps_of_a_few_characters() -> None:
    short, text = (json.dumps({"value": "x" * length}) for length in (10, 10_000_000))
    for one in ANY.values():
        assert len(value_of(run(one, text, sizes=Sizes(input=None)))) == 10_000_000
        assert lines(lambda one=one: run(one, text, sizes=Sizes(input=None))) < 2 * lines(
            lambda one=one: run(one, short)
        )  # type: ignore[misc]
    assert run(number, text).status == "invalid"


@pytest.mark.parametrize("text", ['{"value": "\\ud800"}', '{"value": ["\\udfff"]}', '{"\\ud800": 1}'])
@pytest.mark.parametrize("kind", ANY)
def test_half_a_character_is_refused_or_made_harmless(text: str, kind: str) -> None:
    result = run(ANY[kind], text)
    json.dumps(result.record(), ensure_ascii=False).encode()
    result.text.encode()
    assert result.status in {"ok", "invalid"}
    if result.status == "ok":
        json.dumps(value_of(result), ensure_ascii=False).encode()


@pytest.mark.parametrize("value", ["\ud800", ["\ud800"], {"\ud800": 1}])
@pytest.mark.parametrize("kind", ANY)
def test_half_a_character_in_python_data_breaks_nothing(value: Any, kind: str) -> None:
    result = run(ANY[kind], {"value": value})
    assert result.status in {"ok", "invalid"}
    json.dumps(result.record(), ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "value", [2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63, 2**64 + 1, 10**30, 25227143063332189585438]
)
def test_large_integers_keep_all_their_digits(value: int) -> None:
    for one in (number, raw({"value": {"type": "integer"}}), *ANY.values()):
        for arguments in (f'{{"value": {value}}}', {"value": value}):
            result = run(one, arguments)
            assert (value_of(result), result.repairs) == (value, ())
    seen, _ = judged(number, f'{{"value": {value}}}')
    assert seen["value"] == value and type(seen["value"]) is int


@pytest.mark.parametrize("sign", ["", "-"])
def test_an_integer_of_5000_digits_is_refused_and_breaks_nothing(sign: str) -> None:
    digits = sign + "9" * 5000
    for one in (number, raw({"value": {"type": "integer"}}), *ANY.values()):
        result = run(one, f'{{"value": {digits}}}')
        assert result.status == "invalid" and len(str(result.error)) < 500
        result = run(one, {"value": int("9" * 4000) ** 2})
        assert result.status == "invalid" and len(str(result.error)) < 500
    assert len(str(run(number, f'{{"value": "{digits}"}}').error)) < 500
    assert sys.get_int_max_str_digits() == 4300


@pytest.mark.parametrize("text", ["1e30", "9007199254740992.0", "9007199254740993.0", "-1e300", "1.5", "5e-1"])
def test_a_float_is_no_integer_where_digits_may_be_lost(text: str) -> None:
    for one in (number, raw({"value": {"type": "integer"}})):
        result = run(one, f'{{"value": {text}}}')
        assert (result.status, result.executed) == ("invalid", False)


@pytest.mark.parametrize(
    ("text", "value"), [("5.0", 5), ("-5.0", -5), ("1e3", 1000), ("0.0", 0), ("9007199254740991.0", 2**53 - 1)]
)
def test_a_whole_number_is_an_integer_however_it_is_written_and_that_is_no_repair(text: str, value: int) -> None:
    for one in (number, raw({"value": {"type": "integer"}})):
        seen, result = judged(one, f'{{"value": {text}}}')
        assert (value_of(result), type(value_of(result)), result.repairs) == (value, int, ())
        assert (seen["value"], type(seen["value"])) == (value, int)


# What guards see


def test_judged_arguments_are_read_only_json_with_the_defaults_of_the_top_level() -> None:
    seen, _ = judged(order, '{"lines": [{"sku": "A"}]}')
    assert dict(seen) == {"lines": [{"sku": "A"}], "note": "", "express": False}
    for change in (
        lambda: seen.__setitem__("note", "x"),  # type: ignore[attr-defined]
        lambda: seen["lines"].append(1),
        lambda: seen["lines"][0].update(sku="B"),
        lambda: seen["lines"][0].__setitem__("sku", "B"),
    ):
        with pytest.raises((TypeError, AttributeError)):
            change()


def test_what_the_handler_does_to_its_objects_does_not_reach_what_was_judged() -> None:
    seen: list[Any] = []

    @tool(guards=[lambda call, context: seen.append(call.arguments)])
    async def spoil(items: list[int], more: dict[str, Any]) -> str:
        """Spoil."""
        items.append(99)
        more["x"] = 1
        return "x"

    run(spoil, {"items": [1], "more": {"a": {}}})
    assert dict(seen[0]) == {"items": [1], "more": {"a": {}}}


def test_what_a_caller_does_to_its_mapping_does_not_reach_the_call() -> None:
    given = {"lines": [{"sku": "A"}]}

    @tool(guards=[lambda call, context: given["lines"].clear()])
    async def count(lines: list[Line]) -> int:
        """Count."""
        return len(lines)

    assert run(count, given).output == 1


def test_a_guard_sees_the_json_of_dates_and_the_like() -> None:
    @tool
    async def plan(
        when: date, at: datetime, price: Decimal, id: UUID, colour: Colour, where: Path, tags: set[str], wait: timedelta
    ) -> list[str]:
        """Plan."""
        return [type(value).__name__ for value in (when, at, price, id, colour, tags, wait)]

    arguments = {
        "when": "2026-03-01",
        "at": "2026-03-01T12:00:00Z",
        "price": "1.10",
        "id": "12345678-1234-5678-1234-567812345678",
        "colour": "red",
        "where": "a/b",
        "tags": ["x"],
        "wait": "P1D",
    }
    seen, result = judged(plan, json.dumps(arguments))
    assert dict(seen) == arguments
    assert result.output == ["date", "datetime", "Decimal", "UUID", "Colour", "set", "timedelta"]


async def test_python_objects_are_judged_as_their_json_and_arrive_as_themselves() -> None:
    seen: list[Any] = []
    got: list[Any] = []

    @tool(guards=[lambda call, context: seen.append(dict(call.arguments))])
    async def plan(when: date, at: datetime, lines: list[Line], colour: Colour) -> str:
        """Plan."""
        got.extend([when, at, lines, colour])
        return "x"

    objects = [date(2026, 3, 1), datetime(2026, 3, 1, tzinfo=UTC), [Line(sku="A", count=2)], Colour.RED]
    await plan(when=objects[0], at=objects[1], lines=objects[2], colour=objects[3])
    assert got == objects
    assert seen == [
        {"when": "2026-03-01", "at": "2026-03-01T00:00:00Z", "lines": [{"sku": "A", "count": 2}], "colour": "red"}
    ]


@pytest.mark.parametrize("way", ["function", "class"])
def test_a_default_factory_is_called_once_and_what_was_judged_is_what_runs(way: str) -> None:
    made: list[int] = []

    def make() -> int:
        made.append(len(made))
        return made[-1]

    ran: list[Any] = []

    @tool(name="numbered")
    async def function(value: int = Field(default_factory=make)) -> Any:
        """Number."""
        ran.append(value)
        return value

    class Handler(ToolHandler):
        value: int = Field(default_factory=make)

        async def __call__(self) -> Any:
            ran.append(self.value)
            return self.value

    one = function if way == "function" else Tool("numbered", Handler)
    made.clear()
    seen, result = judged(one, None)
    assert (made, dict(seen), ran, result.output) == ([0], {"value": 0}, [0], 0)


def test_a_default_that_can_be_changed_is_new_for_each_call_where_pydantic_makes_it() -> None:
    class Collect(ToolHandler):
        items: list[int] = []

        async def __call__(self) -> int:
            self.items.append(1)
            return len(self.items)

    made = Tool("collect", Collect)
    assert [run(made).output for _ in range(3)] == [1, 1, 1]


def test_defaults_are_filled_in_for_a_raw_schema_where_a_guard_looks() -> None:
    seen, result = judged(raw({"a": {"type": "integer", "default": 5}, "b": {}}), '{"b": 1}')
    assert dict(seen) == {"a": 5, "b": 1}
    assert result.output == {"b": 1} or result.output == {"a": 5, "b": 1}


@dataclass
class Deep:
    note: str = "n"


def test_defaults_below_the_top_are_left_to_the_handlers_objects() -> None:
    @tool
    async def take(deep: Deep) -> str:
        """Take."""
        return deep.note

    seen, result = judged(take, '{"deep": {}}')
    assert dict(seen) == {"deep": {}} and result.output == "n"


def test_arguments_can_be_read_one_by_one_and_as_a_whole() -> None:
    seen, _ = judged(order, '{"lines": [{"sku": "A"}], "note": "x"}')
    assert seen["note"] == "x" and seen["lines"][0]["sku"] == "A" and len(seen) == 3
    assert list(seen) == ["lines", "note", "express"]
    assert seen.get("nothing") is None and "express" in seen and "nothing" not in seen
    assert json.loads(json.dumps(dict(seen))) == {"lines": [{"sku": "A"}], "note": "x", "express": False}


@pytest.mark.parametrize(
    "one", [flat, raw({"a": {"type": "integer"}, "b": {"type": "string"}})], ids=["typed", "schema"]
)
@given(st.dictionaries(st.sampled_from(["a", "b", "c", "z"]), JSON, max_size=4), st.text(max_size=3))
def test_whatever_comes_there_is_one_answer_and_nothing_is_raised(
    one: Tool, arguments: dict[str, Any], tail: str
) -> None:
    called: list[str] = []

    def look(call: ToolCall, context: Any) -> None:
        called.append("x")

    for sent in (arguments, json.dumps(arguments), json.dumps(arguments)[:-1], json.dumps(arguments) + tail):
        called.clear()
        result = run(one, sent, guards=[look])
        assert result.status in {"ok", "invalid"}
        assert bool(called) == (result.status == "ok")
        assert (result.error is None) == (result.status == "ok")
        json.dumps(result.record(), allow_nan=False).encode()


@pytest.mark.parametrize(
    "make", [lambda: object(), lambda: (x for x in "a"), lambda: len], ids=["object", "generator", "function"]
)
def test_a_python_object_without_a_json_form_is_refused(make: Callable[[], Any]) -> None:
    for one in ANY.values():
        result = run(one, {"value": make()})
        assert result.status in {"invalid", "ok"}
        if result.status == "ok":
            json.dumps(value_of(result))


def worded(annotation: Any, value: Any) -> str:
    async def take(value):  # type: ignore[no-untyped-def]
        """Take."""

    take.__annotations__ = {"value": annotation}
    result = run(tool(take), json.dumps({"value": value}))
    assert result.status == "invalid"
    return str(result.error)


def words(text: str) -> int:
    return max(len(text.split()), len(re.findall(r"\w+", text)))


class Color(Enum):
    RED = "red"
    NONE = None
    ON = True
    PAIR = (1, 2)


class Cat(BaseModel):
    kind: Literal["cat"]


class Cow(BaseModel):
    kind: Literal["cow"]


@pytest.mark.parametrize(
    ("annotation", "value", "wanted"),
    [
        (Literal["x", "y", "z"], "w", "'value' must be 'x', 'y' or 'z', got"),
        (Literal[True, 2], 1, "'value' must be True or 2, got integer 1"),
        (Color, "z", "'value' must be 'red'"),
        (
            Annotated[Cat | Cow, Field(discriminator="kind")],
            {"kind": "dog"},
            "'value.kind' must be 'cat' or 'cow', got",
        ),
    ],
)
def test_the_values_that_are_wanted_are_told(annotation: Any, value: Any, wanted: str) -> None:
    assert wanted in worded(annotation, value)


SIXTY = [[f"{letter}{n}" for n in range(60)] for letter in "abcd"]
WORDY: dict[str, tuple[Any, Any]] = {
    "literals": (Literal[tuple(SIXTY[0])] | Literal[tuple(SIXTY[1])] | Literal[tuple(SIXTY[2])], "x"),  # type: ignore[valid-type]
    "four literals": (Union[tuple(Literal[tuple(values)] for values in SIXTY)], "x"),  # noqa: UP007
    "literals and numbers": (Union[(int, float, *(Literal[tuple(values)] for values in SIXTY))], "x"),
    "pattern": (Annotated[str, Field(pattern="|".join(f"word {n}" for n in range(200)))], "x"),
    "words that came": (int, "a " * 500),
    "keys that came": (dict[str, int], {"a b " * 100: "x y " * 100}),
    "complex": (complex, "x"),
    "complex number": (complex, 5),
    "missing key": (dict[str, Line], {"a b " * 100: {}}),
    "unknown key": (Line, {"sku": "x", "a b " * 100: 1}),
    "values of several words": (Literal[tuple("many words in one " * 3 + str(n) for n in range(60))], "x"),  # type: ignore[valid-type]
}
RAW_WORDY: dict[str, tuple[dict[str, Any], Any]] = {
    "anyOf of enums": ({"anyOf": [{"enum": values} for values in SIXTY]}, "x"),
    "oneOf of enums and types": ({"oneOf": [{"type": "integer"}, *({"enum": values} for values in SIXTY)]}, "x"),
    "not": ({"not": {"enum": SIXTY[0]}}, "a1"),
    "not of objects": ({"not": {"properties": {v: {"type": "string"} for v in SIXTY[1]}}}, {"a": "b " * 99}),
    "pattern": ({"type": "string", "pattern": "|".join(f"word {n}" for n in range(200))}, "x"),
    "const": ({"const": SIXTY}, "x"),
    "dependent": ({"type": "object", "dependentRequired": {"a": SIXTY[0]}}, {"a": 1}),
    "names": ({"type": "object", "propertyNames": {"enum": SIXTY[0]}}, {"x": 1}),
    "words that came": ({"type": "integer"}, "a " * 500),
    "contains": ({"type": "array", "contains": {"enum": SIXTY[0]}}, ["x"]),
}


@pytest.mark.parametrize("kind", WORDY)
def test_no_mistake_takes_many_words(kind: str) -> None:
    error = worded(*WORDY[kind])
    assert words(error) <= 80 and len(error) <= 1200, error
    assert "://" not in error and "'value" in error and "Nothing was run" in error


@pytest.mark.parametrize("kind", RAW_WORDY)
def test_no_mistake_against_a_raw_schema_takes_many_words(kind: str) -> None:
    schema, value = RAW_WORDY[kind]
    error = str(run(raw({"value": schema}), json.dumps({"value": value})).error)
    assert words(error) <= 80 and len(error) <= 1200, error
    assert "://" not in error and "'value" in error and "Nothing was run" in error


def test_each_branch_of_a_choice_has_its_share_of_the_words() -> None:
    error = worded(*WORDY["four literals"])
    for value in ("'a0'", "'b0'", "'c0'", "'d0'"):
        assert value in error, error


def test_many_words_for_parameters_are_few_too() -> None:
    schema = {f"a long name {n}": {"enum": SIXTY[0]} for n in range(60)}
    for arguments in ({"zz": 1}, {"a long name": 1}, {"b c " * 50: 1}):
        assert words(str(run(raw(schema), arguments).error)) <= 80
    required = raw({"value": {"enum": SIXTY[0]}}, required=["value"])
    assert words(str(run(required, {}).error)) <= 80


def test_no_kind_of_mistake_sends_the_reader_to_a_page() -> None:
    for item in list_all_errors():
        details = InitErrorDetails(type=item["type"], loc=("value",), input=1, ctx=item["example_context"] or {})
        error = PydanticError.from_exception_data("take", [details])
        text = explain_errors("take", from_pydantic(error, {"value": 1}), {})
        assert "://" not in text and words(text) <= 80, text


# Digits inside strings


@tool
async def priced(d: Decimal, note: str = "", many: list[Decimal] | None = None) -> Any:
    """Price."""
    return [str(d), note, many]


DIGITS = "0.1000000000000000055511151231257827"


@pytest.mark.parametrize("note", [DIGITS, f'"{DIGITS}', f"\\{DIGITS}", f'\\" {DIGITS} \\', "1e-400"])
def test_digits_inside_a_string_are_no_number(note: str) -> None:
    for text in (
        json.dumps({"d": 0.1, "note": note}),
        json.dumps(json.dumps({"d": 0.1, "note": note})),
        "```json\n" + json.dumps({"note": note, "d": 0.1}) + "\n```",
        json.dumps({"d": 0.1, "note": note, "many": "[0.5]"}),
        json.dumps({"d": 0.0, "note": note}),
    ):
        result = run(priced, text)
        assert result.status == "ok" and result.output[1] == note, result.error


def test_digits_of_a_string_that_is_read_as_json_are_not_lost() -> None:
    inner = f"[{DIGITS}]"
    for text in (
        json.dumps({"d": 0.1, "many": inner}),
        json.dumps(json.dumps({"d": 0.1, "many": inner})),
        json.dumps(f'{{"d": {DIGITS}}}'),
        json.dumps(f'{{"d": 1, "many": [{DIGITS}]}}'),
    ):
        result = run(priced, text)
        assert result.status == "invalid" and DIGITS in str(result.error), text
    assert run(priced, {"d": 1, "many": inner}).status == "invalid"


# Arguments that cannot be read


class Broken(Mapping[str, Any]):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __getitem__(self, key: str) -> Any:
        raise self.error

    def __iter__(self) -> Any:
        raise self.error

    def __len__(self) -> int:
        raise self.error


@pytest.mark.parametrize("error", [ValueError("x"), KeyError("x"), RuntimeError("x"), RecursionError(), MemoryError()])
def test_arguments_that_raise_when_they_are_read_are_invalid(error: Exception) -> None:
    for one in (order, flat, raw({"value": {}})):
        parameters = probe.parameters(one)
        for read in (parameters.validate_with_repairs, parameters.parse_arguments, parameters.validate_change):
            for arguments in (Broken(error), {"value": Broken(error)}):
                with pytest.raises(Invalid, match="cannot be read"):
                    read("take", arguments)
        assert run(one, Broken(error)).status == "invalid"
