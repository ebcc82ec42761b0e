"""Plain mode: a keyword that an API refuses is said in another way, and nothing that the tool takes is lost."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal

import pytest
from any_schema import DRAFT_7, Schema, definition_of, make_tool, object_of, schema_in, send, validator
from pydantic import BaseModel, RootModel

from ferrule import Field, Runner, Tool, ToolCall, Toolset, tool
from ferrule.errors import DefinitionError
from ferrule.providers import anthropic, bedrock, cohere, gemini, mistral, ollama, openai_chat, openai_responses
from ferrule.providers.lint import findings

pytestmark = pytest.mark.slow

DRAFT_4 = "http://json-schema.org/draft-04/schema#"


def words_about(module: Any, subject: Tool) -> str:
    """All that is said of the whole of a tool."""
    description, schema = send(module, subject)
    return description + schema.get("description", "")


MODULES = [anthropic, bedrock, cohere, gemini, mistral, ollama, openai_chat, openai_responses]
ALL = pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
WITHOUT_PREFIX_ITEMS = pytest.mark.parametrize("module", [gemini, ollama, openai_chat, openai_responses])
WRITE_OUT = (bedrock, gemini, ollama)
NO_ROOT_DESCRIPTION = (bedrock, ollama)
"""Those that take no description at the root: it belongs into the tool's."""


class Cat(BaseModel):
    """A cat."""

    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    breed: str


class Pet(RootModel[Annotated[Cat | Dog, Field(discriminator="kind")]]):
    pass


class Node(BaseModel):
    name: str
    children: list[Node]


@tool(input_schema=Pet)
async def keep(pet: Pet) -> None:
    """Keep a pet."""


@tool
async def plant(node: Node, at: tuple[float, float], pairs: list[tuple[int, str]] = [], note: str = "a") -> None:  # noqa: B006
    """Plant a tree."""


# The root


@ALL
def test_a_union_at_the_root_becomes_one_object_with_its_forms_in_words(module: Any) -> None:
    runner = Runner([keep])
    description, schema = send(module, keep)
    assert schema["type"] == "object" and schema["required"] == ["kind"]
    assert schema["properties"]["kind"] == {"type": "string", "enum": ["cat", "dog"]}
    assert list(schema["properties"]) == ["kind", "lives", "breed"] and "$defs" not in schema
    assert schema.get("additionalProperties", False) is False
    forms = description if module in NO_ROOT_DESCRIPTION else schema["description"]
    assert 'kind = "cat", lives? (A cat.); kind = "dog", breed.' in forms
    mixed = {"kind": "cat", "breed": "Pug"}  # fits what is sent, and the kernel still refuses it
    assert validator(schema).is_valid(mixed) and runner.run_sync(ToolCall("a", "keep", mixed)).status == "invalid"


@ALL
@pytest.mark.parametrize("key", ["anyOf", "oneOf"])
def test_a_field_of_several_forms_takes_what_one_of_them_takes(module: Any, key: str) -> None:
    forms: list[Schema] = [
        {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "null"}}, "required": ["a"]},
        {"properties": {"a": {"type": "integer"}}, "required": ["a", "c"]},
        {"type": "string"},
    ]
    schema = send(module, make_tool({"type": "object", key: forms}))[1]
    assert schema["properties"]["a"] == {"anyOf": [{"type": "string"}, {"type": "integer"}]}
    assert schema["required"] == ["a"] and key not in schema
    assert schema.get("additionalProperties") is None
    assert "a, b?; a, c." in words_about(module, make_tool({"type": "object", key: forms}))


@ALL
def test_parts_that_cannot_be_merged_are_said_in_words(module: Any) -> None:
    parts = [{"dependentRequired": {"a": ["b"]}}, {"dependentRequired": {"b": ["a"]}}]
    subject = make_tool({**object_of(a={"type": "null"}, b={"type": "null"}), "allOf": parts})
    assert '"b": ["a"]' in words_about(module, subject)


@ALL
def test_a_reference_that_cannot_be_followed_is_said_in_words(module: Any) -> None:
    reference = {"$ref": "#/properties/a/items/0"}
    pair = {"type": "array", "items": [{"type": "null"}]}
    for odd in (reference, {"allOf": [reference, {"minimum": 1}]}):
        schema = send(module, make_tool({**object_of(a=pair, b=odd), "$schema": DRAFT_7}))[1]
        assert "{$ref: #/properties/a/items/0}" in json.dumps(schema)


@pytest.mark.parametrize(
    ("module", "stay"),
    [(anthropic, {"not", "enum"}), (openai_responses, set()), (bedrock, set()), (mistral, {"not", "enum"})],
)
def test_a_keyword_refused_at_the_root_is_said_in_words_there(module: Any, stay: set[str]) -> None:
    odd = {**object_of(a={"type": "integer", "not": {"const": 3}}), "not": {"required": ["b"]}, "enum": [{"a": 1}]}
    description, schema = send(module, make_tool(odd))
    assert schema.keys() & {"not", "enum"} == stay
    assert schema["properties"]["a"]["not"] == {"const": 3}
    assert stay or 'not: {"required": ["b"]}, enum: [{"a": 1}]' in description + schema.get("description", "")


