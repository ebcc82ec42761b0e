"""What a URL names, what its address reaches, and which host patterns match."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from urllib.parse import urlsplit

import httpx2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ferrule import DefinitionError
from ferrule.security.urls import (
    Destinations,
    HostPattern,
    Url,
    find_address_kind,
    find_host_kind,
    has_host_match,
    host_matches,
    read_host,
    read_url,
)


def words(text: str) -> list[str]:
    return text.split()


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("https://Example.ORG", ("https", "example.org", 443, "/", None)),
        ("HTTP://example.org.:8080/a/../b?q=1#f", ("http", "example.org", 8080, "/a/../b", None)),
        ("http://93.184.216.34/", ("http", "93.184.216.34", 80, "/", "93.184.216.34")),
        ("http://93.184.216.34./", ("http", "93.184.216.34", 80, "/", "93.184.216.34")),
        ("ws://[2606:4700::0:1111]:1", ("ws", "2606:4700::1111", 1, "/", "2606:4700::1111")),
        ("ftp://example.org/a?b#c?d#e", ("ftp", "example.org", 21, "/a", None)),
        ("git://a_b.example?x", ("git", "a_b.example", 0, "/", None)),
        ("https://de.wikipedia.org/wiki/Köln?q={1}@x", ("https", "de.wikipedia.org", 443, "/wiki/Köln", None)),
        (f"http://{'a' * 63}.{'b.' * 94}c:65535/", ("http", f"{'a' * 63}.{'b.' * 94}c", 65_535, "/", None)),
        ("https://xn--bcher-kva.example/", ("https", "xn--bcher-kva.example", 443, "/", None)),
    ],
)
def test_an_unambiguous_url_is_read(text: str, read: tuple[object, ...]) -> None:
    assert read_url(text) == Url(*read)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *[(f"http://{host}/", "IP address") for host in ("127.1", "2130706433", "0x7f.1", "0177.0.0.1", "1.2.3.4.5")],
        *[(f"http://{host}/", "IP address") for host in ("0x7f000001", "a.0x", "127.0.0.01", "256.1.1.1", "a.09")],
        *[(f"http://{host}/", "not ASCII") for host in ("①②⑦.⓪.⓪.①", "127。0。0。1", "ⓛocalhost", "bücher.example")],
        *[(f"http://{host}/", "in brackets") for host in ("[::1", "::1]", "[fe80::1%25eth0]", "[v1.a]", "a[::1]")],
        *[(f"http://{host}/", "IP address") for host in ("[1::2::3]", "[127.0.0.1]", "[::127.0.0.01]")],
        *[(f"http://{host}/", "credentials") for host in ("a@b.example", "a:b@b.test", "@b.example", "a@b@c.test")],
        *[(f"http://{host}/", "port") for host in ("a.example:", "a.example:0", "a.example:080")],
        *[(f"http://{host}/", "port") for host in ("a.example:80a", "a.example:-1", "a.example:80:80", "[::1]:")],
        ("http://a.example:65536/", "65536 is not a port"),
        ("http://a" + ".b" * 126 + "c", "name of"),
        ("http://" + "é" * 200, "'é{120}'… is not ASCII"),
        *[(f"http://{host}/", "no host") for host in ("", ":80")],
        *[(f"http://{host}/", "name of") for host in ("a..example", ".a.example", "a.example..", "a%2eexample", "a!b")],
        *[(f"http://{host}/", "name of") for host in ("a" * 64 + ".example", "a." * 127 + "a")],
        *[(f"http://public{one}.test/", "^it has '.+', which .*several ways") for one in "\t\0 \\\xa0\u200b\ud800"],
        *[(f"{one}http://public.test/{one}", "several ways") for one in " \n"],
        ("http://public.test\\@127.0.0.1/", "several ways"),
        *[(f"http://public.test{one}@127.0.0.1/", "after a host") for one in "#?"],
        *[(text, "not a whole URL") for text in ("//127.0.0.1/", "http:/a.test", "http:a.test", "a.example", "", "/a")],
        *[(text, "not a whole URL") for text in ("mailto:a@b.example", "1http://a.example", "http//a.example", "ａ://b")],
        ("http:///a.example", "no host"),
        ("file:///etc/passwd", "no host"),
        ("http://a.example/" + "a" * 65_536, "65536"),
    ],
)  # fmt: skip
def test_an_ambiguous_url_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_url(text)


PIECES = st.sampled_from(
    words(r"http HTTPS ws ftp git : // / \ @ # ? . % %2e [ ] ::1 1 0 a Example org xn-- xn--bcher-kva localhost 127")
    + words("0x7f - _ ~ ! 80 65536 ① 。 ／ ß İ ::ffff:127.0.0.1 http:// https://a.example")
    + ["\t", " ", "\n", "\u200b"]
)


@given(
    st.one_of(st.lists(PIECES, max_size=10).map("".join), st.lists(PIECES).map(lambda some: "http://" + "".join(some)))
)
def test_urlsplit_and_httpx2_read_every_accepted_url_alike(text: str) -> None:
    try:
        url = read_url(text)
    except ValueError:
        return
    split, other = urlsplit(text), httpx2.URL(text)
    assert (split.scheme, str(split.hostname).removesuffix("."), split.port or url.port) == (
        url.scheme,
        url.host,
        url.port,
    )
    host = other.raw_host.decode().removesuffix(".")
    assert (other.scheme, host, other.port or url.port) == (url.scheme, url.host, url.port)


def test_hosts_stand_alone_or_with_a_port() -> None:
    texts = ["Example.org", "example.org:8080", "::1", "[::1]:8080", "10.0.0.1"]
    read = [(url.host, url.port) for url in map(read_host, texts)]
    assert read == [("example.org", 0), ("example.org", 8080), ("::1", 0), ("::1", 8080), ("10.0.0.1", 0)]
    for text in ("", "example.org/x", "a b", "127.1", "1:2:x", "https://example.org"):
        with pytest.raises(ValueError):
            read_host(text)


KINDS = {
    kind: ones.split()
    for kind, ones in {
        "loopback": "127.0.0.1 127.9.9.9 ::1 0.0.0.0 ::",
        "link-local": "169.254.0.1 fe80::1 fe80::1%eth0 169.254.169.253",
        "metadata": "169.254.169.254 168.63.129.16 fd00:ec2::254 100.100.100.200 169.254.170.2",
        "private": "10.0.0.1 172.16.0.1 172.31.9.9 192.168.0.1 100.64.0.1 fd00::1 fec0::1 64:ff9b:1::1",
        "reserved": "0.0.0.1 192.0.0.9 192.0.2.1 192.88.99.1 198.18.0.1 203.0.113.1 224.0.0.1 240.0.0.1 "
        "255.255.255.255 ff02::1 2001:db8::1 3fff::1 4000::1 5f00::1 100::1 ::8.8.8.8 2001:0:1::1 "
        "2001:1::1 2001:20::1 2001:4:112::1",
        "global": "1.1.1.1 93.184.216.34 172.32.0.1 100.128.0.1 2606:4700::1111 2a00:1450::1",
    }.items()
}


def test_kinds_of_addresses() -> None:
    assert {kind: [one for one in ones if find_address_kind(one) == kind] for kind, ones in KINDS.items()} == KINDS


ADDRESSES = st.one_of(
    st.integers(0, 2**32 - 1).map(IPv4Address),
    st.sampled_from([IPv4Address(one) for ones in KINDS.values() for one in ones if ":" not in one]),
)


@given(ADDRESSES, st.integers(0, 2**64 - 1))
@example(IPv4Address("169.254.170.23"), 0)
def test_an_embedded_address_has_the_kind_of_its_target(inner: IPv4Address, other: int) -> None:
    kind, value = find_address_kind(str(inner)), int(inner)
    wide = {
        "v4-mapped": 0xFFFF << 32 | value,
        "NAT64": 0x0064_FF9B << 96 | value,
        "6to4": 0x2002 << 112 | value << 80 | other,
    }
    assert {name: find_address_kind(str(IPv6Address(one))) for name, one in wide.items()} == dict.fromkeys(wide, kind)
    no_more = {
        "v4-compatible": value,
        "SIIT": 0xFFFF << 48 | value,
        "NAT64 of one network": 0x0064_FF9B_0001 << 80 | other << 16 | value,
        "Teredo": 0x2001_0000 << 96 | 0x0808_0808 << 64 | (value ^ 0xFFFF_FFFF),
        "Teredo's server": 0x2001_0000 << 96 | value << 64 | (0x0808_0808 ^ 0xFFFF_FFFF),
        "ISATAP": 0x2606_4700 << 96 | 0x5EFE << 32 | value,
    }
    kinds = {name: find_address_kind(str(IPv6Address(one))) for name, one in no_more.items()}
    assert kind == "global" or "global" not in kinds.values()
    tunnels = {kinds["Teredo"], kinds["Teredo's server"], kinds["ISATAP"]}
    assert tunnels == {kind} or (kind == "global" and tunnels <= {"global", "reserved"})


@given(ADDRESSES, st.integers(0, 2**64 - 1))
def test_a_denied_address_is_denied_in_every_form(denied: IPv4Address, other: int) -> None:
    value = int(denied)
    forms = [value, 0xFFFF << 32 | value, 0xFFFF << 48 | value, 0x0064_FF9B << 96 | value]
    forms += [0x2002 << 112 | value << 80 | other, 0x2606_4700 << 96 | 0x5EFE << 32 | value]
    forms += [0x2001_0000 << 96 | 0x0808_0808 << 64 | (value ^ 0xFFFF_FFFF)]
    texts = [f"[{IPv6Address(form)}]" for form in forms]
    for one, others in [(str(denied), texts), *((text, [str(denied)]) for text in texts)]:
        rules = Destinations.from_options(["*"], deny=[one])
        found = {text: rules.verdict(read_host(text))[0] for text in others}
        assert found == dict.fromkeys(others, "deny")
        assert not any(rules.may_connect(read_url("https://x.org/"), text.strip("[]")) for text in others)
    assert has_host_match("[2606:4700::1111]", [HostPattern("1.1.1.1"), HostPattern("*.org")]) is False


def test_kinds_of_hosts() -> None:
    kinds = {
        "loopback": ["localhost", "a.localhost", "127.0.0.1"],
        "metadata": ["metadata.google.internal", "metadata", "169.254.169.254"],
        "private": ["db", "x.internal", "printer.local", "nas.home.arpa", "wiki.corp", "10.0.0.1"],
        None: ["example.org", "public.test", "internal.example", "localhost.example", "home.arpa.example"],
    }
    assert {kind: [one for one in ones if find_host_kind(one) == kind] for kind, ones in kinds.items()} == kinds


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("example.org", "https://EXAMPLE.org./x example.org:1", "a.example.org example.org.evil.test"),
        ("*.example.org", "a.example.org a.b.example.org", "example.org aexample.org xn--a.example.org"),
        ("*.xn--bcher-kva.example", "a.xn--bcher-kva.example", "xn--a.xn--bcher-kva.example"),
        ("example.org:8080", "example.org:8080 http://example.org:8080/", "example.org http://example.org/"),
        ("example.org:443", "https://example.org/", "http://example.org/"),
        ("*", "example.org 1.1.1.1 [2606:4700::1111]", "127.0.0.1 localhost a.localhost db x.lan"),
        ("*", "", "10.0.0.1 [::1] [::ffff:10.0.0.1] metadata.google.internal xn--a.example a.xn--a.org"),
        ("*:443", "https://example.org/", "http://example.org/ https://127.0.0.1/"),
        ("*.internal", "a.internal a.b.internal", "internal metadata.google.internal a.local"),
        ("*.google.internal", "a.google.internal", "metadata.google.internal"),
        ("metadata.google.internal", "metadata.google.internal", ""),
        ("db", "db http://db/", "db.internal"),
        ("127.0.0.1:8000", "http://127.0.0.1:8000/", "http://127.0.0.1/ localhost:8000 [::ffff:127.0.0.1]:8000"),
        ("[::1]", "http://[0:0::1]:9/ ::1", "127.0.0.1"),
        ("xn--bcher-kva.example", "http://XN--bcher-kva.example/", "bucher.example"),
    ],
)
def test_a_host_pattern_matches_what_it_spells_out(pattern: str, yes: str, no: str) -> None:
    matched = {text: host_matches(text, [HostPattern(pattern)]) for text in words(f"{yes} {no}")}
    assert matched == {**dict.fromkeys(yes.split(), True), **dict.fromkeys(no.split(), False)}


def test_asking_and_denying_match_more_widely() -> None:
    found = {
        ("*", "http://127.0.0.1/"): True,
        ("*", "http://metadata.google.internal/"): True,
        ("*.example.org", "xn--a.example.org"): True,
        ("*.internal", "metadata.google.internal"): True,
        ("*.internal", "example.org"): False,
        ("example.org:22", "example.org"): None,
        ("example.org:22", "example.org:22"): True,
        ("example.org:22", "example.org:23"): False,
        ("example.org:22", "example.com"): False,
        ("example.org", "http://127.1/"): None,
    }
    assert {case: has_host_match(case[1], [HostPattern(case[0])]) for case in found} == found
    assert has_host_match("example.org", [HostPattern("example.org:22"), HostPattern("*")]) is True
    assert host_matches("http://127.1/", [HostPattern("*")]) is None
    stays = {"/a?b=//c": False, "?a": False, "#a": False, "//a.org/": None, "/\\a.org": None, "/\ta": None, "": None}
    for asked in (has_host_match, host_matches):
        assert {text: asked(text, [HostPattern("*")]) for text in stays} == stays


@pytest.mark.parametrize(
    "text",
    [
        *words(
            "*. *example.org a*.org a.*.org *.* ** *.10.0.0.1 *.[::1] 127.1 http://a.org a/b a.org: a.org:0 *: *:99999"
        ),
        *("", "bücher.example", "a b", " a.org", "[::1", "a@b", None, b"a.org", 7),
    ],
)
def test_an_invalid_host_pattern_is_a_definition_error(text: str) -> None:
    with pytest.raises(DefinitionError, match="pattern of hosts"):
        HostPattern(text)


HOSTS = words("a.org b.a.org xn--a.a.org org db x.internal y.x.internal metadata.google.internal")
HOSTS += words("localhost a.localhost 127.0.0.1 1.1.1.1 [::1]")
PATTERNS = HOSTS + words("* *.org *.a.org *.internal *.x.internal *.google.internal *.localhost *.xn--a.org")


URLS = [
    read_host(f"{host}:{port}") for host in [*HOSTS, *(one.replace("*", "zz") for one in PATTERNS)] for port in (1, 2)
]


def test_a_host_pattern_covers_what_it_matches_entirely() -> None:
    patterns = [HostPattern(one + port) for one in PATTERNS for port in ("", ":1", ":2")]
    matched = {pattern: {url for url in URLS if pattern.matches(url)} for pattern in patterns}
    assert all(matched.values())
    wrong = [
        (one.text, other.text)
        for one in patterns
        for other in patterns
        if one.covers(other) is not (matched[other] <= matched[one])
    ]
    assert wrong == []


def said(rules: Destinations, text: str) -> str:
    kind, why = rules.verdict(read_url(text) if "/" in text else read_host(text))
    return f"{kind}: {why}" if why else kind


def test_the_strictest_rule_decides_and_says_why() -> None:
    rules = Destinations.from_options(
        ["*", "db"], ask=["a.org", "*:22"], deny=["b.org", "*.c.org:22"], schemes=["https", "ssh"]
    )
    verdicts = {
        "https://x.org/": "allow",
        "x.org": "ask: leads to x.org, which needs an approval",  # by port 22, for all that is known
        "x.org:80": "allow",
        "a.org:80": "ask: leads to a.org, which needs an approval",
        "b.org:22": "deny: leads to b.org, which is denied",
        "x.c.org:22": "deny: leads to x.c.org, which is denied",
        "x.c.org:23": "allow",
        "http://x.org/": "deny: uses the scheme http; allowed is https, ssh",
        "db:1": "allow",
        "localhost:1": "deny: leads to localhost (loopback), which only a pattern with the whole name allows; "
        "allowed is: *, db",
        "a.xn--a:1": "deny: leads to a.xn--a (written with xn--), which only a pattern with the whole name allows; "
        "allowed is: *, db",
    }
    assert {text: said(rules, text) for text in verdicts} == verdicts
    unknown = Destinations.from_options([], deny=["x.org:22"])
    assert [said(unknown, text)[:5] for text in ("x.org", "y.org")] == ["ask: ", "allow"]
    assert said(Destinations.from_options(["a.org"]), "x.org") == "deny: leads to x.org; allowed is: a.org"
    here = Destinations.from_options(["127.0.0.1:443"])
    assert [said(here, text)[:4] for text in ("http://127.0.0.1:8000/", "127.0.0.1")] == ["deny"] * 2
    ports = Destinations.from_options([], ports=[8443, 443])
    assert said(ports, "https://x.org/") == "allow"
    assert said(ports, "x.org") == "deny: goes to an unknown port; allowed is 443, 8443"
    assert said(ports, "x.org:80") == "deny: goes to port 80; allowed is 443, 8443"


@pytest.mark.parametrize(
    ("url", "may", "may_not"),
    [
        (
            "https://x.org/",
            "1.1.1.1 10.0.0.5 2606:4700::1111",
            "10.0.0.6 127.0.0.1 ::1 8.8.8.8 8.8.4.4 169.254.169.254",
        ),
        ("http://x.org:80/", "10.0.0.5 192.168.0.1", ""),
        ("http://x.org:81/", "10.0.0.5", "192.168.0.1 fe80::1%1 ::ffff:10.0.0.5"),
        ("http://x.internal/", "1.1.1.1 10.0.0.5", "10.0.0.6 127.0.0.1 169.254.0.1 169.254.169.254 198.18.0.1 8.8.8.8"),
        ("http://db/", "10.0.0.5", "10.0.0.6 127.0.0.1 ::1"),
        ("http://a.localhost/", "127.0.0.1 ::1 1.1.1.1", "10.0.0.6 169.254.169.254"),
        ("http://metadata/", "", "169.254.169.254 169.254.0.1 127.0.0.1"),
    ],
)
def test_a_name_may_lead_to_global_and_listed_addresses_only(url: str, may: str, may_not: str) -> None:
    rules = Destinations.from_options(["*", "10.0.0.5", "192.168.0.1:80"], deny=["8.8.8.8"], ask=["8.8.4.4"])
    found = {address: rules.may_connect(read_url(url), address) for address in words(f"{may} {may_not}")}
    assert found == {**dict.fromkeys(words(may), True), **dict.fromkeys(words(may_not), False)}


def test_a_wrong_port_or_scheme_is_a_definition_error() -> None:
    for ports in ([0], [65_536], [True], ["443"], [443, -1]):
        with pytest.raises(DefinitionError, match="1 to 65535"):
            Destinations.from_options([], ports=ports)
    for schemes in (["HTTPS"], ["https:"], [""], [None], ["https", "1a"]):
        with pytest.raises(DefinitionError, match="lower case"):
            Destinations.from_options([], schemes=schemes)
    assert Destinations.from_options([], ports=[1, 65_535]).ports == {1, 65_535}
