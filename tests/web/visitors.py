"""People who visit the page without a browser: the requests and the forms, in the loop of the test."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from typing import Any

import httpx

from ferrule import web
from ferrule.web.page_app import PageApp
from waits import BOUND

HOST = "page.test"


class Tags(HTMLParser):
    """The shape of a page: its tags with the names of their attributes, without any text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.shape: list[tuple[str, tuple[str, ...]]] = []
        self.inputs: dict[str, str] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.shape.append((tag, tuple(given)))
        if tag == "input" and "name" in given:
            self.inputs[given["name"]] = given.get("value", "")


class Visitor:
    """One person with a browser of their own."""

    def __init__(self, app: Any, person: str = "ann") -> None:
        headers = {"x-person": person, "origin": f"http://{HOST}"}
        transport = httpx.ASGITransport(app)
        self.client = httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}", headers=headers, timeout=BOUND)

    async def get(self, path: str, **headers: str) -> str:
        response = await self.client.get(path, headers=headers)
        assert response.status_code == 200, (response.status_code, response.text)
        return response.text

    async def token(self) -> str:
        found = re.search(r'name="token" value="(\w+)"', await self.get("/policy"))
        assert found is not None
        return found[1]

    async def send(self, path: str, fields: dict[str, Any], **headers: str) -> httpx.Response:
        data = {"token": await self.token(), **fields}
        return await self.client.post(path, data=data, headers=headers)

    async def call(self, name: str, **values: Any) -> str:
        """Send the form of a tool with plain fields, and return the address of the call once it has ended."""
        fields = {f"f/{key}": str(value) for key, value in values.items()}
        response = await self.send("/tool/call", {"name": name, "mode": "form", "f#on": "1", **fields})
        assert response.status_code == 303, response.text
        return await self.end(response.headers["location"])

    async def end(self, address: str) -> str:
        """Wait until a call has ended or waits for an answer, and return its address."""
        found = ""

        async def look() -> bool:
            nonlocal found
            found = await self.get(address)
            return "/run/stop" not in found

        for _ in range(10_000):
            if await look():
                return address
        raise AssertionError(found)

    async def answer(self, word: str, shown: dict[str, str], **fields: str) -> httpx.Response:
        return await self.send("/approvals/answer", {**shown, "answer": word, **fields})

    async def question(self) -> dict[str, str]:
        """Return the id and the digest of the first question."""
        page = await self.get("/approvals")
        found = re.search(r'name="id" value="([^"]+)"><input type="hidden" name="digest" value="(\w+)"', page)
        assert found is not None, page
        return {"id": found[1], "digest": found[2]}


def mount(runner: Any, **options: Any) -> PageApp:
    """The page of an application whose sign-in is a header."""
    return web.app(runner, authenticate=lambda request: request.headers.get("x-person"), **options)


@asynccontextmanager
async def visit(runner: Any, *people: str, **options: Any) -> AsyncIterator[Any]:
    """Visitors of the page of a runner: one, or one for each name."""
    app = mount(runner, **options)
    visitors = [Visitor(app, person) for person in people or ("ann",)]
    try:
        yield visitors if people else visitors[0]
    finally:
        await app.drain()
        for visitor in visitors:
            await visitor.client.aclose()
