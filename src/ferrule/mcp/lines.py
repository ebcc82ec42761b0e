"""JSON-RPC with one message a line, MCP's format for standard input and output; for clients and servers."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from itertools import islice
from typing import Annotated, Any, NamedTuple, Self

import anyio
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.message import SessionMessage
from mcp_types import (
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)
from pydantic import Field, TypeAdapter, ValidationError, model_validator

UNREADABLE_ANSWER = "its answer could not be read"
"""The beginning of the error for a request whose answer cannot be read."""
LOST = ErrorData(code=PARSE_ERROR, message=UNREADABLE_ANSWER)
MAX_VALUES = 200_000
"""Most values of one message. The parser makes an object of each on the event loop, in at least 2.6 µs."""
_JSON_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A text in JSON. One without an end goes to the end of the message, so no part is read twice."""
_BYTES_BEFORE = b"\xef\xbb\xbf\xff\xfe\xbd \t\r"
"""A byte order mark of any encoding, or U+FFFD in its place, and blanks."""
_START = re.compile(rb'([\[\s]*+)\{\s*+"')
_OTHER_NOTATION = re.compile(rb"""[\s\[{"'\\]*+jsonrpc["'\\]*+\s*+:\s*+["'\\]*+2\.0(?!.{0,60}\bmethod\b)""", re.DOTALL)
"""A message in the style of `print(dict)`, `console.log` or an indenting writer, or one encoded as JSON twice."""
_JSON_TOKEN = re.compile(
    rb'["\[\]{}]'  # alone in front, for a fast search for the next one
    rb'(?:(?<=")(?P<text>[^"\\]*+(?:\\.[^"\\]*+)*+)(?:"|\\?\Z)'
    rb'(?P<colon>\s*+:\s*+(?P<value>"[^"\\]{0,200}+"|-?\d{1,18}(?:\.0{1,9}+)?+(?=\s*+[,}]))?)?+)?+',
    re.DOTALL,
)
_MOST_TOKENS = 200_000
"""Bounds the search for ids to a tenth of a second."""
_ANSWER_KEYS = frozenset({b"id", b"result", b"error"})
_TERMINAL_CODE = re.compile(
    rb"\x1b(?:\[[0-?]*+[ !#-/]*+[@-~]"  # a control sequence
    rb'|[]PX^_][^\x07\x1b"]*+(?:\x07|\x1b\\)'  # a command or a text for the terminal, such as its title
    rb"|[ !#-/]*+[0-~])"
)
"""An escape sequence of ECMA-48; valid JSON never has one. It has no quotation mark, so it ends in its JSON text."""
_UNSEEN = bytes([*range(1, 33), 127])
"""Blanks, and control characters such as the bell."""
_RAW_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
_HALF_PAIR = re.compile(
    r"(?P<before>(?:[^\\]++|\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\(?!u[dD][89a-fA-F][0-9a-fA-F]{2}).)*+)"
    r"(?:(?P<half>\\u[dD][0-9a-fA-F]{3})|\\?\Z)",
    re.DOTALL,
)
_MOST_HALVES, _LONGEST_REPAIRED_LINE = 10_000, 10_000_000
_LONGEST_LOGGED = 4_000


class _Notification(JSONRPCNotification):
    """A notification, without an id: one that is not valid belongs to a request."""

    id: None = None

    @model_validator(mode="after")
    def _check_id(self) -> Self:
        """Refuse a request whose id is null, which MCP forbids. A notification may have a null there."""
        if "id" in self.model_fields_set and not self.method.startswith("notifications/"):
            raise ValueError("a request has an id")
        return self

    @model_validator(mode="after")
    def _check_progress(self) -> Self:
        """Refuse numbers too large for a float: the SDK's reader breaks of them."""
        if self.method == "notifications/progress":
            for key in ("progress", "total"):
                if isinstance(number := (self.params or {}).get(key), int) and abs(number) > sys.float_info.max:
                    raise ValueError(f"{key} is too large")
        return self


_MESSAGE: TypeAdapter[JSONRPCMessage] = TypeAdapter(
    # A server may write its answer into the request that it got: try answers before messages with a method.
    Annotated[JSONRPCError | JSONRPCResponse | JSONRPCRequest | _Notification, Field(union_mode="left_to_right")]
)


