"""The bookshop: an API with an OpenAPI document, served over MCP, with a question before anything is ordered."""

import asyncio
import contextlib
import os
import runpy
import socket
from pathlib import Path

import uvicorn
from bookshop.api import app

ROOT = Path(__file__).parent.parent.parent
SERVER = ROOT / "examples" / "bookshop" / "server.py"
KEY = "a-secret-key"


@contextlib.asynccontextmanager
async def serving(shop):
    """The address of the API while it is served."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        served = uvicorn.Server(uvicorn.Config(shop, log_level="error", lifespan="off"))
        task = asyncio.create_task(served.serve(sockets=[listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            served.should_exit = True
            await task


def make_runner(address, monkeypatch, key=KEY):
    monkeypatch.setenv("BOOKSHOP", address)
    monkeypatch.setenv("BOOKSHOP_KEY", key)
    return runpy.run_path(os.fspath(SERVER))["runner"]


async def test_reading_is_free_and_an_order_is_asked_about(monkeypatch):
    shop = app(KEY)
    async with serving(shop) as address:
        runner = make_runner(address, monkeypatch)
        approving = runner.replace(approve=lambda *asked: True)
        books = await runner.run("listBooks", {"author": "Lem"})
        assert [book["title"] for book in books.output] == ["Solaris"]
        assert (await runner.run("orderBook", {"book": "b3", "copies": 2})).status == "denied"
        large = await approving.run("orderBook", {"book": "b3", "copies": 6})
        assert large.error == "Denied: at most 5 copies of a book. Nothing was run."
        assert (await runner.run("orderBook", {"book": "b3", "copies": 0})).status == "invalid"
        assert shop.state.orders == {}
        done = await approving.run("orderBook", {"book": "b3", "copies": 2})
        assert done.output == {"id": "o1", "book": "b3", "copies": 2, "total": 18.0}
        missing = await approving.run("cancelOrder", {"id": "o9"})
        assert missing.error == 'HTTP 404 Not Found: {"error":"there is no such order"}'
        assert "401" in (await make_runner(address, monkeypatch, "wrong-key").run("listBooks")).error
        assert "needs a credential" in (await make_runner(address, monkeypatch, "").run("listBooks")).error
