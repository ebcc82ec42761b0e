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
from ferrule.arguments.schema_walk import forms_of, of_item, of_property, resolved
from ferrule.values.arguments import FoundPath, Place, Places
from ferrule.values.frozen import JsonObject

_UNIONS = ("anyOf", "oneOf")


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
    search.by_schema([schema], arguments, ())
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
        self.known: dict[tuple[int, ...], list[Mapping[str, Any]]] = {}

    def add(self, place: Place, text: str, *, is_key: bool = False) -> None:
        self.found[place, is_key] = FoundPath(place, text, is_key)

    def by_schema(self, nodes: Iterable[object], value: object, place: Place) -> None:
        """Go through a value and the parts of the schema that speak of it."""
        nodes = self._all_about(nodes, value)
        if _is_path(nodes):
            self._everything(value, place)
        if isinstance(value, Mapping):
            for key, item in value.items():
                inner = (*place, key)
                if not any(key in node.get("properties", ()) for node in nodes):
                    self.unnamed.add(inner)
                names = (node["propertyNames"] for node in nodes if "propertyNames" in node)
                if _is_path(self._all_about(names, key)):
                    self.add(inner, key, is_key=True)
                self.by_schema([below for node in nodes for below in of_property(node, key)], item, inner)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                self.by_schema([below for node in nodes for below in of_item(node, index)], item, (*place, index))

    def _all_about(self, nodes: Iterable[object], value: object) -> list[Mapping[str, Any]]:
        """`nodes` with those that they refer to and are made of, each once; of a union the branches that may be meant,
        and all where none is."""
        nodes = list(nodes)
        ids = tuple(map(id, nodes))
        if ids in self.known:
            return self.known[ids]
        tags = value if isinstance(value, Mapping) else {}

        def meant(key: str, applied: list[Any]) -> list[Any]:
            if None in applied:
                raise LookupError(f"the schema has a {key} to what is no part of it")
            return [one for one in applied if key not in _UNIONS or self._may_fit(one, tags)] or applied

        about = forms_of(nodes, self.schema, meant)
        if not any(key in node for node in about for key in _UNIONS):  # the same for all values
            self.known[ids] = about
        return about

    def _may_fit(self, branch: Any, value: Mapping[str, Any]) -> bool:
        """Whether a branch of a union may be meant, by its tags. To check it whole would take time that doubles with
        each level of a union in a union, and the judged form need not fit the schema."""
        if isinstance(branch, Mapping) and "$ref" in branch:
            branch = resolved(self.schema, branch["$ref"])
        named = branch.get("properties", {}) if isinstance(branch, Mapping) else {}
        return all(
            value[key] in (node["enum"] if "enum" in node else [node["const"]])
            for key, node in named.items()
            if key in value and isinstance(node, Mapping) and ("enum" in node or "const" in node)
        )

    def _everything(self, value: object, place: Place) -> None:
        """All text in a value that the schema calls a path, whatever its shape."""
        if isinstance(value, str):
            self.add(place, value)
        elif isinstance(value, Mapping):
            for key, item in value.items():
                self.add((*place, key), key, is_key=True)
                self._everything(item, (*place, key))
        elif isinstance(value, list):
            for index, item in enumerate(value):
                self._everything(item, (*place, index))


def _is_path(nodes: Iterable[Mapping[str, Any]]) -> bool:
    """Whether one of these has a format of Pydantic's for paths: `path`, `file-path`, `directory-path` and so on."""
    return any(str(node.get("format")).rpartition("-")[2] == "path" for node in nodes)
