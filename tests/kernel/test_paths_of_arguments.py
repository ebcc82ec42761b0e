"""`context.paths`: where the arguments of a call hold paths."""

import os
from collections import deque
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, NamedTuple

import isolated_tools
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FilePath,
    NewPath,
    PlainSerializer,
    PlainValidator,
    create_model,
)
from typing_extensions import TypedDict

from ferrule import Runner, Tool, ToolCall, ToolContext, ToolHandler, allow, ask, build_tool, tool
from ferrule.values.arguments import FoundPath
from steps import lines
from watched import go

Named = Annotated[str, Field(json_schema_extra={"format": "path"})]


class Copy(BaseModel):
    model_config = ConfigDict(frozen=True)
    origin: Path = Field(alias="from")
    note: str = ""


class Tree(BaseModel):
    at: Path
    below: list["Tree"] = []


class Pair(NamedTuple):
    left: Path
    right: int


class Entry(TypedDict):
    where: Named


class Local(BaseModel):
    kind: Literal["local"]
    where: Named


class Remote(BaseModel):
    kind: Literal["remote"]
    where: str


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
    "a path": (Path, "a", [()]),
    "a file": (FilePath, "/etc/passwd", [()]),
    "a new path": (NewPath, "/etc/none-such", [()]),
    "a pure path": (set[PurePath], ["b", "a"], [(0,), (1,)]),
    "os.PathLike": (os.PathLike[str], "a", [()]),
    "text": (str, "a", []),
    "text whose schema says so": (Named, "a", [()]),
    "a union": (Path | int, "a", [()]),
    "a list": (list[Path], ["a", "b"], [(0,), (1,)]),
    "a tuple": (tuple[int, Path], [1, "a"], [(1,)]),
    "a deque": (deque[Path], ["a"], [(0,)]),
    "a set": (set[Path | int], ["b", 1, "a"], [(0,), (1,)]),
    "a set of models": (set[Copy], [{"from": "b"}, {"from": "a", "note": "n"}], [(0, "from"), (1, "from")]),
    "a named tuple": (Pair, ["a", 1], [(0,)]),
    "values of a dict": (dict[str, Path], {"k": "a"}, [("k",)]),
    "keys of a dict": (dict[Path, str], {"a/../b": "text"}, [("a/../b", "key")]),
    "both": (dict[Path, list[Path]], {"a": ["b"]}, [("a", "key"), ("a", 0)]),
    "an alias": (list[Copy], [{"from": "a", "note": "b"}], [(0, "from")]),
    "a typed dict": (Entry, {"where": "a"}, [("where",)]),
    "recursion": (Tree, {"at": "a", "below": [{"at": "b"}]}, [("at",), ("below", 0, "at")]),
    "a branch with its tag": (Local | Remote, {"kind": "local", "where": "a"}, [("where",)]),
    "the other branch": (Local | Remote, {"kind": "remote", "where": "a"}, []),
    "a branch whose tag is written otherwise": (Written | Copy, {"kind": "written", "where": "a"}, [("where",)]),
    "a path of somebody's own": (Own, "a", [()]),
    "in a model of somebody's own": (Held, {"own": ["a"]}, [("own", 0)]),
}


def seen_in(made: Tool, arguments: Any) -> list[tuple[FoundPath, ...]]:
    seen: list[tuple[FoundPath, ...]] = []

    def guard(call: ToolCall, context: ToolContext) -> None:
        seen.append(context.paths)

    decision = go(Runner([made], guards=[guard]).decide(ToolCall("1", made.name, arguments)))
    assert decision.kind == "allow", decision.reason
    return seen


def at(arguments: Any, place: tuple[Any, ...]) -> Any:
    for part in place:
        arguments = arguments[part]
    return arguments


@pytest.mark.parametrize("case", FOUND)
def test_paths_are_found_wherever_they_are(case: str) -> None:
    kind, value, places = FOUND[case]

    @tool
    def use(value: kind) -> str:
        return "done"

    class Use(ToolHandler):
        value: kind

        async def __call__(self) -> str:
            return "done"

    wanted = {(("value", *(part for part in place if part != "key")), place[-1:] == ("key",)) for place in places}
    for made in (use, Tool(name="use", handler=Use, description="Use it.")):
        [found] = seen_in(made, {"value": value})
        assert {(one.place, one.is_key) for one in found} == wanted


