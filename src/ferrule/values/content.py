"""Values become content: blocks that a model gets, always valid JSON and UTF-8, and bounded as a whole."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, TypeAlias, TypeVar

from pydantic_core import from_json, to_json, to_jsonable_python


@dataclass(frozen=True, slots=True)
class Text:
    """A block of text; what UTF-8 cannot hold in it becomes U+FFFD."""

    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise TypeError(f"Text holds a string, not {self.text!r}")
        if not self.text.isascii():
            object.__setattr__(self, "text", clean(self.text))


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

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise TypeError(f"Media of the kind {self.kind!r}: it may be {', '.join(_KINDS)}")
        if not (self.data is None or isinstance(self.data, bytes)):
            raise TypeError(f"the data of Media are bytes or None, not {type(self.data).__name__}")
        if not _is_mime_type(self.mime_type):
            raise TypeError(f"Media whose mime_type is {str(self.mime_type)[:100]!r}; write image/png")
        for name in ("uri", "name"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else clean(str(value)))


def _is_mime_type(text: object) -> bool:
    return isinstance(text, str) and len(text) <= _LONGEST_MIME_TYPE and _MIME_TYPE.fullmatch(text) is not None


Block: TypeAlias = Text | Media

# What providers show of media must not be a place for anything else, RFC 6838.
_KINDS = ("image", "audio", "file", "resource")
_MIME_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(;[\x20-\x7e]*)?", re.ASCII)
_LONGEST_MIME_TYPE = 255


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
        TypeError: for what is no `Text` and no `Media`.
    """
    found = tuple(blocks)
    for block in found:
        if not isinstance(block, Text | Media):
            raise TypeError(f"content holds {block!r}: it takes Text('…') and Media(kind, data, mime_type)")
    return found


def render(value: object) -> tuple[Block, ...]:
    """The blocks for what a handler returned: text as it is, blocks as they are, all else as JSON."""
    if isinstance(value, str):
        return (Text(str(value)),)
    if isinstance(value, Text | Media):
        return (value,)
    if isinstance(value, list | tuple) and value and all(isinstance(item, Text | Media) for item in value):
        return tuple(value)
    if isinstance(value, bytes | bytearray):
        return _render_bytes(bytes(value))
    return (Text(to_text(value)),)


def _render_bytes(value: bytes) -> tuple[Block, ...]:
    try:
        return (Text(value.decode()),)
    except UnicodeDecodeError:
        return (Media("file", value, "application/octet-stream"),)


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


_JSON_START = re.compile(r"\s*[\[{\"\-0-9tfn]")


def cut(text: str, limit: int) -> str:
    """`text` in at most `limit` characters; what was JSON is JSON still, where Pydantic reads it: not what
    nests more than 200 deep, or holds half of a surrogate pair or a number of more than 4,300 digits."""
    if len(text) <= limit:
        return text
    if _JSON_START.match(text):
        try:
            return _fit(from_json(text, allow_inf_nan=False), limit, _DEPTH)
        except (TypeError, ValueError):
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
    return to_json(value, inf_nan_mode="strings").decode()


def _fit(value: object, limit: int, depth: int) -> str:
    """JSON text of `value` in at most `limit` characters: whole, or its first parts with a word on the rest."""
    text = _dumps(value)
    if len(text) <= limit:
        return text
    if isinstance(value, str):
        return _fit_string(value, limit)
    if isinstance(value, dict | list):
        return _fit_parts(value, limit, depth) if depth else _least(limit)
    return _fit_string(text, limit)


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


def _fit_parts(value: dict[str, object] | list[object], limit: int, depth: int) -> str:
    """The first items, each in its share, and how many more there are."""
    if isinstance(value, dict):
        note = "[cut]"
        while note in value:
            note = f"[{note}]"
        brackets, rest = "{}", f'"{note}":"%d more"'
        parts = [(f"{_dumps(key)}:", item) for key, item in value.items()]
    else:
        brackets, rest = "[]", '"[cut: %d more]"'
        parts = [("", item) for item in value]
    room = limit - len(brackets) - len(rest % len(parts))
    if room < 0:
        return _least(limit)
    sized = [((key, item), len(key) + len(_dumps(item)) + 1) for key, item in parts]
    shown: list[str] = []
    for (key, item), share in _shared(sized, room):
        left = share - len(key) - 1
        if left < 1:  # a key as long as its share
            break
        shown.append(key + _fit(item, left, depth - 1))
    if more := len(parts) - len(shown):
        shown.append(rest % more)
    return brackets[0] + ",".join(shown) + brackets[1]


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
