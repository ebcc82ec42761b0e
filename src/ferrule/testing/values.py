"""Values that fit a JSON Schema, made by one plain rule for each common keyword and drawn by a seed.

An optional part without a rule is left out; everywhere else `NoFittingValue` gives the obstacle.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from random import Random
from typing import Any, TypeAlias
from urllib.parse import unquote
from uuid import UUID

from ferrule.values.json_text import is_same_json

Path: TypeAlias = tuple[str | int, ...]

_UNSUPPORTED_KEYWORDS = (
    "pattern", "not", "if", "contains", "dependentRequired", "dependentSchemas", "propertyNames", "$dynamicRef"
)  # fmt: skip
_ANNOTATIONS = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
_ATTEMPTS = 20
_DEPTHS = (8, 16, 32, 64)
"""The deepest nesting of schemas. Small depths come first, so that a schema that refers to itself gives a small
value.
"""
_STEPS = 5_000
"""How many schemas one attempt looks at. Branches that refer to each other would otherwise be tried without end."""
_OPTIONAL_STEPS = 3
"""Steps from the root after which only required parts are made."""
_NUMBERS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf")
_WORDS = ["amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "harbor", "island", "kelp", "larch", "river"]


class NoFittingValue(Exception):
    """No fitting value was made.

    Attributes:
        path: The place, from the root of the value.
        why: The obstacle, in words.
    """

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(why)
        self.path = path
        self.why = why


def make_fitting(schema: Any, finish: Callable[[Any], Any], seed: str) -> Any:
    """Return a value of `schema` as `finish` returns it. `finish` raises `NoFittingValue` for a value that does not fit
    after all.

    The same seed gives the same value, in every process. Examples are taken at first, then values by the rules alone.

    Raises:
        NoFittingValue: No attempt gave a fitting value. This is the error of the last attempt.
    """
    for attempt in range(_ATTEMPTS):
        deepest = _DEPTHS[attempt % len(_DEPTHS)]
        maker = _Maker(schema, Random(f"{seed}#{attempt}"), deepest, examples=attempt < _ATTEMPTS // 2)
        try:
            return finish(maker.value(schema, (), 0))
        except NoFittingValue as unmet:
            last = unmet
    raise last


def draw_below(draw: Random, count: int) -> int:
    """Return a whole number from 0 to below `count`. Python promises never to change `random()`."""
    return count * int(draw.random() * (1 << 53)) >> 53


def pick(draw: Random, items: Iterable[Any]) -> Any:
    """Return one of the items."""
    found = list(items)
    return found[draw_below(draw, len(found))]


def draw_words(draw: Random, count: int = 2) -> str:
    """Return some plain words."""
    return " ".join(pick(draw, _WORDS) for _ in range(count))


class _Maker:
    """Makes one value; `path` is the place in the value, `depth` the number of schemas round the current one."""

    def __init__(self, root: Any, draw: Random, deepest: int, *, examples: bool) -> None:
        self._root = root
        self._draw = draw
        self._deepest = deepest
        self._examples = examples
        self._steps = _STEPS

    def value(self, schema: Any, path: Path, depth: int) -> Any:
        node = self._flatten(schema, path, depth)
        if "const" in node:
            return copy.deepcopy(node["const"])
        if given := node.get("enum") or (self._examples and node.get("examples")):
            return copy.deepcopy(pick(self._draw, given))
        try:
            return self._make_by_rule(node, path, depth + 1)
        except NoFittingValue:
            if "default" not in node:
                raise
            return copy.deepcopy(node["default"])

    def _flatten(self, schema: Any, path: Path, depth: int) -> dict[str, Any]:
        """Return the keywords of a schema, of its `$ref` target and of its `allOf`, in one."""
        self._steps -= 1
        if depth > self._deepest or self._steps < 0:
            raise NoFittingValue(path[:1], "its schema refers to itself without end, or nests too deep")
        if schema is False:
            raise NoFittingValue(path, "its schema is false, which nothing fits")
        if schema is True:
            return {}
        node = {key: value for key, value in schema.items() if key not in ("$ref", "allOf", "$defs")}
        parts = list(schema.get("allOf", ()))
        if "$ref" in schema:
            parts.append(_resolve_reference(self._root, schema["$ref"], path))
        for part in parts:
            node = _merge_schemas(node, self._flatten(part, path, depth + 1), path)
        return node

    def _make_by_rule(self, node: dict[str, Any], path: Path, depth: int) -> Any:
        for key in _UNSUPPORTED_KEYWORDS:
            if key in node:
                raise NoFittingValue(path, f"its schema has {key!r}, for which no value is made up")
        for key in ("anyOf", "oneOf"):
            if key in node:
                return self._make_branch(node, key, path, depth)
        hinted = "object" if "properties" in node or "required" in node else "array" if "items" in node else "string"
        kinds = node.get("type", hinted)
        match pick(self._draw, [kinds] if isinstance(kinds, str) else kinds):
            case "null":
                return None
            case "boolean":
                return self._draw.random() < 0.5
            case "integer":
                return int(_draw_number(node, self._draw, path, whole=True))
            case "number":
                return float(_draw_number(node, self._draw, path, whole=False))
            case "string":
                return _draw_text(node, self._draw, path)
            case "array":
                return self._make_array(node, path, depth)
            case _:
                return self._make_object(node, path, depth)

    def _make_branch(self, node: dict[str, Any], key: str, path: Path, depth: int) -> Any:
        """Return a value of the first branch that works."""
        others = {name: value for name, value in node.items() if name != key and name not in _ANNOTATIONS}
        for branch in node[key]:
            try:
                return self.value({"allOf": [others, branch]} if others else branch, path, depth)
            except NoFittingValue as unmet:
                last = unmet
        raise last

    def _make_array(self, node: dict[str, Any], path: Path, depth: int) -> list[Any]:
        prefix = list(node.get("prefixItems", ()))
        least = int(node.get("minItems", 0))
        more = 0 if len(path) >= _OPTIONAL_STEPS else len(prefix) or 1 + draw_below(self._draw, 3)
        found: list[Any] = []
        for index in range(max(least, int(min(more, node.get("maxItems", more))))):
            schema = prefix[index] if index < len(prefix) else node.get("items", True)
            try:
                found.append(self._make_item(schema, (*path, index), depth, found if node.get("uniqueItems") else []))
            except NoFittingValue:
                if len(found) < least:
                    raise
                break
        return found

    def _make_item(self, schema: Any, path: Path, depth: int, taken: list[Any]) -> Any:
        for _ in range(_ATTEMPTS):
            item = self.value(schema, path, depth)
            if not any(is_same_json(item, other) for other in taken):
                return item
        raise NoFittingValue(path, f"it must differ from the {len(taken)} items before it")

    def _make_object(self, node: dict[str, Any], path: Path, depth: int) -> dict[str, Any]:
        needed, declared = node.get("required", ()), node.get("properties", {})
        extra, short = node.get("additionalProperties", True), len(path) >= _OPTIONAL_STEPS
        found: dict[str, Any] = {}
        for name in [*declared, *(name for name in needed if name not in declared)]:
            schema = declared.get(name, extra)
            if name in needed:
                found[name] = self.value(schema, (*path, name), depth)
            elif not short and self._draw.random() < 0.6:
                with suppress(NoFittingValue):
                    found[name] = self.value(schema, (*path, name), depth)
        least = node.get("minProperties", 0)
        more = 1 + draw_below(self._draw, 2) if isinstance(extra, Mapping) and not short else 0
        for _ in range(max(least - len(found), more)):
            try:
                name = f"{draw_words(self._draw, 1)}_{len(found)}"
                found[name] = self.value(extra, (*path, name), depth)
            except NoFittingValue:
                if len(found) < least:
                    raise
                break
        return found


def _resolve_reference(root: Any, reference: str, path: Path) -> Any:
    """Return the target of a JSON pointer (RFC 6901) into the same schema. The tool has checked that it exists."""
    base, _, pointer = reference.partition("#")
    if base or pointer[:1] not in ("", "/"):
        raise NoFittingValue(path, f"its schema refers to {reference!r}, and only '#/…' is followed")
    found = root
    for part in unquote(pointer).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        found = found[int(key)] if isinstance(found, list) else found[key]
    return found


def _merge_schemas(one: dict[str, Any], other: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the combined keywords of two schemas."""
    found = {**other, **one}
    for key in other:
        if key not in one or key in _ANNOTATIONS or one[key] == other[key]:
            continue
        if key == "required":
            found[key] = [*one[key], *other[key]]
        elif key == "properties":
            both = {name: {"allOf": [one[key][name], other[key][name]]} for name in one[key] if name in other[key]}
            found[key] = {**one[key], **other[key], **both}
        else:
            raise NoFittingValue(path, f"its schema says {key!r} twice: {one[key]!r} and {other[key]!r}")
    return found


