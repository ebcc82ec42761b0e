"""Any schema and any tool, for the properties of what is sent of them; and the values that they are tried with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from typing import Any

import jsonschema_rs
from hypothesis import assume
from hypothesis import strategies as st

from ferrule import Tool, Toolset, build_tool
from ferrule.errors import DefinitionError

Schema = dict[str, Any]
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
NAMES = ["a", "b", "x1"]
ODD_NAMES = ["x.y", "an odd name", "n" * 65, "1st", "ß"]
PATTERNS = ["^x", "(?=x)x", "^[ab]"]
SCALARS: list[Any] = [None, True, 0, 5, "a", "x1"]
LISTS: list[Any] = [[], *([item] for item in SCALARS), *map(list, product([0, "a", None], repeat=2)), [0, 5, "a"]]
INNER = [0, 5, "a", [0], ["a", 0], {}, {"a": 0}, {"x1": "a"}]
OBJECTS: list[Any] = [
    {},
    *({name: item} for name in [*NAMES, "1st"] for item in INNER),
    *({"a": one, "b": other} for one, other in product([0, "a", None], repeat=2)),
    *({"a": one, "x1": other} for one, other in product([0, "a", None], repeat=2)),
    {"a": 0, "b": "a", "x1": None},
]
VALUES = [*SCALARS, *LISTS, *OBJECTS]
DEFINITIONS: Schema = {
    "D": {"properties": {"a": {"type": "integer"}}, "patternProperties": {"^x": {"type": "string"}}},
    "Word": {"type": "string", "pattern": "(?=x)x"},
    "If": {"if": {"required": ["a"]}, "then": {"properties": {"x1": {"type": "string"}}, "required": ["b"]}},
    "Named": {"$anchor": "here", "type": "array", "prefixItems": [{"type": "integer"}], "items": False},
    "Tree": {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}},
        "required": ["b"],
        "additionalProperties": False,
    },
}


def make_tool(schema: Any, name: str = "odd", description: str = "Do it.") -> Tool:
    return build_tool(
        {"name": name, "description": description, "input_schema": schema, "execute": lambda payload, context: payload}
    )


def object_of(**parameters: Any) -> Schema:
    return {"type": "object", "properties": parameters, "additionalProperties": False}


def definition_of(module: Any, subject: Tool, strict: bool = False) -> Any:
    """The only definition of a request."""
    written = module.tools(Toolset([subject]), strict=strict)
    entry = written["tools"][0]["toolSpec"] if isinstance(written, dict) else written[0]
    return entry.get("function") or entry.get("functionDeclarations", [entry])[0]


def schema_in(definition: Any) -> Any:
    keys = ("input_schema", "parameters", "parametersJsonSchema", "inputSchema")
    schema = next(definition[key] for key in keys if key in definition)
    return schema.get("json", schema)


def send(module: Any, subject: Tool, strict: bool = False) -> tuple[str, Schema]:
    """Return the description and the schema as they go into a request, as plain JSON."""
    definition = definition_of(module, subject, strict)
    return definition.get("description", ""), json.loads(json.dumps(schema_in(definition)))


def validator(schema: Any) -> Any:
    return jsonschema_rs.validator_for(schema, validate_formats=True)


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


# Any schema


def leaves() -> st.SearchStrategy[Any]:
    references = ("#/$defs/D", "#/$defs/Word", "#here", "#/$defs/If", "#/$defs/Tree", "#")
    return st.sampled_from(
        [
            *({"type": kind} for kind in ("string", "integer", "null", "array", "object")),
            *(
                {},
                True,
                False,
                {"const": 0},
                {"const": True},
                {"enum": ["a", 5, None]},
                {"type": ["integer", "string"]},
            ),
            *({"type": "string", "pattern": pattern} for pattern in PATTERNS),
            {"type": "integer", "minimum": 0, "exclusiveMaximum": 9, "default": 1, "title": "T"},
            *({"required": [name]} for name in NAMES),
            *({"$ref": reference} for reference in references),
            {"$ref": "#/$defs/D", "required": ["a"], "description": "It."},
        ]
    )


def keywords(inner: st.SearchStrategy[Any], old: bool = False, names: list[str] = NAMES) -> st.SearchStrategy[Schema]:
    """Groups of keywords each of which may be read by another of its group; one to three groups in a schema."""
    of = st.fixed_dictionaries
    named = st.dictionaries(st.sampled_from(names), inner, max_size=2)
    required = st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True)
    several = st.lists(inner, min_size=1, max_size=2)
    other = st.one_of(st.just(False), inner)
    fields: dict[str, Any] = {
        "properties": named,
        "patternProperties": st.dictionaries(st.sampled_from(PATTERNS), inner, min_size=1, max_size=2),
        "additionalProperties": other,
        "unevaluatedProperties": other,
        "required": required,
        "dependentRequired": st.dictionaries(st.sampled_from(NAMES), required, max_size=1),
        "dependentSchemas": st.dictionaries(st.sampled_from(NAMES), inner, max_size=1),
        "propertyNames": inner,
    }
    items: dict[str, Any] = {
        "items": several if old else other,
        "contains": inner,
        **({"additionalItems": other} if old else {"prefixItems": several, "unevaluatedItems": other}),
        **({} if old else {"minContains": st.integers(0, 2), "maxContains": st.integers(0, 2)}),
    }
    conditions: dict[str, Any] = {"if": inner, "then": inner, "else": inner}
    kinds = st.sampled_from(["object", "array", ["object", "array"], ["string", "integer"]])
    unions: dict[str, Any] = {"anyOf": several, "oneOf": several, "allOf": several, "not": inner, "type": kinds}
    groups = [of({}, optional=group) for group in (fields, items, conditions, unions)]
    parts = st.lists(st.one_of(groups), min_size=1, max_size=3)
    return parts.map(lambda parts: {key: item for part in parts for key, item in part.items()})


def schemas(old: bool = False) -> st.SearchStrategy[Any]:
    return st.recursive(leaves(), lambda inner: keywords(inner, old), max_leaves=6)


@st.composite
def tools(draw: st.DrawFn) -> Tool:
    old = draw(st.booleans())
    root = draw(keywords(schemas(old), old, [*NAMES, *NAMES, *ODD_NAMES]))
    dialect = {"$schema": DRAFT_7} if old else draw(st.sampled_from([{}, {"$id": "https://example.org/a"}]))
    return make_or_assume({**root, **dialect, "$defs": DEFINITIONS, "type": "object"})


def make_or_assume(schema: Schema) -> Tool:
    try:
        return make_tool(schema)
    except DefinitionError:
        assume(False)
        raise


# What a form at the root leaves open


def close_forms(root: Schema) -> Schema:
    """With no form at the root that leaves open what another declares; draft 2019-09 reads the others too."""
    found = without_open_forms(root) | {"unevaluatedProperties": False}
    found["$defs"] = {name: without_open_forms(item) for name, item in root["$defs"].items()}
    return found | ({"$schema": "https://json-schema.org/draft/2019-09/schema"} if "$schema" in root else {})


def without_open_forms(form: Any) -> Any:
    if not isinstance(form, dict):
        return form
    is_open = form.get("additionalProperties") is True  # then nothing is left for `unevaluatedProperties`
    others = ("additionalProperties", "unevaluatedProperties")
    kept = {key: item for key, item in form.items() if not (is_open and key in others)}
    for key in kept.keys() & {"anyOf", "oneOf", "allOf"}:
        kept[key] = [without_open_forms(item) for item in kept[key]]
    return kept
