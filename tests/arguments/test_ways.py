"""Huge or ambiguous arguments are answered in few steps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Discriminator, Tag, create_model
from typing_extensions import TypeAliasType, TypedDict

from ferrule import DefinitionError, Runner, Tool, ToolResult, Toolset
from steps import lines, steps


class And(BaseModel):
    parts: list[And | Or | Not] = []
    first: str


class Or(BaseModel):
    parts: list[And | Or | Not] = []
    second: str


class Not(BaseModel):
    part: And | Or | Not | None = None
    third: str


class Branch(BaseModel):
    parts: list[Branch | str] = []
    first: str


Json = TypeAliasType("Json", "list[Json] | dict[str, Json] | int | None")


def search(query: list[Branch]) -> int:
    return len(query)


def items(each: list[int | Branch]) -> int:
    return len(each)


def pairs(each: dict[str, int]) -> int:
    return len(each)


def schema_tool(node: dict[str, Any], /, **definitions: Any) -> Tool:
    schema = {"type": "object", "properties": {"x": node}, "required": ["x"], "$defs": definitions}
    return Tool("given", lambda payload: "ran", description="Take it.", input_schema=schema)


NODE = {"$ref": "#/$defs/node"}


def branch(required: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"parts": {"type": "array", "items": NODE}}, "required": [required]}


def nested(depth: int, leaf: Any, **more: Any) -> Any:
    for _ in range(depth):
        leaf = {"parts": [leaf], **more}
    return leaf


def calling(one: Any, arguments: Any) -> Callable[[], ToolResult]:
    """A call of a tool that is there already."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    tools = Toolset([one])
    name, runner = next(iter(tools)).name, Runner(tools)
    return lambda: asyncio.run(runner.run(name, text))


def run(one: Any, arguments: Any) -> ToolResult:
    return calling(one, arguments)()


class Record(TypedDict, total=False):
    inner: Record | dict[str, Record]


Nested = TypeAliasType("Nested", "list[Nested] | tuple[Nested, int] | str")


UNTAGGED: list[Any] = [And | Or | Not, list[Or], Record, Nested]


@pytest.mark.parametrize("kind", UNTAGGED)
def test_a_recursive_union_needs_a_discriminator(kind: Any) -> None:
    def function(x: Any) -> int:
        return 1

    function.__annotations__["x"] = kind
    model = create_model("Arguments", x=(kind, ...))
    for handler, options in ((function, {}), (lambda args: 1, {"input_schema": model})):
        with pytest.raises(
            DefinitionError,
            match=r"tool 'search': several of the types .* contain the union again, .* give the union a discriminator",
        ):
            Tool("search", handler, **options)  # type: ignore[arg-type]


class All(BaseModel):
    parts: list[Query] = []


class AnyOf(BaseModel):
    any_of: list[Query] = []


def which(value: Any) -> str:
    return "any" if "any_of" in value else "all"


Query = Annotated[Annotated[All, Tag("all")] | Annotated[AnyOf, Tag("any")], Discriminator(which)]
All.model_rebuild()
AnyOf.model_rebuild()


def test_a_callable_discriminator_suffices() -> None:
    def search(query: Query) -> int:
        return 1

    deep: Any = {}
    for level in range(60):
        deep = {("parts", "any_of")[level % 2]: [deep]}
    assert run(search, {"query": deep}).success
    wrong = calling(search, {"query": nested(80, "wrong")})
    assert wrong().status == "invalid" and lines(wrong) < 100_000


def test_a_recursive_schema_is_enforced_at_any_depth() -> None:
    for choice in ("anyOf", "oneOf"):
        one = schema_tool(NODE, node={choice: [branch("first"), branch("second"), branch("third")]})
        assert run(one, {"x": nested(80, {"third": 1}, third=1)}).success
        for wrong, most in ((nested(80, "wrong"), 50_000), ([nested(8, "wrong")] * 500, 500_000)):
            call = calling(one, {"x": wrong})
            assert call().status == "invalid" and lines(call) < most
        assert "'x" in str(run(one, {"x": nested(2, "wrong")}).error)


