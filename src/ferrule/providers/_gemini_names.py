"""The two spellings of Gemini's fields: the JSON's (`functionCall`) and the SDK's (`function_call`)."""

from __future__ import annotations

from typing import Any

from ferrule.providers._read import view


def either(value: Any, name: str, camel: str) -> Any:
    """What stands under the JSON's name or under the SDK's."""
    seen = view(value)
    found = seen.get(camel)
    return seen.get(name) if found is None else found


def camel(name: str) -> str:
    """The JSON's name of a field."""
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest) if rest and first else name
