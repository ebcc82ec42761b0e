"""Malformed calls of models: lossless repairs are made and recorded, guesses are refused."""

from __future__ import annotations

import asyncio
import enum
import json
from pathlib import Path
from typing import Any, Literal, Union

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, create_model

import probe
from ferrule import Runner, Tool, ToolCall, ToolResult, tool
from ferrule.arguments.parameters import Invalid
from ferrule.values.frozen import thaw
from ferrule.values.json_text import Malformed, parse_json
from levels import writes_all_levels

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent.parent / "data" / "malformed_calls.json").read_text())[
    "cases"
]


def raw_tool(name: str, schema: dict[str, Any]) -> tuple[Tool, list[Any]]:
    seen: list[Any] = []

    async def execute(payload: dict[str, Any]) -> str:
        seen.append(payload)
        return "done"

    return Tool(name, execute, input_schema=schema, description="Take."), seen


def python_type(node: dict[str, Any]) -> Any:
    """The Python type that says the same as a schema."""
    if "enum" in node:
        return Literal[tuple(node["enum"])]
    if "anyOf" in node:
        return Union[tuple(python_type(branch) for branch in node["anyOf"])]  # noqa: UP007
    if node["type"] == "array":
        return list[python_type(node["items"])] if "items" in node else list[Any]  # type: ignore[misc]
    if node["type"] == "object":
        return model_of(node) if "properties" in node else dict[str, Any]
    return {"string": str, "integer": int, "number": float, "boolean": bool, "null": None}[node["type"]]


def model_of(schema: dict[str, Any]) -> Any:
    required = schema.get("required", ())
    fields = {key: (python_type(node), ... if key in required else None) for key, node in schema["properties"].items()}
    return create_model("Made", **fields)  # type: ignore[call-overload]


def typed_tool(name: str, schema: dict[str, Any]) -> tuple[Tool, list[Any]]:
    """A tool with a model that says the same as the schema."""
    seen: list[Any] = []

    def take(arguments: Any) -> str:
        seen.append(arguments.model_dump(exclude_unset=True, exclude_none=True))
        return "done"

    return tool(take, name=name, input_schema=model_of(schema)), seen


def run(one: Tool, name: str, arguments: Any) -> ToolResult:
    return asyncio.run(Runner([one]).run(ToolCall("c1", name, arguments)))


def outcome(result: ToolResult, seen: list[Any]) -> str:
    if not seen:
        return "reject"
    if any(repair.startswith("read the name") for repair in result.repairs):
        return "resolve"
    return "ok_repaired" if result.repairs else "ok"


def same(one: Any, other: Any) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


BOTH = pytest.mark.parametrize("make", [raw_tool, typed_tool])


@BOTH
@pytest.mark.parametrize("case", CASES, ids=[f"{case['id']}-{case['kind']}" for case in CASES])
def test_calls_from_the_wild_have_an_allowed_outcome(case: dict[str, Any], make: Any) -> None:
    one, seen = make(case["tool"], case["schema"])
    result = run(one, case["called"], case["arguments"])
    assert outcome(result, seen) in case["outcome"], (result, seen)
    if seen:
        assert len(seen) == 1 and result.status == "ok"
        assert same(seen[0], case["args"]) or seen[0] == case["args"]
    else:
        assert result.status in {"invalid", "not_found"} and result.executed is False
        assert "Nothing was run" in str(result.error)
        assert len(str(result.error)) < 600


# The rules, each with both kinds of tools

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "flag": {"type": "boolean"},
        "items": {"type": "array", "items": {"type": "integer"}},
        "table": {"type": "object"},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "maybe": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
        "rows": {
            "type": "array",
            "items": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
        },
    },
}


def call_made_tool(make: Any, arguments: Any) -> tuple[ToolResult, Any]:
    """The result, and what the handler got; `None` where it was not run."""
    one, seen = make("t", SCHEMA)
    result = run(one, "t", arguments)
    return result, seen[0] if seen else None