class LineBuffer:
    """Splits a stream of bytes into lines, with bounded memory.

    Args:
        longest: Bytes of a line. A longer line is cut there and returned at once; its rest is skipped.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._begun = bytearray()
        self._skips = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that end in these bytes, and the beginning of one that has just become too long."""
        lines: list[bytes] = []
        *ends, rest = data.split(b"\n")
        for end in ends:
            self._append(end, lines)
            if not self._skips:
                lines.append(bytes(self._begun))
            self._begun.clear()
            self._skips = False
        self._append(rest, lines)
        return lines

    def _append(self, part: bytes, lines: list[bytes]) -> None:
        if self._skips:
            return
        self._begun += part
        if len(self._begun) > self._longest:
            lines.append(bytes(self._begun[: self._longest]))
            self._begun = bytearray()
            self._skips = True


class MessageStream:
    """The messages of an async generator, as the stream that the SDK reads."""

    def __init__(self, messages: AsyncGenerator[Any, None]) -> None:
        self._messages = messages

    async def __aenter__(self) -> MessageStream:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.aclose()

    def __aiter__(self) -> MessageStream:
        return self

    async def __anext__(self) -> Any:
        return await anext(self._messages)

    async def receive(self) -> Any:
        """Return the next message."""
        return await anext(self._messages)

    async def aclose(self) -> None:
        """Read no further."""
        await self._messages.aclose()


class MessageWriter:
    """The stream of messages that the SDK writes to.

    Args:
        write: Writes one line.

    Attributes:
        requests: The requests among these messages.
    """

    def __init__(self, write: Callable[[bytes], Awaitable[object]]) -> None:
        self.requests = OpenRequests()
        self._write = write
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        return None

    async def aclose(self) -> None:
        """Do nothing: what has been sent is written."""

    async def send(self, item: SessionMessage) -> None:
        """Write one message.

        Raises:
            BrokenResourceError: Nobody reads it.
        """
        data = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        async with self._turn:
            self.requests.on_sent(item.message)
            try:
                await self._write(data)
            except OSError as error:
                raise anyio.BrokenResourceError from error


class Envelope(NamedTuple):
    """One object of an unreadable line, as far as its top level can be seen.

    Attributes:
        is_answer: Whether it was meant to answer a request; None if that cannot be seen.
        id: The request's id, `3` for `3.0` as well; None if there is none that could name a request.
    """

    is_answer: bool | None
    id: int | str | None


class UnreadableLine(NamedTuple):
    """A line that is not one message.

    Attributes:
        code: The error of JSON-RPC: `PARSE_ERROR`, or `INVALID_REQUEST` if the line is JSON.
        envelopes: The messages that it looks like: several for a batch, none for anything but JSON objects.
    """

    code: int
    envelopes: list[Envelope]

    @property
    def lost_answers(self) -> list[int | str | None]:
        """The ids of what may be answers. A request of a server's is lost either way."""
        return [one.id for one in self.envelopes if one.is_answer is not False]


