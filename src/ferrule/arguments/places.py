"""Find the paths in the arguments of a call: by the schema, and by the types of the validated values.

The search visits each value once, with all schemas for it. Its time grows with the size of the arguments,
however often the schema refers to itself.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from ferrule.arguments.dumping import NotJudgeable
from ferrule.security.schema_walk import Schema, find_forms, item_schemas, iter_in_place, match_forms, property_schemas
from ferrule.values.arguments import FoundPath, Place, Places
from ferrule.values.frozen import JsonObject


def find_places(schema: JsonObject, arguments: Mapping[str, Any], values: object) -> Places:
    """Return the places of paths in `arguments`, and the undeclared keys.

    Args:
        schema: The schema of all parameters.
        arguments: The judged JSON.
        values: The values that run, if an author's code may have made paths of them.

    Raises:
        NotJudgeable: The values hold a path, and the schema has no path with that text.
        LookupError: A reference leads out of the schema.
    """
    search = _PathSearch(schema)
    search.visit([schema], arguments, (), False)
    if others := frozenset(_iter_paths(values)) - {path.text for path in search.found.values()}:
        raise NotJudgeable(f"the path {min(others)!r} stands where the schema has none: give it the format 'path'")
    return Places(tuple(search.found.values()), frozenset(search.undeclared))


def _iter_paths(value: object) -> Iterator[str]:
    """Yield the texts of all paths in a value."""
    if isinstance(value, os.PathLike):
        yield os.fsdecode(value)
    elif isinstance(value, BaseModel):
        yield from _iter_paths({**vars(value), **(value.model_extra or {})})
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from _iter_paths(getattr(value, name, None))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _iter_paths(key)
            yield from _iter_paths(item)
    elif isinstance(value, list | tuple | deque | set | frozenset):
        for item in value:
            yield from _iter_paths(item)


class _PathSearch:
    def __init__(self, schema: JsonObject) -> None:
        self.schema = schema
        self.found: dict[tuple[Place, bool], FoundPath] = {}
        self.undeclared: set[Place] = set()
        self.forms: dict[tuple[int, ...], list[Schema]] = {}

    def visit(self, nodes: list[Any], value: object, place: Place, is_path: bool) -> None:
        """Collect the paths in a value. If the schema calls the value a path, every text inside counts as one."""
        forms = self._find_forms(nodes)
        is_path = is_path or _is_path(forms)
        if isinstance(value, str) and is_path:
            self.found[place, False] = FoundPath(place, value, False)
        elif isinstance(value, Mapping):
            forms = match_forms(value, forms)
            for key, item in value.items():
                inner = (*place, key)
                if not any(key in form.get("properties", ()) for form in forms):
                    self.undeclared.add(inner)
                names = [form["propertyNames"] for form in forms if "propertyNames" in form]
                if is_path or _is_path(self._find_forms(names)):
                    self.found[inner, True] = FoundPath(inner, key, True)
                self.visit([node for form in forms for node in property_schemas(form, key)], item, inner, is_path)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                schemas = [node for form in forms for node in item_schemas(form, index)]
                self.visit(schemas, item, (*place, index), is_path)

    def _find_forms(self, nodes: list[Any]) -> list[Schema]:
        ids = tuple(map(id, nodes))
        if ids not in self.forms:
            forms = self.forms[ids] = find_forms(nodes, self.schema)
            if any(None in applied for form in forms for _, applied in iter_in_place(form, self.schema)):
                raise LookupError("the schema refers to what is no part of it")
        return self.forms[ids]


def _is_path(forms: Iterable[Schema]) -> bool:
    """Return whether a form has a format for paths, such as Pydantic's `path` and `directory-path`."""
    return any(str(node.get("format")).rpartition("-")[2] == "path" for node in forms)
