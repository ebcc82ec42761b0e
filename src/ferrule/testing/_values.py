"""Values that fit a JSON Schema 2020-12, drawn by a seed; ends where the schema lets it, and says where it cannot.

`fitting` makes a value and has it checked. Whatever is wrong in it is drawn again, at its own place first and then
further and further up, until nothing is wrong: that is how `not`, `oneOf` and a check in code are met.
"""

from __future__ import annotations

import base64
import copy
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import zip_longest
from random import Random
from typing import Any, TypeAlias

from ferrule.values.json_text import same

Path: TypeAlias = tuple[str | int, ...]
Check: TypeAlias = Callable[[Any], list[tuple[Path, str]]]
"""What is wrong in a value, and where; nothing for one that fits."""

_ATTEMPTS = 120
_AT_ONE_LEVEL = 12
_DEEP = 4
"""Steps from the root after which everything is as short as the schema lets it be."""
_ENDLESS = 40
_EXACT = 2**53
"""Up to here floating point keeps every whole number."""
_TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")
_WORDS = [
    "amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "harbor", "island", "jasper", "kelp", "larch",
    "meadow", "north", "opal", "pine", "quarry", "river", "stone", "tundra", "umber", "valley", "willow", "yarrow",
    "zephyr",
]  # fmt: skip
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Unmet(Exception):
    """No value was found that fits.

    Attributes:
        path: Where, from the root of the value.
        why: What stands in the way, in words.
    """

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(why)
        self.path = path
        self.why = why


