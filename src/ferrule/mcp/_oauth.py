"""OAuth for servers over HTTP, by the SDK's own client: the storage of tokens, and the way to a person's consent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import stat
import webbrowser
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider, OAuthFlowError, TokenStorage
from mcp.client.auth.utils import issuers_match
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from ferrule import FerruleError
from ferrule.mcp._reach import Reach
from ferrule.mcp._settings import OAuth

_LOOPBACK = "127.0.0.1"
_PATH = "/callback"
_MOST_LINE_BYTES = 16_384
_READ_SECONDS = 10.0
_DONE_TEXT = "You may close this window and go back to the program."
Pause = Callable[[], contextlib.AbstractContextManager[object]]


async def make_provider(url: str, settings: OAuth, reach: Reach, pause: Pause) -> OAuthClientProvider:
    """Return the signer of the requests to one server.

    Args:
        reach: The addresses to which the server may send a person.
        pause: Entered during the wait for a person.

    Raises:
        FerruleError: The store cannot be used.
    """
    store: Any = settings.store
    storage: TokenStorage = FileStore(Path(store), url) if isinstance(store, str | os.PathLike) else store
    client = None if settings.client_id is not None else await storage.get_client_info()
    receiver = _Receiver(
        settings.redirect_port or _find_registered_port(client) or _free_port(), settings, reach, pause
    )
    if settings.client_id is not None:
        storage = _FixedClientStore(storage, settings.client_id, settings, receiver.address)
    metadata = (_FixedScopeMetadata if settings.scopes else OAuthClientMetadata)(
        client_name=settings.client_name,
        redirect_uris=[AnyUrl(receiver.address)],
        grant_types=["authorization_code", "refresh_token"],
        response_types=["code"],
        scope=" ".join(settings.scopes) or None,
        token_endpoint_auth_method="none",
    )
    signer = _Provider(
        url, metadata, storage, receiver.ask, receiver.answer, client_metadata_url=settings.client_metadata_url
    )
    if isinstance(storage, _FixedClientStore):
        storage.context = signer.context
    return signer


class _FixedScopeMetadata(OAuthClientMetadata):
    """A client that keeps the developer's scopes: the SDK replaces them with the server's (mcp 2.3.0)."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "scope":
            super().__setattr__(name, value)


class _Provider(OAuthClientProvider):
    """The SDK's client, with checks that each credential goes to its own server only. The secret of a client and the
    code of a person go to the authorization server where the client was registered, and a refresh token goes back to
    its origin.

    Without metadata, the SDK asks the MCP server itself for a token. It also continues with the metadata of an
    authorization server without being its client (mcp 2.3.0).
    """

    _token_url: httpx2.URL | None = None

    async def _auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Run the SDK's flow, and check every request except `request`. The SDK wants this method from a subclass."""
        flow = super()._auth_flow(request)
        try:
            outgoing = await anext(flow)
            while True:
                grant = "" if outgoing is request else _read_grant_type(outgoing)
                if grant:
                    self._check_issuer()
                if grant == "refresh_token" and outgoing.url != self._token_url:
                    response = httpx2.Response(400, request=outgoing)  # after this, a person is asked again
                else:
                    response = yield outgoing
                if grant and response.is_success:
                    self._token_url = outgoing.url
                outgoing = await flow.asend(response)
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()

    async def _perform_authorization(self) -> httpx2.Request:
        self._check_issuer()  # before a person is sent there
        return await super()._perform_authorization()

    def _check_issuer(self) -> None:
        """Check that tokens are requested where the client was registered, as far as that is known.

        Raises:
            OAuthFlowError: They are requested elsewhere.
        """
        context = self.context
        client, metadata = context.client_info, context.oauth_metadata
        if client is None or client.issuer is None or client.client_id == context.client_metadata_url:
            return
        found = context.get_authorization_base_url(context.server_url) if metadata is None else str(metadata.issuer)
        if not issuers_match(client.issuer, found):
            why = f"of the authorization server {client.issuer}, but the server asks for its token at {found}"
            raise OAuthFlowError(f"the client {client.client_id!r} is {why}")


def _read_grant_type(request: httpx2.Request) -> str:
    """Return the `grant_type` (RFC 6749) of a request for a token; empty for another request."""
    form = request.headers.get("content-type") == "application/x-www-form-urlencoded"
    return parse_qs(request.content.decode("latin-1")).get("grant_type", [""])[0] if form else ""


class _FixedClientStore:
    """The tokens of a store, for the client that was registered by hand, even if the store names another client.

    Attributes:
        context: The context of the store's provider. Without a reset there, the provider would go on with a client that
            it registered.
    """

    context: Any = None

    def __init__(self, store: TokenStorage, client_id: str, settings: OAuth, address: str) -> None:
        self.get_tokens, self.set_tokens = store.get_tokens, store.set_tokens
        self._client = OAuthClientInformationFull(
            client_id=client_id,
            client_secret=settings.client_secret,
            redirect_uris=[AnyUrl(address)],
            # RFC 6749, 2.3.1: every server with client secrets takes it
            token_endpoint_auth_method="none" if settings.client_secret is None else "client_secret_basic",
            scope=" ".join(settings.scopes) or None,
            issuer=settings.issuer,
        )

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.context.client_info = self._client
        raise OAuthFlowError(f"the client {self._client.client_id!r} belongs to another authorization server")


