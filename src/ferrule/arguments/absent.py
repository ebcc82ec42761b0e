"""What may be left out: null in its place, and what is there instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ferrule.arguments.schema_walk import Schema, forms_of, of_item, of_property, resolved
from ferrule.values.json_text import same

_DEEPEST = 20
_OBJECT = {"properties", "patternProperties", "additionalProperties"}


def without_optional_nulls(value: object, schema: Schema) -> Any:
    """A copy of JSON without the nulls of properties that `schema` declares, does not require, and allows no null.

    Strict modes make a model send null for what may be left out. Where a value may have several forms, those count that
    may be meant: all that they require is there, and nothing that they refuse. A null that one of them may take as
    data, or requires, stays.
    """
    return _without(value, [schema], schema)


def _without(value: object, nodes: Sequence[Schema], root: Schema) -> Any:
    if isinstance(value, list):
        return [
            _without(item, below, root) for item, below in zip(value, _of_each_item(value, nodes, root), strict=True)
        ]
    if not isinstance(value, dict):
        return value
    forms = _object_forms(value, nodes, root)
    return {
        key: _without(item, [below for form in forms for below in of_property(form, key)], root)
        for key, item in value.items()
        if item is not None or not _is_absent(key, forms, root)
    }


def with_made_anew(given: Any, before: Any, received: Any, names: frozenset[str]) -> Any:
    """A copy of JSON with what factories filled `before` in what was `received`, where it is left out."""
    if isinstance(given, list):
        alike = all(isinstance(one, list) and len(one) == len(given) for one in (before, received))
        rows = zip(given, before, received, strict=True) if alike else ()
        return [with_made_anew(*row, names) for row in rows] if alike else given
    if not (isinstance(given, dict) and isinstance(before, dict)):
        return given
    sent = received if isinstance(received, dict) else {}
    made = {key: before[key] for key in names & before.keys() if key not in given and key not in sent}
    return made | {key: with_made_anew(item, before.get(key), sent.get(key), names) for key, item in given.items()}


Altered: TypeAlias = tuple[tuple[str | int, ...], object, object]
"""Where JSON is not what it was, what it was and what it is; `ABSENT` for nothing."""
ABSENT = object()


def first_altered(given: Any, made: Any, beyond: Any, *, names: frozenset[str]) -> Altered | None:
    """The first place where JSON that was made is not what was `given`, but for declared defaults.

    Args:
        beyond: What was made without what is as a default that is declared.
        names: Of what a factory fills, which is like a default.
    """
    if isinstance(given, dict) and isinstance(made, dict):
        named = beyond if isinstance(beyond, dict) else {}
        if unlike := [key for key in given if key not in made] + [
            key for key in made if key not in given and key in named and key not in names
        ]:
            return (unlike[0],), given.get(unlike[0], ABSENT), made.get(unlike[0], ABSENT)
        pairs = [(key, given[key], made[key], named.get(key)) for key in given]
    elif isinstance(given, list) and isinstance(made, list) and len(given) == len(made):
        rest = beyond if isinstance(beyond, list) and len(beyond) == len(made) else [None] * len(made)
        pairs = list(zip(range(len(given)), given, made, rest, strict=True))
    else:
        return None if same(given, made) else ((), given, made)
    for step, *values in pairs:
        if (found := first_altered(*values, names=names)) is not None:
            path, was, becomes = found
            return (step, *path), was, becomes
    return None


def _of_each_item(value: list[Any], nodes: Sequence[Schema], root: Schema) -> list[list[Any]]:
    """What the nodes say of each item of a list."""
    forms = forms_of(nodes, root)
    return [[below for form in forms for below in of_item(form, at)] for at in range(len(value))]


def _object_forms(value: dict[str, Any], nodes: Sequence[Schema], root: Schema) -> list[Schema]:
    """The forms of an object that may be meant by the nodes; all where none may."""
    forms = [form for form in forms_of(nodes, root) if form.keys() & _OBJECT]
    return [form for form in forms if _may_be(value, form)] or forms


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
