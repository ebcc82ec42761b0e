"""The sign-in of `ferrule inspect`: the link at the terminal holds a token that works once.

The token stands behind the `#` of the address, which no browser sends. The page posts it, and gets the cookie of a
session. The cookie is signed and not stored, so it is valid after a restart of the server.
"""

from __future__ import annotations

import hmac
import re
import secrets
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from ferrule.web.checks import HEADERS, read_body
from ferrule.web.rendering import render

_SECONDS: Final = 7 * 86_400


class SignIn:
    """The sign-in of the one person who started the server.

    Args:
        key: Signs the sessions: at least 32 bytes.
        person: The name of the person.
        tell: Is given each new link. Only the person may see it.
    """

    def __init__(self, key: bytes, person: str, tell: Callable[[str], object]) -> None:
        self._key = key
        self._person = person
        self._tell = tell
        self._token: str | None = None
        self._address = ""
        self._cookie = "ferrule_session"

    def open(self, address: str) -> str:
        """Return the first link to a server at this address, such as `http://127.0.0.1:8765`."""
        self._address = address
        port = re.sub(r"\D", "", address.rpartition(":")[2])
        self._cookie = f"ferrule_session_{port}"  # a browser sends it to all ports of a host
        return self._make_link()

    def _make_link(self) -> str:
        self._token = secrets.token_urlsafe(32)
        return f"{self._address}/#{self._token}"

    def authenticate(self, request: Request) -> str | None:
        """Return the person, if the cookie is that of a session."""
        number, _, rest = request.cookies.get(self._cookie, "").partition(".")
        until, _, seal = rest.partition(".")
        if not (until.isascii() and until.isdecimal()) or len(until) > 12 or int(until) < time.time():
            return None
        expected = self._seal(f"{number}.{until}")
        return self._person if seal.isascii() and hmac.compare_digest(seal, expected) else None

    def _seal(self, text: str) -> str:
        return hmac.new(self._key, f"session {self._address} {text}".encode(), "sha256").hexdigest()

    def show(self, problem: str = "") -> Response:
        """Return the page that takes the link."""
        if self._token is None:
            self._tell(self._make_link())
        return HTMLResponse(render("sign_in.html", base="", problem=problem), 401, headers=HEADERS)

    async def take(self, request: Request) -> Response:
        """Exchange the token for a session, once."""
        fields = parse_qs((await read_body(request)).decode("ascii", "replace"), max_num_fields=10)
        token = (fields.get("token") or [""])[0].strip().rpartition("#")[2]
        if self._token is None or not token.isascii() or not hmac.compare_digest(token, self._token):
            return self.show("This link is used, or from an earlier start. The terminal has a new one.")
        self._token = None
        session = f"{secrets.token_urlsafe(16)}.{int(time.time()) + _SECONDS}"
        response = RedirectResponse("/", 303, HEADERS)
        sealed = f"{session}.{self._seal(session)}"
        response.set_cookie(self._cookie, sealed, _SECONDS, path="/", httponly=True, samesite="strict")
        return response
