"""`--openapi`: the operations of an API on the command line."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ferrule.cli import main

DOCUMENT = {
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
        "/broken": {"get": {"parameters": [{"$ref": "#/nowhere"}]}},
    },
}


class Shop(BaseHTTPRequestHandler):
    heard: list[tuple[str, str, str | None]]

    def answer(self) -> None:
        self.heard.append((self.command, self.path, self.headers.get("x-key")))
        body = b'{"state": "open"}'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_DELETE = answer

    def log_message(self, *arguments: Any) -> None: ...


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "types.json").write_text('{"Id": {"type": "integer"}}')
    (tmp_path / "api.json").write_text(json.dumps(DOCUMENT))
    return str(tmp_path / "api.json")


@pytest.fixture
def server() -> Iterator[tuple[str, list[tuple[str, str, str | None]]]]:
    Shop.heard = []
    served = ThreadingHTTPServer(("127.0.0.1", 0), Shop)
    thread = threading.Thread(target=served.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{served.server_address[1]}", Shop.heard
    finally:
        served.shutdown()
        thread.join()
        served.server_close()


def folder_of(file: str) -> str:
    return str(Path(file).parent)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(words)
    text = capsys.readouterr()
    return code, text.out, text.err


def test_its_operations_are_listed_without_a_server_and_what_is_left_out_is_said(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = said(capsys, "list", "--openapi", file, "--root", folder_of(file))
    assert code == 0 and [line.split()[:2] for line in out.splitlines()[1:]] == [
        ["get_order", "read-only"],
        ["delete_order", "destructive"],
    ]
    assert f"{file}: GET /broken is left out" in " ".join(err.split())
    code, out, _ = said(
        capsys,
        "schema",
        "--openapi",
        file,
        "--root",
        folder_of(file),
        "--only",
        "tag:orders",
        "--provider",
        "anthropic",
    )
    assert [one["name"] for one in json.loads(out)] == ["get_order"]
    assert said(capsys, "lint", "--openapi", file, "--root", folder_of(file), "--only", "DELETE /orders/*")[0] in (0, 1)


def test_a_call_goes_to_the_server_with_the_credential_of_the_environment(
    file: str, server: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, heard = server
    monkeypatch.setenv("SHOP_KEY", "a-secret-key")
    words = ("call", "get_order", "id=7", "--openapi", file, "--root", folder_of(file), "--server", url)
    words = (*words, "--secret", "key=SHOP_KEY")
    code, out, err = said(capsys, *words)
    assert (code, out, heard) == (0, '{"state": "open"}\n', [("GET", "/orders/7", "a-secret-key")]), err
    code, _, err = said(capsys, *words[:2], "id=seven", *words[3:])
    assert code == 1 and "integer" in err and len(heard) == 1
    code, _, err = said(capsys, "call", "delete_order", *words[2:])
    assert code == 1 and "denied" in err.lower() and len(heard) == 1
    assert said(capsys, "call", "delete_order", *words[2:], "--yes", "delete_order")[0] == 0
    assert heard[1] == ("DELETE", "/orders/7", "a-secret-key")
    assert said(capsys, "decide", "delete_order", *words[2:])[0] == 3


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--only", "GET"], "--only needs --openapi FILE"),
        (["--server", "https://a.example"], "--server needs --openapi FILE"),
        (["--budget", "5"], "--budget needs --openapi FILE"),
        (["--openapi", "nowhere.yaml"], "nowhere.yaml cannot be read"),
        (["--openapi", "{file}"], "name the API's address: --server https://api.example.com"),
        (["--openapi", "{file}", "--server", "https://a.example", "--only", "PUT"], "names no operation"),
        (["--openapi", "{file}", "--server", "https://a.example", "--secret", "key"], "is not NAME=VARIABLE"),
        (
            ["--openapi", "{file}", "--root", "{folder}", "--server", "https://a.example", "--secret", "key=NOT_SET_1"],
            "'NOT_SET_1' is not set",
        ),
        (["--openapi", "{file}", "--server", "a.example"], "--server a.example: it is not a whole URL"),
        (
            ["--openapi", "{file}", "--server", "https://a.example", "--secret", "key=PATH"],
            "the folder of the files, --root DIR",
        ),
        (["--openapi", "{file}", "--only", "PUT", "--server", "https://a.example"], "--only 'PUT' names no operation"),
        (["--openapi", "{file}", "--root", "{folder}", "--server", "http://a.example"], "go over https only"),
        (
            ["--openapi", "{file}", "--root", "{folder}", "--server", "https://a.example"],
            "name your secret for it, --secret key=VARIABLE",
        ),
        (["--openapi", "{file}", "--budget", "many"], "a whole number of tokens"),
    ],
)
def test_what_cannot_be_meant_is_said(
    words: list[str], why: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = said(
        capsys, "call", "get_order", "id=7", *(word.format(file=file, folder=folder_of(file)) for word in words)
    )
    assert code == 2 and why in " ".join(err.split()), err
    assert not any(f"{word}=" in err for word in ("server", "credentials", "only", "roots", "budget"))


def test_a_model_gets_no_more_than_the_budget(
    file: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_KEY", "a-secret-key")
    (tmp_path / "steps.py").write_text("steps = ['Done.']")
    words = [
        "run",
        "Look",
        "--openapi",
        file,
        "--root",
        folder_of(file),
        "--server",
        "https://a.example",
        "--secret",
        "key=SHOP_KEY",
        "--model",
        f"scripted:{tmp_path / 'steps.py'}",
    ]
    assert said(capsys, *words)[0] == 0
    code, _, err = said(capsys, *words, "--budget", "10")
    assert code == 2 and "the budget is 10" in " ".join(err.split())


def test_a_client_of_mcp_starts_the_server_with_the_same_options(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_KEY", "a-secret-key")
    options = ["--server=https://a.example", "--only=GET", "--secret=key=SHOP_KEY", "--budget=5000"]
    code, out, _ = said(capsys, "serve", f"--openapi={file}", *options, "--install")
    assert code == 0 and all(json.dumps(word) in out for word in [f"--openapi={file}", *options])
    assert "a-secret-key" not in out


def test_a_secret_that_is_missing_blocks_the_operations_that_need_it_and_no_others(
    file: str, server: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, heard = server
    paths = {**DOCUMENT["paths"], "/health": {"get": {"operationId": "health", "security": []}}}  # type: ignore[dict-item]
    Path(file).write_text(json.dumps({**DOCUMENT, "paths": paths}))
    monkeypatch.delenv("SHOP_KEY", raising=False)
    words = ("--openapi", file, "--root", folder_of(file), "--server", url)
    for more in ((), ("--secret", "key=SHOP_KEY")):
        code, out, err = said(capsys, "call", "health", *words, *more)
        assert (code, out) == (0, '{"state": "open"}\n') and "--secret key=VARIABLE" in err
        assert ("'SHOP_KEY' is not set" in err) is bool(more)
        assert said(capsys, "call", "get_order", "id=7", *words, *more)[0] == 2
    assert [one[1] for one in heard] == ["/health", "/health"]
