"""Null for what may be left out: strict modes make a model send it, and it means absent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from ferrule.values.frozen import JsonObject

_DEEPEST = 20
_OBJECT = {"properties", "patternProperties", "additionalProperties"}
_OTHER_KEYS = ("additionalProperties", "unevaluatedProperties")
_OTHER_ITEMS = ("items", "additionalItems", "unevaluatedItems")

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
    forms = _forms(nodes, root)
    if isinstance(value, list):
        items = [[below for form in forms for below in of_item(form, at)] for at in range(len(value))]
        return [_without(item, below, root) for item, below in zip(value, items, strict=True)]
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


def _branches(node: Schema, root: Schema) -> Iterator[Any]:
    """What a node refers to, and the schemas of which one or all hold for the same value."""
    if isinstance(node.get("$ref"), str):
        yield resolved(root, node["$ref"])
    for key in ("anyOf", "oneOf", "allOf"):
        yield from node.get(key, ())
    yield from (node[key] for key in ("then", "else") if key in node)


def _forms(nodes: Iterable[object], root: Schema) -> list[Schema]:
    """The schemas that nodes are made of, with those of their branches. Each once: in a recursive union there would be
    twice as many at every level."""
    found: dict[int, Schema] = {}
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if isinstance(node, Mapping) and id(node) not in found:
            found[id(node)] = node
            waiting.extend(_branches(node, root))
    return list(found.values())


def declares(schema: Schema, name: str) -> bool:
    """Whether a schema, in one of the forms that a value may have, says something of this property of the root."""
    return any(of_property(form, name) for form in _forms([schema], schema))


def resolved(root: Schema, ref: str) -> Any:
    """What a reference such as `#/$defs/Item` leads to; `None` where there is nothing."""
    node: Any = root
    for part in ref.removeprefix("#").strip("/").split("/"):
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping):
            node = node.get(key) if key else node
        elif isinstance(node, list):
            node = node[int(key)] if key.isdecimal() and int(key) < len(node) else None
    return node


def of_property(form: Schema, key: str | None) -> list[Any]:
    """What a form says of the value of a key, or of all that it does not name. Patterns are taken to fit any key."""
    others = [form[other] for other in _OTHER_KEYS if form.get(other, False) is not False]
    named = form.get("properties", {})
    return [*([named[key]] if key in named else others), *form.get("patternProperties", {}).values()]


def first_items(form: Schema) -> Sequence[Any]:
    """The schemas of the first items, each of its own."""
    items = form.get("items")
    return items if isinstance(items, list) else form.get("prefixItems", ())


def of_item(form: Schema, at: int) -> list[Any]:
    """What a form says of the item at a position."""
    first = first_items(form)
    others = [form[other] for other in _OTHER_ITEMS if isinstance(form.get(other), Mapping)]
    return [*([first[at]] if at < len(first) else others), *([form["contains"]] if "contains" in form else ())]