@pytest.mark.parametrize("module", NO_ROOT_DESCRIPTION)
def test_a_root_description_goes_into_that_of_the_tool_once(module: Any) -> None:
    for said, expected in (("More.", "Do it.\n\nMore."), ("Do it.", "Do it.")):
        description, schema = send(module, make_tool({**object_of(a={"type": "null"}), "description": said}))
        assert description == expected and "description" not in schema


@ALL
def test_no_schema_is_sent_with_its_address(module: Any) -> None:
    address = {"$id": "https://example.org/b", "$schema": "https://json-schema.org/draft/2020-12/schema"}
    odd = {**object_of(a={"type": "string", **address}), **address, "$id": "https://example.org/a"}
    text = json.dumps(send(module, make_tool(odd)))
    assert "example.org" not in text and "json-schema.org" not in text


# Arrays


@WITHOUT_PREFIX_ITEMS
def test_prefix_items_become_one_schema_and_words(module: Any) -> None:
    first = [{"type": "string"}, {"type": "integer"}]
    odd = {"type": "array", "prefixItems": first, "minItems": 1, "items": False}
    found = send(module, make_tool(object_of(a=odd)))[1]["properties"]["a"]
    assert found["items"] == {"anyOf": first} and "prefixItems" not in found
    assert '{prefixItems: [{"type": "string"}, {"type": "integer"}]' in found["description"]
    assert module is ollama or (found["minItems"], found["maxItems"]) == (1, 2)
    more = send(module, make_tool(object_of(a={**odd, "items": {"type": "null"}})))[1]["properties"]["a"]
    assert more["items"] == {"anyOf": [*first, {"type": "null"}]}


@pytest.mark.parametrize("module", [anthropic, bedrock, cohere, mistral])
def test_prefix_items_are_sent_to_an_api_that_accepts_them(module: Any) -> None:
    assert "prefixItems" in send(module, plant)[1]["properties"]["at"]


def test_an_older_draft_goes_as_draft_2020_12() -> None:
    pair = {"type": "array", "items": [{"type": "string"}], "additionalItems": False}
    pair |= {"additionalItems": {"$ref": "#/definitions/D", "minimum": 5}}
    odd = {"$schema": DRAFT_7, **object_of(a=pair), "definitions": {"D": {"type": "integer"}}}
    assert send(anthropic, make_tool(odd))[1] == {
        **object_of(a={"type": "array", "prefixItems": [{"type": "string"}], "items": {"$ref": "#/$defs/D"}}),
        "$defs": {"D": {"type": "integer"}},
    }
    above = {"type": "number", "minimum": 1, "exclusiveMinimum": True, "maximum": 5, "exclusiveMaximum": False}
    found = send(anthropic, make_tool({"$schema": DRAFT_4, **object_of(a=above)}))[1]
    assert found["properties"]["a"] == {"type": "number", "exclusiveMinimum": 1, "maximum": 5}


@ALL
def test_dependencies_of_draft_7_go_as_draft_2020_12(module: Any) -> None:
    needs = {"a": ["b"], "b": {"required": ["c"]}}
    odd = {"type": "object", "dependencies": needs}
    w = send(module, make_tool({**object_of(w=odd), "$schema": DRAFT_7}))[1]["properties"]["w"]
    assert "dependencies" not in w and "dependentRequired" in json.dumps(w)
    assert module in (gemini, ollama) or (w["dependentRequired"], w["dependentSchemas"]) == (
        {"a": ["b"]}, {"b": {"required": ["c"]}}
    )  # fmt: skip


# Keywords


@pytest.mark.parametrize("pattern", ["^(?!no)", r"\p{L}+", "[[a]"])
def test_a_pattern_that_openai_refuses_is_said_in_words(pattern: str) -> None:
    keyed = {"type": "object", "patternProperties": {pattern: {"type": "null"}}, "additionalProperties": False}
    subject = make_tool(
        object_of(a={"type": "string", "pattern": pattern}, b=keyed, c={"type": "string", "pattern": "^a+$"})
    )
    for module in (openai_chat, openai_responses):
        found = send(module, subject)[1]["properties"]
        assert found["a"] == {"type": "string", "description": f"{{pattern: {pattern}}}"}
        assert found["b"].keys() == {"type", "description"} and "patternProperties: " in found["b"]["description"]
        assert found["c"]["pattern"] == "^a+$"
    assert send(anthropic, subject)[1]["properties"]["a"]["pattern"] == pattern


