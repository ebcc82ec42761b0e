"""Over HTTP on the loopback: who may call, what is refused at the door, and what a closed stream does."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

import httpx2
import mcp_types as wire
import pytest
import uvicorn
from connected import ENVELOPE, MODERN, YES, Person, both_eras, text
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.routing import Mount

from ferrule import DefinitionError, Event, Runner, ToolContext, serve, tool
from ferrule.guards import ask_before_changes
from ferrule.mcp.serve._caller import make_identity
from ferrule.tools.background import check_call
from gates import Gate
from waits import BOUND, until
from watched import Watch


@tool(read_only=True)
async def who(context: ToolContext) -> str:
    return json.dumps([context.principal, context.session])


@tool(read_only=True)
async def add(a: int, b: int, context: ToolContext) -> int:
    context.progress(1, 1, "adding")
    return a + b


@tool
async def remove(name: str) -> str:
    return f"removed {name}"


ASKING = {"guards": [ask_before_changes]}


@asynccontextmanager
async def listening(app: Any) -> AsyncIterator[str]:
    """Serve an ASGI app in this loop; the address."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=1))
        server.capture_signals = nullcontext  # type: ignore[method-assign,assignment]
        serving = asyncio.ensure_future(server.serve(sockets=[sock]))
        try:
            while not server.started and not serving.done():
                await asyncio.sleep(0)
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


@asynccontextmanager
async def connected(
    url: str, era: str, token: str = "", person: Person | None = None, path: str = "/mcp", **headers: str
) -> AsyncIterator[Client]:
    """The SDK's client, with a token."""
    if token:
        headers["Authorization"] = f"Bearer {token}"
    async with httpx2.AsyncClient(headers=headers, timeout=BOUND) as http:
        transport = streamable_http_client(url + path, http_client=http)
        async with Client(transport, mode=era, elicitation_callback=person) as client:
            yield client


def tokens(token: str) -> str | None:
    return {"token of ann": "ann", "token of bob": "bob"}.get(token)


def request(method: str = "tools/list", params: Any = None) -> tuple[dict[str, str], dict[str, Any]]:
    """The headers and the body of one request of 2026."""
    headers = {
        "MCP-Protocol-Version": MODERN,
        "Mcp-Method": method,
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
    }
    if params and "name" in params:
        headers["Mcp-Name"] = params["name"]
    return headers, {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**(params or {}), "_meta": ENVELOPE}}


async def post(url: str, headers: dict[str, str], **more: Any) -> httpx2.Response:
    standard, body = request(**more)
    async with httpx2.AsyncClient(timeout=BOUND) as http:
        return await http.post(f"{url}/mcp", headers={**standard, **headers}, json=body)


HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
STANDARD = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


async def begin(http: httpx2.AsyncClient, url: str, token: str = "none") -> str:
    """Open a session of 2025, as a client that does no more than it has to; its id."""
    headers = {**STANDARD, "Authorization": f"Bearer {token}"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
    session: str = (await http.post(f"{url}/mcp", headers=headers, json=body)).headers["mcp-session-id"]
    ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    await http.post(f"{url}/mcp", headers={**headers, "Mcp-Session-Id": session}, json=ready)
    return session


async def in_session(
    http: httpx2.AsyncClient,
    url: str,
    session: str,
    token: str = "none",
    method: str = "tools/list",
    params: Any = None,
) -> httpx2.Response:
    """One request in a session of 2025."""
    headers = {**STANDARD, "Authorization": f"Bearer {token}", "Mcp-Session-Id": session}
    headers["MCP-Protocol-Version"] = "2025-11-25"
    body = {"jsonrpc": "2.0", "id": 2, "method": method, "params": params or {}}
    return await http.post(f"{url}/mcp", headers=headers, json=body)


# -- calls -------------------------------------------------------------------------------------------------------------


@both_eras
async def test_a_call_has_its_progress_and_its_result_also_in_a_mounted_app(era: str) -> None:
    seen: list[str | None] = []

    async def note(done: float, total: float | None, message: str | None) -> None:
        seen.append(message)

    app = serve.mcp(Runner([add]))
    outer = Starlette(routes=[Mount("/tools", app)], lifespan=app.lifespan)
    async with listening(outer) as url, connected(url, era, path="/tools/mcp") as client:
        assert text(await client.call_tool("add", {"a": 1, "b": 2}, progress_callback=note)) == "3"
    assert seen == ["adding"]


async def test_no_client_chooses_its_session() -> None:
    seen: list[str | None] = []

    @tool(read_only=True)
    async def look(context: ToolContext) -> None:
        seen.append(context.session)

    async with listening(serve.mcp(Runner([look]))) as url, httpx2.AsyncClient(timeout=BOUND) as http:
        sessions, call = [await begin(http, url), await begin(http, url)], {"name": "look"}
        answers = [
            await in_session(http, url, session, method="tools/call", params=call)
            for session in (sessions[0], sessions[0], sessions[1], "made-up")
        ]
        answers.append(await post(url, {"Mcp-Session-Id": sessions[0]}, method="tools/call", params=call))
    assert [answer.status_code for answer in answers] == [200, 200, 200, 404, 200]
    one, same, other, of_2026 = seen
    assert one == same != other and of_2026 is None and not {*sessions} & {one, other}


async def test_a_closed_stream_cancels_the_call() -> None:
    gate, watch = Gate(), Watch()
    async with listening(serve.mcp(Runner([gate.tool], observers=[watch]))) as url:
        posting = asyncio.ensure_future(post(url, {}, method="tools/call", params={"name": "wait"}))
        await gate.inside.wait()
        posting.cancel()
        await until(watch.ends)
    assert watch.events[-1].data["result"].status == "cancelled"


# -- who may call ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic token of ann"}],
)
async def test_unknown_tokens_get_401(headers: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Event] = []
    async with listening(serve.mcp(Runner([who], observers=[seen.append]), tokens=tokens)) as url:
        answer = await post(url, headers)
        status, challenge = answer.status_code, answer.headers["www-authenticate"]
    assert status == 401 and challenge.startswith("Bearer ")
    reason = "its token is unknown" if headers else "it gave no token"
    [event] = seen
    assert (event.kind, event.data["reason"], event.data["address"]) == ("client:refused", reason, "127.0.0.1")
    assert f"refused a client at 127.0.0.1: {reason}" in caplog.text
    assert not any(token in caplog.text for token in ("wrong", "token of ann"))


