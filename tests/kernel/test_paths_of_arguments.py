"""`context.paths`: where the arguments of a call hold paths."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    create_model,
)

from ferrule import Runner, Tool, ToolCall, ToolContext, ToolHandler, allow, ask, tool
from ferrule.values.arguments import FoundPath
from steps import lines
from watched import go

Named = Annotated[str, Field(json_schema_extra={"format": "path"})]


class Copy(BaseModel):
    model_config = ConfigDict(frozen=True)
    origin: Path = Field(alias="from")
    note: str = ""


class Written(BaseModel):
    kind: Annotated[Literal["written"], BeforeValidator(str.lower), PlainSerializer(str.upper)]
    where: Named


class Place:
    """A path of somebody's own."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __fspath__(self) -> str:
        return self.text


def own(said: Any) -> Any:
    """The type of such paths, whose schema is that of another type."""
    return Annotated[
        Place, PlainValidator(Place, json_schema_input_type=said), PlainSerializer(lambda place: place.text)
    ]


Own = own(Named)


class Held(BaseModel):
    own: tuple[Own]


FOUND: dict[str, tuple[Any, Any, list[tuple[Any, ...]]]] = {
    "an alias": (list[Copy], [{"from": "a", "note": "b"}], [(0, "from")]),
    "a branch whose tag is written otherwise": (Written | Copy, {"kind": "written", "where": "a"}, [("where",)]),
    "in a model of somebody's own": (Held, {"own": ["a"]}, [("own", 0)]),
}


async def find_paths(made: Tool, arguments: Any) -> list[tuple[FoundPath, ...]]:
    """Return the paths that each question to a guard finds."""
    seen: list[tuple[FoundPath, ...]] = []

    def guard(call: ToolCall, context: ToolContext) -> None:
        seen.append(context.paths)

    decision = await Runner([made], guards=[guard]).decide(ToolCall("1", made.name, arguments))
    assert decision.kind == "allow", decision.reason
    return seen


async def find_places(made: Tool, value: Any) -> set[tuple[Any, ...]]:
    """Return where a value holds paths, below `value`; a key ends with `key`."""
    [found] = await find_paths(made, {"value": value})
    return {(*one.place[1:], "key") if one.is_key else one.place[1:] for one in found}


async def decide_kind(made: Tool, value: Any, guard: Any) -> str:
    return (await Runner([made], guards=[guard]).decide(ToolCall("1", made.name, {"value": value}))).kind


@pytest.mark.parametrize("case", FOUND)
async def test_paths_are_found_wherever_they_are(case: str) -> None:
    kind, value, places = FOUND[case]

    @tool
    def use(value: kind) -> str:
        return "done"

    class Use(ToolHandler):
        value: kind

        async def __call__(self) -> str:
            return "done"

    for made in (use, Tool(name="use", handler=Use, description="Use it.")):
        assert await find_places(made, value) == set(places)


async def test_a_path_has_the_text_that_the_guard_sees_there() -> None:
    @tool
    def use(value: set[tuple[Path, int]], many: dict[Path, Path]) -> str:
        return "done"

    [found] = await find_paths(use, {"value": [["b", 1], ["a", 2]], "many": {"c/./d": "e/./f"}})
    texts = {one.text: (one.place, one.is_key) for one in found}
    expected = {"a": (("value", 0, 0), False), "b": (("value", 1, 0), False)}
    assert texts == {**expected, "c/d": (("many", "c/d"), True), "e/f": (("many", "c/d"), False)}


