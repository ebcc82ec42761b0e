"""The servers for the operations of an OpenAPI document: those named by the developer, or its only one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urljoin

from ferrule import DefinitionError
from ferrule.openapi.document import Document
from ferrule.openapi.operations import Operation, leads_elsewhere
from ferrule.security.urls import Url, find_host_kind, read_url

_MOST_SERVERS = 50
_EXAMPLE = "https://api.example.com"


class Server(NamedTuple):
    """The target of requests.

    Attributes:
        url: The address, without a `/` at its end.
        origin: Scheme, host and port.
        is_named: Whether the developer named it: credentials go nowhere else.
        is_secure: Whether nobody else can read the connection: https, or this very machine.
    """

    url: str
    origin: tuple[str, str, int]
    is_named: bool
    is_secure: bool


NO_SERVER = Server("https://api.invalid", ("https", "api.invalid", 443), is_named=True, is_secure=True)
"""A server that nothing reaches, RFC 2606."""


class Servers:
    """The servers of a document.

    Args:
        document: The document.
        named: The addresses from the developer; the first is the document's own.

    Raises:
        DefinitionError: An address is invalid, or the document leaves its server open.
    """

    def __init__(self, document: Document, named: Iterable[str]) -> None:
        servers = [_named_server(text, document) for text in named]
        self._further = document.spelling.further_server
        self._named = servers
        self.own = servers[0] if servers else _find_document_server(document)

    def choose(self, operation: Operation) -> Server:
        """Return the server of an operation.

        Raises:
            DefinitionError: It is a server that nobody named.
        """
        declared = operation.node.value.get("servers") or operation.item.value.get("servers")
        if not isinstance(declared, list) or not declared:
            return self.own
        declared = declared[:_MOST_SERVERS]
        texts = [one["url"] for one in declared if isinstance(one, Mapping) and isinstance(one.get("url"), str)]
        for text in texts:
            whole = urljoin(f"{self.own.url}/", text)
            try:
                url = read_url(whole)
                server = _server(whole, url, named=bool(self._named))
            except ValueError:
                continue
            if "{" not in text and any(_is_below(server, base) for base in self._named or [self.own]):
                return server
        if any("{" in text for text in texts):
            raise DefinitionError(f"its server {texts[:1]!r:.200} has variables: name the server itself")
        raise DefinitionError(f"it has another server, {texts[:1]!r:.200}: name that one as well, {self._further}")


def _is_below(server: Server, base: Server) -> bool:
    """Return whether a server is at or below a named one: one host may have several applications."""
    return server.origin == base.origin and f"{server.url}/".startswith(f"{base.url}/")


def _named_server(text: Any, document: Document) -> Server:
    try:
        return _server(text, read_url(text), named=True)
    except (ValueError, TypeError) as error:
        raise DefinitionError(f"{document.spelling.server.format(text)[:200]}: {error}") from None


def _find_document_server(document: Document) -> Server:
    declared = document.root.value.get("servers")
    servers = [one for one in declared if isinstance(one, Mapping)] if isinstance(declared, list) else []
    texts = [one["url"] for one in servers if isinstance(one.get("url"), str)]
    spelling = document.spelling.server
    remedy = f"name the API's address: {spelling.format(_EXAMPLE)}"
    if len(texts) != 1:
        shown = f"{len(texts)} servers, {texts[:3]!r:.300}" if texts else "no server"
        raise DefinitionError(f"{document.name} names {shown}; {remedy}")
    [text] = texts
    if "{" in text:
        raise DefinitionError(f"{document.name} names the server {text!r:.200}, which has variables; {remedy}")
    try:
        url = read_url(text)
        server = _server(text, url, named=False)
    except ValueError as error:
        raise DefinitionError(f"{document.name} names the server {text!r:.200}: {error}; {remedy}") from None
    if url.scheme != "https" or find_host_kind(url.host) not in (None, "global"):
        raise DefinitionError(
            f"{document.name} names the server {text!r:.200}, which is not public and https; if that is right, "
            f"name it yourself, {spelling.format(text)[:200]}"
        )
    return server


def _server(text: str, url: Url, *, named: bool) -> Server:
    """Return a server.

    Raises:
        ValueError: The address is no plain http or https address.
    """
    if url.scheme not in ("https", "http"):
        raise ValueError(f"its scheme is {url.scheme!r}, not https")
    if "?" in text or "#" in text:
        raise ValueError("it has a '?' or '#'")
    if leads_elsewhere(url.path):
        raise ValueError("its path must not have '.' or '..' as a part")
    is_secure = url.scheme == "https" or find_host_kind(url.host) == "loopback"
    return Server(text.rstrip("/"), _origin_of_url(url), named, is_secure)


def _origin_of_url(url: Url) -> tuple[str, str, int]:
    return url.scheme, url.host, url.port


def covers_url(server: Server, text: str) -> bool:
    """Return whether a URL is at or below the address of a server, as every client reads it."""
    try:
        url = read_url(text)
    except ValueError:
        return False
    is_below = f"{url.path}/".startswith(f"{read_url(server.url).path.rstrip('/')}/")
    return _origin_of_url(url) == server.origin and is_below and not leads_elsewhere(url.path)


def parse_origin(text: str) -> tuple[str, str, int]:
    """Return scheme, host and port of a URL.

    Raises:
        ValueError: Two parsers could read the URL in two ways.
    """
    return _origin_of_url(read_url(text))
