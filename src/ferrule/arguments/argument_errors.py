"""What is wrong with arguments: the same few facts from Pydantic's errors and from JSON Schema's, and the text for the
model that is made of them."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any

from pydantic_core import ValidationError

Path = tuple[str | int, ...]
Readings = tuple[frozenset[Path], ...]
_Label = tuple[Path, str]

_WANTS = {
    "int_type": "integer",
    "float_type": "number",
    "bool_type": "boolean",
    "list_type": "array",
    "tuple_type": "array",
    "set_type": "array",
    "frozen_set_type": "array",
    "iterable_type": "array",
    "dict_type": "object",
    "mapping_type": "object",
    "model_type": "object",
    "model_attributes_type": "object",
    "dataclass_type": "object",
}
_MISSING = {"missing", "missing_argument", "missing_keyword_only_argument"}
_ARTICLES = {
    "array": "an array",
    "object": "an object",
    "integer": "an integer",
    "number": "a number",
    "string": "a string",
    "boolean": "true or false",
}
_NO_VALUE: Any = object()
_COMPLEX = "must be a complex number as a string, such as 1+2j"
"""Pydantic's own words send the reader to a page."""

_WORD = re.compile(r"[^\w\s]*\w+[^\w\s]*|[^\w\s]+")
_MOST_READINGS = 8
_MOST_WORDS = 32
_MOST_CHARACTERS = 320
"""What is said of one value that is wrong; its place and what came have half as much each."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A value that may have several forms.

    Attributes:
        path: Where it is.
        readings: For each form that nothing but nulls stands against, the places of these; those with the fewest first.
    """

    path: Path
    readings: Readings


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong.

    Attributes:
        path: Where, from the top of the arguments.
        expected: What would be right, as words that follow the parameter's name.
        got: What came; `NO_VALUE` where nothing did or where it is no use to say.
        wants: The JSON type that is wanted here, where that is what is wrong.
        kind: `"missing"`, `"unknown"` or `"wrong"`.
        sure: Whether `wants` is the only reading; not inside one branch of several.
        choice: Where several forms may be meant, and nothing but nulls stands against some of them.
    """

    path: Path
    expected: str
    got: Any = _NO_VALUE
    wants: str | None = None
    kind: str = "wrong"
    sure: bool = True
    choice: Choice | None = None


class Mistakes(Exception):
    """The arguments do not fit."""

    def __init__(self, found: Sequence[Mistake]) -> None:
        super().__init__(found)
        self.found = list(found)


def from_pydantic(error: ValidationError, value: Any) -> list[Mistake]:
    """Pydantic's errors as mistakes; `value` is the JSON that was validated, to tell keys from the labels of unions."""
    errors = error.errors(include_url=False, include_context=True)
    places = [_place(item["loc"], value, item["type"] in _MISSING) for item in errors]
    branches: dict[Path, set[str]] = {}
    for _, labels in places:
        for where, label in labels:
            branches.setdefault(where, set()).add(label)
    found: list[Mistake] = []
    for item, (path, labels) in zip(errors, places, strict=True):
        deeper = [where for where, _ in labels if len(where) < len(path)]
        sure = all(len(branches[where]) == 1 for where in deeper)
        found.append(_from_pydantic(item, path, sure))
    if not all(mistake.sure for mistake in found):
        _read(found, [labels for _, labels in places])
    return found


def _read(found: list[Mistake], labels: Sequence[Sequence[_Label]]) -> None:
    """Gives the first mistake of each union its choice; `labels` are those between the parts of a mistake's path."""
    unions: dict[Path, list[int]] = {}
    for number, between in enumerate(labels):
        if between:
            unions.setdefault(between[0][0], []).append(number)
    for where, numbers in unions.items():
        readings = _readings([(found[number], labels[number]) for number in numbers])
        if readings and not all(found[number].sure for number in numbers):
            found[numbers[0]] = replace(found[numbers[0]], choice=Choice(where, readings))


def _readings(items: Sequence[tuple[Mistake, Sequence[_Label]]]) -> Readings:
    """The readings of mistakes with the labels that are left: all of the unions have to be read at once."""
    absent: set[Path] = set()
    unions: dict[Path, dict[str, list[tuple[Mistake, Sequence[_Label]]]]] = {}
    for mistake, labels in items:
        if labels:
            (where, label), *inner = labels
            unions.setdefault(where, {}).setdefault(label, []).append((mistake, inner))
        elif mistake.got is None and mistake.kind == "wrong":
            absent.add(mistake.path)
        else:
            return ()
    read = [_fewest(_readings(branch) for branch in union.values()) for union in unions.values()]
    return _together(read, absent)


def _together(unions: Sequence[Readings], absent: Iterable[Path] = ()) -> Readings:
    """What is absent anyway, with one reading of each of the unions."""
    return _fewest([tuple(frozenset(absent).union(*parts) for parts in islice(product(*unions), _MOST_READINGS))])