def _draw_number(node: Mapping[str, Any], draw: Random, path: Path, *, whole: bool) -> Fraction:
    """Return a multiple of `multipleOf` within the bounds; of one, or of a hundredth, if the schema has none."""
    given = {key: Fraction(str(node[key])) for key in _NUMBERS if key in node}  # as they are written: 0.1 is a tenth
    step = given.get("multipleOf", Fraction(1, 1 if whole else 100))
    step = Fraction(step.numerator) if whole else step  # the whole multiples of p/q are the multiples of p
    least = [math.ceil(given["minimum"] / step)] if "minimum" in given else []
    least += [math.floor(given["exclusiveMinimum"] / step) + 1] if "exclusiveMinimum" in given else []
    most = [math.floor(given["maximum"] / step)] if "maximum" in given else []
    most += [math.ceil(given["exclusiveMaximum"] / step) - 1] if "exclusiveMaximum" in given else []
    spread = 100 if whole else 10_000
    low = max(least) if least else min(0, min(most, default=spread) - spread)
    high = min(most) if most else low + spread
    if low > high:
        bounds = {key: node[key] for key in given}
        raise NoFittingValue(path, f"no {'whole number' if whole else f'multiple of {step}'} is within {bounds}")
    return step * (low + draw_below(draw, high - low + 1))


