"""What a hostile server makes this client fetch: which addresses it may name, and how much it may send."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp_servers import go, made, serving

from ferrule import Runner, mcp
from ferrule.mcp._http import HttpClient
from ferrule.mcp._log import ServerLog
from ferrule.mcp._reach import Reach
from ferrule.security.http import NotReachableError
from ferrule.security.urls import find_address_kind


class Listening:
    """A port of this machine that nobody was sent to; it answers nothing."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]

    def __enter__(self) -> Listening:
        return self

    def __exit__(self, *raised: object) -> None:
        self._socket.close()

    def heard(self) -> list[bytes]:
        """What came, of those who have left again."""
        found = []
        self._socket.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                connection, _ = self._socket.accept()
                with connection:
                    connection.settimeout(1)
                    found.append(connection.recv(100))
        return [said for said in found if said]


class Named(httpx2.Auth):
    """Goes first where a server has sent it."""

    def __init__(self, method: str, url: str) -> None:
        self._first = method, url

    def auth_flow(self, request: httpx2.Request) -> Iterator[httpx2.Request]:  # type: ignore[override]
        yield httpx2.Request(*self._first)
        yield request


async def sent(server: mcp.Http) -> str:
    """What a request to the server comes to."""
    reach = Reach(server.url, server.authorization_servers)
    async with HttpClient(server.headers, server.auth, reach, ServerLog("s")) as client:
        response = await client.post(server.url, json={})
        await response.aread()
    return str(response.json()["error"]["message"])


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "[::ffff:127.0.0.1]", "2130706433"])
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_no_server_sends_this_client_to_a_port_of_its_machine(method: str, host: str, scheme: str) -> None:
    with Listening() as other:
        url = f"{scheme}://{host}:{other.port}/delete?all=1"
        why = await sent(mcp.Http("https://mcp.example/mcp", auth=Named(method, url)))
        assert other.heard() == []
    assert "authorization_servers=" in why and ("loopback" in why or "https" in why)


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_name_is_held_to_what_it_resolves_to(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *more, **by: resolve("127.0.0.1", *more, **by))

    with Listening() as other:
        url = f"{scheme}://login.example:{other.port}/"
        why = await sent(mcp.Http("https://mcp.example/mcp", auth=Named("GET", url)))
        assert other.heard() == []
    assert ("a loopback address" if scheme == "https" else "not https") in why


@pytest.mark.parametrize("address", ["169.254.169.254", "10.0.0.1", "[fd00::1]", "100.64.0.1", "db.internal"])
def test_a_server_on_this_machine_sends_nobody_into_the_network_round_it(address: str, tmp_path: Path) -> None:
    why = down(hostile({"authorization_servers": [f"https://{address}/"]}), tmp_path)
    assert "authorization_servers=" in why and any(kind in why for kind in ("private", "link-local", "metadata"))