PATH = {"type": "string", "format": "path"}
TEXT = {"type": "string"}
CLOSED = {"additionalProperties": False}
UNTAGGED = {"anyOf": [CLOSED | {"properties": {"w": PATH, "a": {}}}, CLOSED | {"properties": {"w": TEXT, "b": {}}}]}
REQUIRING = {"anyOf": [{"properties": {"w": PATH}, "required": ["a"]}, {"properties": {"w": TEXT}}]}
TAGGED = {"oneOf": [{"properties": {"t": {"const": 1}, "w": PATH}}, {"properties": {"t": {"const": 2}}}]}
SCHEMAS: dict[str, tuple[dict[str, Any], Any, list[tuple[Any, ...]]]] = {
    "a reference": ({"$ref": "#/$defs/p"}, "a", [()]),
    "additionalProperties": ({"additionalProperties": PATH, "properties": {"t": TEXT}}, {"t": "a", "k": "b"}, [("k",)]),
    "patternProperties": ({"patternProperties": {"_at$": PATH}}, {"x_at": "a"}, [("x_at",)]),
    "propertyNames": ({"propertyNames": PATH}, {"k": "b"}, [("k", "key")]),
    "unevaluatedProperties": ({"unevaluatedProperties": PATH}, {"k": "b"}, [("k",)]),
    "prefixItems": ({"prefixItems": [TEXT, PATH], "items": TEXT}, ["a", "b", "c"], [(1,)]),
    "items after prefixItems": ({"prefixItems": [TEXT], "items": PATH}, ["a", "b"], [(1,)]),
    "allOf": ({"allOf": [TEXT, {"allOf": [PATH]}]}, "a", [()]),
    "oneOf": (TAGGED, {"t": 1, "w": "a"}, [("w",)]),
    "not that branch": (TAGGED, {"t": 2, "w": "a"}, []),
    "not a branch that refuses a key": (UNTAGGED, {"b": 1, "w": "a"}, []),
    "a branch that may be": (UNTAGGED, {"w": "a"}, [("w",)]),
    "not a branch that requires another key": (REQUIRING, {"w": "a"}, []),
    "a branch with what it requires": (REQUIRING, {"w": "a", "a": 1}, [("w",)]),
    "a test": ({"if": {"properties": {"w": PATH}}, "then": {"properties": {"n": PATH}}}, {"w": "a"}, []),
    "then": ({"if": {"type": "string"}, "then": PATH}, "a", [()]),
    "dependentSchemas": ({"dependentSchemas": {"a": {"properties": {"b": PATH}}}}, {"a": 1, "b": "x"}, [("b",)]),
    "a path that is an object": ({"format": "path"}, {"k": ["v"]}, [("k", "key"), ("k", 0)]),
    "an anchor": (
        {"$anchor": "here", "properties": {"in": {"$ref": "#here"}, "at": PATH}},
        {"in": {"at": "a"}},
        [("in", "at")],
    ),
    "recursion": ({"$ref": "#/$defs/tree"}, {"at": "a", "in": [{"at": "b"}]}, [("at",), ("in", 0, "at")]),
}
DEFINITIONS = {
    "p": PATH,
    "tree": {"properties": {"at": PATH, "in": {"items": {"$ref": "#/$defs/tree"}}}},
}


def of_schema(inner: dict[str, Any]) -> Tool:
    schema = {"type": "object", "properties": {"value": inner}, "$defs": DEFINITIONS}
    return Tool(name="use", handler=lambda payload: "done", description="Use it.", input_schema=schema)


@pytest.mark.parametrize("case", SCHEMAS)
async def test_the_schema_says_where_paths_are(case: str) -> None:
    inner, value, places = SCHEMAS[case]
    assert await find_places(of_schema(inner), value) == set(places)


class Elsewhere(Place):
    """A path of somebody's own that is not what its JSON says."""

    def __fspath__(self) -> str:
        return f"/elsewhere/{self.text}"


WrittenOtherwise = Annotated[
    Elsewhere, PlainValidator(Elsewhere, json_schema_input_type=Named), PlainSerializer(lambda path: path.text)
]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (list[tuple[own(str)]], [["a"]]),  # type: ignore[misc]
        (Annotated[Any, AfterValidator(lambda v: {"x": Path(v["x"])})], {"x": "a"}),
        (Annotated[Any, AfterValidator(lambda v: set(map(Path, v)))], ["a"]),
        (WrittenOtherwise, "a"),
    ],
    ids=["of somebody's own", "made by a validator", "a set made by a validator", "with another JSON"],
)
async def test_a_path_without_a_place_in_the_schema_denies_if_a_guard_asks_for_paths(kind: Any, value: Any) -> None:
    @tool
    def use(value: kind) -> str:
        return "done"

    assert await decide_kind(use, value, lambda call, context: context.paths and None) == "deny"
    assert await decide_kind(use, value, lambda call, context: None) == "allow"


async def test_paths_are_those_of_the_changed_arguments() -> None:
    seen: list[list[str]] = []

    def to_b(call: ToolCall, context: ToolContext) -> Any:
        return allow({"at": "b"}) if call.arguments["at"] == "a" else None

    def look(call: ToolCall, context: ToolContext) -> Any:
        seen.append([one.text for one in context.paths])
        return ask("sure?") if call.arguments["at"] == "b" else None

    @tool
    def use(at: Path) -> str:
        return str(at)

    runner = Runner([use], guards=[to_b, look], approve=lambda *asked: allow({"at": "c"}))
    assert (await runner.run("use", {"at": "a"})).output == "c"
    assert seen == [["b"], ["c"]]


