"""What a hostile server makes this client fetch: which addresses it may name, and how much it may send."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp_servers import made, respond, serving, start_error, until_disconnected

from ferrule import Runner, mcp
from ferrule.mcp._http import HttpClient
from ferrule.mcp._log import ServerLog
from ferrule.mcp._reach import Reach
from ferrule.security.http import NotReachableError
from ferrule.security.urls import find_address_kind


class Listening:
    """A port of this machine that answers nothing."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]

    def __enter__(self) -> Listening:
        return self

    def __exit__(self, *raised: object) -> None:
        self._socket.close()

    def heard(self) -> list[bytes]:
        """Return what clients sent that have left again."""
        found = []
        self._socket.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                connection, _ = self._socket.accept()
                with connection:
                    connection.settimeout(1)
                    found.append(connection.recv(100))
        return [said for said in found if said]


class SendsFirst(httpx2.Auth):
    """An `auth` that sends another request first, to where a server has pointed it."""

    def __init__(self, method: str, url: str) -> None:
        self._first = method, url

    def auth_flow(self, request: httpx2.Request) -> Iterator[httpx2.Request]:  # type: ignore[override]
        yield httpx2.Request(*self._first)
        yield request


async def post(server: mcp.Http) -> str:
    """Send a request to the server, and return the error."""
    reach = Reach(server.url, server.authorization_servers)
    async with HttpClient(server.headers, server.auth, reach, ServerLog("s")) as client:
        response = await client.post(server.url, json={})
        await response.aread()
    return str(response.json()["error"]["message"])


@pytest.fixture
def every_name_is_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *more, **by: resolve("127.0.0.1", *more, **by))


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_no_server_sends_a_client_to_its_machine(method: str, scheme: str) -> None:
    with Listening() as other:
        for host in ("127.0.0.1", "localhost", "127.1", "[::ffff:127.0.0.1]", "2130706433"):
            url = f"{scheme}://{host}:{other.port}/delete?all=1"
            why = await post(mcp.Http("https://mcp.example/mcp", auth=SendsFirst(method, url)))
            assert "authorization_servers=" in why and ("loopback" in why or "https" in why), host
        assert other.heard() == []


@pytest.mark.usefixtures("every_name_is_this_machine")
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_name_counts_as_the_address_that_it_resolves_to(scheme: str) -> None:
    with Listening() as other:
        url = f"{scheme}://login.example:{other.port}/"
        why = await post(mcp.Http("https://mcp.example/mcp", auth=SendsFirst("GET", url)))
        assert other.heard() == []
    assert ("a loopback address" if scheme == "https" else "not https") in why


@pytest.mark.parametrize("address", ["169.254.169.254", "10.0.0.1", "[fd00::1]", "100.64.0.1", "db.internal"])
async def test_a_server_on_this_machine_sends_nobody_into_its_network(address: str, tmp_path: Path) -> None:
    why = await oauth_error(hostile({"authorization_servers": [f"https://{address}/"]}), tmp_path)
    assert "authorization_servers=" in why and any(kind in why for kind in ("private", "link-local", "metadata"))


