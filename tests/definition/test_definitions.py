"""Every definition becomes a tool, or is refused with the reason."""

from __future__ import annotations

import asyncio
import copy
import functools
import json
import os
import re
import subprocess
import sys
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Optional

import pytest
import typing_extensions
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import AliasPath, BaseModel
from typing_extensions import TypedDict

from ferrule import (
    Decision,
    DefinitionError,
    Field,
    Runner,
    Tool,
    ToolCall,
    ToolContext,
    ToolHandler,
    ToolResult,
    Toolset,
    ValidationError,
    allow,
    build_tool,
    tool,
)
from levels import writes_all_levels

WIRE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


def run(thing: Any, arguments: Any = None, context: ToolContext | None = None, **options: Any) -> ToolResult:
    tools = Toolset([thing])
    (one,) = tools
    return asyncio.run(Runner(tools, **options).run(ToolCall("c1", one.name, arguments), context))


async def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


def add_plainly(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


class Adder:
    """Adds."""

    def __init__(self, base: int = 0) -> None:
        self.base = base

    async def add(self, a: int, b: int = 2) -> int:
        """Add two numbers."""
        return self.base + a + b


class CallsAsynchronously:
    async def __call__(self, a: int, b: int = 2) -> int:
        """Add two numbers."""
        return a + b


class AddHandler(ToolHandler):
    """Add two numbers."""

    a: int
    b: int = 2

    async def __call__(self) -> int:
        return self.a + self.b


class AddModel(BaseModel):
    a: int
    b: int = 2


async def add_model(args: AddModel) -> int:
    """Add two numbers."""
    return args.a + args.b


def three(a: int, c: str, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


ADDING_SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 2}},
    "required": ["a"],
}


def add_payload(payload: dict[str, Any]) -> int:
    return int(payload["a"]) + int(payload.get("b", 2))


class Executes:
    name = "add"
    description = "Add two numbers."
    input_schema = ADDING_SCHEMA

    async def execute(self, payload: dict[str, Any]) -> int:
        return add_payload(payload)


