"""The HTTP client of a connection. A failed request becomes an error in its answer, and ends no other request. Every
request passes here, those of OAuth as well, so each body is bounded, and a server can send this client only to allowed
addresses."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import secrets
import sys
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, Literal, TypeAlias
from urllib.parse import parse_qs

import httpx2
import mcp_types as types
from mcp.client.auth import OAuthFlowError
from mcp.client.streamable_http import MCP_SESSION_ID
from mcp.shared._httpx_utils import next_request_within_origin
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.exceptions import MCPError
from pydantic_core import to_json

from ferrule import FerruleError
from ferrule.mcp._log import ServerLog
from ferrule.mcp._reach import Reach
from ferrule.mcp.lines import (
    LOST,
    MAX_VALUES,
    UNREADABLE_ANSWER,
    LineBuffer,
    OpenRequests,
    has_too_many_values,
    may_answer,
)
from ferrule.security.http import HTTP_LOGS_ARE_OFF, NotReachableError
from ferrule.security.masking import format_masked_error

_TIMEOUT = httpx2.Timeout(30.0, read=300.0)
"""The SDK's own timeout: a server may hold the stream of an answer open."""
_TIMEOUT_BESIDE = httpx2.Timeout(30.0)
_POOL_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
"""No limit of connections: the runner bounds the calls under way, and a server of 2025 may hold a cancelled call."""
_NOT_CONNECTED = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_LEAVE_SECONDS = 2.0
_LONGEST_DELIVERY, _MOST_DELIVERIES = 30.0, 16
"""Seconds for the server to take a notification, or a reply to a question of its own; and how many of each are sent at
once, because a server may ask much and take none."""
_NOTIFICATION, _INITIALIZED = b'{"jsonrpc":"2.0","method":', b'"method":"notifications/initialized"'
_BETWEEN_STREAMS = 1.0
"""Least seconds between a task's last request and its next request for a stream: a server may send `retry: 0`."""
_LAST_REQUEST: ContextVar[float] = ContextVar("when a task has sent its last request", default=-math.inf)
_MOST_BEGIN = 1_000
Fate: TypeAlias = Literal["not sent", "broken", "forgotten", "expired", "failed"]
_SESSION_REFUSALS = (400, 401, 404)
_UNKNOWN_SESSION = re.compile(r"session[ -]?id|session not found", re.IGNORECASE)
_NO_SESSION = types.ErrorData(code=types.INVALID_REQUEST, message="no such session")
_MOST_BODY, _MOST_BESIDE = 100_000_000, 1_000_000
"""Bytes, compressed and decompressed: of an answer in JSON or of one event, and of any other body, such as OAuth's
documents. A stream of events has no limit."""
_WITHOUT_BODY = (204, 304)
_JSON_TYPE, _EVENTS_TYPE = "application/json", "text/event-stream"
_LONGEST_RETRY = 60_000
"""Most milliseconds until a stream is asked for again, whatever the server sends."""
_MESSAGE_BEGIN = b'{"jsonrpc":"2.0",'
_REQUEST = re.compile(rb'\{"jsonrpc":"2\.0","id":(\d+),"method":"([^"\\]+)"')
_MOST_A_TURN = 16_384
"""Bytes of a body for one turn of the loop: 64 KB decompress to 64 MB, with as many as 30 million events."""
_LONGEST_BESIDE = 30.0
"""Seconds for a body other than an answer of the server: OAuth's own requests have no time limit."""
_NAME_PROVED = {"http": "connection.connect_tcp.complete", "https": "connection.start_tls.complete"}
"""The trace event after which the other side of a connection has proved its name, as far as the scheme can prove it."""
_SECRET_PARAMETERS = ("assertion", "client_assertion", "client_secret", "code", "code_verifier", "refresh_token")
"""The secret parameters of a request for a token: RFC 6749, 7521, 7636."""
_BODY_HEADERS = ("content-encoding", "content-length", "transfer-encoding")


class UnreadableAnswerError(httpx2.RequestError):
    """A body is too large, or takes too long."""


