"""Read URLs in one unambiguous way: hosts, kinds of addresses, and patterns of hosts.

`read_url` refuses any text that two parsers could read in two ways (RFC 3986, the WHATWG's URL Standard and the
resolvers of C libraries differ), so every client opens the URL that was judged. Nothing here calls a resolver:
`ferrule.security.http` does, and connects to the checked address.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any, Final, Literal, TypeAlias

from ferrule.errors import DefinitionError

Kind: TypeAlias = Literal["global", "private", "link-local", "loopback", "metadata", "reserved"]
"""The kind of network behind an address. See docs/guards.md#hosts."""

URL_NAMES: Final = frozenset(
    {"url", "urls", "uri", "uris", "iri", "iris", "website", "websites", "webhook", "webhooks"}
    | {"endpoint", "endpoints", "proxy", "proxies"}
)
"""The names of URLs, by the last word of a parameter's name or its last two: `image_url`. See docs/guards.md#hosts."""
HOST_NAMES: Final = frozenset(
    {"host", "hosts", "hostname", "hostnames", "fqdn", "netloc", "nameserver", "nameservers"}
    | {"ip", "ips", "ipaddress", "ipaddresses"}
)
"""The names of hosts, likewise. See docs/guards.md#hosts."""

MAX_URL_LENGTH: Final = 65_536
"""The most characters of a URL, the same as for httpx2."""
_LONGEST_HOST, _LONGEST_LABEL = 253, 63  # RFC 1035
_QUOTE_LENGTH: Final = 120
_DEFAULT_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443, "ftp": 21}
_PARTS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)(.*)")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([1-9][0-9]{0,4}))?")
_EVERY_HOST = re.compile(r"\*(?::.*)?")
_PUNYCODE = re.compile(r"(?:^|\.)xn--")
_NUMERIC_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""The last label of an IPv4 address by the URL Standard."""

_LOCAL_ZONES: Final = ("localhost", "localdomain", "local", "internal", "intranet", "private", "corp", "home", "lan")
"""Zones outside the public DNS: RFC 6761, RFC 6762 and its appendix G, ICANN's `.internal`."""
_METADATA_NAMES: Final = frozenset(
    {"metadata.google.internal", "metadata.goog", "metadata.azure.internal", "metadata.tencentyun.com"}
    | {"instance-data.ec2.internal", "metadata.platformequinix.com", "metadata", "instance-data"}
)
_METADATA: Final = frozenset(
    ip_address(one)
    for one in (
        *("169.254.169.254", "169.254.170.2", "169.254.170.23", "fd00:ec2::254", "fd00:ec2::23"),  # AWS
        *("168.63.129.16", "fd20:ce::254", "100.100.100.200", "192.0.0.192"),  # Azure, Google, Alibaba, Oracle
    )
)
_PRIVATE: Final = tuple(
    ip_network(one)
    for one in (
        *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"),  # RFC 1918, RFC 6598
        *("fc00::/7", "fec0::/10", "64:ff9b:1::/48"),  # RFC 4193, RFC 3879, RFC 8215
    )
)
_RESERVED: Final = tuple(map(ip_network, ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "3fff::/20")))
"""Networks of IANA's special-purpose registries that `ipaddress` calls global in some version of Python."""
_UNICAST: Final = ip_network("2000::/3")
"""All addresses that IANA assigns as global unicast of IPv6."""
_IPV4_IN_IPV6: Final = (
    (ip_network("::ffff:0:0/96"), 0),
    (ip_network("64:ff9b::/96"), 0),
    (ip_network("2002::/16"), 80),
)
"""Networks that reach an embedded IPv4 address, and the position of its last bit: RFC 4291, RFC 6052, RFC 3056."""
_OLD_IPV4_IN_IPV6: Final = (ip_network("::/96"), ip_network("::ffff:0:0:0/96"))
"""Networks that may reach the IPv4 address in their last bits, and are no longer assigned: RFC 4291, RFC 2765."""
_TEREDO: Final = ip_network("2001::/32")
_ISATAP: Final = frozenset({0x0000_5EFE, 0x0200_5EFE})


