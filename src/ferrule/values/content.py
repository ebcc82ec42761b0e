"""Values become content: blocks that a model gets, always valid JSON and UTF-8, and bounded as a whole."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any, Literal, TypeAlias, TypeVar, final

from pydantic_core import SchemaSerializer, core_schema, from_json, to_json, to_jsonable_python


@final
@dataclass(frozen=True, slots=True)
class Text:
    """A block of text; what UTF-8 cannot hold in it becomes U+FFFD."""

    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise TypeError(f"Text holds a string, not {self.text!r}")
        if type(self.text) is not str or not self.text.isascii():
            object.__setattr__(self, "text", clean(self.text))


@final
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
        if self.data is not None and type(self.data) is not bytes:
            object.__setattr__(self, "data", memoryview(self.data).tobytes())
        for name in ("kind", "mime_type", "uri", "name"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else clean(str(value)))


def _is_mime_type(text: object) -> bool:
    return isinstance(text, str) and len(text) <= _LONGEST_MIME_TYPE and _MIME_TYPE.fullmatch(text) is not None


Block: TypeAlias = Text | Media
_BLOCK_CLASSES = (Text, Media)

# What providers show of media must not be a place for anything else, RFC 6838.
_KINDS = ("image", "audio", "file", "resource")
_MIME_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(;[\x20-\x7e]*)?", re.ASCII)
_LONGEST_MIME_TYPE = 255


def clean(text: str) -> str:
    """`text` as a plain string that UTF-8 can hold: lone surrogates become U+FFFD, and no method of a class of somebody
    else's is called."""
    if type(text) is not str:
        text = str.__str__(text)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


MOST_VALUES = 1_000_000
MOST_CHARACTERS = 10_000_000
"""What one value may hold where it is shown, counted at each place where it stands."""


class NotShowable(Exception):
    """A value that no result can hold; the text says what is wrong with it and what to return instead."""


def jsonable(value: object) -> Any:
    """`value` as plain JSON data that any parser reads: what has no JSON form becomes text, and what is too much `…`.

    Raises nothing but a `KeyboardInterrupt`, and iterates over no iterator.
    """
    return _Rendering(strict=False).render(value, ())


def plain(value: object) -> Any:
    """`value` as `jsonable` gives it, a copy that runs nobody's code when it is read.

    Raises:
        NotShowable: for an iterator in it, which could be read only once, perhaps without end, and for too much.
    """
    return _Rendering(strict=True).render(value, ())


