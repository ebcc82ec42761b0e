"""`fake`: answers that fit, the same for the same seed, and never from the real handler."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Address
from typing import Annotated, Any, Literal
from uuid import UUID

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, Field

from ferrule import Runner, ToolCall, ToolContext, ToolHandler, Toolset, tool
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError, ToolError
from ferrule.testing import fake
from ferrule.values.decision import Decision, allow, deny
from ferrule.values.result import ToolResult, get_original

OPEN: dict[str, Any] = {"type": "object", "additionalProperties": True}


def never(*given: Any) -> Any:
    raise AssertionError("the real handler was called")


def returning(schema: Any, name: str = "look") -> Tool:
    return Tool(name, lambda payload: never(payload), input_schema=OPEN, output_schema=schema)


def answers(tools: Any, arguments: Any = None, **options: Any) -> ToolResult:
    toolset = fake(tools, **options)
    return Runner(toolset).run_sync(next(iter(toolset)).name, arguments or {})


def fits(schema: Any, value: Any) -> bool:
    validator = jsonschema_rs.validator_for(schema, validate_formats=True)
    return bool(validator.is_valid(value))


def assert_fits(schema: Any) -> None:
    made = fake(returning(schema))
    runner = Runner(made)
    for n in range(4):
        result = runner.run_sync("look", {"n": n})
        assert result.success, result.error
        assert fits(schema, result.output), (schema, result.output)


@st.composite
def numbers(draw: st.DrawFn) -> dict[str, Any]:
    kind, low = draw(st.sampled_from(["integer", "number"])), draw(st.integers(-(2**40), 2**40))
    if draw(st.booleans()):
        return {"type": kind, "multipleOf": draw(st.integers(1, 30)), "minimum": low}
    lower, upper = draw(st.sampled_from([("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")]))
    return {"type": kind, lower: low, upper: low + draw(st.integers(2, 50))}


@st.composite
def texts(draw: st.DrawFn) -> dict[str, Any]:
    low = draw(st.integers(0, 30))
    found: dict[str, Any] = {"type": "string"}
    if draw(st.booleans()):
        found["minLength"] = low
    if draw(st.booleans()):
        found["maxLength"] = low + draw(st.integers(0, 20))
    return found


FORMATS = ["date-time", "date", "time", "duration", "uuid", "email", "uri", "ipv4"]
FORMATTED = st.sampled_from(FORMATS).map(lambda form: {"type": "string", "format": form})
VALUES = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=5), st.just([1, {"a": None}]))
LEAVES = st.one_of(
    numbers(),
    texts(),
    FORMATTED,
    st.builds(lambda value: {"const": value}, VALUES),
    st.builds(lambda values: {"enum": values}, st.lists(VALUES, min_size=1, max_size=4)),
    st.sampled_from([{"type": "null"}, {"type": "boolean"}, {"type": ["string", "null"]}, {}, True]),
)
NAMES = st.sampled_from(["id", "a/b", "~name", "größe", "items", "x y", "$ref-like"])


def arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def made(item: Any, low: int, more: int) -> dict[str, Any]:
        return {"type": "array", "items": item, "minItems": low, "maxItems": low + more}

    def tuples(prefix: list[Any], closed: bool) -> dict[str, Any]:
        return {"type": "array", "prefixItems": prefix, "minItems": len(prefix), "items": not closed}

    lists = st.builds(made, inner, st.integers(0, 3), st.integers(0, 2))
    return st.one_of(lists, st.builds(tuples, st.lists(inner, min_size=1, max_size=3), st.booleans()))


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    properties = draw(st.dictionaries(NAMES, inner, max_size=4))
    found: dict[str, Any] = {"type": "object", "properties": properties}
    found["required"] = [name for name in properties if draw(st.booleans())]
    extra = draw(st.sampled_from(["", "closed", "open", "typed"]))
    if extra:
        found["additionalProperties"] = draw(inner) if extra == "typed" else extra == "open"
    if extra in {"open", "typed"}:
        found["minProperties"] = draw(st.integers(0, 5))
    return found


def composed(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def tagged(schemas: list[Any], key: str) -> dict[str, Any]:
        branches = [
            {"type": "object", "properties": {"kind": {"const": n}, "value": schema}, "required": ["kind", "value"]}
            for n, schema in enumerate(schemas)
        ]
        return {key: branches}

    some = st.lists(inner, min_size=1, max_size=3)
    unions = st.builds(tagged, some, st.sampled_from(["anyOf", "oneOf"]))
    return st.one_of(
        unions, st.builds(lambda schemas: {"anyOf": schemas}, some), inner.map(lambda one: {"allOf": [one]})
    )


SCHEMAS = st.recursive(LEAVES, lambda inner: st.one_of(arrays(inner), objects(inner), composed(inner)), max_leaves=8)


@pytest.mark.slow
@given(schema=SCHEMAS)
def test_an_answer_fits_the_output_schema(schema: Any) -> None:
    assert_fits({"allOf": [schema]})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "multipleOf": 0.5, "minimum": 1, "maximum": 1.4},
        {"type": "number", "multipleOf": 0.1, "exclusiveMinimum": 0, "maximum": 0.3},
        {"type": "array", "uniqueItems": True, "minItems": 3, "items": {"enum": ["a", "b", "c"]}},
        {"allOf": [{"type": "integer", "minimum": 5}, {"type": "integer", "maximum": 6, "multipleOf": 2}]},
        {"type": "object", "properties": {"a": {"type": "string"}, "b": {}}, "required": ["a"],
         "anyOf": [{"required": ["c"]}, {"properties": {"a": {"minLength": 30}}, "required": ["b"]}]},
        {"properties": {"a": {"$ref": "#/$defs/q~1r"}}, "required": ["a"], "$defs": {"q/r": {"enum": [[1]]}}},
        {"anyOf": [{"type": "string", "pattern": "^a$"}, {"type": "null"}]},
        {"type": "object", "properties": {"a": {"not": {}}}, "additionalProperties": {"pattern": "^a$"}},
        {"type": "string", "pattern": "^a$", "default": "a"},
        {"type": "string", "format": "a-format-of-our-own"},
    ],
)  # fmt: skip
def test_an_answer_fits_a_hard_schema(schema: Any) -> None:
    assert_fits(schema)


def test_an_answer_of_a_recursive_schema_ends() -> None:
    mostly_more: dict[str, Any] = {"anyOf": [*[{"$ref": "#"}] * 20, {"type": "null"}]}
    assert_fits({"type": "object", "properties": dict.fromkeys("abc", mostly_more), "required": ["a", "b", "c"]})
    assert_fits({"type": "array", "minItems": 2, "items": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}})
    assert_fits({"type": "object", "properties": {"next": {"$ref": "#"}}, "required": []})


def test_a_valid_example_is_the_answer() -> None:
    assert answers(returning({"type": "string", "examples": ["Lisbon"]})).output == "Lisbon"
    assert isinstance(answers(returning({"type": "integer", "examples": ["Lisbon"]})).output, int)


@pytest.mark.parametrize(
    ("schema", "where", "why"),
    [
        ({"type": "object", "properties": {"code": {"type": "string", "pattern": "^a$"}}, "required": ["code"]},
         "'code'", "its schema has 'pattern', for which no value is made up"),
        ({"type": "array", "minItems": 1, "items": {"not": {"type": "string"}}}, "'0'", "'not'"),
        ({"type": "object", "properties": {"n": {"type": "integer", "minimum": 2, "maximum": 1}}, "required": ["n"]},
         "'n'", "no whole number is within {'minimum': 2, 'maximum': 1}"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "as a whole", "'type' twice: 'string' and 'null'"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "'a'", "without end"),
        ({"type": "array", "minItems": 3, "uniqueItems": True, "items": {"type": "boolean"}}, "'2'", "must differ"),
    ],
)  # fmt: skip
def test_an_impossible_schema_is_refused_with_the_place(schema: Any, where: str, why: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        fake([returning(schema)])
    text = str(caught.value)
    assert "'look'" in text and where in text and why in text and "answers={'look': …}" in text
    assert answers(returning(schema), answers={"look": lambda arguments: ToolResult(output=1)}).success


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=1, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    good: bool = True


@dataclass
class Point:
    x: float
    y: float


class Everything(BaseModel):
    at: datetime
    on: date
    when: time
    took: timedelta
    id: UUID
    total: Decimal = Field(gt=0, max_digits=6, decimal_places=2)
    v4: IPv4Address
    colour: Colour
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    points: list[Point] = Field(min_length=2)
    pair: tuple[int, str]
    tags: frozenset[Literal["a", "b"]]
    by_name: dict[str, float]
    raw: bytes
    code: Annotated[str, Field(pattern=r"^[A-Z]{3}$", examples=["LIS", "OPO"])]
    written: int = Field(alias="writtenOtherwise")
    parent: Everything | None = None


@tool
def everything() -> Everything:
    return never()


@tool
def nothing() -> None:
    never()


@tool
async def forecast(city: str) -> str:
    return never()


@tool
def untold(city: str):  # type: ignore[no-untyped-def]
    never()


def test_a_return_type_gives_an_object_of_it() -> None:
    for seed in range(20):
        result = answers(everything, seed=seed)
        made = get_original(result)[0]
        assert isinstance(made, Everything) and made.code in ("LIS", "OPO")
        assert isinstance(made.points[0], Point)
        assert fits(json.loads(json.dumps(everything.output_schema)), json.loads(result.text))


def test_an_answer_passes_validators_in_code() -> None:
    def even() -> Annotated[int, AfterValidator(lambda n: n if n % 2 == 0 else never())]:
        return int(never())

    assert all(answers(tool(even), seed=seed).output % 2 == 0 for seed in range(20))


@pytest.mark.parametrize("told", [forecast, untold])
def test_a_tool_without_an_output_schema_answers_with_a_text(told: Tool) -> None:
    text = answers(told, {"city": "Lisbon"}).output
    assert text.startswith(f"{told.name}: ") and 10 < len(text) < 60
    assert text != answers(told, {"city": "Porto"}).output


def test_seed_name_and_arguments_determine_the_answer() -> None:
    schema = {"type": "integer", "minimum": 0, "maximum": 10**15}
    first = answers(returning(schema), {"a": 1}).output
    assert first == answers(returning(schema), {"a": 1}, seed=0).output
    assert first != answers(returning(schema), {"a": 1}, seed="0x").output
    assert first != answers(returning(schema), {"a": 2}).output
    assert first != answers(returning(schema, "other"), {"a": 1}).output
    assert answers(returning(schema), {"a": 1, "b": 2}).output == answers(returning(schema), {"b": 2, "a": 1}).output


PROGRAM = """
import asyncio, json
from ferrule import Runner, build_tool
from ferrule.testing import fake
definition = {"name": "look", "execute": lambda payload: None, "check_permissions": lambda payload: None,
              "output_schema": {"type": "object", "additionalProperties": {"type": "array"}, "minProperties": 4}}
