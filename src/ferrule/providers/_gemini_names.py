"""The two spellings of Gemini's fields: the JSON's (`functionCall`) and the SDK's (`function_call`)."""

from __future__ import annotations

import re
from typing import Any

from ferrule.providers._wire import get_fields

# google-genai's FunctionDeclaration.
GEMINI_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}")


def read_either(value: Any, name: str, to_camel_case: str) -> Any:
    """Return the value under the JSON's name or under the SDK's."""
    seen = get_fields(value)
    found = seen.get(to_camel_case)
    return seen.get(name) if found is None else found


def to_camel_case(name: str) -> str:
    """Return the JSON's name of a field."""
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest) if rest and first else name