class OpenRequests:
    """The requests sent by one side of a connection, with the search for the owner of a lost answer.

    A lost answer without a readable id belongs to one of the requests that were open then. They are its suspects; as
    soon as there are no more suspects than lost answers, all of them have failed. An error without an id belongs to
    none if a notification was sent just before: some servers answer these with an error.
    """

    def __init__(self) -> None:
        self._open: dict[RequestId, str] = {}  # with their methods
        self._suspects: set[RequestId] = set()
        self._lost = 0
        self._notifications = 0  # sent, and perhaps answered yet
        self._sent_since: set[RequestId] = set()  # an answer to one means that notifications get none

    def on_sent(self, message: JSONRPCMessage) -> None:
        """Register a request, the cancellation of one, or any other notification."""
        if isinstance(message, JSONRPCRequest):
            if message.method == "initialize":
                self._open.clear()  # an earlier probe is abandoned without a message
            if message.method != "subscriptions/listen":  # its answer comes when listening ends
                self._open[coerce_request_id(message.id)] = message.method
                self._sent_since.add(coerce_request_id(message.id))
        elif isinstance(message, JSONRPCNotification):
            self._notifications += 1
            self._sent_since.clear()
            if message.method == "notifications/cancelled":
                self._forget(coerce_request_id((message.params or {})["requestId"]))

    def parse(self, line: bytes) -> JSONRPCMessage | UnreadableLine:
        """Parse a line of the other side. An open request that it sends back is not one of its own."""
        found = parse_line(line)
        if isinstance(found, JSONRPCRequest) and self._open.get(coerce_request_id(found.id)) == found.method:
            return UnreadableLine(INVALID_REQUEST, _read_envelopes(line, is_json=True))
        return found

    def read(self, line: bytes, log: Callable[[str], object]) -> Iterator[JSONRPCMessage]:
        """Yield the message of a server's line, after repair of its characters if needed, and an error for each request
        with a lost answer. Anything else is noise, and is logged."""
        found = self.parse(line)
        if isinstance(found, UnreadableLine) and (repaired := repair_characters(line).strip(_UNSEEN)) != line:
            line, found = repaired, self.parse(repaired)
        if isinstance(found, UnreadableLine) and b"\r" in line:
            # A terminal shows no more than follows a carriage return, but one may also stand in the text of an answer.
            shown = line.rpartition(b"\r")[2].lstrip(_UNSEEN)
            last = self.parse(shown)
            if not (isinstance(last, UnreadableLine) and found.lost_answers):
                line, found = shown, last
        if isinstance(found, UnreadableLine):
            answers = found.lost_answers
            if _is_error_without_id(found, line) and self._answers_notification():
                answers = []
            for request_id in answers:
                yield from self.on_lost_answer(request_id)
            if (text := line[:_LONGEST_LOGGED].decode("utf-8", "replace")).strip():
                log(f"{'an answer could not be read' if answers else 'no message'}: {text}")
        elif isinstance(found, JSONRPCResponse | JSONRPCError):
            yield from self.on_answer(found)
        else:
            yield found

    def on_answer(self, answer: JSONRPCResponse | JSONRPCError) -> Iterator[JSONRPCMessage]:
        """Yield the answer, and an error for each request that must have failed. An error without an id means that the
        other side could not read a request, so it replaces the answer."""
        if answer.id is None:
            assert isinstance(answer, JSONRPCError)
            if not self._answers_notification():
                yield from self._fail(self._lose(None), answer.error)
        else:
            yield answer
            yield from self._fail(self._remove(coerce_request_id(answer.id)), LOST)

    def on_lost_answer(self, request_id: RequestId | None) -> Iterator[JSONRPCMessage]:
        """Yield an error for each request that has failed because an answer could not be read."""
        yield from self._fail(self._lose(None if request_id is None else coerce_request_id(request_id)), LOST)

    def _answers_notification(self) -> bool:
        """Take an error without an id for the answer to a notification, if one may be answered yet."""
        if not self._notifications:
            return False
        self._notifications -= 1
        return True

    def _fail(self, failed: set[RequestId], error: ErrorData) -> Iterator[JSONRPCMessage]:
        for request_id in failed:
            yield JSONRPCError(jsonrpc="2.0", id=request_id, error=error)

    def _remove(self, request_id: RequestId) -> set[RequestId]:
        """Remove a request that was answered. Return the requests that have failed because of it."""
        if request_id in self._sent_since:
            self._notifications = 0
            self._sent_since.clear()
        self._open.pop(request_id, None)
        self._suspects.discard(request_id)
        return self._pop_failed()

    def _forget(self, request_id: RequestId) -> None:
        """Remove a request whose answer nobody waits for. A suspect was probably cancelled because its answer was
        lost."""
        self._open.pop(request_id, None)
        if request_id in self._suspects:
            self._suspects.discard(request_id)
            self._lost -= 1
            if self._lost == 0:
                self._suspects.clear()

    def _lose(self, request_id: RequestId | None) -> set[RequestId]:
        if request_id is not None:
            named = {request_id} & self._open.keys()
            return named | self._remove(request_id)
        if not self._open:
            return set()
        self._suspects |= self._open.keys()
        self._lost += 1
        return self._pop_failed()

    def _pop_failed(self) -> set[RequestId]:
        if len(self._suspects) > self._lost:
            return set()
        failed = self._suspects
        for request_id in failed:
            self._open.pop(request_id, None)
        self._suspects, self._lost = set(), 0
        return failed


