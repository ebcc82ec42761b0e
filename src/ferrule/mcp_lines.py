"""JSON-RPC with one message a line, as MCP has it over standard input and output; for clients and servers."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from itertools import islice
from typing import Any, NamedTuple

from mcp_types import INVALID_REQUEST, PARSE_ERROR, JSONRPCMessage, jsonrpc_message_adapter
from pydantic import ValidationError

UNREADABLE_ANSWER = "its answer could not be read"
"""How the error begins that a request gets in place of an answer that cannot be read."""
MOST_VALUES = 200_000
"""Of one message: a parser makes objects of all of them, on the loop, in 2.6 µs for each of the smallest."""
_JSON_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A text in JSON. One without an end goes to the end of the message, so that no part is read twice."""
_BYTES_BEFORE = b"\xef\xbb\xbf \t\r\0"
"""A byte order mark, and other bytes that may stand before a message."""
_START = re.compile(rb'(\[?)\s*+\{\s*+"')
_JSON_TOKEN = re.compile(
    rb'["\[\]{}]'  # alone in front, so that the search for the next one is fast
    rb'(?:(?<=")(?P<text>[^"\\]*+(?:\\.[^"\\]*+)*+)(?:"|\\?\Z)'
    rb'(?P<colon>\s*+:\s*+(?P<value>"[^"\\]{0,200}+"|-?\d{1,18}(?:\.0{1,9}+)?+(?![\w.]))?)?+)?+',
    re.DOTALL,
)
_MOST_TOKENS = 200_000
"""Bounds the search for ids to a tenth of a second."""
_ANSWER_KEYS = frozenset({b"id", b"result", b"error"})
_RAW_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
_HALF_PAIR = re.compile(
    r"(?P<before>(?:[^\\]++|\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\(?!u[dD][89a-fA-F][0-9a-fA-F]{2}).)*+)"
    r"(?:(?P<half>\\u[dD][0-9a-fA-F]{3})|\\?\Z)",
    re.DOTALL,
)
_MOST_HALVES, _LONGEST_REPAIRED_LINE = 10_000, 10_000_000


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


class Envelope(NamedTuple):
    """One object of an unreadable line, as far as its top level can be seen.

    Attributes:
        is_answer: Whether it was meant to answer a request.
        id: The request's id, `3` for `3.0` as well; None if there is none that could name a request.
    """

    is_answer: bool
    id: int | str | None


class UnreadableLine(NamedTuple):
    """A line that is not one message.

    Attributes:
        code: The error of JSON-RPC: `PARSE_ERROR`, or `INVALID_REQUEST` if the line is JSON.
        envelopes: The messages that it looks like: several for a batch, none for anything but JSON objects.
    """

    code: int
    envelopes: list[Envelope]


def parse_line(line: bytes) -> JSONRPCMessage | UnreadableLine:
    """Return the message of a line, or what can be said about a line that is none."""
    if has_too_many_values(line):
        return UnreadableLine(PARSE_ERROR, _read_envelopes(line, is_json=False))
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        code = PARSE_ERROR if first["type"] == "json_invalid" else INVALID_REQUEST
        return UnreadableLine(code, _read_envelopes(line, is_json=code == INVALID_REQUEST))


def has_too_many_values(message: bytes) -> bool:
    """Whether a message in JSON has more values than may be read, by what stands before each of them."""
    return _value_starts(message) > MOST_VALUES and _value_starts(_JSON_TEXT.sub(b"", message)) > MOST_VALUES


def _value_starts(message: bytes) -> int:
    return message.count(b",") + message.count(b"[") + message.count(b"{")


def replace_broken_characters(line: bytes) -> bytes:
    """Return the line with U+FFFD for bytes that are not UTF-8, and for halves of surrogate pairs, escaped or not. A
    line of more than 10 MB is returned as it is."""
    if len(line) > _LONGEST_REPAIRED_LINE:
        return line
    text = _RAW_SURROGATE.sub("\ufffd".encode(), line).decode("utf-8", "replace")
    return _HALF_PAIR.sub(_replace_half, text, _MOST_HALVES).encode()


def _replace_half(match: re.Match[str]) -> str:
    return match[0] if match["half"] is None else match["before"] + "\\ufffd"


def _read_envelopes(line: bytes, *, is_json: bool) -> list[Envelope]:
    """Find the objects of the top level, or of a batch, also in text that no parser takes."""
    line = line.lstrip(_BYTES_BEFORE)
    start = _START.match(line)
    if start is None:
        return []
    top, depth = 1 + len(start[1]), 0
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


def _is_answer(object_: dict[bytes, bytes | None], *, is_json: bool) -> bool:
    keys = object_.keys()
    if b"jsonrpc" in keys or b"method" in keys:
        return b"method" not in keys
    # Log lines are often JSON, too: without a version, only what looks like nothing else is an answer.
    return keys <= _ANSWER_KEYS and (not is_json or (b"id" in keys and len(keys) > 1))


def _read_id(value: bytes | None) -> int | str | None:
    if value is None or not value.startswith(b'"'):
        return None if value is None else int(value.partition(b".")[0])
    return value[1:-1].decode("utf-8", "replace")