def test_gemini_gets_its_keywords_and_the_rest_in_words() -> None:
    odd = {"type": "string", "pattern": "a", "default": "a", "title": "A", "x-order": 1, "examples": ["b"]}
    found = send(gemini, make_tool(object_of(a=odd, b={"const": "k"}, c={"const": True}, d={"enum": [None, "a"]})))[1]
    assert found["properties"] == {
        "a": {"type": "string", "title": "A", "description": '{pattern: a, default: a, examples: ["b"]}'},
        "b": {"enum": ["k"]},
        "c": {"type": "boolean", "description": "{enum: [true]}"},
        "d": {"type": ["null", "string"], "description": '{enum: [null, "a"]}'},
    }


@pytest.mark.parametrize("module", WRITE_OUT)
def test_references_are_written_out_and_a_circle_ends_in_words(module: Any) -> None:
    node = send(module, plant)[1]["properties"]["node"]
    assert node["properties"]["children"]["items"] == {"type": "object", "description": "Node again, as above"}


def test_ollama_gets_its_keywords_and_the_rest_in_words() -> None:
    odd = {"allOf": [{"type": "integer", "minimum": 1}, {"maximum": 5}], "title": "A"}
    either = {"oneOf": [{"const": "a"}, {"type": "object", "additionalProperties": {"type": "null"}}]}
    assert send(ollama, make_tool(object_of(a=odd, b=either)))[1]["properties"] == {
        "a": {"type": "integer", "description": "{minimum: 1, maximum: 5}"},
        "b": {
            "anyOf": [{"enum": ["a"]}, {"type": "object", "description": '{additionalProperties: {"type": "null"}}'}]
        },
    }


def test_a_dynamic_reference_is_said_in_words() -> None:
    defs = {"X": {"$dynamicAnchor": "X", "type": "string"}}
    subject = make_tool({**object_of(a={"$dynamicRef": "#/$defs/X"}), "$defs": defs})
    for module in (anthropic, openai_chat, openai_responses, bedrock, mistral, cohere):
        found = send(module, subject)[1]["properties"]["a"]
        assert "$dynamicRef" not in found and "$dynamicRef" in found["description"]


@pytest.mark.parametrize("module", WRITE_OUT)
def test_definitions_that_double_each_other_end_in_words(module: Any) -> None:
    defs: Schema = {"D40": {"type": "string"}}
    for n in range(40):
        defs[f"D{n}"] = object_of(a={"$ref": f"#/$defs/D{n + 1}"}, b={"$ref": f"#/$defs/D{n + 1}"})
    subject = make_tool({**object_of(a={"$ref": "#/$defs/D0"}), "$defs": defs})
    written = json.dumps(module.tools(Toolset([subject])))
    assert "again, as above" in written and len(written) < 500_000
    assert len(send(openai_chat, subject)[1]["$defs"]) == 41


# Names


@pytest.mark.parametrize(
    ("module", "title", "bad", "good"),
    [
        (anthropic, "Anthropic", ["a b", "", "x" * 65, "straße"], ["a.b-c", "x" * 64]),
        (bedrock, "Bedrock", ["a b"], ["a.b-c"]),
        (gemini, "Gemini", ["a.b", "1a", "x" * 65], ["a_b", "x" * 64]),
    ],
)
def test_a_refused_parameter_name_is_an_error_with_its_place(
    module: Any, title: str, bad: list[str], good: list[str]
) -> None:
    for name in bad:
        folded = {"type": "object", "anyOf": [object_of(a={"type": "null"}), object_of(**{name: {"type": "null"}})]}
        for schema, place in ((object_of(**{name: True}), "$.properties"), (folded, "$.anyOf[1].properties")):
            where = re.escape(f"'odd' cannot be sent to {title}: at {place}.{name}, the parameter {name!r}")
            with pytest.raises(DefinitionError, match=where):
                module.tools(Toolset([make_tool(schema)]))
            [error] = [found for found in findings([make_tool(schema)], [title.lower()]) if found.level == "error"]
            assert (error.tool, error.path) == ("odd", f"{place}.{name}")
        inside = object_of(a=object_of(**{name: {"type": "null"}}))
        assert name in send(module, make_tool(inside))[1]["properties"]["a"]["properties"]
    for name in good:
        assert name in send(module, make_tool(object_of(**{name: {"type": "null"}})))[1]["properties"]


# What is left as it is


@ALL
def test_a_bound_copy_of_a_sent_tool_is_sent_without_the_bound_parameter(module: Any) -> None:
    subject = make_tool(object_of(a={"type": "string"}, b={"type": "string"}))
    assert schema_in(definition_of(module, subject))["properties"].keys() == {"a", "b"}
    assert schema_in(definition_of(module, subject.bind(b="x")))["properties"].keys() == {"a"}


def test_a_pattern_that_takes_long_to_read_is_not_sent() -> None:
    kept, long = (object_of(text={"type": "string", "pattern": "(a|b)" * times}) for times in (400, 401))
    assert "pattern" in send(openai_chat, make_tool(kept))[1]["properties"]["text"]
    assert "pattern" not in send(openai_chat, make_tool(long))[1]["properties"]["text"]
