"""Values become content: blocks that a model gets, always valid JSON and UTF-8, and bounded as a whole."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal, TypeAlias, TypeVar

from pydantic_core import to_jsonable_python

from ferrule.values.json_text import refuse_constant


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
        mime_type: For instance `image/png`; in ASCII, at most 255 characters.
        uri: Where it came from or can be read.
        name: A file name.
    """

    kind: Literal["image", "audio", "file", "resource"]
    data: bytes | None
    mime_type: str
    uri: str | None = None
    name: str | None = None


Block: TypeAlias = Text | Media

# What providers show of media must not be a place for anything else, RFC 6838.
_KINDS = ("image", "audio", "file", "resource")
_MIME_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(;[\x20-\x7e]*)?", re.ASCII)
_LONGEST_MIME_TYPE = 255
_ANY_TYPE = "application/octet-stream"


def clean(text: str) -> str:
    """`text` as UTF-8 can hold it: lone surrogates become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def jsonable(value: object) -> Any:
    """`value` as plain JSON data that any parser reads: what has no JSON form becomes text. Never raises."""
    try:
        return _clean_json(to_jsonable_python(value, inf_nan_mode="constants", bytes_mode="base64", fallback=_foreign))
    except Exception:  # a lazy mapping or an iterator of the author's own may raise anything
        try:
            return _clean_json(value)
        except Exception:
            return f"<{type(value).__name__}>"


def _foreign(value: object) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__}>"


def _clean_json(value: object, above: tuple[int, ...] = ()) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return clean(str(value))
    if isinstance(value, int):
        return _writable_int(int(value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if len(above) > 100 or id(value) in above:  # nested without end
        return "…"
    if isinstance(value, Mapping):
        inside = (*above, id(value))
        return {clean(str(key)): _clean_json(item, inside) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        inside = (*above, id(value))
        return [_clean_json(item, inside) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return clean(str(_foreign(value)))


def _writable_int(value: int) -> int | str:
    try:
        str(value)
    except ValueError:  # CPython's limit on digits, sys.set_int_max_str_digits
        return hex(value)
    return value


def to_text(value: object) -> str:
    """JSON text of `value`, whatever it is."""
    return json.dumps(jsonable(value), ensure_ascii=False, allow_nan=False)


def checked(blocks: Iterable[Any]) -> tuple[Block, ...]:
    """The blocks of a result that a handler or a middleware made.

    Raises:
        TypeError: for what is no `Text` and no `Media`, and for what their fields cannot be.
    """
    found = tuple(blocks)
    for block in found:
        if isinstance(block, Text) and isinstance(block.text, str):
            continue
        if not isinstance(block, Media) or not (block.data is None or isinstance(block.data, bytes)):
            raise TypeError(f"content holds {block!r}: it takes Text('…') and Media(kind, data, mime_type)")
        if block.kind not in _KINDS:
            raise TypeError(f"content holds media of the kind {block.kind!r}; it takes {', '.join(_KINDS)}")
        if not _is_mime_type(block.mime_type):
            raise TypeError(f"content holds media whose mime_type is {str(block.mime_type)[:100]!r}; write image/png")
    return tuple(map(_clean_block, found))


def _clean_block(block: Block) -> Block:
    if isinstance(block, Text):
        return block if block.text.isascii() else Text(clean(block.text))
    uri = None if block.uri is None else clean(str(block.uri))
    name = None if block.name is None else clean(str(block.name))
    return Media(block.kind, block.data, block.mime_type, uri, name)


def _is_mime_type(text: object) -> bool:
    return isinstance(text, str) and len(text) <= _LONGEST_MIME_TYPE and _MIME_TYPE.fullmatch(text) is not None


def _plain_media(media: Media) -> Media:
    """`media`, as a file or as bytes where its kind or its type is none."""
    if media.kind in _KINDS and _is_mime_type(media.mime_type):
        return media
    kind = media.kind if media.kind in _KINDS else "file"
    mime_type = media.mime_type if _is_mime_type(media.mime_type) else _ANY_TYPE
    return replace(media, kind=kind, mime_type=mime_type)


def render(value: object) -> tuple[Block, ...]:
    """The blocks for what a handler returned: text as it is, blocks as they are, all else as JSON."""
    if isinstance(value, str):
        return (Text(clean(str(value))),)
    if isinstance(value, Text):
        return (Text(clean(value.text)),)
    if isinstance(value, Media):
        return (_plain_media(value),)
    if isinstance(value, list | tuple) and value and all(isinstance(item, Text | Media) for item in value):
        return tuple(Text(clean(item.text)) if isinstance(item, Text) else _plain_media(item) for item in value)
    if isinstance(value, bytes | bytearray):
        return _render_bytes(bytes(value))
    return (Text(to_text(value)),)


def _render_bytes(value: bytes) -> tuple[Block, ...]:
    try:
        return (Text(value.decode()),)
    except UnicodeDecodeError:
        return (Media("file", value, _ANY_TYPE),)


_BLOCK = 32
"""What a block costs beyond what it holds: its place in the message, which the first one has anyhow."""


def size(blocks: Iterable[Block]) -> int:
    """What the blocks cost a model's context, in characters: media as base64, with their kinds, types, names and
    addresses; and 32 for every block after the first."""
    costs = [_BLOCK + (len(b.text) if isinstance(b, Text) else _media_size(b)) for b in blocks]
    return max(sum(costs) - _BLOCK, 0)


def _media_size(media: Media) -> int:
    told = len(media.kind) + len(media.mime_type) + len(media.uri or "") + len(media.name or "")
    return -(-len(media.data or b"") // 3) * 4 + told


def bound(blocks: tuple[Block, ...], limit: int) -> tuple[Block, ...]:
    """The blocks in at most `limit` characters altogether, each cut saying so; JSON stays valid JSON."""
    if size(blocks) <= limit:
        return blocks
    kept: list[Block] = []
    reserve = len(_left_out(len(blocks))) + _BLOCK if len(blocks) > 1 else 0
    left = limit - reserve
    for index, block in enumerate(blocks):
        place = _BLOCK if kept else 0
        room = left - place + (reserve if index == len(blocks) - 1 else 0)
        # A cut needs room to say that it is one.
        no_room = room < _WORTH_SHOWING and size((block,)) > room
        if room <= 0 or (kept and no_room):
            kept.append(Text(_left_out(len(blocks) - index)[: max(left + reserve - place, 0)]))
            break
        if isinstance(block, Media) and size((block,)) > room:
            block = Text(f"[{block.kind} of {len(block.data or b'')} bytes left out: the output limit is {limit}]")
        if isinstance(block, Text):
            block = Text(cut(block.text, room))
        left -= place + size((block,))
        kept.append(block)
    return tuple(kept)


def _left_out(blocks: int) -> str:
    return f"[cut: {blocks} more blocks]"


def _int_or_text(text: str) -> int | str:
    # 640 digits are what every setting of sys.set_int_max_str_digits lets through.
    return int(text) if len(text) <= 640 else text


def _float_or_text(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else text


_READER = json.JSONDecoder(parse_int=_int_or_text, parse_float=_float_or_text, parse_constant=refuse_constant)
_JSON_START = re.compile(r"\s*[\[{\"\-0-9tfn]")


def cut(text: str, limit: int) -> str:
    """`text` in at most `limit` characters; what was JSON is JSON still."""
    if len(text) <= limit:
        return text
    if _JSON_START.match(text):
        try:
            return _fit(_READER.decode(text), limit, _DEPTH)
        except (ValueError, RecursionError):
            pass
    return _cut_plain(text, limit)


def _cut_plain(text: str, limit: int) -> str:
    note = f"\n[cut: {len(text)} characters in all]"
    if limit <= len(note):
        return note.strip()[: max(limit, 0)]
    return text[: limit - len(note)] + note


_T = TypeVar("_T")
_DEPTH = 12
_WORTH_SHOWING = 48
_WHOLE_ESCAPES = re.compile(r"(?:[^\\]|\\u.{4}|\\[^u])*", re.DOTALL)


def _dumps(value: object) -> str:
    return clean(json.dumps(value, ensure_ascii=False))


def _fit(value: object, limit: int, depth: int) -> str:
    """JSON text of `value` in at most `limit` characters: whole, or its first parts with a word on the rest."""
    text = _dumps(value)
    if len(text) <= limit:
        return text
    if isinstance(value, str):
        return _fit_string(value, limit)
    if isinstance(value, dict) and depth:
        return _fit_dict(value, limit, depth)
    if isinstance(value, list) and depth:
        return _fit_list(value, limit, depth)
    return _least(limit) if isinstance(value, dict | list) else _fit_string(text, limit)


def _least(limit: int) -> str:
    for least in ('"[cut]"', '""'):
        if len(least) <= limit:
            return least
    return "0"[: max(limit, 0)]


def _fit_string(value: str, limit: int) -> str:
    note = f"[cut: {len(value)} characters in all]"
    room = limit - len(note) - 2
    if room < 0:
        return _least(limit)
    whole = _WHOLE_ESCAPES.match(_dumps(value[:room])[1:-1][:room])
    return f'"{whole.group() if whole else ""}{note}"'


def _fit_list(values: list[object], limit: int, depth: int) -> str:
    room = limit - len(f'["[cut: {len(values)} more]"]')
    if room < 0:
        return _least(limit)
    sized = [(item, len(_dumps(item)) + 2) for item in values]
    shown = [_fit(item, share - 2, depth - 1) for item, share in _shared(sized, room)]
    if more := len(values) - len(shown):
        shown.append(f'"[cut: {more} more]"')
    return f"[{', '.join(shown)}]"


def _fit_dict(values: dict[str, object], limit: int, depth: int) -> str:
    note = "[cut]"
    while note in values:
        note = f"[{note}]"
    room = limit - len(f'{{"{note}": "{len(values)} more"}}')
    if room < 0:
        return _least(limit)
    sized = [((key, item), len(_dumps(key)) + len(_dumps(item)) + 4) for key, item in values.items()]
    shown: dict[str, str] = {}
    for (key, item), share in _shared(sized, room):
        name = _fit(key, max(share // 2, share - 4 - len(_dumps(item))), 0)
        left = share - 4 - len(name)
        if name not in shown and left >= 1:
            shown[name] = _fit(item, left, depth - 1)
    if more := len(values) - len(shown):
        shown[f'"{note}"'] = f'"{more} more"'
    return f"{{{', '.join(f'{name}: {text}' for name, text in shown.items())}}}"


def _shared(sized: list[tuple[_T, int]], room: int) -> list[tuple[_T, int]]:
    """How much of `room` each gets, for as many from the first on as get a share worth showing: what is small gets
    all that it needs, and what is large gets the same as everything else that is."""
    least = max(_WORTH_SHOWING, room // 8)
    used = accumulate(min(size, least) for _, size in sized)
    first = [one for one, total in zip(sized, used, strict=True) if total <= room]
    cap = room
    for place, size in enumerate(sorted(size for _, size in first)):
        cap = room // (len(first) - place)
        if size > cap:
            break
        room -= size
        cap = size
    return [(item, min(size, cap)) for item, size in first]