async def test_a_function_of_tokens_lets_in_only_by_a_principal_or_a_context() -> None:
    said = {"empty": "", "number": 1, "true": True, "object": object(), "known": "ann"}

    async def statuses(find: Any, tokens: Any) -> list[int]:
        async with listening(serve.mcp(Runner([who]), tokens=find)) as url:
            return [(await post(url, {"Authorization": f"Bearer {token}"})).status_code for token in tokens]

    assert await statuses(said.get, said) == [401, 401, 401, 401, 200]
    # It is not asked about a token of more than 8,192 characters.
    assert await statuses(lambda token: "ann", ["x" * 8_192, "x" * 8_193]) == [200, 401]


async def test_a_function_of_tokens_that_breaks_lets_nobody_in(caplog: pytest.LogCaptureFixture) -> None:
    def broken(token: str) -> str:
        raise RuntimeError(f"the database is away: {token}\nCRITICAL forged")

    async with listening(serve.mcp(Runner([who]), tokens=broken)) as url:
        assert (await post(url, {"Authorization": "Bearer a-token-of-ann"})).status_code == 401
    assert "the database is away" in caplog.text and "a-token-of-ann" not in caplog.text
    assert "\nCRITICAL" not in caplog.text


async def test_the_logs_of_the_libraries_forge_no_line_and_show_no_session_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    forged = "x\nCRITICAL forged\x1b[2J"

    app = serve.mcp(Runner([who]), tokens=tokens)
    async with listening(app) as url, httpx2.AsyncClient(timeout=BOUND) as http:
        session = await begin(http, url, "token of ann")
        headers = {**STANDARD, "Mcp-Session-Id": session, "Authorization": "Bearer token of bob"}
        await http.delete(f"{url}/mcp", headers=headers)
        headers["Authorization"] = "Bearer token of ann"
        for method in forged, f"notifications/{forged}":
            await http.post(f"{url}/mcp", headers=headers, json={"jsonrpc": "2.0", "method": method})
        await http.delete(f"{url}/mcp", headers=headers)
        await http.post(f"{url}/mcp", headers=headers, json={"jsonrpc": "2.0", "method": "ping", "id": 1})
    written = "\n".join(map(caplog.handler.format, [one for one in caplog.records if one.name.startswith("mcp.")]))
    assert "Terminating session: ***" in written and "for session ***: cred" in written and session not in written
    assert "\\nCRITICAL forged" in written and "\nCRITICAL" not in written and "\x1b" not in written


