"""A model API on loopback: it checks every request as the API would, and answers turn by turn in the API's own form."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from tests.providers.apis import ALL

from waits import BOUND


@dataclass(frozen=True)
class Asked:
    """A call that the model makes; one of a custom tool has a text under `input` and nothing else."""

    id: str
    name: str
    arguments: dict[str, Any]
    custom: bool = False


@dataclass(frozen=True)
class Turn:
    """What the model says in one turn."""

    text: str = ""
    calls: Sequence[Asked] = ()


@dataclass(frozen=True)
class Request:
    """What came."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What goes back, chunk by chunk; `broken` leaves it without its end, as a lost connection does, and `held` waits
    before that until the client has gone."""

    status: int
    kind: str
    chunks: Sequence[bytes]
    headers: Mapping[str, str] = field(default_factory=dict)
    broken: bool = False
    held: bool = False


class Refused(Exception):
    """The API does not take the request; the text says which rule it breaks."""


class Api:
    """One API: what it takes, and how it says a turn.

    Args:
        turns: What the model says, request by request.
        busy: How many requests are turned away with 429 first.
        early: Whether a stream ends before its own end event: `"quietly"`, with the connection `"broken"`, with an
            `"error"` that the API reports in it, or not before the client has gone, `"held"`.
        fault: What every request is answered with instead.
    """

    provider: ClassVar[str]
    """The name in `ALL` of the provider whose responses it writes."""
    path: ClassVar[str]
    """What a request's path ends with; of a streamed one, where that is another path, too."""
    key: ClassVar[tuple[str, str]]
    """The header that says who asks, and what it begins with."""
    stream_kind: ClassVar[str] = "text/event-stream"
    ends: ClassVar[int] = 1
    """How many of the last events are the end of a stream."""
    done: ClassVar[Sequence[bytes]] = ()
    """What follows the last event of a stream."""

    def __init__(self, turns: Sequence[Turn], *, busy: int = 0, early: str = "", fault: Answer | None = None) -> None:
        self.turns = list(turns)
        self.busy = busy
        self.early = early
        self.fault = fault
        self.requests: list[Request] = []
        self.refusals: list[str] = []
        self.answered = 0
        self.held = threading.Event()
        """Set when all that comes before the end of a stream that is held has been sent."""
        self.left = threading.Event()
        """Set when a client has gone before the end of such a stream."""

    def answer(self, request: Request) -> Answer:
        """The answer to one request."""
        self.requests.append(request)
        if self.fault is not None:
            return self.fault
        if self.busy:
            self.busy -= 1
            return self.error(429, "too many requests")
        try:
            self._ask_who(request)
            self.check(request)
        except Refused as refused:
            self.refusals.append(str(refused))
            return self.error(400, str(refused))
        turn, number = self.turns[self.answered], self.answered
        self.answered += 1
        if not self.is_streamed(request):
            return Answer(200, "application/json", [json.dumps(self.whole(turn, number)).encode()])
        body, end = self.stream(turn, number)
        if self.early == "error":
            end = self.stream_error("overloaded today")
        chunks = body if self.early in {"quietly", "broken", "held"} else [*body, *end]
        return Answer(200, self.stream_kind, chunks, broken=self.early == "broken", held=self.early == "held")

    def _ask_who(self, request: Request) -> None:
        name, start = self.key
        refuse_unless(request.headers.get(name, "").startswith(start), f"no credentials in {name}")

    def is_streamed(self, request: Request) -> bool:
        """Whether the answer is to come in chunks."""
        return bool(request.body.get("stream"))

    def check(self, request: Request) -> None:
        """Raises `Refused` for what the API would not take."""
        raise NotImplementedError

    def whole(self, turn: Turn, number: int) -> dict[str, Any]:
        """The turn as one response."""
        asked = [(call.id, call.name, call.arguments) for call in turn.calls]
        response = ALL[self.provider].write(turn.text, asked, "calls" if asked else "done")
        for key in {"id", "responseId"} & response.keys():
            response[key] = f"{response[key]}_{number}"
        self.complete(response, turn, number)
        return response

    def complete(self, response: dict[str, Any], turn: Turn, number: int) -> None:
        """Add what the model thought before its calls, which has to go back."""

    def stream(self, turn: Turn, number: int) -> tuple[list[bytes], list[bytes]]:
        """The turn as a stream: what comes before the end, and the end."""
        chunks = [self.encode(event) for event in ALL[self.provider].events(self.whole(turn, number), halves)]
        return chunks[: -self.ends], [*chunks[-self.ends :], *self.done]

    def encode(self, event: dict[str, Any]) -> bytes:
        """An event as it is sent."""
        return sse(event, event.get("type") or event.get("event_type"))

    def stream_error(self, message: str) -> list[bytes]:
        """What comes in a stream when the API fails in the middle of it."""
        raise NotImplementedError

    def error_body(self, status: int, message: str) -> dict[str, Any]:
        """An error in the API's own form."""
        raise NotImplementedError

    def error_headers(self, status: int) -> dict[str, str]:
        """What goes with it; the SDKs that heed it wait no longer than they are told to."""
        return {"retry-after-ms": "1"} if status == 429 else {}

    def error(self, status: int, message: str) -> Answer:
        body = json.dumps(self.error_body(status, message)).encode()
        return Answer(status, "application/json", [body], self.error_headers(status))


def refuse_unless(fine: object, rule: str) -> None:
    """Raises `Refused` with `rule` where it is broken."""
    if not fine:
        raise Refused(rule)


def sse(data: Any, event: str | None = None) -> bytes:
    """A server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data)
    return (f"event: {event}\n" if event else "").encode() + f"data: {text}\n\n".encode()


def halves(text: str) -> list[str]:
    """A text in two chunks, for a stream."""
    middle = len(text) // 2
    return [chunk for chunk in (text[:middle], text[middle:]) if chunk]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = BOUND
    api: ClassVar[Api]

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self._send(self._answer(Request(self.path, headers, json.loads(raw))))

    def _answer(self, request: Request) -> Answer:
        if not request.path.partition("?")[0].endswith(self.api.path):
            return self.api.error(404, f"there is nothing at {request.path}")
        return self.api.answer(request)

    def _send(self, answer: Answer) -> None:
        self.close_connection = True
        self.send_response(answer.status)
        headers = {"Content-Type": answer.kind, "Transfer-Encoding": "chunked", "Connection": "close", **answer.headers}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            for chunk in answer.chunks:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            if answer.held:
                self.api.held.set()
                self.connection.recv(1)  # nothing more comes: it ends when the client goes
                self.api.left.set()
            elif not answer.broken:
                self.wfile.write(b"0\r\n\r\n")
        except ConnectionError:
            self.api.left.set()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: what matters is in `Api.requests`."""


@contextmanager
def served(api: Api) -> Iterator[str]:
    """The address of `api` while it is served; stopped afterwards."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"api": api}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(BOUND)
