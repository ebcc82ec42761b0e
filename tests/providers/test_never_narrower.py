"""Any tool is sent within the rules of each API, and what is sent takes what the tool takes.

The rules are written down here a second time, from what each API documents and answers, and walk what is sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import pytest
from any_schema import (
    DEFINITIONS,
    OBJECTS,
    VALUES,
    Schema,
    close_forms,
    make_or_assume,
    make_tool,
    nodes,
    object_of,
    schemas,
    send,
    tools,
    validator,
)
from hypothesis import given

from ferrule import Tool
from ferrule.errors import DefinitionError
from ferrule.providers import anthropic, bedrock, cohere, gemini, mistral, ollama, openai_chat, openai_responses
from ferrule.providers.lint import findings

pytestmark = pytest.mark.slow


def by_name(module: Any) -> str:
    return str(module.__name__.rpartition(".")[2])


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
        known = {"type", "properties", "required", "items"} | (set() if at == "$" else {"anyOf", "description", "enum"})
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
    refused = {"minimum", "maximum", "minItems", "maxItems", "minLength", "maxLength",
               "uniqueItems", "not", "allOf", "oneOf"}  # fmt: skip
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


# Any tool

EACH = pytest.mark.parametrize("module", TAKES, ids=by_name)


def is_refused_by_lint(module: Any, subject: Tool, strict: bool) -> bool:
    return any(found.level == "error" and found.path for found in findings([subject], [by_name(module)], strict))


def must_take(module: Any, subject: Tool, values: list[Any], narrowed: Any = None) -> None:
    """What is sent is within the rules and takes each of `values` that the tool takes, and `narrowed`, if given."""
    try:
        schema = send(module, subject)[1]
    except DefinitionError:
        assert is_refused_by_lint(module, subject, strict=False)
        return
    assert not is_refused_by_lint(module, subject, strict=False)
    TAKES[module](schema)
    root = json.loads(json.dumps(subject.input_schema))
    tool, narrow, found = validator(root), validator(narrowed(root) if narrowed else root), validator(schema)
    for value in values:
        if tool.is_valid(value) and narrow.is_valid(value):
            assert found.is_valid(value), f"given {root}\nsent {schema}\nof {value}"


@pytest.mark.large
@EACH
@given(schema=schemas())
def test_a_parameter_takes_what_the_tool_takes(module: Any, schema: Any) -> None:
    subject = make_or_assume({**object_of(v=schema), "$defs": DEFINITIONS})
    must_take(module, subject, [{"v": value} for value in VALUES])


OF_TEXT = {"properties": {"a": {"type": "string"}}}
OF_NUMBER = {"properties": {"a": {"type": "integer"}}}
NARROWING: list[Schema] = [
    {"if": OF_NUMBER, "anyOf": [{}, {"anyOf": [{}, OF_TEXT]}]},
    {"anyOf": [OF_TEXT, {"if": OF_NUMBER, "unevaluatedProperties": {"type": "string"}}]},
    {"anyOf": [OF_TEXT, {"anyOf": [{}, {"if": OF_NUMBER}]}]},
    {"allOf": [{"anyOf": [{}, OF_TEXT]}, {"anyOf": [{}, OF_NUMBER]}]},
    {"additionalProperties": {"type": "integer"}, "anyOf": [{}, OF_TEXT]},
    {"dependentSchemas": {"a": OF_NUMBER}, "oneOf": [{}, OF_TEXT]},
]


@EACH
@pytest.mark.parametrize("schema", NARROWING, ids=str)
def test_a_form_that_names_a_parameter_narrows_nothing_around_it(module: Any, schema: Schema) -> None:
    must_take(module, make_tool({**schema, "type": "object", "$defs": DEFINITIONS}), OBJECTS, close_forms)


@pytest.mark.large
@EACH
@given(subject=tools())
def test_all_parameters_take_what_the_tool_takes(module: Any, subject: Tool) -> None:
    must_take(module, subject, OBJECTS, close_forms)


def fill_with_null(value: Any, schema: Any, root: Schema) -> Any:
    """The form of a value that the rewritten schema takes: with null for what was left out."""
    if "$ref" in schema:
        return fill_with_null(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    for branch in schema.get("anyOf", ()):
        found = fill_with_null(value, branch, root)
        if jsonschema_rs.is_valid({**branch, "$defs": root.get("$defs", {})}, found):
            return found
    if isinstance(value, dict) and "properties" in schema:
        shown = {name: fill_with_null(item, schema["properties"].get(name, {}), root) for name, item in value.items()}
        return {**dict.fromkeys(schema.get("required", ())), **shown}
    if isinstance(value, list) and "items" in schema:
        return [fill_with_null(item, schema["items"], root) for item in value]
    return value


@pytest.mark.large
@pytest.mark.parametrize("module", HOLDS, ids=by_name)
@given(subject=tools())
def test_any_strict_tool_is_sent_within_the_rules_and_takes_what_it_takes(module: Any, subject: Tool) -> None:
    try:
        schema = send(module, subject, strict=True)[1]
    except DefinitionError:
        assert is_refused_by_lint(module, subject, strict=True)
        return
    HOLDS[module](schema)
    root = json.loads(json.dumps(subject.input_schema))
    tool, narrow, found = validator(root), validator(close_forms(root)), validator(schema)
    for value in OBJECTS:
        if tool.is_valid(value) and narrow.is_valid(value):
            assert found.is_valid(fill_with_null(value, schema, schema)), f"given {root}\nsent {schema}\nof {value}"
