"""From the text of a model to the handler: nothing is guessed or lost, and mistakes are explained."""

from __future__ import annotations

import asyncio
import json
import math
import re
import sys
from collections.abc import Mapping
from decimal import Decimal
from enum import Enum
from typing import Any, Literal

import jsonschema_rs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

import probe
from cast import Unreadable
from ferrule import Runner, Tool, ToolCall, ToolHandler, ToolResult, Toolset, build_tool, tool
from ferrule.arguments.parameters import Invalid
from ferrule.arguments.schema_parameters import SchemaParameters
from ferrule.values.frozen import thaw


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


NOT_NUMBERS = ["NaN", "-Infinity", "1e999"]


class Floats(BaseModel):
    more: dict[str, float] = {}
    anything: Any = None


@pytest.mark.parametrize("text", NOT_NUMBERS)
def test_nan_and_infinity_are_refused_everywhere(text: str) -> None:
    @tool
    async def take(x: float = 0, d: Decimal = Decimal(0), m: Floats | None = None, a: Any = None) -> str:
        """Take."""
        return "ran"

    for arguments in (
        f'{{"x": {text}}}',
        f'{{"d": {text}}}',
        f'{{"m": {{"more": {{"k": {text}}}}}}}',
        f'{{"m": {{"anything": [{text}]}}}}',
        f'{{"a": [[{{"k": {text}}}]]}}',
    ):
        for one in (take, take.replace(guards=[lambda call, context: None])):
            result = run(one, arguments)
            assert (result.status, result.executed) == ("invalid", False), arguments
    assert run(flat, f'{{"a": 1, "c": {text}}}').status == "invalid"
    for schema in ({}, {"type": "number"}, {"type": "array"}, {"type": "object"}):
        put = {"array": f"[{text}]", "object": f'{{"k": {text}}}'}.get(str(schema.get("type")), text)
        assert run(raw({"value": schema}), f'{{"value": {put}}}').status == "invalid"


def test_required_and_default_follow_python() -> None:
    assert "'a' is required" in str(run(flat, "{}").error)
    assert run(flat, '{"a": 1}').output == [1, "x", 0.5]

    @tool
    async def may_be_null(a: int | None) -> Any:
        """Take."""
        return a

    assert run(may_be_null, "{}").status == "invalid"
    assert run(may_be_null, '{"a": null}').output is None
    assert run(flat, '{"a": null}').status == "invalid"
    assert run(flat, '{"a": 1, "b": null}').output == [1, "x", 0.5]
    result = run(order, '{"lines": [{"sku": "A", "count": null}], "note": null}')
    assert result.output == {"lines": [["Line", "A", 1]], "note": "", "express": False}
    assert result.repairs == ()


@tool
async def ping() -> str:
    """Ping."""
    return "pong"


NO_ARGUMENTS = [None, "", "\n", "null", "{}", {}]


@pytest.mark.parametrize("arguments", [*NO_ARGUMENTS, "[]", "[{}]", "5", "true", '"x"', "{}{", "{", "}", "nul"])
def test_arguments_must_be_an_object_or_nothing(arguments: Any) -> None:
    for one in (ping, raw({})):
        result = run(one, arguments)
        assert result.status == ("ok" if arguments in NO_ARGUMENTS else "invalid") and result.repairs == ()


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
def test_a_field_cannot_be_filled_under_another_name(text: str) -> None:
    seen, result = judged(Renamed, text)
    assert (result.status, dict(seen)) == ("invalid", {})


def test_a_field_has_one_name_for_guards_and_models() -> None:
    value = {"path": "x", "to": "y", "inner": {"from": "z"}}
    seen, result = judged(Renamed, json.dumps(value))
    assert dict(seen) == result.output == value
    assert list(Tool("renamed", Renamed).input_schema["properties"]) == ["path", "to", "inner"]


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
    choice: Choice | None = None,
) -> str:
    """Take."""
    return "ran"


LONG = "y" * 900_000
MISTAKES: list[tuple[Any, Any, list[str]]] = [
    ("number", LONG, ["'number'", "integer", "string"]),
    ("many", "value_number_0", ["'many'", "value_number_0"]),
    ("text", 5, ["'text'", "string", "integer 5"]),
    ("choice", {"kind": "b"}, ["choice.kind", '"b"', "a"]),
    ("choice", {"other": 1}, ["choice.other", "not known"]),
    ("nubmer", 1, ["'nubmer'", "did you mean 'number'"]),
    ("z" * 5000, 1, ["not a parameter"]),
]


