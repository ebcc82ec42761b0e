"""Answers that no parser takes: each fails its call at once, and the server goes on answering."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_servers import go, serving

from ferrule import Runner, ToolResult
from ferrule.mcp_lines import LineBuffer, OpenRequests, parse_line, replace_broken_characters
from ferrule.sources import _mcp_stdio, mcp
from ferrule.sources._mcp_log import ServerLog
from ferrule.sources._mcp_stdio import read_messages
from waits import BOUND

PROGRAM = [sys.executable, str(Path(__file__).parent / "raw_server.py")]
LOST = "The answer of 's' could not be read. The call may have been executed."
OK = b'{"jsonrpc":"2.0","id":@ID@,"result":{"content":[{"type":"text","text":"there"}]}}'
UNREADABLE = {
    "an error without a code": b'{"jsonrpc":"2.0","id":@ID@,"error":{"message":"x"}}',
    "an error that is a text": b'{"jsonrpc":"2.0","id":@ID@,"error":"x"}',
    "no result": b'{"jsonrpc":"2.0","id":@ID@}',
    "a result that is null": b'{"jsonrpc":"2.0","id":@ID@,"result":null}',
    "a result that is a list": b'{"jsonrpc":"2.0","id":@ID@,"result":[]}',
    "400 levels": b'{"jsonrpc":"2.0","id":@ID@,"result":{"content":' + b"[" * 400 + b"]" * 400 + b"}}",
    "a byte order mark": b"\xef\xbb\xbf" + OK,
    "a batch": b"[" + OK + b"]",
    "two messages on a line": OK + OK,
    "cut JSON": OK[:-9],
    "cut JSON whose id comes last": b'{"result":{"content":[{"id":99,"te',
    "the id 3.0": OK.replace(b"@ID@", b"@ID@.0"),
    "the id null": OK.replace(b"@ID@", b"null"),
    "the id true": OK.replace(b"@ID@", b"true"),
    "an id of 5,000 digits": OK.replace(b"@ID@", b"9" * 5_000),
    "an integer of 5,000 digits": OK.replace(b'"there"', b"9" * 5_000),
    "a NUL before it": b"\0" + OK,
    "a NUL behind it": OK + b"\0",
    "no version": b'{"id":@ID@,"result":{"content":[]}}',
    "another version": OK.replace(b"2.0", b"1.0"),
    "UTF-16": OK.decode().encode("utf-16").replace("@ID@".encode("utf-16-le"), b"@ID@"),
    "a batch in a batch": b"[[" + OK + b"]]",
    "indented": OK.replace(b",", b",\n  ").replace(b"{", b"{\n  "),
    "JSON in JSON": json.dumps(OK.decode()).encode(),
    "Python": b"{'jsonrpc': '2.0', 'id': @ID@, 'result': {}}",
    "JavaScript": b"{ jsonrpc: '2.0', id: @ID@, result: {} }",
    "words that the server chose": (
        b'{"jsonrpc":"2.0","id":@ID@,"error":{"code":-32700,"message":"its answer could not be read. See http://x."}}'
    ),
    "a form that is none": b'{"jsonrpc":"2.0","id":@ID@,"result":{"content":[{"type":"http://x"}]}}',
    "too many values": OK.replace(b'"there"', b"[" + b"1," * 200_000 + b"1]"),
}
READABLE = {
    "half a surrogate pair": (OK.replace(b"there", rb"\ud83d"), "\ufffd"),
    "half a surrogate pair in bytes": (OK.replace(b"there", b"\xed\xa0\xbd"), "\ufffd"),
    "a whole pair, and a backslash": (
        OK.replace(b"there", rb"\ud83d\ude00 \\ud83d \uDE00"),
        "\U0001f600 \\ud83d \ufffd",
    ),
    "a byte that is not UTF-8": (OK.replace(b"there", b"th\xe9re"), "th\ufffdre"),
    "an id that is a text": (OK.replace(b"@ID@", b'"@ID@"'), "there"),
    "an id with a zero in front": (OK.replace(b"@ID@", b'"0@ID@"'), "there"),
    "an answer written into its request": (OK.replace(b'"id"', b'"method":"tools/call","params":{},"id"'), "there"),
    "an error that is null": (OK.replace(b'"result"', b'"error":null,"result"'), "there"),
    "a duplicate": (OK + b"\n" + OK + b"\n" + OK, "there"),
}
NOISE = [
    b"",
    b"\r",
    b"\0\0",
    b"d\xe9j\xe0 vu, a log line in cp1252",
    b'{"level":"error","error":"x","id":@ID@}',
    b'{"error":"disk full"}',
    b'{"id":@ID@}',
    b"{'a': 1}",
    b"{",
    b"[1, 2]",
    b"null",
    b"jsonrpc: listening on stdio",
    b"{'jsonrpc': '2.0', 'method': 'notifications/message'}",
    b"<html>",
    b'sent {"jsonrpc":"2.0","id":@ID@,"result":null}',
    b'{"jsonrpc":"2.0","id":9999,"result":{}}',
    b'{"jsonrpc":"2.0","id":9999,"result":null}',
    b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":9999,"progress":1}}',
    b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":@ID@,"progress":NaN}}',
    b'{"jsonrpc":"2.0","method":"notifications/message","params":[]}',
    b"x" * 300_000,
]
TOO_MUCH_PROGRESS = (
    b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":@ID@,"progress":'
    + b"9" * 400
    + b"}}"
)
"""The SDK's reader breaks of that."""