class _Exchange:
    """One request of MCP, and the messages that may come back for it.

    Args:
        content: Its body. A body without a request leads to no answer, but to a stream of messages.
        log: Receives the lines that are no messages.
    """

    def __init__(self, content: bytes, log: ServerLog) -> None:
        self._warn = partial(log.add_line, level=logging.WARNING)
        self._requests = OpenRequests()
        self.id: int | None = None
        if (match := _REQUEST.match(content)) is not None:
            self.id = int(match[1])
            self._requests.on_sent(types.JSONRPCRequest(jsonrpc="2.0", id=self.id, method=match[2].decode()))

    def read(self, data: bytes) -> Iterator[types.JSONRPCMessage]:
        """Yield the messages of a body or an event. An answer to any other request counts as a lost answer to this one:
        the SDK would take it for its own or wait behind it."""
        for message in self._requests.read(data, self._warn):
            if self.id is not None and isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
                is_its_own = message.id is not None and coerce_request_id(message.id) == self.id
                yield message if is_its_own else self._make_lost_error()
            else:
                yield message

    def answer(self, body: bytes) -> types.JSONRPCMessage:
        """Return the answer in a JSON body, or an error in its place."""
        answers = types.JSONRPCResponse | types.JSONRPCError
        return next((one for one in self.read(body) if isinstance(one, answers)), self._make_lost_error())

    def _make_lost_error(self) -> types.JSONRPCError:
        return types.JSONRPCError(jsonrpc="2.0", id=self.id, error=LOST)


_EXCHANGE: ContextVar[_Exchange | None] = ContextVar(
    "the last request of a task, whose stream it may ask for again", default=None
)


