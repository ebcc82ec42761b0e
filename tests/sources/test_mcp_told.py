"""What a hostile server gets into errors, the state of its connection and the log: nothing secret, nothing hidden."""

from __future__ import annotations

import asyncio
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
from mcp_servers import made, serving

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
    "the text of a closed connection": lambda said: error(-32000, f"Connection closed {said}"),
    "an error that is no error": lambda said: {"error": {said: said}},
    "a key of a block": lambda said: result(content=[{"type": "text", said: 5}]),
    "the type of a block": lambda said: result(content=[{"type": said, "text": said}]),
    "a key of the output": lambda said: result(structuredContent={"list": [{said: said}]}),
    "an output that does not fit": lambda said: result(structuredContent={"list": said}),
    "a picture that is none": lambda said: result(content=[{"type": "image", "data": said, "mimeType": said}]),
    "the type of the result": lambda said: {"result": {"resultType": said, "content": []}},
    "what it wants to know": lambda said: {
        "result": {"resultType": "input_required", "inputRequests": {said: {"method": said, "params": {said: said}}}}
    },
    "a question that nobody may see": lambda said: {
        "result": {
            "resultType": "input_required",
            "inputRequests": {
                f"{key}\u202e{said}": {
                    "method": "elicitation/create",
                    "params": {
                        "message": "?",
                        "requestedSchema": {"type": "object", "properties": {said: {"a": said}}},
                    },
                }
                for key in "ab"
            },
        }
    },
    "no message": lambda said: {said: said},
}
LIST = {"type": "object", "properties": {"list": {"type": "array", "items": {"type": "object", "maxProperties": 0}}}}


def crafting(craft: Craft) -> Any:
    """A server whose answers to calls are made by `craft`, of a header that it got."""
    app = made("one", output_schema=LIST).server.streamable_http_app(json_response=True)

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers", ()))
        if headers.get(b"mcp-method") != b"tools/call":
            await app(scope, receive, send)
            return
        assert headers[b"x-key"].decode() == SECRET
        body = json.loads((await receive())["body"])
        answer = {"jsonrpc": "2.0", "id": body["id"], **craft(SAID)}
        kind = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": kind})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    return answer


def assert_clean(*seen: str) -> None:
    for text in seen:
        assert "blue-horse" not in text and "xxx" not in text, text
        assert not set(text) & set("\u202e\u200b\ufe0f\x1b"), ascii(text)


