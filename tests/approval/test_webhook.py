"""A gateway gets each question by HTTP, and only a signed, timely and first answer to it counts."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cast import ask_always
from ferrule import Journal, Runner, ToolCall, ToolResult, approval, tool
from ferrule.approval import sign_message, verify_message
from ferrule.errors import DefinitionError
from ferrule.testing import ApproverContract, ManualClock
from ferrule.types import Approver
from ferrule.web import app as page_of
from waits import BOUND, until

SECRET, OTHER = secrets.token_bytes(32), secrets.token_bytes(32)


class Gateway(ThreadingHTTPServer):
    """A gateway on loopback that keeps each question, and answers its post with the next of `statuses`, or 200."""

    def __init__(self) -> None:
        self.questions: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.statuses: list[int] = []
        self.on_post: Callable[[dict[str, Any]], object] = lambda question: None
        super().__init__(("127.0.0.1", 0), _Post)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/ask"


class _Post(BaseHTTPRequestHandler):
    server: Gateway

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.bodies.append(body)
        self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
        self.server.questions.append(json.loads(body))
        self.server.on_post(json.loads(body))
        self.send_response(self.server.statuses.pop(0) if self.server.statuses else 200)
        self.send_header("location", self.server.url)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *arguments: Any) -> None: ...


@contextmanager
def serving() -> Iterator[Gateway]:
    gateway = Gateway()
    thread = threading.Thread(target=gateway.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield gateway
    finally:
        gateway.shutdown()
        thread.join()
        gateway.server_close()


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with serving() as found:
        yield found


class Desk:
    """A runner that asks by a webhook, and what was paid."""

    def __init__(self, gateway: Gateway, *, runner: dict[str, Any] | None = None, **options: Any) -> None:
        self.gateway = gateway
        self.paid: list[tuple[str, int]] = []

        @tool
        async def pay(to: str, euros: int) -> str:
            """Pay somebody."""
            self.paid.append((to, euros))
            return f"paid {to} {euros}"

        self.hook = approval.webhook(gateway.url, SECRET, **options)
        self.runner = Runner([pay], guards=[ask_always], approve=self.hook, **(runner or {}))

    def start(self, **context: Any) -> asyncio.Task[ToolResult]:
        given: dict[str, Any] = {"principal": "ann", **context}
        return asyncio.create_task(self.runner.run("pay", {"to": "ada", "euros": 5}, **given))

    async def question(self) -> dict[str, Any]:
        await until(lambda: self.gateway.questions)
        return self.gateway.questions[-1]


async def asked(gateway: Gateway, **options: Any) -> tuple[Desk, asyncio.Task[ToolResult], dict[str, Any]]:
    """A desk, its call, and the question about it that has come to the gateway."""
    desk = Desk(gateway, **options)
    running = desk.start()
    return desk, running, await desk.question()


def answer_to(question: dict[str, Any], **parts: Any) -> bytes:
    facts = {"type": "approval.answer", "answer": "approve", "by": "bob"}
    return json.dumps({**facts, "id": question["id"], "digest": question["digest"], **parts}).encode()


async def send(desk: Desk, body: bytes, *, secret: bytes = SECRET, id: str = "m1", at: float | None = None) -> int:
    transport = httpx2.ASGITransport(app=desk.hook.endpoint)
    async with httpx2.AsyncClient(transport=transport) as client:
        response = await client.post("http://here/", content=body, headers=sign_message(secret, id, body, at=at))
        return response.status_code


async def result_of(running: asyncio.Task[ToolResult]) -> ToolResult:
    return await asyncio.wait_for(running, BOUND)


async def test_an_answer_with_a_wrong_secret_or_an_old_time_does_not_count(gateway: Gateway) -> None:
    desk, running, question = await asked(gateway)
    body = answer_to(question)
    assert await send(desk, body, secret=OTHER) == 401
    assert await send(desk, body, at=time.time() - 301) == await send(desk, body, at=time.time() + 3600) == 401
    changed = {**sign_message(SECRET, "m1", body)}
    assert (await desk.hook.receive(changed, body.replace(b"approve", b"deny"))).status == 401
    assert (await desk.hook.receive({**changed, "webhook-id": "m2"}, body)).status == 401
    assert (await desk.hook.receive({}, body)).status == 401
    assert (await desk.hook.receive(gateway.headers[0], gateway.bodies[0])).status == 400  # its own question
    assert not running.done() and desk.paid == []
    assert await send(desk, answer_to(question, answer="deny", reason="too much")) == 200
    result = await result_of(running)
    assert result.status == "denied" and "too much" in result.text


async def test_only_the_same_answer_is_accepted_again(gateway: Gateway) -> None:
    desk, running, question = await asked(gateway)
    codes = await asyncio.gather(*(send(desk, answer_to(question), id="same") for _ in range(5)))
    assert codes == [200] * 5
    assert (await result_of(running)).success and desk.paid == [("ada", 5)]
    assert await send(desk, answer_to(question), id="same") == 200
    assert await send(desk, answer_to(question, answer="deny", by="eve"), id="other") == 409
    assert desk.paid == [("ada", 5)]


async def test_a_question_without_an_answer_is_denied(gateway: Gateway) -> None:
    clock = ManualClock()
    desk, running, question = await asked(gateway, runner={"clock": clock}, expires=60)
    await clock.advance(61)
    result = await result_of(running)
    assert result.status == "denied" and "in time" in result.text
    assert await send(desk, answer_to(question)) == 410 and desk.paid == []


async def test_a_cancelled_call_takes_its_question_away(gateway: Gateway) -> None:
    desk, running, question = await asked(gateway)
    running.cancel()
    await asyncio.wait([running])
    assert await desk.hook.queue.count() == 0
    assert await send(desk, answer_to(question)) == 410 and desk.paid == []


async def test_an_answer_may_come_before_the_post_returns(gateway: Gateway) -> None:
    desk = Desk(gateway)
    loop = asyncio.get_running_loop()

    def answer_at_once(question: dict[str, Any]) -> None:
        assert asyncio.run_coroutine_threadsafe(send(desk, answer_to(question)), loop).result(BOUND) == 200

    gateway.on_post = answer_at_once
    assert (await result_of(desk.start())).output == "paid ada 5"


async def test_a_gateway_that_is_down_is_tried_again_with_the_same_id(gateway: Gateway) -> None:
    desk = Desk(gateway)
    gateway.statuses = [503, 200]
    running = desk.start()
    await until(lambda: len(gateway.questions) == 2)
    assert len({one["webhook-id"] for one in gateway.headers}) == 1 and gateway.bodies[0] == gateway.bodies[1]
    assert await send(desk, answer_to(gateway.questions[0])) == 200
    assert (await result_of(running)).success


@pytest.mark.parametrize("status", [302, 307, 404])
async def test_a_gateway_that_refuses_or_redirects_denies_at_once(gateway: Gateway, status: int) -> None:
    desk = Desk(gateway)
    gateway.statuses = [status]
    result = await result_of(desk.start())
    assert result.status == "denied" and "could not be asked" in result.text
    assert len(gateway.questions) == 1 and await desk.hook.queue.count() == 0


async def test_a_question_that_cannot_be_posted_can_be_answered_at_the_page(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as gone:
        pass
    desk = Desk(gone)
    running = desk.start()
    await until(lambda: "is tried again: ConnectError" in caplog.text)
    [waiting] = await desk.hook.queue.waiting()
    assert waiting.is_live
    await desk.hook.queue.answer(waiting.id, waiting.digest, True, by="bob")
    assert (await result_of(running)).success


async def test_secrets_in_a_question_are_stars(gateway: Gateway) -> None:
    sent: list[tuple[str, str]] = []

    @tool
    async def post(text: str, to: str) -> str:
        """Post a text."""
        sent.append((text, to))
        return "posted"

    hook = approval.webhook(gateway.url, SECRET)
    runner = Runner([post], guards=[ask_always], approve=hook, secrets={"key": "sk-live-471147"})
    desk = Desk(gateway)
    desk.hook = hook
    running = asyncio.create_task(runner.run("post", {"text": "my sk-live-471147", "to": "ada"}))
    question = await desk.question()
    assert b"471147" not in gateway.bodies[0] and question["arguments"]["text"] == "my **********"
    edited = {**question["arguments"], "text": "your **********"}
    for misfit in (edited, {**question["arguments"], "to": 5}):
        assert await send(desk, answer_to(question, arguments=misfit)) == 422
    assert await send(desk, answer_to(question, arguments={**question["arguments"], "to": "bob"})) == 200
    assert (await result_of(running)).success and sent == [("my sk-live-471147", "bob")]


async def test_nobody_guesses_a_secret_by_the_digest_of_an_equal_question(gateway: Gateway) -> None:
    desk = Desk(gateway)
    running = [desk.start(), desk.start()]
    await until(lambda: len(gateway.questions) == 2)
    first, second = gateway.questions
    assert first["text"] == second["text"] and first["digest"] != second["digest"]
    for one in running:
        one.cancel()
    await asyncio.wait(running)


async def test_nobody_allows_their_own_call(gateway: Gateway) -> None:
    desk, running, question = await asked(gateway, queue=approval.web(own=False))
    assert await send(desk, answer_to(question, by="Ann")) == 403
    assert await send(desk, answer_to(question, by="bob"), id="m2") == 200
    assert (await result_of(running)).success


async def test_an_answer_reaches_a_call_of_another_queue_object_and_no_other_channel(
    gateway: Gateway, tmp_path: Path
) -> None:
    store = Journal.open(tmp_path / "calls.db").store
    _, running, question = await asked(gateway, queue=approval.web(store))
    foreign = approval.webhook("https://other.example.com/ask", SECRET, queue=approval.web(store))
    body = answer_to(question)
    assert (await foreign.receive(sign_message(SECRET, "m1", body), body)).status == 410
    beside = approval.webhook(gateway.url, SECRET, queue=approval.web(store))
    assert (await beside.receive(sign_message(SECRET, "m1", body), body)).status == 200
    assert (await result_of(running)).success


async def test_the_page_answers_a_live_question_and_resumes_nothing(gateway: Gateway) -> None:
    queue = approval.web()
    desk, running, question = await asked(gateway, queue=queue)
    page = page_of(desk.runner, authenticate=lambda request: "bob", queue=queue)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=page), base_url="http://here") as client:
        shown = await client.get("/approvals")
        token = shown.text.partition('name="token" value="')[2].partition('"')[0]
        form = {"token": token, "id": question["id"], "digest": question["digest"], "answer": "approve"}
        answered = await client.post("/approvals/answer", data=form, headers={"origin": "http://here"})
    assert answered.status_code == 303 and answered.headers["location"] == "/approvals"
    assert (await result_of(running)).record()["answered_by"] == "bob"
    assert await send(desk, answer_to(question)) == 409


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"\xff", b"[" * 100_000, b'{"type": "approval.answer"}'),
        *(
            answer_to({"id": "x", "digest": "d"}, **wrong)
            for wrong in ({"answer": "yes"}, {"by": ""}, {"arguments": []})
        ),
    ],
)
async def test_a_body_that_is_no_answer_is_refused(gateway: Gateway, body: bytes) -> None:
    assert await send(Desk(gateway), body) == 400


async def test_the_endpoint_takes_posts_of_bounded_size(gateway: Gateway) -> None:
    desk = Desk(gateway)
    assert await send(desk, b"x" * 1_000_001) == 413
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=desk.hook.endpoint)) as client:
        assert (await client.get("http://here/")).status_code == 405


@pytest.mark.parametrize(
    "url", ["http://gateway.example.com/ask", "ftp://127.0.0.1/", "https://", "/ask", "", "http://127.0.0.1:port/"]
)
def test_an_address_without_https_is_refused(url: str) -> None:
    with pytest.raises(DefinitionError, match="https address"):
        approval.webhook(url, SECRET)


def test_the_signature_is_that_of_standard_webhooks() -> None:
    headers = sign_message(bytes(range(32)), "msg_1", b'{"a": 1}', at=1_700_000_000)
    assert headers["webhook-signature"] == "v1,WiSnS/jRZ+jSWp4++CHriev0dUy9fWKFv5VBXkw5Yfs="
    assert verify_message([SECRET, OTHER], sign_message(OTHER, "m1", b"{}"), b"{}") == "m1"
    with pytest.raises(DefinitionError, match="at least 32 bytes"):
        approval.webhook("https://gateway.example.com/ask", [SECRET, b"short"])


class TestContract(ApproverContract):
    """The gateway gets each question, and answers it."""

    @pytest.fixture(autouse=True)
    def _serve(self, gateway: Gateway) -> None:
        self.gateway = gateway

    def approver(self) -> Approver:
        self.hook = approval.webhook(self.gateway.url, SECRET)
        return self.hook

    async def answer(self, approver: Approver, call: ToolCall, yes: bool) -> None:
        await self._send(call, answer="approve" if yes else "deny")

    async def edit(self, approver: Approver, call: ToolCall, arguments: Mapping[str, Any]) -> None:
        await self._send(call, arguments=dict(arguments))

    async def _send(self, call: ToolCall, **parts: Any) -> None:
        def find() -> dict[str, Any] | None:
            rows = self.hook.queue.store.items("waiting").values()
            records = [json.loads(row["pending"].get("text", "{}")) for row in rows]
            keys = [one["key"] for one in records if one and one["call"]["id"] == call.id]
            return next((one for one in self.gateway.questions if one["id"] in keys), None)

        await until(find)
        body = answer_to(find() or {}, **parts)
        assert (await self.hook.receive(sign_message(SECRET, call.id, body), body)).status == 200

    def read_shown_text(self, approver: Approver) -> str:
        return "\n".join(one["text"] for one in self.gateway.questions)
