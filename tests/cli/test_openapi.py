"""`--openapi`: commands with the operations of an API."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Shop", "version": "1"},
    "security": [{"key": []}],
    "components": {"securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-Key"}}},
    "paths": {
        "/orders/{id}": {
            "parameters": [{"in": "path", "name": "id", "required": True, "schema": {"$ref": "types.json#/Id"}}],
            "get": {"operationId": "get_order", "summary": "Get an order.", "tags": ["orders"]},
            "delete": {"operationId": "delete_order", "summary": "Delete an order."},
        },
        "/health": {"get": {"operationId": "health", "security": []}},
        "/broken": {"get": {"parameters": [{"$ref": "#/nowhere"}]}},
    },
}
URL = {"type": "string", "format": "uri"}
FIELDS = {"items": {"type": "array"}, "next": URL}
SCHEMA = {"type": "object", "properties": FIELDS}
ANSWER = {"200": {"description": "", "content": {"application/json": {"schema": SCHEMA}}}}
LIST = {**DOCUMENT, "security": [], "paths": {"/list": {"get": {"operationId": "list", "responses": ANSWER}}}}
API = ("--openapi", "api.json", "--root", ".")
CALL = ("call", "get_order", "id=7")
HTTPS = ("--server", "https://a.example")
SECRET = ("--secret", "key=SHOP_KEY")

PAGES = {"/list": b'{"items": [1], "next": "/list?at=2"}', "/list?at=2": b'{"items": [2], "next": ""}'}


class Shop(BaseHTTPRequestHandler):
    requests: list[tuple[str, str, str | None]]

    def answer(self) -> None:
        self.requests.append((self.command, self.path, self.headers.get("x-key")))
        body = PAGES.get(self.path, b'{"state": "open"}')
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_DELETE = answer

    def log_message(self, *arguments: Any) -> None: ...


@pytest.fixture(autouse=True)
def files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_KEY", "a-secret-key")
    (folder / "types.json").write_text('{"Id": {"type": "integer"}}')
    (folder / "api.json").write_text(json.dumps(DOCUMENT))
    (folder / "steps.py").write_text("steps = ['Done.']")


@pytest.fixture
def server() -> Iterator[tuple[str, str]]:
    """The option that names the server."""
    Shop.requests = []
    served = ThreadingHTTPServer(("127.0.0.1", 0), Shop)
    thread = threading.Thread(target=served.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield "--server", f"http://127.0.0.1:{served.server_address[1]}"
    finally:
        served.shutdown()
        thread.join()
        served.server_close()


def test_operations_are_listed_without_a_server(ferrule: Any) -> None:
    done = ferrule("list", *API)
    effects = {line.split()[0]: line.split()[1] for line in done.out.splitlines()[1:]}
    assert effects == {"get_order": "read-only", "delete_order": "destructive", "health": "read-only"}
    assert "api.json: GET /broken is left out" in done.text
    done = ferrule("schema", *API, "--only", "tag:orders", "--provider", "anthropic")
    assert [one["name"] for one in done.json] == ["get_order"]
    assert ferrule("lint", *API, "--only", "DELETE /orders/*").code in (0, 1)


def test_a_call_reaches_the_server_with_the_secret(ferrule: Any, server: tuple[str, str]) -> None:
    options = (*API, *server, *SECRET)
    assert ferrule(*CALL, *options)[:2] == (0, '{"state": "open"}\n')
    assert Shop.requests == [("GET", "/orders/7", "a-secret-key")]
    done = ferrule("call", "get_order", "id=seven", *options)
    assert done.code == 1 and "integer" in done.err
    assert ferrule("decide", "delete_order", "id=7", *options).code == 3
    done = ferrule("call", "delete_order", "id=7", *options)
    assert done.code == 1 and "denied" in done.err.lower() and len(Shop.requests) == 1
    assert ferrule("call", "delete_order", "id=7", *options, "--yes", "delete_order").code == 0
    assert Shop.requests[1] == ("DELETE", "/orders/7", "a-secret-key")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--only", "GET"], "--only needs --openapi FILE"),
        (["--openapi", "api.json"], "name the API's address: --server https://api.example.com"),
        ([*API, *HTTPS, "--secret", "key=NOT_SET_1"], "--secret key: its environment variable is not"),
        (["--openapi", "api.json", *HTTPS, "--secret", "key=PATH"], "the folder of the files, --root DIR"),
        ([*API, "--server", "http://a.example"], "go over https only"),
        ([*API, *HTTPS], "name your secret for it, --secret key=VARIABLE"),
    ],
)
def test_a_wrong_command_says_what_is_right(ferrule: Any, words: list[str], error: str) -> None:
    done = ferrule(*CALL, *words)
    assert done.code == 2 and error in done.text, done.err
    assert not any(f"{word}=" in done.err for word in ("server", "credentials", "only", "roots", "budget"))


def test_a_model_gets_no_more_than_the_budget(ferrule: Any) -> None:
    words = ("run", "Look", *API, *HTTPS, *SECRET, "--model", "scripted:steps.py")
    assert ferrule(*words).code == 0
    done = ferrule(*words, "--budget", "10")
    assert done.code == 2 and "the budget is 10" in done.text


def test_a_call_reads_as_many_pages_as_the_option_says(ferrule: Any, server: tuple[str, str], folder: Path) -> None:
    (folder / "list.json").write_text(json.dumps(LIST))
    call = ("call", "list", "--openapi", "list.json", *server)
    assert '"items": [1]' in ferrule(*call).out
    assert '"items": [1, 2]' in ferrule(*call, "--pages", "2").out


def test_an_installed_server_has_the_same_options(ferrule: Any, folder: Path) -> None:
    options = [f"--openapi={folder / 'api.json'}", "--server=https://a.example", "--only=GET", "--secret=key=SHOP_KEY"]
    options += ["--budget=5000", "--pages=3"]
    done = ferrule("serve", *options, "--install")
    assert done.code == 0 and all(json.dumps(word) in done.out for word in options)
    assert "a-secret-key" not in done.out


@pytest.mark.parametrize("more", [(), SECRET])
def test_a_missing_secret_blocks_only_operations_that_need_it(
    ferrule: Any, server: tuple[str, str], more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHOP_KEY")
    done = ferrule("call", "health", *API, *server, *more)
    assert done[:2] == (0, '{"state": "open"}\n') and "--secret key=VARIABLE, with a VARIABLE that is set" in done.err
    assert ("--secret key: its environment variable is not set" in done.err) is bool(more)
    assert ferrule(*CALL, *API, *server, *more).code == 2


@pytest.mark.parametrize("word", ["sk-4711", "key=sk-4711"])
def test_a_secret_in_place_of_its_variable_is_not_shown(ferrule: Any, word: str) -> None:
    done = ferrule(*CALL, *API, *HTTPS, "--secret", word)
    assert done.code == 2 and "--secret" in done.err and "sk-4711" not in done.text + done.err
    assert [path for _, path, _ in Shop.requests] == ["/health"]
