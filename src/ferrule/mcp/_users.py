"""One token for each user: the requests of a call are signed with the token from the call's context."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextvars import ContextVar, Token
from inspect import isawaitable

import httpx2

from ferrule import ToolContext, ToolError
from ferrule.mcp._settings import Bearer

_TOKEN = re.compile(r"[\x21-\x7e]+")
"""The characters allowed in a header, RFC 9110, 5.5; RFC 6750 allows fewer."""


class UserTokens(httpx2.Auth):
    """Signs the requests of a call with the token of its user, and no other requests. The requests to start a server
    and to list its tools have the headers of the connection alone.

    Over HTTP the SDK sends the request of a call, and any request belonging to it, in the context of that call.
    """

    def __init__(self, bearer: Bearer, label: str) -> None:
        self._bearer, self._label = bearer, label
        self._token: ContextVar[str | None] = ContextVar("ferrule.mcp.token", default=None)

    async def begin(self, context: ToolContext, protocol: str, *, has_session: bool) -> Token[str | None]:
        """From now on, sign requests for this call, until `end`.

        Raises:
            ToolError: There is no token for the call, or it would share a session with others; nothing was sent.
        """
        if has_session:
            why = (
                f"{self._label} speaks MCP {protocol} with one session for the whole connection, which users must not "
                "share: connect to it for each user, with the token in headers="
            )
            raise ToolError(why, executed=False)
        try:
            found = self._bearer.token(context)
            if isawaitable(found):
                found = await found
        except Exception as error:
            why = f"{self._label} has no token for this call: {type(error).__name__}"  # its text may hold one
            raise ToolError(why, executed=False) from None
        if not isinstance(found, str) or not _TOKEN.fullmatch(found):
            raise ToolError(f"{self._label} has no token for this call", executed=False)
        return self._token.set(found)

    def end(self, signing: Token[str | None]) -> None:
        """Stop signing requests for the call."""
        self._token.reset(signing)

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        """Sign one request; httpx2 calls this for each."""
        token = self._token.get()
        if token is not None:
            request.headers["Authorization"] = f"Bearer {token}"
        yield request
