"""The checks of each request: which host it names, where it comes from, and whether a page of this server sent it."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import Request

COOKIE: Final = "ferrule_page"
"""The cookie with the secret of a browser. Its digest is the token in each form."""
MOST_BODY: Final = 10_000_000
"""Most bytes of a form."""
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "media-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types ferrule",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""The headers of each answer: nothing inline runs, and nothing comes from elsewhere."""
_HOST = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[\w.-]+)(?::\d{1,5})?", re.ASCII)


class Refused(Exception):
    """A request that is answered with an error.

    Attributes:
        status: The status of the answer.
        text: The reason, for the person.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


def check_host(headers: Headers, hosts: Collection[str] | None) -> None:
    """Check the Host header: a foreign name that leads to this machine must not reach the page.

    Args:
        hosts: The names with their ports, or None if the application around this one checks them.

    Raises:
        Refused: It has another name, or is malformed.
    """
    host = headers.get("host", "")
    if not _HOST.fullmatch(host) or (hosts is not None and host.lower() not in hosts):
        raise Refused(421, "This server does not answer to that host name.")


def check_origin(request: Request, origins: Collection[str]) -> None:
    """Check that a page of this server sent a form.

    Args:
        origins: Further origins, for a server behind a proxy that changes the Host header.

    Raises:
        Refused: Another page sent it, or the browser does not say.
    """
    origin, host = request.headers.get("origin", ""), request.headers.get("host", "")
    own = {f"{scheme}://{host}".lower() for scheme in ("http", "https")} | set(origins)
    if origin.lower() not in own or request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        raise Refused(403, "This form does not come from this page. Open the page again.")


def new_secret() -> str:
    """Return the secret of a browser."""
    return secrets.token_urlsafe(32)


def make_token(secret: str) -> str:
    """Return the token of the forms for the browser with this secret."""
    return hashlib.sha256(f"form {secret}".encode()).hexdigest()


def check_token(request: Request, token: str) -> None:
    """Check the token of a form.

    Raises:
        Refused: The browser with this cookie did not get the form.
    """
    secret = request.cookies.get(COOKIE, "")
    if not secret or not hmac.compare_digest(make_token(secret), token if token.isascii() else ""):
        raise Refused(403, "This form is not from this browser's page. Open the page again.")


async def read_body(request: Request) -> bytes:
    """Return the body of a request.

    Raises:
        Refused: It is too long.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BODY:
            raise Refused(413, f"A form has at most {MOST_BODY:,} bytes.")
    return bytes(body)
