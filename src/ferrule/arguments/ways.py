"""How often one value is checked: by a schema whose references double, or whose unions lead back to themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, TypeAlias

from ferrule.arguments.argument_errors import MOST_ERRORS
from ferrule.arguments.schema_walk import first_items, in_place, of_item, of_property
from ferrule.errors import DefinitionError
from ferrule.values.frozen import JsonObject

MOST_WAYS = 1024
"""In which one value is checked, where nothing leads back to itself."""
_UNCOUNTED = 10**6
_COPIED = 100
"""So many characters of a string count as a value: an error has a copy of them."""

_Step: TypeAlias = str | int | None
"""From a value to what is in it: a property, `None` for all others, or the position of an item."""
_ITEMS, _HERE = -1, -2
"""All other items; and no step, the value itself."""
_BySteps: TypeAlias = dict[_Step, int]


class Ways:
    """The ways in which values are checked.

    Args:
        tagged: Whether the schema is Pydantic's: its `oneOf` is a union whose tag is read first.

    Raises:
        DefinitionError: where references that are no recursion lead to too much; and for a union of Pydantic's several
            of whose alternatives lead back to it, as each would be tried at every level.

    Attributes:
        most: In how many one value is checked at most, where nothing leads back to itself.
        recursive: What leads back to itself, by `id`.
    """

    def __init__(self, schema: JsonObject, *, tagged: bool = False) -> None:
        self._nodes: dict[int, JsonObject] = {}
        self._here: dict[int, list[list[Any]]] = {}
        self._inside: dict[int, dict[_Step, list[Any]]] = {}
        waiting: list[Any] = [schema]
        while waiting:
            node = waiting.pop()
            if isinstance(node, Mapping) and id(node) not in self._nodes:
                key = id(node)
                self._nodes[key], self._inside[key], self._here[key] = node, _inside(node), []
                for keyword, nodes in in_place(node, schema):
                    self._here[key] += [nodes] if tagged and keyword == "oneOf" else [[one] for one in nodes]
                waiting.extend(self._below(key))
        self._bits = {node: 1 << at for at, node in enumerate(self._nodes)}
        self._leads = self._all_leads()
        self.recursive = {node for node, bit in self._bits.items() if self._leads[node] & bit}
        self._found: dict[int, _BySteps] = {}
        self._check_ways()
        for node in self.recursive if tagged else ():
            self._check_union(node)

    def work(self, value: object, ways: int) -> int:
        """How much is looked at where each value is checked in so many ways at least; its errors copy all around it."""
        total, depth, level = 0, 1, [value]
        while level:
            texts = sum(len(one) // _COPIED for one in level if isinstance(one, str))
            total += depth * ways * (len(level) + texts)
            level, depth, ways = [below for one in level for below in _members(one)], depth + 1, ways * self._branches
        return total

    def are_too_many(self, value: object) -> bool:
        """Whether it would take too long to say all that is wrong."""
        return self.work(value, self.most) > 2 * MOST_ERRORS

    @cached_property
    def _branches(self) -> int:
        return max(map(self._back, self.recursive), default=1)

    def _check_union(self, node: int) -> None:
        union = self._nodes[node].get("anyOf", ())
        if len(union) > 1 and self._back(node) > 1:
            names = ", ".join(str(one.get("$ref", one.get("type"))).rpartition("/")[2] for one in union)
            raise DefinitionError(
                f"of the types {names} several hold values that may be any of them again, and without a tag each would "
                "be tried at every level; give the union a discriminator: Field(discriminator='kind'), or "
                "Discriminator(function), whose function tells which one a value is"
            )

    def _back(self, node: int) -> int:
        """How many of what is applied to an object, or to an array, lead back to the node from what is in that."""
        return max(self._leading(node, of_array, self._bits[node], ()) for of_array in (False, True))

    def _leading(self, node: int, of_array: bool, target: int, above: tuple[int, ...]) -> int:
        if node in above or not self._leads.get(node, 0) & target:
            return 0
        steps = (nodes for step, nodes in self._inside[node].items() if isinstance(step, int) is of_array)
        own = any(
            (self._leads.get(id(one), 0) | self._bits.get(id(one), 0)) & target for nodes in steps for one in nodes
        )
        path = (*above, node)
        return own + sum(
            max(self._leading(id(one), of_array, target, path) for one in some) for some in self._here[node]
        )

    def _check_ways(self) -> None:
        try:
            self.most = max(max(self._steps(node).values()) for node in self._nodes)
        except RecursionError:
            self.most = _UNCOUNTED
        if self.most > MOST_WAYS:
            raise DefinitionError(
                f"the schema is too large once its references are written out: "
                f"one value would be checked against more than {MOST_WAYS:,} schemas"
            )

    def _steps(self, node: int) -> _BySteps:
        """In how many ways a value, and what is in it, is checked; not below what leads back to itself."""
        if node not in self._found:
            self._found[node] = {_HERE: 0}  # where a schema refers to itself for the same value
            here, inside = self._here.get(node, ()), self._inside.get(node, {})
            own = {step: sum(self._most(id(one)) for one in nodes) for step, nodes in inside.items()}
            groups = [_by_step([self._steps(id(one)) for one in nodes], max) for nodes in here]
            self._found[node] = _by_step([own | {_HERE: not here}, *groups], sum)
        return self._found[node]

    def _most(self, node: int) -> int:
        return 1 if node in self.recursive else max(1, *self._steps(node).values())

    def _below(self, node: int) -> list[Any]:
        return [one for nodes in (*self._here[node], *self._inside[node].values()) for one in nodes]

    def _all_leads(self) -> dict[int, int]:
        """The schemas that each leads to, as bits."""
        below = {node: {id(one) for one in self._below(node)} & self._bits.keys() for node in self._nodes}
        leads, more = dict.fromkeys(below, 0), True
        while more:
            more = False
            for node, children in below.items():
                found = leads[node]
                for child in children:
                    found |= self._bits[child] | leads[child]
                more = more or found != leads[node]
                leads[node] = found
        return leads


def _inside(node: JsonObject) -> dict[_Step, list[Any]]:
    """What a schema applies to what is in a value; nothing to that of a value that it does not take."""
    found: dict[_Step, list[Any]] = {None: [], _ITEMS: []}
    kinds = node.get("type", ("object", "array"))
    if "object" in kinds:
        found |= {key: of_property(node, key) for key in (*node.get("properties", ()), None)}
    if "array" in kinds:
        found |= {at: of_item(node, at) for at in range(len(first_items(node)))}
        found[_ITEMS] = of_item(node, None)
    return found


def _by_step(several: list[_BySteps], join: Callable[[Iterable[int]], int]) -> _BySteps:
    if len(several) == 1:
        return several[0]
    steps = {step for one in several for step in one}
    others = {step: _ITEMS if isinstance(step, int) else None for step in steps}
    return {step: min(join(one.get(step, one.get(others[step], 0)) for one in several), _UNCOUNTED) for step in steps}


def _members(value: object) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