WAYS: dict[str, Any] = {
    "async function": add,
    "plain function": add_plainly,
    "bound async method": Adder().add,
    "async callable object": tool(CallsAsynchronously(), name="add"),
    "partial": tool(functools.partial(three, c="x"), name="add"),
    "decorated": tool(read_only=True)(add),
    "Tool(...)": Tool(name="add", handler=add),
    "handler class": AddHandler,
    "model": tool(input_schema=AddModel)(add_model),
    "definition": {
        "name": "add",
        "description": "Add two numbers.",
        "input_schema": ADDING_SCHEMA,
        "execute": add_payload,
        "check_permissions": lambda payload: None,
    },
    "object with execute": Executes(),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_write_a_tool_is_equal(way: str) -> None:
    (made,) = Toolset([WAYS[way]])
    assert made.description == "Add two numbers."
    assert made.input_schema["properties"] == ADDING_SCHEMA["properties"]
    assert made.input_schema["required"] == ["a"]
    assert made.input_schema["additionalProperties"] is False
    assert run(WAYS[way], '{"a": 40}').output == 42
    assert run(WAYS[way], {"a": 40, "b": 3}).output == 43
    assert run(WAYS[way], '{"a": true}').status == "invalid"
    assert run(WAYS[way], '{"a": 1, "c": 2}').status == "invalid"
    assert run(WAYS[way], "{}").status == "invalid"
    assert asyncio.run(made(a=1)) == 3
    with pytest.raises(ValidationError):
        asyncio.run(made(a="x"))


def test_local_types_of_the_defining_function_are_found() -> None:
    class Point(BaseModel):
        x: int

    @dataclass
    class Line:
        ends: list[Point]

    @tool
    async def length(line: Line, unit: Optional[Point] = None) -> int:  # noqa: UP045
        """Measure."""
        return len(line.ends) + line.ends[0].x

    assert run(length, '{"line": {"ends": [{"x": 1}, {"x": 2}]}}').output == 3


# The context


@dataclass
class Deps:
    greeting: str


async def with_deps(c: ToolContext[Deps], name: str) -> str:
    return f"{name} {c.session}"


async def with_union(name: str, *, c: ToolContext[Deps] | None = None) -> str:
    return f"{name} {c and c.session}"


async def with_annotated(name: str, c: Annotated[ToolContext, "note"]) -> str:
    return f"{name} {c.session}"


async def with_two(name: str, c: ToolContext, d: ToolContext) -> str:
    return f"{name} {c.session}" if c is d else "two contexts"


async def with_keywords(name: str, c: ToolContext, **rest: Any) -> str:
    return f"{name} {c.session}"


@pytest.mark.parametrize("function", [with_deps, with_union, with_annotated, with_two, with_keywords])
def test_the_context_is_passed_and_hidden_from_models(function: Callable[..., Any]) -> None:
    made = tool(function)
    assert list(made.input_schema["properties"]) == ["name"]
    assert "$defs" not in made.input_schema
    assert run(made, '{"name": "a"}', ToolContext(session="s1")).output == "a s1"
    for name in {"c", "d"} & set(function.__annotations__):
        assert run(made, json.dumps({"name": "a", name: {"session": "mine"}})).status == "invalid"


@pytest.mark.parametrize("parameter", ["context", "ctx", "context=None", "*, ctx"])
def test_a_context_without_an_annotation_is_refused(parameter: str) -> None:
    namespace: dict[str, Any] = {"ToolContext": ToolContext, "Any": Any}
    exec(f"def bare(path: str, {parameter}): ...", namespace)
    name = parameter.removeprefix("*, ").partition("=")[0]
    for define in (tool, lambda function: Toolset([function]), lambda function: Tool("bare", function)):
        with pytest.raises(DefinitionError, match=rf"for the context of the call annotate it, {name}: ToolContext"):
            define(namespace["bare"])
    for kind in ("str", "Any"):
        exec(f"def given(path: str, {name}: {kind}): ...", namespace)
        assert name in tool(namespace["given"]).input_schema["properties"]


class EmptyAlias(BaseModel):
    a: int = Field(alias="")


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        (EmptyAlias, "the alias of 'a' is empty"),
        (Annotated[int, Field(alias="")], "the alias of 'value' is empty"),
    ],
)
def test_an_unusable_alias_is_refused(annotation: Any, said: str) -> None:
    def take(value: Any) -> None: ...

    take.__annotations__["value"] = annotation
    with pytest.raises(DefinitionError, match=said):
        tool(take)


# Names of parameters


@pytest.mark.parametrize(
    "name", ["self", "cls", "context", "name", "args", "kwargs", "schema", "json", "model_config", "copy", "größe"]
)
def test_a_parameter_can_have_any_name(name: str) -> None:
    space: dict[str, Any] = {}
    exec(f"async def fn({name}: int, *, other: str = 'a') -> str:\n    return str({name}) + other", space)
    made = Tool("fn", space["fn"])
    assert asyncio.run(made(**{name: 5})) == "5a"
    assert run(made, json.dumps({name: 5})).output == "5a"

    def raise_it(call: ToolCall, context: ToolContext) -> Decision:
        return allow({**call.arguments, name: 6})

    assert run(made.replace(guards=[raise_it]), json.dumps({name: 5})).output == "6a"
    assert asyncio.run(made.bind(**{name: 7})()) == "7a"


# Docstrings

STYLES = {
    "google": """Find things.

    Args:
        text (str): The words
            to look for.
        limit: How many: at most.
    """,
    "numpy": """Find things.

    Parameters
    ----------
    text : str
        The words
        to look for.
    limit : int, optional
        How many: at most.
    """,
    "sphinx": """Find things.

    :param str text: The words
        to look for.
    :param limit: How many: at most.
    """,
}


@pytest.mark.parametrize("style", STYLES)
def test_a_docstring_describes_the_tool_and_its_parameters(style: str) -> None:
    async def find(text: str, limit: int = 3) -> list[str]:
        return []

    find.__doc__ = STYLES[style]
    made = tool(find)
    assert made.description == "Find things."
    assert made.input_schema["properties"]["text"]["description"] == "The words to look for."
    assert made.input_schema["properties"]["limit"]["description"] == "How many: at most."


# Wrong definitions


class NoHandler:
    path: str


class NoCall(ToolHandler):
    path: str


