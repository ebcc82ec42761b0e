"""MCP servers over HTTP on loopback, in both eras."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError
from mcp_servers import ERAS, Made, go, http, made, serving, text
from openapi_wire import Wire

from ferrule import Runner, ToolResult, allow, mcp
from ferrule.mcp import _http
from ferrule.security.http import HTTP_LOGS_ARE_OFF


@pytest.mark.parametrize("mode", ERAS)
async def test_calls_go_there_at_once_and_come_back_unmixed(mode: mcp.Mode) -> None:
    async def double(context: Any, arguments: dict[str, Any]) -> Any:
        await asyncio.sleep(0)
        return text(str(2 * arguments["number"]))

    async def main() -> list[Any]:
        async with http(made("double", double).server) as address, mcp.connect(mcp.Http(address, mode=mode)) as toolset:
            runner = Runner(toolset, concurrency=16)
            results = await asyncio.gather(*(runner.run("double", {"number": number}) for number in range(40)))
            return [result.output for result in results]

    assert (await main()) == [str(2 * number) for number in range(40)]


def test_as_many_calls_are_under_way_as_the_runner_lets() -> None:
    async def main() -> list[ToolResult]:
        together = asyncio.Barrier(120)

        async def meet(context: Any, arguments: dict[str, Any]) -> Any:
            await together.wait()
            return text("all are here")

        async with http(made("meet", meet).server) as address, mcp.connect(address) as toolset:
            runner = Runner(toolset, concurrency=120)
            return await asyncio.gather(*(runner.run("meet") for _ in range(120)))

    assert all(result.success for result in go(main()))


@pytest.mark.parametrize("mode", ERAS)
async def test_a_cancellation_reaches_the_server(mode: mcp.Mode) -> None:

    entered, stopped = asyncio.Event(), asyncio.Event()

    async def wait(context: Any, arguments: dict[str, Any]) -> Any:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with http(made("wait", wait).server) as address, mcp.connect(mcp.Http(address, mode=mode)) as toolset:
        waiting = asyncio.ensure_future(Runner(toolset).run("wait"))
        await entered.wait()
        waiting.cancel()
        await asyncio.wait({waiting})
        await stopped.wait()


@pytest.mark.parametrize("mode", ERAS)
async def test_a_server_that_went_away_and_came_back_is_called_again(mode: mcp.Mode) -> None:
    async def main() -> list[ToolResult]:
        server = made("one")
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(AsyncExitStack())
            address = await first.enter_async_context(http(server.server))
            port = int(address.rpartition(":")[2].partition("/")[0])
            servers = mcp.connect(mcp.Http(address, mode=mode))
            toolset = await stack.enter_async_context(servers)
            runner = Runner(toolset)
            results = [await runner.run("one")]
            await first.aclose()
            results.append(await runner.run("one"))
            results.append(await runner.run("one"))
            async with http(made("one").server, port):
                while next(iter(servers.status.values())).retry_in:
                    await asyncio.sleep(0.05)
                results.append(await runner.run("one"))
            return results

    there, gone, down, back = await main()
    assert there.success and back.success
    assert (gone.status, gone.executed) == ("failed", False) and "could not be reached" in str(gone.error)
    assert (down.status, down.executed) == ("failed", False) and "is down; Ferrule tries again" in str(down.error)


async def test_headers_are_sent_and_the_arguments_that_the_schema_names() -> None:
    seen: list[dict[str, str]] = []

    async def look(context: Any, arguments: dict[str, Any]) -> Any:
        seen.append(dict(context.request.headers))
        return text("")

    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}

    async def main() -> None:
        async with http(made("look", look, schema).server) as address:
            async with mcp.connect(mcp.Http(address, headers={"Authorization": "Bearer sk-1"})) as toolset:
                assert (await Runner(toolset).run("look", {"region": "eu"})).success

    await main()
    assert seen[0]["authorization"] == "Bearer sk-1" and seen[0]["mcp-param-region"] == "eu"
    assert seen[0]["mcp-protocol-version"] == "2026-07-28"


async def test_an_elicitation_of_2025_goes_over_the_stream_of_its_call() -> None:
    async def elicit(context: Any, arguments: dict[str, Any]) -> Any:
        schema = {"type": "object", "properties": {"day": {"type": "integer"}}}
        answer = await context.session.elicit_form("Which day?", schema, related_request_id=context.request_id)
        return text(f"{answer.action} {answer.content}")

    async def main() -> ToolResult:
        server = Made().add("ask", elicit)
        async with http(server.server) as address, mcp.connect(mcp.Http(address, mode="legacy")) as toolset:
            return await Runner(toolset, approve=lambda call, decision, context: allow({"day": 2})).run("ask")

    assert (await main()).output == "accept {'day': 2}"


@pytest.mark.parametrize("mode", ERAS)
async def test_an_answer_that_breaks_off_may_have_run_and_ends_no_other_call(mode: mcp.Mode) -> None:

    entered, go_on = asyncio.Event(), asyncio.Event()

    async def wait(context: Any, arguments: dict[str, Any]) -> Any:
        entered.set()
        await go_on.wait()
        return text("done")

    app = made("wait", wait).add("broken").server.streamable_http_app()

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


@pytest.mark.parametrize("status", ["401 Unauthorized", "421 Misdirected Request", "503 Service Unavailable"])
@pytest.mark.parametrize("kind", ["text/plain", "application/json"])
async def test_a_server_that_refuses_all_says_how(status: str, kind: str) -> None:
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = [(b"content-type", kind.encode())]
            await send({"type": "http.response.start", "status": int(status[:3]), "headers": headers})
            await send({"type": "http.response.body", "body": b'{"detail": "who are you?"}'})

    async def main() -> None:
        async with serving(refuse) as address, mcp.connect(address):
            raise AssertionError("it was refused")

    with pytest.raises(mcp.ServersDownError, match=f"HTTP {status}"):
        await main()


async def test_a_status_is_named_in_the_words_of_its_standard() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 See http://x for more\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async def main() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            async with mcp.connect(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"):
                raise AssertionError("it was refused")

    with pytest.raises(mcp.ServersDownError, match=r"HTTP 503 Service Unavailable$"):
        await main()


async def test_an_answer_whose_compression_is_broken_ends_its_call_alone() -> None:
    async def main() -> tuple[ToolResult, ToolResult]:
        app = made("one").server.streamable_http_app(json_response=True)
        broken = True

        async def packed(scope: Any, receive: Any, send: Any) -> None:
            calls = dict(scope.get("headers", ())).get(b"mcp-method") == b"tools/call"

            async def send_packed(message: Any) -> None:
                if broken and calls and message["type"] == "http.response.start":
                    message["headers"] = [*message["headers"], (b"content-encoding", b"gzip")]
                await send(message)

            await app(scope, receive, send_packed)

        async with serving(packed) as address, mcp.connect(address) as toolset:
            runner = Runner(toolset)
            first = await runner.run("one")
            broken = False
            return first, await runner.run("one")

    first, second = await main()
    assert (first.status, first.executed) == ("failed", None) and "could not be read" in str(first.error)
    assert second.success


async def test_a_server_that_hangs_at_its_list_is_given_up() -> None:
    app = made("one").server.streamable_http_app()

    async def without_list(scope: Any, receive: Any, send: Any) -> None:
        if dict(scope.get("headers", ())).get(b"mcp-method") != b"tools/list":
            await app(scope, receive, send)
        else:
            while (await receive())["type"] != "http.disconnect":
                pass

    async def main() -> None:
        async with serving(without_list) as address, mcp.connect(address, start_timeout=1):
            raise AssertionError("it did not start")

    with pytest.raises(mcp.ServersDownError, match="it did not answer within 1 s"):
        await main()


async def test_an_address_where_nobody_listens_is_down() -> None:
    async def main() -> None:
        async with mcp.connect("http://127.0.0.1:9/mcp"):
            raise AssertionError("nobody is there")

    with pytest.raises(mcp.ServersDownError, match=r"127\.0\.0\.1:9 is down: ConnectError"):
        await main()


async def test_one_that_speaks_sse_alone_is_named_so() -> None:
    async def of_2024(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        kind, status = (b"text/event-stream", 200) if scope["method"] == "GET" else (b"text/plain", 405)
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
        event = b"event: endpoint\ndata: /messages?session=1\n\n" if status == 200 else b""
        await send({"type": "http.response.body", "body": event, "more_body": status == 200})
        while status == 200 and (await receive())["type"] != "http.disconnect":
            pass

    async def main() -> None:
        async with serving(of_2024) as address, mcp.connect(address):
            raise AssertionError("it speaks Streamable HTTP")

    with pytest.raises(mcp.ServersDownError, match="is down: it speaks only the HTTP\\+SSE transport of 2024"):
        await main()


async def test_a_null_in_the_arguments_arrives() -> None:
    server = made()

    async def main() -> None:
        async with http(server.server) as address, mcp.connect(address) as toolset:
            await Runner(toolset).run("one", {"nothing": None, "nested": {"nothing": None}})

    await main()
    assert server.calls[0].arguments == {"nothing": None, "nested": {"nothing": None}}


async def test_a_server_that_forgot_the_session_gets_each_call_once_more_in_a_new_one() -> None:

    first, second = made("one"), made("one")
    async with AsyncExitStack() as stack:
        before = await stack.enter_async_context(AsyncExitStack())
        address = await before.enter_async_context(http(first.server))
        port = int(address.rpartition(":")[2].partition("/")[0])
        toolset = await stack.enter_async_context(mcp.connect(mcp.Http(address, mode="legacy")))
        runner = Runner(toolset)
        assert (await runner.run("one")).success
        await before.aclose()
        async with http(second.server, port):
            results = await asyncio.gather(*(runner.run("one") for _ in range(16)))
            assert [result.error for result in results] == [None] * 16
            assert len(second.calls) == 16


UNKNOWN = {
    "as the examples of the TypeScript SDK": {"code": -32000, "message": "Bad Request: No valid session ID provided"},
    "as its transport": {"code": -32000, "message": "Bad Request: Server not initialized"},
    "as the Python SDK did": (400, b"Bad Request: No valid session ID provided"),
    "as mcp-go did": (400, b"Invalid session ID"),
    "as rmcp did": (401, b"Unauthorized: Session not found"),
    "as n8n does": (401, b"No transport found for sessionId"),
}


def restarted(server: Made, error: Any, **more: Any) -> tuple[Any, asyncio.Event]:
    """An application that refuses every session of before the event was set, with a JSON-RPC error at 400 or, given a
    tuple, with this status and text."""
    app, gone, forgotten = server.server.streamable_http_app(), asyncio.Event(), set[bytes]()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        session = dict(scope.get("headers", ())).get(b"mcp-session-id")
        if session is not None and not gone.is_set():
            forgotten.add(session)
        if session in forgotten and gone.is_set():
            if isinstance(error, tuple):
                (status, body), kind = error, b"text/plain"
            else:
                body = json.dumps({"jsonrpc": "2.0", "error": error, "id": None, **more}).encode()
                status, kind = 400, b"application/json"
            await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
            await send({"type": "http.response.body", "body": body})
            return
        await app(scope, receive, send)

    return application, gone


@pytest.mark.parametrize("error", UNKNOWN.values(), ids=UNKNOWN)
async def test_a_server_that_refuses_a_session_of_before_its_restart_gets_each_call_once_in_a_new_one(
    error: Any,
) -> None:

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


async def test_a_server_that_wants_to_be_asked_again_at_once_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    app = made("one").server.streamable_http_app()
    asked: list[bytes | None] = []

    async def retrying(scope: Any, receive: Any, send: Any) -> None:
        if scope.get("method") != "GET":
            await app(scope, receive, send)
            return
        asked.append(dict(scope["headers"]).get(b"last-event-id"))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": b"id: %d\nretry: 0\ndata:\n\n" % len(asked)})

    async def main() -> None:
        async with serving(retrying) as address, mcp.connect(mcp.Http(address, mode="legacy")) as toolset:
            runner = Runner(toolset)
            while not asked:
                await asyncio.sleep(0)
            for _ in range(20):
                assert (await runner.run("one")).success

    monkeypatch.setattr(_http, "_BETWEEN_STREAMS", 1000.0)
    await main()
    assert len(asked) == 1


async def test_a_stream_of_the_server_that_breaks_again_and_again_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app, left, listens = made("one").server.streamable_http_app(), 5, asyncio.Event()

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

    monkeypatch.setattr(_http, "_BETWEEN_STREAMS", 0.0)
    async with serving(breaking) as address, mcp.connect(mcp.Http(address, mode="legacy")):
        await listens.wait()


async def test_a_server_that_takes_no_notification_and_no_reply_gets_the_calls_after_it_and_other_replies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_http, "_LONGEST_DELIVERY", 1000.0)

    async def elicit(context: Any, arguments: dict[str, Any]) -> Any:
        schema = {"type": "object", "properties": {}}
        ask = partial(context.session.elicit_form, "Which?", schema, related_request_id=context.request_id)
        await asyncio.gather(*(ask() for _ in range(arguments["questions"])))
        return text("never")

    async def hold(context: Any, arguments: dict[str, Any]) -> Any:
        await asyncio.Event().wait()

    app = Made().add("ask", elicit).add("one").add("hold", hold).server.streamable_http_app()
    silent: list[Any] = []

    async def without_response(scope: Any, receive: Any, send: Any) -> None:
        if scope.get("method") != "POST":
            await app(scope, receive, send)
            return
        event = await receive()
        message = json.loads(event["body"])
        unread = [event]

        async def receive_again() -> Any:
            return unread.pop() if unread else await receive()

        async def send_nothing(event: Any) -> None:
            pass

        if "id" in message and "method" in message:
            await app(scope, receive_again, send)
            return
        silent.append(message.get("method", "a reply"))
        if "method" in message:
            await app(scope, receive_again, send_nothing)
        while (await receive())["type"] != "http.disconnect":
            pass

    async with serving(without_response) as address:
        async with mcp.connect(mcp.Http(address, mode="legacy")) as toolset:
            runner = Runner(toolset, approve=lambda call, decision, context: allow({}))
            await asyncio.gather(*(Runner(toolset, timeout=0.1).run("hold") for _ in range(20)))
            for questions in (1, 120):
                asking = asyncio.ensure_future(runner.run("ask", {"questions": questions}))
                while silent.count("a reply") < min(questions, 10):
                    await asyncio.sleep(0)
                assert (await runner.run("one")).success
                asking.cancel()
                await asyncio.wait({asking})
                assert (await runner.run("one")).success
            assert silent.count("a reply") < 20
    assert {"notifications/initialized", "a reply", "notifications/cancelled"} <= {*silent}


async def test_notifications_and_replies_follow_a_redirect_on_the_server() -> None:
    async def elicit(context: Any, arguments: dict[str, Any]) -> Any:
        schema = {"type": "object", "properties": {}}
        answer = await context.session.elicit_form("Which?", schema, related_request_id=context.request_id)
        return text(answer.action)

    app = made("ask", elicit).server.streamable_http_app()

    async def elsewhere(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["query_string"]:
            await app(scope, receive, send)  # which refuses all that comes before `notifications/initialized`
            return
        await send({"type": "http.response.start", "status": 307, "headers": [(b"location", b"?here")]})
        await send({"type": "http.response.body"})

    async def main() -> ToolResult:
        async with serving(elsewhere) as address, mcp.connect(mcp.Http(address, mode="legacy")) as toolset:
            return await Runner(toolset, approve=lambda call, decision, context: allow({})).run("ask")

    assert (await main()).output == "accept"


async def test_leaving_does_not_wait_for_a_server_that_keeps_a_session() -> None:
    app = made("one").server.streamable_http_app()

    async def keeping(scope: Any, receive: Any, send: Any) -> None:
        if scope.get("method") == "DELETE":
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        await app(scope, receive, send)

    loop = asyncio.get_running_loop()
    async with serving(keeping) as address:
        async with mcp.connect(mcp.Http(address, mode="legacy")):
            begin = loop.time()
        assert 1 < loop.time() - begin < 5


@pytest.mark.parametrize("mode", ERAS)
async def test_an_error_with_the_code_of_a_closed_connection_is_what_the_server_says_over_http_too(
    mode: mcp.Mode,
) -> None:
    async def refuse(context: Any, arguments: dict[str, Any]) -> Any:
        raise MCPError(types.CONNECTION_CLOSED, "rate limit reached")

    async def main() -> ToolResult:
        async with http(made("one", refuse).server) as address, mcp.connect(mcp.Http(address, mode=mode)) as toolset:
            return await Runner(toolset).run("one")

    result = await main()
    assert "refused the call: rate limit reached (error -32000)" in str(result.error)
    assert "ended" not in str(result.error) and result.executed is None


SECRET = "blue-horse-7-" + 700 * "x"


@pytest.mark.parametrize("mode", ERAS)
async def test_no_value_of_its_headers_is_shown_of_what_a_server_says(mode: mcp.Mode) -> None:
    async def refuse(context: Any, arguments: dict[str, Any]) -> Any:
        raise MCPError(arguments["code"], f"I do not know {context.request.headers['authorization']}")

    async def main() -> list[ToolResult]:
        async with http(made("one", refuse).server) as address:
            server = mcp.Http(address, headers={"Authorization": f"Bearer {SECRET}"}, mode=mode)
            async with mcp.connect(server) as toolset:
                runner = Runner(toolset)
                return [await runner.run("one", {"code": code}) for code in (-32603, types.CONNECTION_CLOSED)]

    for result in await main():
        assert "I do not know Bearer ***" in str(result.error) or "I do not know ***" in str(result.error)
        assert "blue-horse" not in str(result.error) + result.text


async def test_no_value_of_its_headers_is_shown_of_why_a_server_is_down(caplog: pytest.LogCaptureFixture) -> None:
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            said = f"who is {dict(scope['headers'])[b'x-key'].decode()}?"
            error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32001, "message": said}}
            await send(
                {"type": "http.response.start", "status": 400, "headers": [(b"content-type", b"application/json")]}
            )
            await send({"type": "http.response.body", "body": json.dumps(error).encode()})

    async def main() -> None:
        async with serving(refuse) as address, mcp.connect(mcp.Http(address, headers={"X-Key": SECRET})):
            raise AssertionError("it was refused")

    with (
        caplog.at_level(logging.DEBUG, "ferrule.mcp"),
        pytest.raises(mcp.ServersDownError, match=r"who is \*\*\*\?") as raised,
    ):
        await main()
    assert "blue-horse" not in str(raised.value)
    assert "blue-horse" not in "".join(record.getMessage() for record in caplog.records if record.name == "ferrule.mcp")


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
async def test_what_breaks_the_body_of_an_answer_is_in_no_log_of_the_http_libraries(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    body = f"{SECRET}\r\n"  # where the size of a chunk is expected
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n"

    async def main() -> None:
        async with Wire(f"{head}{body}".encode()) as wire, mcp.connect(mcp.Http(wire.url, headers={"X-Key": SECRET})):
            raise AssertionError("it cannot be read")

    with caplog.at_level(1), pytest.raises(mcp.ServersDownError):
        await main()
    assert "is down" in caplog.text and SECRET not in caplog.text
    assert not HTTP_LOGS_ARE_OFF.get()


async def test_what_the_sdk_logs_of_an_answer_that_is_no_message_is_bounded_and_without_its_headers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = made("one").server.streamable_http_app()

    async def garbled(scope: Any, receive: Any, send: Any) -> None:
        async def send_garbage(message: Any) -> None:
            if b"one {" in message.get("body", b""):
                said = "".join(f"event: {dict(scope['headers'])[b'x-key'].decode()}\ndata: x\n\n" for _ in range(1_000))
                message = {**message, "body": said.encode() + message["body"]}
            await send(message)

        await app(scope, receive, send_garbage)

    async def main() -> ToolResult:
        async with serving(garbled) as address:
            async with mcp.connect(
                mcp.Http(address, headers={"X-Key": "blue-horse-7"}, name="s", mode="legacy")
            ) as toolset:
                return await Runner(toolset).run("s__one")

    with caplog.at_level(logging.INFO):
        assert (await main()).success
    lines = [record.getMessage() for record in caplog.records if "Unknown SSE event" in record.getMessage()]
    assert lines[0] == "s: Unknown SSE event: ***" and len(lines) < 400
    assert "blue-horse" not in caplog.text


NOT_FOUND = b'{"jsonrpc":"2.0","id":%b,"error":{"code":-32001,"message":"Session not found"}}'
ANSWERS = {
    "its id": NOT_FOUND % b"@ID@",
    "its id as a text": NOT_FOUND % b'"@ID@"',
    "its id, and no JSON": NOT_FOUND % b"@ID@,,",
    "its id in a batch": b"[%b]" % NOT_FOUND % b"@ID@",
    "its id in an error that is none": b'{"jsonrpc":"2.0","id":@ID@,"error":"Session not found"}',
    "its id in a result": b'{"jsonrpc":"2.0","id":@ID@,"result":{}}',
    "cut before an id": b'{"jsonrpc":"2.0","error":{"code":-32001,"mess',
}
REFUSALS = {
    "the id null": NOT_FOUND % b"null",
    "another id": NOT_FOUND % b'"server-error"',
    "no id": b'{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"}}',
    "JSON": b'{"error":"Session not found"}',
    "a text": b"Session not found",
    "nothing": b"",
}


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
async def test_a_call_is_sent_again_in_a_new_session_only_if_a_404_is_no_answer_to_it(kind: str) -> None:
    results = {
        "initialize": {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "s", "version": "1"},
        },
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
        method, status, body, headers = message.get("method"), 202 if message else 405, b"", {b"content-type": b""}
        session = dict(scope["headers"]).get(b"mcp-session-id")
        if method == "initialize":
            sessions += 1
            headers[b"mcp-session-id"] = b"%d" % sessions
        if method == "tools/call":
            ran.append(session or b"")
        if method == "tools/call" and session == b"1":
            status, body = 404, refusal.replace(b"@ID@", json.dumps(message["id"]).encode())
            headers[b"content-type"] = kind.encode()
        elif method in results:
            status, body = 200, json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": results[method]}).encode()
            headers[b"content-type"] = b"application/json"
        await send({"type": "http.response.start", "status": status, "headers": [*headers.items()]})
        await send({"type": "http.response.body", "body": body})

    async with serving(app) as address:
        for what, body in {**ANSWERS, **REFUSALS}.items():
            refusal, sessions = body, 0
            ran.clear()
            async with mcp.connect(mcp.Http(address, name="s", mode="legacy")) as toolset:
                first, second = [await Runner(toolset).run("s__pay") for _ in range(2)]
                if what in ANSWERS:
                    assert (first.status, first.executed) == ("failed", None), what
                else:
                    assert first.output == "paid", what
                assert second.output == "paid" and ran == [b"1", b"2", b"2"][: 2 if what in ANSWERS else 3], what