def _draw_text(node: Mapping[str, Any], draw: Random, path: Path) -> str:
    """Return a text of the format, or words of the length."""
    if make := _TEXT_OF_FORMAT.get(node.get("format", "")):
        return make(draw)
    least, most = int(node.get("minLength", 0)), int(node.get("maxLength", 10**6))
    if least > most:
        raise NoFittingValue(path, f"no text has from {least} to {most} characters")
    text = draw_words(draw, 2 + least // 4)  # a word and a blank are five characters at the least
    return text[: max(least, min(most, len(text)))].rstrip().ljust(least, "x")


def _draw_moment(draw: Random) -> datetime:
    return datetime(2020, 1, 1, tzinfo=UTC) + timedelta(seconds=draw_below(draw, 10**9))


# Addresses and names that belong to nobody: RFC 2606, RFC 5737.
_TEXT_OF_FORMAT: dict[str, Callable[[Random], str]] = {
    "date-time": lambda draw: _draw_moment(draw).isoformat(),
    "date": lambda draw: _draw_moment(draw).date().isoformat(),
    "time": lambda draw: _draw_moment(draw).timetz().isoformat(),
    "duration": lambda draw: f"PT{1 + draw_below(draw, 600)}M",
    "uuid": lambda draw: str(UUID(int=draw_below(draw, 1 << 128), version=4)),
    "email": lambda draw: f"{draw_words(draw, 1)}.{draw_below(draw, 1000)}@example.org",
    "uri": lambda draw: f"https://example.org/{draw_words(draw, 1)}/{draw_below(draw, 1000)}",
    "ipv4": lambda draw: f"192.0.2.{1 + draw_below(draw, 254)}",
}