async def test_a_path_has_the_text_that_the_guard_sees_there() -> None:
    @tool
    def use(value: set[tuple[Path, int]], many: dict[Path, Path]) -> str:
        return "done"

    shown: list[Any] = []

    def guard(call: ToolCall, context: ToolContext) -> None:
        shown.append((call.arguments, context.paths))

    call = ToolCall("1", "use", {"value": [["b", 1], ["a", 2]], "many": {"c/./d": "e/./f"}})
    await Runner([use], guards=[guard]).decide(call)
    [(arguments, paths)] = shown
    assert {one.text for one in paths} == {"a", "b", "c/d", "e/f"}
    assert all(one.text == (one.place[-1] if one.is_key else at(arguments, one.place)) for one in paths)


PATH = {"type": "string", "format": "path"}
TEXT = {"type": "string"}
CLOSED = {"additionalProperties": False}
UNTAGGED = {"anyOf": [CLOSED | {"properties": {"w": PATH, "a": {}}}, CLOSED | {"properties": {"w": TEXT, "b": {}}}]}
REQUIRING = {"anyOf": [{"properties": {"w": PATH}, "required": ["a"]}, {"properties": {"w": TEXT}}]}
TAGGED = {"oneOf": [{"properties": {"t": {"const": 1}, "w": PATH}}, {"properties": {"t": {"const": 2}}}]}
SCHEMAS: dict[str, tuple[dict[str, Any], Any, list[tuple[Any, ...]]]] = {
    "a reference": ({"$ref": "#/$defs/p"}, "a", [()]),
    "a reference to a reference": ({"$ref": "#/$defs/q"}, "a", [()]),
    "additionalProperties": ({"additionalProperties": PATH, "properties": {"t": TEXT}}, {"t": "a", "k": "b"}, [("k",)]),
    "patternProperties": ({"patternProperties": {"_at$": PATH}}, {"x_at": "a"}, [("x_at",)]),
    "propertyNames": ({"propertyNames": PATH}, {"k": "b"}, [("k", "key")]),
    "unevaluatedProperties": ({"unevaluatedProperties": PATH}, {"k": "b"}, [("k",)]),
    "items": ({"items": PATH}, ["a"], [(0,)]),
    "prefixItems": ({"prefixItems": [TEXT, PATH], "items": TEXT}, ["a", "b", "c"], [(1,)]),
    "items after prefixItems": ({"prefixItems": [TEXT], "items": PATH}, ["a", "b"], [(1,)]),
    "allOf": ({"allOf": [TEXT, {"allOf": [PATH]}]}, "a", [()]),
    "anyOf": ({"anyOf": [{"type": "integer"}, PATH]}, "a", [()]),
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
    "recursion": ({"$ref": "#/$defs/tree"}, {"at": "a", "in": [{"at": "b"}]}, [("at",), ("in", 0, "at")]),
}
DEFINITIONS = {
    "p": PATH,
    "q": {"$ref": "#/$defs/p"},
    "tree": {"properties": {"at": PATH, "in": {"items": {"$ref": "#/$defs/tree"}}}},
}


def of_schema(inner: dict[str, Any]) -> Tool:
    schema = {"type": "object", "properties": {"value": inner}, "$defs": DEFINITIONS}
    return Tool(name="use", handler=lambda payload: "done", description="Use it.", input_schema=schema)


@pytest.mark.parametrize("case", SCHEMAS)
def test_the_schema_says_where_paths_are(case: str) -> None:
    inner, value, places = SCHEMAS[case]
    [found] = seen_in(of_schema(inner), {"value": value})
    wanted = {(("value", *(part for part in place if part != "key")), place[-1:] == ("key",)) for place in places}
    assert {(one.place, one.is_key) for one in found} == wanted


def test_a_reference_by_an_anchor_is_followed() -> None:
    inner = {"$anchor": "here", "properties": {"in": {"$ref": "#here"}, "at": PATH}}
    [found] = seen_in(of_schema(inner), {"value": {"in": {"at": "a"}}})
    assert [one.place for one in found] == [("value", "in", "at")]


