"""Where the arguments of a call hold paths: what their types say, and what their schema says.

Each value is looked at once, with all the parts of the schema that speak of it: the time grows with the size of the
arguments, however the schema refers to itself.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from ferrule.arguments.dumping import NoJudgedForm
from ferrule.arguments.schema_walk import Schema, forms_of, in_place, meant, of_item, of_property
from ferrule.values.arguments import FoundPath, Place, Places
from ferrule.values.frozen import JsonObject


def find_places(schema: JsonObject, arguments: Mapping[str, Any], values: object) -> Places:
    """Where `arguments` hold paths, and which of their keys no schema names.

    Args:
        schema: Of all parameters.
        arguments: The JSON that is judged.
        values: What runs, where code of an author's may have made paths of anything.

    Raises:
        NoJudgedForm: where a path runs that the schema does not call one, or that is written otherwise.
        LookupError: for a reference that leads out of the schema.
    """
    search = _PathSearch(schema)
    search.by_schema([schema], arguments, (), False)
    if others := frozenset(_paths_in(values)) - {path.text for path in search.found.values()}:
        raise NoJudgedForm(f"the path {min(others)!r} stands where the schema has none: give it the format 'path'")
    return Places(tuple(search.found.values()), frozenset(search.unnamed))


def _paths_in(value: object) -> Iterator[str]:
    """The texts of all paths that a value holds."""
    if isinstance(value, os.PathLike):
        yield os.fsdecode(value)
    elif isinstance(value, BaseModel):
        yield from _paths_in({**vars(value), **(value.model_extra or {})})
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from _paths_in(getattr(value, name, None))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _paths_in(key)
            yield from _paths_in(item)
    elif isinstance(value, list | tuple | deque | set | frozenset):
        for item in value:
            yield from _paths_in(item)


class _PathSearch:
    def __init__(self, schema: JsonObject) -> None:
        self.schema = schema
        self.found: dict[tuple[Place, bool], FoundPath] = {}
        self.unnamed: set[Place] = set()
        self.known: dict[tuple[int, ...], list[Schema]] = {}

    def by_schema(self, nodes: list[Any], value: object, place: Place, is_path: bool) -> None:
        """Go through a value and the parts of the schema that speak of it; all text in what the schema calls a path
        is one, whatever its shape."""
        forms = self._forms(nodes)
        is_path = is_path or _is_path(forms)
        if isinstance(value, str) and is_path:
            self.found[place, False] = FoundPath(place, value, False)
        elif isinstance(value, Mapping):
            forms = meant(value, forms)
            for key, item in value.items():
                inner = (*place, key)
                if not any(key in form.get("properties", ()) for form in forms):
                    self.unnamed.add(inner)
                names = [form["propertyNames"] for form in forms if "propertyNames" in form]
                if is_path or _is_path(self._forms(names)):
                    self.found[inner, True] = FoundPath(inner, key, True)
                self.by_schema([below for form in forms for below in of_property(form, key)], item, inner, is_path)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                below = [below for form in forms for below in of_item(form, index)]
                self.by_schema(below, item, (*place, index), is_path)

    def _forms(self, nodes: list[Any]) -> list[Schema]:
        ids = tuple(map(id, nodes))
        if ids not in self.known:
            forms = self.known[ids] = forms_of(nodes, self.schema)
            if any(None in applied for form in forms for _, applied in in_place(form, self.schema)):
                raise LookupError("the schema refers to what is no part of it")
        return self.known[ids]


def _is_path(forms: Iterable[Schema]) -> bool:
    """Whether one of these has a format of Pydantic's for paths: `path`, `file-path`, `directory-path` and so on."""
    return any(str(node.get("format")).rpartition("-")[2] == "path" for node in forms)