async def test_paths_raise_outside_a_validated_call() -> None:
    with pytest.raises(RuntimeError, match="inside a call"):
        ToolContext().paths
    told: list[str] = []

    async def around(call: ToolCall, context: ToolContext, following: Any) -> Any:
        with pytest.raises(RuntimeError, match="validated"):
            context.paths
        result = await following(call, context)
        told.extend(one.text for one in context.paths)
        return result

    @tool
    def use(at: Path) -> str:
        return "done"

    assert (await Runner([use], guards=[lambda call, context: None], around=[around]).run("use", {"at": "a"})).success
    assert told == ["a"]


# A kind is an annotation, and a function that draws a value of it and adds to `wanted` where its paths are.


def leaf(annotation: Any, values: st.SearchStrategy[Any], is_path: bool) -> Any:
    def draw(data: st.DataObject, place: tuple[Any, ...], wanted: set[Any]) -> Any:
        wanted.update({(place, False)} if is_path else ())
        return data.draw(values)

    return annotation, draw


def list_of(one: Any) -> Any:
    sizes = st.integers(0, 2)
    return list[one[0]], lambda data, at, wanted: [one[1](data, (*at, n), wanted) for n in range(data.draw(sizes))]


def dict_of(one: Any, key: Any, names: list[str]) -> Any:
    def draw(data: st.DataObject, place: tuple[Any, ...], wanted: set[Any]) -> Any:
        keys = data.draw(st.lists(st.sampled_from(names), unique=True, max_size=2))
        wanted.update(((*place, name), True) for name in keys if key is Path)
        return {name: one[1](data, (*place, name), wanted) for name in keys}

    return dict[key, one[0]], draw


def tuple_of(*kinds: Any) -> Any:
    annotation = tuple[tuple(one[0] for one in kinds)]  # type: ignore[misc]
    return annotation, lambda data, at, wanted: [one[1](data, (*at, n), wanted) for n, one in enumerate(kinds)]


def model_of(*kinds: Any) -> Any:
    names = {f"f{n}": one for n, one in enumerate(kinds)}
    made = create_model("Made", **{name: (one[0], ...) for name, one in names.items()})
    return made, lambda data, at, wanted: {name: one[1](data, (*at, name), wanted) for name, one in names.items()}


def optional(one: Any) -> Any:
    draw = lambda data, at, wanted: None if data.draw(st.booleans()) else one[1](data, at, wanted)  # noqa: E731
    return one[0] | None, draw


paths = st.sampled_from(["a", "/b", "../c"])
texts = st.text("ab./", min_size=1, max_size=5).filter(lambda text: text.strip("/."))
kinds = st.recursive(
    st.sampled_from(
        [
            leaf(Path, paths, True),
            leaf(Named, paths, True),
            leaf(str, texts, False),
            leaf(int, st.integers(0, 9), False),
        ]
    ),
    lambda inner: st.one_of(
        inner.map(list_of),
        inner.map(lambda one: dict_of(one, str, ["a", "b", "c"])),
        inner.map(lambda one: dict_of(one, Path, ["a", "b/c", "../d"])),
        inner.map(optional),
        st.builds(tuple_of, inner, inner),
        st.builds(model_of, inner, inner),
    ),
    max_leaves=5,
)


@given(kinds, st.data())
def test_the_paths_of_any_type_are_found(kind: Any, data: st.DataObject) -> None:
    annotation, draw = kind

    @tool
    def use(value: annotation) -> str:
        return "done"

    wanted: set[Any] = set()
    [found] = go(find_paths(use, {"value": draw(data, ("value",), wanted)}))
    assert {(one.place, one.is_key) for one in found} == wanted


def test_the_steps_grow_with_the_arguments_alone() -> None:
    """Each level could be either branch, so that whoever followed every way would take twice as long for each."""
    tree = {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}
    node = {"type": "object", "properties": {"at": PATH, "in": tree}}
    schema = {"type": "object", "properties": {"value": tree}, "$defs": {"a": node, "b": node}}
    made = Tool(name="use", handler=lambda payload: "done", description="Use it.", input_schema=schema)

    def searched(depth: int) -> int:
        value: dict[str, Any] = {"at": "a"}
        for _ in range(depth):
            value = {"at": "a", "in": value}
        arguments = made.handling.parameters.parse_arguments("use", {"value": value})
        work = lines(lambda: arguments.places)
        assert arguments.places is not None
        assert len(arguments.places.paths) == depth + 1
        return work

    assert searched(40) < 12 * searched(4)