@both_eras
async def test_the_approver_is_the_principal_whose_token_the_answer_had(era: str) -> None:
    watch = Watch()

    async def find(token: str) -> ToolContext | None:
        return ToolContext(principal=tokens(token), session="chat 7")

    app = serve.mcp(Runner([remove, who], **ASKING, observers=[watch]), tokens=find)
    async with listening(app) as url, connected(url, era, "token of ann", Person(YES)) as client:
        await client.call_tool("remove", {"name": "vase"})
        assert text(await client.call_tool("who")) == '["ann", "chat 7"]'
    results = [event.data["result"] for event in watch.events if event.kind == "tool:post"]
    assert [result.answered_by for result in results] == ["ann", None]


def test_a_fixed_token_is_the_only_one() -> None:
    known = serve.fixed_token("0123456789abcdef", "ann")
    assert known("0123456789abcdef") == "ann"
    assert not any(map(known, ("0123456789abcdeg", "0123456789abcdéf", "")))
    with pytest.raises(DefinitionError, match="at least 16 characters"):
        serve.fixed_token("short")


ALLOWED = ["https://app.example.com", "http://dev.example.com:*"]


@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [
        (ALLOWED, "https://app.example.com", True),
        (ALLOWED, "http://dev.example.com:3000", True),
        (ALLOWED, "http://dev.example.com:evil", False),
        ([], "http://localhost:3000", False),
    ],
)
async def test_a_browser_is_told_of_allowed_origins_alone(origins: list[str], origin: str, allowed: bool) -> None:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,mcp-method"}
    app = serve.mcp(Runner([who]), tokens=tokens, origins=origins)
    async with listening(app) as url, httpx2.AsyncClient(timeout=BOUND) as http:
        before = await http.options(f"{url}/mcp", headers={"Origin": origin, **asked})
        after = await post(url, {"Origin": origin, "Authorization": "Bearer token of ann"})
    found = [answer.headers.get("access-control-allow-origin") for answer in (before, after)]
    assert found == ([origin] * 2 if allowed else [None] * 2)


Sessions = dict[str, str]


async def alive(http: httpx2.AsyncClient, url: str, sessions: Sessions) -> str:
    """Which of them there still are; a name begins with the one whose it is."""
    found = ""
    for name, session in sessions.items():
        answer = await in_session(http, url, session, f"token of {PEOPLE[name[0]]}")
        found += f"{name} " if answer.status_code == 200 else ""
    return found.strip()


PEOPLE = {"a": "ann", "b": "bob"}


@asynccontextmanager
async def little_room(
    monkeypatch: pytest.MonkeyPatch, most: int, each: int
) -> AsyncIterator[tuple[str, httpx2.AsyncClient, Callable[[str], Awaitable[Sessions]]]]:
    """A server with room for few sessions, and what opens some: one for each word, by its first letter's person."""
    monkeypatch.setattr("ferrule.mcp.serve._http._MOST_SESSIONS", most)
    monkeypatch.setattr("ferrule.mcp.serve._http._MOST_SESSIONS_EACH", each)
    async with listening(serve.mcp(Runner([who]), tokens=tokens)) as url, httpx2.AsyncClient(timeout=BOUND) as http:

        async def opened(names: str) -> Sessions:
            return {name: await begin(http, url, f"token of {PEOPLE[name[0]]}") for name in names.split()}

        yield url, http, opened


