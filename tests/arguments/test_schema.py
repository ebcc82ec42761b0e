"""The schema that a model sees is enforced at every depth and cannot be changed."""

from __future__ import annotations

import asyncio
import copy
import json
from dataclasses import dataclass
from datetime import date
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, Optional, TypeVar, Union
from uuid import UUID

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, HttpUrl, RootModel, SecretStr
from typing_extensions import TypedDict

from ferrule import Runner, Tool, ToolCall, ToolResult, Toolset, build_tool, tool

T = TypeVar("T")


class Colour(Enum):
    """The colours."""

    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Mixed(Enum):
    ONE = 1
    TWO = "two"


class Inner(BaseModel):
    number: int = Field(ge=0, le=9)
    names: list[str] = []


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


class Careless(BaseModel):
    model_config = ConfigDict(extra="ignore")
    a: int


class HoldsOthers(BaseModel):
    closed: Inner
    open: Open
    careless: Careless


@dataclass
class Point:
    x: int
    y: int = 0


class Movie(TypedDict):
    name: str
    year: NotRequired[int]


class Pair(NamedTuple):
    left: int
    right: str = "r"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Tree(BaseModel):
    value: int
    children: list[Tree] = []


class Box(BaseModel, Generic[T]):
    content: T


class Names(RootModel[list[str]]):
    pass


class Aliased(BaseModel):
    from_: int = Field(alias="from")


Pet = Annotated[Union[Cat, Dog], Field(discriminator="kind")]  # noqa: UP007
Even = Annotated[int, AfterValidator(lambda value: value - value % 2)]

# The annotation, JSON that fits, the object that arrives, and JSON that is refused.
TYPES: dict[str, tuple[Any, Any, Any, list[Any]]] = {
    "int": (int, 5, 5, ["x", 1.5, True, [], {}]),
    "float": (float, 1.5, 1.5, ["x", True, [1.0], "1.5x"]),
    "bool": (bool, True, True, [1, 0, "yes", "1", "True"]),
    "str": (str, "5", "5", [5, 1.5, True, ["x"]]),
    "list": (list[int], [1, 2], [1, 2], [["a"], [True], {"a": 1}, 5]),
    "tuple": (tuple[int, str], [1, "a"], (1, "a"), [[1], [1, "a", 2], ["a", 1], [True, "a"]]),
    "dict": (dict[str, int], {"a": 1}, {"a": 1}, [{"a": "b"}, {"a": True}, [1]]),
    "any": (Any, {"a": [1, None]}, {"a": [1, None]}, []),
    "optional": (Optional[int], None, None, ["x", 1.5, True]),  # noqa: UP045
    "union": (int | str, "a", "a", [1.5, True, []]),
    "union of models": (Inner | Point, {"x": 1}, Point(1), [{"x": 1, "number": 1}, {"z": 1}, {}]),
    "literal": (Literal["a", "b"], "b", "b", ["c", 1, "A"]),
    "enum": (Colour, "red", Colour.RED, ["RED", "green", 1]),
    "mixed enum": (Mixed, 1, Mixed.ONE, [True, "one"]),
    "model": (Inner, {"number": 1}, Inner(number=1), [{}, {"number": 1, "x": 2}, {"number": 10}, {"number": "x"}]),
    "dataclass": (Point, {"x": 1}, Point(1), [{}, {"x": 1, "z": 1}, {"x": "a"}, [1, 2]]),
    "typed dict": (Movie, {"name": "a"}, {"name": "a"}, [{}, {"name": "a", "x": 1}, {"name": "a", "year": "b"}]),
    "named tuple": (Pair, [1, "a"], Pair(1, "a"), [[1, 2], ["x", "y"], [1, "a", 3]]),
    "discriminated union": (
        Pet,
        {"kind": "dog", "name": "Rex"},
        Dog(kind="dog", name="Rex"),
        [{"kind": "cow"}, {"kind": "cat", "name": "x"}, {"name": "x"}, {"kind": "dog", "name": "x", "lives": 1}],
    ),
    "root model": (Names, ["a"], Names(["a"]), [[1], {"root": ["a"]}, "a"]),
    "aliased model": (Aliased, {"from": 1}, Aliased(**{"from": 1}), [{"from_": 1}, {}]),
    "path": (Path, "a/b", Path("a/b"), [5, []]),
    "bytes": (bytes, "abc", b"abc", [5]),
    "url": (HttpUrl, "https://example.org/x", HttpUrl("https://example.org/x"), ["not a url", "ftp://x", 5]),
    "secret": (SecretStr, "s", SecretStr("s"), [5]),
    "bounds": (Annotated[int, Field(ge=1, le=5)], 5, 5, [0, 6]),
    "validator": (Even, 5, 4, ["x"]),
}


def made_of(annotation: Any) -> tuple[Tool, list[Any]]:
    """A tool with one parameter of this type, and what arrived."""
    seen: list[Any] = []

    async def take(value):  # type: ignore[no-untyped-def]
        """Take."""
        seen.append(value)
        return "taken"

    take.__annotations__ = {"value": annotation}
    return tool(take), seen


def run(one: Any, arguments: Any) -> ToolResult:
    tools = Toolset([one])
    name = next(iter(tools)).name
    return asyncio.run(Runner(tools).run(ToolCall("c1", name, arguments)))


def valid(schema: Any, instance: Any, formats: bool = True) -> bool:
    return bool(jsonschema_rs.validator_for(copy.deepcopy(schema), validate_formats=formats).is_valid(instance))


