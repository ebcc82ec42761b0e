"""What a hostile server gets into errors, the state of its connection and the log: nothing secret, nothing hidden."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.exceptions import MCPError
from mcp_servers import http, made, respond, serving, start_error
from openapi_wire import Wire, answer

from ferrule import Event, Runner, mcp
from ferrule.mcp._log import ServerLog

SECRET = "blue-horse-7-" + 300 * "x" + "-\"'-end"
"""A value of a header; a part of it is as telling as the whole."""
SAID = f"\u202e{SECRET[:4]}\u200b{SECRET[4:]}\ufe0f\x1b[8m"
"""The same, as a server says it that wants nobody to find it."""
Craft = Callable[[str], Any]
ENDED = (
    "the connection to s ended before its answer. "
    "The call may have been executed all the same: its effect may have happened."
)


def result(**content: Any) -> Any:
    return {"result": {"resultType": "complete", "content": [], **content}}


def error(code: int, message: str, data: Any = None) -> Any:
    return {"error": {"code": code, "message": message, "data": data}}


ANSWERS: dict[str, Craft] = {
    "the text of an error": lambda said: error(-32603, said),
    "a key of a block": lambda said: result(content=[{"type": "text", said: 5}]),
    "a key of the output": lambda said: result(structuredContent={"list": [{said: said}]}),
    "an output that does not fit": lambda said: result(structuredContent={"list": said}),
    "a picture that is none": lambda said: result(content=[{"type": "image", "data": said, "mimeType": said}]),
    "the type of the result": lambda said: {"result": {"resultType": said, "content": []}},
}
LIST = {"type": "object", "properties": {"list": {"type": "array", "items": {"type": "object", "maxProperties": 0}}}}


def crafting(crafts: list[Craft]) -> Any:
    """A server that makes the answer to each call by the first of `crafts`, from a header of the request."""
    app = made("one", output_schema=LIST).app(json_response=True)

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers", ()))
        if headers.get(b"mcp-method") != b"tools/call":
            await app(scope, receive, send)
            return
        assert headers[b"x-key"].decode() == SECRET
        body = json.loads((await receive())["body"])
        answer = {"jsonrpc": "2.0", "id": body["id"], **crafts[0](SAID)}
        await respond(send, 200, json.dumps(answer).encode(), content_type="application/json")

    return answer


def assert_clean(*seen: str) -> None:
    for text in seen:
        assert "blue-horse" not in text and "xxx" not in text, text
        assert not set(text) & set("\u202e\u200b\ufe0f\x1b"), ascii(text)


def own_logs(caplog: pytest.LogCaptureFixture) -> str:
    """What Ferrule has logged."""
    return "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("ferrule"))


async def test_no_secret_that_a_server_got_is_in_a_result_an_event_or_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events: list[Event] = []
    current: list[Craft] = []
    with caplog.at_level(logging.DEBUG, "ferrule"):
        async with serving(crafting(current)) as address:
            servers = mcp.connect(mcp.Http(address, headers={"X-Key": SECRET}, name="s"))
            async with servers as toolset:
                runner = Runner(toolset, observers=[events.append])
                for what, craft in ANSWERS.items():
                    current[:] = [craft]
                    result = await runner.run("s__one")
                    assert result.error, what
                    assert_clean(str(result.error), result.text, str(result.record()), str(servers.status))
    assert_clean(own_logs(caplog), *(str(dict(event.data)) for event in events))


@pytest.mark.parametrize("said", ["Connection closed", "Connection closed. See http://x.", "SSE stream http://x"])
async def test_a_server_that_speaks_like_the_sdk_chooses_no_words_for_the_model(said: str) -> None:
    async with serving(crafting([lambda _: error(-32000, said)])) as address:
        servers = mcp.connect(mcp.Http(address, headers={"X-Key": SECRET}, name="s"))
        async with servers as toolset:
            assert (await Runner(toolset).run("s__one")).error == ENDED
            assert servers.status["s"].state == "ready"


async def test_no_secret_is_in_the_status_the_progress_or_the_left_out_tools(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events: list[Event] = []

    async def work(context: Any, arguments: dict[str, Any]) -> Any:
        await context.session.report_progress(1, 2, message=SAID)
        return []

    server = made("one", work).add(SAID, title=SAID)
    server.add("two", schema={"type": "object", "properties": {SAID: {"$ref": f"http://x/{SECRET}"}}})
    server.add("three", schema={"type": "object", "$schema": f"http://{SECRET}"})
    server.server.name, server.server.version, server.server.instructions = "s", SAID, SAID
    with caplog.at_level(logging.DEBUG, "ferrule"):
        async with serving(server.app()) as address:
            servers = mcp.connect(mcp.Http(address, headers={"X-Key": SECRET}, name="s"))
            async with servers as toolset:
                assert [tool.name for tool in toolset] == ["s__one"]
                await Runner(toolset, observers=[events.append]).run("s__one")
                assert len(servers.left_out) == 3
                assert_clean(str(servers.status), servers.status["s"].instructions)
                assert_clean(*(f"{one} {one.tool} {one.reason}" for one in servers.left_out))
    assert "tool:progress" in {event.kind for event in events}
    assert_clean(own_logs(caplog), *(str(dict(event.data)) for event in events))


TOKEN = "7f3k-blue-horse-9x"


@pytest.mark.parametrize("place", ["ann:{}@127.0.0.1/mcp", "127.0.0.1/mcp?api_key={}", "127.0.0.1/s/{}7c1d/mcp?mode=a"])
async def test_no_secret_of_an_address_is_in_an_error(place: str) -> None:
    body = {"jsonrpc": "2.0", "id": None, **error(-32603, f"{TOKEN}7c1d may not; read-only, mcp")}
    refusal = answer("401 Unauthorized", json.dumps(body).encode(), content_type="application/json")
    async with Wire(refusal) as wire:
        own = place.format(TOKEN).replace("127.0.0.1", f"127.0.0.1:{wire.port}")
        why = await start_error(mcp.Http(f"http://{own}"))
    assert "read-only, mcp" in why
    assert_clean(why)


BODY = json.dumps({"jsonrpc": "2.0", "id": None, **error(-32001, f"who is {SECRET}?")}).encode()


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (answer("200 OK", content_type=SECRET), ""),
        (answer("307 Moved", location=f"http://{SECRET}/"), ""),
        (answer("400 Bad Request", BODY, content_type="application/json"), "who is ***?"),
    ],
    ids=["type", "location", "error"],
)
async def test_no_secret_that_a_server_got_is_in_why_it_is_down(
    refusal: bytes, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "ferrule"):
        async with Wire(refusal) as wire:
            why = await start_error(mcp.Http(wire.url, headers={"X-Key": SECRET}))
    assert said in why
    assert_clean(why, own_logs(caplog))


@pytest.mark.large
@given(st.text(min_size=16, max_size=60), st.text(max_size=40), st.text(max_size=40), st.integers(1, 200))
def test_a_secret_is_hidden_wherever_it_is_and_wherever_it_is_cut(
    secret: str, before: str, after: str, most: int
) -> None:
    said = ServerLog("s", [secret])
    for text in (before + secret + after, before + repr(secret) + after, (before + secret)[: len(before) + most]):
        shown = said.clean(text, 1000)
        assert secret not in shown


KEY = "9x/Blue+Horse=7"


@pytest.mark.parametrize(
    "said",
    [
        f"Authorization: Basic {base64.b64encode(f'ann@example.com:{KEY}'.encode()).decode()}",
        f"GET /v1?key={quote(KEY, safe='')}",
    ],
    ids=["base64", "URL"],
)
def test_a_secret_in_another_spelling_is_hidden(said: str) -> None:
    for secret in (KEY, f"Bearer {KEY}"):
        shown = ServerLog("s", [secret]).clean(f"before {said} after")
        assert "**********" in shown and shown.startswith("before ") and shown.endswith(" after")
        assert said not in shown


async def test_the_signature_of_a_request_is_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    class Signed(httpx2.Auth):
        def auth_flow(self, request: Any) -> Any:
            request.headers["X-Signature"] = "green-cow-9-very-long"
            yield request

    async def refuse(context: Any, arguments: dict[str, Any]) -> Any:
        raise MCPError(-32603, context.request.headers["x-signature"])

    async with http(made("one", refuse)) as address:
        async with mcp.connect(mcp.Http(address, auth=Signed(), name="s")) as toolset:
            found = await Runner(toolset).run("s__one")
            assert "***" in str(found.error) and "green-cow" not in str(found.error)
    assert "green-cow" not in own_logs(caplog)


async def test_a_bound_value_that_a_server_repeats_is_not_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def refuse(context: Any, arguments: dict[str, Any]) -> Any:
        raise MCPError(-32000, f"Connection closed: {arguments}")

    schema = {"type": "object", "properties": {"account": {"type": "string"}, "text": {"type": "string"}}}
    with caplog.at_level(logging.INFO, "ferrule"):
        async with mcp.connect(made("one", refuse, schema).memory(name="s")) as toolset:
            found = await Runner(toolset.bind(account="green-cow-9-very-long")).run("s__one", {"text": "shown"})
            assert found.error == ENDED
    assert "shown" in own_logs(caplog) and "***" in own_logs(caplog) and "green-cow" not in own_logs(caplog)
