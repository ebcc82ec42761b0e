"""The addresses to which an MCP server may send this client: its own, those named by the developer, and public ones by
https.

In OAuth, a client goes to addresses named by the server: its metadata, an authorization server, and the addresses named
there (RFC 9728, RFC 8414). Without a bound, a server could reach everything that only the client can reach.
"""

from __future__ import annotations

from collections.abc import Iterable

import httpx2

from ferrule.security.http import NotReachableError
from ferrule.security.urls import Kind, find_address_kind, find_host_kind, read_url

_PORTS = {"http": 80, "https": 443}


class Reach:
    """The addresses that may be reached on behalf of one server.

    Args:
        server: Its address.
        named: Addresses from the developer. Everything at their origins is allowed, as at the server's own.
    """

    def __init__(self, server: str, named: Iterable[str] = ()) -> None:
        self._origins = {_parse_origin(server), *map(_parse_origin, named)}
        self._own = _parse_origin(server)
        self._kinds: set[Kind | None] = {None, "global", find_host_kind(self._own[1])}

    def check(self, url: httpx2.URL | str) -> None:
        """Check an address as it is written.

        Raises:
            NotReachableError: It may not be reached, whatever it resolves to.
        """
        scheme, _host, _port = origin = _parse_origin(url)
        if origin in self._origins:
            return
        try:
            kind, unread = find_host_kind(read_url(str(url)).host), None
        except ValueError as error:
            kind, unread = None, error
        if scheme != "https" and not (scheme == "http" and kind == "loopback" and kind in self._kinds):
            raise _not_reachable(url, "which is not https")
        if unread is not None:
            raise _not_reachable(url, f"which cannot be judged: {unread}")
        self._check_kind(url, kind)

    def check_address(self, url: httpx2.URL, address: str) -> None:
        """Check the address of an open connection.

        Raises:
            NotReachableError: It may not be reached.
        """
        if _parse_origin(url) not in self._origins:
            self._check_kind(url, find_address_kind(address))

    def learn_address(self, url: httpx2.URL, address: str) -> None:
        """Learn the kind of the server's own address, once the server has proved its name. A loopback address does not
        count: the owner of a name may let it point to this machine today and elsewhere tomorrow."""
        kind = find_address_kind(address)
        if _parse_origin(url) == self._own and kind != "loopback":
            self._kinds.add(kind)

    def _check_kind(self, url: httpx2.URL | str, kind: Kind | None) -> None:
        if kind not in self._kinds:
            raise _not_reachable(url, f"which is at a {kind} address")


def _parse_origin(url: httpx2.URL | str) -> tuple[str, str, int | None]:
    """Return scheme, host and port, as the HTTP client reads them."""
    try:
        found = httpx2.URL(url)
        return found.scheme, found.raw_host.decode("ascii").rstrip("."), found.port or _PORTS.get(found.scheme)
    except (httpx2.InvalidURL, ValueError):
        return "", "", None


def _not_reachable(url: httpx2.URL | str, why: str) -> NotReachableError:
    scheme, host, port = _parse_origin(url)
    origin = f"{scheme}://{f'[{host}]' if ':' in host else host}" + ("" if port == _PORTS.get(scheme) else f":{port}")
    text = f"the server names {origin}, {why}; where that is right, give Http(…, authorization_servers=[{origin!r}])"
    return NotReachableError(text)
