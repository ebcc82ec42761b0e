"""One operation of an OpenAPI document: a call is sent, and what comes back is read within bounds."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, Final, NamedTuple
from urllib.parse import urljoin

import httpx2

from ferrule import Media, Text, ToolContext, ToolError, ToolResult
from ferrule.http import NotReachableError, Transport, without_http_logs
from ferrule.pipeline.hiding import redactor_for
from ferrule.sources._openapi_arguments import Signature
from ferrule.sources._openapi_bodies import is_json
from ferrule.sources._openapi_operations import leads_elsewhere
from ferrule.sources._openapi_requests import NOTHING_SENT, Request, request_of
from ferrule.sources._openapi_security import Alternatives, sign
from ferrule.sources._openapi_servers import Server, origin_of
from ferrule.values.redaction import redact_value

log = logging.getLogger("ferrule")
MOST_ANSWER: Final = 1_000_000
"""Bytes of an answer that are read."""
_MOST_ERROR: Final = 2_000
_MOST_HOPS: Final = 5
_TIMEOUT: Final = httpx2.Timeout(60.0, connect=10.0)
_NO_CONNECTION: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)
_BOUNDED_ENCODINGS: Final = frozenset({"", "identity", "gzip", "deflate"})
"""Encodings of a body, one at most: what brotli, zstd or two of these make of a kilobyte has no bound."""
_PERHAPS: Final = "The request may have been carried out."
_SHORTEST_SECRET: Final = 8
_LONGEST_SPELLING: Final = 6
"""Characters that one of a credential may be in what comes back."""
_LONGEST_CALL: Final = 600.0
"""Seconds for a call with its whole answer, where no deadline comes before."""


class _Sent:
    """Is told what a connection does, the `trace` of httpcore, and keeps whether a request has begun to go out."""

    def __init__(self) -> None:
        self.anything = False

    async def __call__(self, event: str, info: Mapping[str, Any]) -> None:
        if "send_request_headers" in event:
            self.anything = True


def _found_no_connection(error: Exception, request: httpx2.Request) -> bool:
    """Whether this very request found none: the auth of a client may send others, and fail at these."""
    if not isinstance(error, (*_NO_CONNECTION, NotReachableError)):
        return False
    try:
        return error.request is request
    except RuntimeError:  # a transport does not say which
        return True


Check = Callable[[int, str, Any], None]
"""Is told a status, a type and the JSON of an answer."""


class Endpoint(NamedTuple):
    """One operation, whose `call` is the handler.

    Attributes:
        tool: The tool's name.
        client: Sends the requests; `None` for a connection of its own for each call.
        check: Looks at the answers.
    """

    tool: str
    method: str
    path: str
    server: Server
    signature: Signature
    security: Alternatives
    client: httpx2.AsyncClient | None
    check: Check

    async def call(self, _ferrule_payload: dict[str, Any], context: ToolContext, /) -> object:
        """Send the call, and give what came back.

        Raises:
            ToolError: where nothing came back, or an error.
        """
        made = request_of(self.method, self.path, self.signature, _ferrule_payload)
        hidden = sign(made, self.tool, self.security, context.secrets)
        try:
            request = _http_request(made, self.server.url)
        except Exception as error:  # such as an address that is too long
            text = f"the request cannot be written ({type(error).__name__}). Nothing was sent."
            raise ToolError(text, executed=False) from error
        try:
            async with asyncio.timeout(_LONGEST_CALL):
                with without_http_logs():
                    return await self._answered(request, [one for one in hidden if len(one) >= _SHORTEST_SECRET])
        except TimeoutError as error:
            raise ToolError(
                f"{self.server.origin[1]} gave no answer in {_LONGEST_CALL:g} s. {_PERHAPS}", executed=None
            ) from error

    async def _answered(self, request: httpx2.Request, hidden: list[str]) -> object:
        """The result of the answer, by way of redirects that stay on the server."""
        sent = _Sent()
        request.extensions["trace"] = sent
        is_first = True
        try:
            async with _sender(self.client, self.server, is_signed=bool(self.security)) as send:
                for _ in range(_MOST_HOPS):
                    response = await send(request)
                    sent.anything = True  # whatever sends it: one of a test tells no events
                    try:
                        target = response.headers.get("location") if response.is_redirect else None
                        if target is None:
                            return await self._result(response, hidden, is_first=is_first)
                        request, is_first = await self._redirected(request, response.status_code, target), False
                    finally:
                        await response.aclose()
        except ToolError:
            raise
        except Exception as error:
            nothing = not sent.anything and _found_no_connection(error, request)
            what = "could not be reached" if nothing else "gave no answer"
            text = f"{self.server.origin[1]} {what} ({type(error).__name__}). {NOTHING_SENT if nothing else _PERHAPS}"
            raise ToolError(text, executed=False if nothing else None) from error
        raise ToolError(
            f"{self.server.origin[1]} redirected the request more than {_MOST_HOPS - 1} times. {_PERHAPS}",
            executed=None,
        )

    async def _redirected(self, request: httpx2.Request, status: int, target: str) -> httpx2.Request:
        """The request to where a redirect leads: only on the same server, and only where it stays what it is.

        Raises:
            ToolError: for any other.
        """
        try:
            where = urljoin(str(request.url), target)
            stays = origin_of(where) == self.server.origin
            stays &= not leads_elsewhere(where.partition("?")[0].partition("://")[2])
        except ValueError:
            where, stays = "", False
        keeps = request.method in ("GET", "HEAD") or status in (307, 308)
        if not stays or not (keeps or status == 303):
            raise ToolError(
                f"{self.server.origin[1]} redirected the request (HTTP {status}) to where it is not sent: to another "
                "server, or as another request. It may have been carried out.",
                executed=None,
            )
        headers = [(key, value) for key, value in request.headers.multi_items() if keeps or key not in _OF_THE_BODY]
        method = request.method if keeps else "GET"
        content = await request.aread() if keeps else b""
        return httpx2.Request(method, where, headers=headers, content=content, extensions=dict(request.extensions))

    async def _result(self, response: httpx2.Response, hidden: list[str], *, is_first: bool) -> object:
        body, is_whole = await _read_body(response, MOST_ANSWER)
        media = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        status = _without_credentials(f"HTTP {response.status_code} {response.reason_phrase}".strip(), hidden)
        if response.status_code >= 300:
            shown = _body_text(response, body) if is_json(media) or _is_text(media) or not media else ""
            raise self._failure(
                response, status, _without_credentials(shown, hidden, is_whole)[:_MOST_ERROR], is_first=is_first
            )
        about = {"status": response.status_code}
        if self.method == "HEAD":
            kept = {key: value for key, value in response.headers.items() if key.lower() != "set-cookie"}
            return ToolResult(_without_credentials(kept, hidden), metadata=about)
        location = response.headers.get("location")
        if not body:
            text = _without_credentials(f"{status}, Location: {location}" if location else status, hidden)
            return ToolResult(None, metadata=about, content=[Text(text)])
        if not (is_json(media) or _is_text(media)):
            if not is_whole:
                raise ToolError(f"{status}: the answer has over {MOST_ANSWER:,} bytes of {media}, which were not read")
            return ToolResult(status, metadata=about, content=[_media_of_answer(media, body)])
        text = _body_text(response, body)
        if not is_whole:
            return ToolResult(
                f"{_without_credentials(text, hidden, is_whole)}\n[cut after {MOST_ANSWER:,} bytes]", metadata=about
            )
        try:
            output = json.loads(text) if is_json(media) else text
        except (ValueError, RecursionError):
            return ToolResult(_without_credentials(text, hidden), metadata=about)
        output = _without_credentials(output, hidden)
        if is_json(media):
            self.check(response.status_code, media, output)
        return ToolResult(output, metadata=about)

    def _failure(self, response: httpx2.Response, status: str, text: str, *, is_first: bool) -> ToolError:
        """What a call comes to that the server answered with an error: one of the caller's is the model's to read, and
        of one of its own nobody knows what it has done."""
        seconds = response.headers.get("retry-after", "")
        after = float(seconds) if seconds.isdecimal() and len(seconds) < 7 else None
        if response.status_code >= 500:
            text = f"{status} of {self.server.origin[1]}: {text} {_PERHAPS}"
            return ToolError(text, retry_after=after, executed=None)
        # Of a 429 the server says that it did not take the request, RFC 6585; `retry` may send it again. After a
        # redirect it is another request that it did not take.
        executed = not (response.status_code == 429 and is_first)
        return ToolError(f"{status}: {text}" if text else status, retry_after=after, executed=executed)


_OF_THE_BODY: Final = frozenset({"content-type", "content-length", "transfer-encoding"})


def _is_text(media: str) -> bool:
    endings = ("+xml", "/xml", "/yaml", "/javascript", "/x-ndjson", "/graphql")
    return media.startswith("text/") or media.endswith(endings)


def _media_of_answer(media: str, body: bytes) -> Media:
    kind: Any = media.partition("/")[0] if media.startswith(("image/", "audio/")) else "file"
    try:
        return Media(kind, body, media)
    except TypeError:  # which is no type
        return Media("file", body, "application/octet-stream")


def _without_credentials(value: Any, hidden: list[str], is_whole: bool = True) -> Any:
    """The value without what was sent to show who calls, in its texts and keys: some servers give back what they
    got. Of a text that is cut off, what may be the beginning of it goes too."""
    value = redact_value(value, redactor_for(hidden))
    return value if is_whole or not hidden else value[: -_LONGEST_SPELLING * max(map(len, hidden))]


def _body_text(response: httpx2.Response, body: bytes) -> str:
    """The body as text; of a codec that is none of these, as UTF-8: some take minutes for a megabyte."""
    named = (response.charset_encoding or "").lower().replace("_", "-")
    try:
        return body.decode(named if _CHARSET.fullmatch(named) else "utf-8", "replace")
    except LookupError:  # such as ISO-8859-12, which there is not
        return body.decode("utf-8", "replace")


_CHARSET: Final = re.compile(
    r"utf-?(?:8|16|32)(?:-?[lb]e)?|(?:us-)?ascii|latin-?1|iso-?8859-(?:[1-9]|1[0134569])|windows-125[0-8]|cp125[0-8]"
)


async def _read_body(response: httpx2.Response, most: int) -> tuple[bytes, bool]:
    """The beginning of the body, and whether that is the whole of it.

    Raises:
        ToolError: for one that is packed in a way that has no bound.
    """
    packed = response.headers.get("content-encoding", "").strip().lower()
    if packed not in _BOUNDED_ENCODINGS:
        raise ToolError(
            f"HTTP {response.status_code}: the answer is packed in another way than gzip or deflate", executed=None
        )
    found = bytearray()
    async for chunk in response.aiter_bytes():
        found += chunk
        if len(found) > most:
            return bytes(found[:most]), False
    return bytes(found), True


# -- sending -----------------------------------------------------------------------------------------------------------


def _http_request(request: Request, base: str) -> httpx2.Request:
    url = f"{base}{request.path}{'?' if request.query else ''}{'&'.join(request.query)}"
    headers = [
        ("Accept", "application/json, text/*;q=0.9, */*;q=0.8"),
        ("Accept-Encoding", "identity"),
        *request.headers,
    ]
    if request.media is not None:
        headers.append(("Content-Type", request.media))
    if request.cookies:
        headers.append(("Cookie", "; ".join(request.cookies)))
    given: dict[str, Any] = {"content": request.content}
    if request.parts is not None:
        files = [
            (name, (file, content, media) if media else (file, content)) for name, file, content, media in request.parts
        ]
        given = {"files": files}
    return httpx2.Request(request.method, url, headers=headers, **given)


@asynccontextmanager
async def _sender(
    client: httpx2.AsyncClient | None, server: Server, *, is_signed: bool
) -> AsyncIterator[Callable[[httpx2.Request], Any]]:
    """What sends a request, and neither follows redirects nor keeps cookies.

    Without a client each call has a connection of its own, as a toolset is used on several loops, and nobody closes it.
    """
    if client is not None:
        given = client

        async def send(request: httpx2.Request) -> httpx2.Response:
            # Made without the client, so that it has none of the cookies which that has kept.
            request.extensions = {"timeout": given.timeout.as_dict(), **request.extensions}
            for key, value in given.headers.multi_items():
                request.headers.setdefault(key, value)
            # Where the request shows who calls, the client's own `auth` would show somebody else.
            auth = {"auth": None} if is_signed else {}
            return await given.send(request, stream=True, follow_redirects=False, **auth)

        yield send
        return
    async with _transport(server) as transport:

        async def send_by_itself(request: httpx2.Request) -> httpx2.Response:
            request.extensions = {"timeout": _TIMEOUT.as_dict(), **request.extensions}
            request.headers.setdefault("User-Agent", "ferrule")
            response = await transport.handle_async_request(request)
            response.request = request
            return response

        yield send_by_itself


def _transport(server: Server) -> httpx2.AsyncBaseTransport:
    """One that nothing of the environment leads elsewhere; of a server that a document names, to public addresses
    alone."""
    limits = httpx2.Limits(max_keepalive_connections=0)
    if server.named:
        return httpx2.AsyncHTTPTransport(verify=_ssl_context(), trust_env=False, limits=limits)
    scheme, host, port = server.origin
    return Transport(host, schemes=(scheme,), ports=(port,), verify=_ssl_context(), trust_env=False)


@cache
def _ssl_context() -> ssl.SSLContext:
    return httpx2.create_ssl_context(trust_env=False)
