"""HTTP clients that reach only allowed hosts, the twin of `ferrule.security.paths.open_inside`.

    async with async_client() as client:
        answer = await client.get(url)

The client resolves a name once, checks every address of it, and connects to one of these. It does the same for each
redirect. It uses no proxy and no password of the environment.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from typing import Any, Final, TypeAlias

from ferrule.errors import DefinitionError
from ferrule.security.urls import Destinations, Url, find_address_kind, read_host, read_url

try:
    import httpx2
except ImportError as error:
    raise ImportError('ferrule.security.http needs httpx2: pip install "ferrule[http]"') from error

Resolve: TypeAlias = Callable[[str], Iterable[str]]
"""Return the addresses of a name, as text. It may block."""
_MAX_REDIRECTS: Final = 5
_MAX_ADDRESSES: Final = 6
"""The most addresses of a name to connect to, one after another. Each may take the full time allowed for a
connection.
"""
_FIRST_ORIGIN: Final = "ferrule.first_origin"
"""The key for the origin of a chain of redirects. httpx2 copies the extensions of a request to its redirects."""
_KEPT_HEADERS: Final = frozenset(
    {"host", "connection", "user-agent", "accept", "accept-encoding", "accept-language", "range", "cookie"}
    | {"content-type", "content-length", "content-encoding", "content-language", "transfer-encoding"}
)
"""The headers to keep after a redirect to another origin: they describe the request and its body. The client selects
the cookies that belong to the new origin.
"""
_BYPASSING_OPTIONS: Final = frozenset(
    {"transport", "mounts", "proxy", "trust_env", "verify", "cert", "http2", "limits", "app"}
)
_CONNECT_ERRORS = (httpx2.ConnectError, httpx2.ConnectTimeout)


_LOGGERS: Final = (
    "httpx2",
    *(f"httpcore2.{part}" for part in ("connection", "http11", "http2", "proxy", "socks")),
    *("hpack.hpack", "hpack.table"),
)
"""The loggers of the HTTP stack. They log addresses and headers, and a key may be in either."""
HTTP_LOGS_ARE_OFF: ContextVar[bool] = ContextVar("ferrule_http_logs_are_off", default=False)


def _may_log(record: logging.LogRecord) -> bool:
    return not HTTP_LOGS_ARE_OFF.get()


for _name in _LOGGERS:
    logging.getLogger(_name).addFilter(_may_log)


@contextmanager
def without_http_logs() -> Iterator[None]:
    """Keep the libraries of the HTTP stack from logging the requests made inside. See docs/openapi.md#credentials."""
    token = HTTP_LOGS_ARE_OFF.set(True)
    try:
        yield
    finally:
        HTTP_LOGS_ARE_OFF.reset(token)


@cache
def ssl_context() -> ssl.SSLContext:
    """Return the settings of TLS, without those of the environment. Making them takes some hundredths of a second."""
    return httpx2.create_ssl_context(trust_env=False)


class NotReachableError(httpx2.RequestError):
    """A request to an address outside the allowed ones; the text gives the reason. See docs/guards.md#hosts."""


def client(
    *allowed: str,
    deny: Iterable[str] = (),
    schemes: Iterable[str] = ("https", "http"),
    ports: Iterable[int] | None = None,
    **options: Any,
) -> httpx2.Client:
    """Return a client that reaches only allowed hosts, for handlers that are plain functions. See docs/guards.md#hosts.

    Args:
        allowed, deny, schemes, ports: As for `guards.hosts`.
        options: As for `httpx2.Client`. At most 5 redirects are followed, each with a new check. Options that would
            bypass the check (`proxy`, `transport` …) are refused, and so are cookies for every host.

    Raises:
        DefinitionError: A pattern, a scheme, a port or an option is invalid.
    """
    transport = Transport(*allowed, deny=deny, schemes=schemes, ports=ports)
    return httpx2.Client(transport=transport, trust_env=False, **_check_options(options))


def async_client(
    *allowed: str,
    deny: Iterable[str] = (),
    schemes: Iterable[str] = ("https", "http"),
    ports: Iterable[int] | None = None,
    **options: Any,
) -> httpx2.AsyncClient:
    """Return a client that reaches only allowed hosts, for handlers that are coroutines. See docs/guards.md#hosts.

    The arguments are those of `client`.
    """
    transport = Transport(*allowed, deny=deny, schemes=schemes, ports=ports)
    return httpx2.AsyncClient(transport=transport, trust_env=False, **_check_options(options))


def _check_options(options: dict[str, Any]) -> dict[str, Any]:
    if bypassing := sorted(_BYPASSING_OPTIONS & options.keys()):
        raise DefinitionError(f"{bypassing} would bypass the check of addresses; pass a Transport of your own")
    if not all(cookie.domain for cookie in httpx2.Cookies(options.get("cookies")).jar):
        raise DefinitionError("cookies without a domain go to every host; pass httpx2.Cookies, set with domain=…")
    return {"follow_redirects": True, "max_redirects": _MAX_REDIRECTS, **options}