MENDED: list[tuple[str, dict[str, Any], str]] = [
    ('{"count": "5"}', {"count": 5}, "count"),
    ('{"count": "9007199254740993"}', {"count": 2**53 + 1}, "count"),
    ('{"ratio": "0.5"}', {"ratio": 0.5}, "ratio"),
    ('{"flag": "true"}', {"flag": True}, "flag"),
    ('{"items": "[1, 2]"}', {"items": [1, 2]}, "items"),
    ('{"items": "[\\"1\\", 2]"}', {"items": [1, 2]}, "items"),
    ('{"maybe": "[\\"a\\"]"}', {"maybe": ["a"]}, "maybe"),
    ('{"rows": [{"n": "1"}, {"n": 2}]}', {"rows": [{"n": 1}, {"n": 2}]}, "rows[0].n"),
    ('{"rows": ["{\\"n\\": 1}"]}', {"rows": [{"n": 1}]}, "rows[0]"),
    ('```json\n{"count": 5}\n```', {"count": 5}, "fence"),
    ('"{\\"count\\": 5}"', {"count": 5}, "twice"),
    ('{"count": 5,}', {"count": 5}, "comma"),
    ('{"items": [1, 2,], "count": 5, }', {"items": [1, 2], "count": 5}, "comma"),
    ('{"text": "a\nb"}', {"text": "a\nb"}, "control"),
    ('{"text": "a\tb", "items": [1,]}', {"text": "a\tb", "items": [1]}, "control"),
    ('{"count": 5}{"count": 5}', {"count": 5}, "identical"),
    ('\ufeff{"count": 5}', {"count": 5}, "mark"),
]


@BOTH
@pytest.mark.parametrize(("text", "wanted", "said"), MENDED, ids=range(len(MENDED)))
def test_a_lossless_repair_is_made_and_recorded(make: Any, text: str, wanted: dict[str, Any], said: str) -> None:
    result, got = call_made_tool(make, text)
    assert same(got, wanted), result
    assert any(said in repair for repair in result.repairs), result.repairs
    assert result.record()["repairs"] == list(result.repairs)


REFUSED: list[str] = [
    *('{"count": "5.5"}', '{"count": "0x10"}', '{"count": "١"}', '{"count": " 5"}'),
    *('{"count": "+5"}', '{"count": "05"}', '{"count": ""}', '{"count": "true"}', '{"count": [5]}', '{"count": 1e30}'),
    *('{"count": "1e30"}', '{"count": 9007199254740993.0}', '{"ratio": "NaN"}', '{"ratio": "1e999"}', '{"flag": "1"}'),
    *('{"flag": 1}', '{"flag": "TRUE"}', '{"items": "1, 2"}', '{"items": "[1, 2"}', '{"items": "{\\"a\\": 1}"}'),
    *('{"items": {"0": 1}}', '{"items": "[NaN]"}', '{"table": "[1]"}'),
    *('{"rows": {"n": 1}}', '{"rows": [{"n": null}]}', '{"rows": [{}]}', '{"rows": [{"n": "x"}]}', '{"text": 5}'),
    *('{"text": {"a": 1}}', '{"other": 5}', '{"count": 5}}', "{'count': 5}", "{count: 5}", '{"count": 5,,}'),
    *('{,"count": 5}', '{"items": [,1]}', '{"count": 5} and more', 'I call {"count": 5}', '{"count": 5}[]'),
    *('{"count": NaN}', '{"text": NaN}', '[{"count": 5}]', '"count"'),
    *('"\\"{\\\\\\"count\\\\\\": 5}\\""', '```json\n{"count": 5}\n``` done', '```json\n{"count": 5}'),
    *('```json\n```json\n{"count": 5}\n```\n```', '{"count": 5 /* five */}', '{"text": "a" "b"}'),
]


@BOTH
@pytest.mark.parametrize("text", REFUSED, ids=range(len(REFUSED)))
def test_a_guess_is_refused(make: Any, text: str) -> None:
    result, got = call_made_tool(make, text)
    assert (result.status, got) == ("invalid", None)
    assert result.executed is False and "Nothing was run" in str(result.error)


UNTOUCHED: list[dict[str, Any]] = [
    *({"text": text} for text in ("true", "null", "42", "", '{"a": 1}', "a,]b,}", "```json\n{}\n```", "</text>")),
    {"either": "5"},
    {"table": {"a": "5", "b": "true", "c": "[1]", "d": None}},
    {"maybe": ["5", "null"]},
    {"count": 0, "flag": False, "ratio": 0.0, "items": []},
]