@dataclass(frozen=True, slots=True)
class Url:
    """The parts of a URL. See docs/guards.md#hosts."""

    scheme: str
    """In lower case; empty for a host alone."""
    host: str
    """A name in lower case and ASCII, without a final dot; or an address as Python writes it, without brackets."""
    port: int
    """0 if it is not written, and the scheme has no known port."""
    path: str
    """As written, without query and fragment."""
    address: str | None
    """The host, if it is an address."""


def read_url(text: str) -> Url:
    """Return the parts of an absolute URL with a host. See docs/guards.md#hosts.

    Raises:
        ValueError: Two parsers could read the text in two ways. The message says how to write it.
    """
    if len(text) > MAX_URL_LENGTH:
        raise ValueError(f"it has {len(text)} characters, and a URL has at most {MAX_URL_LENGTH}")
    if not text.isprintable() or " " in text or "\\" in text:
        strange = next(one for one in text if not one.isprintable() or one in " \\")
        raise ValueError(f"it has {strange!r}, which clients read in several ways; write it percent-encoded")
    parts = _PARTS.fullmatch(text)
    if parts is None:
        raise ValueError("it is not a whole URL; write scheme, host and path, as in https://example.org/path")
    scheme, authority, rest = parts[1].lower(), parts[2], parts[3]
    if rest[:1] in {"?", "#"} and "@" in rest:  # some parsers took the text before it for credentials
        raise ValueError("it has a '@' after a host without a path; write a '/' after the host")
    host, port, address = _read_authority(authority)
    return Url(
        scheme, host, port or _DEFAULT_PORTS.get(scheme, 0), re.split("[?#]", rest, maxsplit=1)[0] or "/", address
    )


def read_host(text: str) -> Url:
    """Return the parts of a host, alone or with a port: `example.org`, `example.org:8080`, `::1`, `[::1]:8080`.

    See docs/guards.md#hosts.

    Raises:
        ValueError: As for `read_url`.
    """
    host, port, address = _read_authority(f"[{text}]" if text.count(":") > 1 and "[" not in text else text)
    return Url("", host, port, "", address)


def has_no_host(text: str) -> bool:
    """Return whether a reference names no host: `/path`, `?query`, `#part`. See docs/guards.md#hosts."""
    return text[:1] in {"/", "?", "#"} and text[:2] != "//" and "\\" not in text and text.isprintable()


def _read_authority(text: str) -> tuple[str, int, str | None]:
    """Return host, port (0 for none), and the host again if it is an address."""
    found = _AUTHORITY.fullmatch(text)
    if found is None:
        raise ValueError(_explain_authority(text))
    host, port = found[1].lower(), int(found[2] or 0)
    if port > 65_535:
        raise ValueError(f"{port} is not a port; a port is at most 65535")
    if host.startswith("["):
        address = _canonical_address(host[1:-1], IPv6Address)
        return address, port, address
    host = host.removesuffix(".")
    labels = host.split(".")
    if _NUMERIC_LABEL.fullmatch(labels[-1]):
        address = _canonical_address(host, IPv4Address)
        return address, port, address
    if len(host) > _LONGEST_HOST or not all(0 < len(label) <= _LONGEST_LABEL for label in labels):
        raise ValueError(f"{_quote_host(host)} is not the name of a host: a part of it is empty, or it is too long")
    return host, port, None


def _canonical_address(text: str, form: type[IPv4Address] | type[IPv6Address]) -> str:
    try:
        return str(form(text))
    except ValueError:
        raise ValueError(f"{_quote_host(text)} is not an IP address; write it as 192.0.2.1 or [2001:db8::1]") from None


def _explain_authority(text: str) -> str:
    if "@" in text:
        return "it has credentials or a '@' before the host; write the host alone"
    if not text.isascii():
        return f"its host {_quote_host(text)} is not ASCII; write it as it is in the DNS, with xn--"
    address, closed, _port = text.partition("]:")
    if ("[" in text or "]" in text) and not (closed and _AUTHORITY.fullmatch(f"{address}]")):
        return f"its host {_quote_host(text)} is not an address in brackets; write it as [2001:db8::1]"
    host, colon, _port = text.partition(":")
    if not host:
        return "it names no host"
    if closed or (colon and _AUTHORITY.fullmatch(host)):
        return f"{_quote_host(text)} has an invalid port; write a number from 1 to 65535, or no ':'"
    return f"{_quote_host(text)} is not the name of a host: write letters, digits, '-', '_' and '.'"


