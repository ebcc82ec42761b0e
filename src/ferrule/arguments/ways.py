"""How often one value is checked: by a schema whose references double, or whose unions lead back to themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ferrule.arguments.schema_walk import first_items, forms_of, in_place, of_item, of_property
from ferrule.errors import DefinitionError
from ferrule.values.frozen import JsonObject

MOST_TOLD = 40_000
"""So much is looked at to tell what is wrong: each takes some hundredths of a millisecond."""
_MOST_WAYS = 1024
"""In which one value is checked, where nothing leads back to itself."""
_UNCOUNTED = 10**6
_DEEPEST = 40
"""Where schemas lead back to themselves, each level of a value multiplies the ways, down to here."""
_COPIED = 100
"""So many characters of a string count as a value: an error has a copy of them."""


class Ways:
    """In how many ways a value is checked, or one in it: at most, as if all alternatives spoke of the same values.

    Args:
        tagged: Whether the schema is Pydantic's: its `oneOf` is a union whose tag is read first.

    Raises:
        DefinitionError: where references that are no recursion lead to too much; and for a union of Pydantic's several
            of whose alternatives lead back to it, as each would be tried at every level.

    Attributes:
        most: In how many, where what leads back to itself counts once.
        recursive: What leads back to itself, by `id`.
    """

    def __init__(self, schema: JsonObject, *, tagged: bool = False) -> None:
        self._schema = schema
        self._tagged = tagged
        self._found: dict[int, int] = {}
        self._nodes: dict[int, JsonObject] = {}
        below: dict[int, list[int]] = {}
        waiting = [schema]
        while waiting:
            node = waiting.pop()
            if id(node) not in below:
                applied = [one for ones in (*self._here(node), *_inside(node)) for one in ones]
                found = [one for one in applied if isinstance(one, Mapping)]
                self._nodes[id(node)], below[id(node)] = node, [*map(id, found)]
                waiting += found
        self._bits = {key: 1 << at for at, key in enumerate(below)}
        self._leads = _all_leads(below, self._bits)
        self.recursive = {key for key, bit in self._bits.items() if self._leads[key] & bit}
        try:
            self.most = max(map(self._count, self._nodes.values()))
        except RecursionError:
            self.most = _UNCOUNTED
        if self.most > _MOST_WAYS:
            raise DefinitionError(
                "the schema is too large once its references are written out: "
                f"one value would be checked against more than {_MOST_WAYS:,} schemas"
            )
        for key in self.recursive if tagged else ():
            self._check_union(self._nodes[key])

    def are_too_many(self, value: object) -> bool:
        """Whether it would take too long to say all that is wrong with a value."""
        depth, size = measured(value)
        ways: int = self.most ** (min(depth, _DEEPEST) if self.recursive else 1)
        return ways * depth * size > MOST_TOLD

    def _count(self, node: object) -> int:
        """The ways of a node; what leads back to itself counts once below itself."""
        if not isinstance(node, Mapping):
            return 1
        key = id(node)
        if key not in self._found:
            self._found[key] = 0  # where it refers to itself for the same value
            here = sum(max(map(self._count, ones), default=0) for ones in self._here(node))
            inside = max((sum(map(self._count_below, ones)) for ones in _inside(node)), default=0)
            self._found[key] = min(max(1, here + inside), _UNCOUNTED)
        return self._found[key]

    def _count_below(self, node: object) -> int:
        return 1 if id(node) in self.recursive else self._count(node)

    def _here(self, node: JsonObject) -> Iterator[list[Any]]:
        """What a schema applies to its own value, and of each the schemas of which one applies."""
        for keyword, ones in in_place(node, self._schema):
            yield from [ones] if self._tagged and keyword == "oneOf" else ([one] for one in ones)

    def _check_union(self, node: JsonObject) -> None:
        bit, union = self._bits[id(node)], node.get("anyOf", ())
        back = [one for one in union if (self._leads[id(one)] | self._bits[id(one)]) & bit]
        kinds = [kind for one in back for kind in {form.get("type") for form in forms_of([one], self._schema)}]
        if any(kinds.count(kind) > 1 for kind in ("object", "array")):
            names = ", ".join(str(one.get("$ref", one.get("type"))).rpartition("/")[2] for one in union)
            raise DefinitionError(
                f"of the types {names} several hold values that may be any of them again, and without a tag each would "
                "be tried at every level; give the union a discriminator: Field(discriminator='kind'), or "
                "Discriminator(function), whose function tells which one a value is"
            )


def _inside(node: JsonObject) -> list[list[Any]]:
    """What a schema applies to each of what is in a value; nothing to that of a value that it does not take."""
    kinds = node.get("type", ("object", "array"))
    keys = (*node.get("properties", ()), None) if "object" in kinds else ()
    items = (*range(len(first_items(node))), None) if "array" in kinds else ()
    return [*(of_property(node, key) for key in keys), *(of_item(node, at) for at in items)]


def _all_leads(below: Mapping[int, list[int]], bits: Mapping[int, int]) -> dict[int, int]:
    """The schemas that each leads to, as bits."""
    leads, more = dict.fromkeys(below, 0), True
    while more:
        more = False
        for node, children in below.items():
            found = leads[node]
            for child in children:
                found |= bits[child] | leads[child]
            more = more or found != leads[node]
            leads[node] = found
    return leads


def measured(value: object) -> tuple[int, int]:
    """How deep a JSON value nests, and how many values it has."""
    depth, size, level = 0, 0, [value]
    while level:
        depth += 1
        size += len(level) + sum(len(one) // _COPIED for one in level if isinstance(one, str))
        level = [below for one in level if isinstance(one, dict | list) for below in _members(one)]
    return depth, size


def _members(value: dict[str, Any] | list[Any]) -> Any:
    return value.values() if isinstance(value, dict) else value
