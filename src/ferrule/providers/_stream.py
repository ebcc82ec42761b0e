"""What the streams of the provider modules share: fragments that are joined once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ferrule.core.content import to_text
from ferrule.core.jsontext import Malformed, loads
from ferrule.providers._read import plain


def joined(fragments: Sequence[str]) -> str:
    """The text whose fragments these are; a character that was cut in two is whole again."""
    text = "".join(fragments)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    return text


def fragment(value: Any) -> str:
    """A fragment as text; nothing for null."""
    return value if isinstance(value, str) else "" if value is None else to_text(plain(value))


def as_object(text: Any) -> Any:
    """The object that `text` is the JSON of; `text` itself where it is none, or none that can be trusted."""
    if not isinstance(text, str):
        return text
    try:
        found = loads(text)
    except Malformed:
        return text
    return found if isinstance(found, dict) else text


def place(value: Any) -> int | None:
    """`value` where it can be an index."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def merged(whole: dict[str, Any], delta: Mapping[str, Any], fixed: frozenset[str] = frozenset()) -> None:
    """Adds a delta to what is there: texts are continued (but those of `fixed`), lists are, by the `index` of their
    items where these have one; null says nothing, and anything else is the newer value.

    Fragments of a text are kept in a list until `settled`, so that a long one is joined once.
    """
    for key, value in delta.items():
        if value is None:
            whole.setdefault(key, None)
        elif isinstance(value, str) and key not in fixed:
            kept = whole.get(key)
            if isinstance(kept, _Texts):
                kept.append(value)
            else:
                whole[key] = _Texts([value])
        elif isinstance(value, Mapping):
            inner = whole.get(key)
            if not isinstance(inner, dict):
                inner = whole[key] = {}
            merged(inner, value, _FIXED)
        elif isinstance(value, list):
            _extend(whole, key, value)
        else:
            whole[key] = value


class _Texts(list[str]):
    """Fragments of one text."""


_FIXED = frozenset({"id", "type", "format", "role", "name"})


def _extend(whole: dict[str, Any], key: str, items: list[Any]) -> None:
    kept = whole.get(key)
    if not isinstance(kept, _Items):
        kept = whole[key] = _Items()
    for item in items:
        at = place(item.get("index")) if isinstance(item, Mapping) else None
        if at is None:
            kept.append({} if isinstance(item, Mapping) else item)
        elif at not in kept.places:
            kept.places[at] = len(kept)
            kept.append({})
        if isinstance(item, Mapping):
            merged(kept[-1 if at is None else kept.places[at]], item, _FIXED)


class _Items(list[Any]):
    """Items of one list, and where those with an index stand."""

    def __init__(self) -> None:
        self.places: dict[int, int] = {}


def settled(value: Any) -> Any:
    """What `merged` has gathered, as plain data."""
    if isinstance(value, _Texts):
        return joined(value)
    if isinstance(value, dict):
        return {key: settled(item) for key, item in value.items()}
    return [settled(item) for item in value] if isinstance(value, _Items) else value
