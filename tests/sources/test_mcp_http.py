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
async def test_a_cancellation_reaches_the_server(mode: mcp.Mode) -> None:
    entered, stopped = asyncio.Event(), asyncio.Event()

    async def wait(context: Any, arguments: dict[str, Any]) -> Any:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with http(made("wait", wait)) as address, mcp.connect(mcp.Http(address, mode=mode)) as toolset:
        waiting = asyncio.ensure_future(Runner(toolset).run("wait"))
        await entered.wait()
        waiting.cancel()
        await asyncio.wait({waiting})
        await stopped.wait()


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


async def test_headers_are_sent_and_the_arguments_that_the_schema_names() -> None:
    seen: list[dict[str, str]] = []

    async def look(context: Any, arguments: dict[str, Any]) -> Any:
        seen.append(dict(context.request.headers))
        return text("")

    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    async with http(made("look", look, schema)) as address:
        async with mcp.connect(mcp.Http(address, headers={"Authorization": "Bearer sk-1"})) as toolset:
            assert (await Runner(toolset).run("look", {"region": "eu"})).success
    assert seen[0]["authorization"] == "Bearer sk-1" and seen[0]["mcp-param-region"] == "eu"
    assert seen[0]["mcp-protocol-version"] == "2026-07-28"


# -- servers that do not start -----------------------------------------------------------------------------------------


async def test_a_null_in_the_arguments_arrives() -> None:
    server, arguments = made(), {"nothing": None, "nested": {"nothing": None}}
    async with http(server) as address, mcp.connect(address) as toolset:
        await Runner(toolset).run("one", arguments)
    assert server.calls[0].arguments == arguments


async def test_a_server_that_speaks_only_sse_is_named_so() -> None:
    async def of_2024(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] != "GET":
            await respond(send, 405)
            return
        events = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": events})
        event = b"event: endpoint\ndata: /messages?session=1\n\n"
        await send({"type": "http.response.body", "body": event, "more_body": True})
        await until_disconnected(receive)

    async with serving(of_2024) as address:
        assert "is down: it speaks only the HTTP+SSE transport of 2024" in await start_error(address)


# -- sessions of 2025 --------------------------------------------------------------------------------------------------


UNKNOWN = {
    "as the examples of the TypeScript SDK": {"code": -32000, "message": "Bad Request: No valid session ID provided"},
    "as rmcp did": (401, b"Unauthorized: Session not found"),
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


@pytest.mark.parametrize("error", UNKNOWN.values(), ids=UNKNOWN)
async def test_a_server_that_refuses_old_sessions_gets_each_call_once_in_a_new_one(error: Any) -> None:
    server = made("one")
    app, gone = restarted(server, error)
    async with serving(app) as address, mcp.connect(mcp.Http(address, mode="legacy")) as toolset:
        runner = Runner(toolset)
        assert (await runner.run("one")).success
        gone.set()
        results = await asyncio.gather(*(runner.run("one") for _ in range(4)))
        assert [result.error for result in results] == [None] * 4 and len(server.calls) == 5


@pytest.mark.parametrize(
    "error",
    [
        {"code": -32000, "message": "rate limit"},
        (401, b"Unauthorized: the session has expired"),
    ],
)
async def test_a_call_that_was_refused_otherwise_is_not_sent_again(error: Any) -> None:
    server = made("one")
    app, gone = restarted(server, error, id="its own")
    async with serving(app) as address, mcp.connect(mcp.Http(address, mode="legacy")) as toolset:
        runner = Runner(toolset)
        assert (await runner.run("one")).success
        gone.set()
        refused = await runner.run("one")
        said = "HTTP 401 Unauthorized" if isinstance(error, tuple) else error["message"]
        assert (refused.status, refused.executed) == ("failed", None) and said in str(refused.error)
        assert len(server.calls) == 1


NOT_FOUND = b'{"jsonrpc":"2.0","id":%b,"error":{"code":-32001,"message":"Session not found"}}'
ANSWERS = (
    NOT_FOUND % b"@ID@",
    b"[%b]" % NOT_FOUND % b"@ID@",
    b'{"jsonrpc":"2.0","id":@ID@,"result":{}}',
    b'{"jsonrpc":"2.0","error":{"code":-32001,"mess',  # cut before an id
)
REFUSALS = NOT_FOUND % b"null", b"Session not found", b""


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
@pytest.mark.parametrize("body", [*ANSWERS, *REFUSALS])
async def test_a_call_goes_again_in_a_new_session_only_if_a_404_does_not_answer_it(body: bytes, kind: str) -> None:
    server = made("one")
    app, gone = restarted(server, (404, body), kind)
    async with serving(app) as address, mcp.connect(mcp.Http(address, mode="legacy")) as toolset:
        runner = Runner(toolset)
        assert (await runner.run("one")).success
        gone.set()
        found = await runner.run("one")
        assert (found.status, found.executed) == (("failed", None) if body in ANSWERS else ("ok", True))
        assert len(server.calls) == (1 if body in ANSWERS else 2)
        assert (await runner.run("one")).success


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


# -- what is shown of it -----------------------------------------------------------------------------------------------


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
