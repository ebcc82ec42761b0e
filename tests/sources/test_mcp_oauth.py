"""OAuth for servers over HTTP, against the SDK's own authorization server on loopback."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import socket
import stat
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import pytest
from mcp.server.auth.provider import AccessToken, AuthorizationCode, ProviderTokenVerifier, RefreshToken
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from mcp_servers import made, respond, serving, start_error

from ferrule import DefinitionError, Event, Runner, mcp
from ferrule.mcp._http import HttpClient
from ferrule.mcp._log import ServerLog
from ferrule.mcp._oauth import make_provider
from ferrule.mcp._reach import Reach
from waits import BOUND


class Provider:
    """An authorization server whose person always says yes."""

    def __init__(self) -> None:
        self.clients: dict[str, Any] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.tokens: dict[str, AccessToken] = {}

    async def get_client(self, client_id: str) -> Any:
        return self.clients.get(client_id)

    async def register_client(self, client_info: Any) -> None:
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: Any, params: Any) -> str:
        code = AuthorizationCode(
            code=secrets.token_hex(16),
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=True,
            resource=params.resource,
        )
        self.codes[code.code] = code
        return f"{params.redirect_uri}?{urlencode({'code': code.code, 'state': params.state})}"

    async def load_authorization_code(self, client: Any, code: str) -> AuthorizationCode | None:
        return self.codes.get(code)

    async def exchange_authorization_code(self, client: Any, code: AuthorizationCode) -> OAuthToken:
        token = f"sk-{secrets.token_hex(16)}"
        self.tokens[token] = AccessToken(
            token=token, client_id=client.client_id, scopes=code.scopes, resource=code.resource
        )
        return OAuthToken(access_token=token, token_type="Bearer")

    async def load_refresh_token(self, client: Any, token: str) -> RefreshToken | None:
        return None

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.tokens.get(token)


@asynccontextmanager
async def guarded() -> AsyncIterator[tuple[str, Provider]]:
    """The address of a server that wants a token, and its authorization server."""
    authority, inner = Provider(), {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await inner["app"](scope, receive, send)

    server = made().server
    async with serving(app, before=lambda port: inner.update(app=protected(server, authority, port))) as address:
        yield address, authority


def protected(server: Any, authority: Provider, port: int) -> Any:
    own = f"http://127.0.0.1:{port}"
    settings = AuthSettings(
        issuer_url=own,  # type: ignore[arg-type]
        resource_server_url=f"{own}/mcp",  # type: ignore[arg-type]
        client_registration_options=ClientRegistrationOptions(enabled=True),
        validate_token_resource=True,
    )
    verifier = ProviderTokenVerifier(authority)
    return server.streamable_http_app(auth=settings, auth_server_provider=authority, token_verifier=verifier)


class Person:
    """Who opens the address in a browser, and says yes."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    async def __call__(self, url: str) -> None:
        self.opened.append(url)
        async with httpx2.AsyncClient(follow_redirects=True) as browser:
            assert (await browser.get(url)).text.startswith("You may close this window")


