"""Null for what may be left out: strict modes make a model send it, and it means absent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ferrule.values.frozen import JsonObject

_DEEPEST = 20
_OBJECT = {"properties", "patternProperties", "additionalProperties"}

Schema = JsonObject


def without_optional_nulls(value: object, schema: Schema) -> Any:
    """A copy of JSON without the nulls of properties that `schema` declares, does not require, and allows no null.

    Where a value may have several forms, those count that may be meant: all that they require is there, and nothing
    that they refuse. A null that one of them may take as data, or requires, stays.
    """
    return _without(value, [schema], schema)


def _without(value: object, nodes: Sequence[Schema], root: Schema) -> Any:
    if not isinstance(value, dict | list):
        return value
    forms = [form for node in nodes for form in _forms(node, root)]
    if isinstance(value, list):
        items = [[below for form in forms for below in _items(form, at)] for at in range(len(value))]
        return [_without(item, below, root) for item, below in zip(value, items, strict=True)]
    forms = [form for form in forms if form.keys() & _OBJECT]
    forms = [form for form in forms if _may_be(value, form)] or forms
    return {
        key: _without(item, [below for form in forms for below in _properties(form, key)], root)
        for key, item in value.items()
        if item is not None or not _is_absent(key, forms, root)
    }


def _may_be(value: dict[str, Any], form: Schema) -> bool:
    closed = form.get("additionalProperties") is False and "patternProperties" not in form
    return value.keys() >= set(form.get("required", ())) and not (closed and value.keys() - form.get("properties", {}))


def _is_absent(key: str, forms: Sequence[Schema], root: Schema) -> bool:
    """Whether the null of this key means that it is absent, in all of the forms."""
    declared = [form["properties"][key] for form in forms if key in form.get("properties", {})]
    others = [below for form in forms if key not in form.get("properties", {}) for below in _properties(form, key)]
    required = any(key in form.get("required", ()) for form in forms)
    return not required and not others and not all(_allows_null(node, root) for node in declared)


def _allows_null(node: object, root: Schema, depth: int = 0) -> bool:
    if not isinstance(node, Mapping) or depth > _DEEPEST:
        return True
    if isinstance(node.get("$ref"), str) and not _allows_null(_resolved(root, node["$ref"]), root, depth + 1):
        return False
    for key in ("anyOf", "oneOf"):
        if key in node and not any(_allows_null(branch, root, depth + 1) for branch in node[key]):
            return False
    if not all(_allows_null(branch, root, depth + 1) for branch in node.get("allOf", ())):
        return False
    kinds = node.get("type", "null")
    typed = "null" in ([kinds] if isinstance(kinds, str) else kinds)
    return typed and None in node.get("enum", (None,)) and node.get("const") is None


def _forms(node: object, root: Schema, depth: int = 0) -> Iterator[Schema]:
    """The schemas that a node is made of: itself, what it refers to, and the branches that it has."""
    if not isinstance(node, Mapping) or depth > _DEEPEST:
        return
    yield node
    if isinstance(node.get("$ref"), str):
        yield from _forms(_resolved(root, node["$ref"]), root, depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        for branch in node.get(key, ()):
            yield from _forms(branch, root, depth + 1)
    for key in ("then", "else"):
        yield from _forms(node.get(key), root, depth + 1)


def declares(schema: Schema, name: str) -> bool:
    """Whether a schema, in one of the forms that a value may have, names this property of the root."""
    return any(name in form.get("properties", ()) for form in _forms(schema, schema))


def _resolved(root: Schema, ref: str) -> Any:
    node: object = root
    for part in ref.removeprefix("#").strip("/").split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        node = node.get(key) if isinstance(node, Mapping) and key else node
    return node


def _properties(form: Schema, key: str) -> Iterator[Any]:
    """What a form says of the value of a key."""
    named = form.get("properties", {})
    if key in named:
        yield named[key]
    elif isinstance(form.get("additionalProperties"), Mapping):
        yield form["additionalProperties"]
    yield from form.get("patternProperties", {}).values()


def _items(form: Schema, at: int) -> Iterator[Any]:
    first = form.get("prefixItems", ())
    node = first[at] if at < len(first) else form.get("items")
    if node is not None:
        yield node