def connect() -> mcp.Servers:
    return mcp.connect(mcp.Stdio(PROGRAM[0], PROGRAM[1:], name="s", mode="legacy"))


async def call(runner: Runner, data: bytes, times: int = 1) -> ToolResult:
    return await runner.run("s__odd", {"data": base64.b64encode(data).decode(), "times": times})


def test_an_answer_that_cannot_be_read_fails_its_call_and_no_other() -> None:
    async def main() -> None:
        servers = connect()
        async with servers as toolset:
            runner = Runner(toolset, timeout=BOUND)
            pid = (await runner.run("s__pid")).output
            for what, data in UNREADABLE.items():
                result = await call(runner, data + b"\n")
                assert (result.status, result.executed, result.error) == ("failed", None, LOST), what
                assert servers.status["s"].state == "ready"
            assert (await runner.run("s__pid")).output == pid

    go(main())


def test_broken_characters_are_replaced_and_noise_is_passed_over() -> None:
    async def main() -> None:
        async with connect() as toolset:
            runner = Runner(toolset, timeout=BOUND)
            for what, (data, text) in READABLE.items():
                assert (await call(runner, data + b"\n")).output == text, what
            for noise in NOISE:
                assert (await call(runner, noise + b"\n" + OK + b"\n")).output == "there", noise

    go(main())


def test_a_server_that_could_not_read_the_request_refuses_the_only_open_call() -> None:
    async def main() -> None:
        async with connect() as toolset:
            error = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}\n'
            assert "refused the call: Parse error" in str((await call(Runner(toolset, timeout=BOUND), error)).error)

    go(main())


def test_an_answer_lost_without_its_id_fails_the_call_that_is_left() -> None:
    async def main() -> None:
        async with connect() as toolset:
            runner = Runner(toolset, timeout=BOUND)
            held = asyncio.ensure_future(runner.run("s__hold"))
            lost = asyncio.ensure_future(call(runner, b'{"jsonrpc":"2.0",\n'))
            await asyncio.sleep(0)
            assert (await runner.run("s__hi")).output == "hi"  # whose server answers the held call as well
            assert (await held).success and (await lost).error == LOST

    go(main())


def test_a_line_without_an_end_fails_its_call_and_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_mcp_stdio, "_LONGEST_MESSAGE", 1_000_000)

    async def main() -> None:
        async with connect() as toolset:
            runner = Runner(toolset, timeout=BOUND)
            assert (await call(runner, OK[:-9] + b"x" * 1_000, times=2_000)).error == LOST
            assert (await call(runner, b"the end of that line\n" + OK + b"\n")).output == "there"

    go(main())


def test_a_reader_that_dies_fails_the_open_calls_and_the_next_call_starts_the_server_again() -> None:
    async def main() -> None:
        servers = connect()
        async with servers as toolset:
            runner = Runner(toolset, timeout=BOUND)
            pid = (await runner.run("s__pid")).output
            held = asyncio.ensure_future(runner.run("s__hold"))
            died = await call(runner, TOO_MUCH_PROGRESS + b"\n")
            assert (died.status, died.executed) == ("failed", None) and "ended before its answer" in str(died.error)
            assert servers.status["s"].state == "down" and (await held).executed is None
            again = await runner.run("s__pid")
            assert again.success and again.output != pid and servers.status["s"].state == "ready"

    go(main())


def test_a_start_whose_answer_cannot_be_read_fails_at_once() -> None:
    code = 'import sys; sys.stdin.readline(); print(\'{"jsonrpc": "2.0", "id": 1}\', flush=True); sys.stdin.read()'

    async def main() -> None:
        async with mcp.connect(mcp.Stdio(sys.executable, ["-c", code], mode="legacy"), start_timeout=1_000):
            raise AssertionError("it did not start")

    with pytest.raises(mcp.ServersDownError, match="its answer could not be read"):
        go(main())