RAW_MISTAKES: list[tuple[Any, Any, list[str]]] = [
    ({"enum": [f"value_number_{n}_{'x' * 40}" for n in range(500)]}, LONG, ["'value'", "one of", "500"]),
    ({"type": "string", "pattern": "^a+$"}, LONG, ["'value'"]),
    ({"type": "string", "format": "date"}, "1.2.2026", ["'value' must be a date in the format YYYY-MM-DD", "1.2.2026"]),
    ({"type": "array", "items": {"type": "integer"}}, [1, "x"], ["value[1]", "integer"]),
    ({"anyOf": [{"type": "integer"}, {"type": "array"}]}, "x", ["'value'", "integer", "array"]),
    (
        {"anyOf": [{"required": ["iban"]}, {"properties": {"to": {"required": ["card"]}}, "required": ["to"]}]},
        {"to": {}},
        ["'value'", "'iban' is required", "'to.card' is required"],
    ),
    ({"type": "object", "properties": {"k": {}}, "required": ["k"]}, {}, ["value.k", "required"]),
    ({"type": "object", "properties": {"k": {}}, "additionalProperties": False}, {"j": LONG}, ["value.j", "not known"]),
    ({"not": {"type": "string"}}, LONG, ["'value'"]),
]


@pytest.mark.parametrize(("of", "value", "said"), MISTAKES + RAW_MISTAKES)
def test_one_mistake_is_explained_briefly(of: Any, value: Any, said: list[str]) -> None:
    one, name = (much, of) if isinstance(of, str) else (raw({"value": of}), "value")
    result = run(one, json.dumps({name: value}))
    assert (result.status, result.executed) == ("invalid", False)
    error = str(result.error)
    assert len(error.split()) <= 80 and len(error) <= 1200 and "Nothing was run" in error, error
    assert not [word for word in JARGON if word in error] and all(word in error for word in said), error


class Phone(BaseModel):
    kind: Literal["phone"]
    number: str


class Mail(BaseModel):
    kind: Literal["mail"]
    address: str
    box: Literal["home", "work"] = "home"


@tool
async def reach(contact: Phone | Mail | None = None, either: int | list[str] | None = None) -> str:
    """Reach."""
    return "ran"


REACH = thaw(reach.input_schema)


@pytest.mark.parametrize("one", [reach, raw(REACH["properties"], **{"$defs": REACH["$defs"]})])
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"contact": {"kind": "mail", "address": 5}}, {"'contact.address'"}),
        ({"contact": {"kind": "phone"}}, {"'contact.number'"}),
        ({"contact": {"kind": "mail", "address": "a", "box": "shop"}}, {"'contact.box'"}),
        ({"either": ["a", 5]}, {"'either[1]'"}),
        ({"contact": 5}, {"'contact'"}),
    ],
)
def test_errors_are_told_of_the_branch_that_the_value_is_meant_for(one: Any, arguments: Any, told: set[str]) -> None:
    error = str(run(one, arguments).error)
    assert set(re.findall(r"'[\w.\[\]]+'(?= (?:must|is|fits))", error)) == told, error
    assert ("null" in error) == (arguments == {"contact": 5} and one is not reach), error


SMALL: list[dict[str, Any]] = [
    *({"type": kind} for kind in ("integer", "string", "null", "boolean")),
    *({"const": 1}, {"enum": ["a", 1]}, {"minimum": 2}, {"pattern": "^a"}, {"maxLength": 1}),
    *({"required": ["x"]}, {"required": ["y"]}, {"type": "object", "additionalProperties": False}),
]
VALUES = [None, True, 0, 1, 3, "a", "ab", "1", [], {}, {"x": 1}, {"y": 1}, {"x": 1, "y": 1}]


