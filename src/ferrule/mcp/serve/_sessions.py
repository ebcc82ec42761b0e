"""Limits on sessions of 2025 over HTTP, for all principals and for each.

The SDK opens a session for every client that asks, and ends it after half an hour without a request; many clients end
none themselves. So the session unused for the longest time gives way, and a new one is refused only if all are in use.
"""

from __future__ import annotations

from mcp_types import INTERNAL_ERROR
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ferrule.mcp.serve._server import Principal, find_principal, get_name

_SESSION_ID = "mcp-session-id"
_TOO_MANY = {"code": INTERNAL_ERROR, "message": "Too many sessions are in use; try again later."}
_BODY_HEADERS = {b"content-length", b"content-type", b"transfer-encoding"}


class _Session:
    """One session, or one that is about to be opened.

    Attributes:
        id: The SDK's id of the session; `None` until there is one.
        owner: The name of its principal, for the limits.
        identity: The identity of its caller.
        opened_by: The request that opened it.
        requests: How many requests are under way; the streams of listening clients count.
    """

    def __init__(self, principal: Principal | None, opened_by: Scope) -> None:
        self.id: str | None = None
        self.owner = get_name(principal)
        self.identity = principal and principal.client_id
        self.opened_by = opened_by
        self.requests = 0


class SessionLimits:
    """An ASGI app before the SDK's.

    Args:
        app: The SDK's.
        most: Most sessions of all principals.
        most_each: Most sessions of one principal.
    """

    def __init__(self, app: ASGIApp, most: int, most_each: int) -> None:
        self._app = app
        self._most = most
        self._most_each = most_each
        self._sessions: dict[_Session, None] = {}  # in the order of their last requests
        self._by_id: dict[str, _Session] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as an ASGI app."""
        session = self._find_session(scope)
        if session is None:  # the SDK answers it
            await self._app(scope, receive, send)
            return
        if session.id is None and self._is_full(session.owner):
            error = {"jsonrpc": "2.0", "id": None, "error": _TOO_MANY}
            await JSONResponse(error, status_code=503)(scope, receive, send)
            return
        self._sessions.pop(session, None)
        self._sessions[session] = None
        session.requests += 1
        opens, ended = session.id is None, False

        async def send_and_watch(message: Message) -> None:
            nonlocal ended
            if message["type"] == "http.response.start" and message["status"] < 400:
                ended = scope["method"] == "DELETE"
                if opens:
                    self._register(session, Headers(raw=message["headers"]).get(_SESSION_ID))
            await send(message)

        try:
            await self._app(scope, receive, send_and_watch)
        finally:
            session.requests -= 1
            if ended or session.id is None:
                self._forget(session)
        if opens:
            await self._make_room(session.owner)

    def _find_session(self, scope: Scope) -> _Session | None:
        """Return the session of a request, or a new one if the request opens one. Return `None` for a request of 2026,
        or in a session that is unknown or of another caller."""
        if scope["type"] != "http":
            return None
        headers = Headers(scope=scope)
        revision = headers.get("mcp-protocol-version")
        if revision is not None and revision not in HANDSHAKE_PROTOCOL_VERSIONS:
            return None
        principal, name = find_principal(scope), headers.get(_SESSION_ID)
        if name is None:
            return _Session(principal, {**scope})
        session = self._by_id.get(name)
        return session if session is not None and session.identity == (principal and principal.client_id) else None

    def _is_full(self, owner: str | None) -> bool:
        used = [session for session in self._sessions if session.requests]
        return len(used) >= self._most or sum(session.owner == owner for session in used) >= self._most_each

    async def _make_room(self, owner: str | None) -> None:
        """End superfluous sessions, first those of `owner`, then those of all: the ones unused for the longest time."""
        await self._end_idle(
            [session for session in self._sessions if session.id and session.owner == owner], self._most_each
        )
        await self._end_idle([session for session in self._sessions if session.id], self._most)

    async def _end_idle(self, opened: list[_Session], most: int) -> None:
        too_many = len(opened) - most
        if too_many > 0:
            unused = [session for session in opened if not session.requests][:too_many]
            for session in unused:
                self._forget(session)
            for session in unused:
                await self._end(session)

    async def _end(self, session: _Session) -> None:
        """End a session like its client would: the SDK has no other public way."""
        kept = [header for header in session.opened_by["headers"] if header[0] not in _BODY_HEADERS]
        headers = [*kept, (_SESSION_ID.encode(), str(session.id).encode())]

        async def receive_nothing() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def discard(message: Message) -> None:
            pass

        await self._app({**session.opened_by, "method": "DELETE", "headers": headers}, receive_nothing, discard)

    def _register(self, session: _Session, name: str | None) -> None:
        if name is not None:
            session.id = name
            self._by_id[name] = session

    def _forget(self, session: _Session) -> None:
        self._sessions.pop(session, None)
        if session.id is not None:
            self._by_id.pop(session.id, None)