class FileStore:
    """Tokens in a file only its owner may read, for any number of servers; replaced atomically."""

    def __init__(self, path: Path, url: str) -> None:
        self._path, self._url = path, url

    async def get_tokens(self) -> OAuthToken | None:
        found = self._read().get(self._url, {}).get("tokens")
        return None if found is None else OAuthToken.model_validate(found)

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._write("tokens", tokens.model_dump(mode="json", exclude_none=True))

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        found = self._read().get(self._url, {}).get("client")
        return None if found is None else OAuthClientInformationFull.model_validate(found)

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._write("client", client_info.model_dump(mode="json", exclude_none=True))

    def _read(self) -> dict[str, Any]:
        try:
            with self._path.open("rb") as file:
                others = stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077
                if os.name != "nt" and others:
                    raise FerruleError(f"{str(self._path)!r} can be read by others: chmod 600 it")
                found = json.load(file)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            kind = type(error).__name__  # the text of an error in JSON may show parts of the file
            raise FerruleError(f"the tokens in {str(self._path)!r} cannot be read: {kind}") from None
        if not isinstance(found, dict):
            raise FerruleError(f"{str(self._path)!r} is not a file of tokens")
        return found

    def _write(self, key: str, value: object) -> None:
        stored = self._read()
        stored[self._url] = {**stored.get(self._url, {}), key: value}
        temporary = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(stored, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise FerruleError(f"tokens cannot be written to {str(self._path)!r}: {error.strerror}") from None


class _Receiver:
    """Listens on this machine for the answer of the authorization server, only during the wait for a person."""

    def __init__(self, port: int, settings: OAuth, reach: Reach, pause: Pause) -> None:
        self.address = f"http://{_LOOPBACK}:{port}{_PATH}"
        self._port, self._settings, self._reach, self._pause = port, settings, reach, pause
        self._state = ""
        self._server: asyncio.Server | None = None
        self._answer: asyncio.Future[AuthorizationCodeResult] | None = None

    async def ask(self, url: str) -> None:
        """Listen, and let a person open the address.

        Raises:
            NotReachableError: The address is none of the web, or one that the server may not name.
            OAuthFlowError: Nothing can listen at the port.
        """
        self._reach.check(url)
        self._state = parse_qs(urlsplit(url).query).get("state", [""])[0]
        self._answer = asyncio.get_running_loop().create_future()
        try:
            self._server = await asyncio.start_server(self._receive, _LOOPBACK, self._port, limit=_MOST_LINE_BYTES)
        except OSError as error:
            raise OAuthFlowError(f"the port {self._port} for the answer is not free: {error.strerror}") from None
        opened = self._settings.open_browser
        if opened is None:
            await asyncio.to_thread(webbrowser.open, url)
            return
        found = opened(url)
        if asyncio.iscoroutine(found):
            await found

    async def answer(self) -> AuthorizationCodeResult:
        """Wait for the answer.

        Raises:
            OAuthFlowError: The answer is a no, or does not come in time.
        """
        assert self._answer is not None
        assert self._server is not None
        try:
            with self._pause():
                async with asyncio.timeout(self._settings.timeout):
                    return await self._answer
        except TimeoutError:
            raise OAuthFlowError(f"nobody answered within {self._settings.timeout:g} s") from None
        finally:
            self._server.close()
            self._answer.cancel()

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one request of a browser. Without the state of this question, it is not the answer."""
        try:
            async with asyncio.timeout(_READ_SECONDS):
                line = await reader.readline()
            path = line.decode("latin-1").split(" ")[1] if line.startswith(b"GET /") else ""
            parameters = {key: values[0] for key, values in parse_qs(urlsplit(path).query).items()}
            is_answer = urlsplit(path).path == _PATH and secrets.compare_digest(
                parameters.get("state", "").encode(), self._state.encode()
            )
            status, text = ("200 OK", _DONE_TEXT) if is_answer else ("404 Not Found", "")
            body = text.encode()
            head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
            await writer.drain()
            if is_answer:
                self._set_answer(parameters)
        except (OSError, ValueError, TimeoutError):
            pass  # not the browser of a person
        finally:
            writer.close()

    def _set_answer(self, parameters: dict[str, str]) -> None:
        if self._answer is None or self._answer.done():
            return
        if "code" in parameters:
            self._answer.set_result(
                AuthorizationCodeResult(code=parameters["code"], state=parameters["state"], iss=parameters.get("iss"))
            )
        else:
            reason = parameters.get("error", "no code")[:100]
            self._answer.set_exception(OAuthFlowError(f"the authorization server refused: {reason!a}"))


def _find_registered_port(client: OAuthClientInformationFull | None) -> int | None:
    """Return the registered port, because some servers accept no other."""
    for address in (client.redirect_uris or []) if client is not None else []:
        if address.host == _LOOPBACK and address.path == _PATH:
            return address.port
    return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port
