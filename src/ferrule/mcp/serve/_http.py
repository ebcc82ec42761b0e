"""Over Streamable HTTP: an ASGI app with the checks of Host, Origin, token and size in front of the server."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from inspect import isawaitable

from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.auth.middleware.bearer_auth import BearerAuthBackend
from mcp.server.lowlevel import Server
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import INVALID_REQUEST
from starlette.datastructures import Headers
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ferrule import DefinitionError, Runner, ToolContext
from ferrule.mcp.lines import UnreadableLine, parse_line
from ferrule.mcp.serve._caller import Tokens, make_identity
from ferrule.mcp.serve._server import Principal, RunnerServer
from ferrule.mcp.serve._sessions import SessionLimits
from ferrule.security.masking import format_traceback, mask_certain_credentials
from ferrule.security.redactor import make_redactor
from ferrule.values.content import safe_str
from ferrule.values.json_text import MASK
from ferrule.values.log import make_logger

log = make_logger("ferrule.mcp.serve")
_HOST_FORM = r"(?:\[[0-9a-fA-F:.]+\]|[\w.-]+)(?::\d{1,5})?"
_LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_MOST_TOKEN = 8_192
_LONGEST_ESCAPED_TOKEN = 512
_ODD_ID = re.compile(rb'"id"\s*+:\s*+(?!"|-?\d++\s*+[,}])')
_NO_ID = {
    "jsonrpc": "2.0",
    "id": None,
    "error": {
        "code": INVALID_REQUEST,
        "message": "Invalid request: a message is one object of JSON-RPC 2.0, and its id is a text or an integer",
    },
}
_MOST_SESSIONS = 1_000
_MOST_SESSIONS_EACH = 100


class MCPApp:
    """A runner as an ASGI app, as `ferrule.mcp.serve.mcp` makes it. See docs/serving-mcp.md.

    Attributes:
        server: The SDK's low-level server, for a client in the same process: `Client(app.server)`.
    """

    def __init__(
        self,
        served: RunnerServer,
        *,
        tokens: Tokens | None,
        hosts: Iterable[str],
        origins: Iterable[str],
        max_body: int,
    ) -> None:
        origins = [*origins]
        self._served = served
        self.server: Server = served.server
        security = TransportSecuritySettings(
            allowed_hosts=[*_add_ports(_LOCAL_HOSTS), *_add_ports(hosts)],
            allowed_origins=[*_add_ports(f"http://{host}" for host in _LOCAL_HOSTS), *origins],
        )
        verifier = None if tokens is None else _Verifier(tokens)
        self._app = served.server.streamable_http_app(
            transport_security=security,
            max_request_body_size=max_body,
            max_sessions=2 * _MOST_SESSIONS,  # leaves room for those being opened
            token_verifier=verifier,
        )
        self._app.add_middleware(_RequestIds, most=max_body)
        # Without tokens there is nobody to share with. Added before the others it runs behind them, and knows the
        # principal of a request.
        each = _MOST_SESSIONS if verifier is None else _MOST_SESSIONS_EACH
        self._app.add_middleware(SessionLimits, most=_MOST_SESSIONS, most_each=each)
        if verifier is not None:
            self._app.add_middleware(AuthContextMiddleware)
            self._app.add_middleware(AuthenticationMiddleware, backend=BearerAuthBackend(verifier))
        if origins:  # added last it is the outermost: a browser asks first, and without a token
            self._app.add_middleware(
                CORSMiddleware,
                allow_origin_regex="|".join(_origin_pattern(origin) for origin in origins),
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["*"],
                expose_headers=["Mcp-Session-Id", "WWW-Authenticate"],
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as an ASGI app."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_and_tell(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 401:
                self._report_refused_client(scope)
            await send(message)

        await (_refuse_headers(Headers(scope=scope)) or self._app)(scope, receive, send_and_tell)

    def _report_refused_client(self, scope: Scope) -> None:
        has_token = "authorization" in Headers(scope=scope)
        reason = "its token is unknown" if has_token else "it gave no token"
        address = (scope.get("client") or ("",))[0]
        log.warning("refused a client at %s: %s", address, reason)
        self.runner.report_refused_client(reason, address)

    @property
    def runner(self) -> Runner:
        """The runner that is served now."""
        return self._served.runner

    async def use(self, runner: Runner) -> None:
        """Serve another runner from now on, such as `app.runner.replace(tools=…)`. Calls under way go on with the
        runner that they began with, and clients that listen are notified if the list has changed."""
        await self._served.use(runner)

    def lifespan(self, app: object = None) -> AbstractAsyncContextManager[None]:
        """Return the context manager to enter, once, if this app is mounted in another one. The other app does not run
        its lifespan."""
        return self.server.session_manager.run()

    async def drain(self) -> None:
        """Before the program ends: take no new calls, and wait for those under way, as long as the runner's `drain`."""
        await self._served.drain()


