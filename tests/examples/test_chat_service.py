"""The chat service, asked over HTTP."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import httpx
import pytest
import uvicorn
from chat_service import Limits, Notes, create_app, hash_token

import preloaded
from ferrule.models import Scripted
from waits import BOUND

ROOT = Path(__file__).parents[2]
PEOPLE = {hash_token("token-of-ada"): "ada", hash_token("token-of-bob"): "bob"}


@contextmanager
def serving(steps, notes=None, limits=None) -> Iterator[tuple[httpx.Client, Scripted]]:
    """A client of the service, which runs on a port of its own in a thread of its own."""
    model = Scripted(steps)
    app = create_app(model, notes or Notes(), PEOPLE, limits)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=5))
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        host, port = listening.getsockname()
        with httpx.Client(base_url=f"http://{host}:{port}", timeout=BOUND, trust_env=False) as client:
            yield client, model
    finally:
        server.should_exit = True
        thread.join(BOUND)
        assert not thread.is_alive()


def request(text: str, by: str, conversation: str = "first") -> dict:
    return {
        "method": "POST",
        "url": f"/conversations/{conversation}",
        "json": {"text": text},
        "headers": {"Authorization": f"Bearer token-of-{by}"},
    }


def events(lines: Iterator[str]) -> Iterator[tuple[str, dict]]:
    kind = ""
    for line in lines:
        field, _, value = line.partition(": ")
        if field == "event":
            kind = value
        elif field == "data":
            yield kind, json.loads(value)


def ask(client: httpx.Client, text: str, by: str, conversation: str = "first") -> list[tuple[str, dict]]:
    with client.stream(**request(text, by, conversation)) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        return list(events(response.iter_lines()))


def statuses(heard: list[tuple[str, dict]]) -> list[str]:
    return [data["status"] for kind, data in heard if kind == "result"]


def write(owner: str, name: str = "today") -> tuple[str, dict]:
    return ("write_note", {"owner": owner, "name": name, "text": "buy milk"})


def test_an_answer_is_streamed_and_its_conversation_goes_on():
    with serving([("I write it.", [write("ada")]), "Done.", "Hello, Bob.", "You are welcome."]) as (client, model):
        assert ask(client, "Note: buy milk", "ada") == [
            ("text", {"text": "I write it."}),
            ("call", {"id": "call_1", "name": "write_note"}),
            ("result", {"id": "call_1", "status": "ok"}),
            ("text", {"text": "Done."}),
            ("done", {"status": "done", "reason": None}),
        ]
        ask(client, "I am Bob", "bob")  # his conversation of the same name is another
        assert [message["content"] for message in model.requests[-1].messages] == ["I am Bob"]
        ask(client, "Thanks", "ada")
        said = [message["content"] for message in model.requests[-1].messages if message["role"] == "user"]
        assert said == ["Note: buy milk", "Thanks"]


def test_without_a_known_token_the_model_is_not_asked():
    with serving(["Hello."]) as (client, model):
        for headers in ({}, {"Authorization": "Bearer token-of-eve"}, {"Authorization": "token-of-ada"}):
            response = client.post("/conversations/first", json={"text": "Hello"}, headers=headers)
            assert response.status_code == 401 and response.headers["www-authenticate"] == "Bearer"
        assert model.requests == []


@pytest.mark.parametrize(
    ("token", "length", "status"),
    [("token-of-eve", "200000000", 401), ("token-of-ada", "200000000", 413), ("token-of-ada", None, 413)],
)
def test_large_bodies_are_refused_before_they_are_read(token, length, status):
    framing = f"Content-Length: {length}" if length else "Transfer-Encoding: chunked"
    with serving(["Hello."]) as (client, model):
        with socket.create_connection((client.base_url.host, client.base_url.port), timeout=BOUND) as asking:
            asking.sendall(
                f"POST /conversations/first HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
                f"Content-Type: application/json\r\n{framing}\r\n\r\n".encode()
            )
            if length is None:  # one chunk that is too much, and the body goes on: nobody waits for its end
                asking.sendall(b"50000\r\n" + b" " * 0x50000 + b"\r\n")
            assert asking.recv(65536).startswith(f"HTTP/1.1 {status} ".encode())
        assert model.requests == []


def test_notes_of_others_are_closed_and_those_of_the_team_readable():
    notes = Notes()
    notes.by_owner["team"]["plan"] = "ship it"
    notes.by_owner["ada"]["secret"] = "4711"
    calls = [
        ("read_note", {"owner": "ada", "name": "secret"}),
        ("list_notes", {"owner": "ada"}),
        write("ada", "secret"),
        write("team", "plan"),
        ("read_note", {"owner": "team", "name": "plan"}),
        ("write_note", {"name": "today", "text": "buy milk"}),
    ]
    with serving([calls, "That is all."], notes) as (client, model):
        heard = ask(client, "What does Ada write?", "bob")
        assert sorted(statuses(heard)) == ["denied"] * 4 + ["ok"] * 2
        assert "4711" not in str(model.requests[-1].messages)
        assert notes.by_owner == {"team": {"plan": "ship it"}, "ada": {"secret": "4711"}, "bob": {"today": "buy milk"}}


@pytest.mark.parametrize("limits", [Limits(calls_per_minute=2), Limits(calls_in_total=2)])
def test_each_person_has_their_own_limits(limits):
    three = [write("ada", str(number)) for number in range(3)]
    steps = [three, "Some.", [write("ada")], "None.", [write("bob")], "All."]
    with serving(steps, limits=limits) as (client, _):
        assert statuses(ask(client, "Write three", "ada")) == ["ok", "ok", "limited"]
        assert statuses(ask(client, "Write one, elsewhere", "ada", "second")) == ["limited"]
        assert statuses(ask(client, "Write one", "bob")) == ["ok"]


class Hanging(Notes):
    """Its answer never comes."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.left = threading.Event(), threading.Event()

    async def names(self, owner):
        self.asked.set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                for _ in range(10):  # cleaning up takes a while
                    await anyio.lowlevel.checkpoint()
            self.left.set()


