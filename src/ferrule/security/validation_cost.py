"""The cost of a schema: how many schemas check one value, if references double or unions lead back to themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ferrule.errors import DefinitionError
from ferrule.security.schema_walk import find_forms, item_schemas, iter_in_place, prefix_items, property_schemas
from ferrule.values.frozen import JsonObject

MAX_ERROR_WORK = 40_000
"""The most checks for a list of errors: each takes some hundredths of a millisecond."""
_MAX_CHECKS = 1024
"""The most checks of one value, without recursion."""
_MANY_CHECKS = 10**6
_MAX_COUNTED_DEPTH = 40
"""In a recursive schema each level of a value multiplies the checks, down to this depth."""
_CHARACTERS_PER_VALUE = 100
"""A string of this length counts as one more value: an error copies it."""


class ValidationCost:
    """The most schemas to check one value, as if all alternatives applied.

    Args:
        tagged: Whether Pydantic made the schema. Its `oneOf` is a tagged union: only one alternative is tried.

    Raises:
        DefinitionError: References without recursion lead to too many schemas; or several alternatives of a union lead
            back to it, and Pydantic would try each of them at every level.

    Attributes:
        max_checks: The number of schemas that check one value. A recursive schema counts once.
        recursive: The `id` of each schema with a way back to itself.
    """

    def __init__(self, schema: JsonObject, *, tagged: bool = False) -> None:
        self._schema = schema
        self._tagged = tagged
        self._counts: dict[int, int] = {}
        self._nodes: dict[int, JsonObject] = {}
        children: dict[int, list[int]] = {}
        waiting = [schema]
        while waiting:
            node = waiting.pop()
            if id(node) not in children:
                applied = [child for group in (*self._iter_choices(node), *_part_schemas(node)) for child in group]
                found = [child for child in applied if isinstance(child, Mapping)]
                self._nodes[id(node)], children[id(node)] = node, [*map(id, found)]
                waiting += found
        self._bits = {key: 1 << index for index, key in enumerate(children)}
        self._reachable = _find_reachable(children, self._bits)
        self.recursive = {key for key, bit in self._bits.items() if self._reachable[key] & bit}
        try:
            self.max_checks = max(map(self._count, self._nodes.values()))
        except RecursionError:
            self.max_checks = _MANY_CHECKS
        if self.max_checks > _MAX_CHECKS:
            raise DefinitionError(
                "the schema is too large once its references are written out: "
                f"one value would be checked against more than {_MAX_CHECKS:,} schemas"
            )
        for key in self.recursive if tagged else ():
            self._check_union(self._nodes[key])

    def is_too_high(self, value: object) -> bool:
        """Return whether it would take too long to list all errors of a value."""
        depth, size = measure_value(value)
        checks: int = self.max_checks ** (min(depth, _MAX_COUNTED_DEPTH) if self.recursive else 1)
        return checks * depth * size > MAX_ERROR_WORK

    def _count(self, node: object) -> int:
        """Return the checks of one value by a schema. A recursive schema counts once below itself."""
        if not isinstance(node, Mapping):
            return 1
        key = id(node)
        if key not in self._counts:
            self._counts[key] = 0  # in case it refers to itself for the same value
            here = sum(max(map(self._count, choices), default=0) for choices in self._iter_choices(node))
            inside = max((sum(map(self._count_part, schemas)) for schemas in _part_schemas(node)), default=0)
            self._counts[key] = min(max(1, here + inside), _MANY_CHECKS)
        return self._counts[key]

    def _count_part(self, node: object) -> int:
        return 1 if id(node) in self.recursive else self._count(node)

    def _iter_choices(self, node: JsonObject) -> Iterator[list[Any]]:
        """Yield the schemas in place, in groups of alternatives if only one of these is tried."""
        for keyword, schemas in iter_in_place(node, self._schema):
            yield from [schemas] if self._tagged and keyword == "oneOf" else ([schema] for schema in schemas)

    def _check_union(self, node: JsonObject) -> None:
        bit, union = self._bits[id(node)], node.get("anyOf", ())
        back = [choice for choice in union if (self._reachable[id(choice)] | self._bits[id(choice)]) & bit]
        kinds = [kind for choice in back for kind in {form.get("type") for form in find_forms([choice], self._schema)}]
        if any(kinds.count(kind) > 1 for kind in ("object", "array")):
            names = ", ".join(str(choice.get("$ref", choice.get("type"))).rpartition("/")[2] for choice in union)
            raise DefinitionError(
                f"several of the types {names} contain the union again, so Pydantic would try each at every level; "
                "give the union a discriminator: Field(discriminator='kind'), or Discriminator(function)"
            )


def _part_schemas(node: JsonObject) -> list[list[Any]]:
    """Return the schemas for each part of a value, if the schema takes objects or arrays."""
    kinds = node.get("type", ("object", "array"))
    keys = (*node.get("properties", ()), None) if "object" in kinds else ()
    items = (*range(len(prefix_items(node))), None) if "array" in kinds else ()
    return [*(property_schemas(node, key) for key in keys), *(item_schemas(node, index) for index in items)]


def _find_reachable(children: Mapping[int, list[int]], bits: Mapping[int, int]) -> dict[int, int]:
    """Return the reachable schemas of each schema, as bits."""
    reachable, has_changed = dict.fromkeys(children, 0), True
    while has_changed:
        has_changed = False
        for node, below in children.items():
            found = reachable[node]
            for child in below:
                found |= bits[child] | reachable[child]
            has_changed = has_changed or found != reachable[node]
            reachable[node] = found
    return reachable


def measure_value(value: object) -> tuple[int, int]:
    """Return the depth of a JSON value and the number of values in it."""
    depth, size, level = 0, 0, [value]
    while level:
        depth += 1
        size += len(level) + sum(len(item) // _CHARACTERS_PER_VALUE for item in level if isinstance(item, str))
        containers = [
            item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)
        ]
        level = [child for container in containers for child in container]
    return depth, size