def _is_error_without_id(found: UnreadableLine, line: bytes) -> bool:
    is_object = found.code == INVALID_REQUEST and [Envelope(is_answer=True, id=None)] == found.envelopes
    return is_object and b'"error"' in line and b'"result"' not in line


def parse_line(line: bytes) -> JSONRPCMessage | UnreadableLine:
    """Return the message of a line, or a description of an unreadable line."""
    if has_too_many_values(line):
        return UnreadableLine(PARSE_ERROR, _read_envelopes(line, is_json=False))
    try:
        return _MESSAGE.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        code = PARSE_ERROR if first["type"] == "json_invalid" else INVALID_REQUEST
        return UnreadableLine(code, _read_envelopes(line, is_json=code == INVALID_REQUEST))


def may_answer(body: bytes, request_id: RequestId) -> bool:
    """Return whether a body may be the answer to a request: it names the request, or is cut before an id."""
    found = parse_line(body)
    if not isinstance(found, UnreadableLine):
        return coerce_request_id(getattr(found, "id", None) or "") == request_id
    is_cut = found.code == PARSE_ERROR and None in found.lost_answers
    return is_cut or any(coerce_request_id(one or "") == request_id for one in found.lost_answers)


def has_too_many_values(message: bytes) -> bool:
    """Return whether a message in JSON has too many values, by the characters before each of them."""
    return _value_starts(message) > MAX_VALUES and _value_starts(_JSON_TEXT.sub(b"", message)) > MAX_VALUES


def _value_starts(message: bytes) -> int:
    return message.count(b",") + message.count(b"[") + message.count(b"{")


def repair_characters(line: bytes) -> bytes:
    """Return the line without the codes of a terminal, and with U+FFFD for bytes that are not UTF-8 and for halves of
    surrogate pairs, escaped or not. A line of more than 10 MB is returned unchanged."""
    if len(line) > _LONGEST_REPAIRED_LINE:
        return line
    line = _TERMINAL_CODE.sub(b"", line)
    text = _RAW_SURROGATE.sub("\ufffd".encode(), line).decode("utf-8", "replace")
    return _HALF_PAIR.sub(_replace_half, text, _MOST_HALVES).encode()


def _replace_half(match: re.Match[str]) -> str:
    return match[0] if match["half"] is None else match["before"] + "\\ufffd"


def _read_envelopes(line: bytes, *, is_json: bool) -> list[Envelope]:
    """Find the objects of the top level, or of a batch, also in text without valid syntax."""
    line = line.replace(b"\0", b"").lstrip(_BYTES_BEFORE)  # without these, UTF-16 is readable enough
    start = _START.match(line)
    if start is None:
        return [Envelope(None, None)] if _OTHER_NOTATION.match(line) else []
    top, depth = 1 + start[1].count(b"["), 0
    objects: list[dict[bytes, bytes | None]] = []
    for token in islice(_JSON_TOKEN.finditer(line), _MOST_TOKENS):
        mark = token[0][:1]
        if mark in b"{[":
            depth += 1
            if depth == top and mark == b"{":
                objects.append({})
        elif mark in b"}]":
            depth -= 1
        elif depth == top and objects and token["colon"] is not None:
            objects[-1][token["text"]] = token["value"]
    return [Envelope(_is_answer(one, is_json=is_json), _read_id(one.get(b"id"))) for one in objects]


def _is_answer(object_: dict[bytes, bytes | None], *, is_json: bool) -> bool | None:
    keys = object_.keys()
    has_version = b"jsonrpc" in keys
    if b"result" in keys or b"error" in keys:  # also beside a method, in an answer written into its request
        # Log lines are often JSON, too: without a version, an answer has only the keys of an answer.
        return has_version or (keys <= _ANSWER_KEYS and (not is_json or b"id" in keys))
    if b"method" in keys:
        return False
    return None if has_version or (keys <= _ANSWER_KEYS and not is_json) else False


def _read_id(value: bytes | None) -> int | str | None:
    if value is None or not value.startswith(b'"'):
        return None if value is None else int(value.partition(b".")[0])
    return value[1:-1].decode("utf-8", "replace")
