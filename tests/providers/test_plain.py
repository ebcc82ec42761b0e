"""Plain mode: what an API refuses is said in another way or refused here, and nothing that the tool takes is lost.

The rules of each API are written down here a second time, from what it documents and answers, and walk what is sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

import jsonschema_rs
import pytest
from hypothesis import assume, given, note
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, RootModel

from ferrule import Field, Runner, Tool, ToolCall, Toolset, build_tool, tool
from ferrule.errors import DefinitionError
from ferrule.providers import anthropic, bedrock, cohere, gemini, mistral, ollama, openai_chat, openai_responses
from ferrule.providers._plain import PLAIN_ANTHROPIC
from ferrule.providers._schemas import Subset, written
from ferrule.providers._strict import ANTHROPIC
from ferrule.providers.lint import findings
from products import sampled

Schema = dict[str, Any]
pytestmark = pytest.mark.slow

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_4 = "http://json-schema.org/draft-04/schema#"


def made(schema: Any, name: str = "odd", description: str = "Do it.") -> Tool:
    return build_tool(
        {"name": name, "description": description, "input_schema": schema, "execute": lambda payload, context: payload}
    )


def taking(**parameters: Any) -> Schema:
    return {"type": "object", "properties": parameters, "additionalProperties": False}


def sent(module: Any, subject: Tool, strict: bool = False) -> tuple[str, Schema]:
    """The description and the schema as they go into a request, as plain JSON."""
    entry = definition_in(module.tools(Toolset([subject]), strict=strict))
    return entry.get("description", ""), json.loads(json.dumps(schema_in(entry)))


def definition_in(written: Any) -> Any:
    """The only one of a request."""
    entry = written["tools"][0]["toolSpec"] if isinstance(written, dict) else written[0]
    return entry.get("function") or entry.get("functionDeclarations", [entry])[0]


def schema_in(entry: Any) -> Any:
    keys = ("input_schema", "parameters", "parametersJsonSchema", "inputSchema")
    schema = next(entry[key] for key in keys if key in entry)
    return schema.get("json", schema)


def told(module: Any, subject: Tool) -> str:
    """All that is said of the whole of a tool."""
    description, schema = sent(module, subject)
    return description + schema.get("description", "")


MODULES = [anthropic, bedrock, cohere, gemini, mistral, ollama, openai_chat, openai_responses]
ALL = pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
ITEMS = pytest.mark.parametrize("module", [gemini, ollama, openai_chat, openai_responses])
WRITE_OUT = (bedrock, gemini, ollama)
HAVE_NO_ROOM = (bedrock, ollama)
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


class Counts(RootModel[dict[str, int]]):
    pass


class Node(BaseModel):
    name: str
    children: list[Node]


class Odd(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    x: int = Field(alias="an odd name")


@tool(input_schema=Pet)
async def keep(pet: Pet) -> None:
    """Keep a pet."""


@tool
async def plant(node: Node, at: tuple[float, float], pairs: list[tuple[int, str]] = [], note: str = "a") -> None:  # noqa: B006
    """Plant a tree."""


@tool
async def rename(odd: Odd) -> None:
    """Rename it."""


# The root


@ALL
def test_a_union_at_the_root_is_one_object_and_its_forms_are_told(module: Any) -> None:
    description, schema = sent(module, keep)
    assert schema["type"] == "object" and schema["required"] == ["kind"]
    assert schema["properties"]["kind"] == {"type": "string", "enum": ["cat", "dog"]}
    assert list(schema["properties"]) == ["kind", "lives", "breed"] and "$defs" not in schema
    assert schema.get("additionalProperties", False) is False
    forms = description if module in HAVE_NO_ROOM else schema["description"]
    assert 'kind = "cat", lives? (A cat.); kind = "dog", breed.' in forms


@ALL
def test_the_kernel_enforces_the_union_that_was_folded(module: Any) -> None:
    assert jsonschema_rs.is_valid(sent(module, keep)[1], {"kind": "cat", "breed": "Pug"})
    runner = Runner([keep])
    assert runner.run_sync(ToolCall("a", "keep", {"kind": "cat", "breed": "Pug"})).status == "invalid"


@ALL
@pytest.mark.parametrize("key", ["anyOf", "oneOf"])
def test_fields_of_several_forms_take_what_one_of_them_takes(module: Any, key: str) -> None:
    forms: list[Schema] = [
        {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "null"}}, "required": ["a"]},
        {"properties": {"a": {"type": "integer"}}, "required": ["a", "c"]},
        {"type": "string"},
    ]
    schema = sent(module, made({"type": "object", key: forms}))[1]
    assert schema["properties"]["a"] == {"anyOf": [{"type": "string"}, {"type": "integer"}]}
    assert schema["required"] == ["a"] and key not in schema
    assert schema.get("additionalProperties") is None
    assert "a, b?; a, c." in told(module, made({"type": "object", key: forms}))


@ALL
def test_what_is_declared_around_a_union_is_not_narrowed_by_one_of_its_forms(module: Any) -> None:
    either = [{"properties": {"kind": {"const": "a"}}, "required": ["x"]}, {"required": ["y"]}]
    schema = sent(module, made({"type": "object", "properties": {"kind": {"type": "string"}}, "anyOf": either}))[1]
    assert schema["properties"]["kind"] == {"type": "string"}


@ALL
def test_parts_and_a_reference_at_the_root_are_one_object(module: Any) -> None:
    base = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    more = {"properties": {"b": {"type": "integer"}}}
    for schema in ({"allOf": [base, more]}, {"$ref": "#/$defs/A", "$defs": {"A": base | {"allOf": [more]}}}):
        found = sent(module, made({"type": "object", **schema}))[1]
        assert found["properties"] == {"a": {"type": "string"}, "b": {"type": "integer"}}
        assert found["required"] == ["a"] and not found.keys() & {"allOf", "$ref", "$defs"}


@ALL
def test_parts_that_cannot_be_one_are_told(module: Any) -> None:
    parts = [{"dependentRequired": {"a": ["b"]}}, {"dependentRequired": {"b": ["a"]}}]
    assert '"b": ["a"]' in told(module, made({**taking(a={"type": "null"}, b={"type": "null"}), "allOf": parts}))


def test_a_field_that_two_parts_narrow_each_in_its_way_stays_two() -> None:
    one, other = {"type": "string", "pattern": "a"}, {"type": "string", "pattern": "b"}
    odd = {**taking(a=one), "allOf": [{"properties": {"a": other}}]}
    assert sent(anthropic, made(odd))[1]["properties"]["a"] == {"allOf": [one, other]}


@ALL
def test_a_form_that_takes_any_key_leaves_the_object_open(module: Any) -> None:
    either = [taking(b={"type": "null"}), {"properties": {"c": {"type": "null"}}, "additionalProperties": True}]
    odd = {"type": "object", "properties": {"a": {"type": "null"}}, "anyOf": either}
    assert accepted(sent(module, made(odd))[1]).is_valid({"c": None, "any": 1})


@ALL
def test_a_union_with_itself_is_what_the_others_are(module: Any) -> None:
    odd = {"type": "object", "anyOf": [{"$ref": "#"}, taking(a={"type": "null"})]}
    assert sent(module, made(odd))[1]["properties"] == {"a": {"type": "null"}}


@ALL
@pytest.mark.parametrize(
    ("reference", "named"), [("#here", {"$anchor": "here"}), ("Mark", {"$id": "Mark"}), ("#x", {"$id": "#x"})]
)
def test_a_reference_by_an_anchor_or_an_id_keeps_its_type(module: Any, reference: str, named: Schema) -> None:
    dialect = {"$schema": DRAFT_7} if reference == "#x" else {}
    odd = {**taking(a={"$ref": reference}), "definitions": {"A": {**named, "type": "null"}}, **dialect}
    schema = sent(module, made(odd))[1]
    assert "null" in str(schema) and not accepted(schema).is_valid({"a": 1})


@ALL
def test_a_reference_beneath_an_id_leads_to_a_place_beneath_it(module: Any) -> None:
    inner = {"$id": "https://example.org/inner", "$defs": {"A": {"type": "null"}}, **taking(b={"$ref": "#/$defs/A"})}
    odd = {**taking(a=inner, c={"$ref": "https://example.org/inner#/$defs/A"}), "$defs": {"A": {"type": "string"}}}
    found = accepted(sent(module, made(odd))[1])
    assert found.is_valid({"a": {"b": None}, "c": None})
    assert not found.is_valid({"a": {"b": "text"}}) and not found.is_valid({"c": "text"})


@ALL
def test_a_reference_that_cannot_be_followed_is_told(module: Any) -> None:
    reference = {"$ref": "#/properties/a/items/0"}
    pair = {"type": "array", "items": [{"type": "null"}]}
    for odd in (reference, {"allOf": [reference, {"minimum": 1}]}):
        schema = sent(module, made({**taking(a=pair, b=odd), "$schema": DRAFT_7}))[1]
        assert "{$ref: #/properties/a/items/0}" in json.dumps(schema)


@ALL
def test_a_tool_without_parameters_has_properties(module: Any) -> None:
    @tool
    async def ping() -> None:
        """Ping."""

    @tool(input_schema=Counts)
    async def count(counts: Counts) -> None:
        """Count."""

    assert sent(module, ping)[1]["properties"] == {}
    assert "properties" not in count.input_schema and sent(module, count)[1]["properties"] == {}
    assert sent(module, made({}))[1] | {"additionalProperties": None} == {
        "type": "object", "properties": {}, "additionalProperties": None
    }  # fmt: skip


@pytest.mark.parametrize(
    ("module", "stay"),
    [(anthropic, {"not", "enum"}), (openai_responses, set()), (bedrock, set()), (mistral, {"not", "enum"})],
)
def test_what_is_refused_at_the_root_alone_is_told_there(module: Any, stay: set[str]) -> None:
    odd = {**taking(a={"type": "integer", "not": {"const": 3}}), "not": {"required": ["b"]}, "enum": [{"a": 1}]}
    description, schema = sent(module, made(odd))
    assert schema.keys() & {"not", "enum"} == stay
    assert schema["properties"]["a"]["not"] == {"const": 3}
    assert stay or 'not: {"required": ["b"]}, enum: [{"a": 1}]' in description + schema.get("description", "")


@pytest.mark.parametrize("module", HAVE_NO_ROOM)
def test_a_description_at_the_root_goes_into_that_of_the_tool_once(module: Any) -> None:
    for said, expected in (("More.", "Do it.\n\nMore."), ("Do it.", "Do it.")):
        description, schema = sent(module, made({**taking(a={"type": "null"}), "description": said}))
        assert description == expected and "description" not in schema


@pytest.mark.parametrize("others", [None, True, False, {"type": "null"}], ids=repr)
def test_bedrock_is_told_at_the_root_that_an_object_is_closed_and_nothing_else_of_other_keys(others: Any) -> None:
    given = {key: item for key, item in taking(a={"type": "null"}).items() if key != "additionalProperties"}
    subject = made(given | ({} if others is None else {"additionalProperties": others}))
    root = subject.input_schema
    found = sent(bedrock, subject)[1]
    assert ("additionalProperties" in found) is (root.get("additionalProperties") is False)
    assert (found == root) is (root.get("additionalProperties", False) is False)


@pytest.mark.parametrize("module", [gemini, openai_chat])
@pytest.mark.parametrize("odd", [True, {"type": "array"}, {"type": "array", "items": True}], ids=repr)
def test_a_schema_that_is_true_and_an_array_without_items_are_written_out_wherever_they_stand(
    module: Any, odd: Any
) -> None:
    definition = {**taking(a={"type": "null"}), "properties": {"a": {"anyOf": [odd, {"type": "null"}]}}}
    subject = made({**taking(a=odd, b={"$ref": "#/$defs/D"}), "$defs": {"D": definition}})
    schema = sent(module, subject)[1]
    TAKES[module](schema)
    assert schema["properties"]["a"] == ({} if odd is True else {"type": "array", "items": {}})


def test_bedrock_has_four_keywords_at_the_root() -> None:
    odd = {**taking(a={"$ref": "#/$defs/A"}), "$defs": {"A": {"type": "null"}}, "$id": "https://example.org/a",
           "$schema": "https://json-schema.org/draft/2020-12/schema"}  # fmt: skip
    closed = {"additionalProperties": False}
    assert sent(bedrock, made(odd))[1] == {"type": "object", "properties": {"a": {"type": "null"}}, **closed}


@ALL
def test_no_schema_says_where_it_stands(module: Any) -> None:
    address = {"$id": "https://example.org/b", "$schema": "https://json-schema.org/draft/2020-12/schema"}
    odd = {**taking(a={"type": "string", **address}), **address, "$id": "https://example.org/a"}
    assert (
        "example.org" not in (sent_text := json.dumps(sent(module, made(odd)))) and "json-schema.org" not in sent_text
    )


# Arrays


@ITEMS
def test_items_with_an_order_are_one_schema_and_the_order_is_told(module: Any) -> None:
    first = [{"type": "string"}, {"type": "integer"}]
    odd = {"type": "array", "prefixItems": first, "minItems": 1, "items": False}
    found = sent(module, made(taking(a=odd)))[1]["properties"]["a"]
    assert found["items"] == {"anyOf": first} and "prefixItems" not in found
    assert '{prefixItems: [{"type": "string"}, {"type": "integer"}]' in found["description"]
    assert module is ollama or (found["minItems"], found["maxItems"]) == (1, 2)
    more = sent(module, made(taking(a={**odd, "items": {"type": "null"}})))[1]["properties"]["a"]
    assert more["items"] == {"anyOf": [*first, {"type": "null"}]}


@ITEMS
def test_a_tuple_of_one_type_needs_no_words(module: Any) -> None:
    at = sent(module, plant)[1]["properties"]["at"]
    assert at["items"] == {"type": "number"} and "prefixItems" not in str(at)


@ITEMS
@pytest.mark.parametrize("odd", [{"type": "array"}, {"type": ["array", "null"]}, {"type": "array", "items": True}])
def test_an_array_of_anything_has_items(module: Any, odd: Schema) -> None:
    assert (
        sent(module, made(taking(a={"anyOf": [odd, {"type": "null"}]})))[1]["properties"]["a"]["anyOf"][0]["items"]
        == {}
    )


@ITEMS
def test_an_array_without_items_stays_empty(module: Any) -> None:
    found = sent(module, made(taking(a={"type": "array", "items": False})))[1]["properties"]["a"]
    assert isinstance(found["items"], dict) and "maxItems" in json.dumps(found)


@pytest.mark.parametrize("module", [anthropic, bedrock, cohere, mistral])
def test_who_takes_items_with_an_order_gets_them(module: Any) -> None:
    assert "prefixItems" in sent(module, plant)[1]["properties"]["at"]


def test_an_older_draft_goes_as_draft_2020_12() -> None:
    pair = {"type": "array", "items": [{"type": "string"}], "additionalItems": False}
    pair |= {"additionalItems": {"$ref": "#/definitions/D", "minimum": 5}}
    odd = {"$schema": DRAFT_7, **taking(a=pair), "definitions": {"D": {"type": "integer"}}}
    assert sent(anthropic, made(odd))[1] == {
        **taking(a={"type": "array", "prefixItems": [{"type": "string"}], "items": {"$ref": "#/$defs/D"}}),
        "$defs": {"D": {"type": "integer"}},
    }
    above = {"type": "number", "minimum": 1, "exclusiveMinimum": True, "maximum": 5, "exclusiveMaximum": False}
    found = sent(anthropic, made({"$schema": DRAFT_4, **taking(a=above)}))[1]
    assert found["properties"]["a"] == {"type": "number", "exclusiveMinimum": 1, "maximum": 5}


@ALL
def test_what_draft_7_says_of_names_that_depend_on_others_goes_as_draft_2020_12(module: Any) -> None:
    needs = {"a": ["b"], "b": {"required": ["c"]}}
    odd = {"type": "object", "dependencies": needs}
    w = sent(module, made({**taking(w=odd), "$schema": DRAFT_7}))[1]["properties"]["w"]
    assert "dependencies" not in w and "dependentRequired" in json.dumps(w)
    assert module in (gemini, ollama) or (w["dependentRequired"], w["dependentSchemas"]) == (
        {"a": ["b"]}, {"b": {"required": ["c"]}}
    )  # fmt: skip


# Keywords


@pytest.mark.parametrize("module", [openai_chat, ollama])
def test_true_and_false_are_written_as_objects_where_they_are_refused(module: Any) -> None:
    schema = sent(module, made(taking(a=True, b=False)))[1]
    assert schema["properties"]["a"] == {} and "not" in str(schema["properties"]["b"])
    assert sent(anthropic, made(taking(a=True)))[1]["properties"]["a"] is True


@pytest.mark.parametrize("pattern", ["^(?!no)", "(?<=a)b", r"\p{L}+", "(?<name>a)", "[[a]"])
def test_a_pattern_that_openai_refuses_is_told(pattern: str) -> None:
    keyed = {"type": "object", "patternProperties": {pattern: {"type": "null"}}, "additionalProperties": False}
    subject = made(taking(a={"type": "string", "pattern": pattern}, b=keyed, c={"type": "string", "pattern": "^a+$"}))
    for module in (openai_chat, openai_responses):
        found = sent(module, subject)[1]["properties"]
        assert found["a"] == {"type": "string", "description": f"{{pattern: {pattern}}}"}
        assert found["b"].keys() == {"type", "description"} and "patternProperties: " in found["b"]["description"]
        assert found["c"]["pattern"] == "^a+$"
    assert sent(anthropic, subject)[1]["properties"]["a"]["pattern"] == pattern


def test_gemini_has_its_keywords_and_the_rest_in_words() -> None:
    odd = {"type": "string", "pattern": "a", "default": "a", "title": "A", "x-order": 1, "examples": ["b"]}
    found = sent(gemini, made(taking(a=odd, b={"const": "k"}, c={"const": True}, d={"enum": [None, "a"]})))[1]
    assert found["properties"] == {
        "a": {"type": "string", "title": "A", "description": '{pattern: a, default: a, examples: ["b"]}'},
        "b": {"enum": ["k"]},
        "c": {"type": "boolean", "description": "{enum: [true]}"},
        "d": {"type": ["null", "string"], "description": '{enum: [null, "a"]}'},
    }


@pytest.mark.parametrize("module", sampled(MODULES, one_in=3))
def test_a_ring_of_many_definitions_is_sent(module: Any) -> None:
    defs = {f"D{n}": {**taking(a={"$ref": f"#/$defs/D{(n + 1) % 1_000}"}), "required": ["a"]} for n in range(1_000)}
    schema = sent(module, made({**taking(a={"$ref": "#/$defs/D0"}), "$defs": defs}))[1]
    assert ("again, as above" in json.dumps(schema)) is (module in WRITE_OUT)


@pytest.mark.parametrize("module", WRITE_OUT)
def test_references_are_written_out_and_a_circle_ends_in_words(module: Any) -> None:
    node = sent(module, plant)[1]["properties"]["node"]
    assert node["properties"]["children"]["items"] == {"type": "object", "description": "Node again, as above"}


def test_ollama_has_its_keywords_and_the_rest_in_words() -> None:
    odd = {"allOf": [{"type": "integer", "minimum": 1}, {"maximum": 5}], "title": "A"}
    either = {"oneOf": [{"const": "a"}, {"type": "object", "additionalProperties": {"type": "null"}}]}
    assert sent(ollama, made(taking(a=odd, b=either)))[1]["properties"] == {
        "a": {"type": "integer", "description": "{minimum: 1, maximum: 5}"},
        "b": {
            "anyOf": [{"enum": ["a"]}, {"type": "object", "description": '{additionalProperties: {"type": "null"}}'}]
        },
    }


@pytest.mark.parametrize("module", WRITE_OUT)
def test_definitions_that_double_each_other_end_in_words_where_they_are_written_out(module: Any) -> None:
    defs: Schema = {"D40": {"type": "string"}}
    for n in range(40):
        defs[f"D{n}"] = taking(a={"$ref": f"#/$defs/D{n + 1}"}, b={"$ref": f"#/$defs/D{n + 1}"})
    subject = made({**taking(a={"$ref": "#/$defs/D0"}), "$defs": defs})
    written = json.dumps(module.tools(Toolset([subject])))
    assert "again, as above" in written and len(written) < 500_000
    assert len(sent(openai_chat, subject)[1]["$defs"]) == 41


def test_a_description_of_the_schema_that_begins_as_the_tools_is_whole() -> None:
    schema = {**taking(q={"type": "string"}), "description": "Searching the web."}
    definition = bedrock.tools(Toolset([made(schema, description="Search")]))
    assert definition and definition["tools"][0]["toolSpec"]["description"] == "Search\n\nSearching the web."
    definition = bedrock.tools(Toolset([made(schema, description="Searching the web.")]))
    assert definition and definition["tools"][0]["toolSpec"]["description"] == "Searching the web."


def test_a_reference_that_is_found_only_when_a_value_is_checked_is_told() -> None:
    subject = made(
        {**taking(a={"$dynamicRef": "#/$defs/X"}), "$defs": {"X": {"$dynamicAnchor": "X", "type": "string"}}}
    )
    for module in (anthropic, openai_chat, openai_responses, bedrock, mistral, cohere):
        schema = sent(module, subject)[1]
        assert (
            "$dynamicRef" not in schema["properties"]["a"] and "$dynamicRef" in schema["properties"]["a"]["description"]
        )


@pytest.mark.parametrize(
    "other", [{"additionalProperties": {"type": "string"}}, {"patternProperties": {"^a": {"type": "string"}}}]
)
def test_what_another_form_says_of_a_name_that_it_does_not_list_is_taken_too(other: Schema) -> None:
    forms = [taking(a={"type": "integer"}), {"type": "object", **other}]
    for module in (anthropic, openai_chat, openai_responses, gemini, mistral, cohere, ollama):
        assert jsonschema_rs.validator_for(sent(module, made({"anyOf": forms}))[1]).is_valid({"a": "x"})


# Names


@pytest.mark.parametrize(
    ("module", "title", "bad", "good"),
    [
        (anthropic, "Anthropic", ["a b", "", "x" * 65, "straße"], ["a.b-c", "1", "x" * 64]),
        (bedrock, "Bedrock", ["a b", "", "x" * 65, "straße"], ["a.b-c", "1", "x" * 64]),
        (gemini, "Gemini", ["a.b", "1a", "x" * 65, "straße"], ["a_b", "_", "x" * 64]),
    ],
)
def test_a_parameter_whose_name_is_not_taken_is_refused_with_its_place(
    module: Any, title: str, bad: list[str], good: list[str]
) -> None:
    for name in bad:
        folded = {"type": "object", "anyOf": [taking(a={"type": "null"}), taking(**{name: {"type": "null"}})]}
        for schema, place in ((taking(**{name: True}), "$.properties"), (folded, "$.anyOf[1].properties")):
            where = re.escape(f"'odd' cannot be sent to {title}: at {place}.{name}, the parameter {name!r}")
            with pytest.raises(DefinitionError, match=where):
                module.tools(Toolset([made(schema)]))
            [error] = [found for found in findings([made(schema)], [title.lower()]) if found.level == "error"]
            assert (error.tool, error.path) == ("odd", f"{place}.{name}")
        inside = taking(a=taking(**{name: {"type": "null"}}))
        assert name in sent(module, made(inside))[1]["properties"]["a"]["properties"]
    for name in good:
        assert name in sent(module, made(taking(**{name: {"type": "null"}})))[1]["properties"]


@pytest.mark.parametrize("module", [anthropic, bedrock])
def test_a_strict_tool_has_the_same_names(module: Any) -> None:
    with pytest.raises(DefinitionError, match=r"'odd' cannot be strict for .* at \$\.properties\.a b"):
        module.tools(Toolset([made(taking(**{"a b": {"type": "null"}}))]), strict=True)


# What is left as it is


@ALL
def test_a_schema_that_needs_no_change_goes_out_as_the_very_object(module: Any) -> None:
    @tool
    async def add(a: int, b: list[str]) -> None:
        """Add."""

    found = schema_in(definition_in(module.tools(Toolset([add]))))
    if module is ollama:
        assert found == {key: value for key, value in add.input_schema.items() if key != "additionalProperties"}
    else:
        assert found is add.input_schema


@pytest.mark.parametrize("rules", [PLAIN_ANTHROPIC, ANTHROPIC])
def test_a_schema_is_rewritten_once(rules: Subset) -> None:
    subject = made(taking(a={"type": "null"}))
    assert written(subject, rules) is written(subject, rules)


# The rules of each API, from its documents and answers


def nodes(schema: Any, at: str = "$") -> Iterator[tuple[str, Any]]:
    """Every schema in a schema, by what JSON Schema says of its keywords."""
    yield at, schema
    for key, value in schema.items() if isinstance(schema, dict) else ():
        if key in ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"):
            for name, item in value.items():
                yield from nodes(item, f"{at}.{key}.{name}")
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            for n, item in enumerate(value):
                yield from nodes(item, f"{at}.{key}[{n}]")
        elif key in ("items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames"):
            if key != "additionalProperties" or isinstance(value, dict):
                yield from nodes(value, f"{at}.{key}")


def is_object_at_the_root(schema: Schema) -> None:
    assert schema["type"] == "object" and isinstance(schema["properties"], dict)
    assert not schema.keys() & {"anyOf", "oneOf", "allOf", "$ref"}
    jsonschema_rs.Draft202012Validator({key: item for key, item in schema.items() if key != "$id"})


def anthropic_takes(schema: Schema) -> None:
    is_object_at_the_root(schema)
    assert all(re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", name) for name in schema["properties"])


def openai_takes(schema: Schema) -> None:
    is_object_at_the_root(schema)
    assert not schema.keys() & {"enum", "not"}
    for at, node in nodes(schema):
        if isinstance(node, dict):
            kinds = node.get("type", [])
            assert "array" not in (kinds if isinstance(kinds, list) else [kinds]) or isinstance(node["items"], dict), at
            for pattern in [node.get("pattern", ""), *node.get("patternProperties", ())]:
                assert re.compile(pattern) and not re.search(r"\(\?(=|!|<=|<!)", pattern), at


def chat_takes(schema: Schema) -> None:
    openai_takes(schema)
    assert not any(node in (True, False) for _, node in nodes(schema))


GEMINI_KEYWORDS = {
    "type", "format", "title", "description", "enum", "items", "prefixItems",
    "minItems", "maxItems", "minimum", "maximum", "anyOf", "oneOf", "properties", "additionalProperties", "required",
    "propertyOrdering",
}  # fmt: skip


def gemini_takes(schema: Schema) -> None:
    is_object_at_the_root(schema)
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", name) for name in schema["properties"])
    for at, node in nodes(schema):
        assert isinstance(node, dict), at
        assert node.keys() <= GEMINI_KEYWORDS, at
        assert all(type(value) in (str, int, float) for value in node.get("enum", ())), at
        kinds = node.get("type", [])
        assert "array" not in (kinds if isinstance(kinds, list) else [kinds]) or isinstance(node["items"], dict), at


def bedrock_takes(schema: Schema) -> None:
    anthropic_takes(schema)
    assert schema.keys() <= {"type", "properties", "required", "additionalProperties"}
    assert schema.get("additionalProperties", False) is False


def mistral_takes(schema: Schema) -> None:
    is_object_at_the_root(schema)
    for at, node in nodes(schema):
        assert not isinstance(node, dict) or not node.keys() & {"$schema", "$id"}, at


def ollama_takes(schema: Schema) -> None:
    """What its Go structs do not name is lost, and must say nothing; a boolean is an error."""
    is_object_at_the_root(schema)
    for at, node in nodes(schema):
        assert isinstance(node, dict), at
        known = {"type", "properties", "required"} | (set() if at == "$" else {"anyOf", "items", "description", "enum"})
        assert node.keys() <= known, at


TAKES: dict[Any, Callable[[Schema], None]] = {
    anthropic: anthropic_takes,
    bedrock: bedrock_takes,
    cohere: is_object_at_the_root,
    gemini: gemini_takes,
    mistral: mistral_takes,
    ollama: ollama_takes,
    openai_chat: chat_takes,
    openai_responses: openai_takes,
}


def is_closed(node: Schema) -> bool:
    return "object" not in str(node.get("type")) or node.get("additionalProperties") is False


def openai_holds(schema: Schema) -> None:
    is_object_at_the_root(schema)
    for at, node in nodes(schema):
        assert isinstance(node, dict) and is_closed(node), at
        assert not node.keys() & {"oneOf", "allOf", "not", "if", "dependentRequired", "dependentSchemas", "prefixItems"}
        assert "object" not in str(node.get("type")) or set(node["required"]) == node["properties"].keys(), at
        assert "$ref" not in node or node.keys() == {"$ref"}, at


def claude_holds(schema: Schema) -> None:
    anthropic_takes(schema)
    refused = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength",
               "maxItems", "uniqueItems", "oneOf", "not", "if", "pattern", "prefixItems"}  # fmt: skip
    for at, node in nodes(schema):
        assert isinstance(node, dict) and is_closed(node) and not node.keys() & refused, at
        assert node.get("minItems", 0) < 2, at
    for name, definition in schema.get("$defs", {}).items():
        assert name not in {at.rpartition("/")[2] for at in referred(definition, schema)}, f"{name} is recursive"


def referred(node: Any, root: Schema, seen: frozenset[str] = frozenset()) -> set[str]:
    found = {item["$ref"] for _, item in nodes(node) if "$ref" in item} - seen
    inner = [referred(root["$defs"][one.rpartition("/")[2]], root, seen | found) for one in found if one != "#"]
    return found.union(*inner)


def mistral_holds(schema: Schema) -> None:
    mistral_takes(schema)
    assert all(is_closed(node) for _, node in nodes(schema))


def cohere_holds(schema: Schema) -> None:
    is_object_at_the_root(schema)
    assert not schema["properties"] or schema["required"]
    refused = {
        "minimum",
        "maximum",
        "minItems",
        "maxItems",
        "minLength",
        "maxLength",
        "uniqueItems",
        "not",
        "allOf",
        "oneOf",
    }
    for at, node in nodes(schema):
        assert not node.keys() & refused, at
        assert not re.search(r"[\^$]|\?[=!]", node.get("pattern", "")), at


HOLDS: dict[Any, Callable[[Schema], None]] = {
    anthropic: claude_holds,
    bedrock: claude_holds,
    cohere: cohere_holds,
    mistral: mistral_holds,
    openai_chat: openai_holds,
    openai_responses: openai_holds,
}


def test_a_pattern_that_takes_long_to_read_is_not_sent_where_it_would_have_to_be_read() -> None:
    kept, long = (taking(text={"type": "string", "pattern": "(a|b)" * times}) for times in (400, 401))
    assert "pattern" in sent(openai_chat, made(kept))[1]["properties"]["text"]
    assert "pattern" not in sent(openai_chat, made(long))[1]["properties"]["text"]


# Random tools


NAMES = ["a", "b", "c", "kind"] * 4 + ["x.y", "an odd name", "n" * 65, "1st", "ß"]


def leaves(old: bool) -> st.SearchStrategy[Any]:
    several: list[Any] = [
        *({"type": kind} for kind in ("string", "integer", "number", "boolean", "null", "array", "object")),
        {"type": ["array", "null"]}, {"enum": ["x", 1, None]}, {"const": True}, {"const": "k"}, {}, True, False,
        {"type": "string", "pattern": "^(?!no)"}, {"type": "string", "pattern": r"^\d+$", "default": "1"},
        {"type": "integer", "minimum": 0, "exclusiveMaximum": 9}, {"$ref": "#"}, {"$ref": "#/$defs/D"},
        {"$ref": "#/$defs/Tree"}, {"$ref": "#/definitions/L", "description": "It."},
        {"type": "object", "patternProperties": {"^(?=x)": {"type": "null"}}, "additionalProperties": False},
    ]  # fmt: skip
    if not old:
        several.append({"$ref": "#/$defs/D", "required": ["o"]})
    return st.sampled_from(several)


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    return st.builds(
        lambda properties, required, closed: {
            "type": "object",
            "properties": properties,
            "required": [name for name in properties if name in required],
            **({} if closed is None else {"additionalProperties": closed}),
        },
        st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
        st.sets(st.sampled_from(NAMES)),
        st.sampled_from([None, False, True]),
    )


def tuples(inner: st.SearchStrategy[Any], old: bool) -> st.SearchStrategy[Schema]:
    first, rest = ("items", "additionalItems") if old else ("prefixItems", "items")
    return st.builds(
        lambda items, ends: {"type": "array", first: items, **({rest: False} if ends else {})},
        st.lists(inner, min_size=1, max_size=2),
        st.booleans(),
    )


def schemas(old: bool) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves(old),
        lambda inner: st.one_of(
            objects(inner),
            tuples(inner, old),
            inner.map(lambda item: {"type": "array", "items": item, "maxItems": 2}),
            inner.map(lambda item: {"type": "object", "additionalProperties": item}),
            st.lists(inner, min_size=1, max_size=3).map(lambda items: {"anyOf": items}),
            st.lists(inner, min_size=2, max_size=2).map(lambda items: {"oneOf": items}),
            inner.map(lambda item: {"allOf": [item, {"title": "T"}]}),
        ),
        max_leaves=5,
    )


def roots(old: bool) -> st.SearchStrategy[Schema]:
    plain = objects(schemas(old))
    unions = st.lists(st.one_of(plain, st.just({"type": "string"})), min_size=1, max_size=3)
    return st.one_of(
        plain,
        unions.map(lambda items: {"anyOf": items}),
        st.builds(lambda base, items: {**base, "oneOf": items}, plain, unions),
        st.builds(lambda base, items: {**base, "anyOf": [{"anyOf": items}, {"required": ["a"]}]}, plain, unions),
        st.lists(plain, min_size=1, max_size=2).map(lambda items: {"allOf": items}),
        plain.map(lambda item: {"$ref": "#/$defs/Root", "$defs": {"Root": item}}),
    )


DEFINITIONS: Schema = {
    "D": {"type": "object", "properties": {"o": {"type": "integer"}}},
    "Tree": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "below": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}},
        "required": ["below"],
        "additionalProperties": False,
    },
}
OLD_DEFINITIONS: Schema = {"L": {"type": ["array", "null"], "items": {"$ref": "#/definitions/L"}}}


@st.composite
def tools(draw: st.DrawFn) -> Tool:
    old = draw(st.booleans())
    root = draw(roots(old))
    beside = {"$defs": {**DEFINITIONS, **root.get("$defs", {})}, "definitions": OLD_DEFINITIONS}
    dialect = {"$schema": DRAFT_7} if old else draw(st.sampled_from([{}, {"$id": "https://example.org/a"}]))
    try:
        return made({**root, **beside, **dialect, "type": "object"})
    except DefinitionError:
        assume(False)
        raise


def accepted(schema: Any) -> Any:
    return jsonschema_rs.validator_for(schema, validate_formats=True)


def values(schema: Any, root: Schema, depth: int = 4) -> st.SearchStrategy[Any]:
    """Values that may fit `schema`, with keys that it declares; what does not fit is left to the validator."""
    if depth == 0 or not isinstance(schema, dict):
        return st.just("x")
    if "$ref" in schema:
        target: Any = root
        for part in schema["$ref"].split("/")[1:]:
            target = target[part]
        return values(target, root, depth - 1)
    parts = [
        st.one_of([values(item, root, depth - 1) for item in schema[key]])
        for key in ("anyOf", "oneOf")
        if key in schema
    ]
    parts += [values(item, root, depth - 1) for item in schema.get("allOf", ())]
    if "properties" in schema or not parts:
        parts.append(of_kind(schema, root, depth))
    return st.tuples(*parts).map(together)


def together(parts: tuple[Any, ...]) -> Any:
    if all(isinstance(part, dict) for part in parts):
        return {key: value for part in parts for key, value in part.items()}
    return next((part for part in parts if not isinstance(part, dict)), parts[0])


def of_kind(schema: Schema, root: Schema, depth: int) -> st.SearchStrategy[Any]:
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    kinds = schema.get("type", "object")
    kind = kinds[0] if isinstance(kinds, list) else kinds
    if kind == "object":
        fields = {name: values(item, root, depth - 1) for name, item in schema.get("properties", {}).items()}
        required = {name: item for name, item in fields.items() if name in schema.get("required", ())}
        optional = {name: item for name, item in fields.items() if name not in required}
        if isinstance(schema.get("additionalProperties"), dict):
            optional["more"] = values(schema["additionalProperties"], root, depth - 1)
        return st.fixed_dictionaries(required, optional=optional)
    if kind == "array":
        items, first = schema.get("items", {}), schema.get("prefixItems", [])
        first, items = (items, schema.get("additionalItems", {})) if isinstance(items, list) else (first, items)
        rest = st.just([]) if items is False else st.lists(values(items, root, depth - 1), max_size=1)
        return st.tuples(st.tuples(*[values(item, root, depth - 1) for item in first]), rest).map(
            lambda both: [*both[0], *both[1]]
        )
    return {"string": st.sampled_from(["a", "1", "no"]), "integer": st.integers(-1, 9), "number": st.just(0.5),
            "boolean": st.booleans(), "null": st.none()}[kind]  # fmt: skip


def closed(root: Schema) -> Schema:
    """With no form at the root that leaves open what another declares; draft 2019-09 reads the others too."""
    found = without_open_forms(root) | {"unevaluatedProperties": False}
    found["$defs"] = {name: without_open_forms(item) for name, item in root["$defs"].items()}
    return found | ({"$schema": "https://json-schema.org/draft/2019-09/schema"} if "$schema" in root else {})


OF_OTHERS = ("additionalProperties", "unevaluatedProperties")


def without_open_forms(form: Any) -> Any:
    if not isinstance(form, dict):
        return form
    is_open = form.get("additionalProperties") is True  # then nothing is left for `unevaluatedProperties`
    kept = {key: item for key, item in form.items() if not (is_open and key in OF_OTHERS)}
    for key in kept.keys() & {"anyOf", "oneOf", "allOf"}:
        kept[key] = [without_open_forms(item) for item in kept[key]]
    return kept


def refused_by_lint(module: Any, subject: Tool, strict: bool) -> bool:
    provider = module.__name__.rpartition(".")[2]
    return any(found.level == "error" and found.path for found in findings([subject], [provider], strict))


@ALL
@given(subject=tools(), data=st.data())
def test_what_is_sent_of_any_tool_is_within_the_rules_and_takes_what_the_tool_takes(
    module: Any, subject: Tool, data: st.DataObject
) -> None:
    try:
        schema = sent(module, subject)[1]
    except DefinitionError:
        assert refused_by_lint(module, subject, strict=False)
        return
    assert not refused_by_lint(module, subject, strict=False)
    TAKES[module](schema)
    root = json.loads(json.dumps(subject.input_schema))
    value = data.draw(values(root, root))
    assume(accepted(root).is_valid(value) and accepted(closed(root)).is_valid(value))
    note(f"given {root}, sent {schema}")
    accepted(schema).validate(value)


@pytest.mark.parametrize("module", HOLDS, ids=lambda module: module.__name__.rpartition(".")[2])
@given(subject=tools())
def test_what_is_sent_of_any_strict_tool_is_within_the_rules(module: Any, subject: Tool) -> None:
    try:
        schema = sent(module, subject, strict=True)[1]
    except DefinitionError:
        assert refused_by_lint(module, subject, strict=True)
        return
    HOLDS[module](schema)


@ALL
@pytest.mark.parametrize("subject", [keep, plant, rename], ids=lambda subject: subject.name)
def test_what_is_sent_of_python_types_is_within_the_rules(module: Any, subject: Tool) -> None:
    schema = sent(module, subject)[1]
    TAKES[module](schema)
    tree = {"name": "a", "children": [{"name": "b", "children": [{"name": "c", "children": []}]}]}
    value = {"keep": {"kind": "dog", "breed": "Pug"}, "plant": {"node": tree, "at": [1, 2], "pairs": [[1, "a"]]},
             "rename": {"odd": {"an odd name": 1}}}[subject.name]  # fmt: skip
    assert accepted(json.loads(json.dumps(subject.input_schema))).is_valid(value)
    accepted(schema).validate(value)
