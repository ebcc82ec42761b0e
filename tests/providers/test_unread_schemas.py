"""A schema that an API takes unchanged is sent without a rewrite, and the rewrite would have changed nothing."""

from __future__ import annotations

import json
import re
from itertools import count
from typing import Any

import pytest
from any_schema import Schema, make_tool, object_of, send
from hypothesis import assume, example, given
from hypothesis import strategies as st

from ferrule.errors import DefinitionError
from ferrule.providers import anthropic, bedrock, cohere, gemini, mistral, ollama, openai_chat, openai_responses

MODULES = [anthropic, bedrock, cohere, gemini, mistral, ollama, openai_chat, openai_responses]
WORDS = st.sampled_from(["", "words"])
NUMBERS = count()


def schemas() -> st.SearchStrategy[Any]:
    """Schemas of which most are sent unchanged, and some have parts that a provider refuses."""
    text = st.fixed_dictionaries(
        {"type": st.just("string")}, optional={"pattern": st.sampled_from(["^a", "(?=a)a"]), "description": WORDS}
    )
    number = st.fixed_dictionaries(
        {"type": st.sampled_from(["integer", "number"])}, optional={"minimum": st.just(0), "title": WORDS}
    )
    odd: list[Any] = [{}, True, False, {"const": 1}, {"enum": ["a", None]}, {"type": "array"}, {"type": "object"}]
    references = st.sampled_from(["A", "B", "gone"]).map(lambda name: {"$ref": f"#/$defs/{name}"})
    return st.recursive(st.one_of(text, number, st.sampled_from(odd), references), containers, max_leaves=5)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    kinds = st.sampled_from(["array", ["array", "null"], "string"])
    array = st.fixed_dictionaries(
        {"type": kinds}, optional={"items": inner, "minItems": st.just(1), "default": st.just([])}
    )
    union = st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=3)})
    return st.one_of(array, objects(inner), union)


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    return st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(st.sampled_from(["a", "an odd name"]), inner)},
        optional={"additionalProperties": st.booleans() | inner, "required": st.just(["a"]), "description": WORDS},
    )


def add_anchors(node: Any) -> Any:
    """Return the schema with an anchor at each place: it means the same, no API is sent it, and it forces a rewrite."""
    if isinstance(node, list):
        return [add_anchors(item) for item in node]
    if not isinstance(node, dict):
        return node
    inside = {
        key: add_anchors(item) if key in ("items", "anyOf", "additionalProperties") else item
        for key, item in node.items()
    }
    for key in ("properties", "$defs"):
        if key in node:
            inside[key] = {name: add_anchors(item) for name, item in node[key].items()}
    return {**inside, "$anchor": f"n{next(NUMBERS)}"}


def export(module: Any, schema: Schema) -> Any:
    """Return what a provider is sent for the schema, or why it cannot be sent."""
    try:
        subject = make_tool(schema)
    except DefinitionError:
        assume(False)
        raise
    try:
        sent = send(module, subject)
    except DefinitionError as error:
        return str(error)
    return json.loads(re.sub(r'(, )?\\?"\$anchor\\?": \\?"n\d+\\?"', "", json.dumps(sent)))


@pytest.mark.large
@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
@given(root=objects(schemas()), definitions=st.fixed_dictionaries({}, optional={"A": schemas(), "B": schemas()}))
@example(root=object_of(a={"$ref": "#/$defs/A"}), definitions={"A": object_of(a={"$ref": "#/$defs/A"})})
@example(root=object_of(), definitions={"unused": {}})
def test_an_unchanged_schema_is_the_same_as_its_rewrite(module: Any, root: Schema, definitions: Schema) -> None:
    """A definition that only refers to itself may stay, so each one is used."""
    used = {name: {"$ref": f"#/$defs/{name}"} for name in definitions if name != "unused"}
    schema = {**root, "properties": {**root["properties"], **used}, "$defs": definitions} if definitions else root
    assert export(module, schema) == export(module, add_anchors(schema))
