"""Answers that cannot be parsed: each fails its call at once, and the server goes on answering."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mcp_servers import serving, start_error

from ferrule import Runner, ToolResult, mcp
from ferrule.mcp import _http, _stdio
from ferrule.mcp._log import ServerLog
from ferrule.mcp._stdio import read_messages
from ferrule.mcp.lines import LineBuffer, OpenRequests, parse_line, repair_characters
from waits import BOUND

PROGRAM = [sys.executable, str(Path(__file__).parent / "raw_server.py")]
LOST = "The answer of 's' could not be read. The call may have been executed."
OK = b'{"jsonrpc":"2.0","id":@ID@,"result":{"content":[{"type":"text","text":"there"}]}}'
UNREADABLE = {
    "an error without a code": b'{"jsonrpc":"2.0","id":@ID@,"error":{"message":"x"}}',
    "a result that is null": b'{"jsonrpc":"2.0","id":@ID@,"result":null}',
    "400 levels": b'{"jsonrpc":"2.0","id":@ID@,"result":{"content":' + b"[" * 400 + b"]" * 400 + b"}}",
    "a byte order mark": b"\xef\xbb\xbf" + OK,
    "a batch": b"[" + OK + b"]",
    "two messages on a line": OK + OK,
    "a carriage return in a text": OK.replace(b"there", b"10%\r20%"),
    "cut JSON whose id comes last": b'{"result":{"content":[{"id":99,"te',
    "the id null": OK.replace(b"@ID@", b"null"),
    "an integer of 5,000 digits": OK.replace(b'"there"', b"9" * 5_000),
    "indented": OK.replace(b",", b",\n  ").replace(b"{", b"{\n  "),
    "words that the server chose": (
        b'{"jsonrpc":"2.0","id":@ID@,"error":{"code":-32700,"message":"its answer could not be read. See http://x."}}'
    ),
    "too many values": OK.replace(b'"there"', b"[" + b"1," * 200_000 + b"1]"),
}
READABLE = {
    "half a surrogate pair in bytes": (OK.replace(b"there", b"\xed\xa0\xbd"), "\ufffd"),
    "a whole pair, and a backslash": (
        OK.replace(b"there", rb"\ud83d\ude00 \\ud83d \uDE00"),
        "\U0001f600 \\ud83d \ufffd",
    ),
    "a byte that is not UTF-8": (OK.replace(b"there", b"th\xe9re"), "th\ufffdre"),
    "an id that is a text": (OK.replace(b"@ID@", b'"@ID@"'), "there"),
    "an answer written into its request": (OK.replace(b'"id"', b'"method":"tools/call","params":{},"id"'), "there"),
    "between the codes of a terminal": (b" \x1b]0;title\x07\x1b(B\x1b[2K\x1b[1;32m" + OK + b"\x1b[0m\x1b7 ", "there"),
    "a duplicate": (OK + b"\n" + OK + b"\n" + OK, "there"),
}
NOISE = [
    b"",
    b"d\xe9j\xe0 vu, a log line in cp1252",
    b'{"error":"disk full"}',
    b"<html>",
    b'12:00:01 <<\xe2\x80\xb9 {"jsonrpc":"2.0","id":@ID@,"result":{"content":[]}}',
    b'\x1b[2K 40% [####      ]\x1b[0m{"jsonrpc":"2.0","id":@ID@,"result":null}',
    b'upstream: {"jsonrpc":"2.0","id":@ID@,"result":{"content":[]}}',  # of the server's own client
    b'{"jsonrpc":"2.0","id":9999,"result":{}}',
    b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":9999,"progress":1}}',
    b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":@ID@,"progress":NaN}}',
    b"x" * 300_000,
]
PROGRESS = (
    b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":@ID@,"progress":%s,"total":%s}}'
)
NOISE += [PROGRESS % numbers for numbers in ((b"9" * 400, b"1"), (b"1", b"-" + b"9" * 400), (b"1e999", b"NaN"))]
ECHO = b'{"jsonrpc":"2.0","id":@ID@,"method":"tools/call","params":{"name":"odd","_meta":{"id":99}}}'
NOISE += [ECHO, ECHO[:-1]]
UNREADABLE["a result that is no object, written into its request"] = ECHO[:-1] + b',"result":null}'
UNREADABLE["a cut answer, written into its request"] = ECHO[:-1] + b',"result":{'


def connect(*arguments: str) -> mcp.Servers:
    return mcp.connect(mcp.Stdio(PROGRAM[0], [*PROGRAM[1:], *arguments], name="s", mode="legacy"))


async def call(runner: Runner, data: bytes, times: int = 1) -> ToolResult:
    return await runner.run("s__odd", {"data": base64.b64encode(data).decode(), "times": times})


async def test_an_unreadable_answer_fails_its_call_and_no_other() -> None:
    servers = connect()
    async with servers as toolset:
        runner = Runner(toolset, timeout=BOUND)
        pid = (await runner.run("s__pid")).output
        for what, data in UNREADABLE.items():
            result = await call(runner, data + b"\n")
            assert (result.status, result.executed, result.error) == ("failed", None, LOST), what
            assert servers.status["s"].state == "ready"
        assert (await runner.run("s__pid")).output == pid


async def test_broken_characters_are_replaced_and_noise_is_skipped() -> None:
    async with connect() as toolset:
        runner = Runner(toolset, timeout=BOUND)
        for what, (data, text) in READABLE.items():
            assert (await call(runner, data + b"\n")).output == text, what
        for noise in NOISE:
            assert (await call(runner, noise + b"\n" + OK + b"\n")).output == "there", noise


async def test_a_parse_error_without_an_id_refuses_the_only_open_call() -> None:
    async with connect() as toolset:
        error = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}\n'
        assert "refused the call: Parse error" in str((await call(Runner(toolset, timeout=BOUND), error)).error)
        asked = b'{"jsonrpc":"2.0","id":null,"method":"ping"}\n'  # which nobody can answer
        assert (await call(Runner(toolset, timeout=BOUND), asked + OK + b"\n")).output == "there"


@pytest.mark.parametrize(
    "error",
    [
        '{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"Method not found"}}',
        '{"jsonrpc":"2.0","error":{"code":-32603,"message":"Method not found"}}',
    ],
)
async def test_an_error_for_a_notification_fails_no_request(error: str) -> None:
    async with connect(error) as toolset:
        runner = Runner(toolset, timeout=BOUND)
        assert (await Runner(toolset, timeout=0.1).run("s__hold")).status == "timeout"
        assert [(await runner.run("s__hi")).output for _ in range(3)] == ["hi"] * 3
        lost = await call(runner, b'{"jsonrpc":"2.0","id":null,"result":null}\n')
        assert lost.error == LOST


async def test_an_endless_line_fails_its_call_and_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_stdio, "_LONGEST_MESSAGE", 1_000_000)
    async with connect() as toolset:
        runner = Runner(toolset, timeout=BOUND)
        assert (await call(runner, OK[:-9] + b"x" * 1_000, times=2_000)).error == LOST
        assert (await call(runner, b"the end of that line\n" + OK + b"\n")).output == "there"


async def test_a_program_that_dies_of_server_discover_is_started_without_it() -> None:
    servers = mcp.connect(mcp.Stdio(PROGRAM[0], PROGRAM[1:], name="s"))
    async with servers as toolset:
        assert (await Runner(toolset, timeout=BOUND).run("s__hi")).output == "hi"
        assert servers.status["s"].protocol == "2025-06-18"


async def test_a_start_with_an_unreadable_answer_fails_at_once() -> None:
    code = 'import sys; sys.stdin.readline(); print(\'{"jsonrpc": "2.0", "id": 1}\', flush=True); sys.stdin.read()'
    server = mcp.Stdio(sys.executable, ["-c", code], mode="legacy")
    assert "its answer could not be read" in await start_error(server, start_timeout=1_000)


Answer = tuple[bytes, str, int]
"""A body, its content type and the status."""


@asynccontextmanager
async def server_over_http() -> AsyncIterator[Callable[..., Awaitable[ToolResult]]]:
    """A function that calls the tool of a server, which gives these answers, one to each request of the call."""
    answers: list[Answer] = []
    closed = asyncio.Event()

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
        content_type, stays_open, breaks = "application/json", False, False
        if message.get("method") in results:
            answer = {"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]}
            status, body = 200, json.dumps(answer).encode()
        elif answers and (message.get("method") == "tools/call" or b"last-event-id" in dict(scope["headers"])):
            body, content_type, status = answers.pop(0)
            stays_open, breaks = body.endswith(OPEN), body.endswith(BREAKS)
            body = body.removesuffix(OPEN).removesuffix(BREAKS).replace(b"@ID@", str(message.get("id")).encode())
        else:
            status, body = (202 if message else 405), b""
        headers = [(b"content-type", content_type.encode())]
        if status in LOCATIONS:
            headers.append((b"location", LOCATIONS[status]))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if stays_open or breaks:
            await send({"type": "http.response.body", "body": body, "more_body": True})
            if breaks:
                return
            await closed.wait()
        await send({"type": "http.response.body", "body": b"" if stays_open else body})

    async with serving(app) as address, mcp.connect(mcp.Http(address, name="s", mode="legacy")) as toolset:
        runner = Runner(toolset, timeout=BOUND)

        async def answer_with(*given: Answer) -> ToolResult:
            answers[:] = given
            return await runner.run("s__odd")

        try:
            yield answer_with
        finally:
            closed.set()


LOCATIONS = {302: b"http://x/mcp", 307: b"?again", 308: b"http://[::1"}
INFO = {"name": "odd", "version": "1"}
JSON, EVENTS = "application/json", "text/event-stream; charset=utf-16"
OPEN, BREAKS = b"(and the stream stays open)", b"(and the connection breaks)"
NO_ANSWERS = {
    "another id": OK.replace(b"@ID@", b"99"),
    "its id elsewhere": OK.replace(b"@ID@", b"99").replace(b'"content"', b'"structuredContent":{"id":@ID@},"content"'),
    "an answer cut before its id": b'{"jsonrpc":"2.0",',
}


def event(data: bytes) -> bytes:
    return b"event: message\ndata: " + data.replace(b"\n", b"\ndata: ") + b"\n\n"


async def test_an_unreadable_answer_over_http_fails_its_call_at_once() -> None:
    async with server_over_http() as answer_with:
        for what, data in {**UNREADABLE, **NO_ANSWERS}.items():
            if what == "indented":  # a line alone cannot be
                continue
            for answer in ((data, JSON, 203), (event(data) + OPEN, EVENTS, 200)):
                result = await answer_with(answer)
                assert (result.status, result.executed, result.error) == ("failed", None, LOST), (what, answer[1])
        assert (await answer_with((OK, JSON, 200))).output == "there"


async def test_a_json_error_page_is_not_a_refusal_of_the_server() -> None:
    async with server_over_http() as answer_with:
        result = await answer_with((b'{"error": {"code": 14, "message": "no upstream"}}', JSON, 503))
        assert result.status == "failed" and result.executed is None
        assert "HTTP 503" in str(result.error) and "refused" not in str(result.error)


async def test_over_http_broken_characters_are_replaced_and_noise_is_skipped() -> None:
    async with server_over_http() as answer_with:
        for what, (data, text) in READABLE.items():
            line = data.partition(b"\n")[0]
            assert (await answer_with((line, JSON, 200))).output == text, what
            assert (await answer_with((event(line) + OPEN, EVENTS, 200))).output == text, what
        for noise in [*NOISE, b"x" * 900_000]:
            if b"9999" not in noise or b"method" in noise:  # an answer here can be for one request alone
                result = await answer_with((event(noise) + event(OK) + OPEN, EVENTS, 200))
                assert result.output == "there", noise[:100]


STREAMS = {
    "carriage returns": event(OK).replace(b"\n", b"\r"),
    "a byte order mark": b"\xef\xbb\xbf" + event(OK).removeprefix(b"event: message\n"),
    "comments": b": hi\n\n:\n" + event(OK),
    "another event": b"event: error\ndata: " + OK.replace(b"there", b"no") + b"\n\n" + event(OK),
    "no event": b"data" + b"\n\n" + event(OK),
    "odd fields": b"retry: soon\nretry: " + b"9" * 4_000 + b"\nx: y\nid: a\0b\n" + event(OK),
}


async def test_an_answer_is_found_in_any_stream_of_events() -> None:
    async with server_over_http() as answer_with:
        for what, body in STREAMS.items():
            assert (await answer_with((body + OPEN, EVENTS, 200))).output == "there", what


BROKEN_OFF = [(b"", EVENTS, 200), (event(OK)[:-1], EVENTS, 200)]
NOT_READABLE = [(OK, "text/html", 200), (b"", JSON, 202), (b"", JSON, 204), (OK, "", 200), (b"", JSON, 302)]
NOT_READABLE += [(body, JSON, 308) for body in (b"", *NO_ANSWERS.values())]


async def test_a_large_event_is_read_and_one_over_the_bound_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = OK.replace(b"there", b"x" * 3_000_000)
    note = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"%b"}}' % (b"x" * 3_000)
    async with server_over_http() as answer_with:
        assert (await answer_with((event(large) + OPEN, EVENTS, 200))).output == "x" * 3_000_000
        monkeypatch.setattr(_http, "_MOST_BODY", 2_000)
        for too_large in (large, large.replace(b",", b",\n"), b"{" + large[17:-1] + b',"jsonrpc":"2.0"}'):
            for end in (b"", b"\n\n"):
                result = await answer_with((event(too_large).rstrip() + end + OPEN, EVENTS, 200))
                assert (result.status, result.executed, result.error) == ("failed", None, LOST)
        assert (await answer_with((event(note) + event(OK) + OPEN, EVENTS, 200))).output == "there"


async def test_a_stream_without_an_answer_fails_its_call() -> None:
    async with server_over_http() as answer_with:
        for answers, error in ((BROKEN_OFF, "ended before its answer"), (NOT_READABLE, LOST)):
            for answer in answers:
                result = await answer_with(answer)
                assert (result.status, result.executed) == ("failed", None) and error in str(result.error), answer


async def test_an_answer_may_come_from_elsewhere_on_the_server() -> None:
    async with server_over_http() as answer_with:
        for answer in ((OK, JSON, 200), (event(OK) + OPEN, EVENTS, 200)):
            assert (await answer_with((b"", "", 307), answer)).output == "there"


async def test_a_broken_stream_is_asked_for_again_for_the_same_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_http, "_BETWEEN_STREAMS", 0.0)
    monkeypatch.setattr(_http, "_LONGEST_RETRY", 1)
    priming = b"id: 1\nretry: " + b"9" * 4_000 + b"\ndata:\n\n"
    async with server_over_http() as answer_with:
        other = event(OK.replace(b"@ID@", b"99"))
        lost = await answer_with((priming, EVENTS, 200), (other + OPEN, EVENTS, 200))
        assert (lost.status, lost.error) == ("failed", LOST)
        again = await answer_with((priming, EVENTS, 200), (event(OK.replace(b"@ID@", b"4")) + OPEN, EVENTS, 200))
        assert again.output == "there"
        breaking = priming + BREAKS, EVENTS, 200  # as a proxy breaks a silent stream after a minute
        long = await answer_with(*[breaking] * 6, (event(OK.replace(b"@ID@", b"5")) + OPEN, EVENTS, 200))
        assert long.output == "there"


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

    def on_message(self, message: types.JSONRPCMessage) -> None:
        pass


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


codes = [b"\x1b[2K", b"\x1b[1;32m", b"\x1b]0;a title\x07", b"\x1b]8;;x\x1b\\", b"\x1b(B", b"\x1b7", b"\x1bM"]
unseen = st.lists(st.sampled_from([*codes, b" ", b"\t", b"\r", b"\a", b"\b"]), max_size=4).map(b"".join)
letters = st.characters(codec="ascii", exclude_characters="[{\"'\\", exclude_categories=["C", "Z"])
seen = st.text(letters | st.sampled_from("é‹→"), min_size=1).map(str.encode)


@given(unseen, unseen, seen)
@example(b"\a", b"\r\x1b[2K", b"0")
def test_an_answer_counts_only_if_nothing_before_it_is_seen(before: bytes, after: bytes, text: bytes) -> None:
    answer = b'{"jsonrpc":"2.0","id":7,"result":{}}'
    found = read(before + answer + after + b"\n", opened=["7"])
    assert [(type(one), one.id) for one in found] == [(types.JSONRPCResponse, 7)]
    assert read(before + text + after.replace(b"\r", b"") + answer + b"\n", opened=["7"]) == []
    assert len(read(text + b"\r" + after + answer + b"\n", opened=["7"])) == 1  # a progress bar, drawn over


@given(st.lists(st.binary(max_size=30) | st.sampled_from([OK, b"\n", b'{"jsonrpc":', b'"id":7', b"[{", b'"'])))
def test_no_bytes_end_the_reading(parts: list[bytes]) -> None:
    last = b'\n{"jsonrpc":"2.0","id":8,"result":{}}\n'
    found = read(*parts, last, opened=["7", "8"])
    assert any(isinstance(one, types.JSONRPCResponse) and one.id == 8 for one in found)


@given(st.lists(st.binary(max_size=20) | st.just(b"\n")), st.integers(1, 12))
def test_lines_do_not_depend_on_how_their_bytes_arrive(parts: list[bytes], longest: int) -> None:
    def split(*given: bytes) -> list[bytes]:
        buffer = LineBuffer(longest)
        return [line for part in given for line in buffer.feed(part)]

    whole = b"".join(parts) + b"\n"
    assert split(*parts, b"\n") == split(whole) == [line[:longest] for line in whole.split(b"\n")[:-1]]


@given(st.data())
def test_every_lost_answer_fails_its_call_and_no_other(data: st.DataObject) -> None:
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


def test_an_abandoned_request_fails_no_other() -> None:
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
        parse_line(repair_characters(line))
