"""Shared code of the provider modules' streams: one way to feed and to read them, and chunks of text joined once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from ferrule.providers import Stop
from ferrule.providers._api import End, ReadReason, ReadStop, not_run_problem
from ferrule.providers._wire import get_fields, parse_id, parse_object_or_text, read, to_plain
from ferrule.values.call import ToolCall
from ferrule.values.content import clean_text, to_json_text


class Readers(NamedTuple):
    """The functions of a provider module that read a whole response."""

    calls: Callable[[Any], list[ToolCall]]
    text: Callable[[Any], str]
    turn: Callable[[Any], list[Any]]
    stop: ReadStop
    reason: ReadReason
    state: Callable[[Any], Mapping[str, Any]]
    end: Callable[[Any], End]


EventT = TypeVar("EventT")
MessageT = TypeVar("MessageT")


class TurnStream(Generic[EventT, MessageT]):
    """A turn that comes event by event, and can be read like a response at any time; the base of every `Stream`.

    A provider's own class has the readers of whole responses, `readers=Readers(...)`, and defines the meaning of its
    events:

        _append_chunk(event)    adds a chunk to an unfinished text, as nearly all events do; returns whether it did
        _read_event(event)           reads any other event, and ignores unknown ones
        _assembled()            the response so far, in the form for `calls`, `turn` and `stop`
    """

    __slots__ = ("_error",)
    _readers: ClassVar[Readers]

    def __init_subclass__(cls, *, readers: Readers | None = None) -> None:
        super().__init_subclass__()
        if readers is not None:
            cls._readers = readers

    def __init__(self) -> None:
        self._error: str | None = None

    def feed(self, event: EventT) -> None:
        """Take the next event, an SDK object or a dict. Unknown events are ignored."""
        error = error_in_event(event)
        if error is not None:
            self._error = error
        self._read_event(event)

    def _read_event(self, event: Any) -> None:
        raise NotImplementedError

    def _assemble(self) -> dict[str, Any]:
        raise NotImplementedError

    def _begin_response(self, known: Any, begun: Any) -> None:
        """Forget the response `known` if another one begins: a server that asks its model again sends the new answer
        after a part of the old one, and the model has not made the calls in that part."""
        ids = [parse_id(read(response, "id")) for response in (known, begun)]
        if known and ids[0] != ids[1]:
            error = self._error
            self.__init__()  # type: ignore[misc]
            self._error = error

    def calls(self) -> list[ToolCall]:
        """Return the calls so far."""
        found = self._readers.calls(self._assemble())
        if self._error is None:
            return found
        problem = not_run_problem(f"the turn ended in an error ({self._error})")
        return [call.replace(problem=problem) for call in found]

    def partial(self) -> dict[str, Any]:
        """Return the response so far, in the form of one without a stream."""
        return to_plain(self._assemble())  # type: ignore[no-any-return]

    def turn(self) -> list[MessageT]:
        """Return the assistant's turn so far, with its signatures."""
        return self._readers.turn(self._assemble())

    @property
    def stop(self) -> Stop:
        """The reason why the model stopped; `"other"` before its end, and after an error."""
        return "other" if self._error is not None else self._readers.stop(self._assemble())

    @property
    def has_ended(self) -> bool:
        """Whether the API has reported the end of the turn, or an error. It is still false if the connection broke."""
        return self._error is not None or not self._readers.end(self._assemble()).open

    @property
    def error(self) -> str | None:
        """The error that the API reported in an event of the stream; no call of such a turn may run."""
        return self._error

    @property
    def reason(self) -> str | None:
        """The reason why the answer is missing or incomplete, in the API's own words if it has some; never `None` if
        `stop` is neither `"end"` nor `"calls"`."""
        return self._error if self._error is not None else self._readers.reason(self._assemble())

    def state(self) -> dict[str, Any]:
        """Return the data for the next request besides the messages, as keyword arguments."""
        return dict(self._readers.state(self._assemble()))


_LONGEST_ERROR = 1_000


def error_in_event(event: Any) -> str | None:
    """Return the error in an event, in any of the APIs' forms: `{"error": {...}}`, `{"error": text}` or
    `{"type": "error", "message": text}`."""
    fields = get_fields(event)
    inner = fields.get("data")
    if inner is not None:
        fields = get_fields(inner)
    error = fields.get("error")
    if error is None and "error" in (fields.get("type"), fields.get("event_type"), fields.get("object")):
        error = fields
    return describe_api_error(error) if error else None


