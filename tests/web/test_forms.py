"""Forms of schemas: what is drawn from a value and sent unchanged is that value."""

from __future__ import annotations

import json
from typing import Any

import pytest
from desk_tools import order
from hypothesis import given
from hypothesis import strategies as st

from ferrule.web.forms import Field, Unreadable, draw_form, find_unreadable, read_form, to_json

Sent = dict[str, list[str]]
TREE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "flag": {"type": "boolean"},
        "any": {},
        "choice": {"enum": ["a", 1, None]},
        "several": {"type": "array", "items": {"type": "number"}},
        "more": {"type": "object", "additionalProperties": {"type": "string"}},
        "a/b~#c": {"type": "string"},
        "inner": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "array", "items": {"$ref": "#"}}]},
    },
}
TEXTS = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=8)
LEAVES = {
    "text": TEXTS,
    "count": st.integers(),
    "flag": st.booleans(),
    "any": st.recursive(st.none() | st.booleans() | TEXTS, st.lists, max_leaves=3),
    "choice": st.sampled_from(["a", 1, None]),
    "several": st.lists(st.integers(), max_size=3),
    "more": st.dictionaries(TEXTS, TEXTS, max_size=2),
    "a/b~#c": TEXTS,
}
VALUES = st.recursive(
    st.fixed_dictionaries({}, optional=LEAVES),
    lambda inner: st.fixed_dictionaries(
        {}, optional={**LEAVES, "inner": inner, "either": st.integers() | TEXTS | st.lists(inner, max_size=2)}
    ),
    max_leaves=4,
)


def send(field: Field, sent: Sent | None = None) -> Sent:
    """The fields that a browser sends of a form that nobody has touched."""
    sent = {} if sent is None else sent
    if field.kind == "union":
        sent.setdefault(field.name, []).append(field.value)
        sent[f"{field.name}#drawn"] = [field.value]
    elif field.is_group and field.included:
        sent |= {f"{field.name}#on": ["1"], f"{field.name}#drawn": ["1"]}
    elif not field.is_group:
        sent[field.name] = [field.value]
    for inner in field.fields:
        send(inner, sent)
    for number, (key, inner) in enumerate(field.items):
        sent.setdefault(f"{field.name}#item", []).append(str(number))
        sent[f"{inner.name}#key"] = [key]
        send(inner, sent)
    return sent


@given(VALUES)
def test_a_drawn_value_comes_back_unchanged(value: dict[str, Any]) -> None:
    assert to_json(read_form(TREE, send(draw_form(TREE, value)))) == value


def names(field: Field) -> list[str]:
    return [
        field.name,
        *(name for inner in (*field.fields, *(item for _, item in field.items)) for name in names(inner)),
    ]


def test_items_and_alternatives_can_be_added_changed_and_removed() -> None:
    schema = order.input_schema
    draft = read_form(schema, {}, "add f/lines")
    assert "f/lines/0/article" in names(draw_form(schema, draft))
    sent = send(draw_form(schema, draft)) | {"f/ship": ["1"]}
    draft = read_form(schema, sent, "add f/lines")
    drawn = draw_form(schema, draft)
    assert {"f/lines/1/article", "f/ship/1/address/street"} <= set(names(drawn))
    sent = send(drawn) | {
        "f/lines/1/article": ['"tea"'],
        "f/ship/1/address/street": ["Main 1"],
        "f/ship/1/express": ["true"],
    }
    assert to_json(read_form(schema, sent, "remove f/lines/0")) == {
        "lines": [{"article": "tea"}],
        "ship": {"kind": "delivery", "address": {"street": "Main 1"}, "express": True},
    }


@pytest.mark.parametrize(("name", "text"), [("count", "twelve"), ("count", "true"), ("any", "{")])
def test_a_text_that_a_field_cannot_read_is_shown_again_with_an_error(name: str, text: str) -> None:
    draft = read_form(TREE, {"f#on": ["1"], f"f/{name}": [text]})
    assert draft[name] == Unreadable(text) and find_unreadable(draft) == [text]
    [field] = [field for field in draw_form(TREE, draft).fields if field.name == f"f/{name}"]
    assert field.value == text and field.error


@pytest.mark.parametrize("shape", ["objects", "choices", "itself"])
def test_a_few_references_make_no_endless_form(shape: str) -> None:
    shapes: dict[str, dict[str, Any]] = {
        "objects": {"type": "object", "properties": {name: {"$ref": "#/$defs/inner"} for name in "abcd"}},
        "choices": {"enum": list(range(1_000))},
        "itself": {"anyOf": [{"$ref": "#/$defs/inner"}, {"type": "string"}]},
    }
    inner = shapes[shape]
    inner["required"] = list(inner.get("properties", ()))
    names_of_root = [f"key {number}" for number in range(60)]
    properties = {name: {"$ref": "#/$defs/inner"} for name in names_of_root}
    schema = {"type": "object", "properties": properties, "required": names_of_root, "$defs": {"inner": inner}}
    drawn = draw_form(schema, {})
    sent = send(drawn)
    assert len(names(drawn)) + sum(map(count_choices, [drawn])) < 8_000
    assert drawn.fields[-1].kind == ("union" if shape == "itself" else "json")
    value = {"a": 1} if shape == "objects" else 7
    again = read_form(schema, {**sent, drawn.fields[-1].name: [json.dumps(value)]})
    assert shape == "itself" or again["key 59"] == value
    assert draw_form(schema, again).fields[-1].kind == drawn.fields[-1].kind


def count_choices(field: Field) -> int:
    inner = (*field.fields, *(item for _, item in field.items))
    return len(field.choices) + sum(map(count_choices, inner))


def test_line_breaks_of_a_browser_are_line_feeds() -> None:
    assert read_form(TREE, {"f#on": ["1"], "f/text": ["a\r\nb"]}) == {"text": "a\nb"}
