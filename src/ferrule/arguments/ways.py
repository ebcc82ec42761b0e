"""In how many ways the values of a call are tried: under a union that refers to itself, in more at every level.

Pydantic tries an object as each alternative of a union, with all that is in it. jsonschema-rs does so to say what is
wrong; whether a value fits it finds at once, except where references repeat what is no recursion.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from ferrule.arguments.argument_errors import ArgumentError, ArgumentErrors
from ferrule.arguments.schema_walk import first_items, in_place, of_item, of_property
from ferrule.errors import DefinitionError
from ferrule.values.frozen import JsonObject

MOST_WAYS = 1024
"""In which one value is tried."""
_MOST_TRIES = 10_000_000
"""Of all values together, each as often as others are around it: what is wrong with it holds a copy of those."""
_FEW = 8
_UNCOUNTED = 10**6
_LEVELS = 200
"""So many objects and arrays in each other are read."""
_COPIED = 100
"""So many characters of a string count as a value: an error has a copy of them."""

_Step: TypeAlias = str | int | None
"""A property, or the position of an item; `None` for all others."""
_Tried: TypeAlias = tuple[list[list[Any]], dict[_Step, list[Any]]]
"""The schemas that one tries for the value itself, of each list one, and those for what is in it."""
_NOTHING: _Tried = ([], {None: []})
_LEAF: Mapping[str, _Tried] = {"": ([], {})}
"""A schema without others in it."""
_Level: TypeAlias = dict[int, int]
"""In how many ways what is so deep in the value of a schema is tried at most, by the schema's `id`."""


class Ways:
    """The ways in which values are tried, by depth, whichever parameter they are in.

    Args:
        schema: The JSON Schema of the parameters.
        tagged: Whether `oneOf` is a union whose tag is read first, as Pydantic writes it.

    Raises:
        DefinitionError: where references that are no recursion lead to too much.

    Attributes:
        limited: Whether there are values that are tried in more than a few ways, or a schema that refers to itself.
    """

    def __init__(self, schema: JsonObject, *, tagged: bool) -> None:
        self._root, self._tagged = schema, tagged
        self._nodes: dict[int, dict[str, _Tried]] = {}
        waiting: list[Any] = [schema]
        while waiting:
            node = waiting.pop()
            if isinstance(node, Mapping) and id(node) not in self._nodes:
                kinds = self._by_kind(node)
                if node is schema or any(_all_in(kinds)):
                    self._nodes[id(node)] = kinds
                    waiting.extend(_all_in(kinds))
        recursive = _recursive({node: {*map(id, _all_in(kinds))} for node, kinds in self._nodes.items()})
        try:
            here = self._level(dict.fromkeys(self._nodes, 1))
            most = max(*here.values(), *self._levels(recursive)[-1].values())
        except RecursionError:
            most = _UNCOUNTED
        if most > MOST_WAYS:
            raise DefinitionError(
                f"the schema is too large once its references are written out: "
                f"one value would be checked against more than {MOST_WAYS:,} schemas"
            )
        self._by_depth = [level[id(schema)] for level in self._levels()]
        self.limited = bool(recursive) or self._by_depth[-1] > _FEW

    def tries(self, value: JsonObject) -> int:
        """How often something in `value` is tried at most, times its depth: its errors hold those of all above it."""
        return sum(tries for *_, tries in self._at_depths(value))

    def check(self, value: JsonObject) -> None:
        """Refuse what would be tried too often.

        Raises:
            ArgumentErrors: with the parameter, and how deep it may nest.
        """
        total = 0
        for name, depth, ways, tries in self._at_depths(value):
            total += tries
            if ways > MOST_WAYS or total > _MOST_TRIES:
                what = f"nest at most {depth - 2} deep" if ways > MOST_WAYS else "hold less"
                why = "since what is in it may have one of several forms at each level"
                raise ArgumentErrors([ArgumentError((name,), f"must {what}, {why}")])

    def _at_depths(self, value: JsonObject) -> Iterator[tuple[str, int, int, int]]:
        """For each depth of each parameter's value: in how many ways what is there is tried, and how often all of it
        is, times the depth."""
        for name, item in value.items():
            level, depth = [item], 1
            while level:
                ways = self._by_depth[min(depth, len(self._by_depth) - 1)]
                texts = sum(len(one) // _COPIED for one in level if isinstance(one, str))
                yield name, depth, ways, depth * ways * (len(level) + texts)
                level, depth = [below for one in level for below in _members(one)], depth + 1

    def _by_kind(self, node: JsonObject) -> dict[str, _Tried]:
        """What a schema tries for the kinds of values that it takes; the last kind is all that holds nothing."""
        here: list[list[Any]] = []
        for key, nodes in in_place(node, self._root):
            here += [nodes] if self._tagged and key == "oneOf" else [[one] for one in nodes]
        inside: dict[str, dict[_Step, list[Any]]] = {
            "object": {key: of_property(node, key) for key in (*node.get("properties", ()), None)},
            "array": {at: of_item(node, at) for at in (*range(len(first_items(node))), None)},
            "": {},
        }
        return {kind: (here, steps) for kind, steps in inside.items() if not kind or kind in node.get("type", kind)}

    def _levels(self, ends: Collection[int] = ()) -> list[_Level]:
        """The ways for each depth, until they are the same for all that are deeper; not below the `ends`."""
        levels = [dict.fromkeys(self._nodes, 1)]
        while len(levels) <= _LEVELS:
            level = self._level(levels[-1]) | dict.fromkeys(ends, 1)
            if level == levels[-1]:
                break
            levels.append(level)
        return levels

    def _level(self, below: _Level) -> _Level:
        """The ways for what is one level deeper than `below`."""
        found: dict[tuple[int, str], dict[_Step, int]] = {}

        def tried(node: int, kind: str) -> dict[_Step, int]:
            if (node, kind) not in found:
                found[node, kind] = {None: 0}  # where a schema refers to itself for the same value
                here, inside = self._nodes.get(node, _LEAF).get(kind, _NOTHING)
                ways = {step: sum(below.get(id(one), 1) for one in nodes) for step, nodes in inside.items()}
                groups = [_by_step([tried(id(one), kind) for one in nodes], max) for nodes in here]
                found[node, kind] = _by_step([ways or {None: not here}, *groups], sum)
            return found[node, kind]

        return {
            node: max(1, *(ways for kind in kinds for ways in tried(node, kind).values()))
            for node, kinds in self._nodes.items()
        }


def _by_step(several: list[dict[_Step, int]], join: Callable[[Iterable[int]], int]) -> dict[_Step, int]:
    if len(several) == 1:
        return several[0]
    steps = {step for one in several for step in one}
    return {step: min(join(one.get(step, one[None]) for one in several), _UNCOUNTED) for step in steps}


def _members(value: object) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _all_in(kinds: Mapping[str, _Tried]) -> Iterator[Any]:
    for here, inside in kinds.values():
        for nodes in (*here, *inside.values()):
            yield from nodes


def _recursive(below: Mapping[int, set[int]]) -> set[int]:
    """The schemas that lead to themselves."""
    bits = {node: 1 << at for at, node in enumerate(below)}
    leads, more = dict.fromkeys(below, 0), True
    while more:
        more = False
        for node, children in below.items():
            found = leads[node]
            for child in children & bits.keys():
                found |= bits[child] | leads[child]
            more = more or found != leads[node]
            leads[node] = found
    return {node for node in below if leads[node] & bits[node]}