@BOTH
@pytest.mark.parametrize("value", UNTOUCHED, ids=range(len(UNTOUCHED)))
def test_a_valid_value_is_never_touched(make: Any, value: dict[str, Any]) -> None:
    result, got = call_made_tool(make, json.dumps(value))
    assert same(got, value) and result.repairs == ()
    result, got = call_made_tool(make, json.dumps({**value, "rows": '[{"n": 1}]'}))  # nor beside one that is repaired
    assert same(got, {**value, "rows": [{"n": 1}]}) and len(result.repairs) == 1


@BOTH
@pytest.mark.parametrize("name", ["text", "count", "items", "table", "flag"])
def test_null_for_an_optional_value_means_absent(make: Any, name: str) -> None:
    result, got = call_made_tool(make, json.dumps({name: None}))
    assert (got, result.repairs) == ({}, ())


TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
FITTING = st.fixed_dictionaries(
    {},
    optional={
        "text": TEXT,
        "count": st.integers(),
        "flag": st.booleans(),
        "items": st.lists(st.integers(), max_size=4),
        "table": st.dictionaries(TEXT, JSON, max_size=3),
        "rows": st.lists(st.fixed_dictionaries({"n": st.integers()}), max_size=3),
    },
)


@BOTH
@given(FITTING, st.sets(st.sampled_from(["count", "flag", "items", "table", "rows"])))
def test_encoding_a_value_once_more_loses_nothing(make: Any, value: dict[str, Any], which: set[str]) -> None:
    encoded = {key: json.dumps(item) if key in which else item for key, item in value.items()}
    result, got = call_made_tool(make, json.dumps(encoded))
    assert same(got, value), result
    assert len(result.repairs) == len(which & value.keys())


@BOTH
@given(FITTING.filter(bool), st.data())
def test_a_call_that_was_cut_off_anywhere_never_runs(make: Any, value: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(value)
    cut = data.draw(st.integers(1, len(text) - 1))
    result, got = call_made_tool(make, text[:cut])
    assert (result.status, got) == ("invalid", None)


class Circle(BaseModel):
    radius: int
    label: str = "round"


class Group(BaseModel):
    members: list[Circle | list[int]]
    label: str | None = None
    weight: int = 1


async def draw(shape: Circle | Group, after: list[Circle | int] = []) -> str:  # noqa: B006
    """Draw."""
    return "done"


async def sum_up(shape: Circle | dict[str, int]) -> str:
    """Sum up."""
    return "done"


def made(function: Any, how: str) -> Tool:
    typed = tool(function)
    return typed if how == "typed" else raw_tool(typed.name, thaw(typed.input_schema))[0]


def decoded(how: str, value: Any, function: Any = draw) -> Any:
    return json.loads(probe.parameters(made(function, how)).validate_with_repairs("it", json.dumps(value))[1])


HOW = pytest.mark.parametrize("how", ["typed", "schema"])


@HOW
@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({"radius": 1, "label": None}, {"radius": 1}),
        ({"members": [[1]], "label": None, "weight": None}, {"members": [[1]], "label": None}),
        (
            {"members": [{"radius": 1, "label": None}, [1], {"radius": 2, "label": "b"}], "weight": None},
            {"members": [{"radius": 1}, [1], {"radius": 2, "label": "b"}]},
        ),
    ],
)
def test_null_inside_a_union_means_absent(how: str, given: Any, taken: Any) -> None:
    assert decoded(how, {"shape": given})["shape"] == taken


@HOW
def test_a_null_that_may_be_data_is_kept(how: str) -> None:
    for shape in ({"radius": None}, {"radius": 1, "label": None}, {"any": None}):
        with pytest.raises(Invalid):
            decoded(how, {"shape": shape}, sum_up)


@pytest.mark.parametrize(
    ("node", "kept"),
    [
        ({"allOf": [{"type": "array"}, {"title": "T"}]}, False),
        ({"allOf": [{"title": "T"}, {"description": "D"}]}, True),
        ({"anyOf": [{"type": "array"}, {"title": "T"}]}, True),
        ({"$ref": "#/$defs/some", "title": "T"}, False),
    ],
)
def test_a_null_that_the_schema_refuses_is_left_out(node: dict[str, Any], kept: bool) -> None:
    schema = {"type": "object", "properties": {"x": node, "n": {"type": "integer"}}}
    one, seen = raw_tool("pick", {**schema, "$defs": {"some": {"type": "array"}}})
    run(one, "pick", '{"x": null, "n": "1"}')
    assert seen == [{"x": None, "n": 1} if kept else {"n": 1}]