def test_an_output_against_a_recursive_schema_is_checked_fast() -> None:
    schema = {"$ref": "#/$defs/node", "$defs": {"node": {"anyOf": [branch("first"), branch("second")]}}}

    def give(deep: int) -> Any:
        return nested(deep, "wrong")

    one = Tool("give", give, output_schema=schema)
    assert "holds too many values to say where" in str(run(one, {"deep": 9}).error)
    assert "fits none of the forms" in str(run(one, {"deep": 1}).error)


def doubled(levels: int, wrap: Callable[[list[Any]], dict[str, Any]]) -> dict[str, Any]:
    found = {f"d{at}": wrap([{"$ref": f"#/$defs/d{at + 1}"}] * 2) for at in range(levels)}
    return {**found, f"d{levels}": {"type": "integer"}}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda both: {"not": {"allOf": both}},
        lambda both: {"if": both[0], "then": both[1]},
        lambda both: {"$ref": both[0]["$ref"], "dependentSchemas": {"k": both[1]}},
        lambda both: {"properties": {"k": {"anyOf": both}}},
        lambda both: {"prefixItems": [{"oneOf": both}]},
        lambda both: {"patternProperties": {"": both[0]}, "properties": {"k": both[1]}},
        lambda both: {"additionalProperties": {"items": {"allOf": both}}},
    ],
)
def test_a_schema_with_doubling_references_is_refused(wrap: Callable[[list[Any]], Any]) -> None:
    with pytest.raises(DefinitionError, match="too large once its references are written out"):
        schema_tool({"$ref": "#/$defs/d0"}, **doubled(29, wrap))
    few = schema_tool({"$ref": "#/$defs/d0"}, **doubled(3, wrap))
    assert run(few, {"x": 1}).status in {"ok", "invalid"}


def test_references_by_anchor_and_into_lists_are_followed() -> None:
    at = {f"d{n}": {"$anchor": f"a{n}", "allOf": [{"$ref": f"#a{n + 1}"}] * 2} for n in range(29)}
    with pytest.raises(DefinitionError, match="written out"):
        schema_tool({"$ref": "#a0"}, **at, d29={"$anchor": "a29"})
    listed = [{"allOf": [{"$ref": f"#/$defs/all/allOf/{n + 1}"}] * 2} for n in range(29)]
    with pytest.raises(DefinitionError, match="written out"):
        schema_tool({"$ref": "#/$defs/all/allOf/0"}, all={"allOf": [*listed, {}]})


@pytest.mark.large
def test_a_deep_mistake_is_not_copied_at_every_level() -> None:
    def keep(value: Json) -> int:
        return 1

    def wrong(depth: int) -> Any:
        value: Any = [0] * 150_000 + [0.5]
        for _ in range(depth):
            value = [value]
        return {"value": value}

    assert steps(calling(keep, wrong(180))) < 10 * 150_000
    assert "hold too much for how they nest" in str(run(keep, wrong(180)).error)
    assert "'value[0][0]" in str(run(keep, wrong(2)).error)
    assert run(keep, {"value": [[0] * 150_000, {"a": {"b": [1]}}]}).success


WRONG: dict[str, Callable[[int], Any]] = {
    "items": lambda size: [""] * size,
    "nulls": lambda size: [None] * size,
    "digits": lambda size: [str(number) for number in range(size)],
    "keys": lambda size: {f"key{number}": None for number in range(size)},
    "lists": lambda size: [[[]]] * size,
    "texts": lambda size: ["[1,"] * size,
    "two texts in one": lambda size: json.dumps([json.dumps(["1"] * size)]),
}


@pytest.mark.large
@pytest.mark.parametrize(
    ("one", "wrong"),
    [*((items, wrong) for wrong in WRONG), (pairs, "keys"), (schema_tool({"items": NODE}, node={}), "lists")],
)
def test_explaining_mistakes_takes_linear_steps(one: Any, wrong: str) -> None:
    name = next(iter(next(iter(Toolset([one]))).input_schema["properties"]))

    def count_steps(size: int) -> int:
        call = calling(one, {name: WRONG[wrong](size)})
        call()
        return lines(call)

    assert count_steps(600) < 5 * count_steps(150) + 1_000
