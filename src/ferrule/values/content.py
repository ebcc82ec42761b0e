"""Values become content: blocks that a model gets, always valid JSON and UTF-8, and bounded as a whole."""

from __future__ import annotations

import json
import math
import re
import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from itertools import islice
from typing import Annotated, Any, Literal, TypeAlias, final

from pydantic_core import PydanticSerializationError, core_schema, from_json, to_json, to_jsonable_python

from ferrule.values.encoded_bytes import get_base64_serializer, to_base64


@final
@dataclass(frozen=True, slots=True)
class Text:
    """A block of text; what UTF-8 cannot hold in it becomes U+FFFD. See docs/talking-to-the-model.md."""

    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise TypeError(f"Text holds a string, not {self.text!r}")
        if type(self.text) is not str or not self.text.isascii():
            object.__setattr__(self, "text", clean_text(self.text))


class _OnlySetInCode:
    """Checks a field that only a developer may turn on, and no data that a model could have written."""

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> core_schema.CoreSchema:
        return core_schema.literal_schema([False])

    def __get_pydantic_json_schema__(self, core: core_schema.CoreSchema, handler: Any) -> dict[str, Any]:
        found: dict[str, Any] = {"type": "boolean"} if handler.mode == "serialization" else handler(core)
        return found


@final
@dataclass(frozen=True, slots=True)
class Media:
    """A block that is no text. See docs/talking-to-the-model.md.

    Attributes:
        kind: The kind of media.
        data: The bytes, or `None` if they are at `uri`.
        mime_type: For instance `image/png`; in ASCII, at most 255 characters.
        uri: The address of the data.
        name: A file name.
        fetch: Whether the model's API may fetch `uri` itself, with the rights of your account there. Set it only if you
            know the address. Without it, and without `data`, the model reads a description of the block.
    """

    kind: Literal["image", "audio", "file", "resource"]
    data: bytes | None
    mime_type: str
    uri: str | None = None
    name: str | None = None
    fetch: Annotated[bool, _OnlySetInCode()] = False

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise TypeError(f"Media of the kind {self.kind!r}: it may be {', '.join(_KINDS)}")
        if not (self.data is None or type(self.data) is bytes):
            raise TypeError(f"the data of Media are bytes or None, not {type(self.data).__name__}")
        if not (isinstance(self.mime_type, str) and re.fullmatch(_MIME_TYPE, self.mime_type)):  # type: ignore[redundant-expr]
            raise TypeError(f"Media whose mime_type is {str(self.mime_type)[:100]!r}; write image/png")
        if type(self.fetch) is not bool:  # text out of somebody's JSON is no permission
            raise TypeError(f"the fetch of Media is True or False, not {self.fetch!r}")
        for name in ("kind", "mime_type", "uri", "name"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else clean_text(str(value)))


Block: TypeAlias = Text | Media
_BLOCK_CLASSES = (Text, Media)

# RFC 6838: no other text may reach a provider in this field.
_KINDS = ("image", "audio", "file", "resource")
_MIME_TYPE = r"(?a)(?=.{,255}\Z)[\w.+-]+/[\w.+-]+(;[\x20-\x7e]*)?"
TEXT_TYPE = re.compile(r"text/|application/([\w.+-]+\+)?json\s*(;|$)|.*;\s*charset=", re.IGNORECASE)
"""Media types of what is text."""


def clean_text(text: str) -> str:
    """`text` as a plain string that UTF-8 can hold: lone surrogates become U+FFFD, and no method of a class of somebody
    else's is called."""
    if type(text) is not str:
        text = str.__str__(text)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


MAX_VALUES = 1_000_000
MAX_CHARACTERS = 10_000_000
"""Parts that one value may have in a result."""


class NotShowable(Exception):
    """A value that no result can hold. The text names the problem and the remedy."""


def to_jsonable(value: object) -> Any:
    """Return `value` as plain JSON data. NaN and infinities become null, other values without a JSON form become text.

    An excess of parts becomes `…`. It raises nothing but a `KeyboardInterrupt`, and iterates over no iterator except
    one in a Pydantic model.
    """
    if value is None or (type(value) is str and value.isascii()):  # most values
        return value
    if type(value) is dict and not value:
        return {}
    return _Rendering().render(value, ())