@given(
    st.recursive(
        st.sampled_from(SMALL),
        lambda inner: st.builds(
            lambda word, forms: {word: forms if word != "not" else forms[0]},
            st.sampled_from(["anyOf", "oneOf", "allOf", "not"]),
            st.lists(inner, min_size=1, max_size=3),
        ),
        max_leaves=5,
    ),
    st.sampled_from(VALUES),
)
@example({"oneOf": [{"required": ["x"]}, {"required": ["y"]}]}, {"x": 1, "y": 1})
def test_judged_arguments_fit_the_schema(schema: dict[str, Any], value: Any) -> None:
    parameters = SchemaParameters({"type": "object", "properties": {"value": schema}})
    fits = jsonschema_rs.Draft202012Validator(schema).is_valid
    try:
        values, _, repairs = parameters.validate_with_repairs("one", {"value": value})
    except Invalid:
        assert not fits(value)
    else:
        assert fits(values["value"]) if "value" in values else value is None
        assert not repairs or not fits(value)


def test_many_mistakes_are_explained_briefly() -> None:
    result = run(order, json.dumps({"lines": [{"sku": n} for n in range(10_000)]}))
    assert len(str(result.error)) < 1500
    assert "more mistakes" in str(result.error)


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
def test_every_json_value_reaches_the_handler(value: Any, ascii_only: bool, indent: int | None) -> None:
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
        assert exactly(value_of(run(one, {"value": value})), value)  # from a mapping too


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[" * 100_000 + "]" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000]
)
@pytest.mark.parametrize("kind", ANY)
def test_very_deep_json_is_refused(text: str, kind: str) -> None:
    result = run(ANY[kind], f'{{"value": {text}}}')
    assert result.status == "invalid" and len(str(result.error)) < 500
    assert run(ANY[kind], text).status == "invalid"


def test_deep_cyclic_or_non_finite_data_is_refused() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    loop: list[Any] = []
    loop.append(loop)
    assert run(anything, '{"value": "NaN"}').output == "NaN"  # a word is a string, and no number
    for one in ANY.values():
        for value in (deep, loop, math.nan, [math.nan], {"k": -math.inf}):
            assert run(one, {"value": value}).status == "invalid"
    while deep:  # a list this deep cannot be freed by recursion everywhere
        deep = deep[0]


@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1, 2**63, 2**64 + 1, 10**30])
def test_large_integers_keep_all_their_digits(value: int) -> None:
    for one in (number, raw({"value": {"type": "integer"}}), *ANY.values()):
        for arguments in (f'{{"value": {value}}}', {"value": value}):
            result = run(one, arguments)
            assert (value_of(result), result.repairs) == (value, ())
    seen, _ = judged(number, f'{{"value": {value}}}')
    assert seen["value"] == value and type(seen["value"]) is int


@pytest.mark.parametrize("sign", ["", "-"])
def test_an_integer_of_5000_digits_is_refused(sign: str) -> None:
    digits = sign + "9" * 5000
    for one in (number, raw({"value": {"type": "integer"}}), *ANY.values()):
        result = run(one, f'{{"value": {digits}}}')
        assert result.status == "invalid" and len(str(result.error)) < 500
        result = run(one, {"value": int("9" * 4000) ** 2})
        assert result.status == "invalid" and len(str(result.error)) < 500
    assert len(str(run(number, f'{{"value": "{digits}"}}').error)) < 500
    assert sys.get_int_max_str_digits() == 4300


@pytest.mark.parametrize(
    ("text", "value"), [("5.0", 5), ("-5.0", -5), ("1e3", 1000), ("0.0", 0), ("9007199254740991.0", 2**53 - 1)]
)
def test_a_whole_number_is_an_integer_in_any_notation(text: str, value: int) -> None:
    for one in (number, raw({"value": {"type": "integer"}})):
        seen, result = judged(one, f'{{"value": {text}}}')
        assert (value_of(result), type(value_of(result)), result.repairs) == (value, int, ())
        assert (seen["value"], type(seen["value"])) == (value, int)


@pytest.mark.parametrize("error", [KeyError("x"), RuntimeError("x"), RecursionError()])
def test_unreadable_arguments_are_invalid(error: Exception) -> None:
    for one in (order, flat, raw({"value": {}})):
        parameters = probe.parameters(one)
        for read in (parameters.validate_with_repairs, parameters.parse_arguments, parameters.validate_change):
            for arguments in (Unreadable(error), {"value": Unreadable(error)}):
                with pytest.raises(Invalid, match="cannot be read"):
                    read("take", arguments)
        assert run(one, Unreadable(error)).status == "invalid"