class HttpClient(httpx2.AsyncClient):
    """A client that turns failures to reach the server into errors in JSON-RPC. Otherwise they would end the SDK's
    transport, and every other request with it.

    Args:
        headers: The headers of requests to the server, and of no other.
        auth: Signs these requests, and may send some of its own.
        reach: The addresses allowed for the requests of `auth`.
        log: Hides the secrets of `auth`, and receives unreadable messages.

    Attributes:
        has_session: Whether this connection has a session of the server.
    """

    def __init__(self, headers: Mapping[str, str], auth: Any, reach: Reach, log: ServerLog) -> None:
        hooks: Any = {"request": [self._check_request], "response": [self._bound_response]}
        super().__init__(headers={**headers}, auth=auth, timeout=_TIMEOUT, event_hooks=hooks, limits=_POOL_LIMITS)
        self._reach, self._log = reach, log
        self._mark = secrets.token_hex(8)
        self._deliveries = set[asyncio.Task[None]]()
        self._slots = {kind: asyncio.Semaphore(_MOST_DELIVERIES) for kind in ("notification", "reply")}
        self.has_session = False

    def fate(self, error: MCPError) -> Fate | None:
        """Return this client's finding about a request, `None` for an error of the server's own.

        `"not sent"`: there was no connection. `"broken"`: the connection broke before the answer. `"forgotten"`: the
        server has forgotten the session, and did not look at the request. `"expired"`: the session has ended, and the
        request may have been executed. `"failed"`: any other failure; its text is not for a model.
        """
        return error.data.get(self._mark) if isinstance(error.data, dict) else None

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request. A failure becomes a response with an error.

        The SDK sends one message after another, and waits for the response to each notification and reply. A server may
        never send that response, so this client returns one at once, and delivers the message in a task.
        """
        message = request.read() if request.method == "POST" else b""
        if not message.startswith(_MESSAGE_BEGIN) or _REQUEST.match(message):
            return await self._exchange(request, **options)
        delivery = asyncio.create_task(self._deliver(request))
        self._deliveries.add(delivery)
        delivery.add_done_callback(self._deliveries.discard)
        if _INITIALIZED in message:  # a server may refuse earlier messages
            await asyncio.wait([delivery], timeout=_LEAVE_SECONDS)
        return httpx2.Response(202, request=request)

    async def aclose(self) -> None:
        """Close the connections. Undelivered messages are dropped."""
        await self._cancel_deliveries()
        await super().aclose()

    async def __aexit__(self, *raised: Any) -> None:
        await self._cancel_deliveries()
        await super().__aexit__(*raised)

    async def _cancel_deliveries(self) -> None:
        for delivery in self._deliveries:
            delivery.cancel()
        await asyncio.gather(*self._deliveries, return_exceptions=True)

    async def _deliver(self, request: httpx2.Request) -> None:
        """Send a message without an answer: a notification, or a reply."""
        kind = "notification" if request.content.startswith(_NOTIFICATION) else "reply"
        try:
            async with asyncio.timeout(_LONGEST_DELIVERY), self._slots[kind]:
                for _ in range(1 + self.max_redirects):
                    response = await self._exchange(request, stream=True)
                    why = _read_error(response).get("message") or f"HTTP {response.status_code}"
                    await response.aclose()
                    if response.is_success:
                        return
                    if (redirected := next_request_within_origin(response)) is None:
                        break
                    request = redirected
        except TimeoutError:
            why = f"no answer within {_LONGEST_DELIVERY:g} s"
        self._log.add_line(f"a {kind} was not delivered: {why}", level=logging.WARNING)

    async def _exchange(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        request.extensions = {**request.extensions, self._mark: frozenset(request.headers.raw)}
        if request.method == "GET":
            await asyncio.sleep(_LAST_REQUEST.get() + _BETWEEN_STREAMS - asyncio.get_running_loop().time())
        else:
            _EXCHANGE.set(_Exchange(request.read(), self._log) if request.method == "POST" else None)
        _LAST_REQUEST.set(asyncio.get_running_loop().time())
        HTTP_LOGS_ARE_OFF.set(True)  # while the task of the SDK reads the body, too
        try:
            async with asyncio.timeout(_LEAVE_SECONDS if request.method == "DELETE" else None):
                response = await super().send(request, **options)
            self.has_session |= MCP_SESSION_ID in response.headers
            refused = response.status_code in _SESSION_REFUSALS and MCP_SESSION_ID in request.headers
            if _is_json(response) or response.has_redirect_location or refused:  # the SDK reads the first two
                _check_values(await response.aread())
            exchange = _EXCHANGE.get()
            if exchange is not None and exchange.id is not None and not _is_refusal(response):
                if not isinstance(response.stream, _Answer | _Events):
                    await response.aclose()
                    kind = response.headers.get("content-type", "no type")
                    raise UnreadableAnswerError(f"HTTP {response.status_code}, {kind}")
                response.status_code = 200  # or the SDK does not read it
        except UnreadableAnswerError as error:
            return self._error(request, 502, types.PARSE_ERROR, f"{UNREADABLE_ANSWER}: {error}")
        except httpx2.DecodingError as error:
            return self._error(request, 502, types.PARSE_ERROR, f"{UNREADABLE_ANSWER}: {_describe_error(error)}")
        except NotReachableError as error:
            return self._error(request, 502, types.INTERNAL_ERROR, str(error), "failed")
        except httpx2.RequestError as error:
            fate: Fate = "not sent" if isinstance(error, _NOT_CONNECTED) else "broken"
            return self._error(request, 503, types.CONNECTION_CLOSED, _describe_error(error), fate)
        except Exception as error:  # the signing code may raise anything
            return self._error(request, 502, types.INTERNAL_ERROR, _describe_error(error), "failed")
        status = response.status_code
        if status < 400:
            return response
        ended = None if exchange is None else _fate_in_session(response, exchange.id)
        if exchange is not None and ended is not None:
            await response.aclose()
            said = _NO_SESSION if ended == "forgotten" else getattr(exchange.answer(response.content), "error", LOST)
            return self._error(request, status, said.code, said.message, ended)
        code = _read_error(response).get("code")
        if code is not None or status == 404:  # the SDK gives all others without a code the same text
            return response
        await response.aclose()
        why = f"HTTP {status} {httpx2.codes.get_reason_phrase(status)}".strip()  # the server's own may say anything
        return self._error(request, status, types.INTERNAL_ERROR, why)

    async def gets_sse(self, url: str) -> bool:
        """Return whether the address speaks the transport of 2024: a stream that begins with the event `endpoint`."""
        begin = b""
        with suppress(httpx2.RequestError, TimeoutError):
            async with (
                asyncio.timeout(_LEAVE_SECONDS),
                self.stream("GET", url, headers={"accept": _EVENTS_TYPE}) as response,
            ):
                if response.status_code == 200 and _has_type(response, _EVENTS_TYPE):
                    async for chunk in response.aiter_bytes():
                        begin += chunk
                        if len(begin) > _MOST_BEGIN or b"\n" in begin.lstrip():
                            break
        return begin.lstrip().replace(b" ", b"").startswith(b"event:endpoint")

    async def _check_request(self, request: httpx2.Request) -> None:
        """Check the address of a request, of the server's or beside it, before it is sent.

        Raises:
            NotReachableError: The request may not go there.
        """
        for secret in _find_secrets(request, request.extensions.get(self._mark, frozenset())):
            self._log.hide(secret)
        if self._mark not in request.extensions:
            self._reach.check(request.url)
            request.extensions = {"timeout": _TIMEOUT_BESIDE.as_dict(), **request.extensions}
        if self.auth is not None:
            request.extensions = {**request.extensions, "trace": _make_trace_hook(self._reach, request.url)}

    async def _bound_response(self, response: httpx2.Response) -> None:
        """Bound the body of a response, and make an answer readable, for every reader."""
        is_answer = self._mark in response.request.extensions and response.is_success
        has_events, has_json = is_answer and _has_type(response, _EVENTS_TYPE), is_answer and _is_json(response)
        most: tuple[float, float | None] = (_MOST_BESIDE, _LONGEST_BESIDE)
        if has_events:
            most = math.inf, None
        elif has_json:
            most = _MOST_BODY, None
        stream: Any = response.stream
        response.stream = _Bounded(stream, stream.aclose, *most)
        if "content-encoding" in response.headers:
            unpacked = httpx2.Response(response.status_code, headers=response.headers, stream=response.stream)
            response.stream = _Bounded(unpacked.aiter_bytes(), unpacked.aclose, *most)
        for key in _BODY_HEADERS:
            response.headers.pop(key, None)
        exchange = _EXCHANGE.get()
        if has_events:
            response.stream = _Events(response.stream, exchange or _Exchange(b"", self._log))
            response.headers["content-type"] = _EVENTS_TYPE  # in UTF-8, whatever the server's header has
        elif has_json and exchange is not None and exchange.id is not None:
            response.stream = _Answer(response.stream, exchange)

    def _error(
        self, request: httpx2.Request, status: int, code: int, message: str, fate: Fate | None = None
    ) -> httpx2.Response:
        error = {"code": code, "message": message, **({} if fate is None else {"data": {self._mark: fate}})}
        body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error})
        return httpx2.Response(status, headers={"content-type": _JSON_TYPE}, content=body, request=request)


def _make_trace_hook(reach: Reach, url: httpx2.URL) -> Callable[[str, dict[str, Any]], Awaitable[None]]:
    """Return a trace hook that checks the address of a request's connection before the request uses it. Addresses
    behind a proxy are not checked: bounding them is the proxy's task.

    Raises:
        NotReachableError: The hook raises it if the connection must not go there.
    """
    host = address = ""

    async def on_trace(event: str, about: dict[str, Any]) -> None:  # for httpcore2's extension `trace`
        nonlocal host, address
        if event == "connection.connect_tcp.started":
            host = about["host"]
        elif event == "connection.connect_tcp.complete" and host.encode() == url.raw_host:
            stream = about["return_value"]
            address = stream.get_extra_info("server_addr")[0]
            try:
                reach.check_address(url, address)
            except NotReachableError:
                await stream.aclose()
                raise
        if address and event == _NAME_PROVED.get(url.scheme):
            reach.learn_address(url, address)

    return on_trace


class _Events(httpx2.AsyncByteStream):
    """A stream of events, each with at most one message, and only readable ones."""

    def __init__(self, body: httpx2.AsyncByteStream, exchange: _Exchange) -> None:
        self._body, self._exchange = body, exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        lines, event, size, after_return = LineBuffer(_MOST_BODY), list[bytes](), 0, False
        with suppress(httpx2.TransportError):  # the SDK asks again after each end, but gives up after two errors
            async for chunk in self._body:
                text = chunk.removeprefix(b"\n") if after_return else chunk
                after_return = chunk.endswith(b"\r")
                for line in lines.feed(text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")):
                    if not line:
                        yield self._rewrite(event)
                        event, size = [], 0
                        await asyncio.sleep(0)  # a flood of events must not hold the loop
                    elif size < _MOST_BODY and not line.startswith(b":"):  # a comment
                        size += sys.getsizeof(line)  # in memory: there may be very many short ones
                        event.append(line.removeprefix(b"\xef\xbb\xbf"))
                        if size >= _MOST_BODY:  # it may have no end, so it is cut here
                            yield self._rewrite(event)
                            event = []

    def _rewrite(self, event: list[bytes]) -> bytes:
        """Return an event in a form readable for the SDK: each message in an event of its own."""
        fields: dict[bytes, bytes] = {}
        data: list[bytes] = []
        for line in event:
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data":
                data.append(value)
            else:
                fields[name] = value
        if (retry := fields.pop(b"retry", b"")).isdigit():
            fields[b"retry"] = b"%d" % min(int(retry[:9]), _LONGEST_RETRY)
        is_message = fields.get(b"event", b"") in (b"", b"message")
        messages = self._exchange.read(b"\n".join(data)) if is_message and data else ()
        head = b"".join(b"%b:%b\n" % field for field in fields.items())
        return head + b"\n".join([b"data:%b\n" % _dump(message) for message in messages] or [b""]) + b"\n"

    async def aclose(self) -> None:
        await self._body.aclose()


class _Answer(httpx2.AsyncByteStream):
    """The body of an answer in JSON, as one readable message."""

    def __init__(self, body: httpx2.AsyncByteStream, exchange: _Exchange) -> None:
        self._body, self._exchange = body, exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body = b"".join([chunk async for chunk in self._body])
        _check_values(body)
        yield _dump(self._exchange.answer(body))

    async def aclose(self) -> None:
        await self._body.aclose()


class _Bounded(httpx2.AsyncByteStream):
    """The body of a response, bounded and in small pieces.

    Args:
        most: Most bytes.
        longest: Most seconds; `None` for no limit.
    """

    def __init__(
        self, body: AsyncIterable[bytes], close: Callable[[], Awaitable[None]], most: float, longest: float | None
    ) -> None:
        self._body, self._close, self._most, self._longest = body, close, most, longest

    async def __aiter__(self) -> AsyncIterator[bytes]:
        time, left = asyncio.get_running_loop().time, self._most
        until = None if self._longest is None else time() + self._longest
        async for chunk in self._body:
            left -= len(chunk)
            if left < 0:
                raise UnreadableAnswerError(f"it has more than {self._most:,} bytes")
            if until is not None and time() > until:
                raise UnreadableAnswerError(f"it takes longer than {self._longest:g} s")
            for begin in range(0, len(chunk), _MOST_A_TURN):
                if begin:  # a reader of events takes a whole chunk in one turn of the loop, without a look at deadlines
                    await asyncio.sleep(0)
                yield chunk[begin : begin + _MOST_A_TURN]

    async def aclose(self) -> None:
        await self._close()


def _find_secrets(request: httpx2.Request, before: frozenset[tuple[bytes, bytes]]) -> list[str]:
    """Return the secrets on a request. For a request to the server, the headers that signing added to `before`. For one
    of OAuth's own, its authorization and the secret parameters of its form."""
    if before:
        return [value.decode("latin-1") for _, value in set(request.headers.raw) - before]
    form = parse_qs(request.content.decode("latin-1")) if isinstance(request.stream, httpx2.ByteStream) else {}
    secret = [value for key in _SECRET_PARAMETERS for value in form.get(key, ())]
    return [*request.headers.get_list("authorization"), *secret]


