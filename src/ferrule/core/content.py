"""Values become content: blocks that a model gets, always valid JSON and UTF-8, and bounded as a whole."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pydantic_core import PydanticSerializationError, to_jsonable_python


@dataclass(frozen=True, slots=True)
class Text:
    """A block of text."""

    text: str


@dataclass(frozen=True, slots=True)
class Media:
    """A block of something else than text.

    Attributes:
        kind: What it is.
        data: The bytes themselves, or `None` where `uri` says where they are.
        mime_type: For instance `image/png`.
        uri: Where it came from or can be read.
        name: A file name.
    """

    kind: Literal["image", "audio", "file", "resource"]
    data: bytes | None
    mime_type: str
    uri: str | None = None
    name: str | None = None


Block: TypeAlias = Text | Media


def clean(text: str) -> str:
    """`text` as UTF-8 can hold it: lone surrogates become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def jsonable(value: Any) -> Any:
    """`value` as plain JSON data that any parser reads: what has no JSON form becomes text. Never raises."""
    try:
        return _clean_json(to_jsonable_python(value, inf_nan_mode="constants", bytes_mode="base64", fallback=_foreign))
    except (PydanticSerializationError, UnicodeError, ValueError, TypeError, RecursionError):
        return _clean_json(value)


def _foreign(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__}>"


def _clean_json(value: Any, depth: int = 0) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return clean(str(value))
    if isinstance(value, int):
        return _writable_int(int(value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if depth > 100:
        return "…"
    if isinstance(value, Mapping):
        return {clean(str(key)): _clean_json(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean_json(item, depth + 1) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return clean(str(_foreign(value)))


def _writable_int(value: int) -> int | str:
    try:
        str(value)
    except ValueError:  # CPython's limit on digits, sys.set_int_max_str_digits
        return hex(value)
    return value


def to_text(value: Any) -> str:
    """JSON text of `value`, whatever it is."""
    return json.dumps(jsonable(value), ensure_ascii=False, allow_nan=False)


def render(value: Any) -> tuple[Block, ...]:
    """The blocks for what a handler returned: text as it is, blocks as they are, all else as JSON."""
    if isinstance(value, str):
        return (Text(clean(str(value))),)
    if isinstance(value, Text):
        return (Text(clean(value.text)),)
    if isinstance(value, Media):
        return (value,)
    if isinstance(value, list | tuple) and value and all(isinstance(item, Text | Media) for item in value):
        return tuple(Text(clean(item.text)) if isinstance(item, Text) else item for item in value)
    if isinstance(value, bytes | bytearray):
        return _render_bytes(bytes(value))
    return (Text(to_text(value)),)


def _render_bytes(value: bytes) -> tuple[Block, ...]:
    try:
        return (Text(value.decode()),)
    except UnicodeDecodeError:
        return (Media("file", value, "application/octet-stream"),)


def size(blocks: Iterable[Block]) -> int:
    """What the blocks cost a model's context, in characters (media as base64)."""
    return sum(len(b.text) if isinstance(b, Text) else 4 * len(b.data or b"") // 3 for b in blocks)


def bound(blocks: tuple[Block, ...], limit: int) -> tuple[Block, ...]:
    """The blocks in at most `limit` characters altogether, each cut saying so; JSON stays valid JSON."""
    if size(blocks) <= limit:
        return blocks
    kept: list[Block] = []
    left = limit
    for block in blocks:
        if isinstance(block, Media) and size((block,)) > left:
            block = Text(f"[{block.kind} of {len(block.data or b'')} bytes left out: the output limit is {limit}]")
        if isinstance(block, Text):
            block = Text(cut(block.text, left))
        left -= size((block,))
        kept.append(block)
        if left <= 0:
            break
    return tuple(kept)


def cut(text: str, limit: int) -> str:
    """`text` in at most `limit` characters; what was JSON is JSON still."""
    if len(text) <= limit:
        return text
    if text[:1] in "[{":
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            pass
        else:
            return _cut_json(value, limit)
    return _cut_plain(text, limit)


def _cut_plain(text: str, limit: int) -> str:
    note = f"\n[cut: {len(text)} characters in all]"
    if limit <= len(note):
        return note.strip()[: max(limit, 0)]
    return text[: limit - len(note)] + note


def _cut_json(value: Any, limit: int) -> str:
    """Fewer items and shorter strings, at every depth, until it fits."""
    items, length = 64, max(limit // 2, 16)
    while items or length > 16:
        text = json.dumps(_trim(value, items, length, 12), ensure_ascii=False)
        if len(text) <= limit:
            return text
        items, length = items // 2, max(length // 2, 16)
    for least in (json.dumps("[cut]"), '""'):
        if len(least) <= limit:
            return least
    return "0"[: max(limit, 0)]


def _trim(value: Any, items: int, length: int, depth: int) -> Any:
    if isinstance(value, str) and len(value) > length:
        return f"{value[:length]}[cut: {len(value)} characters in all]"
    if isinstance(value, dict | list) and depth == 0:
        return "[cut]"
    if isinstance(value, dict):
        kept = {k[:length]: _trim(value[k], items, length, depth - 1) for k in list(value)[:items]}
        if len(value) > items:
            kept["[cut]"] = f"{len(value) - items} more"
        return kept
    if isinstance(value, list):
        kept_items = [_trim(item, items, length, depth - 1) for item in value[:items]]
        return [*kept_items, f"[cut: {len(value) - items} more]"] if len(value) > items else kept_items
    return value