@pytest.mark.parametrize("name", TYPES)
def test_a_value_of_every_type_arrives_as_an_object_or_is_refused(name: str) -> None:
    annotation, fits, expected, refused = TYPES[name]
    made, seen = made_of(annotation)
    result = run(made, json.dumps({"value": fits}))
    assert (result.status, result.repairs) == ("ok", ()), result.error
    assert seen == [expected] and type(seen[0]) is type(expected)
    for wrong in refused:
        assert (run(made, json.dumps({"value": wrong})).status, len(seen)) == ("invalid", 1), wrong
    taken = [wrong for wrong in refused if valid(made.input_schema, {"value": wrong})]
    assert [wrong for wrong in taken if (name, repr(wrong)) not in BEYOND] == []
    jsonschema_rs.meta.validate(copy.deepcopy(made.input_schema))
    assert valid(made.input_schema, {"value": fits}, formats=False)  # RFC 3339 wants an offset for each time
    assert '"title": "' not in json.dumps(made.input_schema["properties"]) and "Value" not in json.dumps(
        made.input_schema
    )


# What Pydantic checks and JSON Schema has no word for, or calls by another name.
BEYOND = {
    ("url", "'ftp://x'"),
}


def test_a_models_extra_setting_is_respected() -> None:
    made, seen = made_of(HoldsOthers)
    definitions = made.input_schema["$defs"]
    assert definitions["Open"].get("additionalProperties") is not False
    assert definitions["Careless"].get("additionalProperties") is not False
    value = {"closed": {"number": 1}, "open": {"a": 1, "b": 2}, "careless": {"a": 1, "b": 2}}
    assert run(made, json.dumps({"value": value})).status == "ok"
    assert seen[0].open.model_extra == {"b": 2}
    value["closed"]["x"] = 1
    assert run(made, json.dumps({"value": value})).status == "invalid"


def test_defaults_bounds_formats_and_enums_are_shown() -> None:
    @tool
    async def paint(
        colour: Colour = Colour.RED,
        when: date = date(2026, 1, 1),
        size: Annotated[int, Field(ge=1, le=9)] = 3,
        place: Point = Point(1),  # noqa: B008
    ) -> str:
        """Paint."""
        return "x"

    properties, colour = paint.input_schema["properties"], paint.input_schema["$defs"]["Colour"]
    defaults = {name: node["default"] for name, node in properties.items()}
    assert defaults == {"colour": "red", "when": "2026-01-01", "size": 3, "place": {"x": 1, "y": 0}}
    assert properties["size"] == {"type": "integer", "minimum": 1, "maximum": 9, "default": 3}
    assert properties["when"]["format"] == "date"
    assert (colour["enum"], colour["description"]) == (["red", "blue"], "The colours.")


# What is enforced is what is exported

SCALARS = st.sampled_from(
    [int, str, bool, float, date, Colour, Level, Literal["a", 2], Inner, Point, Movie, Pair, Tree, Pet, UUID]
)
ANNOTATIONS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        inner.map(lambda kind: list[kind]),  # type: ignore[valid-type]
        inner.map(lambda kind: dict[str, kind]),  # type: ignore[valid-type]
        inner.map(lambda kind: Optional[kind]),  # noqa: UP045
        st.tuples(inner, inner).map(lambda kinds: tuple[kinds[0], kinds[1]]),  # type: ignore[valid-type]
        inner.map(lambda kind: Box[kind]),  # type: ignore[valid-type]
    ),
    max_leaves=3,
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 12),
    st.sampled_from([0.5, 1.0, "a", "red", "2026-01-01", "x", ""]),
    st.sampled_from([{"number": 1}, {"number": 1, "extra": 1}, {"x": 1}, {"x": 1, "z": 1}, {"name": "m"}]),
    st.sampled_from([{"name": "m", "z": 1}, {"kind": "dog", "name": "x"}, {"kind": "dog", "name": "x", "z": 1}]),
    st.sampled_from([{"value": 1, "children": [{"value": 2}]}, {"value": 1, "children": [{"value": 2, "z": 1}]}]),
    st.just([1, "a"]),
)
INSTANCES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(st.sampled_from(["k", "content", "x"]), inner, max_size=2),
        inner.map(lambda value: {"content": value}),
    ),
    max_leaves=4,
)


@pytest.mark.slow
@given(ANNOTATIONS, st.lists(INSTANCES, min_size=1, max_size=8))
def test_a_tool_accepts_exactly_what_its_schema_allows(annotation: Any, instances: list[Any]) -> None:
    made, seen = made_of(annotation)
    for instance in instances:
        seen.clear()
        result = run(made, json.dumps({"value": instance}))
        taken = bool(seen) and not result.repairs
        if taken and not (instance is None and "value" not in made.input_schema.get("required", [])):
            assert valid(made.input_schema, {"value": instance}), (annotation, instance)
        if valid(made.input_schema, {"value": instance}):
            assert seen, (annotation, instance, result.error)


def raw(schema: Any, **more: Any) -> Tool:
    async def execute(payload: dict[str, Any]) -> Any:
        return payload

    return build_tool(
        {"name": "raw", "input_schema": schema, "execute": execute, "check_permissions": lambda payload: None, **more}
    )


def test_a_raw_schema_may_allow_other_keys() -> None:
    for schema in (
        {"type": "object"},
        {"type": "object", "properties": {"a": {}}, "additionalProperties": True},
        {"type": "object", "properties": {"a": {}}, "patternProperties": {"^b": {"type": "integer"}}},
    ):
        assert run(raw(schema), '{"b1": 5}').output == {"b1": 5}
