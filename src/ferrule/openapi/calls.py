"""One operation of an OpenAPI document: send a call, and read the answer within bounds."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_plus, urljoin

import httpx2

from ferrule import Text, ToolContext, ToolError, ToolResult
from ferrule.openapi.arguments import Signature
from ferrule.openapi.operations import leads_elsewhere
from ferrule.openapi.pages import ListAnswer, NextPage, PagedList, Paging
from ferrule.openapi.requests import Request, make_request
from ferrule.openapi.responses import Responses
from ferrule.openapi.security import Alternatives, add_credentials
from ferrule.openapi.servers import Server, parse_origin
from ferrule.openapi.uploads import read_uploads
from ferrule.security.foreign_text import to_one_line
from ferrule.security.http import NotReachableError, Transport, ssl_context, without_http_logs
from ferrule.security.http_answers import (
    SHORTEST_CREDENTIAL,
    AnswerError,
    decode_body,
    is_bounded_encoding,
    is_json_type,
    is_text_type,
    may_succeed_later,
    media_type,
    read_body,
    read_retry_after,
    redact_credentials,
    to_media,
)

log = logging.getLogger("ferrule")
MOST_ANSWER: Final = 1_000_000
"""Most bytes of an answer to read."""
_MOST_ERROR: Final = 2_000
_MOST_HOPS: Final = 5
_TIMEOUT: Final = httpx2.Timeout(60.0, connect=10.0)
_NO_CONNECTION: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)
_MAY_HAVE_RUN: Final = " The request may have been carried out."
_LONGEST_CALL: Final = 600.0
"""Seconds for a call with its whole answer, if no deadline comes before."""
_SHARE_OF_DEADLINE: Final = 0.9
"""The share of the remaining time for one further page. The rest is for returning the pages already read."""
_MOST_PROBLEM: Final = 300
_LONGEST_DATE: Final = 50


class _SendTracker:
    """A `trace` hook of httpcore. It records whether a request has begun to go out."""

    def __init__(self) -> None:
        self.has_begun = False

    async def __call__(self, event: str, info: Mapping[str, Any]) -> None:
        if "send_request_headers" in event:
            self.has_begun = True


def _has_no_connection(error: Exception, request: httpx2.Request) -> bool:
    """Return whether this very request found no connection. The auth of a client may send other requests, and fail at
    those."""
    if not isinstance(error, (*_NO_CONNECTION, NotReachableError)):
        return False
    try:
        return error.request is request
    except RuntimeError:  # a transport may not name the request
        return True


class Answer(NamedTuple):
    """The answer of a server.

    Attributes:
        request: The request of this answer.
        body: Its beginning, if the whole is over a bound.
        is_first: Whether this was the first request, and not one after a redirect.
    """

    request: httpx2.Request
    response: httpx2.Response
    body: bytes
    is_whole: bool
    is_first: bool

    @property
    def status(self) -> int:
        return self.response.status_code

    @property
    def status_text(self) -> str:
        return f"HTTP {self.status} {self.response.reason_phrase}".strip()

    @property
    def media(self) -> str:
        return media_type(self.response)

    @property
    def text(self) -> str:
        return decode_body(self.response, self.body)

    def header(self, name: str) -> str:
        return str(self.response.headers.get(name, ""))

    def json(self) -> Any:
        """Return the data of a JSON body.

        Raises:
            ValueError, RecursionError: The body is no such JSON.
        """
        if not (self.is_whole and self.body and is_json_type(self.media)):
            raise ValueError("it is no JSON")
        return json.loads(self.text)


class SignedRequest(NamedTuple):
    """A request with its credentials.

    Attributes:
        credentials: The credentials, as they may come back.
        query: The pairs of the query that are credentials.
        effect: The sentence about its effect after an error, or an empty text if it changes nothing.
    """

    request: httpx2.Request
    credentials: list[str]
    query: list[str]
    effect: str


class Endpoint(NamedTuple):
    """One operation, with its handler `call`.

    Attributes:
        tool: The tool's name.
        client: Sends the requests; `None` for a connection of its own for each call.
        responses: The answers that the document declares.
        paging: How a list comes in pages; `None` if the document does not say.
        pages: How many of these one call reads.
    """

    tool: str
    method: str
    path: str
    server: Server
    signature: Signature
    security: Alternatives
    client: httpx2.AsyncClient | None
    responses: Responses
    paging: Paging | None
    pages: int

    async def call(self, _ferrule_payload: dict[str, Any], context: ToolContext, /) -> object:
        """Send the call, and return its result.

        Raises:
            ToolError: There was no answer, or the answer is an error.
        """
        until = asyncio.get_running_loop().time() + _LONGEST_CALL
        signed = await self._sign_request(_ferrule_payload, context)
        answer = await self._exchange(signed, MOST_ANSWER, _LONGEST_CALL)
        if answer.status >= 300:
            raise self._answer_error(answer, signed)
        try:
            body = answer.json()
        except (ValueError, RecursionError):
            return self._plain_result(answer, signed.credentials, _ferrule_payload)
        return await self._json_result(answer, body, signed.credentials, _ferrule_payload, context, until)

    async def _sign_request(self, payload: dict[str, Any], context: ToolContext) -> SignedRequest:
        """Return the request of a call, with its credentials.

        Raises:
            ToolError: It cannot be written, or there are no credentials.
        """
        uploads = await read_uploads(self.signature, payload, context)
        parts = make_request(self.method, self.path, self.signature, payload, uploads)
        if self.signature.key_header is not None:
            parts.headers.append(self.signature.key_header.pair(context.idempotency_key))
        first_credential = len(parts.query)
        credentials = add_credentials(parts, self.tool, self.security, context.secrets)
        try:
            request = _http_request(parts, self.server.url)
        except Exception as error:  # such as an address that is too long
            text = f"the request cannot be written ({type(error).__name__})."
            raise ToolError(text, executed=False, retryable=False) from error
        redacted = [secret for secret in credentials if len(secret) >= SHORTEST_CREDENTIAL]
        effect = "" if context.tool.read_only else _MAY_HAVE_RUN
        return SignedRequest(request, redacted, parts.query[first_credential:], effect)

    async def _exchange(self, signed: SignedRequest, most: int, seconds: float) -> Answer:
        """Send a request and read its answer. Redirects that stay on the server are followed.

        Args:
            most: Most bytes to read.

        Raises:
            ToolError: No readable answer came.
        """
        try:
            async with asyncio.timeout(seconds):
                with without_http_logs():
                    return await self._send_request(signed, most)
        except TimeoutError as error:
            raise ToolError(
                f"{self.server.origin[1]} gave no answer in {seconds:.3g} s.{signed.effect}", executed=None
            ) from error

    async def _send_request(self, signed: SignedRequest, most: int) -> Answer:
        request, credentials, sent = signed.request, signed.credentials, _SendTracker()
        request.extensions["trace"] = sent
        is_first = True
        try:
            async with _open_sender(self.client, self.server, is_signed=bool(self.security)) as send:
                for _ in range(_MOST_HOPS):
                    response = await send(request)
                    sent.has_begun = True  # for any transport: one of a test sends no events
                    try:
                        target = response.headers.get("location") if response.is_redirect else None
                        if target is None:
                            self._check_compression(response, credentials)
                            return Answer(request, response, *await read_body(response, most), is_first)
                        request, is_first = await self._follow_redirect(request, response, target, signed), False
                    finally:
                        await response.aclose()
        except ToolError:
            raise
        except Exception as error:
            nothing_sent = not sent.has_begun and _has_no_connection(error, request)
            what = "could not be reached" if nothing_sent else "gave no answer"
            text = f"{self.server.origin[1]} {what} ({type(error).__name__}).{'' if nothing_sent else signed.effect}"
            raise ToolError(text, executed=False if nothing_sent else None) from error
        raise AnswerError(
            f"{self.server.origin[1]} redirected the request more than {_MOST_HOPS - 1} times.{signed.effect}",
            self._metadata(response, credentials),
            executed=None,
        )

    def _check_compression(self, response: httpx2.Response, credentials: list[str]) -> None:
        """Raise an `AnswerError` for a body in an unbounded compression."""
        if not is_bounded_encoding(response):
            raise AnswerError(
                f"HTTP {response.status_code}: the answer is compressed with another method than gzip or deflate",
                self._metadata(response, credentials),
                executed=None,
                retryable=False,
            )

    async def _follow_redirect(
        self, request: httpx2.Request, response: httpx2.Response, target: str, signed: SignedRequest
    ) -> httpx2.Request:
        """Return the request to the target of a redirect. It must stay on the server, and keep its method and body;
        after a 303 it becomes a GET.

        Raises:
            AnswerError: The redirect leads elsewhere, or would change the request in another way.
        """
        status = response.status_code
        try:
            where = urljoin(str(request.url), target)
            stays = parse_origin(where) == self.server.origin
            stays &= not leads_elsewhere(where.partition("?")[0].partition("://")[2])
        except ValueError:
            where, stays = "", False
        keeps = request.method in ("GET", "HEAD") or status in (307, 308)
        if not stays or not (keeps or status == 303):
            raise AnswerError(
                f"{self.server.origin[1]} redirected the request (HTTP {status}) to another server, or as another "
                f"request, which Ferrule does not follow.{signed.effect}",
                self._metadata(response, signed.credentials),
                executed=None,
                retryable=False,
            )
        headers = [(key, value) for key, value in request.headers.multi_items() if keeps or key not in _BODY_HEADERS]
        method = request.method if keeps else "GET"
        content = await request.aread() if keeps else b""
        return httpx2.Request(method, where, headers=headers, content=content, extensions=dict(request.extensions))

    # -- results -------------------------------------------------------------------------------------------------------

    def _metadata(self, response: httpx2.Response, credentials: list[str]) -> dict[str, Any]:
        """Return the status, and the headers that the document declares for it."""
        names = [name for name in self.responses.headers(response.status_code) if name in response.headers]
        headers = {name: redact_credentials(response.headers[name], credentials)[:_MOST_ERROR] for name in names}
        return {"status": response.status_code, "headers": headers}

    def _describe_headers(self, answer: Answer, credentials: list[str]) -> list[str]:
        """Return the meaning of declared headers for the next call, in words."""
        declared = {name.lower() for name in self.responses.headers(answer.status)}
        words = []
        if "x-total-count" in declared and (count := answer.header("x-total-count")).isdecimal():
            words.append(f"There are {count[:20]} in all.")
        if "retry-after" in declared and (after := answer.header("retry-after")):
            when = f"{after} s" if after.isdecimal() else f"until {redact_credentials(after, credentials)}"
            words.append(f"The server asks to wait {to_one_line(when, _LONGEST_DATE)}.")
        return words

    def _make_result(self, output: Any, metadata: dict[str, Any], words: list[str], content: Any = None) -> ToolResult:
        """Return a result. Its model also reads the words."""
        result = ToolResult(output, metadata=metadata, content=content)
        return result.replace(content=[*result.content, Text(" ".join(words))]) if words else result

    def _plain_result(self, answer: Answer, credentials: list[str], payload: dict[str, Any]) -> ToolResult:
        """Return the result of an answer that is no JSON."""
        status = redact_credentials(answer.status_text, credentials)
        metadata, words = self._metadata(answer.response, credentials), self._describe_headers(answer, credentials)
        if self.method == "HEAD":
            headers = {key: value for key, value in answer.response.headers.items() if key.lower() != "set-cookie"}
            return ToolResult(redact_credentials(headers, credentials), metadata=metadata)
        self._add_next_page(self._next_page(answer, PagedList(None), payload), metadata, words, credentials)
        if not answer.body:
            location = answer.header("location")
            text = redact_credentials(f"{status}, Location: {location}" if location else status, credentials)
            return self._make_result(None, metadata, words, [Text(text)])
        media = answer.media
        if not (is_json_type(media) or is_text_type(media)):
            if not answer.is_whole:
                raise AnswerError(
                    f"{status}: the answer has over {MOST_ANSWER:,} bytes of {media}, which were not read",
                    metadata,
                    retryable=False,
                )
            block = redact_credentials(to_media(media, answer.body), credentials)
            return self._make_result(status, metadata, words, [block])
        text = redact_credentials(answer.text, credentials, answer.is_whole)
        note = "" if answer.is_whole else f"\n[cut after {MOST_ANSWER:,} bytes]"
        return self._make_result(f"{text}{note}", metadata, words)

    def _answer_error(self, answer: Answer, signed: SignedRequest) -> AnswerError:
        """Return the error for an error answer. The model reads the caller's errors; after the server's own, nobody
        knows the effect."""
        credentials = signed.credentials
        status = redact_credentials(answer.status_text, credentials)
        is_shown = is_json_type(answer.media) or is_text_type(answer.media) or not answer.media
        text = redact_credentials(answer.text if is_shown else "", credentials, answer.is_whole)[:_MOST_ERROR]
        after = read_retry_after(answer.response)
        # By a 429 the server declares that it did not take the request, RFC 6585; `retry` may send it again. After a
        # redirect it was another request that it did not take.
        executed: bool | None = not (answer.status == 429 and answer.is_first)
        if answer.status >= 500:
            shown = f": {text}" if text else "."
            text, executed = f"{status} of {self.server.origin[1]}{shown}{signed.effect}", None
        else:
            text = f"{status}: {text}" if text else status
        if words := self._describe_headers(answer, credentials):
            text = f"{text} {' '.join(words)}"
        retryable = True if after is not None else may_succeed_later(answer.status)
        metadata = self._metadata(answer.response, credentials)
        return AnswerError(text, metadata, retry_after=after, executed=executed, retryable=retryable)

    # -- pages ---------------------------------------------------------------------------------------------------------

    async def _json_result(
        self,
        answer: Answer,
        body: Any,
        credentials: list[str],
        payload: dict[str, Any],
        context: ToolContext,
        until: float,
    ) -> ToolResult:
        """Return the result of a JSON answer. For a list, read further pages as well, as many as one call may read.

        Args:
            until: When the call ends at the latest, by the clock of the loop.
        """
        shown = redact_credentials(body, credentials)
        pages, problem = PagedList(body), ""
        left, seen = MOST_ANSWER - len(answer.body), {str(answer.request.url)}
        found = self._next_page(answer, pages, payload)
        while found is not None and found.is_here and pages.read < self.pages and pages.place is not None:
            arguments = {**payload, **(found.arguments or {})}
            try:
                signed = await self._sign_page_request(found, arguments, context)
                if str(signed.request.url) in seen:
                    found, problem = None, "the server names a page that was read before"
                    break
                seen.add(str(signed.request.url))
                page = await self._read_page(signed, left, until, context)
                pages.add(page.json())
            except (ToolError, ValueError, RecursionError) as error:
                problem = to_one_line(redact_credentials(str(error), credentials), _MOST_PROBLEM)
                break
            answer, payload, left = page, arguments, left - len(page.body)
            context.progress(pages.read)
            found = self._next_page(answer, pages, payload)
        metadata, words = self._metadata(answer.response, credentials), self._describe_headers(answer, credentials)
        if self.paging is not None and self.pages > 1:
            metadata["pages"] = pages.read
        if problem:
            words.append(f"The list is not complete: page {pages.read + 1} could not be read ({problem}).")
        self._add_next_page(found, metadata, words, credentials)
        output = shown if pages.read == 1 else redact_credentials(pages.output, credentials)
        return self._make_result(output, metadata, words)

    def _next_page(self, answer: Answer, pages: PagedList, payload: dict[str, Any]) -> NextPage | None:
        if self.paging is None:
            return None
        links = {
            rel: link["url"] for rels, link in answer.response.links.items() for rel in (rels or "").lower().split()
        }
        url, total = str(answer.request.url), answer.header("x-total-count")
        return self.paging.find_next(ListAnswer(payload, url, links, total, pages), self.server)

    async def _read_page(self, signed: SignedRequest, most: int, until: float, context: ToolContext) -> Answer:
        """Read a further page. The time limit leaves the call time to return its other pages.

        Raises:
            ToolError: The page does not come, or is an error or too large.
        """
        seconds, remaining = until - asyncio.get_running_loop().time(), context.remaining()
        if remaining is not None:
            seconds = min(seconds, remaining * _SHARE_OF_DEADLINE)
        page = await self._exchange(signed, most, seconds)
        if page.status >= 300:
            raise self._answer_error(page, signed)
        if not page.is_whole:
            raise ToolError(f"all pages together have over {MOST_ANSWER:,} bytes")
        return page

    def _add_next_page(
        self, page: NextPage | None, metadata: dict[str, Any], words: list[str], credentials: list[str]
    ) -> None:
        """Add the way to the next page, if there is one: for the program to `metadata`, for the model to `words`."""
        if page is None:
            return
        arguments = metadata["next_page"] = redact_credentials(page.arguments, credentials)
        if arguments is not None:
            shown = json.dumps(arguments)
            words.append(f"There is a next page: call {self.tool} with {shown} and the other arguments as they are.")
        elif page.address is not None:
            words.append(f"There is a next page, to which no argument of {self.tool} leads.")
        else:
            words.append("There is a next page on another server, and it is not read.")

    async def _sign_page_request(
        self, page: NextPage, arguments: dict[str, Any], context: ToolContext
    ) -> SignedRequest:
        """Return the request of a further page, with the credentials of the call.

        Raises:
            ToolError: It cannot be written.
        """
        signed = await self._sign_request(arguments, context)
        if page.address is None:
            return signed
        address, _, query = page.address.partition("#")[0].partition("?")
        first_credential = {unquote_plus(pair.partition("=")[0]) for pair in signed.query}
        pairs = [one for one in query.split("&") if one and unquote_plus(one.partition("=")[0]) not in first_credential]
        url = f"{address}?{'&'.join([*pairs, *signed.query])}"
        try:
            return signed._replace(request=httpx2.Request("GET", url, headers=signed.request.headers))
        except Exception as error:  # such as an address that is too long
            raise ToolError(f"its request cannot be written ({type(error).__name__})") from error


_BODY_HEADERS: Final = frozenset({"content-type", "content-length", "transfer-encoding"})


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
    body: dict[str, Any] = {"content": request.content}
    if request.parts is not None:
        files = [
            (name, (file, content, media) if media else (file, content)) for name, file, content, media in request.parts
        ]
        body = {"files": files}
    return httpx2.Request(request.method, url, headers=headers, **body)


@asynccontextmanager
async def _open_sender(
    client: httpx2.AsyncClient | None, server: Server, *, is_signed: bool
) -> AsyncIterator[Callable[[httpx2.Request], Any]]:
    """Yield a function that sends a request. It does not follow redirects and keeps no cookies.

    Without a client each call has a connection of its own, because a toolset is used on several loops, and nobody
    closes it.
    """
    if client is not None:
        own_client = client

        async def send(request: httpx2.Request) -> httpx2.Response:
            # Made without the client, so that it has none of the client's cookies.
            request.extensions = {"timeout": own_client.timeout.as_dict(), **request.extensions}
            for key, value in own_client.headers.multi_items():
                request.headers.setdefault(key, value)
            # If the request has credentials, the client's own `auth` would add those of somebody else.
            auth = {"auth": None} if is_signed else {}
            return await own_client.send(request, stream=True, follow_redirects=False, **auth)

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
    """Return a transport that ignores the environment. If the document named the server, it reaches public addresses
    only."""
    limits = httpx2.Limits(max_keepalive_connections=0)
    if server.is_named:
        return httpx2.AsyncHTTPTransport(verify=ssl_context(), trust_env=False, limits=limits)
    scheme, host, port = server.origin
    return Transport(host, schemes=(scheme,), ports=(port,), verify=ssl_context(), trust_env=False)