@pytest.mark.parametrize("craft", ANSWERS.values(), ids=list(ANSWERS))
async def test_nothing_that_a_server_got_is_in_what_its_call_comes_to(
    craft: Craft, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[Event] = []

    async def main() -> None:
        async with serving(crafting(craft)) as address:
            server = mcp.Http(address, headers={"X-Key": SECRET}, name="s")
            servers = mcp.connect(server)
            async with servers as toolset:
                found = await Runner(toolset, observers=[events.append]).run("s__one")
                assert found.error, found.output
                assert_clean(str(found.error), found.text, str(found.record()), str(servers.status))
                assert_clean(*(str(dict(event.data)) for event in events))

    with caplog.at_level(logging.DEBUG, "ferrule"):
        await main()
    assert_clean(*(record.getMessage() for record in caplog.records if record.name.startswith("ferrule")))


@pytest.mark.parametrize("said", ["Connection closed", "Connection closed. See http://x.", "SSE stream http://x"])
async def test_a_server_that_speaks_as_the_sdk_does_of_an_end_chooses_no_words_for_the_model(said: str) -> None:

    async with serving(crafting(lambda _: error(-32000, said))) as address:
        servers = mcp.connect(mcp.Http(address, headers={"X-Key": SECRET}, name="s"))
        async with servers as toolset:
            assert (await Runner(toolset).run("s__one")).error == ENDED
            assert servers.status["s"].state == "ready"


async def test_nothing_that_a_server_got_is_in_what_it_is_called_in_its_progress_and_in_what_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events: list[Event] = []

    async def work(context: Any, arguments: dict[str, Any]) -> Any:
        await context.session.report_progress(1, 2, message=SAID)
        return []

    made_of = made("one", work).add(SAID, title=SAID)
    made_of.add("two", schema={"type": "object", "properties": {SAID: {"$ref": f"http://x/{SECRET}"}}})
    made_of.add("three", schema={"type": "object", "$schema": f"http://{SECRET}"})
    made_of.server.name, made_of.server.version, made_of.server.instructions = "s", SAID, SAID

    async def main() -> None:
        async with serving(made_of.server.streamable_http_app()) as address:
            servers = mcp.connect(mcp.Http(address, headers={"X-Key": SECRET}, name="s"))
            async with servers as toolset:
                assert [tool.name for tool in toolset] == ["s__one"]
                await Runner(toolset, observers=[events.append]).run("s__one")
                assert len(servers.left_out) == 3
                assert_clean(str(servers.status), servers.status["s"].instructions)
                assert_clean(*(f"{one} {one.tool} {one.reason}" for one in servers.left_out))
                assert_clean(*(str(dict(event.data)) for event in events))
                assert "tool:progress" in {event.kind for event in events}

    with caplog.at_level(logging.DEBUG, "ferrule"):
        await main()
    assert_clean(*(record.getMessage() for record in caplog.records if record.name.startswith("ferrule")))


def test_the_token_of_a_user_who_calls_again_and_again_stays_hidden() -> None:
    log = ServerLog("s")
    for number in range(1_000):
        log.hide(f"Bearer of-user-{number}-blue-horse")
        log.hide("Bearer of-ann-blue-horse")
    assert_clean(log.clean("of-ann-blue-horse"), log.clean("of-user-900-blue-horse"))


TOKEN = "7f3k-blue-horse-9x"


@pytest.mark.parametrize(
    "place",
    ["http://ann:{}@127.0.0.1/mcp", "http://127.0.0.1/mcp?api_key={}", "http://127.0.0.1/s/{}7c1d/mcp?mode=read-only"],
)
async def test_what_is_secret_in_an_address_is_in_no_error(place: str) -> None:
    address = mcp.Http(place.format(TOKEN))

    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = json.dumps({"jsonrpc": "2.0", "id": None, **error(-32603, f"{TOKEN}7c1d may not; read-only, mcp")})
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": body.encode()})

    async def main() -> None:
        async with serving(refuse) as at:
            own = address.url.replace("127.0.0.1", at.split("/")[2])
            async with mcp.connect(mcp.Http(own)):
                raise AssertionError("it answers no request")

    with pytest.raises(mcp.ServersDownError, match="read-only, mcp") as raised:
        await main()
    assert_clean(str(raised.value))


@pytest.mark.parametrize("head", ["503 {}", "200 OK\r\ncontent-type: {}", "307 Moved\r\nlocation: http://{}/"])
async def test_nothing_that_a_server_got_is_in_why_it_is_down(head: str, caplog: pytest.LogCaptureFixture) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline() not in (b"", b"\r\n"):
            pass
        writer.write(f"HTTP/1.1 {head.format(SECRET)}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            async with mcp.connect(mcp.Http(f"http://127.0.0.1:{port}/mcp", headers={"X-Key": SECRET})):
                raise AssertionError("it gave no answer")

    with caplog.at_level(logging.DEBUG, "ferrule"), pytest.raises(mcp.ServersDownError) as raised:
        await main()
    assert_clean(str(raised.value))
    assert_clean(*(record.getMessage() for record in caplog.records if record.name.startswith("ferrule")))


@given(st.text(min_size=16, max_size=60), st.text(max_size=40), st.text(max_size=40), st.integers(1, 200))
def test_a_secret_is_found_wherever_it_stands_and_whatever_was_cut_off(
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
        KEY.encode().hex(),
        json.dumps(KEY).replace("/", "\\/"),
    ],
    ids=["base64", "URL", "hex", "JSON of PHP"],
)
def test_a_secret_that_a_server_writes_otherwise_is_stars(said: str) -> None:
    for secret in (KEY, f"Bearer {KEY}"):
        shown = ServerLog("s", [secret]).clean(f"before {said} after")
        assert "**********" in shown and shown.startswith("before ") and shown.endswith(" after")
        assert said not in shown


async def test_what_signs_a_request_is_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    class Signed(httpx2.Auth):
        def auth_flow(self, request: Any) -> Any:
            request.headers["X-Signature"] = "green-cow-9-very-long"
            yield request

    async def refuse(context: Any, arguments: dict[str, Any]) -> Any:
        raise MCPError(-32603, context.request.headers["x-signature"])

    async def main() -> None:
        async with serving(made("one", refuse).server.streamable_http_app()) as address:
            async with mcp.connect(mcp.Http(address, auth=Signed(), name="s")) as toolset:
                found = await Runner(toolset).run("s__one")
                assert "***" in str(found.error) and "green-cow" not in str(found.error)

    await main()
    assert "green-cow" not in "".join(record.getMessage() for record in caplog.records if "ferrule" in record.name)


async def test_a_bound_value_that_a_server_repeats_is_not_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def refuse(context: Any, arguments: dict[str, Any]) -> Any:
        raise MCPError(-32000, f"Connection closed: {arguments}")

    schema = {"type": "object", "properties": {"account": {"type": "string"}, "text": {"type": "string"}}}

    async def main() -> None:
        async with mcp.connect(made("one", refuse, schema).memory(name="s")) as toolset:
            found = await Runner(toolset.bind(account="green-cow-9-very-long")).run("s__one", {"text": "shown"})
            assert found.error == ENDED

    with caplog.at_level(logging.INFO, "ferrule"):
        await main()
    written = "".join(record.getMessage() for record in caplog.records if "ferrule" in record.name)
    assert "shown" in written and "***" in written and "green-cow" not in written