def to_jsonable_or_raise(value: object, not_finite: list[str] | None = None, *, finite: bool = True) -> Any:
    """`value` as `to_jsonable` gives it, a copy that runs nobody's code when it is read.

    Args:
        not_finite: Gets the first number in `value` that is null in JSON: NaN or an infinity.
        finite: Whether they become null; else they stay numbers, for another process that looks at them.

    Raises:
        NotShowable: for an iterator in it, which could be read only once, perhaps without end, and for too much.
    """
    rendering = _Rendering(finite)
    found = rendering.render(value, ())
    if rendering.problem:
        raise NotShowable(rendering.problem)
    if not_finite is not None:
        not_finite.extend(rendering.not_finite)
    return found


class _Rendering:
    """One walk through a value, with the budget that is left and the problems that were found."""

    __slots__ = ("characters", "finite", "not_finite", "problem", "values")

    def __init__(self, finite: bool = True) -> None:
        self.finite = finite
        self.values, self.characters = MAX_VALUES, MAX_CHARACTERS
        self.problem = ""
        self.not_finite: list[str] = []

    def render(self, value: Any, above: tuple[int, ...]) -> Any:
        kind = type(value)
        if kind is str:
            self.characters -= len(value)
            return value if value.isascii() else clean_text(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            self.characters -= value.bit_length() // 3
            return value if value.bit_length() <= _MAX_BITS else hex(value)
        if kind is float:
            return value if math.isfinite(value) else self._null_for(value)
        if len(above) > _MAX_RENDER_DEPTH or id(value) in above:  # nested without end
            return "…"
        inside = (*above, id(value))
        if issubclass(kind, dict):
            return self._object(dict.items(value), inside)
        for sequence in _SEQUENCES:
            if issubclass(kind, sequence):
                return self._array(sequence.__iter__(value), inside)
        try:
            return self._render_object(value, kind, inside)
        except KeyboardInterrupt:
            raise
        except BaseException:  # whatever the author's methods raise: a `SystemExit` here ends nothing
            return f"<{kind.__name__}>"  # a `__repr__` may have no bound, and shows what was excluded

    def _null_for(self, number: float) -> float | None:
        if not self.not_finite:  # one is enough to say what is wrong
            self.not_finite.append(str(number))
        return None if self.finite else number

    def _has_room(self) -> bool:
        self.values -= 1
        if self.values >= 0 and self.characters >= 0:
            return True
        self.problem = (
            f"more than {MAX_VALUES:,} values or {MAX_CHARACTERS:,} characters; return fewer of them at a time"
        )
        return False

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
        shown = self.render(key, inside)
        is_finite = key is None if shown is None else type(shown) is not float or math.isfinite(shown)
        if not is_finite:  # as a key it has a text
            return clean_text(str(key))
        return shown if isinstance(shown, str) else _encode_json(shown)

    def _array(self, items: Iterable[Any], inside: tuple[int, ...]) -> list[Any]:
        found = []
        for item in items:
            if not self._has_room():
                found.append("…")
                break
            found.append(self.render(item, inside))
        return found

    def _render_object(self, value: Any, kind: type, inside: tuple[int, ...]) -> Any:
        """Convert an object that is no plain data by the methods of its class; a model by Pydantic."""
        if _is_read_once(kind):
            self.problem = f"an iterator or awaitable ({kind.__name__}), and no list or value"
            raise TypeError(self.problem)
        if issubclass(kind, Decimal) and not value.is_finite():
            return self._null_for(math.nan if value.is_nan() else float(value))
        if kind.__name__ in _PANDAS_MISSING and kind.__module__.startswith("pandas."):
            return None
        if (numpy := sys.modules.get("numpy")) is not None and issubclass(kind, numpy.generic | numpy.ndarray):
            return self._render_numpy(value, inside)
        serializer = get_base64_serializer(kind)
        if issubclass(kind, Mapping):
            return self._object(value.items(), inside)
        if issubclass(kind, Enum):
            return self.render(value.value, inside)
        if hasattr(kind, "__dataclass_fields__") and not hasattr(kind, "__pydantic_serializer__"):
            return self._object(((field.name, getattr(value, field.name)) for field in fields(value)), inside)

        def foreign(inner: object) -> Any:
            return clean_text(str(value)) if inner is value else self.render(inner, inside)

        if isinstance(value, bytes | bytearray):
            return self.render(to_base64(value), inside)
        if serializer is None:
            found = to_jsonable_python(value, inf_nan_mode="constants", fallback=foreign)
        else:
            found = serializer.to_python(value, mode="json", by_alias=True, fallback=foreign)
        return self.render(found, inside)

    def _render_numpy(self, value: Any, inside: tuple[int, ...]) -> Any:
        """A scalar of numpy's as Python's, and an array as a list; a date as text, which keeps its nanoseconds."""
        if value.ndim:
            return self._array(value, inside)
        if value.dtype.kind in "mM":
            return None if value != value else str(value)
        found = value.tolist()  # `item()`, which is None for a masked value
        return self.render(float(found) if type(found) is type(value) else found, inside)


@lru_cache
def _is_read_once(kind: type) -> bool:
    return any(hasattr(kind, name) for name in ("__next__", "__anext__", "__await__"))


_encode_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
"""`json.dumps` makes an encoder for each value, which costs more than a small value does."""
_SEQUENCES = (list, tuple, set, frozenset, deque)
_PANDAS_MISSING = ("NAType", "NaTType")
"""The classes of `pandas.NA` and `pandas.NaT`; pandas is not imported to ask."""
_MAX_RENDER_DEPTH = 100
_NOTHING_INSIDE = frozenset({int, float, bool, type(None)})
_MAX_BITS = 2000
"""So many digits of an integer can be written at every setting of `sys.set_int_max_str_digits`."""


def safe_str(value: object, show: Callable[[object], str] = str) -> str:
    """Return the text of `str` or `repr`, also if the class breaks both."""
    try:
        return clean_text(show(value))
    except KeyboardInterrupt:
        raise
    except BaseException:
        return f"<{type(value).__name__}>"


def to_json_text(value: object) -> str:
    """JSON text of `value`, whatever it is."""
    return _encode_json(to_jsonable(value))


def check_blocks(blocks: Iterable[Any]) -> tuple[Block, ...]:
    """Return the blocks of a result that a handler or a middleware made.

    Raises:
        TypeError: One is neither a `Text` nor a `Media`.
    """
    found = tuple(blocks)
    for block in found:
        if type(block) not in _BLOCK_CLASSES:
            raise TypeError(f"content holds {block!r}: it takes Text('…') and Media(kind, data, mime_type)")
    return found


def to_output(value: Any, *, strict: bool = True, not_finite: list[str] | None = None) -> Any:
    """Return a handler's value for others to read: blocks and bytes as they are, everything else as plain JSON data.

    Args:
        strict: Whether to raise as `plain` does.
        not_finite: As for `plain`, if `strict`.

    Raises:
        NotShowable: As for `plain`, if `strict`.
    """
    if type(value) in _BLOCK_CLASSES or (type(value) is str and value.isascii()):
        return value
    if _is_blocks(value):
        return list(value)
    if isinstance(value, bytes | bytearray):
        return memoryview(value).tobytes()
    return to_jsonable_or_raise(value, not_finite) if strict else to_jsonable(value)


def to_blocks(output: Any) -> tuple[Block, ...]:
    """The blocks for what `to_output` gave: text as it is, blocks as they are, all else as JSON."""
    if isinstance(output, str):
        return (Text(output),)
    if type(output) in _BLOCK_CLASSES:
        return (output,)
    if _is_blocks(output):
        return tuple(output)
    if not isinstance(output, bytes):
        return (Text(_encode_json(output)),)
    try:
        return (Text(output.decode()),)
    except UnicodeDecodeError:
        return (Media("file", output, "application/octet-stream"),)


def is_json(output: object) -> bool:
    """Whether what `to_output` gave is JSON data, and not bytes or blocks."""
    return not (type(output) in _BLOCK_CLASSES or isinstance(output, bytes) or _is_blocks(output))


def _is_blocks(value: object) -> bool:
    """Whether it is a list of blocks, and of nothing else."""
    return isinstance(value, list | tuple) and bool(value) and all(type(item) in _BLOCK_CLASSES for item in value)


_BLOCK = 32
"""The cost of a block besides its content: its place in the message, which is free for the first one."""


MAX_MEDIA_BYTES = 3_500_000
"""Bytes of media in one result, unless a runner or `limit_output` says otherwise: the APIs of models take an image of
that size."""


def count_characters(blocks: Iterable[Block]) -> int:
    """Count the characters of the blocks: of texts, of media that are shown as text, and of the kinds, types, names and
    addresses of other media; and 32 for every block after the first."""
    costs = [_BLOCK + (len(b.text) if isinstance(b, Text) else _count_media_characters(b)) for b in blocks]
    return max(sum(costs) - _BLOCK, 0)


def _count_media_characters(media: Media) -> int:
    shown = len(media.data) if media.data is not None and TEXT_TYPE.match(media.mime_type) else 0
    return shown + len(media.kind) + len(media.mime_type) + len(media.uri or "") + len(media.name or "")


def count_media_bytes(blocks: Iterable[Block]) -> int:
    """Count the bytes of media that are not shown as text."""
    return sum(map(_count_block_bytes, blocks))


def _count_block_bytes(block: Block) -> int:
    return 0 if isinstance(block, Text) or block.data is None or TEXT_TYPE.match(block.mime_type) else len(block.data)


Keep: TypeAlias = Literal["head", "tail", "both"]
"""The end that is kept of a long text, JSON string, list or object, or of many blocks."""
KEEP_CHOICES = ("head", "tail", "both")


def truncate_blocks(
    blocks: tuple[Block, ...], limit: int, keep: Keep = "both", max_media: float = math.inf
) -> tuple[Block, ...]:
    """The blocks in at most `limit` characters and `max_media` bytes of media, each cut saying so; JSON stays valid
    JSON.

    Short blocks are kept whole beside long ones. Media are whole or named, those at the end that is kept first; what
    is told of them, and media that are shown as text, have three quarters of the characters at most.
    """
    if count_characters(blocks) <= limit and count_media_bytes(blocks) <= max_media:
        return blocks
    total = len(blocks)
    ahead, after = _split_head_and_tail(total, limit // _BLOCK + 1, keep)  # more have no place
    ends = _limit_media(blocks[:ahead] + blocks[total - after :], limit, max_media, keep)

    def select_blocks(most: int) -> tuple[Block, ...]:
        """Return the blocks that have a place when texts are cut to `most` characters, and a note on the others."""
        ahead, after = _split_head_and_tail(total, max(most // _BLOCK, 1), keep)
        left = total - ahead - after
        note = (Text(f"[cut: {left} blocks left out]"),) if left else ()
        return ends[:ahead] + note + ends[len(ends) - after :]

    def cost(most: int) -> int:
        found = [
            min(count_characters((one,)), most) if isinstance(one, Text) else count_characters((one,))
            for one in select_blocks(most)
        ]
        return sum(found) + _BLOCK * (len(found) - 1)

    most = bisect_right(range(limit + 1), limit, key=cost) - 1
    if most < 0:
        return (Text(f"[cut: {total} blocks left out]"[: max(limit, 0)]),)
    return tuple(
        Text(truncate_text(one.text, most, keep)) if isinstance(one, Text) else one for one in select_blocks(most)
    )


def _limit_media(blocks: tuple[Block, ...], limit: int, max_media: float, keep: Keep) -> tuple[Block, ...]:
    found, room, left = list(blocks), limit * 3 // 4, max_media
    for index in reversed(range(len(blocks))) if keep == "tail" else range(len(blocks)):
        block = blocks[index]
        if isinstance(block, Text):
            continue
        characters, held = _count_media_characters(block), _count_block_bytes(block)
        if characters <= room and held <= left:
            room, left = room - characters, left - held
        else:
            which = f"the limit of media is {max_media} bytes" if held > left else f"the output limit is {limit}"
            found[index] = Text(f"[{block.kind} of {len(block.data or b'')} bytes left out: {which}]")
    return tuple(found)


def _split_head_and_tail(length: int, shown: int, keep: Keep) -> tuple[int, int]:
    """How many of `length` are kept at the head and at the tail, of which `shown` can be."""
    if length <= shown:
        return length, 0
    after = shown if keep == "tail" else shown // 2 if keep == "both" else 0
    return shown - after, after


_JSON_START = r"\s*[\[{\"\-0-9tfn]"


def to_sentence(text: str) -> str:
    """`text`, somebody's own words, with a mark at its end: the one that it has, or a full stop."""
    text = text.rstrip()
    return text if text.endswith((".", "?", "!", "…")) else f"{text}."


def truncate_text(text: str, limit: int, keep: Keep = "both") -> str:
    """Return `text` in at most `limit` characters: its head, its tail or both, with a note on the omitted ones.

    JSON stays JSON, unless it nests more than 200 deep or has a lone surrogate or a number of over 4,300 digits.
    """
    if len(text) <= limit:
        return text
    if re.match(_JSON_START, text):
        with suppress(TypeError, ValueError, RecursionError):  # a RecursionError comes if the caller is deep in calls
            return _fit_json(from_json(text, allow_inf_nan=False), limit, keep)
    room = limit - len(_cut_note(len(text))) - 2  # a line of its own
    if room <= 0:
        return _cut_note(len(text))[: max(limit, 0)]
    ahead, after = _split_head_and_tail(len(text), room, keep)
    note = _cut_note(len(text) - room)
    return "\n".join(filter(None, (text[:ahead], note, text[len(text) - after :])))


def _cut_note(characters: int) -> str:
    return f"[cut: {characters} characters left out]"


def _fit_json(value: object, limit: int, keep: Keep) -> str:
    """JSON text of `value` in at most `limit` characters: as much of every string, list and object as there is room
    for, by a few guesses and then by halves, until next to all of the room is used."""
    found = next(least for least in ('"[cut]"', '""', "0", "") if len(least) <= max(limit, 0))
    fits, too_much, most, guesses = -1, _ITEM * limit + 1, limit // 4, 4
    while too_much - fits > 1:
        most = min(max(most, fits + 1), too_much - 1)
        text = ""
        with suppress(OverflowError):
            text = _format_json(_abridge(value, most, [limit], keep))
        if text and len(text) <= limit:
            fits, found = most, text
            if len(text) > limit - limit // 32:
                break
        else:
            too_much = most
        guesses -= 1
        most = most * limit // len(text) if text and guesses > 0 else (fits + too_much) // 2
    return found


def _format_json(value: object) -> str:
    """JSON text of plain data. Pydantic writes 254 levels, but only 99 on Windows and 48 in WebAssembly.

    Raises:
        ValueError: for infinity in more levels than that.
    """
    try:
        return to_json(value, inf_nan_mode="strings").decode()
    except PydanticSerializationError:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


_ITEM = 4
"""So many characters of each string are shown for each item of a list or an object: records are kept whole."""
_LEAST_ITEM = 2
"""So many characters each item takes at least, with its comma."""


def _abridge(value: Any, most: int, room: list[int], keep: Keep) -> Any:
    """`value` with `most` characters of each string, the items that go with it, and a word on the rest.

    Raises:
        OverflowError: for more than there is room for.
    """
    if type(value) in _NOTHING_INSIDE:
        return value
    shown = most if isinstance(value, str) else most // _ITEM
    room[0] -= min(len(value), shown) * (1 if isinstance(value, str) else _LEAST_ITEM)
    if room[0] < 0:
        raise OverflowError
    ahead, after = _split_head_and_tail(len(value), shown, keep)
    left = len(value) - ahead - after
    if isinstance(value, str):
        return f"{value[:ahead]}{_cut_note(left)}{value[len(value) - after :]}" if left else value
    if isinstance(value, list):
        items = value[:ahead] + value[len(value) - after :]
        shown_items = [one if type(one) in _NOTHING_INSIDE else _abridge(one, most, room, keep) for one in items]
        shown_items[ahead:ahead] = [f"[cut: {left} items left out]"] if left else []
        return shown_items
    pairs = [*islice(value.items(), ahead), *islice(value.items(), len(value) - after, None)]
    shown_pairs = [
        (key, one if type(one) in _NOTHING_INSIDE else _abridge(one, most, room, keep)) for key, one in pairs
    ]
    note = "[cut]"
    while note in value:
        note = f"[{note}]"
    shown_pairs[ahead:ahead] = [(note, f"{left} keys left out")] if left else []
    return dict(shown_pairs)