def test_the_reading_that_drops_least_is_chosen() -> None:
    first = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    second = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}}, "required": ["b"]}
    for forms in ([first, second], [second, first]):
        one, seen = raw_tool("pick", {"type": "object", "properties": {"x": {"anyOf": forms}}})
        run(one, "pick", '{"x": {"a": null, "b": null}}')
        assert seen == [{"x": {"b": None}}]


@writes_all_levels
@pytest.mark.parametrize(("levels", "fits"), [(200, True), (201, False)])
def test_json_may_nest_200_deep(levels: int, fits: bool) -> None:
    text = '{"say": "[{[{\\"[{", "value": ' + "[" * levels + "]" * levels + "}"
    if fits:
        assert parse_json(text)["say"] == '[{[{"[{'
        assert len(parse_json("[" + ",".join(["[{}]"] * 1000) + "]")) == 1000
    else:
        with pytest.raises(Malformed, match="recursion limit"):
            parse_json(text)


CHOICES = st.lists(
    st.integers(-99, 99)
    | st.sampled_from([0.5, -1.5, 2.0])
    | st.booleans()
    | st.sampled_from(["1", "-1.5", "a", "true"]),
    min_size=1,
    max_size=5,
    unique_by=lambda choice: (isinstance(choice, bool), choice),
)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Share(enum.Enum):
    HALF = 0.5
    WHOLE = "1"


def taking(kind: Any, schema: dict[str, Any] | None = None) -> Tool:
    """A tool that returns its argument, which has a type or a schema."""

    def take(x: Any) -> Any:
        return x

    take.__annotations__["x"] = kind
    if schema is None:
        return tool(take, read_only=True)
    return tool(take, read_only=True, input_schema={"type": "object", "properties": {"x": schema}, "required": ["x"]})


@given(CHOICES, st.data())
def test_a_text_that_names_a_choice_becomes_that_choice(choices: list[Any], data: st.DataObject) -> None:
    choice = data.draw(st.sampled_from(choices))
    sent = choice if isinstance(choice, str) else json.dumps(choice)
    wanted = sent if sent in choices else choice  # a text that is a choice itself is that one
    schemas = [
        {"enum": choices},
        {"oneOf": [{"const": one} for one in choices]},
        {"anyOf": [{"enum": choices}, {"type": "null"}]},
    ]
    tools = [taking(Any, schema) for schema in schemas]
    if not any(isinstance(one, float) for one in choices):  # which Literal does not take
        tools.append(taking(Literal[tuple(choices)]))
    for one in tools:
        result = Runner([one]).run_sync("take", {"x": sent})
        assert (result.output, type(result.output)) == (wanted, type(wanted)), (one.input_schema, result)
        assert bool(result.repairs) is (wanted is not sent)


@pytest.mark.parametrize(
    ("kind", "sent", "wanted"),
    [
        (Literal[1, 2], "2", 2),
        (Share, "0.5", Share.HALF),
        (Literal[True], "true", True),
        (list[Level], ["1", 2], [Level.LOW, Level.HIGH]),
        (Literal[1, "1"], "1", "1"),
        (Literal[1, 2] | str, "2", "2"),
        *((Literal[1, 2], text, None) for text in ("3", " 2", "2.0", "", "true")),
        (Literal[True], "1", None),
        (Literal["1"], 1, None),
    ],
)
def test_all_kinds_of_choices_are_read_alike(kind: Any, sent: Any, wanted: Any) -> None:
    seen: list[Any] = []

    def take(x: Any) -> None:
        seen.append(x)

    take.__annotations__["x"] = kind
    result = Runner([tool(take, read_only=True)]).run_sync("take", {"x": sent})
    assert seen == ([] if wanted is None else [wanted])
    assert result.status == ("invalid" if wanted is None else "ok")
    assert [type(one) for one in seen] == [type(wanted)][: len(seen)]
