"""A long-running program follows its servers: other tools, servers that come, and no call is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.server.subscriptions import ToolsListChanged
from mcp_servers import ERAS, Made, http, made, text

from ferrule import Runner, mcp
from ferrule.mcp import _connection
from waits import BOUND


@pytest.fixture(autouse=True)
def lists_may_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_connection, "_BETWEEN_LISTS", 0.0)


async def tell(server: Made, mode: str, context: Any) -> None:
    if mode == "legacy":
        await context.session.send_tool_list_changed()
    else:
        await server.bus.publish(ToolsListChanged())


@pytest.mark.parametrize("mode", ERAS)
async def test_a_changed_list_is_another_toolset_and_calls_under_way_go_on(mode: str) -> None:

    server, go_on, entered = made("slow"), asyncio.Event(), asyncio.Event()

    async def slow(context: Any, arguments: Any) -> Any:
        entered.set()
        await go_on.wait()
        return text("done")

    async def change(context: Any, arguments: Any) -> Any:
        del server.tools["slow"]
        server.add("new")
        await tell(server, mode, context)
        return text("changed")

    server.add("slow", slow).add("change", change)
    servers = mcp.connect(server.memory(mode))
    async with servers as toolset:
        runner = Runner(toolset)
        running = asyncio.ensure_future(runner.run("slow"))
        await entered.wait()
        changes = servers.changes()
        following = asyncio.ensure_future(anext(changes))
        while server.lists < 2 and mode == "auto":  # it listens by then
            await asyncio.sleep(0)
        assert (await runner.run("change")).success
        toolset = await following
        assert [tool.name for tool in toolset] == ["change", "new"]
        runner = runner.replace(tools=toolset)
        assert (await runner.run("slow")).status == "not_found"
        assert (await runner.run("new")).success
        go_on.set()
        assert (await running).output == "done"
        await changes.aclose()


async def test_a_tool_that_is_as_it_was_is_the_same_tool() -> None:

    server = made("one")
    servers = mcp.connect(server.memory())
    async with servers as toolset:
        server.add("two")
        changed = await anext(servers.changes())
        assert changed.get("one") is toolset.get("one") and "two" in changed


async def test_a_server_that_comes_later_brings_its_tools() -> None:

    late = made("late").server
    async with http(made("first").server) as address:
        port = int(address.rpartition(":")[2].partition("/")[0])
    # nobody listens there now
    servers = mcp.connect(made("there").memory(name="a"), mcp.Http(address, name="b"))
    async with servers as toolset:
        assert [tool.name for tool in toolset] == ["a__there"]
        following = asyncio.ensure_future(anext(servers.changes()))
        while servers.status["b"].retry_in <= 0.5:  # it was tried again by itself, and is to be once more
            await asyncio.sleep(0.01)
        async with http(late, port):
            assert [tool.name for tool in await following] == ["a__there", "b__late"]
            assert servers.status["b"].state == "ready"


async def test_following_ends_when_the_servers_are_left() -> None:
    async def main() -> list[Any]:
        servers = mcp.connect(made().memory())

        async def follow() -> list[Any]:
            return [toolset async for toolset in servers.changes()]

        async with servers:
            following = asyncio.ensure_future(follow())
            await asyncio.sleep(0)
        return await following

    assert (await main()) == []


async def test_a_list_that_never_comes_does_not_end_the_following() -> None:

    server = made("one")

    async def listing(context: Any, params: Any) -> Any:
        if server.lists == 1:
            server.lists += 1
            await asyncio.Event().wait()
        return await server._list(context, params)

    server.server.add_request_handler("tools/list", types.PaginatedRequestParams, listing)

    async def change(context: Any, arguments: Any) -> Any:
        server.add("new")
        await tell(server, "legacy", context)
        await tell(server, "legacy", context)
        return text("changed")

    server.add("change", change)
    servers = mcp.connect(server.memory("legacy"), start_timeout=0.5)
    async with servers as toolset:
        runner = Runner(toolset)
        changes = servers.changes()
        following = asyncio.ensure_future(anext(changes))
        await runner.run("change")
        while server.lists < 2:
            await asyncio.sleep(0)
        await runner.run("change")
        async with asyncio.timeout(BOUND):
            assert "new" in [tool.name for tool in await following]
        await changes.aclose()


@pytest.mark.parametrize("mode", ERAS)
async def test_a_storm_of_changes_is_one_more_list(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_connection, "_BETWEEN_LISTS", 1000.0)

    server = made("one")

    async def change(context: Any, arguments: Any) -> Any:
        for _ in range(20):
            await tell(server, mode, context)
        return text("changed")

    server.add("change", change)
    servers = mcp.connect(server.memory(mode))
    async with servers as toolset:
        following = asyncio.ensure_future(anext(servers.changes()))
        runner = Runner(toolset)
        for number in range(20):
            server.add(f"new{number}")
            assert (await runner.run("change")).success
            await asyncio.sleep(_connection._DEBOUNCE / 10)
        await following
        assert server.lists == 2


async def test_a_list_is_read_again_when_its_time_to_live_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_connection, "_SHORTEST_LIFETIME", 0.01)

    kept, forever, old = made("one"), made("one"), made("one")
    kept.ttl, old.ttl = 1, 1
    given = [kept.memory(name="kept"), forever.memory(name="forever"), old.memory("legacy", name="old")]
    servers = mcp.connect(*given)
    async with servers:
        changes = servers.changes()
        following = asyncio.ensure_future(anext(changes))
        while kept.lists < 5:
            await asyncio.sleep(0.01)
        assert forever.lists == 2 and old.lists == 1  # 2026-07-28: once more when somebody follows
        kept.add("new")  # and nobody is told
        assert "kept__new" in await following
        await changes.aclose()


@pytest.mark.parametrize(("ttl", "seconds"), [(0, None), (1, 5.0), (60_000, 60.0), (10**400, 86_400.0)])
async def test_a_list_is_read_again_neither_at_once_nor_never(ttl: int, seconds: float | None) -> None:
    async def main() -> float | None:
        server = made("one").add("two")
        server.page, server.ttl = 1, ttl
        async with Client(server.server) as client:
            return (await _connection.list_tools(client.session)).lifetime

    assert (await main()) == seconds
