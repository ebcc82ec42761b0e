"""Plain mode takes all that the tool takes, whatever keywords lean on each other in its schema."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest
from hypothesis import assume, example, given, note
from hypothesis import strategies as st
from test_plain import ALL, Schema, accepted, closed, made, sent, taking

from ferrule.errors import DefinitionError
from ferrule.providers import anthropic, ollama

pytestmark = pytest.mark.slow

NAMES = ["a", "b", "x1"]
PATTERNS = ["^x", "(?=x)x", "^[ab]"]
SCALARS: list[Any] = [None, True, 0, 5, "a", "x1"]
LISTS: list[Any] = [[], *([item] for item in SCALARS), *map(list, product([0, "a", None], repeat=2)), [0, 5, "a"]]
INNER = [0, 5, "a", [0], ["a", 0], {}, {"a": 0}, {"x1": "a"}]
OBJECTS: list[Any] = [
    {},
    *({name: item} for name in NAMES for item in INNER),
    *({"a": one, "b": other} for one, other in product([0, "a", None], repeat=2)),
    *({"a": one, "x1": other} for one, other in product([0, "a", None], repeat=2)),
    {"a": 0, "b": "a", "x1": None},
]
VALUES = [*SCALARS, *LISTS, *OBJECTS]


def leaves() -> st.SearchStrategy[Any]:
    return st.sampled_from(
        [
            *({"type": kind} for kind in ("string", "integer", "null", "array", "object")),
            *({}, True, False, {"const": 0}, {"enum": ["a", 5]}, {"type": ["integer", "string"]}),
            *({"type": "string", "pattern": pattern} for pattern in PATTERNS),
            *({"required": [name]} for name in NAMES),
            *({"$ref": reference} for reference in ("#/$defs/D", "#/$defs/Word", "#here", "#/$defs/If")),
        ]
    )


DEFINITIONS: Schema = {
    "D": {"properties": {"a": {"type": "integer"}}, "patternProperties": {"^x": {"type": "string"}}},
    "Word": {"type": "string", "pattern": "(?=x)x"},
    "If": {"if": {"required": ["a"]}, "then": {"properties": {"x1": {"type": "string"}}, "required": ["b"]}},
    "Named": {"$anchor": "here", "type": "array", "prefixItems": [{"type": "integer"}], "items": False},
}


def keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    """Groups of keywords each of which may be read by another of its group; one to three groups in a schema."""
    of = st.fixed_dictionaries
    named = st.dictionaries(st.sampled_from(NAMES), inner, max_size=2)
    names = st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True)
    several = st.lists(inner, min_size=1, max_size=2)
    other = st.one_of(st.just(False), inner)
    fields: dict[str, Any] = {
        "properties": named,
        "patternProperties": st.dictionaries(st.sampled_from(PATTERNS), inner, min_size=1, max_size=2),
        "additionalProperties": other,
        "unevaluatedProperties": other,
        "required": names,
        "dependentRequired": st.dictionaries(st.sampled_from(NAMES), names, max_size=1),
        "dependentSchemas": st.dictionaries(st.sampled_from(NAMES), inner, max_size=1),
        "propertyNames": inner,
    }
    items: dict[str, Any] = {
        "prefixItems": several,
        "items": other,
        "unevaluatedItems": other,
        "contains": inner,
        "minContains": st.integers(0, 2),
        "maxContains": st.integers(0, 2),
    }
    conditions: dict[str, Any] = {"if": inner, "then": inner, "else": inner}
    unions: dict[str, Any] = {"anyOf": several, "oneOf": several, "allOf": several, "not": inner, "type": kinds()}
    groups = [of({}, optional=group) for group in (fields, items, conditions, unions)]
    return st.lists(st.one_of(groups), min_size=1, max_size=3).map(joined)


def kinds() -> st.SearchStrategy[Any]:
    return st.sampled_from(["object", "array", ["object", "array"], ["string", "integer"]])


def joined(parts: list[Schema]) -> Schema:
    return {key: item for part in parts for key, item in part.items()}


def schemas() -> st.SearchStrategy[Any]:
    return st.recursive(leaves(), keywords, max_leaves=6)


def takes_what_the_tool_takes(module: Any, given: Schema, values: list[Any], beside: Any = None) -> None:
    try:
        subject = made(given)
    except DefinitionError:
        assume(False)
        raise
    schema = sent(module, subject)[1]
    root = json.loads(json.dumps(subject.input_schema))
    note(f"given {root}\nsent {schema}")
    tool, narrowed, found = accepted(root), accepted(beside or root), accepted(schema)
    for value in values:
        if tool.is_valid(value) and narrowed.is_valid(value):
            assert found.is_valid(value), value


@ALL
@given(schema=schemas())
def test_a_parameter_takes_what_the_tool_takes(module: Any, schema: Any) -> None:
    whole = {**taking(v=schema), "$defs": DEFINITIONS}
    takes_what_the_tool_takes(module, whole, [{"v": value} for value in VALUES])


@ALL
@given(schema=keywords(schemas()))
def test_all_parameters_take_what_the_tool_takes(module: Any, schema: Schema) -> None:
    whole = {**schema, "type": "object", "$defs": DEFINITIONS}
    takes_what_the_tool_takes(module, whole, OBJECTS, closed(whole))


def unions_at_the_root() -> st.SearchStrategy[Schema]:
    """Unions whose forms name a parameter or do not, beside each other and beside what may take it too."""
    types = st.sampled_from([{"type": "integer"}, {"type": "string"}])
    form = types.map(lambda kind: {"properties": {"a": kind}})
    around: dict[str, Any] = {
        "if": form | st.just({"$ref": "#/$defs/D"}),
        "dependentSchemas": form.map(lambda found: {"a": found}),
        "patternProperties": types.map(lambda kind: {"^[ab]": kind}),
        "additionalProperties": types | st.booleans(),
        "unevaluatedProperties": types | st.just(False),
        "properties": st.dictionaries(st.sampled_from(NAMES), types, max_size=1),
        "required": st.just(["b"]),
    }

    def grown(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
        several = st.lists(inner, min_size=2, max_size=2)
        return st.fixed_dictionaries({}, optional={"anyOf": several, "oneOf": several, "allOf": several, **around})

    return grown(st.recursive(st.just({}) | form, grown, max_leaves=4))


OF_TEXT = {"properties": {"a": {"type": "string"}}}
OF_NUMBER = {"properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize("module", [anthropic, ollama], ids=["anthropic", "ollama"])
@given(schema=unions_at_the_root())
@example({"if": OF_NUMBER, "anyOf": [{}, {"anyOf": [{}, OF_TEXT]}]})
@example({"anyOf": [OF_TEXT, {"if": OF_NUMBER, "unevaluatedProperties": {"type": "string"}}]})
@example({"anyOf": [OF_TEXT, {"anyOf": [{}, {"if": OF_NUMBER}]}]})
@example({"allOf": [{"anyOf": [{}, OF_TEXT]}, {"anyOf": [{}, OF_NUMBER]}]})
@example({"additionalProperties": {"type": "integer"}, "anyOf": [{}, OF_TEXT]})
def test_a_form_that_names_a_parameter_narrows_nothing_that_stands_around_it(module: Any, schema: Schema) -> None:
    whole = {**schema, "type": "object", "$defs": DEFINITIONS}
    takes_what_the_tool_takes(module, whole, OBJECTS, closed(whole))