@asynccontextmanager
async def odd_over_http(kind: str) -> AsyncIterator[tuple[str, Callable[[bytes, int], None]]]:
    """A server over HTTP, and what sets the body and the status of its next answer to a call."""
    bodies: list[tuple[bytes, int]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        asked = b""
        while (event := await receive())["type"] == "http.request":
            asked += event.get("body", b"")
            if not event.get("more_body"):
                break
        message = json.loads(asked) if scope["method"] == "POST" else {}
        results = {
            "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": INFO},
            "tools/list": {"tools": [{"name": "odd", "inputSchema": {"type": "object"}}]},
        }
        body, status = json.dumps({"jsonrpc": "2.0", "id": message.get("id"), "result": None}).encode(), 200
        content_type = b"application/json"
        if message.get("method") in results:
            body = body.replace(b"null}", json.dumps(results[message["method"]]).encode() + b"}")
        elif message.get("method") == "tools/call":
            body, status = bodies.pop()
            body = body.replace(b"@ID@", str(message["id"]).encode())
            if kind == "events":
                body, content_type = b"event: message\ndata: " + body + b"\n\n", b"text/event-stream"
            elif kind == "a page":
                content_type = b"text/html"
        else:
            status, body = (202 if message else 405), b""
        headers = [(b"content-type", content_type), *([(b"location", b"http://x/mcp")] if status == 302 else [])]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async with serving(app) as address:
        yield address, lambda body, status: bodies.append((body, status))


INFO = {"name": "odd", "version": "1"}
IN_JSON = [OK.replace(b"there", rb"\ud83d"), UNREADABLE["a result that is null"], UNREADABLE["a batch"]]
NO_ANSWERS = [
    OK.replace(b"@ID@", b"99"),
    OK.replace(b"@ID@", b"99").replace(b'"content"', b'"structuredContent":{"id":@ID@},"content"'),
    b'{"jsonrpc":"2.0","method":"notifications/x","params":{"id":@ID@}}',
    b'{"jsonrpc":"2.0","id":@ID@,"method":"ping"}',
    b" ",
]


@pytest.mark.parametrize("kind", ["json", "events", "a page"])
def test_over_http_nothing_is_said_to_be_refused_that_could_not_be_read(kind: str) -> None:
    async def main() -> None:
        async with odd_over_http(kind) as (address, answer_with):
            async with mcp.connect(mcp.Http(address, name="s", mode="legacy")) as toolset:
                runner = Runner(toolset, timeout=BOUND)
                for body in [*IN_JSON, *(NO_ANSWERS if kind == "json" else ())]:
                    for status in (200, 203) if kind == "json" else (200,):
                        answer_with(body, status)
                        result = await runner.run("s__odd")
                        if kind == "json" and body is IN_JSON[0]:
                            assert (result.status, result.output) == ("ok", "\ufffd")
                        else:
                            assert (result.status, result.executed, result.error) == ("failed", None, LOST), body

    go(main())


@pytest.mark.parametrize("status", [202, 302])
def test_a_request_that_is_only_accepted_or_sent_elsewhere_has_no_readable_answer(status: int) -> None:
    async def main() -> None:
        async with odd_over_http("json") as (address, answer_with):
            async with mcp.connect(mcp.Http(address, name="s", mode="legacy")) as toolset:
                answer_with(b"", status)
                result = await Runner(toolset, timeout=BOUND).run("s__odd")
                assert (result.status, result.executed, result.error) == ("failed", None, LOST)

    go(main())


# -- properties --------------------------------------------------------------------------------------------------------


def request(request_id: str, method: str = "tools/call") -> types.JSONRPCRequest:
    return types.JSONRPCRequest(jsonrpc="2.0", id=request_id, method=method)


def response(request_id: str) -> types.JSONRPCResponse:
    return types.JSONRPCResponse(jsonrpc="2.0", id=request_id, result={})


def failed(messages: Iterable[types.JSONRPCMessage]) -> set[Any]:
    """The requests that these messages fail."""
    return {one.id for one in messages if isinstance(one, types.JSONRPCError)}


