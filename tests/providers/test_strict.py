"""Strict modes: what is rewritten takes what the tool takes, and what cannot be is refused before any request."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import jsonschema_rs
import pytest
from pydantic import BaseModel

from ferrule import Field, Runner, Tool, ToolCall, Toolset, build_tool, tool
from ferrule.errors import DefinitionError
from ferrule.providers import anthropic, bedrock, cohere, openai_chat, openai_responses
from ferrule.providers._schemas import find_broken_rule, written
from ferrule.providers._strict import ANTHROPIC, BEDROCK, COHERE, MISTRAL, OPENAI, Rules
from ferrule.values.frozen import FrozenDict, thaw

Schema = dict[str, Any]
pytestmark = pytest.mark.slow

ALL = pytest.mark.parametrize("rules", [OPENAI, ANTHROPIC, BEDROCK, MISTRAL, COHERE], ids=lambda rules: rules.provider)


def of(schema: Any, name: str = "odd", **beside: Any) -> Tool:
    """A tool with one required parameter `x` of this schema."""
    whole = {"type": "object", "properties": {"x": schema}, "required": ["x"], "additionalProperties": False, **beside}
    return build_tool({"name": name, "input_schema": whole, "execute": lambda payload, context: payload})


def strict_schema(subject: Tool, rules: Rules) -> FrozenDict:
    return written(subject, rules).schema


def rewritten(schema: Any, rules: Rules, **beside: Any) -> Any:
    return thaw(strict_schema(of(schema, **beside), rules))["properties"]["x"]


# What is rewritten


@ALL
def test_a_dropped_constraint_moves_into_the_description(rules: Rules) -> None:
    schema = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    assert rewritten(schema, rules)["description"] == "{uniqueItems: true}"
    assert rewritten({**schema, "description": "Said."}, rules)["description"] == "Said.\n\n{uniqueItems: true}"


def test_cohere_accepts_undeclared_keys_and_arrays_of_anything() -> None:
    assert rewritten({"type": "object"}, COHERE)["additionalProperties"] is True
    counts = {"type": "object", "additionalProperties": {"type": "integer", "minimum": 1}}
    inner = rewritten(counts, COHERE)["additionalProperties"]
    assert inner == {"type": "integer", "description": "{minimum: 1}"}
    assert rewritten({"type": "array"}, COHERE) == {"type": "array"}


def test_cohere_needs_a_required_parameter_if_there_are_any() -> None:
    with pytest.raises(DefinitionError, match=r"'odd'.*Cohere.*at \$, of the parameters at least one"):
        strict_schema(of({"type": "string"}, required=[]), COHERE)
    nothing = {"name": "nothing", "input_schema": {"type": "object"}, "execute": lambda payload, context: None}
    assert strict_schema(build_tool(nothing), COHERE)["properties"] == {}


KEPT = [
    ({"type": "string", "minLength": 2}, {MISTRAL}),
    ({"type": "integer", "minimum": 1}, {OPENAI, MISTRAL}),
    ({"type": "array", "items": {"type": "string"}, "minItems": 2}, {OPENAI, MISTRAL}),
    ({"type": "string", "format": "date"}, {OPENAI, ANTHROPIC, BEDROCK, MISTRAL, COHERE}),
    ({"type": "string", "pattern": "[a-z]+"}, {OPENAI, MISTRAL, COHERE}),
    ({"type": "string", "pattern": "^[a-z]+$"}, {OPENAI, MISTRAL}),
    ({"type": "string", "pattern": "^(?!no)"}, set()),
    ({"type": "string", "format": "idn-email"}, set()),
]


@ALL
@pytest.mark.parametrize(("schema", "kept_by"), KEPT, ids=str)
def test_each_api_holds_its_own_constraints(schema: Schema, kept_by: set[Rules], rules: Rules) -> None:
    key, value = list(schema.items())[-1]
    dropped = {name: item for name, item in schema.items() if name != key} | {"description": f"{{{key}: {value}}}"}
    assert rewritten(schema, rules) == (schema if rules in kept_by else dropped)


def test_a_dropped_constraint_is_still_enforced() -> None:
    subject = of({"type": "string", "not": {"const": "a"}})
    assert "{not: " in json.dumps(anthropic.tools(Toolset([subject]), strict=True))
    runner = Runner([subject])
    assert runner.run_sync(ToolCall("c", "odd", {"x": "a"})).status == "invalid"
    assert runner.run_sync(ToolCall("d", "odd", {"x": "ab"})).status == "denied"  # valid, and nobody is there to ask


REFUSED: list[tuple[Any, str]] = [
    (True, "without a type"),
    (False, "takes nothing"),
    ({"type": "object", "patternProperties": {"^a": {"type": "string"}}}, "patternProperties"),
    ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "leaves no type"),
    ({"allOf": [{"type": "string", "pattern": "a"}, {"pattern": "b"}]}, "two parts say 'pattern'"),
    # Cohere takes the others.
    ({"type": "object", "additionalProperties": {"type": "string"}}, "a list of pairs"),
    ({"type": "array"}, "say what its items are, as list[str] does"),
]


@ALL
@pytest.mark.parametrize(("schema", "rule"), REFUSED, ids=str)
def test_a_schema_that_cannot_be_strict_is_refused_with_a_way_out(schema: Any, rule: str, rules: Rules) -> None:
    if rules is COHERE and rule in ("a list of pairs", "say what its items are, as list[str] does"):
        assert strict_schema(of(schema), rules)
        return
    with pytest.raises(DefinitionError, match=r"'odd'.*\$\.properties\.x") as raised:
        strict_schema(of(schema), rules)
    assert rule in str(raised.value) and rules.provider in str(raised.value)


def test_openai_optional_becomes_required_and_nullable() -> None:
    @tool
    def greet(name: str, greeting: str = "Hello", kind: Literal["a", "b"] = "a", count: int | None = None) -> str:
        """Greet."""
        return name

    schema = strict_schema(greet, OPENAI)
    assert schema["required"] == ["name", "greeting", "kind", "count"]
    assert schema["properties"]["greeting"]["type"] == ["string", "null"]
    assert "{default: Hello}" in schema["properties"]["greeting"]["description"]
    assert {"type": "null"} in schema["properties"]["kind"]["anyOf"]
    assert strict_schema(greet, ANTHROPIC)["required"] == ["name"]


@ALL
def test_a_described_reference_is_a_union_or_written_out(rules: Rules) -> None:
    defs = {"Name": {"type": "string", "description": "A name."}}
    kept = {"anyOf": [{"$ref": "#/$defs/Name"}], "description": "Mine."}
    written = {"type": "string", "description": "Mine."}
    expected = kept if rules not in (ANTHROPIC, BEDROCK) else written
    assert rewritten({"$ref": "#/$defs/Name", "description": "Mine."}, rules, **{"$defs": defs}) == expected
    assert rewritten({"$ref": "#/$defs/Name"}, rules, **{"$defs": defs}) == {"$ref": "#/$defs/Name"}


@ALL
def test_a_reference_with_more_than_words_beside_it_is_written_out(rules: Rules) -> None:
    defs = {"Name": {"type": "string", "description": "A name."}}
    found = rewritten({"$ref": "#/$defs/Name", "pattern": "a|b"}, rules, **{"$defs": defs})
    assert "$ref" not in str(found)
    assert found["type"] == "string" and "a|b" in str(found) and "A name." in found["description"]


def test_anthropic_refuses_recursion_and_takes_references_that_end() -> None:
    tree = {"type": "object", "properties": {"x": {"$ref": "#/$defs/Tree"}}, "required": ["x"]}
    recursive = Toolset([of({"$ref": "#/$defs/Tree"}, **{"$defs": {"Tree": tree | {"additionalProperties": False}}})])
    with pytest.raises(DefinitionError, match=r"'odd'.*Anthropic.*recursive"):
        anthropic.tools(recursive, strict=True)
    assert openai_chat.tools(recursive, strict=True)
    ending = {"A": {"$ref": "#/$defs/B"}, "B": {"type": "string"}}
    assert rewritten({"anyOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}]}, ANTHROPIC, **{"$defs": ending})
    assert rewritten({"type": "array", "items": {"type": "string"}, "minItems": 1}, ANTHROPIC)["minItems"] == 1


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"


@ALL
def test_the_tag_of_a_union_is_required_and_never_null(rules: Rules) -> None:
    @tool
    async def keep(pet: Annotated[Cat | Dog, Field(discriminator="kind")]) -> None:
        """Keep."""

    schema = thaw(strict_schema(keep, rules))
    cat = schema["$defs"]["Cat"]
    assert "kind" in cat["required"] and cat["properties"]["kind"] == {"type": "string", "const": "cat"}
    assert ("lives" in cat["required"]) is rules.all_required
    assert not jsonschema_rs.is_valid(schema, {"pet": {"kind": None, "lives": 1}})
    assert not jsonschema_rs.is_valid(schema, {"pet": {"lives": 1}})


@ALL
def test_one_of_becomes_any_of_and_all_of_is_merged(rules: Rules) -> None:
    union = {"oneOf": [{"type": "string"}, {"type": "integer"}], "discriminator": {"propertyName": "k"}}
    assert rewritten(union, rules) == {"anyOf": [{"type": "string"}, {"type": "integer"}]}
    parts = [{"type": "string", "minLength": 1}, {"minLength": 3}, {"enum": ["abc", "abcd", 5]}, {"enum": ["abcd", 5]}]
    least = {"minLength": 3} if "minLength" in rules.keeps else {"description": "{minLength: 3}"}
    assert rewritten({"allOf": parts}, rules) == {"type": "string", "enum": ["abcd", 5], **least}


@ALL
def test_a_union_at_the_top_is_refused_unless_it_only_narrows(rules: Rules) -> None:
    either = [{"required": ["x"]}, {"required": ["y"]}]
    assert "anyOf" in strict_schema(of({"type": "string"}, anyOf=either[:1]), rules)["description"]
    with pytest.raises(DefinitionError, match="top of a schema"):
        strict_schema(of({"type": "string"}, anyOf=[{"type": "object", "properties": {}}]), rules)


# Limits


def many(count: int, schema: Schema, required: bool = True) -> Toolset:
    return Toolset([of(schema, name=f"t{n}", required=["x"] if required else []) for n in range(count)])


@pytest.mark.parametrize(
    ("tools", "count"),
    [
        (many(21, {"type": "string"}), "21"),
        (many(20, {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}), "40"),
        (many(17, {"type": ["string", "null"]}), "17"),
    ],
)
@pytest.mark.parametrize("module", [anthropic, bedrock])
def test_claudes_limits_of_a_request_are_reported_with_a_count(module: Any, tools: Toolset, count: str) -> None:
    with pytest.raises(DefinitionError, match=rf"(Anthropic|Bedrock) takes at most .* these are {count}"):
        module.tools(tools, strict=True)
    assert module.tools(tools) and module.tools(tools, strict=["t0", "t1"])


def test_cohere_counts_the_fields_of_all_tools() -> None:
    assert cohere.tools(many(200, {"type": "string"}), strict=True)
    with pytest.raises(DefinitionError, match=r"Cohere takes at most 200 fields .* these are 201: 't0' 1"):
        cohere.tools(many(201, {"type": "string"}), strict=True)


def test_all_tools_that_cannot_be_strict_are_named_at_once() -> None:
    tools = [of({"type": "object"}, name=name) for name in "abc"]
    tools[1] = of({"type": "string"}, name="b")
    with pytest.raises(DefinitionError, match=r"2 tools .*strict for OpenAI: 'a' at \$\.\S+\.x, 'c' at \$\.\S+\.x: "):
        openai_chat.tools(tools, strict=True)
    with pytest.raises(DefinitionError, match=r"^tool 'c' cannot be strict for OpenAI: at"):
        openai_chat.tools(tools[1:], strict=True)


def deep(levels: int) -> Schema:
    schema: Schema = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "count"),
    [
        (deep(10), "11 levels"),
        ({"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(5_000)}}, "5001 properties"),
        ({"enum": [f"v{n}" for n in range(1_001)]}, "1001 enum values"),
        ({"enum": ["v" * 60_000, "w" * 60_000]}, "120001 characters"),
    ],
)
def test_openais_limits_of_a_schema_are_reported_with_a_count(schema: Schema, count: str) -> None:
    with pytest.raises(DefinitionError, match=rf"'odd'.*OpenAI.*{count}"):
        openai_responses.tools(Toolset([of(schema)]), strict=True)
    assert openai_responses.tools(Toolset([of(schema)]))
    assert openai_responses.tools(Toolset([of(deep(9))]), strict=True)


def doubling(definitions: int, **beside: Any) -> Schema:
    """Definitions each of which leads to the next one twice."""
    found: Schema = {f"D{definitions}": {"type": "string"}}
    for number in range(definitions):
        below = {"$ref": f"#/$defs/D{number + 1}", **beside}
        found[f"D{number}"] = {"type": "object", "properties": {"a": below, "b": below}, "required": ["a", "b"]}
    return found


@pytest.mark.parametrize("beside", [{}, {"description": "Below."}], ids=["alone", "described"])
@pytest.mark.parametrize(("rules", "rule"), [(OPENAI, "41 levels"), (ANTHROPIC, None), (MISTRAL, None), (COHERE, None)])
def test_doubling_definitions_are_rewritten_once_or_refused(rules: Rules, rule: str | None, beside: Schema) -> None:
    subject = of({"$ref": "#/$defs/D0"}, **{"$defs": doubling(40, **beside)})
    if beside and rules in (ANTHROPIC, BEDROCK):
        rule = "written out it has more than 20,000 parts"
    broken = find_broken_rule(subject, rules)
    if rule is None:
        assert broken is None and len(strict_schema(subject, rules)["$defs"]) == 41
    else:
        assert broken is not None and rule in broken[1]


@ALL
def test_all_of_many_unions_is_refused(rules: Rules) -> None:
    def unions(count: int) -> Schema:
        return {"allOf": [{"anyOf": [{"type": "string", "minLength": n}, {"type": "string", "maxLength": n + 9}]}
                          for n in range(count)]}  # fmt: skip

    broken = find_broken_rule(of(unions(30)), rules)
    assert broken == ("$.properties.x", "'allOf' of unions makes more than 1,000 forms")
    assert len(rewritten(unions(2), rules)["anyOf"]) == 4


@ALL
def test_equal_branches_are_one_and_1_is_not_true(rules: Rules) -> None:
    branches: list[Schema] = [{"const": 1}, {"const": True}, {"const": 1}, {"anyOf": [{"const": True}, {"const": "a"}]}]
    found = rewritten({"anyOf": branches}, rules)["anyOf"]
    assert [(type(item["const"]), item["const"]) for item in found] == [(int, 1), (bool, True), (str, "a")]
