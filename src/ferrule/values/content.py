"""Convert values to JSON data and to content blocks for a model, and truncate these to a limit."""

from __future__ import annotations

import json
import math
import re
import sys
from base64 import b64encode
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from itertools import islice
from typing import Annotated, Any, Literal, TypeAlias, final

from pydantic_core import core_schema, from_json, to_jsonable_python

from ferrule.values.count import pluralize
from ferrule.values.tables import count_cells, draw_figure, is_figure, is_image, is_table, read_rows


class _OnlySetInCode:
    """Checks a field that only a developer may turn on, and no data that a model could have written."""

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> core_schema.CoreSchema:
        return core_schema.literal_schema([False])

    def __get_pydantic_json_schema__(self, core: core_schema.CoreSchema, handler: Any) -> dict[str, Any]:
        found: dict[str, Any] = {"type": "boolean"} if handler.mode == "serialization" else handler(core)
        return found


@final
@dataclass(frozen=True, slots=True)
class Text:
    """A block of text; lone surrogates in it become U+FFFD. See docs/talking-to-the-model.md."""

    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise TypeError(f"Text holds a string, not {self.text!r}")
        if type(self.text) is not str or not self.text.isascii():
            object.__setattr__(self, "text", clean_text(self.text))


@final
@dataclass(frozen=True, slots=True)
class Media:
    """A block of media. See docs/talking-to-the-model.md.

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
        if type(self.fetch) is not bool:  # a text from JSON is no permission
            raise TypeError(f"the fetch of Media is True or False, not {self.fetch!r}")
        for name in ("kind", "mime_type", "uri", "name"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else clean_text(str(value)))


Block: TypeAlias = Text | Media
_BLOCK_CLASSES = (Text, Media)

_KINDS = ("image", "audio", "file", "resource")
# RFC 6838: no other text may reach a provider in this field.
_MIME_TYPE = r"(?a)(?=.{,255}\Z)[\w.+-]+/[\w.+-]+(;[\x20-\x7e]*)?"
_TEXT_TYPE = r"(?i)text/|application/([\w.+-]+\+)?json\s*(;|$)|.*;\s*charset="


@lru_cache
def is_text_type(mime_type: str) -> bool:
    """Return whether data of this media type are text."""
    return re.match(_TEXT_TYPE, mime_type) is not None


def clean_text(text: str) -> str:
    """Return `text` as a plain string with valid UTF-8: lone surrogates become U+FFFD."""
    if type(text) is not str:
        text = str.__str__(text)  # this runs no method of its class
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


MAX_VALUES = 1_000_000
MAX_CHARACTERS = 10_000_000
"""Parts of one value in a result, at most."""


class NotShowable(Exception):
    """A value cannot stand in a result. The text names the problem and the remedy."""


class ReturnedAlone:
    """A value that a handler returns alone. Nothing that is shown holds one; its `repr` would mislead."""

    __slots__ = ()


def to_jsonable(value: object) -> Any:
    """Return `value` as plain JSON data. NaN and infinities become null, other values without a JSON form become text.

    An excess of parts becomes `…`. It raises only `KeyboardInterrupt`, and reads no iterator except one in a Pydantic
    model.
    """
    if value is None or (type(value) is str and value.isascii()):  # most values
        return value
    return _Rendering().render(value, ())


def to_jsonable_or_raise(value: object) -> Any:
    """Return `value` as plain JSON data, as `to_jsonable` does, unless something would be lost.

    Raises:
        NotShowable: The value has an iterator, which may have no end, too many parts, or bytes that are no text.
    """
    rendering = _Rendering()
    data = rendering.render(value, ())
    if rendering.problem:
        raise NotShowable(rendering.problem)
    return data


class _Rendering:
    """One walk through a value, with its remaining budget and the last problem."""

    __slots__ = ("characters", "problem", "values")

    def __init__(self) -> None:
        self.values, self.characters = MAX_VALUES, MAX_CHARACTERS
        self.problem = ""

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
            return value if math.isfinite(value) else None
        if len(above) > _MAX_RENDER_DEPTH or id(value) in above:  # it may contain itself
            return "…"
        inside = (*above, id(value))
        if issubclass(kind, dict):
            return self._render_items(dict.items(value), inside)
        for sequence in _SEQUENCES:
            if issubclass(kind, sequence):
                return self._render_array(sequence.__iter__(value), inside)
        try:
            return self._render_object(value, kind, inside)
        except KeyboardInterrupt:
            raise
        except BaseException:  # the author's methods may raise anything; even `SystemExit` ends nothing here
            return f"<{kind.__name__}>"  # a `__repr__` may be long, and may show excluded fields

    def _has_room(self) -> bool:
        self.values -= 1
        if self.values >= 0 and self.characters >= 0:
            return True
        self.problem = (
            f"more than {MAX_VALUES:,} values or {MAX_CHARACTERS:,} characters; return fewer of them at a time"
        )
        return False

    def _render_items(self, items: Iterable[tuple[Any, Any]], inside: tuple[int, ...]) -> dict[str, Any]:
        rendered = {}
        for key, item in items:
            if not self._has_room():
                rendered["…"] = "…"
                break
            if type(key) is not str or not key.isascii():
                key = self._render_key(key, inside)
            self.characters -= len(key)
            rendered[key] = self.render(item, inside)
        return rendered

    def _render_key(self, key: Any, inside: tuple[int, ...]) -> str:
        rendered = self.render(key, inside)
        return rendered if isinstance(rendered, str) else _encode_json(rendered)

    def _render_array(self, items: Iterable[Any], inside: tuple[int, ...]) -> list[Any]:
        rendered = []
        for item in items:
            if not self._has_room():
                rendered.append("…")
                break
            rendered.append(self.render(item, inside))
        return rendered

    def _render_object(self, value: Any, kind: type, inside: tuple[int, ...]) -> Any:
        """Convert an object by the methods of its class; a model by Pydantic."""
        if isinstance(value, ReturnedAlone):
            self.problem = f"a {kind.__name__} within other data, or as a chunk; return it alone"
            raise TypeError(self.problem)
        if _is_read_once(kind):
            self.problem = f"an iterator or awaitable ({kind.__name__}), not a list or value"
            raise TypeError(self.problem)
        if issubclass(kind, Decimal) and not value.is_finite():
            return None
        if kind.__name__ in _PANDAS_MISSING and kind.__module__.startswith("pandas."):
            return None
        if is_table(kind):
            if (rows := self._read_rows(value)) is not None:
                return self._render_array(rows, inside)
        elif (numpy := sys.modules.get("numpy")) is not None and hasattr(kind, "__array__"):
            return self._render_numpy(value if issubclass(kind, numpy.generic) else numpy.asanyarray(value), inside)
        if issubclass(kind, Mapping):
            return self._render_items(value.items(), inside)
        if issubclass(kind, Enum):
            return self.render(value.value, inside)
        if hasattr(kind, "__dataclass_fields__") and not hasattr(kind, "__pydantic_serializer__"):
            return self._render_items(((field.name, getattr(value, field.name)) for field in fields(value)), inside)

        def render_foreign(inner: object) -> Any:
            return self._render_as_text(value) if inner is value else self.render(inner, inside)

        if isinstance(value, bytes | bytearray):
            return self.render(b64encode(value).decode(), inside)
        try:
            return self.render(to_jsonable_python(value, inf_nan_mode="constants", fallback=render_foreign), inside)
        except UnicodeDecodeError:
            self.problem = f"a {kind.__name__} with bytes that are no UTF-8; take Base64Bytes, or encode them yourself"
            raise

    def _render_as_text(self, value: Any) -> str:
        kind: type = type(value)
        if not (is_image(kind) or is_table(kind)):
            return clean_text(str(value))
        what, remedy = ("an image", _IMAGE_REMEDY) if is_image(kind) else ("a table", _TABLE_REMEDY)
        self.problem = f"{what} ({kind.__name__}) {remedy}"
        raise TypeError(self.problem)

    def _read_rows(self, table: Any) -> list[Any] | None:
        if count_cells(table) > self.values:  # reading them all would take more memory than the result may
            self.values = -1
            self._has_room()
            raise TypeError(self.problem)
        try:
            return read_rows(table)
        except ValueError as error:
            self.problem = str(error)
            raise

    def _render_numpy(self, value: Any, inside: tuple[int, ...]) -> Any:
        """Return a numpy scalar as a Python value, an array as a list, and a date as text with its nanoseconds."""
        if value.ndim:
            return self._render_array(value, inside)
        if value.dtype.kind in "mM":
            return None if value != value else str(value)
        item = value.tolist()  # unlike `item()`, this is None for a masked value
        return self.render(float(item) if type(item) is type(value) else item, inside)


@lru_cache
def _is_read_once(kind: type) -> bool:
    return any(hasattr(kind, name) for name in ("__next__", "__anext__", "__await__"))


_encode_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
"""`json.dumps` would make an encoder for each value."""
_SEQUENCES = (list, tuple, set, frozenset, deque)
_IMAGE_REMEDY = "that is no PNG, or within other data; return it in RGB, alone or in a list with Text(…)"
_TABLE_REMEDY = "that gives no rows; make a data frame of it"
_PANDAS_MISSING = ("NAType", "NaTType")
"""The classes of `pandas.NA` and `pandas.NaT`; pandas is not imported to ask."""
_MAX_RENDER_DEPTH = 100
_NOTHING_INSIDE = frozenset({int, float, bool, type(None)})
_MAX_BITS = 2000
"""The bits of an integer that can be written at every setting of `sys.set_int_max_str_digits`."""


def safe_str(value: object, show: Callable[[object], str] = str) -> str:
    """Return the text of `str` or `repr`; the name of the class if that raises."""
    try:
        return clean_text(show(value))
    except KeyboardInterrupt:
        raise
    except BaseException:
        return f"<{type(value).__name__}>"


def to_json_text(value: object) -> str:
    """Return JSON text of any value."""
    return _encode_json(to_jsonable(value))


def check_blocks(blocks: Iterable[Any]) -> tuple[Block, ...]:
    """Return the blocks of a result that a handler or a middleware made.

    Raises:
        TypeError: One is neither a `Text` nor a `Media`.
    """
    checked = tuple(blocks)
    for block in checked:
        if type(block) not in _BLOCK_CLASSES:
            raise TypeError(f"content holds {block!r}: it takes Text('…') and Media(kind, data, mime_type)")
    return checked


def to_output(value: Any, *, strict: bool = True) -> Any:
    """Return a handler's value for others to read: blocks and bytes as they are, everything else as plain JSON data.

    A figure is a block with its picture, and a table is a list of its rows. Neither ever becomes its `repr`.

    Args:
        strict: Whether to raise as `to_jsonable_or_raise` does.

    Raises:
        NotShowable: As for `to_jsonable_or_raise`, if `strict`.
    """
    if type(value) in _BLOCK_CLASSES or (type(value) is str and value.isascii()):
        return value
    if _is_blocks(value):
        return list(value)
    if isinstance(value, bytes | bytearray):
        return memoryview(value).tobytes()
    kind: type = type(value)
    if is_figure(kind) and (drawn := draw_figure(value)) is not None:
        return Media("image", drawn, "image/png")
    if isinstance(value, list | tuple) and value and all(_is_block_or_figure(type(item)) for item in value):
        shown = [to_output(item, strict=strict) for item in value]
        if _is_blocks(shown):
            return shown
    return to_jsonable_or_raise(value) if strict else to_jsonable(value)


def to_blocks(output: Any) -> tuple[Block, ...]:
    """Return the blocks of an output from `to_output`: text and blocks as they are, everything else as JSON."""
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
    """Return whether an output from `to_output` is JSON data, not bytes or blocks."""
    return not (type(output) in _BLOCK_CLASSES or isinstance(output, bytes) or _is_blocks(output))


def _is_block_or_figure(kind: type) -> bool:
    return kind in _BLOCK_CLASSES or is_figure(kind)


def _is_blocks(value: object) -> bool:
    """Return whether a value is a list of blocks only."""
    return isinstance(value, list | tuple) and bool(value) and all(type(item) in _BLOCK_CLASSES for item in value)


_BLOCK = 32
"""The cost of a block besides its content; free for the first one."""


MAX_MEDIA_BYTES = 3_500_000
"""Default limit of media bytes in one result. The APIs of models accept an image of this size."""


def count_characters(blocks: Iterable[Block]) -> int:
    """Count the characters of the blocks, and 32 for every block after the first.

    Media count with their kind, type, name and address, and with their data if it is text.
    """
    costs = [_BLOCK + (len(b.text) if isinstance(b, Text) else _count_media_characters(b)) for b in blocks]
    return max(sum(costs) - _BLOCK, 0)


def _count_media_characters(media: Media) -> int:
    shown = len(media.data) if media.data is not None and is_text_type(media.mime_type) else 0
    return shown + len(media.kind) + len(media.mime_type) + len(media.uri or "") + len(media.name or "")


def count_media_bytes(blocks: Iterable[Block]) -> int:
    """Count the bytes of media, except texts."""
    return sum(map(_count_block_bytes, blocks))


def _count_block_bytes(block: Block) -> int:
    return 0 if isinstance(block, Text) or block.data is None or is_text_type(block.mime_type) else len(block.data)


Keep: TypeAlias = Literal["head", "tail", "both"]
"""The remaining end of a long text, JSON string, list or object, or of many blocks."""
KEEP_CHOICES = ("head", "tail", "both")


def is_within_limits(blocks: Sequence[Block], limit: int, max_media: float) -> bool:
    """Return whether the blocks have at most `limit` characters and `max_media` bytes of media."""
    return count_characters(blocks) <= limit and count_media_bytes(blocks) <= max_media


def truncate_blocks(
    blocks: tuple[Block, ...], limit: int, keep: Keep = "both", max_media: float = math.inf
) -> tuple[Block, ...]:
    """Return the blocks in at most `limit` characters and `max_media` bytes of media, with a note for each omission.

    JSON stays valid JSON. Short blocks stay whole beside long ones. Media stay whole, or a note names them; they get at
    most three quarters of the characters, and those at the remaining end come first.
    """
    if is_within_limits(blocks, limit, max_media):
        return blocks
    total = len(blocks)
    ahead, after = _split_head_and_tail(total, limit // _BLOCK + 1, keep)  # there is no room for more
    ends = _limit_media(blocks[:ahead] + blocks[total - after :], limit, max_media, keep)

    def select_blocks(most: int) -> tuple[Block, ...]:
        """Return the blocks to show if each text is cut to `most` characters, and a note on the others."""
        ahead, after = _split_head_and_tail(total, max(most // _BLOCK, 1), keep)
        omitted = total - ahead - after
        note = (Text(f"[cut: {omitted} {pluralize(omitted, 'block')} left out]"),) if omitted else ()
        return ends[:ahead] + note + ends[len(ends) - after :]

    def count_selected(most: int) -> int:
        selected = select_blocks(most)
        sizes = [min(len(b.text), most) if isinstance(b, Text) else _count_media_characters(b) for b in selected]
        return sum(sizes) + _BLOCK * (len(sizes) - 1)

    most = bisect_right(range(limit + 1), limit, key=count_selected) - 1
    if most < 0:
        return (Text(f"[cut: {total} {pluralize(total, 'block')} left out]"[: max(limit, 0)]),)
    return tuple(
        Text(truncate_text(one.text, most, keep)) if isinstance(one, Text) else one for one in select_blocks(most)
    )


def _limit_media(blocks: tuple[Block, ...], limit: int, max_media: float, keep: Keep) -> tuple[Block, ...]:
    """Return the blocks with a note in place of each media that does not fit."""
    limited, characters_left, bytes_left = list(blocks), limit * 3 // 4, max_media
    for index in reversed(range(len(blocks))) if keep == "tail" else range(len(blocks)):
        block = blocks[index]
        if isinstance(block, Text):
            continue
        characters, size = _count_media_characters(block), _count_block_bytes(block)
        if characters <= characters_left and size <= bytes_left:
            characters_left, bytes_left = characters_left - characters, bytes_left - size
        else:
            reason = f"the limit of media is {max_media} bytes" if size > bytes_left else f"the output limit is {limit}"
            limited[index] = Text(f"[{block.kind} of {len(block.data or b'')} bytes left out: {reason}]")
    return tuple(limited)


def _split_head_and_tail(length: int, shown: int, keep: Keep) -> tuple[int, int]:
    """Return the number of items to show at the head and at the tail, `shown` of `length` in all."""
    if length <= shown:
        return length, 0
    after = shown if keep == "tail" else shown // 2 if keep == "both" else 0
    return shown - after, after


_JSON_START = r"\s*[\[{\"\-0-9tfn]"


def to_sentence(text: str) -> str:
    """Return `text` with a full stop at its end, unless it has another mark there."""
    text = text.rstrip()
    return text if text.endswith((".", "?", "!", "…")) else f"{text}."


def truncate_text(text: str, limit: int, keep: Keep = "both") -> str:
    """Return `text` in at most `limit` characters: its head, its tail or both, with a note on the omitted ones.

    JSON stays JSON, unless it nests more than 200 deep or has a lone surrogate or a number too large for a double.
    """
    if len(text) <= limit:
        return text
    if re.match(_JSON_START, text):
        with suppress(TypeError, ValueError, RecursionError):  # the caller may be deep in calls
            return _fit_json(from_json(text, allow_inf_nan=False), limit, keep)
    room = limit - len(_cut_note(len(text))) - 2  # the note has its own line
    if room <= 0:
        return _cut_note(len(text))[: max(limit, 0)]
    ahead, after = _split_head_and_tail(len(text), room, keep)
    note = _cut_note(len(text) - room)
    return "\n".join(filter(None, (text[:ahead], note, text[len(text) - after :])))


def _cut_note(characters: int) -> str:
    return f"[cut: {characters} {pluralize(characters, 'character')} left out]"


def _fit_json(value: object, limit: int, keep: Keep) -> str:
    """Return JSON text of `value` in at most `limit` characters, with as much of each string, list and object as fits.

    A few guesses, then a binary search, find the length of strings that uses at least 31/32 of the room.
    """
    shortened = next(least for least in ('"[cut]"', '""', "0", "") if len(least) <= max(limit, 0))
    fits, too_much, most, guesses = -1, _ITEM * limit + 1, limit // 4, 4
    while too_much - fits > 1:
        most = min(max(most, fits + 1), too_much - 1)
        text = ""
        with suppress(OverflowError):
            text = _encode_json(_abridge(value, most, [limit], keep))
        if text and len(text) <= limit:
            fits, shortened = most, text
            if len(text) > limit - limit // 32:
                break
        else:
            too_much = most
        guesses -= 1
        most = most * limit // len(text) if text and guesses > 0 else (fits + too_much) // 2
    return shortened


_ITEM = 4
"""For each item of a list or an object, so many characters of each string are shown. This keeps records whole."""
_LEAST_ITEM = 2
"""The characters of an item with its comma, at least."""


def _abridge(value: Any, most: int, room: list[int], keep: Keep) -> Any:
    """Return `value` with at most `most` characters of each string, a quarter as many items, and notes on the rest.

    Raises:
        OverflowError: The result would not fit into `room`.
    """
    if type(value) in _NOTHING_INSIDE:
        return value
    shown = most if isinstance(value, str) else most // _ITEM
    room[0] -= min(len(value), shown) * (1 if isinstance(value, str) else _LEAST_ITEM)
    if room[0] < 0:
        raise OverflowError
    ahead, after = _split_head_and_tail(len(value), shown, keep)
    omitted = len(value) - ahead - after
    if isinstance(value, str):
        return f"{value[:ahead]}{_cut_note(omitted)}{value[len(value) - after :]}" if omitted else value
    if isinstance(value, list):
        items = value[:ahead] + value[len(value) - after :]
        shown_items = [one if type(one) in _NOTHING_INSIDE else _abridge(one, most, room, keep) for one in items]
        shown_items[ahead:ahead] = [f"[cut: {omitted} {pluralize(omitted, 'item')} left out]"] if omitted else []
        return shown_items
    pairs = [*islice(value.items(), ahead), *islice(value.items(), len(value) - after, None)]
    shown_pairs = [
        (key, one if type(one) in _NOTHING_INSIDE else _abridge(one, most, room, keep)) for key, one in pairs
    ]
    note = "[cut]"
    while note in value:
        note = f"[{note}]"
    shown_pairs[ahead:ahead] = [(note, f"{omitted} {pluralize(omitted, 'key')} left out")] if omitted else []
    return dict(shown_pairs)