class _RequestIds:
    """An ASGI app before the SDK's. It refuses a request if its id is no text and no integer. The SDK takes such a
    request of 2025 for a notification.

    Args:
        app: The SDK's.
        most: Most bytes of a body; the SDK refuses a longer one.
    """

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as an ASGI app."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body = bytearray()
        message: Message = {"more_body": True}
        while message.get("more_body") and len(body) <= self._most:
            message = await receive()
            body += message.get("body", b"")
        found = parse_line(bytes(body)) if _ODD_ID.search(body) else None
        if isinstance(found, UnreadableLine) and found.code == INVALID_REQUEST:
            await JSONResponse(_NO_ID, status_code=400)(scope, receive, send)
            return
        if message["type"] == "http.request":
            message = {**message, "body": bytes(body)}
        unread = [message]

        async def receive_again() -> Message:
            return unread.pop() if unread else await receive()

        await self._app(scope, receive_again, send)


class _Verifier:
    """The user's function of a token, in the form that the SDK asks for."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def verify_token(self, token: str) -> Principal | None:
        if not token or len(token) > _MOST_TOKEN:
            return None
        try:
            owner = self._tokens(token)
            if isawaitable(owner):
                owner = await owner
            return _make_principal(token, owner)
        except Exception as error:  # nobody is known, so nothing is allowed
            # A database may quote the token. A long one is searched as it is: anybody can send one full of slashes.
            hide = (
                make_redactor(token) if len(token) <= _LONGEST_ESCAPED_TOKEN else lambda text: text.replace(token, MASK)
            )
            lines = "" if isinstance(error, DefinitionError) else format_traceback(error, hide)
            log.error("a token cannot be looked up: %s%s", mask_certain_credentials(hide(safe_str(error))), lines)
            return None


def _make_principal(token: str, owner: object) -> Principal | None:
    if isinstance(owner, str) and owner:
        owner = ToolContext(principal=owner)
    if not isinstance(owner, ToolContext):  # silence means no
        return None
    # Without a principal, all bearers of the same token are the same.
    name = owner.principal or f"token:{hashlib.sha256(token.encode()).hexdigest()[:24]}"
    return Principal(token="", client_id=make_identity(name, owner), name=name, scopes=[], context=owner)


def _refuse_headers(headers: Headers) -> PlainTextResponse | None:
    """Return the answer to a request with a malformed Host or Origin; the SDK's own check compares their beginnings
    only."""
    if not re.fullmatch(_HOST_FORM, headers.get("host", "")):
        return PlainTextResponse("Invalid Host header", 421)
    if not re.fullmatch(rf"(?:[a-z][a-z0-9+.-]*://{_HOST_FORM}|null|)", headers.get("origin", ""), re.IGNORECASE):
        return PlainTextResponse("Invalid Origin header", 403)
    return None


def _add_ports(hosts: Iterable[str]) -> list[str]:
    """Return each host as it is, and with any port."""
    return [form for host in hosts for form in (host, f"{host}:*")]


def _origin_pattern(origin: str) -> str:
    """Return the pattern of an origin as in the SDK's check, with any port if it ends in `:*`."""
    base, star, _ = origin.partition(":*")
    return re.escape(base) + (r":\d+" if star else "")
