"""MCP servers over HTTP on loopback, in both eras."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest
from mcp_servers import ERAS, Made, http, made, respond, serving, start_error, text, until_disconnected
from openapi_wire import Wire

from ferrule import Runner, allow, mcp
from ferrule.security.http import HTTP_LOGS_ARE_OFF
from waits import until

SECRET = "blue-horse-7-" + 700 * "x"


@pytest.mark.parametrize("mode", ERAS)
async def test_a_server_that_went_away_and_came_back_is_called_again(mode: mcp.Mode) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        address = await first.enter_async_context(http(made("one")))
        port = int(address.rpartition(":")[2].partition("/")[0])
        servers = mcp.connect(mcp.Http(address, mode=mode))
        runner = Runner(await stack.enter_async_context(servers))
        assert (await runner.run("one")).success
        await first.aclose()
        gone, down = await runner.run("one"), await runner.run("one")
        assert (gone.status, gone.executed) == ("failed", False) and "could not be reached" in str(gone.error)
        assert (down.status, down.executed) == ("failed", False) and "is down; Ferrule tries again" in str(down.error)
        async with http(made("one"), port):
            await until(lambda: not next(iter(servers.status.values())).retry_in)
            assert (await runner.run("one")).success


NOT_FOUND = b'{"jsonrpc":"2.0","id":%b,"error":{"code":-32001,"message":"Session not found"}}'
FORGOTTEN = {
    "as the examples of the TypeScript SDK": {"code": -32000, "message": "Bad Request: No valid session ID provided"},
    "as rmcp did": (401, b"Unauthorized: Session not found"),
    "404 for no request": (404, NOT_FOUND % b"null"),
    "404 as text": (404, b"Session not found"),
    "404 without a body": (404, b""),
}
ANSWERED = {
    "another error": {"code": -32000, "message": "rate limit"},
    "another refusal": (401, b"Unauthorized: the session has expired"),
    "404 for the request": (404, NOT_FOUND % b"@ID@"),
    "404 in a batch": (404, b"[%b]" % NOT_FOUND % b"@ID@"),
    "404 with a result": (404, b'{"jsonrpc":"2.0","id":@ID@,"result":{}}'),
    "404 cut before an id": (404, b'{"jsonrpc":"2.0","error":{"code":-32001,"mess'),
}


def restarted(server: Made, error: Any, kind: str = "text/plain", **more: Any) -> tuple[Any, asyncio.Event]:
    """Return an application and an event. Once that is set, the application refuses each earlier session with a
    JSON-RPC error at 400 or, given a tuple, with this status and body, which may name the id of the request."""
    app, gone, forgotten = server.app(), asyncio.Event(), set[bytes]()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        session = dict(scope.get("headers", ())).get(b"mcp-session-id")
        if session is not None and not gone.is_set():
            forgotten.add(session)
        if session not in forgotten or not gone.is_set():
            await app(scope, receive, send)
        elif isinstance(error, tuple):
            asked = json.loads((await receive()).get("body") or b"{}")
            status, body = error
            await respond(send, status, body.replace(b"@ID@", json.dumps(asked.get("id")).encode()), content_type=kind)
        else:
            body = json.dumps({"jsonrpc": "2.0", "error": error, "id": None, **more}).encode()
            await respond(send, 400, body, content_type="application/json")

    return application, gone


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
@pytest.mark.parametrize("error", ANSWERED.values(), ids=ANSWERED)
async def test_a_call_that_a_server_may_have_taken_is_not_sent_again(error: Any, kind: str) -> None:
    server = made("one")
    app, gone = restarted(server, error, kind, id="its own")
    async with serving(app) as address, mcp.connect(mcp.Http(address, mode="legacy")) as toolset:
        runner = Runner(toolset)
        assert (await runner.run("one")).success
        gone.set()
        refused = await runner.run("one")
        assert (refused.status, refused.executed, len(server.calls)) == ("failed", None, 1)


@pytest.mark.parametrize("error", FORGOTTEN.values(), ids=FORGOTTEN)
async def test_a_server_that_forgot_its_sessions_gets_each_call_once_in_a_new_one(error: Any) -> None:
    server = made("one")
    app, gone = restarted(server, error)
    async with serving(app) as address, mcp.connect(mcp.Http(address, mode="legacy")) as toolset:
        runner = Runner(toolset)
        assert (await runner.run("one")).success
        gone.set()
        results = await asyncio.gather(*(runner.run("one") for _ in range(4)))
        assert [result.error for result in results] == [None] * 4 and len(server.calls) == 5


async def elicit(context: Any, arguments: dict[str, Any]) -> Any:
    """Ask as many questions as the arguments say."""
    schema = {"type": "object", "properties": {}}
    ask = partial(context.session.elicit_form, "Which?", schema, related_request_id=context.request_id)
    answers = await asyncio.gather(*(ask() for _ in range(arguments.get("questions", 1))))
    return text(answers[0].action)


async def test_notifications_and_replies_follow_a_redirect_on_the_server() -> None:
    app = made("ask", elicit).app()

    async def elsewhere(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["query_string"]:
            await app(scope, receive, send)  # which refuses all that comes before `notifications/initialized`
        else:
            await respond(send, 307, location="?here")

    async with serving(elsewhere) as address, mcp.connect(mcp.Http(address, mode="legacy")) as toolset:
        result = await Runner(toolset, approve=lambda call, decision, context: allow({})).run("ask")
    assert result.output == "accept"


async def test_leaving_does_not_wait_for_a_server_that_keeps_a_session() -> None:
    app = made("one").app()

    async def keeping(scope: Any, receive: Any, send: Any) -> None:
        if scope.get("method") == "DELETE":
            await until_disconnected(receive)
        else:
            await app(scope, receive, send)

    async with serving(keeping) as address, mcp.connect(mcp.Http(address, mode="legacy")):
        pass


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
async def test_no_log_of_the_http_libraries_shows_a_broken_body(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    body = f"{SECRET}\r\n"  # where the size of a chunk is expected
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n"
    with caplog.at_level(1):
        async with Wire(f"{head}{body}".encode()) as wire:
            await start_error(mcp.Http(wire.url, headers={"X-Key": SECRET}))
    assert "is down" in caplog.text and SECRET not in caplog.text
    assert not HTTP_LOGS_ARE_OFF.get()