class _Rendering:
    """One way through a value, with what it may still take."""

    __slots__ = ("characters", "problem", "strict", "values")

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self.values, self.characters = MOST_VALUES, MOST_CHARACTERS
        self.problem: NotShowable | None = None

    def render(self, value: Any, above: tuple[int, ...]) -> Any:
        kind = type(value)
        if kind is str:
            self.characters -= len(value)
            return value if value.isascii() else clean(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            return self._integer(value)
        if kind is float:
            return value if math.isfinite(value) else str(value)
        if len(above) > _MOST_DEPTH or id(value) in above:  # nested without end
            return "…"
        inside = (*above, id(value))
        if issubclass(kind, dict):
            return self._object(dict.items(value), inside)
        for sequence in _SEQUENCES:
            if issubclass(kind, sequence):
                return self._array(sequence.__iter__(value), inside)
        try:
            return self._of_a_class(value, kind, inside)
        except (KeyboardInterrupt, NotShowable):
            raise
        except BaseException:  # whatever the author's methods raise: a `SystemExit` here ends nothing
            if self.problem is not None:
                raise self.problem from None
            return text_of(value)

    def _integer(self, value: int) -> int | str:
        if -_SMALL < value < _SMALL:
            return value
        self.characters -= value.bit_length() // 3
        try:
            str(value)
        except ValueError:  # CPython's limit on digits, sys.set_int_max_str_digits
            return hex(value)
        return value

    def _has_room(self) -> bool:
        self.values -= 1
        if self.values >= 0 and self.characters >= 0:
            return True
        if self.strict:
            raise self._not_showable(
                f"more than {MOST_VALUES:,} values or {MOST_CHARACTERS:,} characters; return fewer of them at a time"
            )
        return False

    def _not_showable(self, why: str) -> NotShowable:
        self.problem = NotShowable(why)  # Pydantic tells of no exception that was raised beneath it
        return self.problem

    def _object(self, items: Iterable[tuple[Any, Any]], inside: tuple[int, ...]) -> dict[str, Any]:
        found = {}
        for key, item in items:
            if not self._has_room():
                found["…"] = "…"
                break
            if type(key) is not str or not key.isascii():
                key = self._key(key, inside)
            self.characters -= len(key)
            found[key] = self.render(item, inside)
        return found

    def _key(self, key: Any, inside: tuple[int, ...]) -> str:
        found = self.render(key, inside)
        return found if isinstance(found, str) else _json_text(found)

    def _array(self, items: Iterable[Any], inside: tuple[int, ...]) -> list[Any]:
        found = []
        for item in items:
            if not self._has_room():
                found.append("…")
                break
            found.append(self.render(item, inside))
        return found

    def _of_a_class(self, value: Any, kind: type, inside: tuple[int, ...]) -> Any:
        """What is no plain data, by the methods of its class."""
        self._check_class(kind)
        if not self._has_room():
            return "…"
        if issubclass(kind, Mapping):
            return self._object(value.items(), inside)
        if hasattr(kind, "__pydantic_serializer__") or hasattr(kind, "__dataclass_fields__"):
            self._check(_TO_PYTHON(value), inside)

        def foreign(inner: object) -> Any:
            return clean(str(value)) if inner is value else self.render(inner, inside)

        found = to_jsonable_python(value, inf_nan_mode="constants", bytes_mode="base64", fallback=foreign)
        return self.render(found, inside)

    def _check_class(self, kind: type) -> None:
        if not any(hasattr(kind, name) for name in ("__next__", "__anext__", "__await__")):
            return
        if self.strict:
            raise self._not_showable(f"an iterator or awaitable ({kind.__name__}), and no list or value")
        raise TypeError  # it becomes text

    def _check(self, value: Any, inside: tuple[int, ...]) -> None:
        """Look at what Pydantic makes of the object of a class, lazily, before it makes it all."""
        kind = type(value)
        if kind in _NOTHING_INSIDE or len(inside) > _MOST_DEPTH:
            return
        inside = (*inside, id(value))
        if issubclass(kind, dict | list | tuple | set | frozenset):
            for item in value.values() if issubclass(kind, dict) else value:
                if self._has_room():
                    self._check(item, inside)
        else:
            self._check_class(kind)


_MOST_DEPTH = 100
_SMALL = 1 << 63
_SEQUENCES: tuple[type[Iterable[Any]], ...] = (list, tuple, set, frozenset)
_NOTHING_INSIDE = frozenset({str, int, float, bool, type(None)})
_TO_PYTHON = SchemaSerializer(core_schema.any_schema()).to_python


def text_of(value: object) -> str:
    """What `str` says of it, whatever its class makes of that."""
    try:
        return clean(str(value))
    except KeyboardInterrupt:
        raise
    except BaseException:
        return f"<{type(value).__name__}>"


def to_text(value: object) -> str:
    """JSON text of `value`, whatever it is."""
    return _json_text(jsonable(value))


def _json_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def checked(blocks: Iterable[Any]) -> tuple[Block, ...]:
    """The blocks of a result that a handler or a middleware made.

    Raises:
        TypeError: for what is no `Text` and no `Media`, which have no derived classes.
    """
    found = tuple(blocks)
    for block in found:
        if type(block) not in _BLOCK_CLASSES:
            raise TypeError(f"content holds {block!r}: it takes Text('…') and Media(kind, data, mime_type)")
    return found


def as_output(value: Any, *, strict: bool = True) -> Any:
    """What a handler gives as others see it: blocks and bytes as they are, all else as plain JSON data.

    Raises:
        NotShowable: where it is `strict`, as `plain` does.
    """
    if type(value) in _BLOCK_CLASSES or (type(value) is str and value.isascii()):
        return value
    if _is_blocks(value):
        return list(value)
    if isinstance(value, bytes | bytearray):
        return memoryview(value).tobytes()
    return plain(value) if strict else jsonable(value)


def render(output: Any) -> tuple[Block, ...]:
    """The blocks for what `as_output` gave: text as it is, blocks as they are, all else as JSON."""
    if isinstance(output, str):
        return (Text(output),)
    if type(output) in _BLOCK_CLASSES:
        return (output,)
    if _is_blocks(output):
        return tuple(output)
    if isinstance(output, bytes):
        return _render_bytes(output)
    return (Text(_json_text(output)),)


def _is_blocks(value: object) -> bool:
    """Whether it is a list of blocks, and of nothing else."""
    return isinstance(value, list | tuple) and bool(value) and all(type(item) in _BLOCK_CLASSES for item in value)


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
    """The first items, each in its share, and how many more there are. Of more items than characters most cannot be
    shown: they are not looked at."""
    if isinstance(value, dict):
        note = "[cut]"
        while note in value:
            note = f"[{note}]"
        brackets, rest = "{}", f'"{note}":"%d more"'
        parts = [(f"{_dumps(key)}:", item) for key, item in islice(value.items(), limit)]
    else:
        brackets, rest = "[]", '"[cut: %d more]"'
        parts = [("", item) for item in value[:limit]]
    room = limit - len(brackets) - len(rest % len(value))
    if room < 0:
        return _least(limit)
    sized = [((key, item), len(key) + len(_dumps(item)) + 1) for key, item in parts]
    shown: list[str] = []
    for (key, item), share in _shared(sized, room):
        left = share - len(key) - 1
        if left < 1:  # a key as long as its share
            break
        shown.append(key + _fit(item, left, depth - 1))
    if more := len(value) - len(shown):
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