async def test_a_named_authorization_server_may_be_anywhere() -> None:
    seen: list[str] = []

    async def token(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            seen.append(f"{scope['method']} {scope['path']}")
            await respond(send, 200)

    async with serving(token) as address:
        own = address.removesuffix("/mcp")
        auth = SendsFirst("POST", f"{own}/token")
        await post(mcp.Http("http://127.0.0.1:9/mcp", auth=auth, authorization_servers=[own]))
    assert seen == ["POST /token"]


def may_reach(reach: Reach, url: str) -> bool:
    with suppress(NotReachableError):
        reach.check(url)
        return True
    return False


def test_a_server_may_name_addresses_of_its_own_network_once_its_address_is_known() -> None:
    assert may_reach(Reach("http://localhost:1/mcp"), "http://127.0.0.1:2/")
    assert may_reach(Reach("http://[::1]:1/"), "https://a.com")
    own = httpx2.URL("https://mcp.example/mcp")
    for address, url in [("10.0.0.1", "https://10.0.0.2"), ("127.0.0.1", "https://127.0.0.1:5")]:
        reach = Reach(str(own))
        assert not may_reach(reach, url)
        reach.learn_address(httpx2.URL("https://other.example/"), address)
        assert not may_reach(reach, url)
        reach.learn_address(own, address)
        assert may_reach(reach, url) is (address == "10.0.0.1")
        assert not may_reach(reach, url.replace("https", "http"))


@pytest.mark.usefixtures("every_name_is_this_machine")
@pytest.mark.parametrize(("scheme", "learns"), [("http", True), ("https", False)])
async def test_the_address_of_a_server_counts_once_it_has_shown_its_certificate(
    scheme: str, learns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name leads to an address in the network of this machine, where nobody has its certificate."""

    def kind(address: str) -> str:
        return "private" if address == "127.0.0.1" else find_address_kind(address)

    async def plain(scope: Any, receive: Any, send: Any) -> None:
        pass

    monkeypatch.setattr("ferrule.mcp._reach.find_address_kind", kind)
    async with serving(plain) as address:
        url = address.replace("http://127.0.0.1", f"{scheme}://mcp.example")
        reach = Reach(url)
        async with HttpClient({}, SendsFirst("GET", url), reach, ServerLog("s")) as client:
            await client.post(url, json={})
    assert ("private" in reach._kinds) is learns


ELSEWHERE = {"authorization_servers": ["http://127.0.0.1:9/"]}


def hostile(metadata: Any, encoding: str = "", endless: bool = False) -> Any:
    """A server that wants a token, with this document about who gives one, which may be followed by blanks."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        found = scope["path"].startswith("/.well-known")
        headers = [(b"content-type", b"application/json")]
        if encoding:
            headers.append((b"content-encoding", encoding.encode()))
        await send({"type": "http.response.start", "status": 200 if found else 401, "headers": headers})
        own = dict(scope["headers"])[b"host"].decode()
        body = json.dumps({"resource": f"http://{own}/mcp", **metadata}).encode() if found else b""
        body = gzip.compress(body) if encoding else body
        await send({"type": "http.response.body", "body": body, "more_body": True})
        if endless and found:
            app.pushed = await send_without_end(receive, send)  # type: ignore[attr-defined]
        else:
            await send({"type": "http.response.body", "body": b""})

    return app


async def send_without_end(receive: Any, send: Any) -> int:
    """Send blanks until the client has gone; return how many bytes that were."""
    gone, pushed, piece = asyncio.ensure_future(until_disconnected(receive)), 0, b" " * 65_536
    while not gone.done():
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        pushed += len(piece)
        await asyncio.sleep(0)
    return pushed


async def oauth_error(app: Any, path: Path) -> str:
    """Return why a server that wants a token is down."""
    async with serving(app) as address:
        auth = mcp.OAuth(store=path / "tokens.json", open_browser=lambda url: None, timeout=0.1)
        return await start_error(mcp.Http(address, auth=auth))


@pytest.mark.parametrize("encoding", ["", "gzip"])
async def test_endless_metadata_is_not_read_to_its_end(encoding: str, tmp_path: Path) -> None:
    app = hostile(ELSEWHERE, encoding, endless=True)
    assert "more than 1,000,000 bytes" in await oauth_error(app, tmp_path)
    assert app.pushed < 20_000_000


class Twice(httpx2.Auth):
    """An `auth` that tries again when it is refused."""

    def auth_flow(self, request: httpx2.Request) -> Iterator[httpx2.Request]:  # type: ignore[override]
        response = yield request
        if response.status_code == 401:
            yield request


async def test_an_endless_redirect_or_refusal_ends_its_call_alone(caplog: pytest.LogCaptureFixture) -> None:
    app = made("one").app()
    status: list[int] = []

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        if not status or dict(scope.get("headers", ())).get(b"mcp-method") != b"tools/call":
            await app(scope, receive, send)
            return
        headers = [(b"location", b"/mcp"), (b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": status[0], "headers": headers})
        await send_without_end(receive, send)

    async with serving(endless) as address, mcp.connect(mcp.Http(address, auth=Twice())) as toolset:
        runner = Runner(toolset)
        for code in (307, 401):
            status[:] = [code]
            result = await runner.run("one")
            assert result.status == "failed" and "could not be read" in str(result.error)
            assert "more than 1,000,000 bytes" in caplog.messages[-1]
        status.clear()
        assert (await runner.run("one")).success


@pytest.mark.large
async def test_packed_events_are_given_a_few_in_each_turn_of_the_loop() -> None:
    """As many as fit in 23 KB, two million, took 12 seconds in one turn of the loop, past every deadline."""
    events = gzip.compress(b"id: 1\n\n" * 40_000)
    turns = [0]

    async def packed(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await respond(send, 200, events, content_type="text/event-stream", content_encoding="gzip")

    async def count_turns() -> None:
        while True:
            turns.append(0)
            await asyncio.sleep(0)

    async with serving(packed) as address, HttpClient({}, None, Reach(address), ServerLog("s")) as client:
        async with client.stream("POST", address, json={}) as response:
            counting = asyncio.ensure_future(count_turns())
            async for _ in httpx2.EventSource(response):
                turns[-1] += 1
            counting.cancel()
            await asyncio.gather(counting, return_exceptions=True)
    assert sum(turns) == 40_000 and max(turns) <= 5_000