async def test_what_is_named_may_be_reached_wherever_it_is() -> None:
    seen: list[str] = []

    async def token(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            seen.append(f"{scope['method']} {scope['path']}")
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    async def main() -> None:
        async with serving(token) as address:
            own = address.removesuffix("/mcp")
            auth = Named("POST", f"{own}/token")
            await sent(mcp.Http("http://127.0.0.1:9/mcp", auth=auth, authorization_servers=[own]))

    await main()
    assert seen == ["POST /token"]


def test_a_server_may_name_what_is_where_it_is_itself_and_nobody_gets_there_by_a_name_alone() -> None:
    def may(reach: Reach, url: str) -> bool:
        with suppress(NotReachableError):
            reach.check(url)
            return True
        return False

    assert may(Reach("http://localhost:1/mcp"), "http://127.0.0.1:2/") and may(
        Reach("http://[::1]:1/"), "https://a.com"
    )
    own = httpx2.URL("https://mcp.example/mcp")
    for address, url in [("10.0.0.1", "https://10.0.0.2"), ("127.0.0.1", "https://127.0.0.1:5")]:
        reach = Reach(str(own))
        assert not may(reach, url)
        reach.learn_address(httpx2.URL("https://other.example/"), address)
        assert not may(reach, url)
        reach.learn_address(own, address)
        assert may(reach, url) is (address == "10.0.0.1") and not may(reach, url.replace("https", "http"))


def test_where_a_server_is_counts_once_it_has_shown_who_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that leads to an address in the network round this machine, where nobody has its certificate."""

    def kind(address: str) -> str:
        return "private" if address == "127.0.0.1" else find_address_kind(address)

    monkeypatch.setattr("ferrule.mcp._reach.find_address_kind", kind)
    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *more, **by: resolve("127.0.0.1", *more, **by))
    seen: list[str] = []

    async def plain(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    async def main(scheme: str) -> bool:
        async with serving(plain) as address:
            url = address.replace("http://127.0.0.1", f"{scheme}://mcp.example")
            reach = Reach(url)
            async with HttpClient({}, Named("GET", url), reach, ServerLog("s")) as client:
                await client.post(url, json={})
            return "private" in reach._kinds

    assert go(main("http")) and not go(main("https"))


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
            app.pushed = await without_end(b" " * 65_536, receive, send)  # type: ignore[attr-defined]
        else:
            await send({"type": "http.response.body", "body": b""})

    return app


async def without_end(piece: bytes, receive: Any, send: Any) -> int:
    """Send until the client has gone; how many bytes that were."""

    async def left() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    gone, pushed = asyncio.ensure_future(left()), 0
    while not gone.done():
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        pushed += len(piece)
        await asyncio.sleep(0)
    return pushed


def down(app: Any, path: Path, **options: Any) -> str:
    """Why a server is down that wants a token."""

    async def main() -> str:
        async with serving(app) as address:
            auth = mcp.OAuth(store=path / "tokens.json", open_browser=lambda url: None, timeout=0.1)
            async with mcp.connect(mcp.Http(address, auth=auth)):
                raise AssertionError("nobody gave it a token")

    with pytest.raises(mcp.ServersDownError) as raised:
        go(main())
    return str(raised.value)


@pytest.mark.parametrize("encoding", ["", "gzip"])
def test_metadata_without_end_is_not_read_to_it(encoding: str, tmp_path: Path) -> None:
    app = hostile(ELSEWHERE, encoding, endless=True)
    assert "more than 1,000,000 bytes" in down(app, tmp_path)
    assert app.pushed < 20_000_000


def test_metadata_that_is_much_once_it_is_unpacked_is_not(tmp_path: Path) -> None:
    app = hostile({**ELSEWHERE, "resource_name": 5_000_000 * " "}, "gzip")
    assert "more than 1,000,000 bytes" in down(app, tmp_path)


async def test_a_redirect_without_end_and_a_refusal_without_end_end_their_call_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = made("one").server.streamable_http_app()
    status: list[int] = []

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        if not status or dict(scope.get("headers", ())).get(b"mcp-method") != b"tools/call":
            await app(scope, receive, send)
            return
        headers = [(b"location", b"/mcp"), (b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": status[0], "headers": headers})
        await without_end(b" " * 65_536, receive, send)

    async with serving(endless) as address, mcp.connect(mcp.Http(address, auth=Twice())) as toolset:
        runner = Runner(toolset)
        for code in (307, 401):
            status[:] = [code]
            result = await runner.run("one")
            assert result.status == "failed" and "could not be read" in str(result.error)
            assert "more than 1,000,000 bytes" in caplog.messages[-1]
        status.clear()
        assert (await runner.run("one")).success


async def test_events_that_were_packed_are_given_a_few_in_each_turn_of_the_loop() -> None:
    """As many as fit in 23 KB, two million, took 12 seconds in one turn of the loop, past every deadline."""
    events = gzip.compress(b"id: 1\n\n" * 200_000)

    async def packed(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = [(b"content-type", b"text/event-stream"), (b"content-encoding", b"gzip")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": events})

    async def main() -> list[int]:
        turns = [0]

        async def count() -> None:
            while True:
                turns.append(0)
                await asyncio.sleep(0)

        async with serving(packed) as address:
            async with HttpClient({}, None, Reach(address), ServerLog("s")) as client:
                async with client.stream("POST", address, json={}) as response:
                    counting = asyncio.ensure_future(count())
                    async for _ in httpx2.EventSource(response):
                        turns[-1] += 1
                    counting.cancel()
                    await asyncio.gather(counting, return_exceptions=True)
        return turns

    turns = await main()
    assert sum(turns) == 200_000 and max(turns) <= 5_000


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (b"[" + b"[]," * 200_000 + b"[]]", 502),
        (b'{"a":1,' * 100_000 + b'"a":1' + b"}" * 100_000, 502),
        (b'"' + rb"1,2,\"[3]\"\n" * 100_000 + b'"', 200),
        (b'"' + rb"\"[" * 300_000, 200),
    ],
    ids=["lists", "objects", "a table in a text", "a text without an end"],
)
async def test_an_answer_has_no_more_values_than_can_be_read_in_one_turn_of_the_loop(value: bytes, status: int) -> None:
    async def answers(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b'{"result":' + value + b"}"})

    async def main() -> httpx2.Response:
        async with serving(answers) as address:
            async with HttpClient({}, None, Reach(address), ServerLog("s")) as client:
                return await client.post(address, json={})

    response = await main()
    assert response.status_code == status
    assert ("more than 200,000 values" in response.text) == (status == 502)


class Twice(httpx2.Auth):
    """Tries again where it was refused."""

    def auth_flow(self, request: httpx2.Request) -> Iterator[httpx2.Request]:  # type: ignore[override]
        response = yield request
        if response.status_code == 401:
            yield request


@pytest.mark.parametrize("error", [ValueError("no token can be had"), TimeoutError("no token can be had")])
async def test_what_an_auth_raises_ends_its_call_alone_and_is_for_the_log(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(httpx2.Auth):
        broken = False

        def auth_flow(self, request: httpx2.Request) -> Iterator[httpx2.Request]:  # type: ignore[override]
            if self.broken:
                raise error
            yield request

    auth = Broken()
    async with made_over_http() as address, mcp.connect(mcp.Http(address, auth=auth)) as toolset:
        runner = Runner(toolset)
        auth.broken = True
        result = await runner.run("one")
        assert result.status == "failed" and "no token can be had" in caplog.text
        assert "no token" not in result.text and "refused" not in result.text
        auth.broken = False
        assert (await runner.run("one")).success


@asynccontextmanager
async def made_over_http() -> AsyncIterator[str]:
    async with serving(made("one").server.streamable_http_app()) as address:
        yield address