class Elsewhere:
    """A path of somebody's own that is not what its JSON says."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __fspath__(self) -> str:
        return f"/elsewhere/{self.text}"


Written_otherwise = Annotated[
    Elsewhere,
    PlainValidator(Elsewhere, json_schema_input_type=str),
    PlainSerializer(lambda path: path.text),
]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (own(str), "a"),
        (list[tuple[own(str)]], [["a"]]),  # type: ignore[misc]
        (Annotated[Any, AfterValidator(lambda v: {"x": Path(v["x"])})], {"x": "a"}),
        (Annotated[Any, AfterValidator(lambda v: set(map(Path, v)))], ["a"]),
    ],
    ids=["of somebody's own", "in a tuple", "made by a validator", "a set made by a validator"],
)
async def test_a_path_that_no_schema_says_denies_where_somebody_asks_for_paths(kind: Any, value: Any) -> None:
    @tool
    def use(value: kind) -> str:
        return "done"

    looking = Runner([use], guards=[lambda call, context: context.paths and None])
    assert (await looking.decide(ToolCall("1", "use", {"value": value}))).kind == "deny"


def test_a_path_that_is_written_otherwise_denies_where_somebody_asks_for_paths() -> None:
    @tool
    def use(value: Written_otherwise) -> str:
        return "done"

    looking = Runner([use], guards=[lambda call, context: context.paths and None])
    assert go(looking.decide(ToolCall("1", "use", {"value": "a"}))).kind == "deny"
    assert (
        go(Runner([use], guards=[lambda call, context: None]).decide(ToolCall("1", "use", {"value": "a"}))).kind
        == "allow"
    )


async def test_it_is_about_the_arguments_that_a_guard_or_a_person_changed() -> None:
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


def test_mounted_isolated_and_dict_tools_have_them_too() -> None:
    made = build_tool(
        {
            "name": "use",
            "description": "Use it.",
            "input_schema": {"type": "object", "properties": {"at": PATH}},
            "execute": lambda payload, context: "done",
            "check_permissions": lambda payload, context: None,
        }
    )
    for one in (made, *Runner([made]).as_tools(), tool(isolated_tools.takes_path, isolation="process")):
        assert [[path.place for path in found] for found in seen_in(one, {"at": "a"})] == [[("at",)]]


async def test_it_says_when_it_cannot_know() -> None:
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


texts = st.text("ab./", min_size=1, max_size=5).filter(lambda text: text.strip("/."))
kinds = st.recursive(
    st.sampled_from([(Path, "path"), (Named, "named"), (str, "text"), (int, "number")]),
    lambda inner: st.one_of(
        st.tuples(st.just("list"), inner),
        st.tuples(st.just("dict"), inner),
        st.tuples(st.just("keys"), inner),
        st.tuples(st.just("tuple"), inner, inner),
        st.tuples(st.just("optional"), inner),
        st.tuples(st.just("model"), inner, inner),
    ),
    max_leaves=5,
)


def type_of(kind: Any) -> Any:
    match kind:
        case ("list", inner):
            return list[type_of(inner)]  # type: ignore[misc]
        case ("dict", inner):
            return dict[str, type_of(inner)]  # type: ignore[misc]
        case ("keys", inner):
            return dict[Path, type_of(inner)]  # type: ignore[misc]
        case ("tuple", one, other):
            return tuple[type_of(one), type_of(other)]  # type: ignore[misc]
        case ("optional", inner):
            return type_of(inner) | None
        case ("model", one, other):
            return create_model("Made", one=(type_of(one), ...), other=(type_of(other), ...))
    return kind[0]


def value_of(kind: Any, data: st.DataObject, place: tuple[Any, ...], wanted: set[Any]) -> Any:
    """A value of that kind, and in `wanted` where its paths are."""
    match kind:
        case ("list", inner):
            count = data.draw(st.integers(0, 2))
            return [value_of(inner, data, (*place, index), wanted) for index in range(count)]
        case ("dict", inner):
            keys = data.draw(st.lists(st.sampled_from("abc"), unique=True, max_size=2))
            return {key: value_of(inner, data, (*place, key), wanted) for key in keys}
        case ("keys", inner):
            keys = data.draw(st.lists(st.sampled_from(["a", "b/c", "../d"]), unique=True, max_size=2))
            wanted |= {((*place, key), True) for key in keys}
            return {key: value_of(inner, data, (*place, key), wanted) for key in keys}
        case ("tuple", one, other):
            return [value_of(one, data, (*place, 0), wanted), value_of(other, data, (*place, 1), wanted)]
        case ("optional", inner):
            return None if data.draw(st.booleans()) else value_of(inner, data, place, wanted)
        case ("model", one, other):
            return {
                key: value_of(inner, data, (*place, key), wanted)
                for key, inner in zip(("one", "other"), (one, other), strict=True)
            }
        case (_, "number"):
            return data.draw(st.integers(0, 9))
        case (_, "text"):
            return data.draw(texts)
    wanted.add((place, False))
    return data.draw(st.sampled_from(["a", "/b", "../c"]))


@given(kinds, st.data())
def test_for_any_types_the_paths_are_those_that_were_put_there(kind: Any, data: st.DataObject) -> None:
    made_type = type_of(kind)

    @tool
    def use(value: made_type) -> str:
        return "done"

    wanted: set[Any] = set()
    value = value_of(kind, data, ("value",), wanted)
    [found] = seen_in(use, {"value": value})
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