@pytest.mark.parametrize(
    ("most", "each", "names", "left"),
    [(9, 2, "b1 a1 a2 a3 a4", "b1 a3 a4"), (3, 3, "b1 a1 a2 a3", "a1 a2 a3"), (3, 2, "a1 a2 b1 a3 b2", "b1 a3 b2")],
)
async def test_the_longest_unused_session_gives_way(
    most: int, each: int, names: str, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with little_room(monkeypatch, most, each) as (url, http, opened):
        assert await alive(http, url, await opened(names)) == left


async def test_only_use_and_its_own_end_change_the_room_of_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    async with little_room(monkeypatch, 9, 2) as (url, http, opened):
        by_ann = {**STANDARD, "Authorization": "Bearer token of ann"}
        sessions = await opened("a1 a2")
        await in_session(http, url, sessions["a1"], "token of ann")  # so a2 is the longest unused one
        sessions |= await opened("a3")
        assert await alive(http, url, sessions) == "a1 a3"

        ended = await http.delete(f"{url}/mcp", headers={**by_ann, "Mcp-Session-Id": sessions["a3"]})
        assert ended.status_code == 200
        sessions = {"a1": sessions["a1"], **await opened("a4")}
        assert await alive(http, url, sessions) == "a1 a4"


async def test_a_session_in_use_is_not_ended_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with little_room(monkeypatch, 9, 2) as (url, http, opened), AsyncExitStack() as streams:

        async def listen(session: str) -> None:
            headers = {"Accept": "text/event-stream", "Authorization": "Bearer token of ann"}
            headers["Mcp-Session-Id"] = session
            await streams.enter_async_context(http.stream("GET", f"{url}/mcp", headers=headers))

        sessions = await opened("a1")
        await listen(sessions["a1"])
        sessions |= await opened("a2 a3")  # a1 had its last request before a2
        left = await alive(http, url, sessions)
        await listen(sessions["a3"])
        headers = {**STANDARD, "Authorization": "Bearer token of ann"}
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
        refused = await http.post(f"{url}/mcp", headers=headers, json=hello)
        assert (left, refused.status_code, await alive(http, url, await opened("b1"))) == ("a1 a3", 503, "b1")


BASE: dict[str, Any] = {"principal": "ann", "metadata": {"tenant": 1, "plan": [2]}, "secrets": {"key": "a"}}


@dataclass
class Database:
    name: str


OTHERS: list[dict[str, Any]] = [
    {"principal": "bob"},
    {"metadata": {"tenant": True, "plan": [2]}},
    {"metadata": {1: "a"}},
    {"metadata": {"1": "a"}},
    {"metadata": {"plans": frozenset("a")}},
    {"metadata": {"plans": frozenset("b")}},
    {"secrets": {"key": SecretStr("b")}},
    {"secrets": {"key": SecretStr("c")}},
    {"secrets": {"key": Database("a")}},
    {"secrets": {"key": Database("b")}},
    {"working_directory": "/tmp"},
    {"session": "other"},
    {"deps": 0},
    {"deps": ip_address("10.0.0.1")},
    {"deps": ip_address("10.0.0.2")},
    {"deps": [Database("a"), tokens]},
]


async def test_a_session_belongs_to_the_context_that_opened_it() -> None:
    contexts = [{**BASE, **changed} for changed in ({}, *OTHERS)]
    app = serve.mcp(Runner([who]), tokens=lambda token: ToolContext(**contexts[int(token)]))
    async with listening(app) as url, httpx2.AsyncClient(timeout=BOUND) as http:

        async def status(session: str, token: int) -> int:
            return (await in_session(http, url, session, str(token))).status_code

        first = before = await begin(http, url, "0")
        for token in range(1, len(contexts)):
            own = await begin(http, url, str(token))
            found = [await status(session, token) for session in (first, before, own)]
            assert found == [404, 404, 200], contexts[token]
            before = own


class Connection:
    """It shows where in memory it is, and nothing else."""

    def __hash__(self) -> int:
        return 7


async def test_the_order_of_keys_and_mutable_deps_make_no_other_caller() -> None:
    one = ToolContext(principal="ann", metadata={"a": 1, "b": [2]}, deps=[Database("a"), Connection()])
    same = ToolContext(principal="ann", metadata={"b": [2], "a": 1}, deps=[Database("b"), Connection()])
    async with listening(serve.mcp(Runner([who]), tokens={"one": one, "same": same}.get)) as url:
        async with httpx2.AsyncClient(timeout=BOUND) as http:
            assert (await in_session(http, url, await begin(http, url, "one"), "same")).status_code == 200


def test_no_principal_can_take_the_identity_of_another_by_its_name() -> None:
    ann = make_identity("ann", ToolContext(principal="ann", metadata={"plan": "free"}))
    assert make_identity(ann, ToolContext(principal=ann)) != ann


TENANTS = {tenant: ToolContext(principal="ann", metadata={"tenant": tenant}) for tenant in ("a", "b")}


async def test_a_question_is_answered_only_with_its_own_context() -> None:
    app = serve.mcp(Runner([remove], **ASKING), tokens=TENANTS.get)
    vase: dict[str, Any] = {"name": "vase"}
    async with (
        listening(app) as url,
        connected(url, MODERN, "a", Person(YES)) as asking,
        connected(url, MODERN, "a", Person(YES)) as same,
        connected(url, MODERN, "b", Person(YES)) as other,
    ):
        asked = await asking.session.call_tool("remove", vase, allow_input_required=True)
        assert isinstance(asked, wire.InputRequiredResult)
        answer = {"question": wire.ElicitResult(action="accept", content=YES)}
        given: dict[str, Any] = {"input_responses": answer, "request_state": asked.request_state}
        with pytest.raises(MCPError) as refused:
            await other.session.call_tool("remove", vase, **given)
        assert refused.value.code == wire.INVALID_PARAMS
        assert text(await same.session.call_tool("remove", vase, **given)) == "removed vase"


@both_eras
async def test_a_job_is_found_only_with_its_own_context(era: str) -> None:
    @tool(background=True)
    async def report(context: ToolContext) -> str:
        return f"for {context.metadata['tenant']}"

    nobody = {"x": ToolContext(metadata={"tenant": "x"}), "y": ToolContext(metadata={"tenant": "x"})}
    app = serve.mcp(Runner([report, check_call]), tokens={**TENANTS, **nobody}.get)
    async with listening(app) as url:
        for token, another in ("a", "b"), ("x", "y"):  # two tokens without a principal are two clients too
            async with connected(url, era, token) as own, connected(url, era, another) as other:
                ticket = json.loads(text(await own.call_tool("report")))["ticket"]
                check = {"ticket": ticket, "wait_seconds": BOUND}
                assert f"for {token}" in text(await own.call_tool("check_call", check))
                assert "There is no call" in text(await other.call_tool("check_call", check))


async def test_one_principal_does_not_take_the_room_of_the_others() -> None:
    gate = Gate()
    app = serve.mcp(Runner([gate.tool, who]), tokens=tokens, in_flight_each=1)
    async with (
        listening(app) as url,
        connected(url, MODERN, "token of ann") as ann,
        connected(url, MODERN, "token of bob") as bob,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(ann.call_tool("wait"))
        await gate.inside.wait()
        busy, free = text(await ann.call_tool("who")), text(await bob.call_tool("who"))
        gate.open.set()
    assert busy.startswith("Too many calls are under way") and free == '["bob", null]'


# -- at the door -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://localhost:3000"}, 200),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:1.evil.example"}, 403),
        ({"Host": "tools.example.com"}, 200),
        ({"Host": "evil.example.com"}, 421),
        ({"Host": "localhost:1@evil"}, 421),
        ({"Content-Type": "text/plain"}, 400),
    ],
)
async def test_a_request_from_elsewhere_is_refused(headers: dict[str, str], status: int) -> None:
    for hosts, origins in (("tools.example.com", "https://app.example.com"), (["tools.example.com"], [*ALLOWED])):
        async with listening(serve.mcp(Runner([add]), hosts=hosts, origins=origins)) as url:
            assert (await post(url, headers)).status_code == status