def test_a_run_is_cancelled_when_its_client_leaves():
    notes = Hanging()
    with serving([[("list_notes", {"owner": "ada"})], "Hello again."], notes) as (client, model):
        with client.stream(**request("List my notes", "ada")) as response:
            heard = events(response.iter_lines())
            assert next(heard) == ("call", {"id": "call_1", "name": "list_notes"})
            assert notes.asked.wait(BOUND) and not notes.left.is_set()
            busy = client.request(**request("And?", "ada", "second"))
            assert busy.status_code == 429 and "has no answer yet" in busy.json()["detail"]
        assert notes.left.wait(BOUND)
        answers = (client.request(**request("Hello?", "ada")) for _ in range(1000))  # its end takes a moment more
        answered = next(response for response in answers if response.status_code != 429)
        assert ("text", {"text": "Hello again."}) in list(events(answered.iter_lines()))
        assert len(model.requests) == 2
        asked, _, told, asked_again = model.requests[-1].messages
        assert (asked["content"], asked_again["content"]) == ("List my notes", "Hello?")
        assert "was cancelled" in told["content"]


@pytest.mark.parametrize(("tokens", "error"), [('{"ada": 1}', "TOKENS names"), ('{"ada": "a"}', "ANTHROPIC_API_KEY")])
def test_a_missing_setting_is_one_line(tokens, error):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANTHROPIC")}
    environment |= {"PYTHONPATH": str(ROOT / "src"), "TOKENS": tokens}
    ended = preloaded.run([sys.executable, ROOT / "examples/chat_service.py"], env=environment, timeout=BOUND)
    assert ended.returncode == 1 and error in ended.stderr and len(ended.stderr.splitlines()) == 1
