"""Shared steps of guards for arguments: check options, read the schema at a place, quote a value for the model."""

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
"""Quotes and blanks. They do not count at the ends of a text."""
_COMBINING_KEYWORDS = frozenset({"$ref", "anyOf", "oneOf", "allOf"})


def read_names(guard: str, **options: Iterable[str]) -> list[frozenset[str]]:
    """Return the parameter names passed to a guard, one set for each option.

    Raises:
        DefinitionError: A value is not a name, or a name is in two options.
    """
    sets: dict[str, frozenset[str]] = {}
    for option, value in options.items():
        names: tuple[Any, ...] = () if isinstance(value, str) else tuple(value)
        if isinstance(value, str) or not all(isinstance(name, str) and name for name in names):
            raise DefinitionError(f"{guard}({option}=…) takes names such as ('target', 'place'), not {value!r}")
        for other_option, others in sets.items():
            if shared := others & set(names):
                raise DefinitionError(f"{guard}(…): {sorted(shared)} cannot be in both {other_option!r} and {option!r}")
        sets[option] = frozenset(names)
    return list(sets.values())


def declares_text(forms: Iterable[Schema]) -> bool:
    """Return whether the schema declares the kind of text, by `contentMediaType` or base64, in every form of text."""
    forms = [form for form in forms if not _COMBINING_KEYWORDS & form.keys()]
    text_forms = [form for form in forms if "string" in form.get("type", "string")]
    return bool(text_forms) and all(
        "contentMediaType" in form or "base64" in (form.get("contentEncoding"), form.get("format"))
        for form in text_forms
    )


def has_listed_values(schema: Schema, place: Place) -> bool:
    """Return whether a tool's schema lists the values for a place. Such a place holds no free text."""
    forms = [form for form in find_place_forms(schema, place) if not _COMBINING_KEYWORDS & form.keys()]
    return bool(forms) and all("enum" in form or "const" in form for form in forms)


def find_place_forms(schema: Schema, place: Place) -> list[Schema]:
    """Return the schemas that a tool's schema has for a place, one for each form of the value."""
    nodes: list[Any] = [schema]
    for part in place:
        forms = find_forms(nodes, schema)
        inner = (property_schemas(form, part) if isinstance(part, str) else item_schemas(form, part) for form in forms)
        nodes = [node for schemas in inner for node in schemas]
    return find_forms(nodes, schema)


def format_argument(place: Place, text: str) -> str:
    """Return `place='text'`, shortened."""
    return f"{format_place(place)}={text[:QUOTE_LENGTH]!r}"


def format_place(place: Place) -> str:
    """Return `a.b[0]`, shortened, in one line."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= QUOTE_LENGTH else f"{text[:QUOTE_LENGTH]}…"


def suggest_exemption(guard: str, place: Place, unnamed: Collection[Place]) -> str:
    """Return a hint for the program: how to exempt a text from the guard.

    The hint has the nearest name in the place with an entry in the schema.
    """
    for end in range(len(place), 0, -1):
        if isinstance(place[end - 1], str) and place[:end] not in unnamed:
            return f" (if it is not: {guard}(…, text=({place[end - 1]!r},)))"
    return f" (if it is not: name it in the schema, and in {guard}(…, text=…))"
