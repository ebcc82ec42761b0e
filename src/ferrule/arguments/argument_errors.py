"""What is wrong with arguments: the same few facts from Pydantic's errors and from JSON Schema's, and the text for the
model that is made of them."""

from __future__ import annotations

import json
import re
from ast import literal_eval
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from pydantic_core import ErrorDetails, ValidationError

from ferrule.arguments.closing import CHOICES
from ferrule.arguments.names import Names
from ferrule.values.frozen import JsonObject
from ferrule.values.json_text import kind_of
from ferrule.values.masking import without_credentials

Path = tuple[str | int, ...]
_Label = tuple[Path, str]

_WANTS = {
    "int_type": "integer",
    "float_type": "number",
    "bool_type": "boolean",
    **dict.fromkeys(("list_type", "tuple_type", "set_type", "frozen_set_type", "iterable_type"), "array"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type", "dataclass_type"), "object"),
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
_NO_VALUE = object()
_KEY = "[key]"
"""What Pydantic calls the place of a key that is wrong."""

_SHOULD = re.compile(r"(Input|String|List|Value|Tuple|Set|Data) should ")
_MEMBER = re.compile(r"<[\w.]+: (?P<value>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|-?[\d.]+)>")
"""A member of an enum, as Python shows it."""
MOST_ERRORS = 20_000
"""That are looked at, of values of about as many: each takes some hundredths of a millisecond."""
_BRIEF = 60
"""Characters of the place of a value and of what came; of what is wanted there may be three times as many."""


class ArgumentError(NamedTuple):
    """One thing that is wrong.

    Attributes:
        path: Where, from the top of the arguments.
        expected: What would be right, as words that follow the parameter's name.
        got: What came; `NO_VALUE` where nothing did or where it is no use to say.
        wants: The JSON type that is wanted here, where that is what is wrong.
        choices: The JSON values that may stand here, if there are only so many.
        kind: `"missing"`, `"unknown"` or `"wrong"`.
        sure: Whether `wants` and `choices` are the only reading; not inside one branch of several.
    """

    path: Path
    expected: str
    got: object = _NO_VALUE
    wants: str | None = None
    kind: str = "wrong"
    sure: bool = True
    choices: Sequence[Any] = ()


class ArgumentErrors(Exception):
    """The arguments do not fit."""

    def __init__(self, errors: Sequence[ArgumentError]) -> None:
        super().__init__(errors)
        self.errors = list(errors)


def from_pydantic(error: ValidationError, value: object) -> list[ArgumentError]:
    """Pydantic's errors, at most `MOST_ERRORS`; `value` is the JSON that was validated, to tell keys from the labels of
    unions, and to show what came: each error would have a copy."""
    errors = error.errors(include_url=False, include_input=False)[:MOST_ERRORS]
    places = [_place(item["loc"], value, item["type"] in _MISSING) for item in errors]
    branches: dict[Path, set[str]] = {}
    for _, labels, _ in places:
        for where, label in labels:
            branches.setdefault(where, set()).add(label)
    return [
        _from_pydantic(
            item, path, got, not labels or all(len(branches[at]) == 1 for at, _ in labels if len(at) < len(path))
        )
        for item, (path, labels, got) in zip(errors, places, strict=True)
    ]


def _place(loc: Iterable[str | int], value: object, missing: bool) -> tuple[Path, list[_Label], object]:
    """The path within `value`, the labels that Pydantic put between its parts, and what is there."""
    parts = tuple(loc)
    if len(parts) == 1 and isinstance(value, dict) and (parts[0] in value or missing):
        return parts, [], value.get(parts[0])
    path: list[str | int] = []
    labels: list[_Label] = []
    for position, part in enumerate(parts):
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        elif missing and position == len(parts) - 1:
            value = None
        else:
            labels.append((tuple(path), str(part)))
            continue
        path.append(part)
    got = path[-1] if path and labels and labels[-1][1] == _KEY else _NO_VALUE if value is None and not path else value
    return tuple(path), labels, got


def _from_pydantic(item: ErrorDetails, path: Path, got: object, sure: bool) -> ArgumentError:
    kind = item["type"]
    if kind in _MISSING:
        return ArgumentError(path, "is required", kind="missing")
    if kind in {"extra_forbidden", "unexpected_keyword_argument"}:
        return ArgumentError(path, "is not known", got=got, kind="unknown")
    if kind == "union_tag_invalid" and isinstance(got, dict) and (tags := _read_tags(item["ctx"]["expected_tags"])):
        for key in [one.strip("'") for one in item["ctx"]["discriminator"].split(" | ")]:
            if key in got and got[key] not in tags:
                expected = f"must be {' or '.join(map(repr, tags))}"
                return ArgumentError((*path, key), expected, got[key], sure=sure, choices=tags)
    choices = item.get("ctx", {}).get(CHOICES, ())
    return ArgumentError(path, _expectation(item["msg"]), got=got, wants=_WANTS.get(kind), sure=sure, choices=choices)


def _read_tags(text: str) -> list[Any]:
    """Return the tags of a union as Pydantic lists them, and for an enum their values. None if one is no JSON value."""
    try:
        return list(literal_eval("[" + _MEMBER.sub(r"\g<value>", text) + "]"))
    except (ValueError, SyntaxError):
        return []


@lru_cache(256)
def _expectation(message: str) -> str:
    """What Pydantic's message says would be right: most are its own, and come again."""
    message = message.removeprefix("Value error, ").removeprefix("Assertion failed, ")
    message = without_credentials(message.partition(" following the rules at http")[0])
    should = _SHOULD.match(message)
    if should is None:
        return f"is wrong: {_shortened(message, 200)}"
    return f"must {message[should.end() :].strip()}"


def from_json_schema(errors: Iterable[Any]) -> list[ArgumentError]:
    """The errors of `jsonschema_rs` as argument errors."""
    return [one for error in errors for one in _from_json_schema(error)]


def _from_json_schema(error: Any) -> list[ArgumentError]:
    path: Path = tuple(error.instance_path)
    kind, got = error.kind, error.instance
    name = kind.name
    if name == "required":
        return [ArgumentError((*path, kind.property), "is required", kind="missing")]
    if name in {"additionalProperties", "unevaluatedProperties"} and hasattr(kind, "unexpected"):
        return [
            ArgumentError((*path, key), "is not known", got.get(key) if isinstance(got, dict) else None, kind="unknown")
            for key in kind.unexpected
        ]
    if name == "type":
        expected = f"must be {' or '.join(_ARTICLES.get(want, want) for want in kind.types)}"
        return [ArgumentError(path, expected, got, wants=want) for want in kind.types]
    if name in {"anyOf", "oneOf"} and getattr(kind, "context", None):
        return _from_branches(path, got, kind.context)
    if name == "enum":
        return [ArgumentError(path, f"must be one of {_listed(kind.options)}", got, choices=kind.options)]
    if name == "const":
        return [ArgumentError(path, f"must be {show(kind.expected_value)}", got, choices=[kind.expected_value])]
    return [ArgumentError(path, f"is wrong: {_shortened(str(error.message), 200)}", got)]


def _from_branches(path: Path, got: object, branches: Any) -> list[ArgumentError]:
    """A choice of schemas: what each wants of the value itself; what is wrong inside one of them proves nothing."""
    inner = [one for branch in branches for error in branch for one in _from_json_schema(error)]
    here = [one for one in inner if one.path == path]
    if here and all(one.wants or one.choices for one in here):
        return here
    below = [(path_text(one.path[len(path) :]) if len(one.path) > len(path) else "", one.expected) for one in inner]
    wanted = _shortened("; ".join(sorted({f"{name!r} {text}" if name else text for name, text in below})), 160)
    expected = "fits none of the forms it may have" + (f" ({wanted})" if wanted else "")
    return [ArgumentError(path, expected, got), *(one._replace(sure=False) for one in here)]


def _listed(values: Sequence[Any]) -> str:
    shown = ", ".join(show(value) for value in values[:20])
    more = f", … ({len(values)} in all)" if len(values) > 20 else ""
    return _shortened(shown, 2 * _BRIEF) + more


_encode_shown = json.JSONEncoder(ensure_ascii=False, default=str).encode
"""`json.dumps` makes an encoder for each value."""


def show(value: object, limit: int = _BRIEF) -> str:
    """`value` as short JSON."""
    return _shortened(_encode_shown(value), limit)


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"


def path_text(path: Path) -> str:
    """`items[3].price`."""
    text = ""
    if len(path) == 1 and type(path[0]) is str and len(path[0]) <= _BRIEF:  # most are
        return path[0] or "the arguments"
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else str(part))
    return _shortened(text, _BRIEF) or "the arguments"


def explain(name: str, errors: Sequence[ArgumentError], properties: JsonObject) -> str:
    """The text for the model: which parameter, what came, what is expected, and that nothing was run.

    `properties` are the schemas of the parameters that the model may fill, by name.
    """
    groups: dict[Path, list[ArgumentError]] = {}
    for error in errors:
        groups.setdefault(error.path, []).append(error)
    lines = [_line(path, group, properties) for path, group in list(groups.items())[:5]]
    if len(groups) > 5:
        lines.append(f"{len(groups) - 5} more mistakes")
    return f"Invalid arguments for {name}: {'; '.join(lines)}. Nothing was run: correct this and call again."


def _line(path: Path, group: Sequence[ArgumentError], properties: JsonObject) -> str:
    first = group[0]
    place = path_text(path)
    if first.kind == "unknown":
        return _unknown(path, tuple(properties))
    if first.kind == "missing":
        node = properties.get(str(path[0])) if len(path) == 1 else None
        return f"{place!r} is required and was not given{_wanted(node)}"
    got = "" if first.got is _NO_VALUE else f", got {_came(first.got)}"
    return f"{place!r} {_expected(group)}{got}"


def _expected(group: Sequence[ArgumentError]) -> str:
    """What all errors of one place together want, each in its share."""
    if len(group) == 1:
        return _shortened(group[0].expected, 3 * _BRIEF)
    texts = list(dict.fromkeys(error.expected for error in group))[:4]
    first, *more = (_shortened(text, 3 * _BRIEF // len(texts)) for text in texts)
    return " or ".join([first, *(text.removeprefix("must be ").removeprefix("must ") for text in more)])


def _came(got: object) -> str:
    return show(got) if got is None or isinstance(got, bool) else f"{kind_of(got)} {show(got)}"


def _wanted(node: object) -> str:
    """What a parameter's schema says in few words."""
    if not isinstance(node, Mapping):
        return ""
    if isinstance(node.get("enum"), list):
        return f": one of {_listed(node['enum'])}"
    kind = node.get("type")
    return f": {_ARTICLES.get(kind, kind)}" if isinstance(kind, str) else ""


_names_among = lru_cache(64)(Names)


def _unknown(path: Path, known: tuple[str, ...]) -> str:
    place = path_text(path)
    if len(path) > 1:
        return f"{place!r} is not known there"
    near = _names_among(known).nearest(str(path[0]))
    if near:
        return f"{place!r} is not a parameter (did you mean {_shortened(near[0], _BRIEF)!r}?)"
    names = ", ".join(map(repr, known[:12])) or "none"
    return f"{place!r} is not a parameter; the parameters are: {_shortened(names, 2 * _BRIEF)}"
