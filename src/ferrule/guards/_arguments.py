"""What guards that go through the arguments of a call have in common: names that they are given, the kinds of text that
a schema speaks of, and how a value is quoted to the model."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

from ferrule.errors import DefinitionError
from ferrule.security.schema_walk import Schema, find_forms, item_schemas, property_schemas
from ferrule.values.arguments import Place

QUOTE_LENGTH: Final = 120
QUOTES_AND_BLANKS: Final = "'\"` \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
"""Quotes and blanks, which do not count at the ends of a text."""
_OF_OTHERS = frozenset({"$ref", "anyOf", "oneOf", "allOf"})


def given_names(guard: str, **options: Iterable[str]) -> list[frozenset[str]]:
    """The names of parameters that a guard was given by each of two or more options.

    Raises:
        DefinitionError: where one is no name, or is in two of them.
    """
    found: dict[str, frozenset[str]] = {}
    for option, given in options.items():
        names: tuple[Any, ...] = () if isinstance(given, str) else tuple(given)
        if isinstance(given, str) or not all(isinstance(name, str) and name for name in names):
            raise DefinitionError(f"{guard}({option}=…) takes names such as ('target', 'place'), not {given!r}")
        for before, others in found.items():
            if both := others & set(names):
                raise DefinitionError(f"{guard}(…): {sorted(both)} cannot be in `{before}` and in `{option}`")
        found[option] = frozenset(names)
    return list(found.values())


def says_text(forms: Iterable[Schema]) -> bool:
    """Whether a schema says what kind of text stands somewhere (`contentMediaType`, or base64), in each of the forms
    that the text may have."""
    forms = [form for form in forms if not _OF_OTHERS & form.keys()]
    of_text = [form for form in forms if "string" in form.get("type", "string")]
    told = ("contentMediaType" in form or form.get("contentEncoding") == "base64" for form in of_text)
    return bool(of_text) and all(told)


def lists_values(schema: Schema, place: Place) -> bool:
    """Whether a tool's schema lists the values that may stand at a place, so that it is no free text."""
    forms = [form for form in forms_at(schema, place) if not _OF_OTHERS & form.keys()]
    return bool(forms) and all("enum" in form or "const" in form for form in forms)


def forms_at(schema: Schema, place: Place) -> list[Schema]:
    """What a tool's schema says of a place, in each form that the value may have."""
    nodes: list[Any] = [schema]
    for part in place:
        forms = find_forms(nodes, schema)
        below = (property_schemas(form, part) if isinstance(part, str) else item_schemas(form, part) for form in forms)
        nodes = [node for found in below for node in found]
    return find_forms(nodes, schema)


def quoted_value(place: Place, text: str) -> str:
    """`place='text'`, shortened."""
    return f"{place_text(place)}={text[:QUOTE_LENGTH]!r}"


def place_text(place: Place) -> str:
    """`a.b[0]`, shortened, in one line."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= QUOTE_LENGTH else f"{text[:QUOTE_LENGTH]}…"


def remedy(guard: str, place: Place, unnamed: Collection[Place]) -> str:
    """What the program has to say where a text is not what a guard takes it for: the name nearest to it that the schema
    knows."""
    for end in range(len(place), 0, -1):
        if isinstance(place[end - 1], str) and place[:end] not in unnamed:
            return f" (if it is none: {guard}(…, text=({place[end - 1]!r},)))"
    return f" (if it is none: a schema that names it, and {guard}(…, text=…))"
