"""MCP servers over HTTP on loopback, in both eras."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from mcp_servers import ERAS, Made, go, http, made, serving, text

from ferrule import Runner, ToolResult
from ferrule.sources import mcp


@pytest.mark.parametrize("mode", ERAS)
def test_calls_go_there_at_once_and_come_back_unmixed(mode: mcp.Mode) -> None:
    async def double(context: Any, arguments: dict[str, Any]) -> Any:
        await asyncio.sleep(0)
        return text(str(2 * arguments["number"]))

    async def main() -> list[Any]:
        async with http(made("double", double).server) as address, mcp.connect(mcp.Http(address, mode=mode)) as toolset:
            runner = Runner(toolset, concurrency=16)
            results = await asyncio.gather(*(runner.run("double", {"number": number}) for number in range(40)))
            return [result.output for result in results]

    assert go(main()) == [str(2 * number) for number in range(40)]


@pytest.mark.parametrize("mode", ERAS)
def test_a_cancellation_reaches_the_server(mode: mcp.Mode) -> None:
    async def main() -> None:
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

    go(main())


@pytest.mark.parametrize("mode", ERAS)
def test_a_server_that_went_away_and_came_back_is_called_again(mode: mcp.Mode) -> None:
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

    there, gone, down, back = go(main())
    assert there.success and back.success
    assert (gone.status, gone.executed) == ("failed", False) and "could not be reached" in str(gone.error)
    assert (down.status, down.executed) == ("failed", False) and "is down: Connect" in str(down.error)


def test_headers_are_sent_and_the_arguments_that_the_schema_names() -> None:
    seen: list[dict[str, str]] = []

    async def look(context: Any, arguments: dict[str, Any]) -> Any:
        seen.append(dict(context.request.headers))
        return text("")

    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}

    async def main() -> None:
        async with http(made("look", look, schema).server) as address:
            async with mcp.connect(mcp.Http(address, headers={"Authorization": "Bearer sk-1"})) as toolset:
                assert (await Runner(toolset).run("look", {"region": "eu"})).success

    go(main())
    assert seen[0]["authorization"] == "Bearer sk-1" and seen[0]["mcp-param-region"] == "eu"
    assert seen[0]["mcp-protocol-version"] == "2026-07-28"


def test_an_elicitation_of_2025_goes_over_the_stream_of_its_call() -> None:
    from ferrule import allow

    async def elicit(context: Any, arguments: dict[str, Any]) -> Any:
        schema = {"type": "object", "properties": {"day": {"type": "integer"}}}
        answer = await context.session.elicit_form("Which day?", schema, related_request_id=context.request_id)
        return text(f"{answer.action} {answer.content}")

    async def main() -> ToolResult:
        server = Made().add("ask", elicit)
        async with http(server.server) as address, mcp.connect(mcp.Http(address, mode="legacy")) as toolset:
            return await Runner(toolset, approve=lambda call, decision, context: allow({"day": 2})).run("ask")

    assert go(main()).output == "accept {'day': 2}"


@pytest.mark.parametrize("mode", ERAS)
def test_an_answer_that_breaks_off_may_have_run_and_ends_no_other_call(mode: mcp.Mode) -> None:
    async def main() -> None:
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
            go_on.set()
            assert (await waiting).output == "done"

    go(main())


def test_a_server_that_wants_to_know_who_calls_says_so() -> None:
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b"who are you?"})

    async def main() -> None:
        async with serving(refuse) as address, mcp.connect(address):
            raise AssertionError("it was refused")

    with pytest.raises(mcp.ServersDownError, match="HTTP 401 Unauthorized"):
        go(main())


def test_an_address_where_nobody_listens_is_down() -> None:
    async def main() -> None:
        async with mcp.connect("http://127.0.0.1:9/mcp"):
            raise AssertionError("nobody is there")

    with pytest.raises(mcp.ServersDownError, match=r"127\.0\.0\.1:9 is down: ConnectError"):
        go(main())


def test_a_null_in_the_arguments_arrives() -> None:
    server = made()

    async def main() -> None:
        async with http(server.server) as address, mcp.connect(address) as toolset:
            await Runner(toolset).run("one", {"nothing": None, "nested": {"nothing": None}})

    go(main())
    assert server.calls[0].arguments == {"nothing": None, "nested": {"nothing": None}}


def test_a_server_that_forgot_the_session_gets_each_call_once_more_in_a_new_one() -> None:
    async def main() -> None:
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

    go(main())


def test_leaving_does_not_wait_for_a_server_that_keeps_a_session() -> None:
    app = made("one").server.streamable_http_app()

    async def keeping(scope: Any, receive: Any, send: Any) -> None:
        if scope.get("method") == "DELETE":
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        await app(scope, receive, send)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with serving(keeping) as address:
            async with mcp.connect(mcp.Http(address, mode="legacy")):
                begin = loop.time()
            assert 1 < loop.time() - begin < 5

    go(main())
