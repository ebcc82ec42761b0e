"""Where the arguments of a call hold paths: what their types say, and what their schema says.

Each value is looked at once, with all the parts of the schema that speak of it: the time grows with the size of the
arguments, however the schema refers to itself.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from ferrule.arguments.judged_form import NoJudgedForm
from ferrule.values.arguments import FoundPath, Place, Places
from ferrule.values.frozen import JsonObject

_PATH_FORMATS = frozenset({"path", "file-path", "directory-path"})
"""Those that Pydantic exports for `Path`, `FilePath`, `NewPath` and `DirectoryPath`."""
_REFERRING = ("$ref", "$dynamicRef", "$recursiveRef")
_BRANCHES = ("anyOf", "oneOf")
_CONDITIONAL = ("if", "then", "else")
_OTHER_KEYS = ("additionalProperties", "unevaluatedProperties")
_OTHER_ITEMS = ("items", "additionalItems", "unevaluatedItems")
_IN_A_ROW = (list, tuple, deque, set, frozenset)
_STRUCTURED = (Mapping, *_IN_A_ROW)


def find_places(schema: JsonObject, arguments: Mapping[str, Any], values: Mapping[str, Any]) -> Places:
    """Where `arguments` hold paths, and which of their keys no schema names.

    Args:
        schema: Of all parameters.
        arguments: The JSON that is judged.
        values: Those of them that validation may change, as Python values in which paths are still paths.

    Raises:
        NoJudgedForm: where the two do not go together.
        LookupError: for a reference that leads out of the schema, or to an `$anchor` or `$id` in it.
    """
    search = _PathSearch(schema)
    search.by_schema([schema], arguments, ())
    for name, value in values.items():
        search.by_type(value, arguments[name], (name,))
    return Places(tuple(search.found.values()), frozenset(search.unnamed))


class _PathSearch:
    def __init__(self, schema: JsonObject) -> None:
        self.schema = schema
        self.found: dict[tuple[Place, bool], FoundPath] = {}
        self.unnamed: set[Place] = set()
        self.known: dict[tuple[int, ...], list[Mapping[str, Any]]] = {}

    def add(self, place: Place, text: str, *, is_key: bool = False) -> None:
        self.found[place, is_key] = FoundPath(place, text, is_key)

    # -- what the types say -------------------------------------------------------------------------------------------

    def by_type(self, value: object, shown: Any, place: Place) -> None:
        """Go through a value and the JSON of it side by side."""
        if isinstance(value, os.PathLike):
            self.add(place, _text_of(value, shown))
        elif isinstance(value, Mapping) and isinstance(shown, dict):
            for key, name in _side_by_side(value, shown):
                if isinstance(key, os.PathLike):
                    self.add((*place, name), _text_of(key, name), is_key=True)
                self.by_type(value[key], shown[name], (*place, name))
        elif isinstance(value, _IN_A_ROW) and isinstance(shown, list):
            for index, (item, inner) in enumerate(_side_by_side(value, shown)):
                self.by_type(item, inner, (*place, index))
        elif isinstance(value, _STRUCTURED) or isinstance(shown, dict | list):
            raise NoJudgedForm(f"what is in a {type(value).__name__} is written down otherwise")

    # -- what the schema says -----------------------------------------------------------------------------------------

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
                self.by_schema([below for node in nodes for below in _of_key(node, key)], item, inner)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                self.by_schema([below for node in nodes for below in _of_item(node, index)], item, (*place, index))

    def _all_about(self, nodes: Iterable[object], value: object) -> list[Mapping[str, Any]]:
        """`nodes` with those that they refer to and are made of, each once; of a union the branches that may be meant,
        and all where none is."""
        waiting = list(nodes)
        ids = tuple(map(id, waiting))
        if ids in self.known:
            return self.known[ids]
        found: dict[int, Mapping[str, Any]] = {}
        while waiting:
            node = waiting.pop()
            if not isinstance(node, Mapping) or id(node) in found:
                continue
            found[id(node)] = node
            waiting += [self._target(node[key]) for key in _REFERRING if key in node]
            waiting += [*node.get("allOf", ()), *(node[key] for key in _CONDITIONAL if key in node)]
            for key in ("dependentSchemas", "dependencies"):
                waiting += node.get(key, {}).values()
            for key in _BRANCHES:
                waiting += [branch for branch in node.get(key, ()) if self._may_fit(branch, value)] or node.get(key, ())
        about = list(found.values())
        if not any(key in node for node in about for key in _BRANCHES):  # the same for all values
            self.known[ids] = about
        return about

    def _target(self, reference: str) -> Any:
        address, _, pointer = reference.partition("#")
        if address or (pointer and not pointer.startswith("/")):
            raise LookupError(f"the schema refers to {reference!r}, and only JSON pointers are followed")
        node: Any = self.schema
        for part in unquote(pointer).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            node = node[int(name)] if isinstance(node, list) else node[name]
        return node

    def _may_fit(self, branch: object, value: object, *, nested: bool = True) -> bool:
        """Whether a branch of a union may be meant, by its tags and the names of its fields. To check it whole would
        take time that doubles with each level of a union in a union, and the judged form need not fit the schema."""
        for _ in range(len(self.schema.get("$defs", ())) + 1):
            if isinstance(branch, Mapping) and branch.keys() == {"$ref"}:
                branch = self._target(branch["$ref"])
        if not isinstance(branch, Mapping):
            return branch is not False
        if ("const" in branch and branch["const"] != value) or ("enum" in branch and value not in branch["enum"]):
            return False
        if not nested or not isinstance(value, Mapping):
            return True
        names = branch.get("properties", {})
        closed = branch.get("additionalProperties") is False and "patternProperties" not in branch
        if not value.keys() >= set(branch.get("required", ())) or (closed and not value.keys() <= names.keys()):
            return False
        return all(self._may_fit(names[key], item, nested=False) for key, item in value.items() if key in names)

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


def _text_of(path: os.PathLike[Any], shown: object) -> str:
    text = os.fsdecode(path)
    if text != shown:
        raise NoJudgedForm(f"the path {text!r} is written down as {shown!r}")
    return text


def _side_by_side(values: Iterable[Any], shown: Any) -> Iterable[tuple[Any, Any]]:
    try:
        return list(zip(values, shown, strict=True))
    except ValueError:
        raise NoJudgedForm("two keys are written down as one") from None


def _is_path(nodes: Iterable[Mapping[str, Any]]) -> bool:
    return any(node.get("format") in _PATH_FORMATS for node in nodes)


def _of_key(node: Mapping[str, Any], key: str) -> list[Any]:
    """The parts of a schema that speak of the value under `key`."""
    named = [node["properties"][key]] if key in node.get("properties", ()) else []
    named += [below for pattern, below in node.get("patternProperties", {}).items() if _pattern_matcher(pattern)(key)]
    return named or [node[other] for other in _OTHER_KEYS if other in node]


def _of_item(node: Mapping[str, Any], index: int) -> list[Any]:
    """The parts of a schema that speak of the item at `index`."""
    first = node.get("prefixItems") or (node["items"] if isinstance(node.get("items"), list) else ())
    others = [node[other] for other in _OTHER_ITEMS if isinstance(node.get(other), Mapping)]
    return [*([first[index]] if index < len(first) else others), *([node["contains"]] if "contains" in node else ())]


@lru_cache(maxsize=1000)
def _pattern_matcher(pattern: str) -> Callable[[str], bool]:
    # Imported on first use: most programs have no tool that comes with a schema.
    import jsonschema_rs

    return jsonschema_rs.validator_for({"pattern": pattern}).is_valid