class TakesMore(ToolHandler):
    path: str

    async def __call__(self, more: int) -> str:  # type: ignore[override]
        return self.path


def yields(a: int) -> Iterator[int]:
    yield a


async def yields_too(a: int) -> AsyncIterator[int]:
    yield a


def by_position(c: ToolContext, /, a: int) -> int:
    return a


def starred(*args: int) -> int:
    return sum(args)


def foreign(value: Adder) -> int:
    return value.base


def unresolvable(value: "NoSuchType") -> int:  # type: ignore[name-defined]  # noqa: F821, UP037
    return 1


class AliasedByPath(ToolHandler):
    first: str = Field(validation_alias=AliasPath("all", 0))

    async def __call__(self) -> str:
        return self.first


class NamesContext(ToolHandler):
    path: str

    async def __call__(self, context) -> str:  # type: ignore[no-untyped-def]
        return self.path


OTHERS = ("invoke", "on_invoke_tool", "forward", "run")


def of_others(method: str) -> Any:
    """A tool that is run by a method of this name."""
    return type("Search", (), {"name": "search", "description": "Search.", method: lambda self, query: query})()


def of_framework(module: str, method: str) -> Any:
    """A tool of a class that derives from one of that module."""
    base = type("Base", (), {"__module__": module, method: lambda self, **query: query})
    return type("Search", (base,), {"name": "search"})()


ODD_DRAFT = {"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {"prefixItems": 5}}}
WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: Tool("t", "no function"), "function"),
    (lambda: tool(tool(add)), "already"),
    (lambda: Tool("t", NoHandler), "ToolHandler"),
    (lambda: Tool("t", NoCall), "__call__"),
    (lambda: Tool("t", TakesMore), "fields"),
    (lambda: Tool("t", NamesContext), "`context: ToolContext`"),
    (lambda: Tool("t", AliasedByPath), "alias"),
    (lambda: Tool("t", yields), "yields"),
    (lambda: Tool("t", starred), "args"),
    (lambda: Tool("t", by_position), "leave out the /"),
    (lambda: Tool("t", foreign), "JSON can carry"),
    (lambda: Tool("t", unresolvable), "'value'"),
    (lambda: Tool({"name": "x"}), r"name is 1 to 128 letters"),  # type: ignore[arg-type]
    (lambda: Tool("x" * 129, add), "128"),
    (lambda: tool(lambda a: a), "lambda"),
    (lambda: tool(add, private=("pin",)), "pin"),
    (lambda: tool(add, read_only="yes"), "read_only"),
    (lambda: tool(add, guards=[5]), "guards"),
    (lambda: tool(add, examples=[5]), "examples"),
    (lambda: tool(add, metadata=5), "metadata"),
    (lambda: tool(add_payload, input_schema={"type": "string"}), "object"),
    (lambda: tool(add_payload, input_schema={"properties": {"a": {"$ref": "http://127.0.0.1:9/x"}}}), "schema"),
    (lambda: tool(add_payload, input_schema={"properties": {"a": {"$ref": "#/$defs/none"}}}), "schema"),
    (lambda: tool(add_payload, input_schema=ODD_DRAFT), "'prefixItems' must hold schemas"),
    (lambda: tool(add, input_schema=AddModel, name="x"), "args"),
    (lambda: tool(add_model, input_schema=int), "input_schema"),
    (lambda: tool(5), "function"),  # type: ignore[call-overload]
    (lambda: tool(add).bind(c=5), "'c'"),
    (lambda: tool(add).bind(a="x"), "'?a'?"),
    (lambda: Toolset(["x"]), "no tool"),
    *((lambda name=name: Toolset([of_others(name)]), rf"has {name}\(\): wrap it with build_tool\(") for name in OTHERS),
    (lambda: Toolset([of_framework("langchain_core.tools.base", "invoke")]), r"adapters\.langchain\.from_tools\(\["),
    (lambda: Toolset([of_framework("axio.tool", "__call__")]), r"adapters\.axio\.from_tools\(\["),
    (lambda: Toolset([of_framework("pydantic_ai.toolsets.function", "get_tools")]), r"pydantic_ai\.from_toolset\("),
    (lambda: Toolset(add), "list"),  # type: ignore[arg-type]
    (lambda: Toolset([NoHandler]), "instance"),
    (lambda: Toolset([add, add_plainly]).prefixed("\n"), "name"),
    (lambda: Toolset([add]).renamed({"nope": "x"}), "nope"),
    (lambda: Toolset.of(NoHandler()), "no public"),
    (lambda: Toolset.of(Adder), "instance"),
    (lambda: build_tool(5), "dict"),  # type: ignore[arg-type]
    (lambda: build_tool({"name": "x", "execute": add_payload, "check_permissions": yields_too}), "check_permissions"),
    (lambda: build_tool({"name": "x", "execute": lambda: None}), "execute"),
    (lambda: build_tool({"name": "x", "execute": add_payload, "guards": 5}), "guards must be a list"),
]


