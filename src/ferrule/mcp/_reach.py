"""Which addresses an MCP server may send this client to: where it is itself, those that the developer named, and the
public ones, by https.

OAuth has a client go where the server says: to its metadata, to an authorization server, and to what that names
(RFC 9728, RFC 8414). Without a bound it would reach whatever the client can reach and the server cannot.
"""

from __future__ import annotations

from collections.abc import Iterable

import httpx2

from ferrule.security.http import NotReachableError
from ferrule.security.urls import Kind, kind_of, kind_of_host, read_url

_PORTS = {"http": 80, "https": 443}


class Reach:
    """The addresses that may be reached on behalf of one server.

    Args:
        server: Its address.
        named: Those of the developer, of which all is allowed as it is of the server's own.
    """

    def __init__(self, server: str, named: Iterable[str] = ()) -> None:
        self._origins = {_where(server), *map(_where, named)}
        self._own = _where(server)
        self._kinds: set[Kind | None] = {None, "global", kind_of_host(self._own[1])}

    def check(self, url: httpx2.URL | str) -> None:
        """Look at an address as it is written.

        Raises:
            NotReachableError: where it may not be reached, whatever it resolves to.
        """
        scheme, _host, _port = origin = _where(url)
        if origin in self._origins:
            return
        try:
            kind, unread = kind_of_host(read_url(str(url)).host), None
        except ValueError as error:
            kind, unread = None, error
        if scheme != "https" and not (scheme == "http" and kind == "loopback" and kind in self._kinds):
            raise _not_reachable(url, "which is not https")
        if unread is not None:
            raise _not_reachable(url, f"which cannot be judged: {unread}")
        self._check_kind(url, kind)

    def check_address(self, url: httpx2.URL, address: str) -> None:
        """Look at the address that a connection came to.

        Raises:
            NotReachableError: where it may not be reached.
        """
        if _where(url) not in self._origins:
            self._check_kind(url, kind_of(address))

    def connected(self, url: httpx2.URL, address: str) -> None:
        """Learn where the server is itself, once it has shown that it is the one of that name. A name may lead to this
        machine today and elsewhere tomorrow, as who owns it likes, and is not believed in that."""
        kind = kind_of(address)
        if _where(url) == self._own and kind != "loopback":
            self._kinds.add(kind)

    def _check_kind(self, url: httpx2.URL | str, kind: Kind | None) -> None:
        if kind not in self._kinds:
            raise _not_reachable(url, f"which is at a {kind} address")


def _where(url: httpx2.URL | str) -> tuple[str, str, int | None]:
    """Scheme, host and port, as the client reads them that goes there."""
    try:
        found = httpx2.URL(url)
        return found.scheme, found.raw_host.decode("ascii").rstrip("."), found.port or _PORTS.get(found.scheme)
    except (httpx2.InvalidURL, ValueError):
        return "", "", None


def _not_reachable(url: httpx2.URL | str, why: str) -> NotReachableError:
    scheme, host, port = _where(url)
    origin = f"{scheme}://{f'[{host}]' if ':' in host else host}" + ("" if port == _PORTS.get(scheme) else f":{port}")
    text = f"the server names {origin}, {why}; where that is right, give Http(…, authorization_servers=[{origin!r}])"
    return NotReachableError(text)
