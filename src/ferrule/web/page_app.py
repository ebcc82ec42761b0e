"""The page as an ASGI app: its addresses, and the checks in front of each view."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from inspect import isawaitable
from typing import Final, NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ferrule import Runner
from ferrule.approval import AnswerRefused, QuestionChanged
from ferrule.errors import FerruleError
from ferrule.web import approvals, calls, journal, policy, tools
from ferrule.web.authentication import Authenticate
from ferrule.web.checks import COOKIE, HEADERS, Refused, check_host, check_origin, new_secret
from ferrule.web.live import MOST_STREAMS
from ferrule.web.rendering import STATIC, static_file, static_version
from ferrule.web.sign_in import SignIn
from ferrule.web.state import Inspector, Visit

log = logging.getLogger("ferrule")
_MOST_TOPICS = 5
_WEEK = 7 * 86_400


class View(NamedTuple):
    """A view at an address.

    Attributes:
        changes: Whether it calls or answers: not for `--read-only`.
    """

    path: str
    show: Callable[[Visit], Awaitable[Response]]
    method: str = "GET"
    changes: bool = False


async def show_start(visit: Visit) -> Response:
    """Lead to the first view that has something to show."""
    return visit.redirect("/calls" if visit.inspector.runner is None else "/tools")


async def show_events(visit: Visit) -> Response:
    """Send the names of the topics that change."""
    wanted = visit.request.query_params.getlist("topic")[:_MOST_TOPICS]
    topics = visit.inspector.topics
    if topics.streams >= MOST_STREAMS or topics.closed:
        raise Refused(503, "Too many pages are open.")
    return StreamingResponse(topics.stream(wanted), media_type="text/event-stream", headers=HEADERS)


VIEWS: Final = (
    View("/", show_start),
    View("/events", show_events),
    View("/tools", tools.show_tools),
    View("/tool", tools.show_tool),
    View("/tool/definition", tools.show_definition),
    View("/tool/form", tools.change_draft, "POST", changes=True),
    View("/tool/call", tools.begin_call, "POST", changes=True),
    View("/run", calls.show_run),
    View("/run/block", calls.show_block),
    View("/run/stop", calls.stop_run, "POST", changes=True),
    View("/approvals", approvals.show_questions),
    View("/approvals/answer", approvals.answer_question, "POST", changes=True),
    View("/approvals/edit", approvals.show_edit, changes=True),
    View("/approvals/edit", approvals.change_edit, "POST", changes=True),
    View("/calls", journal.show_calls),
    View("/call", journal.show_call),
    View("/compare", journal.compare_calls),
    View("/policy", policy.show_policy),
    View("/policy/try", policy.try_call, "POST"),
)


class PageApp:
    """The page, as `ferrule.web.app` makes it. See docs/inspect.md#in-your-application.

    Args:
        inspector: The state behind the page.
        authenticate: Returns the name of the person.
        origins: Further origins of its forms.
        sign_in: The sign-in by a link; None in an application, which has its own.
    """

    def __init__(
        self,
        inspector: Inspector,
        authenticate: Authenticate,
        *,
        origins: Iterable[str] = (),
        sign_in: SignIn | None = None,
    ) -> None:
        self.inspector = inspector
        self._authenticate = authenticate
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self._sign_in = sign_in
        self._hosts: frozenset[str] | None = None
        routes = [Route(view.path, self._make_endpoint(view), methods=[view.method]) for view in VIEWS]
        routes += [Route(f"/static/{name}", self._send_file) for name in STATIC]
        routes += [Route("/sign-in", self._take_link, methods=["POST"])] if sign_in else []
        handlers = {Refused: self._show_refused, HTTPException: self._show_http_error, Exception: self._show_error}
        self._app = Starlette(routes=routes, exception_handlers=handlers)
        self._app.router.redirect_slashes = False  # it would answer before the checks, and repeat any Host header

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as an ASGI app."""
        await self._app(scope, receive, send)

    def use(self, runner: Runner) -> None:
        """Show another runner from now on, such as `runner.replace(tools=…)`."""
        self.inspector.use(runner)

    def serve_only(self, hosts: Iterable[str]) -> None:
        """Answer requests with these Host headers only."""
        self._hosts = frozenset(hosts)

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """Return a context manager that ends the streams of open pages."""
        try:
            yield
        finally:
            self.inspector.topics.close()

    async def drain(self) -> None:
        """Wait until the calls of the page have ended."""
        self.inspector.topics.close()
        await self.inspector.runs.close()

    # -- requests ------------------------------------------------------------------------------------------------------

    def _make_endpoint(self, view: View) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            check_host(request.headers, self._hosts)
            if view.method == "POST":
                check_origin(request, self._origins)
            visit = await self._make_visit(request)
            if view.changes and self.inspector.read_only:
                raise Refused(403, "This page is read-only: it cannot call tools or answer questions.")
            try:
                response = await view.show(visit)
            except AnswerRefused as error:
                changed = isinstance(error, QuestionChanged)
                title = "The question has changed" if changed else "This answer does not count"
                response = await visit.show_message(409, title, f"{str(error)[:1].upper()}{str(error)[1:]}.")
            except FerruleError as error:
                response = await visit.show_message(500, "It did not work", str(error))
            if request.cookies.get(COOKIE) != visit.secret:
                self._set_cookie(request, response, visit)
            return response

        return endpoint

    async def _make_visit(self, request: Request) -> Visit:
        """Return the visit of a signed-in person.

        Raises:
            Refused: Nobody is signed in.
        """
        try:
            found = self._authenticate(request)
            person = await found if isawaitable(found) else found
        except Exception:
            log.exception("the sign-in of the page raised, so nobody is signed in")
            person = None
        name: object = person
        if not isinstance(name, str) or not name:
            raise Refused(401, "You are not signed in.")
        secret = request.cookies.get(COOKIE) or new_secret()
        return Visit(self.inspector, request, name, secret)

    def _set_cookie(self, request: Request, response: Response, visit: Visit) -> None:
        is_secure = request.url.scheme == "https"
        path = visit.base or "/"
        response.set_cookie(COOKIE, visit.secret, _WEEK, path=path, secure=is_secure, httponly=True, samesite="strict")

    async def _send_file(self, request: Request) -> Response:
        check_host(request.headers, self._hosts)
        name = request.url.path.rpartition("/")[2]
        is_current = request.query_params.get("v") == static_version()
        headers = {**HEADERS, "Cache-Control": "max-age=31536000, immutable" if is_current else "no-store"}
        return Response(static_file(name), media_type=STATIC[name], headers=headers)

    async def _take_link(self, request: Request) -> Response:
        """Exchange the one-time token of the link for the cookie of the session."""
        assert self._sign_in is not None
        check_host(request.headers, self._hosts)
        check_origin(request, self._origins)
        return await self._sign_in.take(request)

    # -- errors --------------------------------------------------------------------------------------------------------

    async def _show_refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        if error.status == 401 and self._sign_in is not None:
            return self._sign_in.show()
        return await self._show_message(request, error.status, "This is not possible", error.text)

    async def _show_http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return await self._show_message(request, error.status_code, "There is no such page", str(error.detail))

    async def _show_error(self, request: Request, error: Exception) -> Response:
        text = f"The page failed: {type(error).__name__}. The log of the server has the details."
        return await self._show_message(request, 500, "It did not work", text)

    async def _show_message(self, request: Request, status: int, title: str, text: str) -> Response:
        try:
            check_host(request.headers, self._hosts)
            visit = await self._make_visit(request)
            return await visit.show_message(status, title, text)
        except Refused as refused:
            return Response(f"{refused.text if status == 404 else text}\n", status, HEADERS, "text/plain")