def fitting(schema: Any, check: Check, seed: str) -> Any:
    """A value of `schema` in which `check` finds nothing wrong; the same for the same seed, in every process.

    Raises:
        Unmet: where none is found.
    """
    source = _Source(schema, seed)
    wrong: list[tuple[Path, str]] = []
    for attempt in range(_ATTEMPTS):
        try:
            value = source.made(schema, (), seed)
            wrong = check(value)
        except Unmet as unmet:
            wrong = [(unmet.path, unmet.why)]
        if not wrong:
            return value
        source.draw_again({path[: max(len(path) - attempt // _AT_ONE_LEVEL, 0)] for path, _ in wrong})
    raise Unmet(*wrong[0])


def below(draw: Random, count: int) -> int:
    """A whole number from 0 to below `count`; `random()` is what Python promises never to change."""
    return count * int(draw.random() * (1 << 53)) >> 53


def pick(draw: Random, items: Iterable[Any]) -> Any:
    """One of the items."""
    found = list(items)
    return found[below(draw, len(found))]


def words(draw: Random, count: int = 2) -> str:
    """Some plain words."""
    return " ".join(pick(draw, _WORDS) for _ in range(count))


class _Source:
    """Where values come from: each place of a value is drawn by itself, so that it alone can be drawn again."""

    def __init__(self, root: Any, seed: str) -> None:
        self._root = root
        self._drawn: dict[Path, int] = {}

    def draw_again(self, places: Iterable[Path]) -> None:
        """The next value has other values at these places, and below them."""
        for path in places:
            self._drawn[path] = self._drawn.get(path, 0) + 1

    def made(self, schema: Any, path: Path, salt: str) -> Any:
        if len(path) > _ENDLESS:
            raise Unmet(path[:1], "its schema refers to itself without end")
        if again := self._drawn.get(path):
            salt = f"{salt}#{again}"
        draw = Random(salt)
        node = self._flat(schema, path, draw)
        if "enum" in node:
            if not node["enum"]:
                raise Unmet(path, "no value is in all of its enums")
            return copy.deepcopy(pick(draw, node["enum"]))
        if node.get("examples") and not again:
            return copy.deepcopy(pick(draw, node["examples"]))
        return _MAKERS[_kind(node, path, draw)](self, node, path, salt, draw)

    # -- one flat schema of a composed one ----------------------------------------------------------------------------

    def _flat(self, schema: Any, path: Path, draw: Random, seen: tuple[str, ...] = ()) -> dict[str, Any]:
        """The keywords that hold together, with references followed and one branch taken of each choice."""
        if schema is False:
            raise Unmet(path, "its schema is false, which nothing fits")
        if not isinstance(schema, Mapping):
            return {}
        node = {key: value for key, value in schema.items() if key not in _COMPOSING}
        if "const" in schema:
            node = _both(node, {"enum": [schema["const"]]})
        parts: list[Any] = [*schema.get("allOf", ())]
        parts += [self._branch(schema[key], path, draw) for key in ("anyOf", "oneOf") if key in schema]
        if "if" in schema and draw.random() < 0.5:
            parts += [schema["if"], schema.get("then", True)]
        elif "if" in schema:
            parts.append(schema.get("else", True))
        for part in parts:
            node = _both(node, self._flat(part, path, draw, seen))
        reference = schema.get("$ref", schema.get("$dynamicRef"))
        if isinstance(reference, str):
            if reference in seen:
                raise Unmet(path, f"{reference} is nothing but itself")
            node = _both(node, self._flat(self._target(reference, path), path, draw, (*seen, reference)))
        return node

    def _branch(self, branches: list[Any], path: Path, draw: Random) -> Any:
        if len(path) < _DEEP:
            return pick(draw, branches)
        heights = [self._height(branch, self._heights) for branch in branches]
        most = math.inf if self._drawn.get(path) else min(heights)
        short = [branch for branch, height in zip(branches, heights, strict=True) if height <= most]
        return pick(draw, short)

    def _target(self, reference: str, path: Path = ()) -> Any:
        base, _, fragment = reference.partition("#")
        if base and base != str(self._root.get("$id", "")).removesuffix("#"):
            raise Unmet(path, f"its schema is at {reference!r}, which is not fetched")
        try:
            return _at_pointer(self._root, fragment) if fragment[:1] in {"", "/"} else _anchored(self._root, fragment)
        except (LookupError, ValueError, TypeError):
            raise Unmet(path, f"its schema refers to {reference!r}, which there is not") from None

    @cached_property
    def _heights(self) -> dict[str, float]:
        """How deep a value must be at the least, by reference: lowered until nothing changes."""
        heights = dict.fromkeys(_references(self._root), math.inf)
        before: dict[str, float] = {}
        while before != heights:
            before = dict(heights)
            for reference in heights:
                with suppress(Unmet):  # what is not there is told where it is needed
                    heights[reference] = self._height(self._target(reference), heights)
        return heights

    def _height(self, schema: Any, heights: Mapping[str, float]) -> float:
        if not isinstance(schema, Mapping):
            return math.inf if schema is False else 0
        if "const" in schema or "enum" in schema:
            return 0
        found: list[float] = [0]
        found += [heights.get(schema[key], 0) for key in ("$ref", "$dynamicRef") if key in schema]
        found += [self._height(part, heights) for part in schema.get("allOf", ())]
        for key in ("anyOf", "oneOf"):
            if key in schema:
                found.append(min(self._height(part, heights) for part in schema[key]))
        inner = [schema.get("properties", {}).get(name, True) for name in schema.get("required", ())]
        least = schema.get("minItems", 0)
        inner += schema.get("prefixItems", [])[:least]
        inner += [schema.get("items", True)] if least > len(schema.get("prefixItems", [])) else []
        return max([*found, *(1 + self._height(part, heights) for part in inner)])

    # -- values of one type -------------------------------------------------------------------------------------------

    def _null(self, node: dict[str, Any], path: Path, salt: str, draw: Random) -> None:
        return None

    def _boolean(self, node: dict[str, Any], path: Path, salt: str, draw: Random) -> bool:
        return draw.random() < 0.5

    def _integer(self, node: dict[str, Any], path: Path, salt: str, draw: Random) -> int:
        step = _exact(node.get("multipleOf", 1))
        range_ = _Range(node, max(step, Fraction(1)))
        found = range_.multiple(Fraction(step.numerator), draw)
        if found is None:
            raise Unmet(path, f"no whole number is {range_}")
        return int(found)

    def _number(self, node: dict[str, Any], path: Path, salt: str, draw: Random) -> float:
        step = node.get("multipleOf")
        range_ = _Range(node, Fraction(1) if step is None else _exact(step))
        found = range_.multiple(range_.fine if step is None else _exact(step), draw)
        if found is None and step is None:
            found = range_.between(draw)
        if found is None:
            raise Unmet(path, f"no number is {range_}")
        return int(found) if found.denominator == 1 and abs(found) > _EXACT else float(found)

    def _string(self, node: dict[str, Any], path: Path, salt: str, draw: Random) -> str:
        low, high = node.get("minLength", 0), node.get("maxLength", math.inf)
        if low > high:
            raise Unmet(path, f"no text has from {low} to {high} characters")
        if "pattern" in node:
            return _patterned(node, path, draw)
        form = node.get("format") or ("byte" if "base64" in str(node.get("contentEncoding")) else "")
        if form in _FORMATS:
            return _FORMATS[form](draw)
        return _sized(draw, int(low), high)

    def _array(self, node: dict[str, Any], path: Path, salt: str, draw: Random) -> list[Any]:
        prefix = list(node.get("prefixItems", ()))
        rest = node.get("items", node.get("unevaluatedItems", True))
        holding = node.get("minContains", 1) if "contains" in node else 0
        least = max(node.get("minItems", 0), holding)
        most = min(node.get("maxItems", math.inf), len(prefix) if rest is False else math.inf)
        if least > most:
            raise Unmet(path, f"no array has from {least} to {most} items")
        free = 0 if len(path) >= _DEEP else len(prefix) or 1 + below(draw, 2 if path else 3)
        schemas = [*prefix, *[rest] * int(least + free)][: int(min(max(least, free), most))]
        start = min(len(prefix), max(len(schemas) - holding, 0))
        for index in range(start, start + holding):
            schemas[index] = {"allOf": [schemas[index], node["contains"]]}
        found: list[Any] = []
        for index, schema in enumerate(schemas):
            if not self._append(found, schema, (*path, index), f"{salt}/{index}", bool(node.get("uniqueItems"))):
                if len(found) >= least:
                    break
                raise Unmet(path, f"there are no {least} different items")
        return found

    def _append(self, found: list[Any], schema: Any, path: Path, salt: str, unique: bool) -> bool:
        for attempt in range(100):
            item = self.made(schema, path, f"{salt}~{attempt}" if attempt else salt)
            if not unique or not any(same(item, other) for other in found):
                found.append(item)
                return True
        return False

    def _object(self, node: dict[str, Any], path: Path, salt: str, draw: Random) -> dict[str, Any]:
        names = self._names(node, path, salt, draw)
        return {name: self.made(_property(node, name), (*path, name), f"{salt}/{name}") for name in names}

    def _names(self, node: dict[str, Any], path: Path, salt: str, draw: Random) -> list[str]:
        """Which properties there are: all that are required, some that are not, and others where the schema is open."""
        required = _needed(node)
        declared = list(node.get("properties", ()))
        optional = [name for name in declared if name not in required and _property(node, name) is not False]
        wanted = [] if len(path) >= _DEEP else [name for name in optional if draw.random() < 0.6]
        least, most = node.get("minProperties", 0), node.get("maxProperties", math.inf)
        spare = [name for name in optional if name not in wanted]
        wanted += spare[: max(least - len(required) - len(wanted), 0)]
        wanted = wanted[: int(max(min(most, len(declared) + len(required)) - len(required), 0))]
        chosen = _needed(node, [*required, *wanted])
        names = [name for name in declared if name in chosen] + [name for name in chosen if name not in declared]
        of_its_own = isinstance(_extra(node), Mapping) or (not declared and "patternProperties" in node)
        more = 1 + below(draw, 2) if of_its_own and len(path) < _DEEP else 0
        more = int(min(max(least - len(names), more), most - len(names)))
        for index in range(more):
            name = self._invented(node, names, path, f"{salt}@{index}")
            if name is None:
                break
            names.append(name)
        if len(names) > most or len(names) < least:
            raise Unmet(path, f"no object has from {least} to {most} properties")
        return names

    def _invented(self, node: dict[str, Any], taken: list[str], path: Path, salt: str) -> str | None:
        patterns = list(node.get("patternProperties", ()))
        kind: Any = {"type": "string", "pattern": f"^({'|'.join(_WORDS)})(_[0-9]{{1,3}})?$"}
        if "propertyNames" in node:
            kind = {"allOf": [{"type": "string"}, node["propertyNames"]]}
        elif patterns:
            kind = {"type": "string", "pattern": patterns[0]}
        for attempt in range(20):
            name = str(self.made(kind, path, f"{salt}~{attempt}"))
            if name not in taken and _property(node, name) is not False:
                return name
        return None


_MAKERS: dict[str, Callable[[_Source, dict[str, Any], Path, str, Random], Any]] = {
    "null": _Source._null,
    "boolean": _Source._boolean,
    "integer": _Source._integer,
    "number": _Source._number,
    "string": _Source._string,
    "array": _Source._array,
    "object": _Source._object,
}
_COMPOSING = {"allOf", "anyOf", "oneOf", "$ref", "$dynamicRef", "const", "if", "then", "else", "$defs", "definitions"}
_OF_TYPE = {
    "object": {"properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"},
    "string": {"minLength", "maxLength", "pattern", "format", "contentEncoding"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}


def _kind(node: Mapping[str, Any], path: Path, draw: Random) -> str:
    """The type of the value; where none is said, one that the keywords are about."""
    if "type" in node:
        types = _listed(node["type"])
        if not types:
            raise Unmet(path, "it must be of two types at once")
        return str(pick(draw, types))
    hinted = [kind for kind, keywords in _OF_TYPE.items() if not keywords.isdisjoint(node)]
    return str(pick(draw, _TYPES if "not" in node else hinted or ["string"]))


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


# -- two schemas that hold together -----------------------------------------------------------------------------------


def _both(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The keywords of both. What one closes and the other declares is nothing that may be there."""
    found = dict(one)
    for key, value in other.items():
        found[key] = _JOINED[key](found[key], value) if key in found and key in _JOINED else value
    for shut, names in ((one, other), (other, one)):
        extra = shut.get("additionalProperties", True)
        for name in names.get("properties", ()) if extra is not True else ():
            if name not in shut.get("properties", ()) and not _patterns_of(shut, name):
                found["properties"] = _by_name(found["properties"], {name: extra})
    return found


def _all_of(one: Any, other: Any) -> Any:
    return {"allOf": [one, other]}


def _by_name(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {**one, **{name: _all_of(one[name], part) if name in one else part for name, part in other.items()}}


def _in_both_types(one: Any, other: Any) -> list[str]:
    left, right = _listed(one), _listed(other)
    found = [kind for kind in left if kind in right or (kind == "integer" and "number" in right)]
    return found + (["integer"] if "integer" in right and "number" in left and "integer" not in found else [])


def _in_order(one: list[Any], other: list[Any]) -> list[Any]:
    return [_all_of(*pair) for pair in zip_longest(one, other, fillvalue=True)]


def _common_multiple(one: float, other: float) -> float:
    left, right = _exact(one), _exact(other)
    found = Fraction(math.lcm(left.numerator, right.numerator), math.gcd(left.denominator, right.denominator))
    return int(found) if found.denominator == 1 else float(found)


_JOINED: dict[str, Callable[[Any, Any], Any]] = {
    "type": _in_both_types,
    "enum": lambda one, other: [item for item in one if any(same(item, wanted) for wanted in other)],
    "required": lambda one, other: [*one, *(name for name in other if name not in one)],
    "properties": _by_name,
    "patternProperties": _by_name,
    "prefixItems": _in_order,
    "multipleOf": _common_multiple,
    "pattern": lambda one, other: [*_listed(one), *(item for item in _listed(other) if item not in _listed(one))],
    "uniqueItems": lambda one, other: one or other,
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min),
    **dict.fromkeys(("items", "contains", "additionalProperties", "unevaluatedProperties", "propertyNames"), _all_of),
}


# -- objects ----------------------------------------------------------------------------------------------------------


def _needed(node: Mapping[str, Any], names: Iterable[str] | None = None) -> list[str]:
    """The names, and those which they require in turn."""
    found = list(node.get("required", ()) if names is None else names)
    for name in found:  # it grows
        found += [more for more in node.get("dependentRequired", {}).get(name, ()) if more not in found]
    return found


def _property(node: Mapping[str, Any], name: str) -> Any:
    """The schema of one property, whoever says it."""
    own = [node["properties"][name]] if name in node.get("properties", ()) else []
    own += [node["patternProperties"][pattern] for pattern in _patterns_of(node, name)]
    if not own:
        return _extra(node)
    return own[0] if len(own) == 1 else {"allOf": own}


def _extra(node: Mapping[str, Any]) -> Any:
    return node.get("additionalProperties", node.get("unevaluatedProperties", True))


def _patterns_of(node: Mapping[str, Any], name: str) -> list[str]:
    return [pattern for pattern in node.get("patternProperties", ()) if _text_check(pattern).is_valid(name)]


# -- references -------------------------------------------------------------------------------------------------------


def _at_pointer(root: Any, pointer: str) -> Any:
    """What a JSON pointer (RFC 6901) in a URI's fragment points to."""
    from urllib.parse import unquote

    for part in unquote(pointer).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        root = root[int(key)] if isinstance(root, list) else root[key]
    return root


def _anchored(root: Any, name: str) -> Any:
    found = [n for n in _nodes(root) if name in (n.get("$anchor"), n.get("$dynamicAnchor"))]
    return found[0]


def _references(root: Any) -> list[str]:
    keys = ("$ref", "$dynamicRef")
    return [node[key] for node in _nodes(root) for key in keys if isinstance(node.get(key), str)]


def _nodes(value: Any) -> Iterable[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        yield value
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _nodes(item)


# -- numbers ----------------------------------------------------------------------------------------------------------


def _exact(value: Any) -> Fraction:
    """The number as it is written: 0.1 is a tenth."""
    return Fraction(str(value))


class _Range:
    """The numbers that the bounds of a schema let in; where it says none, from 0 to 100 steps on."""

    def __init__(self, node: Mapping[str, Any], step: Fraction) -> None:
        self._said = {key: node[key] for key in node if key in _OF_TYPE["number"]}
        low, self._above = _bound(node, "minimum", "exclusiveMinimum", max)
        high, self._under = _bound(node, "maximum", "exclusiveMaximum", min)
        if low is None:
            low = Fraction(0) if high is None or high >= 0 else high - 100 * step
        self._low = low
        self._high = low + 100 * step if high is None else high

    @property
    def fine(self) -> Fraction:
        """A step that leaves few digits, all of which floating point keeps."""
        return Fraction(1, 100) if max(abs(self._low), abs(self._high)) < _EXACT // 1000 else Fraction(1)

    def multiple(self, step: Fraction, draw: Random) -> Fraction | None:
        """A multiple of `step`, or `None` where there is none."""
        first, last = math.ceil(self._low / step), math.floor(self._high / step)
        first += self._above and first * step == self._low
        last -= self._under and last * step == self._high
        return step * (first + below(draw, last - first + 1)) if first <= last else None

    def between(self, draw: Random) -> Fraction | None:
        """Any number, or `None` where there is none."""
        if self._low == self._high and not (self._above or self._under):
            return self._low
        share = Fraction(1 + below(draw, 98), 100)
        return self._low + (self._high - self._low) * share if self._low < self._high else None

    def __str__(self) -> str:
        return f"within {json.dumps(self._said)}"


def _bound(
    node: Mapping[str, Any], closed: str, opened: str, stricter: Callable[..., Fraction]
) -> tuple[Fraction | None, bool]:
    """The bound, and whether it is itself left out."""
    at, off = (None if node.get(key) is None else _exact(node[key]) for key in (closed, opened))
    if at is None or off is None:
        return (at if off is None else off), off is not None
    return stricter(at, off), stricter(at, off) == off


# -- texts ------------------------------------------------------------------------------------------------------------


def _sized(draw: Random, low: int, high: float) -> str:
    """Words of so many characters."""
    if high < 4:
        return "".join(pick(draw, _LETTERS) for _ in range(max(low, min(int(high), 1 + below(draw, 3)))))
    text = words(draw)
    while len(text) < low:
        text += f" {words(draw)}"
    return text if len(text) <= high else text[: max(low, int(high))]


def _digits(draw: Random, count: int) -> str:
    return "".join(pick(draw, "0123456789abcdef") for _ in range(count))


def _date(draw: Random) -> str:
    return f"20{10 + below(draw, 20)}-{1 + below(draw, 12):02}-{1 + below(draw, 28):02}"


def _time(draw: Random) -> str:
    return f"{below(draw, 24):02}:{below(draw, 60):02}:{below(draw, 60):02}Z"


def _uuid(version: int) -> Callable[[Random], str]:
    return lambda draw: "-".join(
        (_digits(draw, 8), _digits(draw, 4), f"{version}{_digits(draw, 3)}", f"8{_digits(draw, 3)}", _digits(draw, 12))
    )


def _encoded(draw: Random) -> str:
    return base64.urlsafe_b64encode(words(draw, 3).encode()).decode()  # plain words need neither of its two signs


def _joined(form: str) -> Callable[[Random], str]:
    """A text with a word in the place of `*` and a number in that of `#`."""
    return lambda draw: form.replace("*", words(draw, 1)).replace("#", str(1 + below(draw, 254)))


# Addresses and names that belong to nobody: RFC 2606, RFC 5737, RFC 3849.
_FORMATS: dict[str, Callable[[Random], str]] = {
    "date": _date,
    "time": _time,
    "date-time": lambda draw: f"{_date(draw)}T{_time(draw)}",
    "duration": lambda draw: f"P{1 + below(draw, 6)}DT{below(draw, 24)}H{below(draw, 60)}M",
    "uuid": _uuid(4),
    **{f"uuid{version}": _uuid(version) for version in range(1, 9)},
    **dict.fromkeys(("email", "idn-email"), _joined("*.#@example.org")),
    **dict.fromkeys(
        ("uri", "iri", "uri-reference", "iri-reference", "uri-template"), _joined("https://example.org/*/#")
    ),
    **dict.fromkeys(("hostname", "idn-hostname"), _joined("*#.example.org")),
    **dict.fromkeys(("ipv4", "ipvanyaddress"), _joined("192.0.2.#")),
    "ipv6": lambda draw: f"2001:db8::{_digits(draw, 3)}",
    **dict.fromkeys(("ipv4network", "ipvanynetwork"), _joined("192.0.2.0/24")),
    **dict.fromkeys(("ipv4interface", "ipvanyinterface"), _joined("192.0.2.#/24")),
    **dict.fromkeys(("ipv6network", "ipv6interface"), _joined("2001:db8::/32")),
    **dict.fromkeys(("byte", "base64", "base64url", "binary"), _encoded),
    "json-pointer": _joined("/*/#"),
    "relative-json-pointer": _joined("#/*"),
    "regex": _joined("^*$"),
    "path": _joined("*/*-#.txt"),
    "json-string": _joined('"* #"'),
}


# -- patterns ---------------------------------------------------------------------------------------------------------

Writer: TypeAlias = Callable[[Random, int, bool], str]
"""A text that fits, with at most so many repetitions more than needed, or just as many."""


def _patterned(node: Mapping[str, Any], path: Path, draw: Random) -> str:
    """A text that fits the pattern, and the lengths beside it."""
    patterns = _listed(node["pattern"])
    low, high = int(node.get("minLength", 0)), node.get("maxLength", math.inf)
    checks = [_text_check(pattern) for pattern in patterns]
    try:
        writers = [_writer(pattern) for pattern in patterns]
    except ValueError as error:
        raise Unmet(path, str(error)) from None
    for attempt in range(80):
        write: Writer = pick(draw, writers)
        lacking = max(low - len(write(draw, 0, True)), 0)
        more, full = (3, False) if attempt % 2 else (math.ceil(lacking / (1 + attempt // 2)), True)
        text = write(draw, more, full)
        for found in (text, text + words(draw, low)[: max(low - len(text), 0)]):
            if low <= len(found) <= high and all(check.is_valid(found) for check in checks):
                return found
    raise Unmet(path, f"no text was found for the pattern {' and '.join(map(repr, patterns))}")


@lru_cache(maxsize=256)
def _text_check(pattern: str) -> Any:
    """jsonschema-rs judges patterns: it is safe from catastrophic ones, and speaks the schema's dialect."""
    import jsonschema_rs

    try:
        return jsonschema_rs.validator_for({"type": "string", "pattern": pattern})
    except jsonschema_rs.ValidationError:  # Pydantic's dialect: it judges the whole value anyway
        return jsonschema_rs.validator_for(True)


@lru_cache(maxsize=256)
def _writer(pattern: str) -> Writer:
    """What writes texts for a pattern of ECMA-262.

    Raises:
        ValueError: for a pattern with parts that are not simple.
    """
    reader = _Pattern(pattern)
    found = reader.alternatives()
    if reader.at < len(pattern):
        raise reader.beyond(pattern[reader.at :])
    return found


def _span(first: str, last: str) -> tuple[int, int]:
    return ord(first), ord(last)


_DIGITS = [_span("0", "9")]
_WORD = [*_DIGITS, _span("a", "z"), _span("A", "Z"), _span("_", "_")]
_BLANKS = [_span(" ", " "), _span("\t", "\r")]
_SETS = {"d": _DIGITS, "w": _WORD, "s": _BLANKS}
_PROPERTIES = {
    "L": [_span("a", "z"), _span("A", "Z")],
    "Lu": [_span("A", "Z")],
    "Ll": [_span("a", "z")],
    "N": _DIGITS,
    "Nd": _DIGITS,
}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_COUNTED = re.compile(r"\{(\d+)(?:(,)(\d*))?\}")
_MOST_REPEATED = 10_000


class _Pattern:
    """Reads a pattern once, from left to right; conditions such as `^`, `\\b` and a look-ahead write nothing."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0

    def beyond(self, part: str) -> ValueError:
        return ValueError(f"the pattern {self.pattern!r} has {part[:20]!r}, for which no text is made up")

    def alternatives(self) -> Writer:
        parts = [self._sequence()]
        while self._took("|"):
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else lambda draw, more, full: str(pick(draw, parts)(draw, more, full))

    def _sequence(self) -> Writer:
        parts: list[Writer] = []
        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
            parts.append(self._repeated(self._atom()))
        return lambda draw, more, full: "".join(part(draw, more, full) for part in parts)

    def _took(self, text: str) -> bool:
        found = self.pattern.startswith(text, self.at)
        self.at += len(text) if found else 0
        return found

    def _next(self) -> str:
        if self.at >= len(self.pattern):
            raise self.beyond("an end where more should come")
        self.at += 1
        return self.pattern[self.at - 1]

    def _repeated(self, one: Writer) -> Writer:
        least, most = self._count()
        if self.at > 0 and (least, most) != (1, 1):
            self._took("?") or self._took("+")
        if least > _MOST_REPEATED:
            raise self.beyond(f"{{{least}}}")
        if (least, most) == (1, 1):
            return one

        def write(draw: Random, more: int, full: bool) -> str:
            room = int(min(most - least, more))
            return "".join(one(draw, more, full) for _ in range(least + (room if full else below(draw, room + 1))))

        return write

    def _count(self) -> tuple[int, float]:
        for sign, counts in (("*", (0, math.inf)), ("+", (1, math.inf)), ("?", (0, 1))):
            if self._took(sign):
                return counts
        found = _COUNTED.match(self.pattern, self.at)
        if not found:
            return 1, 1
        self.at = found.end()
        least = int(found[1])
        return least, least if not found[2] else int(found[3]) if found[3] else math.inf

    def _atom(self) -> Writer:
        sign = self._next()
        if sign == "(":
            return self._group()
        if sign in "^$":
            return _one_of([])
        if sign == ".":
            return _one_of(_WORD[:2])
        if sign == "[":
            return _one_of(self._class())
        return _one_of(self._escaped() if sign == "\\" else [_span(sign, sign)])

    def _group(self) -> Writer:
        named = re.compile(r"\?(?:P?<\w+>|:)").match(self.pattern, self.at)
        condition = re.compile(r"\?<?[=!]").match(self.pattern, self.at)
        if named or condition:
            self.at = (named or condition).end()  # type: ignore[union-attr]
        elif self.pattern.startswith("?", self.at):
            raise self.beyond(self.pattern[self.at - 1 :])
        inner = self.alternatives()
        if not self._took(")"):
            raise self.beyond("an open bracket")
        return (lambda draw, more, full: "") if condition else inner

    def _escaped(self, inside: bool = False) -> list[tuple[int, int]]:
        sign = self._next()
        if sign in "dws":
            return _SETS[sign]
        if sign in "DWS":
            return _others(_SETS[sign.lower()])
        if sign in "bBAzZ" and not inside:
            return []
        if sign in _CONTROLS:
            return [_span(_CONTROLS[sign], _CONTROLS[sign])]
        if sign in "xu":
            code = re.compile(r"\{([0-9a-fA-F]+)\}|" + ("[0-9a-fA-F]{2}" if sign == "x" else "[0-9a-fA-F]{4}"))
            if found := code.match(self.pattern, self.at):
                self.at = found.end()
                return [(int(found[1] or found[0], 16),) * 2]
        if (
            sign in "pP"
            and (found := re.compile(r"\{(\w+)\}").match(self.pattern, self.at))
            and found[1] in _PROPERTIES
        ):
            self.at = found.end()
            return _PROPERTIES[found[1]] if sign == "p" else _others(_PROPERTIES[found[1]])
        if sign.isalnum():
            raise self.beyond(f"\\{sign}")
        return [_span(sign, sign)]

    def _class(self) -> list[tuple[int, int]]:
        negated, spans = self._took("^"), []
        while not self._took("]"):
            found = self._member()
            if len(found) == 1 and self.pattern[self.at : self.at + 1] == "-" and self._look(1) != "]":
                self.at += 1
                found = [(found[0][0], self._member()[-1][1])]
            spans += found
        found = _others(spans) if negated else spans
        if not found:
            raise self.beyond("a class of characters with none in it")
        return found

    def _look(self, ahead: int) -> str:
        return self.pattern[self.at + ahead : self.at + ahead + 1]

    def _member(self) -> list[tuple[int, int]]:
        sign = self._next()
        return self._escaped(inside=True) if sign == "\\" else [_span(sign, sign)]


def _others(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The printable characters outside: of ASCII, where there are some."""
    printable = [*range(0x61, 0x7B), *range(0x30, 0x3A), *range(0x20, 0x7F), *range(0xA1, 0x17F)]
    return [(code, code) for code in printable if not any(low <= code <= high for low, high in spans)]


def _one_of(spans: list[tuple[int, int]]) -> Writer:
    """One of the characters; of none, nothing."""
    if not spans:
        return lambda draw, more, full: ""

    def write(draw: Random, more: int, full: bool) -> str:
        low, high = pick(draw, spans)
        return chr(low + below(draw, high - low + 1))

    return write