def _check_values(body: bytes) -> None:
    """Raise `UnreadableAnswerError` if a body in JSON has too many values."""
    if has_too_many_values(body):
        raise UnreadableAnswerError(f"it has more than {MAX_VALUES:,} values")


def _dump(message: types.JSONRPCMessage) -> bytes:
    return to_json(message.model_dump(exclude_unset=True), inf_nan_mode="constants")


def _is_refusal(response: httpx2.Response) -> bool:
    return response.status_code >= 400 or response.next_request is not None  # it has none for a broken address


def _has_type(response: httpx2.Response, kind: str) -> bool:
    return bool(response.headers.get("content-type", "").lower().startswith(kind))


def _is_json(response: httpx2.Response) -> bool:
    """Return whether there is JSON to read. Reading a response without a body would keep its connection for the next
    request, and a body sent by the server nevertheless would become the answer to that request."""
    return response.status_code not in _WITHOUT_BODY and _has_type(response, _JSON_TYPE)


def _describe_error(error: Exception) -> str:
    text = format_masked_error(error)
    if text and isinstance(error, OAuthFlowError | FerruleError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _read_error(response: httpx2.Response) -> Mapping[str, Any]:
    """Return the JSON-RPC error in a response; empty without one."""
    found: Any = None
    if response.is_closed:
        with suppress(ValueError, RecursionError):
            found = response.json()
    error = found.get("error") if isinstance(found, dict) and "jsonrpc" in found else None
    return {**error, "id": found.get("id")} if isinstance(error, dict) else {}


def _fate_in_session(response: httpx2.Response, request_id: int | None) -> Fate | None:
    """Return the fate of a request's session by a refusal, or None if the refusal has no such meaning.

    By MCP, 404 means that the session has ended, and the body of a refusal has no id. A body that may be the answer to
    the request means that the server looked at the request.

    The TypeScript SDK's transport and its examples answer 400 with the code -32000 and no id before they read the
    message. Others answer with a text: the Python SDK until 1.20 and Go's `mcp-go` until 2026 with 400, Rust's `rmcp`
    until February 2026 and n8n with 401.
    """
    status = response.status_code
    if request_id is None or status not in _SESSION_REFUSALS or MCP_SESSION_ID not in response.request.headers:
        return None
    if _has_type(response, _EVENTS_TYPE) or may_answer(response.content, request_id):
        return "expired" if status == 404 else None
    if status != 404:
        error = _read_error(response)
        is_ended = status == 400 and error.get("code") == types.CONNECTION_CLOSED and error["id"] is None
        if not (is_ended if error else _UNKNOWN_SESSION.search(response.text[:1000])):
            return None
    return "forgotten"