async def test_a_person_is_asked_once_and_the_token_is_kept_private(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, person, events = tmp_path / "tokens.json", Person(), list[Event]()
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("httpcore2").setLevel(logging.INFO)
        async with guarded() as (address, authority):
            server = mcp.Http(address, auth=mcp.OAuth(store=store, open_browser=person))
            for _ in range(2):
                servers = mcp.connect(server)
                async with servers as toolset:
                    result = await Runner(toolset, observers=[events.append]).run("one")
                    assert result.success
        seen = [repr(server), repr(servers.status), str(result.record()), str([dict(one.data) for one in events])]
    assert not [token for token in authority.tokens if any(token in text for text in (*seen, caplog.text))]
    assert len(person.opened) == 1
    assert stat.S_IMODE(store.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["tokens.json"]
    (kept,) = json.loads(store.read_text()).values()
    assert kept["tokens"]["access_token"].startswith("sk-")


BY_HAND: dict[str, Any] = {"client_id": "by-hand", "client_secret": "sk-of-the-client"}


async def test_a_client_that_was_registered_by_hand_is_not_registered_again(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with guarded() as (address, authority):
        issuer = address.removesuffix("mcp")
        authority.clients["by-hand"] = OAuthClientInformationFull(
            client_id="by-hand",
            client_secret="sk-of-the-client",
            redirect_uris=[f"http://127.0.0.1:{port}/callback"],  # type: ignore[list-item]
            token_endpoint_auth_method="client_secret_basic",
        )
        by_hand: dict[str, Any] = {**BY_HAND, "redirect_port": port}
        auth = mcp.OAuth(store=tmp_path / "tokens.json", open_browser=Person(), issuer=issuer, **by_hand)
        assert "sk-of-the-client" not in repr(auth)
        async with mcp.connect(mcp.Http(address, auth=auth)) as toolset:
            assert (await Runner(toolset).run("one")).success
        assert [*authority.clients] == ["by-hand"]
        assert {token.client_id for token in authority.tokens.values()} == {"by-hand"}


class Hostile:
    """An MCP server, or an authorization server, that answers as it is told, and records what came for a token.

    Attributes:
        answers: Status, headers and document of each path. The others have the status `default`.
        forms: The requests to `/token`, each with its authorization header.
    """

    def __init__(self, default: int = 404) -> None:
        self.answers: dict[str, tuple[int, dict[str, str], Any]] = {}
        self.default: tuple[int, dict[str, str], Any] = (default, {}, {})
        self.forms: list[str] = []
        self.answer = "code"

    def name_issuer(self, own: str, issuer: str) -> None:
        """Become a server whose authorization server is `issuer`."""
        path = "/.well-known/oauth-protected-resource/mcp"
        self.answers[path] = 200, {}, {"resource": own, "authorization_servers": [issuer]}

    def become_issuer(self, own: str, token: Any = None) -> None:
        """Become an authorization server, which gives this token; without one it refuses everybody."""
        places = {f"{place}_endpoint": f"{own}{place}" for place in ("authorization", "token", "registration")}
        metadata = {"issuer": own, "client_id_metadata_document_supported": True, **places}
        self.answers["/.well-known/oauth-authorization-server"] = 200, {}, metadata
        self.answers["/registration"] = 201, {}, {"client_id": "registered", "redirect_uris": [own]}
        self.answers["/token"] = 200, {}, token or {"access_token": "x", "token_type": "Bearer"}
        self.answer = "error" if token is None else "code"

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = {key.decode(): value.decode() for key, value in scope["headers"]}
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
        if b"grant_type=" in body:
            self.forms.append(f"{headers.get('authorization')} {body.decode()}")
        status, more, document = self.answers.get(scope["path"], self.default)
        if scope["path"] in ("/authorize", "/authorization"):
            asked = {key: values[0] for key, values in parse_qs(scope["query_string"].decode()).items()}
            answer = urlencode({self.answer: "c", "state": asked["state"]})
            status, more = 302, {"location": f"{asked['redirect_uri']}?{answer}"}
        await respond(send, status, json.dumps(document).encode(), content_type="application/json", **more)


@asynccontextmanager
async def client_of(address: str, auth: mcp.OAuth) -> AsyncIterator[HttpClient]:
    """A client of a server, with the OAuth flow of `auth`."""
    reach = Reach(address)
    flow = await make_provider(address, auth, reach, nullcontext)
    async with HttpClient({}, flow, reach, ServerLog("s")) as client:
        yield client


@pytest.mark.parametrize("way", ["its own server has no metadata", "the server wants more of a person"])
async def test_a_secret_is_sent_to_its_own_authorization_server_or_nowhere(way: str, tmp_path: Path) -> None:
    shown: list[str] = []

    async def open_browser(url: str) -> None:
        shown.append(url)
        await Person()(url)

    server = Hostile(401)
    async with serving(Hostile()) as own, serving(server) as address:
        issuer, origin = own.removesuffix("mcp"), address.removesuffix("mcp")
        if way == "its own server has no metadata":
            server.name_issuer(address, issuer)
        else:
            server.name_issuer(address, origin)
            server.become_issuer(origin)
        auth = mcp.OAuth(store=tmp_path / "tokens.json", open_browser=open_browser, issuer=issuer, **BY_HAND)
        async with client_of(address, auth) as client:
            said = [(await client.post(address, json={})).json()]
            server.answers["/mcp"] = 403, {"www-authenticate": 'Bearer error="insufficient_scope"'}, {}
            said += [(await client.post(address, json={})).json()]
    assert "authorization server" in str(said)
    assert (server.forms, shown) == ([], [])


@pytest.mark.parametrize(("scopes", "asked"), [(("read", "list"), "read list"), ((), "admin:all")])
async def test_a_person_is_asked_for_no_more_than_the_developer_has_named(
    scopes: Any, asked: str, tmp_path: Path
) -> None:
    shown: list[str] = []
    server = Hostile()
    async with serving(server) as address:
        origin = address.removesuffix("mcp")
        server.name_issuer(address, origin)
        server.become_issuer(origin)
        auth = mcp.OAuth(store=tmp_path / "tokens.json", open_browser=shown.append, scopes=scopes, timeout=0.01)
        async with client_of(address, auth) as client:
            for status in (401, 403):
                challenge = 'Bearer error="insufficient_scope", scope="admin:all"'
                server.answers["/mcp"] = status, {"www-authenticate": challenge}, {}
                await client.post(address, json={})
    assert [parse_qs(urlsplit(url).query)["scope"] for url in shown] == [[asked]] * 2


async def test_a_refresh_token_goes_back_only_to_its_issuer(tmp_path: Path) -> None:
    """A server whose token has ended says that another one gives them; nobody says yes there."""
    server, issuer = Hostile(401), Hostile()
    async with serving(issuer) as theirs, serving(server) as address:
        own, origin = theirs.removesuffix("mcp"), address.removesuffix("mcp")
        token = {"access_token": "x", "token_type": "Bearer", "refresh_token": "of-the-issuer", "expires_in": -60}
        issuer.become_issuer(own, token)
        server.name_issuer(address, own)
        url = "https://me.example/client"  # by which every authorization server knows it
        auth = mcp.OAuth(store=tmp_path / "tokens.json", open_browser=Person(), client_metadata_url=url)
        async with client_of(address, auth) as client:
            await client.post(address, json={})
            server.answers["/mcp"] = 200, {}, {}
            await client.post(address, json={})
            server.name_issuer(address, origin)
            server.become_issuer(origin)
            del server.answers["/mcp"]
            for _ in range(3):
                await client.post(address, json={})
    assert "refresh_token=of-the-issuer" in issuer.forms[1]
    assert not any("of-the-issuer" in form for form in server.forms)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"client_secret": "s"}, "needs client_id"),
        ({"client_id": "a"}, "needs its authorization server: issuer"),
        ({"client_id": "a", "issuer": "https://i.example", "client_metadata_url": "https://me.example"}, "not both"),
        ({"store": 5}, "TokenStorage"),
    ],
)
def test_invalid_settings_are_an_error(given: Any, error: str) -> None:
    with pytest.raises(DefinitionError, match=error):
        mcp.OAuth(**{"store": "tokens.json", **given})