def describe_api_error(error: Any) -> str:
    """Return an API's error as `kind: message`, or any other value as text."""
    fields = get_fields(error)
    message = fields.get("message")
    kinds = [fields.get(key) for key in ("code", "type", "status")]
    kind = next((one for one in kinds if isinstance(one, str) and one and one != "error"), None)
    if isinstance(message, str) and message:
        text = f"{kind}: {message}" if kind else message
    else:
        text = error if isinstance(error, str) else kind or to_json_text(to_plain(error))
    return clean_text(text)[:_LONGEST_ERROR]


def join_chunks(chunks: Sequence[str]) -> str:
    """Return the text of these chunks. A character that was cut in two is whole again."""
    text = "".join(chunks)
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    return text


def join_arguments(chunks: Sequence[str]) -> str:
    """Return the arguments of these chunks. Some servers send `{}` first, and then the real ones."""
    first = next((place for place, chunk in enumerate(chunks) if chunk), 0)
    if chunks and chunks[first].strip() == "{}" and any(map(str.strip, islice(chunks, first + 1, None))):
        chunks = chunks[first + 1 :]
    return join_chunks(chunks)


def chunk_text(value: Any) -> str:
    """Return a chunk as text; empty for null."""
    return value if isinstance(value, str) else "" if value is None else to_json_text(to_plain(value))


def as_index(value: Any) -> int | None:
    """Return `value` if it can be an index."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


_MODEL_TEXTS = frozenset(
    [
        *("content", "text", "refusal", "reasoning", "reasoning_content", "reasoning_text", "thinking", "summary"),
        *("arguments", "input", "data", "transcript"),
    ]
)
"""The texts that a model writes, chunk by chunk."""
LABELS = frozenset({"id", "type", "format", "role", "name", "channel"})
"""The fields that label something: the newest value counts."""


def join_text(key: str, chunks: Sequence[str]) -> str:
    """Return the text of these chunks under `key`. A text that no model writes may be repeated in each chunk: if all
    chunks are equal, return one of them."""
    if key not in _MODEL_TEXTS and len(chunks) > 1 and len(set(chunks) - {""}) == 1:
        return join_chunks([max(chunks)])
    return join_chunks(chunks)


def merge_delta(whole: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Add a delta to `whole`. Texts are continued (except `LABELS`). Lists are continued too, by the `index` of their
    items if these have one. Null changes nothing, and any other value replaces the old one.

    Chunks of a text stay in a list until `merged_value`, so that a long text is joined once.
    """
    for key, value in delta.items():
        if value is None:
            whole.setdefault(key, None)
        elif isinstance(whole.get(key), _TextChunks) and not isinstance(value, str):
            continue  # the text so far stays
        elif isinstance(value, str) and key not in LABELS:
            previous = whole.get(key)
            if isinstance(previous, _TextChunks):
                previous.append(value)
            else:
                whole[key] = _TextChunks([value])
        elif isinstance(value, Mapping):
            inner = whole.get(key)
            if not isinstance(inner, dict):
                inner = whole[key] = {}
            merge_delta(inner, value)
        elif isinstance(value, list):
            _extend(whole, key, value)
        else:
            whole[key] = value


class _TextChunks(list[str]):
    """Chunks of one text."""


def continue_text(parts: list[Any], text: str, like: Mapping[str, Any]) -> None:
    """Add a chunk to the text at the end of `parts`, or to a new part if the last one is not `like` it. `merged_value`
    joins the chunks.

    Args:
        like: The fields of the part besides its text.
    """
    last = parts[-1] if parts else None
    if not isinstance(last, dict) or {**last, "text": None} != {**like, "text": None}:
        last = None
    if last is None or not isinstance(last.get("text"), _TextChunks):
        last = {**like, "text": _TextChunks()}
        parts.append(last)
    last["text"].append(text)


def _extend(whole: dict[str, Any], key: str, items: list[Any]) -> None:
    previous = whole.get(key)
    if not isinstance(previous, _IndexedItems):
        previous = whole[key] = _IndexedItems()
    for item in items:
        at = as_index(item.get("index")) if isinstance(item, Mapping) else None
        if at is None:
            previous.append({} if isinstance(item, Mapping) else item)
        elif at not in previous.positions:
            previous.positions[at] = len(previous)
            previous.append({})
        if isinstance(item, Mapping):
            merge_delta(previous[-1 if at is None else previous.positions[at]], item)


class _IndexedItems(list[Any]):
    """Items of one list, and the positions of those with an index."""

    def __init__(self) -> None:
        self.positions: dict[int, int] = {}


def merged_value(value: Any, key: str = "text") -> Any:
    """Return the data that `merge_delta` has collected under `key`, as plain data."""
    if isinstance(value, _TextChunks):
        return join_text(key, value)
    if isinstance(value, dict):
        return {name: merged_value(item, name) for name, item in value.items()}
    return [merged_value(item, key) for item in value] if isinstance(value, list) else value


