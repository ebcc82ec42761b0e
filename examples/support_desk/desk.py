"""A support desk: a model answers customers, and a person approves or denies every refund on a web page.

A refund suspends the run. It waits in a SQLite file and continues after an answer, even after a restart, in any process
with the same folder. Start it, and open the address that it prints:

    pip install "ferrule[examples]"
    python examples/support_desk/desk.py --folder desk

It needs no key for a model: `pretend` in agent.py stands in for one. What to change first:

- `new_model` in agent.py: a real model with your instructions.
- `find_order` and `refund` in agent.py, and the tables in store.py: your shop.
- `person` below: the person at the page. There is no sign-in: the page is served only to this machine, and trusts
  everybody with an account on it. Add your own sign-in before you serve it to others.
- The form for customers: let your mail or chat call `Agent.ask`.

agent.py has the agent, store.py the database, and this file the page.
"""

from __future__ import annotations

import argparse
import getpass
import hashlib
import hmac
import secrets
from pathlib import Path
from urllib.parse import parse_qsl

import uvicorn
from agent import Agent, euros
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.templating import Jinja2Templates
from store import Store, read_key

from ferrule.approval import AnswerRefused

HERE = Path(__file__).parent
COOKIE = "desk"
HEADERS = {
    # No scripts, no frames in other pages, and forms only to this page.
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def person(request: Request) -> str:
    return getpass.getuser()


class Desk:
    """The page and its forms."""

    def __init__(self, store: Store, agent: Agent, key: bytes) -> None:
        self.store, self.agent, self.key = store, agent, key
        self.templates = Jinja2Templates(HERE)
        self.templates.env.filters["euros"] = euros

    def token(self, session: str) -> str:
        """Return the token of a form. Only a page of this desk has it."""
        return hmac.new(self.key, b"form " + session.encode(), hashlib.sha256).hexdigest()

    async def form(self, request: Request) -> dict[str, str] | None:
        """Return the fields of a form of this page, or None."""
        fields = dict(parse_qsl((await request.body()).decode("utf-8", "replace")))
        origin = request.headers.get("origin", f"http://{request.headers['host']}")
        expected = self.token(request.cookies.get(COOKIE, ""))
        same = hmac.compare_digest(expected.encode(), fields.get("token", "").encode())
        return fields if same and COOKIE in request.cookies and origin == f"http://{request.headers['host']}" else None

    async def show(self, request: Request) -> Response:
        session = request.cookies.get(COOKIE) or secrets.token_urlsafe()
        waits = await self.agent.waiting()
        cases = self.store.cases()
        for call in (call for case in cases for call in case["waiting"]):
            call["digest"] = waits[call["key"]].digest if call["key"] in waits else None
        shown = {
            "waiting": [case for case in cases if case["waiting"]],
            "others": [case for case in cases if not case["waiting"]],
            "customers": [row["customer"] for row in self.store.rows("SELECT DISTINCT customer FROM orders")],
            "token": self.token(session),
            "person": person(request),
        }
        response = self.templates.TemplateResponse(request, "page.html", shown, headers=HEADERS)
        response.set_cookie(COOKIE, session, httponly=True, samesite="strict")
        return response

    async def ask(self, request: Request) -> Response:
        fields = await self.form(request)
        if fields is None:
            return PlainTextResponse("This form is not from the page of the desk. Open the page again.", 403)
        if not {"customer", "question"} <= fields.keys():
            return PlainTextResponse("A case has a customer and a question.", 400)
        await self.agent.ask(fields["customer"], fields["question"])
        return RedirectResponse("/", 303)

    async def answer(self, request: Request) -> Response:
        fields = await self.form(request)
        if fields is None:
            return PlainTextResponse("This form is not from the page of the desk. Open the page again.", 403)
        if fields.get("answer") not in {"yes", "no"} or not fields.get("case", "").isdecimal():
            return PlainTextResponse("An answer is yes or no, to a case.", 400)
        case, shown = int(fields["case"]), (fields.get(name, "") for name in ("call", "key", "digest"))
        try:
            await self.agent.answer(case, *shown, yes=fields["answer"] == "yes", by=person(request))
        except AnswerRefused as error:
            return PlainTextResponse(f"This answer does not count: {error}.", 409)
        return RedirectResponse("/", 303)

    async def again(self, request: Request) -> Response:
        fields = await self.form(request)
        if fields is None:
            return PlainTextResponse("This form is not from the page of the desk. Open the page again.", 403)
        case = fields.get("case", "")
        if not case.isdecimal() or not await self.agent.retry(int(case)):
            return PlainTextResponse("There is nothing to try again: somebody else has done it.", 409)
        return RedirectResponse("/", 303)

    async def style(self, request: Request) -> Response:
        return FileResponse(HERE / "page.css")

    def app(self) -> Starlette:
        routes = [
            Route("/", self.show),
            Route("/page.css", self.style),
            Route("/ask", self.ask, methods=["POST"]),
            Route("/answer", self.answer, methods=["POST"]),
            Route("/again", self.again, methods=["POST"]),
        ]
        # Another site whose name resolves to this machine must not reach the page.
        hosts = Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
        return Starlette(routes=routes, middleware=[hosts])


def main() -> None:
    options = argparse.ArgumentParser(description="A support desk where a person decides on refunds.")
    options.add_argument("--folder", type=Path, default=Path("desk"), help="folder of the database and the key")
    options.add_argument("--port", type=int, default=8000, help="0 takes a free port")
    given = options.parse_args()
    try:
        given.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        options.error(f"argument --folder: {error}")
    (given.folder / ".gitignore").write_text("*\n", encoding="utf-8")  # nobody should commit the key
    key, store = read_key(given.folder / "desk.key"), Store(given.folder / "desk.db")
    desk = Desk(store, Agent(store, resume_key=key), key)
    uvicorn.run(desk.app(), host="127.0.0.1", port=given.port, access_log=False)


if __name__ == "__main__":
    main()