async def test_a_person_may_take_longer_than_the_start_of_the_server(
    tmp_path: Path, let_time_pass: Callable[[], None]
) -> None:
    tasks: list[asyncio.Future[None]] = []

    async def answer_later(url: str) -> None:
        for _ in range(100):  # turns of the loop, in which the client begins to wait
            await asyncio.sleep(0)
        let_time_pass()
        await Person()(url)

    async def open_browser(url: str) -> None:
        tasks.append(asyncio.ensure_future(answer_later(url)))

    async with guarded() as (address, _):
        server = mcp.Http(address, auth=mcp.OAuth(store=tmp_path / "tokens.json", open_browser=open_browser))
        async with mcp.connect(server, start_timeout=BOUND) as toolset:
            assert (await Runner(toolset).run("one")).success
    await asyncio.gather(*tasks)


async def refuse(url: str) -> None:
    """Answer no in the browser, after a forged answer."""
    given = {key: values[0] for key, values in parse_qs(urlsplit(url).query).items()}
    answers = [{"state": "another", "code": "x"}, {"state": given["state"], "error": "access_denied"}]
    async with httpx2.AsyncClient() as browser:
        statuses = [(await browser.get(f"{given['redirect_uri']}?{urlencode(one)}")).status_code for one in answers]
    assert statuses == [404, 200]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"open_browser": refuse}, "access_denied"),
        ({"open_browser": lambda url: None, "timeout": 0.2}, "nobody answered within 0.2 s"),
    ],
)
async def test_a_person_who_refuses_or_does_not_answer_leaves_the_server_down(
    options: Any, error: str, tmp_path: Path
) -> None:
    async with guarded() as (address, _):
        auth = mcp.OAuth(store=tmp_path / "tokens.json", **options)
        assert error in await start_error(mcp.Http(address, auth=auth))


@pytest.mark.skipif(os.name == "nt", reason="modes of files are Unix's")
async def test_a_store_that_others_may_read_or_that_is_invalid_is_refused(tmp_path: Path) -> None:
    store = tmp_path / "tokens.json"
    server = mcp.Http("http://127.0.0.1:9/mcp", auth=mcp.OAuth(store=store))
    for text, mode, error in [("{}", 0o644, "chmod 600"), ("sk-1", 0o600, "cannot be read: JSONDecodeError")]:
        store.write_text(text)
        store.chmod(mode)
        assert error in await start_error(server)


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "http://example.org/authorize", "javascript:alert(1)", "http://localhost:8080/delete"]
)
async def test_a_browser_is_shown_only_addresses_of_the_web(url: str, tmp_path: Path) -> None:
    shown: list[str] = []
    settings = mcp.OAuth(store=tmp_path / "tokens.json", open_browser=shown.append)
    own = "https://example.com/mcp"
    provider = await make_provider(own, settings, Reach(own), nullcontext)
    assert provider.context.redirect_handler is not None
    with pytest.raises(Exception, match="not https"):
        await provider.context.redirect_handler(url)
    assert shown == []