@pytest.mark.parametrize(("define", "said"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_definition_is_refused_with_the_reason(define: Callable[[], Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said) as caught:
        define()
    assert len(str(caught.value)) > 20
    assert "pydantic.dev" not in str(caught.value)


def nested(levels: int) -> dict[str, Any]:
    """So many objects and arrays in each other."""
    found: dict[str, Any] = {}
    for _ in range((levels - 1) // 2):
        found = {"type": "array", "prefixItems": [found]}
    return found if levels % 2 else {"not": found}


@writes_all_levels
@pytest.mark.parametrize("levels", [202, 100_001])
def test_a_schema_may_nest_200_deep_and_no_deeper(levels: int) -> None:
    for key in ("input_schema", "output_schema"):
        schema = {"type": "object", "properties": {"x": nested(levels - 2)}}
        with pytest.raises(DefinitionError, match=f"{key.replace('_', '.')} has no JSON form"):
            build_tool({"name": "x", "execute": add_payload, key: schema})
        schema["properties"]["x"] = nested(198)
        made = build_tool({"name": "x", "execute": add_payload, key: schema})
        assert getattr(made, key)["properties"] == schema["properties"]


@pytest.mark.parametrize(
    ("option", "wrong"),
    [("concurrency", [0, -1, True, "2", 1.5]), ("timeout", [0, -1, float("nan"), float("inf"), True, "2"])],
)
def test_a_wrong_concurrency_or_timeout_is_refused(option: str, wrong: list[Any]) -> None:
    for value in wrong:
        for define in (lambda **given: tool(add, **given), tool(add).replace):
            with pytest.raises(DefinitionError, match=option):
                define(**{option: value})


class Rest(TypedDict, total=False):
    most: int


@pytest.mark.parametrize("unpacked", [typing.Unpack[Rest], typing_extensions.Unpack[Rest]])
def test_unpacked_typed_dict_keywords_are_refused(unpacked: Any) -> None:
    def find(text: str, **rest: Any) -> str:
        return text

    find.__annotations__["rest"] = unpacked
    with pytest.raises(DefinitionError, match=r"find.*rest has its keys from a TypedDict; write them as parameters"):
        tool(find)


# Options


@pytest.mark.parametrize(
    "define",
    [
        lambda: Tool("add", add, concurency=2),  # type: ignore[call-arg]
        lambda: tool(add, concurency=2),  # type: ignore[call-overload]
        lambda: tool(add).replace(concurency=2),  # type: ignore[call-overload]
        lambda: build_tool({"name": "add", "execute": add_payload, "concurency": 2}),
    ],
)
def test_an_unknown_option_is_refused_with_the_known_ones(define: Callable[[], Any]) -> None:
    with pytest.raises(DefinitionError, match="no option 'concurency'") as caught:
        define()
    assert "concurrency" in str(caught.value) and "output_schema" in str(caught.value)


def test_only_derived_traits_follow_a_change() -> None:
    made = tool(add).replace(read_only=True)
    assert (made.destructive, made.parallel) == (False, True)
    given = tool(add, parallel=False, destructive=True).replace(read_only=True)
    assert (given.destructive, given.parallel) == (True, False)
    assert given.replace(parallel=None).parallel is True
    assert made.replace(handler=add_plainly).replace(read_only=False).destructive is True


# Direct calls


async def test_a_tool_is_called_as_its_function_is() -> None:
    @tool
    async def copy_file(source: Annotated[str, Field(alias="from")], to: str) -> str:
        return f"{source}->{to}"

    for named in ({"source": "a", "to": "b"}, {"from": "a", "to": "b"}):
        assert (await copy_file(**named)) == (await copy_file("a", "b")) == "a->b"

    def mixed(a: int, b: int = 2, c: int = 3, *, d: int = 4) -> list[int]:
        return [a, b, c, d]

    made = tool(mixed)
    assert (await made(10, 20, 30, d=40)) == [10, 20, 30, 40]
    assert (await made(10, c=30)) == [10, 2, 30, 4]
    assert (await made.bind(b=5)(10, 30)) == [10, 5, 30, 4]
    assert (await tool(with_deps)("a")) == "a None"
    assert (await tool(Adder(100).add)(1, 2)) == 103


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: tool(add)(1, 2, 3), "at most 2 arguments by position, not 3"),  # type: ignore[call-arg]
        (lambda: tool(add)(1, a=2), "'a' by position and by name"),  # type: ignore[call-arg]
        (lambda: tool(AddHandler)(1), "no arguments by position"),  # type: ignore[call-arg]
        (lambda: tool(add).bind(a=1)(1, 2), "at most 1"),
    ],
)
def test_a_wrong_direct_call_is_a_type_error(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        call()


# Toolsets


def test_two_tools_of_one_name_are_refused() -> None:
    def other(a: int) -> int:
        return a

    with pytest.raises(DefinitionError) as caught:
        Toolset([add, tool(other, name="add")])
    assert all(said in str(caught.value) for said in ("add", "other", "rename", "prefixed"))
    dotted = tool(add, name="a.b")
    with pytest.raises(DefinitionError):
        Toolset([dotted, tool(add, name=dotted.wire_name)])


async def test_a_decorated_method_belongs_to_its_instance() -> None:
    class Counter:
        def __init__(self, start: int) -> None:
            self.value = start

        @tool(read_only=True)
        async def add(self, step: int = 1) -> int:
            """Count on."""
            self.value += step
            return self.value

        def _hidden(self) -> int:
            return 1

    one, other = Counter(10), Counter(20)
    [made] = Toolset.of(one, prefix="counter_")
    assert (made.name, list(made.input_schema["properties"]), made.read_only) == ("counter_add", ["step"], True)
    assert (await made(step=5)) == 15
    assert (await other.add(step=5)) == 25
    assert (await one.add()) == 16


def test_every_change_of_a_toolset_gives_a_new_one() -> None:
    tools = Toolset([add, add_plainly])
    assert [t.name for t in tools + Toolset([tool(add, name="third")])] == ["add", "add_plainly", "third"]
    assert [t.name for t in tools.only("add")] == ["add"]
    assert [t.name for t in tools.only("add*")] == ["add", "add_plainly"]
    assert [t.name for t in tools.without("*_plainly")] == ["add"]
    assert [t.name for t in tools.prefixed("x_")] == ["x_add", "x_add_plainly"]
    assert [t.name for t in tools.renamed({"add": "sum"})] == ["sum", "add_plainly"]
    assert [t.timeout for t in tools.map(lambda item: item.replace(timeout=3))] == [3, 3]
    assert tools.replace(tool(add, description="New.")).get("add").description == "New."
    assert [t.name for t in tools] == ["add", "add_plainly"]
    assert "add" in tools and tools.get("add") in tools and "sum" not in tools and len(tools) == 2
    with pytest.raises(KeyError):
        tools.replace(tool(add, name="sum"))


def test_binding_fixes_and_hides_an_argument() -> None:
    tools = Toolset([WAYS["definition"], add_plainly, AddHandler]).bind(b=40)
    bound = tool(add).bind(a=1)
    assert "required" not in bound.input_schema
    for copied in (bound, bound.replace(name="sum"), bound.replace(private=("b",))):
        assert run(copied, None).output == 3
    for item in tools:
        assert list(item.input_schema["properties"]) == ["a"]
        assert run(item, '{"a": 2}').output == 42 and run(item, '{"a": 2, "b": 1}').status == "invalid"


def test_tools_and_toolsets_are_frozen_to_the_schema() -> None:
    made = tool(add, metadata={"a": [1]})
    with pytest.raises(AttributeError):
        made.name = "other"
    with pytest.raises(AttributeError):
        del made.name
    with pytest.raises(TypeError):
        made.input_schema["properties"]["a"]["type"] = "string"
    with pytest.raises(TypeError):
        made.input_schema["required"].append("b")
    with pytest.raises(TypeError):
        made.metadata["a"].append(2)
    assert copy.deepcopy(made) is made and copy.copy(made) is made
    assert type(copy.deepcopy(made.input_schema)) is dict


# Names on the wire


@given(st.text(min_size=1, max_size=128) | st.text("aB1_-./:\u00e9\u4e2d", min_size=1, max_size=12))
def test_every_wire_name_leads_back_to_its_tool(name: str) -> None:
    try:
        made = tool(add, name=name)
    except DefinitionError:
        assert not re.fullmatch(r"(?a)\w[\w-]*([./:]\w[\w-]*)*", name)
        return
    assert WIRE.fullmatch(made.wire_name)
    assert made.wire_name == tool(add_plainly, name=name).wire_name
    tools = Toolset([made])
    assert tools.get(name) is made and tools.get(made.wire_name) is made
    result = asyncio.run(Runner(tools).run(ToolCall("c1", made.wire_name, '{"a": 1}')))
    assert (result.output, result.tool_name) == (3, name)


@example(["a.b", "a/b"])
@given(
    st.lists(st.from_regex("[aBé1_][aB_é1-]{0,40}([./:][aB_1][aB_1-]{0,30})?", fullmatch=True), unique=True, max_size=6)
)
def test_names_that_differ_stay_apart_on_the_wire(names: list[str]) -> None:
    tools = Toolset([tool(add, name=name) for name in names])
    assert len({item.wire_name for item in tools}) == len(names)


# Fingerprints and pickles

_FINGERPRINT = """
from enum import Enum
from typing import Literal
from ferrule import Toolset, tool

class Colour(Enum):
    RED = "red"
    BLUE = "blue"

def paint(colour: Colour, tags: frozenset[Literal["a", "b"]] = frozenset({"b", "a"})) -> str:
    "Paint."
    return "x"

print(Toolset([paint]).fingerprint)
"""


def test_a_fingerprint_is_the_same_in_every_process() -> None:
    found = set()
    for seed in ("0", "1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", _FINGERPRINT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        found.add(done.stdout.strip())
    assert len(found) == 1 and re.fullmatch("[0-9a-f]{32}", found.pop())


def test_a_fingerprint_covers_exactly_what_models_see() -> None:
    made = tool(add)
    same = [made.replace(timeout=3), made.replace(guards=[lambda call, context: None]), tool(add, tags=("x",))]
    other = [
        made.replace(name="sum"),
        made.replace(description="x"),
        made.bind(b=1),
        made.replace(metadata={"version": 2}),
    ]
    assert {item.fingerprint for item in same} == {made.fingerprint}
    assert len({item.fingerprint for item in [made, *other]}) == 5
    assert Toolset([add, add_plainly]).fingerprint != Toolset([add_plainly, add]).fingerprint


@pytest.mark.parametrize("which", ["input_schema", "output_schema"])
@pytest.mark.parametrize(
    ("wrong", "place", "value"),
    [
        ({"type": "strng"}, "properties.city.type", '"strng"'),
        ({"anyOf": [{}, {"maxLength": -1}]}, "properties.city.anyOf.1.maxLength", "-1"),
        (5, "properties.city", "5"),
    ],
)
def test_an_invalid_schema_is_reported_with_its_place(which: str, wrong: Any, place: str, value: str) -> None:
    async def find(**arguments: Any) -> Any: ...

    schema = {"type": "object", "properties": {"city": wrong}}
    with pytest.raises(DefinitionError) as error:
        tool(find, **{which: schema})
    assert f"is not a valid JSON Schema: {place!r}" in str(error.value) and value in str(error.value)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Pydantic takes that of typing since Python 3.12")
def test_typings_typed_dict_is_refused() -> None:
    class Place(typing.TypedDict):
        name: str

    async def find(place: Place) -> None: ...

    find.__annotations__["place"] = Place
    with pytest.raises(DefinitionError, match="import TypedDict from typing_extensions"):
        tool(find)