class _Indexed(Protocol):
    index: int | None


BlockT = TypeVar("BlockT", bound=_Indexed)


class Blocks(list[BlockT]):
    """The blocks of one turn, in the order of their beginnings.

    Attributes:
        by_index: The newest block under each index, and the newest of all under `None`.
        by_id: The newest block of each id.
    """

    def __init__(self) -> None:
        self.by_index: dict[int | None, BlockT] = {}
        self.by_id: dict[str, BlockT] = {}

    def begin(self, id: str | None, block: BlockT) -> BlockT:
        """Return `block`, or the block with the same id and index if there is one."""
        known = self.by_id.get(id) if id else None
        if known is not None and known.index == block.index:
            block = known
        else:
            self.append(block)
        self.make_newest(id, block)
        return block

    def make_newest(self, id: str | None, block: BlockT) -> None:
        """Assign later chunks for this id, and for the block's index, to the block."""
        if id:
            self.by_id[id] = block
        self.by_index[block.index] = self.by_index[None] = block


class StreamedCall:
    """One call, with the chunks of its arguments."""

    __slots__ = ("_whole", "arguments", "id", "index", "kind", "more", "name", "object")

    def __init__(self, id: str | None, index: int | None) -> None:
        self.id = id
        self.index = index
        self.name = ""
        self.arguments: list[str] = []
        self.object: Mapping[str, Any] | None = None
        self.kind = "function"
        self.more: dict[str, Any] = {}
        self._whole: bool | None = None

    def add(self, name: Any, given: Any) -> None:
        """Add a chunk of the arguments and of the name. Some servers repeat the name."""
        if isinstance(name, str) and name != self.name:
            self.name += name
        if isinstance(given, str) and given:
            self.arguments.append(given)
        elif isinstance(given, Mapping) and given:
            self.object = given

    def ends_before(self, name: Any, given: Any) -> bool:
        """Return whether a chunk without an id begins another call: it has a name, and this call is complete.

        Some servers send every call whole, all under the index 0; others repeat the name with every chunk.
        """
        if not name or not self.name:
            return False
        if name != self.name:
            return True
        if isinstance(given, Mapping):
            return self.object is not None or bool(self.arguments)
        begins = isinstance(given, str) and given.lstrip().startswith("{")
        return self.object is not None or (begins and self._is_whole(given))

    def _is_whole(self, following: str) -> bool:
        """Return whether the arguments so far are an object. `{}` may come before the real ones."""
        if len(self.arguments) == 1 and self.arguments[0].strip() == "{}":
            return following.strip() == "{}"
        if self._whole is None and self.arguments and self.arguments[-1].rstrip().endswith("}"):
            self._whole = isinstance(parse_object_or_text(join_arguments(self.arguments)), dict)
        return self._whole is True

    def assemble(self) -> dict[str, Any]:
        """Return the call in the form of a message."""
        found: dict[str, Any] = {"id": self.id} if self.id else {}
        given: Any = join_arguments(self.arguments) if self.object is None or self.arguments else self.object
        fields = {"name": self.name, "input" if self.kind == "custom" else "arguments": given}
        return {**found, "type": self.kind, self.kind: fields, **merged_value(self.more)}


class StreamedCalls(Blocks[StreamedCall]):
    """The calls of one turn, in the order of their beginnings. Chunks find their calls by id, then by index."""

    def add(
        self, id: str | None, index: int | None, name: Any, given: Any, calls_in_event: set[StreamedCall]
    ) -> StreamedCall:
        """Add a call, or a chunk of one. `calls_in_event` are the calls that the same event has named already."""
        call = self._find(id, index, name, given)
        if call is None or (name and call in calls_in_event):
            call = self.begin_call(id, index)
        elif id and not call.id:
            call.id = id
            self.by_id[id] = call
        calls_in_event.add(call)
        call.add(name, given)
        return call

    def _find(self, id: str | None, index: int | None, name: Any, given: Any) -> StreamedCall | None:
        at = self.by_index.get(index)
        call = at if not id or (at is not None and at.id == id) else self.by_id.get(id)
        if call is not None and id and name and None not in (index, call.index) and index != call.index:
            return None  # a known id under another index
        if call is None and at is not None:  # a new id under a used index belongs to another call, or comes late
            return None if at.id or (name and at.name) else at
        if call is not None and not id and call.ends_before(name, given):
            return None
        return call

    def begin_call(self, id: str | None, index: int | None) -> StreamedCall:
        """Add a new call, even if there is one of this id and index."""
        call = StreamedCall(id, index)
        self.append(call)
        self.make_newest(id, call)
        return call

    def assemble(self) -> list[dict[str, Any]]:
        """Return the calls in the form of a message."""
        return [call.assemble() for call in self]