class Transport(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    """A transport that connects only to allowed hosts, for a client of httpx2 of either kind. See docs/guards.md#hosts.

    Each request has its own connection. A connection opened for one name is never used for another name at the same
    address, because nobody checked that name's certificate. A redirect to another origin drops the headers that may
    contain a key.

    Args:
        allowed, deny, schemes, ports: As for `guards.hosts`.
        resolve: Return the addresses of a name; by default, those of the system.
        inner: The transport for requests to an address; by default, a transport of httpx2.
        options: As for httpx2's transports, such as `verify`.

    Raises:
        DefinitionError: A pattern, a scheme or a port is invalid.
    """

    def __init__(
        self,
        *allowed: str,
        deny: Iterable[str] = (),
        schemes: Iterable[str] = ("https", "http"),
        ports: Iterable[int] | None = None,
        resolve: Resolve | None = None,
        inner: httpx2.BaseTransport | httpx2.AsyncBaseTransport | None = None,
        **options: Any,
    ) -> None:
        self._rules = Destinations.from_options(allowed, deny=deny, schemes=schemes, ports=ports)
        self._resolve = resolve or _resolve_name
        self._options = {"limits": httpx2.Limits(max_keepalive_connections=0), **options}
        self._inner: Any = inner

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request to a checked address.

        Raises:
            NotReachableError: The address is not allowed.
            httpx2.TransportError: As any transport.
        """
        self._inner = self._inner or httpx2.HTTPTransport(**self._options)
        url = self._check_request(request)
        *others, last = self._make_requests(request, url, self._resolve_host(url))
        for to in others:
            with suppress(*_CONNECT_ERRORS):
                return self._inner.handle_request(to)  # type: ignore[no-any-return]
        return self._inner.handle_request(last)  # type: ignore[no-any-return]

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request to a checked address, like `handle_request`."""
        self._inner = self._inner or httpx2.AsyncHTTPTransport(**self._options)
        url = self._check_request(request)
        try:
            async with asyncio.timeout(request.extensions.get("timeout", {}).get("connect")):
                addresses = await asyncio.to_thread(self._resolve_host, url)
        except TimeoutError:
            raise httpx2.ConnectTimeout(f"the addresses of {url.host} were not found in time") from None
        *others, last = self._make_requests(request, url, addresses)
        for to in others:
            with suppress(*_CONNECT_ERRORS):
                return await self._inner.handle_async_request(to)  # type: ignore[no-any-return]
        return await self._inner.handle_async_request(last)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close the inner transport."""
        if self._inner is not None:
            self._inner.close()

    async def aclose(self) -> None:
        """Close the inner transport."""
        if self._inner is not None:
            await self._inner.aclose()

    def _check_request(self, request: httpx2.Request) -> Url:
        """Return the URL that the client will open, as written. Raise if it is not allowed."""
        try:
            url, header = read_url(str(request.url)), read_host(request.headers.get("host", ""))
        except ValueError as error:
            raise NotReachableError(f"{str(request.url)!r} cannot be judged: {error}") from None
        if header.host != url.host or header.port not in {0, url.port}:  # a server of both would answer for the other
            raise NotReachableError(f"{str(request.url)!r} and its header Host, {header.host!r}, name different hosts")
        kind, reason = self._rules.verdict(url)
        if kind != "allow":
            raise NotReachableError(f"{str(request.url)!r} {reason}")
        return url

    def _resolve_host(self, url: Url) -> list[str]:
        """Return the addresses of a host, each once."""
        if url.address is not None:
            return [url.address]
        try:
            addresses = list(dict.fromkeys(self._resolve(url.host)))
        except (OSError, UnicodeError) as error:
            raise httpx2.ConnectError(f"{url.host} cannot be resolved: {error}") from error
        if not addresses:
            raise httpx2.ConnectError(f"{url.host} has no address")
        return addresses

    def _make_requests(self, request: httpx2.Request, url: Url, addresses: list[str]) -> list[httpx2.Request]:
        """Return the request to each of the addresses.

        All of them must be allowed: an attacker who mixes in a forbidden one makes the client try until it gets there.
        """
        for address in addresses:
            if not self._rules.may_connect(url, address):
                raise NotReachableError(
                    f"{url.host} leads to {address} ({find_address_kind(address)}), which is denied or not written out"
                )
        name = {} if url.address is not None else {"sni_hostname": url.host}
        headers = _headers_for(request, url)
        return [
            httpx2.Request(
                request.method,
                request.url.copy_with(host=address),
                headers=headers,
                stream=request.stream,
                extensions={**request.extensions, **name},
            )
            for address in addresses[:_MAX_ADDRESSES]
        ]


def _headers_for(request: httpx2.Request, url: Url) -> httpx2.Headers:
    """Return the headers of a request; only a few if a redirect leads away from the first origin."""
    here = url.scheme, url.host, url.port
    first = request.extensions.setdefault(_FIRST_ORIGIN, here)
    upgraded = ("https", first[1], 443) if first == ("http", first[1], 80) else first
    if here in (first, upgraded):
        return request.headers
    return httpx2.Headers([(key, value) for key, value in request.headers.raw if key.decode().lower() in _KEPT_HEADERS])


def _resolve_name(host: str) -> Iterable[str]:
    return [str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
