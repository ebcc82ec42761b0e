"""HTTP clients connect only to the addresses that were checked (real servers on loopback)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from ferrule import Runner, tool
from ferrule.errors import DefinitionError
from ferrule.guards import hosts
from ferrule.security.http import NotReachableError, Transport, async_client, client
from web_servers import Internet, Names, Server, make_neighbours, serving

ATTACKS = json.loads((Path(__file__).parents[1] / "data" / "url_attacks.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def internet() -> Iterator[Internet]:
    public, other = Server(), Server()
    public.redirects = ATTACKS["redirects"]
    with serving(public, other):
        yield Internet(public, other)


@pytest.mark.parametrize("row", ATTACKS["rows"], ids=lambda row: ascii(row["url"]))
async def test_no_attack_reaches_a_private_host(row: dict[str, str], internet: Internet) -> None:
    """A fetching tool, with the guard and without: what the guard cannot know, the client finds."""

    @tool(read_only=True)
    async def fetch(url: str) -> str:
        """Fetch a page."""
        transport = Transport(resolve=Names(ATTACKS["names"]), inner=internet)
        async with httpx2.AsyncClient(transport=transport, follow_redirects=True, trust_env=False) as http:
            return (await http.get(url)).text

    before = internet.other.connections
    runners = [Runner([fetch], guards=[hosts()]), Runner([fetch])]
    guarded, alone = [(await runner.run("fetch", {"url": row["url"]})).success for runner in runners]
    assert internet.other.connections == before
    assert row["expect"] != "deny" or not guarded
    assert row["expect"] != "allow" or (guarded and alone)


def test_the_client_connects_to_checked_addresses() -> None:
    """Fifty tries of a name that has one address when it is checked and another whenever it is looked up again."""
    allowed, secret = make_neighbours("127.0.0.2", "127.0.0.1")
    with serving(allowed, secret):
        for _ in range(50):
            names = Names({"rebind.test": [["127.0.0.2"], ["127.0.0.1"]]})
            with httpx2.Client(transport=Transport("*", "127.0.0.2", resolve=names)) as http:
                assert http.get(f"http://rebind.test:{allowed.port}/").text == "ok"
                with pytest.raises(NotReachableError, match="loopback"):
                    http.get(f"http://rebind.test:{allowed.port}/")
    assert secret.connections == 0 and allowed.hits == [f"http://rebind.test:{allowed.port}/"] * 50


@pytest.mark.parametrize(
    "addresses", [["127.0.0.2", "127.0.0.1"], ["127.0.0.1", "127.0.0.2"], ["::ffff:7f00:1"], ["fe80::1%1"]]
)
def test_one_forbidden_address_refuses_all(addresses: list[str]) -> None:
    server = Server("127.0.0.2")
    with serving(server):
        transport = Transport("*", "127.0.0.2", resolve=Names({"mixed.test": [addresses]}))
        with httpx2.Client(transport=transport) as http, pytest.raises(NotReachableError, match=r"mixed\.test leads"):
            http.get(f"http://mixed.test:{server.port}/")
    assert server.connections == 0


async def test_the_client_tries_the_next_address() -> None:
    server = Server("127.0.0.2")
    names = {"a.test": [["127.0.0.3", "127.0.0.2"]]}
    url = f"http://a.test:{server.port}/"
    with serving(server):
        transport = Transport("*", "127.0.0.2", "127.0.0.3", resolve=Names(names))
        async with httpx2.AsyncClient(transport=transport) as http:
            assert (await http.get(url)).text == "ok"
        with httpx2.Client(transport=Transport("*", "127.0.0.2", "127.0.0.3", resolve=Names(names))) as http:
            assert http.get(url).text == "ok"
    assert server.hits == [url] * 2


def test_two_names_of_one_address_have_connections_of_their_own() -> None:
    server = Server()
    names = Names({"a.test": [["127.0.0.1"]], "b.test": [["127.0.0.1"]]})
    names.last = {"a.test": ["127.0.0.1"], "b.test": ["127.0.0.1"]}
    with serving(server), httpx2.Client(transport=Transport("*", "127.0.0.1", resolve=names)) as http:
        for name in ("a", "b", "a"):
            http.get(f"http://{name}.test:{server.port}/")
    assert server.connections == 3


def test_tls_and_the_host_header_use_the_name() -> None:
    sent: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request)
        return httpx2.Response(200)

    transport = Transport(resolve=Names({"a.test": [["93.184.216.34"]]}), inner=httpx2.MockTransport(answer))
    with httpx2.Client(transport=transport) as http:
        http.get("https://a.test/x")
        http.get("https://93.184.216.34/x")
    told = [(str(one.url), one.headers["host"], one.extensions.get("sni_hostname")) for one in sent]
    assert told == [("https://93.184.216.34/x", "a.test", "a.test"), ("https://93.184.216.34/x", "93.184.216.34", None)]


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
async def test_environment_proxies_are_ignored(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy, server = Server(), Server()
    monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
    for excepted in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(excepted, raising=False)
    own = f"127.0.0.1:{server.port}"
    with serving(proxy, server):
        async with async_client(own) as http:
            assert (await http.get(f"http://{own}/")).text == "ok"
        with client(own) as http:
            assert http.get(f"http://{own}/").text == "ok"
    assert (proxy.connections, len(server.hits)) == (0, 2)


def test_redirects_are_bounded_and_checked() -> None:
    server, other = Server(), Server()
    own = f"http://127.0.0.1:{server.port}"
    server.redirects = {f"{own}/{at}": f"/{at + 1}" for at in range(6)} | {
        f"{own}/9": f"http://127.0.0.1:{other.port}/"
    }
    with serving(server, other), client(f"127.0.0.1:{server.port}") as http:
        assert http.get(f"{own}/1").text == "ok"
        with pytest.raises(httpx2.TooManyRedirects):
            http.get(f"{own}/0")
        with pytest.raises(NotReachableError, match=r"127\.0\.0\.1"):
            http.get(f"{own}/9")
    assert other.connections == 0


async def test_a_name_lookup_has_the_connect_timeout() -> None:
    done = threading.Event()

    def never(name: str) -> list[str]:
        done.wait()
        return []

    async with httpx2.AsyncClient(transport=Transport(resolve=never), timeout=0.01) as http:
        try:
            with pytest.raises(httpx2.ConnectTimeout, match="in time"):
                await http.get("https://a.test/")
        finally:
            done.set()


KEYS = {"Authorization": "Bearer k", "X-Api-Key": "k", "Proxy-Authorization": "k", "Accept": "text/html"}


def test_a_redirect_to_another_origin_loses_credentials() -> None:
    seen: dict[str, list[str]] = {}
    chain = {
        "http://a.test/": "https://a.test/",
        "https://a.test/": "https://b.test/",
        "https://b.test/": "https://a.test:8443/",
        "https://a.test:8443/": "https://a.test/end",
    }

    def answer(request: httpx2.Request) -> httpx2.Response:
        url = str(request.url.copy_with(host=request.headers["host"].partition(":")[0]))
        seen[url] = [key for key in KEYS if key in request.headers]
        return httpx2.Response(307, headers={"location": chain[url]}) if url in chain else httpx2.Response(200)

    names = Names({name: [["93.184.216.34"]] for name in ("a.test", "b.test")})
    transport = Transport(resolve=names, inner=httpx2.MockTransport(answer))
    with httpx2.Client(transport=transport, follow_redirects=True, headers=KEYS) as http:
        http.get("http://a.test/")
        assert list(seen) == [*chain, "https://a.test/end"]
        assert seen["http://a.test/"] == seen["https://a.test/"] == list(KEYS)
        assert seen["https://b.test/"] == seen["https://a.test:8443/"] == ["Accept"]
        http.get("https://b.test/")
        assert seen["https://b.test/"] == list(KEYS)


def test_a_cookie_needs_a_domain_and_stays_there() -> None:
    for make in (client, async_client):
        with pytest.raises(DefinitionError, match="every host"):
            make(cookies={"session": "k"})
    server, other = Server("127.0.0.1"), Server("127.0.0.2")
    cookies = httpx2.Cookies()
    cookies.set("session", "k", domain="127.0.0.1")
    with serving(server, other), client("127.0.0.1", "127.0.0.2", cookies=cookies) as http:
        told = [http.get(f"http://{one}/").request.headers.get("cookie") for one in addresses_of(server, other)]
    assert told == ["session=k", None]


def addresses_of(*servers: Server) -> list[str]:
    return [f"{server.server_address[0]}:{server.port}" for server in servers]


@pytest.mark.parametrize("host", ["internal.test", "a.test:81", "a.test, internal.test", "x@a.test", ""])
def test_a_host_header_that_contradicts_the_url_is_refused(host: str) -> None:
    transport = Transport(
        resolve=Names({"a.test": [["93.184.216.34"]]}), inner=httpx2.MockTransport(lambda _: httpx2.Response(200))
    )
    with httpx2.Client(transport=transport) as http:
        assert http.get("http://a.test/", headers={"Host": "A.test:80"}).status_code == 200
        with pytest.raises(NotReachableError):
            http.get("http://a.test/", headers={"Host": host})


def test_all_addresses_are_checked_and_a_few_are_tried() -> None:
    tried: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        tried.append(request.url.host)
        raise httpx2.ConnectTimeout("no answer")

    public = [f"1.1.{at // 250}.{at % 250 + 1}" for at in range(1000)]
    names = Names({"a.test": [public], "b.test": [[*public, "10.0.0.1"]]})
    with httpx2.Client(transport=Transport(resolve=names, inner=httpx2.MockTransport(answer))) as http:
        with pytest.raises(httpx2.ConnectTimeout):
            http.get("https://a.test/")
        assert tried == public[:6]
        with pytest.raises(NotReachableError, match=r"10\.0\.0\.1"):
            http.get("https://b.test/")
    assert len(tried) == 6


@pytest.mark.parametrize("option", ["proxy", "transport", "mounts", "trust_env", "verify"])
def test_options_that_bypass_the_check_are_refused(option: str) -> None:
    for make in (client, async_client):
        with pytest.raises(DefinitionError, match="bypass the check"):
            make(**{option: None})  # type: ignore[operator]
