"""One token for each user: a call has the token of its context, and no other request has one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from mcp_servers import Made, made, serving, text

from ferrule import Runner, ToolContext, ToolResult, mcp

USERS = [f"user-{number}" for number in range(20)]
Seen = list[tuple[str, str | None]]


def recording(server: Made, seen: Seen) -> Any:
    """The server, which records the method and the token of each request."""
    app = server.app()

    async def record_requests(scope: Any, receive: Any, send: Any) -> None:
        headers = {key.decode(): value.decode() for key, value in scope.get("headers", ())}
        if scope["type"] == "http":
            seen.append((headers.get("mcp-method", scope["method"]), headers.get("authorization")))
        await app(scope, receive, send)

    return record_requests


def who() -> Made:
    async def answer(context: Any, arguments: dict[str, Any]) -> Any:
        await context.session.report_progress(1, 2)
        return text(context.request.headers.get("authorization", "nobody"))

    return made("who", answer)


def context_of(user: str) -> ToolContext:
    return ToolContext(principal=user, secrets={"tickets": f"token-of-{user}"})


async def by_secret(context: ToolContext) -> str:
    await asyncio.sleep(0)
    return str(context.secrets["tickets"])


async def call_as(server: Made, *users: str, token: Any = by_secret, **options: Any) -> tuple[list[ToolResult], Seen]:
    seen: Seen = []
    async with serving(recording(server, seen)) as address:
        async with mcp.connect(mcp.Http(address, auth=mcp.Bearer(token), **options)) as toolset:
            runner = Runner(toolset)
            return await asyncio.gather(*(runner.run("who", context=context_of(user)) for user in users)), seen


@pytest.mark.parametrize("token", [by_secret, lambda context: context.secrets["tickets"]], ids=["async", "plain"])
async def test_each_call_has_the_token_of_its_own_user_and_nothing_else_does(token: Any) -> None:
    results, seen = await call_as(who(), *USERS, token=token)
    assert [result.output for result in results] == [f"Bearer token-of-{user}" for user in USERS]
    assert {token for method, token in seen if method != "tools/call"} == {None}


def break_down(context: ToolContext) -> str:
    raise KeyError("token-of-somebody")


@pytest.mark.parametrize(
    "token", [break_down, lambda context: None, lambda context: "", lambda context: "a\r\nX: y", lambda context: 5]
)
async def test_without_a_token_nothing_is_sent(token: Any) -> None:
    [result], seen = await call_as(who(), "ann", token=token, headers={"Authorization": "Bearer of-the-program"})
    assert (result.status, result.executed) == ("failed", False) and "no token for this call" in str(result.error)
    assert "token-of-somebody" not in str(result.error) and "tools/call" not in [method for method, _ in seen]


async def test_no_two_users_share_a_session() -> None:
    server = who()
    results, _ = await call_as(server, "ann", "bob", mode="legacy")
    assert [(result.status, result.executed) for result in results] == [("failed", False)] * 2
    assert "one session for the whole connection" in str(results[0].error) and server.calls == []
