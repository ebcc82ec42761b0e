"""Walk through a JSON Schema beside a value: references, schemas in place, properties and items.

A form is one schema among all that apply to a value: by a reference, by `allOf`, or as an alternative.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ferrule.values.frozen import JsonObject

_BY_PROPERTY = frozenset({"dependentSchemas", "dependencies"})
_TESTS = frozenset({"not", "if"})
"""Keywords that only test a value, and describe none of its parts."""
_IN_PLACE = (
    _BY_PROPERTY | _TESTS | {*("$ref", "$dynamicRef", "$recursiveRef", "then", "else", "allOf", "anyOf", "oneOf")}
)
_TAG_KEYWORDS = {"enum", "const"}
_OTHER_KEYS = ("additionalProperties", "unevaluatedProperties")
_OTHER_ITEMS = ("items", "additionalItems", "unevaluatedItems")

Schema = JsonObject


def iter_in_place(node: Schema, root: Schema) -> Iterator[tuple[str, list[Any]]]:
    """Yield each keyword by which a schema applies others to the same value, with these schemas."""
    for keyword in _IN_PLACE & node.keys():
        applied = node[keyword]
        if isinstance(applied, str):
            yield keyword, [resolve_reference(root, applied)]
        elif isinstance(applied, list):
            yield keyword, applied
        else:
            yield keyword, list(applied.values()) if keyword in _BY_PROPERTY else [applied]


def find_forms(nodes: Iterable[object], root: Schema) -> list[Schema]:
    """Return the schemas `nodes` and all schemas in place below them.

    Each comes once, because a recursive union would double their number at every level.
    """
    found: dict[int, Schema] = {}
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if isinstance(node, Mapping) and id(node) not in found:
            found[id(node)] = node
            for keyword, applied in iter_in_place(node, root):
                waiting.extend(() if keyword in _TESTS else applied)
    return list(found.values())


def match_forms(value: JsonObject, forms: list[Schema]) -> list[Schema]:
    """Return the possible forms of an object: required keys are there, no key is refused, and tags are equal.

    Returns all if no possible form has properties.
    """
    possible = [form for form in forms if _is_possible(value, form)]
    return possible if any("properties" in form for form in possible) else forms


def _is_possible(value: JsonObject, form: Schema) -> bool:
    properties = form.get("properties", {})
    tags = {key for key, node in properties.items() if isinstance(node, Mapping) and not _TAG_KEYWORDS.isdisjoint(node)}
    if set(form.get("required", ())) - value.keys() - tags:  # Pydantic lets a tag with a default be left out
        return False
    is_closed = form.get("additionalProperties") is False and "patternProperties" not in form
    if is_closed and value.keys() - properties.keys():
        return False
    return all(value[key] in properties[key].get("enum", [properties[key].get("const")]) for key in tags & value.keys())


def declared_properties(schema: Schema) -> frozenset[str] | None:
    """Return the declared properties of all forms of the root, or None if a form takes other keys, too."""
    forms = find_forms([schema], schema)
    if any(property_schemas(form, None) for form in forms):
        return None
    return frozenset(name for form in forms for name in form.get("properties", ()))


def resolve_reference(root: Schema, ref: str) -> Any:
    """Return the target of a reference such as `#/$defs/Item` or `#anchor`, or None if there is none."""
    fragment = ref.rpartition("#")[2]
    if fragment and not fragment.startswith("/"):
        return next((node for name, node in _iter_anchors(root) if name == fragment.rpartition("/")[2]), None)
    from urllib.parse import unquote

    node: Any = root
    for part in fragment.split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping):
            node = node.get(key)
        elif isinstance(node, list):
            node = node[int(key)] if key.isdecimal() and int(key) < len(node) else None
    return node


def _iter_anchors(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping):
        for key in ("$anchor", "$dynamicAnchor", "$id"):
            if isinstance(node.get(key), str):
                yield node[key].rpartition("/")[2].removeprefix("#"), node
        node = list(node.values())
    for child in node if isinstance(node, list) else ():
        yield from _iter_anchors(child)


def property_schemas(form: Schema, key: str | None) -> list[Any]:
    """Return a form's schemas for a key; for None, those for undeclared keys.

    Patterns count for every key.
    """
    others = [form[other] for other in _OTHER_KEYS if form.get(other, False) is not False]
    properties = form.get("properties", {})
    return [*([properties[key]] if key in properties else others), *form.get("patternProperties", {}).values()]


def prefix_items(form: Schema) -> Sequence[Any]:
    """Return the schemas of the first items, one for each position."""
    items = form.get("items")
    return items if isinstance(items, list) else form.get("prefixItems", ())


def item_schemas(form: Schema, index: int | None) -> list[Any]:
    """Return a form's schemas for the item at an index; for None, those for items after the first ones."""
    first = prefix_items(form)
    others = [form[other] for other in _OTHER_ITEMS if isinstance(form.get(other), Mapping)]
    schemas = [first[index]] if index is not None and index < len(first) else others
    return [*schemas, *([form["contains"]] if "contains" in form else ())]