def _quote_host(text: str) -> str:
    return repr(text) if len(text) <= _QUOTE_LENGTH else f"{text[:_QUOTE_LENGTH]!r}…"


def find_address_kind(address: str) -> Kind:
    """Return the kind of an IP address. See docs/guards.md#hosts.

    For an IPv6 address with an embedded IPv4 address, that one counts: v4-mapped and -compatible ones, NAT64, 6to4,
    Teredo, ISATAP. The translation prefixes of single networks are unknown.

    Raises:
        ValueError: The text is no IP address.
    """
    found = ip_address(address.partition("%")[0])
    kind = _classify_address(found)
    if isinstance(found, IPv4Address) or kind in {"loopback", "metadata"}:
        return kind
    if (reached := _find_embedded_ipv4(found)) is not None:
        return _classify_address(reached)
    inner = (_classify_address(one) for one in _find_tunneled_ipv4(found))
    return next((one for one in inner if one != "global"), kind)


def _find_embedded_ipv4(address: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address that an IPv6 address is another way to write or to reach."""
    shifts = (shift for network, shift in _IPV4_IN_IPV6 if address in network)
    return next((IPv4Address(int(address) >> shift & 0xFFFF_FFFF) for shift in shifts), None)


def _find_tunneled_ipv4(address: IPv6Address) -> Iterator[IPv4Address]:
    """Yield the IPv4 addresses that an IPv6 address may lead to through a tunnel."""
    value = int(address)
    if any(address in network for network in _OLD_IPV4_IN_IPV6) or value >> 32 & 0xFFFF_FFFF in _ISATAP:
        yield IPv4Address(value & 0xFFFF_FFFF)
    if address in _TEREDO:  # RFC 4380: the client's is written inverted, after the server's
        yield IPv4Address(~value & 0xFFFF_FFFF)
        yield IPv4Address(value >> 64 & 0xFFFF_FFFF)


def _find_reachable_addresses(host: str) -> set[str]:
    """Return the address and those that it may lead to; the empty set for a name."""
    try:
        found = ip_address(host)
    except ValueError:
        return set()
    if isinstance(found, IPv4Address):
        return {host}
    inner = _find_embedded_ipv4(found)
    return {host, *map(str, _find_tunneled_ipv4(found) if inner is None else (inner,))}


def _classify_address(found: IPv4Address | IPv6Address) -> Kind:
    if found in _METADATA:
        return "metadata"
    if found.is_loopback or found.is_unspecified:  # the latter is this machine, too
        return "loopback"
    if found.is_link_local:
        return "link-local"
    if any(found in network for network in _PRIVATE):
        return "private"
    is_assigned = found.version == 4 or found in _UNICAST
    if not is_assigned or not found.is_global or found.is_multicast or any(found in network for network in _RESERVED):
        return "reserved"
    return "global"


def find_host_kind(host: str) -> Kind | None:
    """Return the kind of a host as written: an address, or a name that by itself belongs to one machine or network.

    Returns `None` for any other name; only a resolver knows these. See docs/guards.md#hosts.

    Args:
        host: As in `Url`.
    """
    try:
        return find_address_kind(host)
    except ValueError:
        pass
    if host in _METADATA_NAMES:
        return "metadata"
    zone = host.rpartition(".")[2]
    if zone == "localhost":
        return "loopback"
    return "private" if zone == host or zone in _LOCAL_ZONES or host.endswith(".home.arpa") else None  # RFC 8375


@dataclass(frozen=True, slots=True)
class HostPattern:
    """A pattern of hosts, written by a person. See docs/guards.md#hosts.

    It is `example.org`, `*.example.org` (all names below it, and not itself), `*`, or an address, `192.0.2.1` or
    `[2001:db8::1]`. Each has a port, `example.org:8080`, or is for every port.

    Raises:
        DefinitionError: The text is no such pattern.
    """

    text: str
    host: str = field(init=False, compare=False, repr=False)
    """As in `Url`, or with `*` for its first part."""
    port: int = field(init=False, compare=False, repr=False)
    """0 for every port."""

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise DefinitionError(f"a pattern of hosts is text, such as 'example.org', not {self.text!r}")
        everything, below = _EVERY_HOST.fullmatch(self.text), self.text.startswith("*.")
        try:
            found = read_host(f"x{self.text[1:]}" if everything else self.text.removeprefix("*."))
            if below and found.address:
                raise ValueError("an address has no names below it")
        except ValueError as error:
            examples = "'example.org', '*.example.org', '127.0.0.1:8000', '[::1]' or '*'"
            raise DefinitionError(f"{self.text!r} is not a pattern of hosts, such as {examples}: {error}") from None
        object.__setattr__(self, "host", "*" if everything else f"*.{found.host}" if below else found.host)
        object.__setattr__(self, "port", found.port)

    def matches(self, url: Url) -> bool:
        """Return whether an allow with this pattern applies to `url`.

        `*` does not match an address that is not global, a name of one machine or network (`localhost`, `db`,
        `x.internal`) unless the pattern names such a zone (`*.internal`), a metadata service, or a name with `xn--`.
        Only a pattern that writes these out matches them.
        """
        part = self._match_star(url.host)
        if part is None or self.port not in {0, url.port}:
            return False
        return not part or (_PUNYCODE.search(part) is None and self._allows_kind(find_host_kind(url.host)))

    def has_match(self, url: Url) -> bool | None:
        """Return whether an ask or a deny with this pattern applies to `url`; `None` if the port is unknown.

        `*` matches everything, and an address matches in every form that reaches it.
        """
        if self._match_star(url.host) is None and not (
            url.address and _find_reachable_addresses(self.host) & _find_reachable_addresses(url.address)
        ):
            return False
        return None if self.port and not url.port else self.port in {0, url.port}

    def covers(self, other: HostPattern) -> bool:
        """Return whether an allow with this pattern applies to everything that an allow with `other` applies to."""
        below = other.host.startswith("*.")
        if self.port not in {0, other.port} or (below and self.host[0] != "*"):
            return False
        host = f"x{other.host[1:]}" if below else other.host
        return self.host == other.host or self.matches(Url("", host, self.port, "", None))

    def _match_star(self, host: str) -> str | None:
        """Return the part of a matching host in the place of `*`.

        It is empty if they are equal, and None if the host does not match.
        """
        if host == self.host:
            return ""
        if self.host == "*":
            return host
        return host.removesuffix(self.host[1:]) if self.host[0] == "*" and host.endswith(self.host[1:]) else None

    def _allows_kind(self, kind: Kind | None) -> bool:
        if kind in {None, "global"}:
            return True
        return self.host != "*" and kind != "metadata" and kind == find_host_kind(self.host[2:])


def host_matches(text: str, patterns: Iterable[HostPattern]) -> bool | None:
    """Return whether an allow with one of these patterns applies to a URL or a lone host; `None` if it cannot be read.

    See docs/guards.md#hosts.
    """
    url = _parse_url_or_host(text)
    if url is None:
        return False if has_no_host(text) else None
    return any(pattern.matches(url) for pattern in patterns)


def has_host_match(text: str, patterns: Iterable[HostPattern]) -> bool | None:
    """Return whether an ask or a deny with one of these patterns applies to a URL or a lone host.

    Returns `None` if that is uncertain. See docs/guards.md#hosts.
    """
    url = _parse_url_or_host(text)
    if url is None:
        return False if has_no_host(text) else None
    return has_url_match(patterns, url)


def has_url_match(patterns: Iterable[HostPattern], url: Url) -> bool | None:
    """Return whether an ask or a deny with one of these patterns applies to `url`; `None` if that is uncertain."""
    found = {pattern.has_match(url) for pattern in patterns}
    return True if True in found else None if None in found else False


def _parse_url_or_host(text: str) -> Url | None:
    try:
        return read_url(text) if "/" in text else read_host(text)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Destinations:
    """The allowed hosts, schemes and ports. See docs/guards.md#hosts."""

    allowed: tuple[HostPattern, ...]
    ask: tuple[HostPattern, ...]
    deny: tuple[HostPattern, ...]
    schemes: tuple[str, ...]
    ports: frozenset[int] | None
    """`None` for every port."""

    @classmethod
    def from_options(
        cls,
        allowed: Iterable[str],
        ask: Iterable[str] = (),
        deny: Iterable[str] = (),
        schemes: Iterable[str] = ("https", "http"),
        ports: Iterable[int] | None = None,
    ) -> Destinations:
        """Read the options of a program. Without an allowed host, `*` is allowed.

        Raises:
            DefinitionError: A pattern, a scheme or a port is invalid.
        """
        names = _to_tuple("schemes", schemes, "('https', 'http')")
        if not all(isinstance(name, str) and _SCHEME.fullmatch(name) for name in names):
            raise DefinitionError(f"schemes={names!r}: a scheme is written as 'https', in lower case")
        numbers = None if ports is None else _to_tuple("ports", ports, "(443, 8443)")
        if not all(type(port) is int and 0 < port < 65_536 for port in numbers or ()):
            raise DefinitionError(f"ports={numbers!r}: a port is a number from 1 to 65535")
        return cls(
            _parse_patterns("allowed", allowed) or (HostPattern("*"),),
            _parse_patterns("ask", ask),
            _parse_patterns("deny", deny),
            names,
            None if numbers is None else frozenset(numbers),
        )

    def verdict(self, url: Url) -> tuple[Literal["allow", "ask", "deny"], str]:
        """Return the decision about a URL, and the reason.

        deny > ask > allow, in any order of the patterns. A URL without a matching pattern is denied. If an ask or a
        deny may apply, the decision is to ask.
        """
        if url.scheme and url.scheme not in self.schemes:
            return "deny", f"uses the scheme {url.scheme}; allowed is {', '.join(self.schemes) or 'nothing'}"
        port = f"port {url.port}" if url.port else "an unknown port"
        if self.ports is not None and url.port not in self.ports:
            return "deny", f"goes to {port}; allowed is {', '.join(map(str, sorted(self.ports))) or 'none'}"
        denied, asked = has_url_match(self.deny, url), has_url_match(self.ask, url)
        if denied:
            return "deny", f"leads to {url.host}, which is denied"
        if asked or asked is None or denied is None:
            return "ask", f"leads to {url.host}, which needs an approval"
        if any(pattern.matches(url) for pattern in self.allowed):
            return "allow", ""
        allowed = ", ".join(pattern.text for pattern in self.allowed)
        if any(pattern.matches(replace(url, port=pattern.port)) for pattern in self.allowed):
            return "deny", f"leads to {port} of {url.host}; allowed is: {allowed}"
        return "deny", f"leads to {url.host}{_explain_special_host(url.host)}; allowed is: {allowed}"

    def may_connect(self, url: Url, address: str) -> bool:
        """Return whether an allowed URL may lead to an address that its host resolves to.

        The address must be global and not denied, or be written out itself. `localhost` may lead to this machine
        (RFC 6761).
        """
        ip = str(ip_address(address.partition("%")[0]))
        there = Url(url.scheme, ip, url.port, url.path, ip)
        if has_url_match((*self.deny, *self.ask), there) is not False:
            return False
        kind = find_address_kind(ip)
        if kind == "global" or (kind == "loopback" and find_host_kind(url.host) == "loopback"):
            return True
        return any(pattern.matches(there) for pattern in self.allowed)


def _explain_special_host(host: str) -> str:
    kind = find_host_kind(host)
    if kind in {None, "global"}:
        return " (written with xn--), which only a pattern with the whole name allows" if _PUNYCODE.search(host) else ""
    return f" ({kind}), which only a pattern with the whole name allows"


def _parse_patterns(option: str, texts: Iterable[str]) -> tuple[HostPattern, ...]:
    return tuple(map(HostPattern, _to_tuple(option, texts, "('example.org', '*.example.com')")))


def _to_tuple(option: str, values: Any, example: str) -> tuple[Any, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise DefinitionError(f"{option}={values!r}: write a list, as in {example}")
    return tuple(values)
