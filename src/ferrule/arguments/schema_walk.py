"""What a JSON Schema says of a value and of what is in it: references, keywords in place, properties and items."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ferrule.values.frozen import JsonObject

_BY_PROPERTY = frozenset({"dependentSchemas", "dependencies"})
_TESTS = frozenset({"not", "if"})
"""What only says which values are meant."""
_IN_PLACE = (
    _BY_PROPERTY | _TESTS | {*("$ref", "$dynamicRef", "$recursiveRef", "then", "else", "allOf", "anyOf", "oneOf")}
)
_OF_TAGS = {"enum", "const"}
_OTHER_KEYS = ("additionalProperties", "unevaluatedProperties")
_OTHER_ITEMS = ("items", "additionalItems", "unevaluatedItems")

Schema = JsonObject


def in_place(node: Schema, root: Schema) -> Iterator[tuple[str, list[Any]]]:
    """The schemas that a node applies to its own value, by keyword."""
    for key in _IN_PLACE & node.keys():
        applied = node[key]
        if isinstance(applied, str):
            yield key, [resolved(root, applied)]
        elif isinstance(applied, list):
            yield key, applied
        else:
            yield key, list(applied.values()) if key in _BY_PROPERTY else [applied]


def forms_of(nodes: Iterable[object], root: Schema) -> list[Schema]:
    """The schemas that nodes are made of, with those that they apply in place. Each once: in a recursive union there
    would be twice as many at every level."""
    found: dict[int, Schema] = {}
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if isinstance(node, Mapping) and id(node) not in found:
            found[id(node)] = node
            for key, applied in in_place(node, root):
                waiting.extend(() if key in _TESTS else applied)
    return list(found.values())


def meant(value: JsonObject, forms: list[Schema]) -> list[Schema]:
    """The forms that an object may have, of several: all that they require is there, nothing that they refuse, and no
    other tag. All where it may have none of them."""
    may_be = [form for form in forms if _may_be(value, form)]
    return may_be if any("properties" in form for form in may_be) else forms


def _may_be(value: JsonObject, form: Schema) -> bool:
    named = form.get("properties", {})
    tags = {key for key, node in named.items() if isinstance(node, Mapping) and not _OF_TAGS.isdisjoint(node)}
    if set(form.get("required", ())) - value.keys() - tags:  # Pydantic takes a tag with a default for granted
        return False
    if form.get("additionalProperties") is False and "patternProperties" not in form and value.keys() - named.keys():
        return False
    return all(value[key] in named[key].get("enum", [named[key].get("const")]) for key in tags & value.keys())


def declared(schema: Schema) -> frozenset[str] | None:
    """The properties of the root that a schema names, in any of the forms that a value may have; `None` where one of
    them takes other keys too."""
    forms = forms_of([schema], schema)
    if any(of_property(form, None) for form in forms):
        return None
    return frozenset(name for form in forms for name in form.get("properties", ()))


def resolved(root: Schema, ref: str) -> Any:
    """What a reference such as `#/$defs/Item` or `#anchor` leads to; `None` where there is nothing."""
    fragment = ref.rpartition("#")[2]
    if fragment and not fragment.startswith("/"):
        return next((node for name, node in _anchors(root) if name == fragment.rpartition("/")[2]), None)
    from urllib.parse import unquote

    node: Any = root
    for part in fragment.split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping):
            node = node.get(key)
        elif isinstance(node, list):
            node = node[int(key)] if key.isdecimal() and int(key) < len(node) else None
    return node


def _anchors(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping):
        for key in ("$anchor", "$dynamicAnchor", "$id"):
            if isinstance(node.get(key), str):
                yield node[key].rpartition("/")[2].removeprefix("#"), node
        node = list(node.values())
    for below in node if isinstance(node, list) else ():
        yield from _anchors(below)


def of_property(form: Schema, key: str | None) -> list[Any]:
    """What a form says of the value of a key, or of all that it does not name. Patterns are taken to fit any key."""
    others = [form[other] for other in _OTHER_KEYS if form.get(other, False) is not False]
    named = form.get("properties", {})
    return [*([named[key]] if key in named else others), *form.get("patternProperties", {}).values()]


def first_items(form: Schema) -> Sequence[Any]:
    """The schemas of the first items, each of its own."""
    items = form.get("items")
    return items if isinstance(items, list) else form.get("prefixItems", ())


def of_item(form: Schema, at: int | None) -> list[Any]:
    """What a form says of the item at a position, or of all after the first ones."""
    first = first_items(form)
    others = [form[other] for other in _OTHER_ITEMS if isinstance(form.get(other), Mapping)]
    own = [first[at]] if at is not None and at < len(first) else others
    return [*own, *([form["contains"]] if "contains" in form else ())]
