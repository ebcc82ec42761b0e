"""Null for what may be left out: strict modes make a model send it, and it means absent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ferrule.arguments.schema_walk import Schema, forms_of, of_item, of_property, resolved

_DEEPEST = 20
_OBJECT = {"properties", "patternProperties", "additionalProperties"}


def without_optional_nulls(value: object, schema: Schema) -> Any:
    """A copy of JSON without the nulls of properties that `schema` declares, does not require, and allows no null.

    Where a value may have several forms, those count that may be meant: all that they require is there, and nothing
    that they refuse. A null that one of them may take as data, or requires, stays.
    """
    return _without(value, [schema], schema)


def _without(value: object, nodes: Sequence[Schema], root: Schema) -> Any:
    if not isinstance(value, dict | list):
        return value
    forms = forms_of(nodes, root)
    if isinstance(value, list):
        return [
            _without(item, [below for form in forms for below in of_item(form, at)], root)
            for at, item in enumerate(value)
        ]
    forms = [form for form in forms if form.keys() & _OBJECT]
    forms = [form for form in forms if _may_be(value, form)] or forms
    return {
        key: _without(item, [below for form in forms for below in of_property(form, key)], root)
        for key, item in value.items()
        if item is not None or not _is_absent(key, forms, root)
    }


def _may_be(value: dict[str, Any], form: Schema) -> bool:
    closed = form.get("additionalProperties") is False and "patternProperties" not in form
    return value.keys() >= set(form.get("required", ())) and not (closed and value.keys() - form.get("properties", {}))


def _is_absent(key: str, forms: Sequence[Schema], root: Schema) -> bool:
    """Whether the null of this key means that it is absent, in all of the forms."""
    declared = [form["properties"][key] for form in forms if key in form.get("properties", {})]
    others = [below for form in forms if key not in form.get("properties", {}) for below in of_property(form, key)]
    required = any(key in form.get("required", ()) for form in forms)
    return not required and not others and not all(_allows_null(node, root) for node in declared)


def _allows_null(node: object, root: Schema, depth: int = 0) -> bool:
    """Whether null may be a value; where that is hard to tell, it may."""
    if not isinstance(node, Mapping) or depth > _DEEPEST:
        return True
    if "enum" in node or "const" in node:
        return None in node.get("enum", (node.get("const"),))
    if "type" in node:
        return "null" in node["type"]
    if isinstance(node.get("$ref"), str):
        return _allows_null(resolved(root, node["$ref"]), root, depth + 1)
    for key in ("anyOf", "oneOf"):
        if key in node:
            return any(_allows_null(branch, root, depth + 1) for branch in node[key])
    return all(_allows_null(branch, root, depth + 1) for branch in node.get("allOf", ()))
