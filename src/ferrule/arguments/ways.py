"""In how many ways the values of a call are tried: under a union that refers to itself, in more at every level.

Pydantic tries an object as each alternative of a union, with all that is in it. jsonschema-rs does so to say what is
wrong; whether a value fits it finds at once, except where references repeat what is no recursion.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from ferrule.arguments.argument_errors import ArgumentError, ArgumentErrors
from ferrule.arguments.optional_nulls import first_items, of_item, of_property, resolved
from ferrule.errors import DefinitionError
from ferrule.values.frozen import JsonObject

MOST_WAYS = 1024
"""In which one value is tried."""
_MOST_TRIES = 10_000_000
"""Of all values together, each as often as others are around it: what is wrong with it holds a copy of those."""
_MOST_WRITTEN = 10 * MOST_WAYS
_FEW = 8
_UNCOUNTED = 10**6
_LEVELS = 200
"""So many objects and arrays in each other are read."""
_COPIED = 100
"""So many characters of a string count as a value: an error has a copy of them."""
_OTHERS = sys.maxsize

_Step: TypeAlias = str | int | None
"""A property, or the place of an item; `None` for all other properties, `_OTHERS` for all other items."""
_Tried: TypeAlias = list[Any]
"""Schemas that are all tried for a value; among them a tuple of such lists where a tag says which one is."""
_Graph: TypeAlias = dict[int, dict[_Step, _Tried]]
"""What is tried inside the value of each schema, by its `id`."""


class Ways:
    """The ways in which values are tried, by parameter and by depth.

    Args:
        schema: The JSON Schema of the parameters.
        tagged: Whether `oneOf` is a union whose tag is read first, as Pydantic writes it.

    Raises:
        DefinitionError: where references that are no recursion lead to too much.

    Attributes:
        limited: Whether there is a parameter whose values are tried in more than a few ways, or a union in itself.
    """

    def __init__(self, schema: JsonObject, *, tagged: bool) -> None:
        self._root, self._tagged = schema, tagged
        self._anchors = dict(_anchors(schema))
        self._refers = False
        self._unions: set[int] = set()
        below: _Graph = {}
        waiting: list[Any] = [schema]
        while waiting:
            node = waiting.pop()
            if id(node) not in below:
                below[id(node)] = _inside(self._tried(node))
                waiting.extend(child for tried in below[id(node)].values() for child in _flat(tried))
        recursive = _recursive(below)
        levels = _ways_by_depth(below, recursive)
        if self._refers and max(levels[-1].values()) > MOST_WAYS:
            raise _too_large()
        if recursive:
            levels = _ways_by_depth(below)
        self._by_depth = {key: [_count(tried, level) for level in levels] for key, tried in below[id(schema)].items()}
        self.limited = any(ways[-1] > _FEW for ways in self._by_depth.values()) or bool(recursive & self._unions)

    def tries(self, value: JsonObject) -> int:
        """How often something in `value` is tried at most, times its depth: its errors hold those of all above it."""
        return sum(tries for *_, tries in self._levels(value))

    def check(self, value: JsonObject) -> None:
        """Refuse what would be tried too often.

        Raises:
            ArgumentErrors: with the parameter, and how deep it may nest.
        """
        total = 0
        for name, depth, ways, tries in self._levels(value):
            total += tries
            if ways > MOST_WAYS or total > _MOST_TRIES:
                what = f"nest at most {depth - 2} deep" if ways > MOST_WAYS else "hold less"
                why = "since what is in it may have one of several forms at each level"
                raise ArgumentErrors([ArgumentError((name,), f"must {what}, {why}")])

    def _levels(self, value: JsonObject) -> Iterator[tuple[str, int, int, int]]:
        """For each depth of each parameter's value: in how many ways what is there is tried, and how often all of it
        is, times the depth."""
        for name, item in value.items():
            by_depth = self._by_depth.get(name, self._by_depth[None])
            level, depth = [item], 1
            while level:
                ways = by_depth[min(depth, len(by_depth)) - 1]
                texts = sum(len(one) // _COPIED for one in level if isinstance(one, str))
                yield name, depth, ways, depth * ways * (len(level) + texts)
                level, depth = [below for one in level for below in _members(one)], depth + 1

    def _tried(self, node: Any, above: tuple[int, ...] = ()) -> _Tried:
        """The schemas that are tried for the value of a node, each as often as branches and references lead to it."""
        if not isinstance(node, Mapping) or id(node) in above:
            return []
        tried: _Tried = [node]
        above = (*above, id(node))
        for key in _APPLIED & node.keys():
            refers = isinstance(node[key], str)
            tried += self._tried(self._target(node[key]) if refers else node[key], above)
        for key in _BRANCHES & node.keys():
            branches = node[key].values() if isinstance(node[key], Mapping) else node[key]
            found = [self._tried(branch, above) for branch in branches]
            if sum(branch.get("type") != "null" for branch in branches if isinstance(branch, Mapping)) > 1:
                self._unions.add(above[0])
            tried += [tuple(found)] if self._tagged and key == "oneOf" else [one for some in found for one in some]
        if self._refers and (len(tried) > _MOST_WRITTEN or len(above) > _LEVELS):
            raise _too_large()
        return tried

    def _target(self, ref: str) -> Any:
        self._refers = True
        fragment = ref.rpartition("#")[2] if "#" in ref else ref
        if not fragment or fragment.startswith("/"):
            return resolved(self._root, fragment)
        return self._anchors.get(fragment.rpartition("/")[2])


def _members(value: object) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


_APPLIED = frozenset({"$ref", "$dynamicRef", "$recursiveRef", "not", "if", "then", "else"})
_BRANCHES = frozenset({"allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies"})


def _too_large() -> DefinitionError:
    """What is said of a schema whose references lead to too many others."""
    return DefinitionError(
        f"the input schema is too large once its references are written out: "
        f"one value would be checked against more than {MOST_WAYS:,} schemas"
    )


def _anchors(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping):
        for key in ("$anchor", "$dynamicAnchor", "$id"):
            if isinstance(node.get(key), str):
                yield node[key].rpartition("/")[2].removeprefix("#"), node
        node = list(node.values())
    for below in node if isinstance(node, list) else ():
        yield from _anchors(below)


def _inside(tried: _Tried) -> dict[_Step, _Tried]:
    """What is tried for each property and item of a value, by what is tried for the value."""
    named = {id(form): {*form.get("properties", ()), *range(len(first_items(form)))} for form in _flat(tried)}
    found: dict[_Step, _Tried] = {step: [] for step in {None, _OTHERS}.union(*named.values())}
    for one in tried:
        own = {None, _OTHERS}.union(*(named[id(form)] for form in _flat([one])))
        for step in found if _at_step(one, None) or _at_step(one, _OTHERS) else own:
            found[step] += _at_step(one, step)
    return found


def _at_step(form: Any, step: _Step) -> _Tried:
    """What a form tries for a property or an item; of what a tag chooses, by branch."""
    if isinstance(form, tuple):
        branches = tuple([node for one in branch for node in _at_step(one, step)] for branch in form)
        return [branches] if any(branches) else []
    nodes = of_item(form, step) if isinstance(step, int) else of_property(form, step)
    return [node for node in nodes if isinstance(node, Mapping)]


def _flat(tried: _Tried) -> Iterator[Any]:
    for one in tried:
        if isinstance(one, tuple):
            for branch in one:
                yield from _flat(branch)
        else:
            yield one


def _count(tried: _Tried, level: dict[int, int]) -> int:
    """In how many ways all of it together is tried; of what a tag chooses, the most."""
    counts = (
        max(_count(branch, level) for branch in one) if isinstance(one, tuple) else level[id(one)] for one in tried
    )
    return min(max(sum(counts), 1), _UNCOUNTED)


def _ways_by_depth(below: _Graph, ends: Collection[int] = ()) -> list[dict[int, int]]:
    """For each depth, in how many ways what is so deep in the value of each node is tried; not below the `ends`."""
    levels = [dict.fromkeys(below, 1)]
    while len(levels) <= _LEVELS:
        last = levels[-1]
        ways = {
            node: 1 if node in ends else max(_count(tried, last) for tried in keys.values())
            for node, keys in below.items()
        }
        if ways == last:
            break
        levels.append(ways)
    return levels


def _recursive(below: _Graph) -> set[int]:
    """The nodes that lead to themselves, and those between two of them."""
    children = {node: {id(child) for tried in keys.values() for child in _flat(tried)} for node, keys in below.items()}
    found = set(below)
    while left := {node for node in found if not children[node] & found}:
        found -= left
    while left := found - {child for node in found for child in children[node]}:
        found -= left
    return found