result = asyncio.run(Runner(fake(definition, seed="s")).run("look", {"a": "b"}))
print(json.dumps(result.output))
"""


def test_another_process_gives_the_same_answers() -> None:
    command = [sys.executable, "-c", PROGRAM]
    environments = [{**os.environ, "PYTHONHASHSEED": seed} for seed in ("1", "2")]
    one, other = (subprocess.check_output(command, env=env, text=True, timeout=60) for env in environments)
    assert one == other and len(json.loads(one)) >= 4


@tool(read_only=True)
async def add(a: int, b: int = 2) -> int:
    return never()


@tool
def listed() -> list[int]:
    return never()


async def product(arguments: Any) -> int:
    await asyncio.sleep(0)
    return int(arguments["a"] * arguments["b"])


def test_an_answer_is_a_value_or_a_function() -> None:
    assert answers(add, {"a": 3}, answers={"add": 7}).output == 7
    assert answers(add, {"a": 3}, answers={"add": lambda arguments: arguments["a"] - arguments["b"]}).output == 1
    assert answers(add, {"a": 3}, answers={"add": product}).output == 6


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (ToolError("no such number"), "no such number"),
        (LookupError("no such number"), "add failed: LookupError: no such number."),
        (LookupError, "add failed: LookupError."),
    ],
)
def test_an_exception_as_an_answer_is_raised(answer: Any, error: str) -> None:
    runner = Runner(fake(add, answers={"add": answer}))
    traces = set()
    for _ in range(3):
        result = runner.run_sync("add", {"a": 3})
        assert (result.status, result.error) == ("failed", error) and result.exception is not None
        traces.add(len(traceback.extract_tb(result.exception.__traceback__)))
    assert len(traces) == 1  # it does not grow


def test_a_function_with_a_wrong_answer_fails_the_call() -> None:
    result = answers(add, {"a": 3}, answers={"add": lambda arguments: "six"})
    assert result.status == "failed" and "does not fit its output schema" in str(result.error)


def test_a_wrong_value_is_refused() -> None:
    with pytest.raises(DefinitionError, match="the answer of 'add' does not fit its output schema"):
        fake([add], answers={"add": "six"})


async def test_changing_an_answer_does_not_change_the_next() -> None:
    runner = Runner(fake(listed, answers={"listed": [1]}))
    (await runner.run("listed")).output.append(2)
    assert (await runner.run("listed")).output == [1]


def test_an_answer_to_an_unknown_tool_names_the_nearest() -> None:
    with pytest.raises(DefinitionError, match=r"answers: there is no tool 'forcast'; did you mean 'forecast'\?"):
        fake([forecast, add], answers={"forcast": ""})
    with pytest.raises(DefinitionError, match=r"there are \['add'\]"):
        fake([add], answers={"zzz": ""})


class Write(ToolHandler):
    """Write a file."""

    path: str

    async def __call__(self) -> str:
        return str(never())


class Search:
    name = "search"
    description = "Search."
    input_schema = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}

    async def execute(self, payload: Any) -> Any:
        return never()

    def check_permissions(self, payload: Any) -> None:
        if payload["q"] == "secret":
            raise PermissionError("not that")

    def is_read_only(self) -> bool:
        return True


def test_a_fake_keeps_names_schemas_and_traits() -> None:
    real = Toolset([everything, forecast, add, Write, Search(), returning({"type": "integer"})])
    made = fake(real)
    assert made.fingerprint == real.fingerprint
    for one, other in zip(real, made, strict=True):
        assert one.output_schema == other.output_schema
        for trait in ("read_only", "destructive", "idempotent", "open_world", "parallel"):
            assert one.trait(trait, {}) == other.trait(trait, {})


async def test_a_fake_keeps_guards() -> None:
    def small(call: ToolCall, context: ToolContext[Any]) -> Decision:
        return deny("too large") if call.arguments["a"] > 9 else allow()

    guarded = fake(add.replace(guards=[small]))
    assert (await Runner(guarded).run("add", {"a": 10})).status == "denied"
    assert (await Runner(guarded).run("add", {"a": 1})).success
    assert (await Runner(fake(Search())).run("search", {"q": "secret"})).error == "Denied: not that. Nothing was run."
    assert (await Runner(fake(Search())).run("search", {"q": "other"})).success


async def test_a_copy_of_a_fake_is_a_fake() -> None:
    made = fake([add])
    for copied in (
        made.prefixed("my_"),
        made.bind(b=3),
        made.map(lambda one: one.replace(private=("b",)).bind(b=1)),
        made.map(lambda one: one.replace(handler=never_int)),
        Toolset(Runner(made).as_tools()),
    ):
        (one,) = copied
        assert isinstance((await Runner(copied).run(one.name, {"a": 1})).output, int)


async def never_int(a: int, b: int = 2) -> int:
    return int(never())


async def counted(n: int) -> AsyncIterator[int]:
    for k in range(n):
        yield int(never(k))


def test_generators_and_functions_without_a_result_are_faked() -> None:
    assert answers(nothing).success and answers(nothing).output is None
    result = answers(tool(counted), {"n": 2})
    assert result.success and isinstance(result.output, list) and all(isinstance(item, int) for item in result.output)


@pytest.mark.skipif(sys.platform == "win32", reason="isolation needs process groups")
def test_the_fake_of_an_isolated_tool_runs_here() -> None:
    isolated = tool(never_int, isolation="process")
    assert answers(isolated, {"a": 1}, answers={"never_int": lambda: os.getpid()}).output == os.getpid()


def test_a_seed_must_be_a_number_or_a_text() -> None:
    with pytest.raises(DefinitionError, match="seed must be a whole number or a text"):
        fake(add, seed=1.5)  # type: ignore[arg-type]