def _fewest(branches: Iterable[Readings]) -> Readings:
    """The readings of all branches, those with the fewest nulls first."""
    found = dict.fromkeys(reading for branch in branches for reading in branch)
    return tuple(sorted(found, key=len)[:_MOST_READINGS])


def _place(loc: Iterable[str | int], value: Any, missing: bool) -> tuple[Path, list[_Label]]:
    """The path within `value`, and the labels that Pydantic put between its parts."""
    path: list[str | int] = []
    labels: list[_Label] = []
    parts = list(loc)
    for position, part in enumerate(parts):
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        elif missing and position == len(parts) - 1 and _lacks(value, part):
            value = None
        else:
            labels.append((tuple(path), str(part)))
            continue
        path.append(part)
    return tuple(path), labels


def _lacks(value: Any, part: str | int) -> bool:
    """Whether `part` would be a key of the object, or an item of the array, that `value` is."""
    return isinstance(value, dict | list) and isinstance(part, str if isinstance(value, dict) else int)


def _from_pydantic(item: Any, path: Path, sure: bool) -> Mistake:
    kind = item["type"]
    if kind in _MISSING:
        return Mistake(path, "is required", kind="missing")
    if kind in {"extra_forbidden", "unexpected_keyword_argument"}:
        return Mistake(path, "is not known", got=item["input"], kind="unknown")
    if kind in {"complex_type", "complex_str_parsing"}:
        return Mistake(path, _COMPLEX, got=item["input"])
    context = item.get("ctx") or {}
    if kind in {"literal_error", "enum"} and "expected" in context:
        expected = f"must be one of {_shortened(str(context['expected']).replace(' or ', ', '), 240)}"
    else:
        message = str(item["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
        expected = _expectation(message)
    return Mistake(path, expected, got=item["input"], wants=_WANTS.get(kind), sure=sure)


def _expectation(message: str) -> str:
    for start in ("Input should be", "Input should have", "Input should"):
        if message.startswith(start):
            return f"must {start.removeprefix('Input should').strip()} {message[len(start) :].strip()}".replace(
                "  ", " "
            )
    for start in ("String should", "List should", "Value should", "Tuple should", "Set should", "Data should"):
        if message.startswith(start):
            return "must " + message[len(start) :].strip()
    return f"is wrong: {_shortened(message, 200)}"


def from_json_schema(errors: Iterable[Any]) -> list[Mistake]:
    """The errors of `jsonschema_rs` as mistakes."""
    return [mistake for error in errors for mistake in _from_json_schema(error)]


def _from_json_schema(error: Any) -> list[Mistake]:
    path: Path = tuple(error.instance_path)
    kind, got = error.kind, error.instance
    name = kind.name
    if name == "required":
        return [Mistake((*path, kind.property), "is required", kind="missing")]
    if name in {"additionalProperties", "unevaluatedProperties"} and hasattr(kind, "unexpected"):
        return [
            Mistake((*path, key), "is not known", got=got.get(key) if isinstance(got, dict) else None, kind="unknown")
            for key in kind.unexpected
        ]
    if name == "type":
        expected = f"must be {' or '.join(_ARTICLES.get(want, want) for want in kind.types)}"
        return [Mistake(path, expected, got, wants=want) for want in kind.types]
    if name in {"anyOf", "oneOf"} and getattr(kind, "context", None):
        return _from_branches(path, got, kind.context, str(error.message))
    if name == "enum":
        return [Mistake(path, f"must be one of {_listed(kind.options)}", got)]
    if name == "const":
        return [Mistake(path, f"must be {show(kind.expected_value)}", got)]
    return [Mistake(path, f"is wrong: {_shortened(_without_value(str(error.message), got), 200)}", got)]


def _from_branches(path: Path, got: Any, branches: Any, message: str) -> list[Mistake]:
    """A choice of schemas: what each wants of the value itself; what is wrong inside one of them proves nothing."""
    each = [[mistake for error in branch for mistake in _from_json_schema(error)] for branch in branches]
    inner = [mistake for branch in each for mistake in branch]
    readings = _schema_readings(branches)
    choice = Choice(path, readings) if readings else None
    here = [mistake for mistake in inner if mistake.path == path]
    if here and all(mistake.wants for mistake in here):
        return [replace(here[0], choice=choice), *here[1:]]
    if len(inner) == 1:
        return inner
    wants = {mistake.expected for mistake in inner}
    expected = "fits none of the forms it may have" + (
        f" ({_shortened('; '.join(sorted(wants)), 160)})" if wants else ""
    )
    unsure = [Mistake(m.path, m.expected, m.got, m.wants, sure=False) for m in here]
    return [Mistake(path, expected, got, choice=choice), *unsure]


def _schema_readings(branches: Any) -> Readings:
    return _fewest(_together([_error_readings(error) for error in branch]) for branch in branches)


def _error_readings(error: Any) -> Readings:
    if error.instance is None:
        return (frozenset({tuple(error.instance_path)}),)
    branches = getattr(error.kind, "context", None) if error.kind.name in {"anyOf", "oneOf"} else None
    return _schema_readings(branches) if branches else ()


def _without_value(message: str, got: Any) -> str:
    for shown in (json.dumps(got) if isinstance(got, str | int | float) else "", repr(got)):
        if shown and message.startswith(shown):
            return "the value" + message[len(shown) :]
    return message


def _listed(values: Sequence[Any]) -> str:
    shown = ", ".join(show(value) for value in values[:20])
    more = f", … ({len(values)} in all)" if len(values) > 20 else ""
    return _shortened(shown, 240) + more


def show(value: Any, limit: int = 60) -> str:
    """`value` as short JSON."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
    return _shortened(text, limit)


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"


def _brief(text: str, share: int = 1) -> str:
    """`text` in the words and characters that a mistake may take, or in one of so many shares of them."""
    words, limit = _MOST_WORDS // share, _MOST_CHARACTERS // share
    for place, word in enumerate(_WORD.finditer(text[: limit + 1])):
        if place == words:
            return f"{text[: word.start()].rstrip()}…"
    return _shortened(text, limit)


def kind_of(value: Any) -> str:
    """The JSON type of `value`."""
    if value is None:
        return "null"
    for python, name in (
        (bool, "boolean"),
        (int, "integer"),
        (float, "number"),
        (str, "string"),
        (Mapping, "object"),
        (list, "array"),
    ):
        if isinstance(value, python):
            return name
    return type(value).__name__


def path_text(path: Path) -> str:
    """`items[3].price`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else str(part))
    return _shortened(text, 80) or "the arguments"


def explain(name: str, mistakes: Sequence[Mistake], properties: Mapping[str, Any]) -> str:
    """The text for the model: which parameter, what came, what is expected, and that nothing was run.

    `properties` are the schemas of the parameters that the model may fill, by name.
    """
    groups: dict[Path, list[Mistake]] = {}
    for mistake in mistakes:
        groups.setdefault(mistake.path, []).append(mistake)
    lines = [_line(path, group, properties) for path, group in list(groups.items())[:5]]
    if len(groups) > 5:
        lines.append(f"{len(groups) - 5} more mistakes")
    return f"Invalid arguments for {name}: {'; '.join(lines)}. Nothing was run: correct this and call again."


def _line(path: Path, group: Sequence[Mistake], properties: Mapping[str, Any]) -> str:
    first = group[0]
    place = _brief(path_text(path), 2)
    if first.kind == "unknown":
        return _unknown(path, list(properties))
    if first.kind == "missing":
        node = properties.get(str(path[0])) if len(path) == 1 else None
        return f"{place!r} is required and was not given{_brief(_wanted(node))}"
    got = "" if first.got is _NO_VALUE else f", got {_brief(_came(first.got), 2)}"
    return f"{place!r} {_expected(group)}{got}"


def _expected(group: Sequence[Mistake]) -> str:
    """What all mistakes of one place together want, each in its share."""
    texts = list(dict.fromkeys(mistake.expected for mistake in group))[:4]
    first, *more = (_brief(text, len(texts)) for text in texts)
    return " or ".join([first, *(text.removeprefix("must be ").removeprefix("must ") for text in more)])


def _came(got: Any) -> str:
    return show(got) if got is None or isinstance(got, bool) else f"{kind_of(got)} {show(got)}"


def _wanted(node: Any) -> str:
    """What a parameter's schema says in few words."""
    if not isinstance(node, Mapping):
        return ""
    if isinstance(node.get("enum"), list):
        return f": one of {_listed(node['enum'])}"
    kind = node.get("type")
    return f": {_ARTICLES.get(kind, kind)}" if isinstance(kind, str) else ""


def _unknown(path: Path, known: Sequence[str]) -> str:
    place = _brief(path_text(path), 2)
    if len(path) > 1:
        return f"{place!r} is not known there"
    near = nearest(str(path[0]), known)
    if near:
        return f"{place!r} is not a parameter (did you mean {_brief(near[0])!r}?)"
    names = ", ".join(map(repr, known[:12])) or "none"
    return f"{place!r} is not a parameter; the parameters are: {_brief(names)}"


def nearest(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """The known names that look most like `name`, best first."""
    by_folded = {item.casefold().replace("-", "_"): item for item in known}
    folded = name.casefold().replace("-", "_")
    found = difflib.get_close_matches(folded[:200], by_folded, n=most, cutoff=0.5)
    inside = [item for item in by_folded if item not in found and (item in folded or folded in item) and len(item) > 2]
    return [by_folded[item] for item in [*found, *inside][:most]]
