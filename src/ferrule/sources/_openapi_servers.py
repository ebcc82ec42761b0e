"""Where the operations of an OpenAPI document are sent: to a server that the developer names, or to its only one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urljoin

from ferrule import DefinitionError
from ferrule.security.urls import Url, kind_of_host, read_url
from ferrule.sources._openapi_document import Document
from ferrule.sources._openapi_operations import Operation, leads_elsewhere

_MOST_SERVERS = 50
_EXAMPLE = "https://api.example.com"


class Server(NamedTuple):
    """Where requests go.

    Attributes:
        url: Without a `/` at its end.
        origin: Scheme, host and port.
        named: Whether the developer named it: credentials go nowhere else.
        kept_apart: Whether what others on it hear is nobody's business: https, or this very machine.
    """

    url: str
    origin: tuple[str, str, int]
    named: bool
    kept_apart: bool


NOWHERE = Server("https://api.invalid", ("https", "api.invalid", 443), named=True, kept_apart=True)
"""Where nothing arrives, RFC 2606."""


class Servers:
    """The servers of a document.

    Args:
        document: The document.
        named: The addresses that the developer names; the first is the document's own.

    Raises:
        DefinitionError: for what is no address, and where the document leaves it open.
    """

    def __init__(self, document: Document, named: Iterable[str]) -> None:
        servers = [_named_server(text, document) for text in named]
        self._further = document.spelling.further_server
        self._named = servers
        self.own = servers[0] if servers else _of_document(document)

    def of(self, operation: Operation) -> Server:
        """Where an operation goes.

        Raises:
            DefinitionError: where that is a server which nobody named.
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
    """Whether it is at or below one that was named: on one host there may be several applications."""
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
    if url.scheme != "https" or kind_of_host(url.host) not in (None, "global"):
        raise DefinitionError(
            f"{document.name} names the server {text!r:.200}, which is not public and https; where that is right, "
            f"name it yourself, {spelled.format(text)[:200]}"
        )
    return server


def _server(text: str, url: Url, *, named: bool) -> Server:
    """Raises: ValueError."""
    if url.scheme not in ("https", "http"):
        raise ValueError(f"it is of the scheme {url.scheme!r}, and no https")
    if "?" in text or "#" in text:
        raise ValueError("it has a '?' or '#'")
    if leads_elsewhere(url.path):
        raise ValueError("its path has a part '.' or '..'")
    kept_apart = url.scheme == "https" or kind_of_host(url.host) == "loopback"
    return Server(text.rstrip("/"), _origin_of_url(url), named, kept_apart)


def _origin_of_url(url: Url) -> tuple[str, str, int]:
    return url.scheme, url.host, url.port


def has_below(server: Server, text: str) -> bool:
    """Whether a URL is at or below the address of a server, as every client reads it."""
    try:
        url = read_url(text)
    except ValueError:
        return False
    is_below = f"{url.path}/".startswith(f"{read_url(server.url).path.rstrip('/')}/")
    return _origin_of_url(url) == server.origin and is_below and not leads_elsewhere(url.path)


def origin_of(text: str) -> tuple[str, str, int]:
    """Scheme, host and port of a URL.

    Raises:
        ValueError: for what two parsers could read in two ways.
    """
    return _origin_of_url(read_url(text))