@pytest.mark.parametrize(
    ("more", "wrong"),
    [
        ({"_meta": {**ENVELOPE, "baggage": [1]}}, "texts"),
        ({"_meta": {**ENVELOPE, "traceparent": None}}, "texts"),
        ({"inputResponses": {str(number): {"action": "decline"} for number in range(101)}}, "at most 100"),
    ],
)
async def test_a_request_that_the_sdk_would_break_on_is_refused(
    more: dict[str, Any], wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    headers, body = request("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}})
    body["params"] |= more
    async with listening(serve.mcp(Runner([add]))) as url, httpx2.AsyncClient() as http:
        note = {"jsonrpc": "2.0", "method": "notifications/initialized", "params": more}
        session = {"Mcp-Session-Id": await begin(http, url), "MCP-Protocol-Version": "2025-11-25"}
        assert (await http.post(f"{url}/mcp", headers={**STANDARD, **session}, json=note)).status_code == 202
        answer = await http.post(f"{url}/mcp", headers=headers, json=body)
        status, error = answer.status_code, answer.json()["error"]
    assert (status, error["code"]) == (400, wire.INVALID_PARAMS) and wrong in error["message"]
    assert [record for record in caplog.records if record.exc_info] == []


@both_eras
async def test_a_body_that_is_too_large_is_refused(era: str) -> None:
    headers, body = request("tools/call", {"name": "add", "arguments": {"a": "x" * 2_000}})
    if era != MODERN:
        del headers["MCP-Protocol-Version"]
    async with listening(serve.mcp(Runner([add]), max_body=1_000)) as url, httpx2.AsyncClient() as http:
        assert (await http.post(f"{url}/mcp", headers=headers, json=body)).status_code == 413


@both_eras
async def test_a_request_has_a_text_or_an_integer_for_its_id(era: str) -> None:
    headers, body = request()
    async with listening(serve.mcp(Runner([add]))) as url, httpx2.AsyncClient() as http:
        if era != MODERN:
            headers = {**STANDARD, "Mcp-Session-Id": await begin(http, url)}
            note = {"jsonrpc": "2.0", "id": None, "method": "notifications/initialized"}
            assert (await http.post(f"{url}/mcp", headers=headers, json=note)).status_code == 202
        for odd in (None, 3.0, True, []):
            answer = await http.post(f"{url}/mcp", headers=headers, json=body | {"id": odd})
            assert (answer.status_code, answer.json()["id"]) == (400, None)
            assert answer.json()["error"]["code"] == wire.INVALID_REQUEST