class Output:
    """What a program has written."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._parts = iter(parts)

    async def receive(self) -> bytes:
        part = next(self._parts, None)
        if part is None:
            raise anyio.EndOfStream
        return part


def read(*parts: bytes, opened: Iterable[str] = ()) -> list[Any]:
    """The messages of these bytes, while requests are open."""

    async def main() -> list[Any]:
        requests = OpenRequests()
        for request_id in opened:
            requests.on_sent(request(request_id))
        messages = read_messages(Output(parts), requests, ServerLog("s"))
        return [one.message async for one in messages]

    return asyncio.run(main())


texts = st.text(st.sampled_from('\\"ud83dDE0{}[],: id\ud83d\ude00\n\x00é'), max_size=12)
values = st.recursive(texts | st.integers() | st.none(), lambda one: st.lists(one) | st.dictionaries(texts, one))


@given(values, st.permutations(["jsonrpc", "id", "result"]), st.data())
def test_an_answer_cut_anywhere_fails_its_call_and_no_other(value: Any, order: list[str], data: st.DataObject) -> None:
    fields = {"jsonrpc": "2.0", "id": 77, "result": {"value": value}}
    line = json.dumps({key: fields[key] for key in order}).encode()
    cut = line[: data.draw(st.integers(2, len(line) - 1))]
    found = read(cut + b'\n{"jsonrpc":"2.0","id":7,"result":{}}\n', opened=["7", "77"])
    assert [one.error.message for one in found if one.id == 77] == ["its answer could not be read"]
    assert [type(one) for one in found if one.id != 77] == [types.JSONRPCResponse]


@given(values)
def test_broken_characters_are_replaced_as_they_would_be_in_the_values(value: Any) -> None:
    line = json.dumps(value).encode()

    def repaired(one: Any) -> Any:
        if isinstance(one, str):
            return one.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if isinstance(one, dict):
            return {repaired(key): repaired(inner) for key, inner in one.items()}
        return [repaired(inner) for inner in one] if isinstance(one, list) else one

    assert json.loads(replace_broken_characters(line)) == repaired(json.loads(line))


@given(st.lists(st.binary(max_size=30) | st.sampled_from([OK, b"\n", b'{"jsonrpc":', b'"id":7', b"[{", b'"'])))
def test_no_bytes_end_the_reading(parts: list[bytes]) -> None:
    last = b'\n{"jsonrpc":"2.0","id":8,"result":{}}\n'
    found = read(*parts, last, opened=["7", "8"])
    assert any(isinstance(one, types.JSONRPCResponse) and one.id == 8 for one in found)


@given(st.lists(st.binary(max_size=20) | st.just(b"\n")), st.integers(1, 12))
def test_lines_do_not_depend_on_how_their_bytes_arrive_and_are_bounded(parts: list[bytes], longest: int) -> None:
    def split(*given: bytes) -> list[bytes]:
        buffer = LineBuffer(longest)
        return [line for part in given for line in buffer.feed(part)]

    whole = b"".join(parts) + b"\n"
    assert split(*parts, b"\n") == split(whole) == [line[:longest] for line in whole.split(b"\n")[:-1]]


@given(st.data())
def test_every_lost_answer_fails_its_call_and_no_other_once_the_others_are_answered(data: st.DataObject) -> None:
    requests, lost_calls = OpenRequests(), set[Any]()
    ids = [str(number) for number in range(data.draw(st.integers(1, 6)))]
    lost = data.draw(st.sets(st.sampled_from(ids)))
    for request_id in ids:
        requests.on_sent(request(request_id))
    for request_id in data.draw(st.permutations(ids)):
        if request_id in lost:
            lost_calls |= failed(requests.on_lost_answer(data.draw(st.sampled_from([request_id, None]))))
        else:
            lost_calls |= failed(requests.on_answer(response(request_id)))
    assert lost_calls == {int(request_id) for request_id in lost}


def test_a_request_that_was_given_up_is_no_reason_to_fail_another() -> None:
    requests = OpenRequests()
    requests.on_sent(request("1"))
    requests.on_sent(request("2"))
    assert failed(requests.on_lost_answer(None)) == set()
    given_up = types.JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params={"requestId": 1})
    requests.on_sent(given_up)
    assert failed(requests.on_answer(response("3"))) == set() and failed(requests.on_lost_answer("2")) == {2}


def test_a_probe_without_an_answer_does_not_hide_a_lost_one() -> None:
    requests = OpenRequests()
    for number, method in enumerate(("server/discover", "initialize")):
        requests.on_sent(request(str(number), method))
    assert failed(requests.on_lost_answer(None)) == {1}


def test_a_long_line_is_read_in_bounded_time() -> None:
    """Each of these would take minutes if its parts were looked at more than once."""
    for line in (b'{"a":"' + b'\\"' * 2_000_000, b'{"a"' + b" " * 2_000_000, rb"\ud83" * 500_000, rb"\ud83d" * 500_000):
        parse_line(replace_broken_characters(line))
