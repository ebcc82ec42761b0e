"""Nulls in the place of optional properties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from ferrule.security.schema_walk import (
    Schema,
    find_forms,
    item_schemas,
    iter_in_place,
    match_forms,
    prefix_items,
    property_schemas,
)
from ferrule.values.frozen import JsonObject

_MAX_DEPTH = 10
_COMBINED_BY = {"$ref": all, "allOf": all, "anyOf": any, "oneOf": any}


def drop_optional_nulls(value: JsonObject, schema: Schema) -> Any:
    """Return a copy of JSON without the nulls of optional properties.

    The strict modes of providers make a model send null instead of leaving a property out. A null is dropped if
    `schema` declares the property, does not require it, and allows no null there. A null stays if a possible form of
    the value requires the property or may take null as data.
    """
    return _drop_nulls(value, find_forms([schema], schema), schema)


def _drop_nulls(value: Any, forms: list[Schema], root: Schema) -> Any:
    if isinstance(value, list):
        others = max((len(prefix_items(form)) for form in forms), default=0)

        @cache
        def find_item_forms(index: int) -> list[Schema]:
            return find_forms([node for form in forms for node in item_schemas(form, index)], root)

        return [
            _drop_nulls(item, find_item_forms(min(index, others)), root) if isinstance(item, dict | list) else item
            for index, item in enumerate(value)
        ]
    forms = match_forms(value, forms)
    return {
        key: _drop_nulls(item, find_forms([node for form in forms for node in property_schemas(form, key)], root), root)
        if isinstance(item, dict | list)
        else item
        for key, item in value.items()
        if item is not None or not _is_absent(key, forms, root)
    }


def _is_absent(key: str, forms: Sequence[Schema], root: Schema) -> bool:
    """Return whether null stands for an absent key in every form."""
    declared = [form["properties"][key] for form in forms if key in form.get("properties", {})]
    others = [node for form in forms if key not in form.get("properties", {}) for node in property_schemas(form, key)]
    required = any(key in form.get("required", ()) for form in forms)
    return not required and not others and not all(_allows_null(node, root) for node in declared)


def _allows_null(node: object, root: Schema, depth: int = 0) -> bool:
    """Return whether a schema may allow null; True in doubt."""
    if not isinstance(node, Mapping) or depth > _MAX_DEPTH:
        return True
    if "enum" in node or "const" in node:
        return None in node.get("enum", (node.get("const"),))
    if "type" in node:
        return "null" in node["type"]
    return all(
        _COMBINED_BY[keyword](_allows_null(applied, root, depth + 1) for applied in schemas)
        for keyword, schemas in iter_in_place(node, root)
        if keyword in _COMBINED_BY
    )
