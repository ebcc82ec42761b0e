"""MCP servers over HTTP on loopback, in both eras."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError
from mcp_servers import ERAS, Made, http, made, respond, serving, start_error, text, until_disconnected
from openapi_wire import Wire

from ferrule import Runner, allow, mcp
from ferrule.mcp import _http
from ferrule.security.http import HTTP_LOGS_ARE_OFF
from waits import until

SECRET = "blue-horse-7-" + 700 * "x"


async def test_as_many_calls_run_at_once_as_the_runner_lets_and_each_gets_its_answer() -> None:
    together = asyncio.Barrier(120)

    async def double(context: Any, arguments: dict[str, Any]) -> Any:
        await together.wait()
        return text(str(2 * arguments["number"]))

    async with http(made("double", double)) as address, mcp.connect(address) as toolset:
        runner = Runner(toolset, concurrency=120)
        results = await asyncio.gather(*(runner.run("double", {"number": number}) for number in range(120)))
    assert [result.output for result in results] == [str(2 * number) for number in range(120)]


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


async def test_a_null_in_the_arguments_arrives() -> None:
    server, arguments = made(), {"nothing": None, "nested": {"nothing": None}}
    async with http(server) as address, mcp.connect(address) as toolset:
        await Runner(toolset).run("one", arguments)
    assert server.calls[0].arguments == arguments


@pytest.mark.parametrize("mode", ERAS)
async def test_an_answer_that_breaks_off_may_have_run_and_ends_no_other_call(mode: mcp.Mode) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def wait(context: Any, arguments: dict[str, Any]) -> Any:
        entered.set()
        await go_on.wait()
        return text("done")

    app = made("wait", wait).add("broken").app()

    async def breaking(scope: Any, receive: Any, send: Any) -> None:
        async def send_half(message: Any) -> None:
            if b"broken {" in message.get("body", b""):
                raise ConnectionResetError
            await send(message)

        await app(scope, receive, send_half)

    async with serving(breaking) as address, mcp.connect(mcp.Http(address, mode=mode)) as toolset:
        runner = Runner(toolset)
        waiting = asyncio.ensure_future(runner.run("wait"))
        await entered.wait()
        broken = await runner.run("broken")
        assert (broken.status, broken.executed) == ("failed", None)
        assert "ended before its answer" in str(broken.error)
        go_on.set()
        assert (await waiting).output == "done"


# -- servers that do not start -----------------------------------------------------------------------------------------


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
    "as the Python SDK did": (400, b"Bad Request: No valid session ID provided"),
    "as rmcp did": (401, b"Unauthorized: Session not found"),
}


def restarted(server: Made, error: Any, **more: Any) -> tuple[Any, asyncio.Event]:
    """Return an application and an event. Once that is set, the application refuses each earlier session with a
    JSON-RPC error at 400 or, given a tuple, with this status and text."""
    app, gone, forgotten = server.app(), asyncio.Event(), set[bytes]()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        session = dict(scope.get("headers", ())).get(b"mcp-session-id")
        if session is not None and not gone.is_set():
            forgotten.add(session)
        if session not in forgotten or not gone.is_set():
            await app(scope, receive, send)
        elif isinstance(error, tuple):
            await respond(send, *error, content_type="text/plain")
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
        {"code": -32603, "message": "session"},
        {"code": -32000, "message": "rate limit"},
        (401, b"Unauthorized"),
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


async def test_a_stream_of_the_server_that_breaks_off_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_http, "_BETWEEN_STREAMS", 0.0)
    app, left, listens = made("one").app(), 5, asyncio.Event()

    async def breaking(scope: Any, receive: Any, send: Any) -> None:
        nonlocal left
        if scope.get("method") != "GET":
            await app(scope, receive, send)
        elif left == 0:
            listens.set()
        else:
            left -= 1
            events = [(b"content-type", b"text/event-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": events})
            await send({"type": "http.response.body", "body": b"retry: 0\n\n", "more_body": True})

    async with serving(breaking) as address, mcp.connect(mcp.Http(address, mode="legacy")):
        await listens.wait()


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


# -- what is shown of it -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ERAS)
async def test_an_error_of_the_server_is_shown_without_the_values_of_the_headers(mode: mcp.Mode) -> None:
    async def refuse(context: Any, arguments: dict[str, Any]) -> Any:
        raise MCPError(arguments["code"], f"rate limit reached by {context.request.headers['authorization']}")

    async with http(made("one", refuse)) as address:
        server = mcp.Http(address, headers={"Authorization": f"Bearer {SECRET}"}, mode=mode)
        async with mcp.connect(server) as toolset:
            for code in (-32603, types.CONNECTION_CLOSED):
                result = await Runner(toolset).run("one", {"code": code})
                assert "refused the call: rate limit reached by " in str(result.error) and "***" in str(result.error)
                assert f"(error {code})" in str(result.error) and result.executed is None
                assert "blue-horse" not in str(result.error) + result.text and "ended" not in str(result.error)


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
async def test_no_log_of_the_http_libraries_shows_a_broken_body(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    body = f"{SECRET}\r\n"  # where the size of a chunk is expected
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n"
    with caplog.at_level(1):
        async with Wire(f"{head}{body}".encode()) as wire:
            await start_error(mcp.Http(wire.url, headers={"X-Key": SECRET}))
    assert "is down" in caplog.text and SECRET not in caplog.text
    assert not HTTP_LOGS_ARE_OFF.get()


NOT_FOUND = b'{"jsonrpc":"2.0","id":%b,"error":{"code":-32001,"message":"Session not found"}}'
ANSWERS = {
    "its id": NOT_FOUND % b"@ID@",
    "its id in a batch": b"[%b]" % NOT_FOUND % b"@ID@",
    "its id in a result": b'{"jsonrpc":"2.0","id":@ID@,"result":{}}',
    "cut before an id": b'{"jsonrpc":"2.0","error":{"code":-32001,"mess',
}
REFUSALS = {
    "the id null": NOT_FOUND % b"null",
    "no id": b'{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"}}',
    "a text": b"Session not found",
    "nothing": b"",
}


@pytest.mark.large
@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
async def test_a_call_goes_again_in_a_new_session_only_if_a_404_does_not_answer_it(kind: str) -> None:
    info = {"name": "s", "version": "1"}
    results = {
        "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info},
        "tools/list": {"tools": [{"name": "pay", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": "paid"}]},
    }
    refusal, sessions, ran = b"", 0, list[bytes]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal sessions
        if scope["type"] != "http":
            return
        asked = (await receive()).get("body", b"")
        message = json.loads(asked) if asked else {}
        method, headers = message.get("method"), {"content_type": "application/json"}
        session = dict(scope["headers"]).get(b"mcp-session-id")
        if method == "initialize":
            sessions += 1
            headers["mcp_session_id"] = str(sessions)
        if method == "tools/call":
            ran.append(session or b"")
        if method == "tools/call" and session == b"1":
            body = refusal.replace(b"@ID@", json.dumps(message["id"]).encode())
            await respond(send, 404, body, content_type=kind)
        elif method in results:
            answer = {"jsonrpc": "2.0", "id": message["id"], "result": results[method]}
            await respond(send, 200, json.dumps(answer).encode(), **headers)
        else:
            await respond(send, 202 if message else 405)

    async with serving(app) as address:
        for what, body in {**ANSWERS, **REFUSALS}.items():
            refusal, sessions = body, 0
            ran.clear()
            async with mcp.connect(mcp.Http(address, name="s", mode="legacy")) as toolset:
                first, second = [await Runner(toolset).run("s__pay") for _ in range(2)]
                assert second.output == "paid"
                if what in ANSWERS:
                    assert (first.status, first.executed, ran) == ("failed", None, [b"1", b"2"]), what
                else:
                    assert (first.output, ran) == ("paid", [b"1", b"2", b"2"]), what
