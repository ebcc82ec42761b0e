"""Null in the place of what may be left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ferrule.arguments.schema_walk import Schema, forms_of, in_place, meant, of_item, of_property

_DEEPEST = 10
_JOINED = {"$ref": all, "allOf": all, "anyOf": any, "oneOf": any}


def without_optional_nulls(value: object, schema: Schema) -> Any:
    """A copy of JSON without the nulls of properties that `schema` declares, does not require, and allows no null.

    Strict modes make a model send null for what may be left out. Where a value may have several forms, those count that
    may be meant: all that they require is there, and nothing that they refuse. A null that one of them may take as
    data, or requires, stays.
    """
    return _without(value, [schema], schema)


def _without(value: object, nodes: Sequence[Schema], root: Schema) -> Any:
    if isinstance(value, list):
        forms = forms_of(nodes, root)
        return [
            _without(item, [one for form in forms for one in of_item(form, at)], root) for at, item in enumerate(value)
        ]
    if not isinstance(value, dict):
        return value
    forms = meant(value, forms_of(nodes, root))
    return {
        key: _without(item, [below for form in forms for below in of_property(form, key)], root)
        for key, item in value.items()
        if item is not None or not _is_absent(key, forms, root)
    }


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
    return all(
        _JOINED[key](_allows_null(one, root, depth + 1) for one in ones)
        for key, ones in in_place(node, root)
        if key in _JOINED
    )
