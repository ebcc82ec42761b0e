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
        named: Whether the developer named it: credentials go nowhere else.
        kept_apart: Whether nobody else can read the connection: https, or this very machine.
    """

    url: str
    origin: tuple[str, str, int]
    named: bool
    kept_apart: bool


NOWHERE = Server("https://api.invalid", ("https", "api.invalid", 443), named=True, kept_apart=True)
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
        self.own = servers[0] if servers else _of_document(document)

    def of(self, operation: Operation) -> Server:
        """Return the server of an operation.

        Raises:
            DefinitionError: It is a server that nobody named.
        """
        listed = operation.node.value.get("servers") or operation.item.value.get("servers")
        if not isinstance(listed, list) or not listed:
            return self.own
        listed = listed[:_MOST_SERVERS]
        texts = [one["url"] for one in listed if isinstance(one, Mapping) and isinstance(one.get("url"), str)]
        for text in texts:
            whole = urljoin(f"{self.own.url}/", text)
            try:
                url = read_url(whole)
                found = _server(whole, url, named=bool(self._named))
            except ValueError:
                continue
            if "{" not in text and any(_is_below(found, known) for known in self._named or [self.own]):
                return found
        if any("{" in text for text in texts):
            raise DefinitionError(f"its server {texts[:1]!r:.200} is to be filled in, which is not done")
        raise DefinitionError(f"its server is another one, {texts[:1]!r:.200}: name it too, {self._further}")


def _is_below(server: Server, known: Server) -> bool:
    """Return whether a server is at or below a named one: one host may have several applications."""
    return server.origin == known.origin and f"{server.url}/".startswith(f"{known.url}/")


def _named_server(text: Any, document: Document) -> Server:
    try:
        return _server(text, read_url(text), named=True)
    except (ValueError, TypeError) as error:
        raise DefinitionError(f"{document.spelling.server.format(text)[:200]}: {error}") from None


def _of_document(document: Document) -> Server:
    listed = document.root.value.get("servers")
    found = [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
    texts = [one["url"] for one in found if isinstance(one.get("url"), str)]
    spelled = document.spelling.server
    remedy = f"say where the API is: {spelled.format(_EXAMPLE)}"
    if len(texts) != 1:
        shown = f"{len(texts)} servers, {texts[:3]!r:.300}" if texts else "no server"
        raise DefinitionError(f"{document.name} names {shown}; {remedy}")
    [text] = texts
    if "{" in text:
        raise DefinitionError(f"{document.name} names the server {text!r:.200}, which is to be filled in; {remedy}")
    try:
        url = read_url(text)
        server = _server(text, url, named=False)
    except ValueError as error:
        raise DefinitionError(f"{document.name} names the server {text!r:.200}: {error}; {remedy}") from None
    if url.scheme != "https" or find_host_kind(url.host) not in (None, "global"):
        raise DefinitionError(
            f"{document.name} names the server {text!r:.200}, which is not public and https; where that is right, "
            f"name it yourself, {spelled.format(text)[:200]}"
        )
    return server


def _server(text: str, url: Url, *, named: bool) -> Server:
    """Return a server.

    Raises:
        ValueError: The address is no plain http or https address.
    """
    if url.scheme not in ("https", "http"):
        raise ValueError(f"it is of the scheme {url.scheme!r}, and no https")
    if "?" in text or "#" in text:
        raise ValueError("it has a '?' or '#'")
    if leads_elsewhere(url.path):
        raise ValueError("its path has a part '.' or '..'")
    kept_apart = url.scheme == "https" or find_host_kind(url.host) == "loopback"
    return Server(text.rstrip("/"), _origin_of_url(url), named, kept_apart)


def _origin_of_url(url: Url) -> tuple[str, str, int]:
    return url.scheme, url.host, url.port


def has_below(server: Server, text: str) -> bool:
    """Return whether a URL is at or below the address of a server, as every client reads it."""
    try:
        url = read_url(text)
    except ValueError:
        return False
    is_below = f"{url.path}/".startswith(f"{read_url(server.url).path.rstrip('/')}/")
    return _origin_of_url(url) == server.origin and is_below and not leads_elsewhere(url.path)


def origin_of(text: str) -> tuple[str, str, int]:
    """Return scheme, host and port of a URL.

    Raises:
        ValueError: Two parsers could read the URL in two ways.
    """
    return _origin_of_url(read_url(text))
