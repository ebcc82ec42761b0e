"""Clean text from a server or a document: remove characters that are invisible to people and legible for models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from ferrule.security.characters import disarm, remove_hidden

_TEXT_KEYWORDS = ("title", "description", "$comment")
"""The keywords of a schema with text for people and models. They decide nothing."""
_VALUE_KEYWORDS = ("const", "enum", "default", "examples")
"""Keywords with values. A keyword inside a value has no meaning."""
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


def to_one_line(text: str, max_length: int) -> str:
    """Return the beginning of the text, at most `max_length` characters, in one line and without hidden characters."""
    return " ".join(remove_hidden(text[:max_length])[0].split())


def has_hidden(text: str) -> bool:
    return remove_hidden(text)[1] > 0


def clean_schema(schema: Any, max_length: int) -> tuple[Any, int]:
    """Return the schema with cleaned titles and descriptions, and the number of characters removed from them.

    They have no hidden characters and at most `max_length` characters each. The result accepts the same values as the
    original.

    Raises:
        ValueError: There are hidden characters anywhere else, in a place that must not change.
    """
    if isinstance(schema, list):
        parts = [clean_schema(item, max_length) for item in schema]
        return [part for part, _ in parts], sum(count for _, count in parts)
    if not isinstance(schema, Mapping):
        _check_value(schema)
        return schema, 0
    cleaned: dict[str, Any] = {}
    removed = 0
    for key, value in schema.items():
        _check_value(key)
        if key in _TEXT_KEYWORDS and isinstance(value, str):
            text, count = remove_hidden(value)
            text = disarm(text)
            cleaned[key], removed = text[:max_length], removed + count + max(len(text) - max_length, 0)
        elif key in _BY_NAME and isinstance(value, Mapping):
            cleaned[key] = {}
            for name, inner in value.items():
                _check_value(name)
                cleaned[key][name], count = clean_schema(inner, max_length)
                removed += count
        elif key in _VALUE_KEYWORDS:
            for text in _iter_texts(value):
                _check_value(text)
            cleaned[key] = value
        else:
            cleaned[key], count = clean_schema(value, max_length)
            removed += count
    return cleaned, removed


def _check_value(value: object) -> None:
    if isinstance(value, str) and has_hidden(value):
        raise ValueError(f"its schema has hidden characters in {ascii(value)[:80]}")


def _iter_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from _iter_texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _iter_texts(item)


def measure_size(value: object, limit: int) -> int:
    """Return the number of characters in a server's data. Counting stops a little above `limit`."""
    size, waiting = 0, [value]
    while waiting and size <= limit:
        value = waiting.pop()
        size += len(value) if isinstance(value, str) else 1
        if isinstance(value, Mapping):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, BaseModel):
            waiting += vars(value).values()
    return size
