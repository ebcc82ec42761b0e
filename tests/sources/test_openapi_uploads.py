"""Files by path, the person who approves them, and the idempotency key of a call."""

from __future__ import annotations

import base64
import os
import uuid
from pathlib import Path
from typing import Any

import pytest
from openapi_wire import Wire, answer, called, imported, one, properties, run, with_body

from ferrule import Decision, Runner, ToolCall, ToolContext, ToolResult
from ferrule.approval import Asked, later
from ferrule.guards import ask_before_changes, within
from ferrule.middleware import retry

FILE = {"type": "string", "format": "binary"}


def upload(media: str = "multipart/form-data", schema: Any = None, **more: Any) -> dict[str, Any]:
    """A document with one operation that takes a file."""
    return with_body(media, schema or properties(file=FILE, title={"type": "string"}), **more)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.pdf").write_bytes(b"%PDF")
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "out" / "link").symlink_to(tmp_path / "secret.txt")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file_is_uploaded_by_its_path(folder: Path) -> None:
    options = {"guards": [within("out")]}
    result, wire = called(upload(), {"file": {"path": "out/report.pdf"}, "title": "/t"}, runner=options)
    assert result.status == "denied", "a title that reads as a path is judged as ever"
    result, wire = called(upload(), {"file": {"path": "out/report.pdf"}, "title": "Q3"}, runner=options)
    assert result.success, result.text
    assert b'name="file"; filename="report.pdf"\r\nContent-Type: application/pdf\r\n\r\n%PDF\r\n' in wire.body()
    named = {"path": "out/report.pdf", "name": "q3.bin", "mime_type": "application/x-q3"}
    _, wire = called(upload(), {"file": named}, runner=options)
    assert b'filename="q3.bin"\r\nContent-Type: application/x-q3\r\n\r\n%PDF' in wire.body()
    several = properties(files={"type": "array", "items": FILE})
    given = {"files": [{"path": "out/report.pdf"}, {"text": "/not a path/"}]}
    _, wire = called(upload(schema=several), given, runner=options)
    assert b"%PDF" in wire.body() and b"/not a path/" in wire.body()
    given = upload("application/octet-stream", FILE)
    _, wire = called(given, {"body": {"path": "out/report.pdf"}}, runner=options)
    assert (wire.body(), wire.header("content-type")) == (b"%PDF", "application/octet-stream")


@pytest.mark.parametrize("path", ["secret.txt", "out/../secret.txt", "out/link"])
def test_a_path_outside_is_denied_as_any_path(path: str, folder: Path) -> None:
    for given, arguments in (
        (upload(), {"file": {"path": path}}),
        (upload("application/octet-stream", FILE), {"body": {"path": path}}),
    ):
        result, wire = called(given, arguments, runner={"guards": [within("out")]})
        assert (result.status, wire.heard) == ("denied", []), result.text


def rather_not(call: ToolCall, context: ToolContext) -> Decision | None:
    """A guard that asks `within` about other calls than those that upload."""
    return None if "file" in call.arguments else within("out")(call, context)


@pytest.mark.parametrize("guards", [[], [rather_not], [ask_before_changes]])
def test_no_path_is_read_unless_a_within_guard_judged_the_call(guards: Any, folder: Path) -> None:
    path = os.path.realpath("out/report.pdf")
    options = {"guards": guards, "approve": lambda call, decision, context: True}
    result, wire = called(upload(), {"file": {"path": path}}, runner=options)
    assert (result.status, result.executed, result.retryable, wire.heard) == ("failed", False, False, [])
    assert "lets no upload read files; give its text or data" in result.text


def test_a_file_that_became_a_link_after_it_was_judged_is_not_read(folder: Path) -> None:
    def swap(call: ToolCall, decision: Decision, context: ToolContext) -> bool:
        (folder / "out" / "report.pdf").unlink()
        (folder / "out" / "report.pdf").symlink_to(folder / "secret.txt")
        return True

    options = {"guards": [within("out"), ask_before_changes], "approve": swap}
    result, wire = called(upload(), {"file": {"path": "out/report.pdf"}}, runner=options)
    assert not result.success and wire.heard == []


@pytest.mark.parametrize("name", ["none", "pipe", "large"])
def test_a_file_that_cannot_be_read_is_named(name: str, folder: Path) -> None:
    os.mkfifo(folder / "out" / "pipe")
    with (folder / "out" / "large").open("wb") as file:
        file.truncate(50_000_001)
    result, wire = called(upload(), {"file": {"path": f"out/{name}"}}, runner={"guards": [within("out")]})
    assert (result.status, result.executed, wire.heard) == ("failed", False, []) and repr(name) in result.text


def test_a_resumed_call_uploads_its_file_after_it_is_judged_again(folder: Path) -> None:
    async def calls(runner: Runner, wire: Wire) -> ToolResult:
        waiting = await runner.run("op", {"file": {"path": "out/report.pdf"}})
        assert waiting.status == "suspended" and not wire.heard
        return await runner.resume(waiting.record(), True)

    result, wire = run(upload(), calls, runner={"guards": [within("out"), ask_before_changes], "approve": later})
    assert result.success and b"%PDF" in wire.body()


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ({"path": "out/report.pdf"}, "'report.pdf', 'application/pdf', 4 bytes, from '{folder}/out/report.pdf'"),
        ({"path": "out/gone"}, "'gone', 'application/octet-stream', a file that is not there now"),
        ({"text": "a,é", "name": "t.csv", "mime_type": "text/csv"}, "'t.csv', 'text/csv', 4 bytes"),
        ({"data": base64.b64encode(b"12345").decode()}, "'file', 'image/png', 5 bytes"),
        ({"data": "", "name": "a\nfile: 'b'"}, r'"a\nfile: \'b\'", \'image/png\', 0 bytes'),
    ],
)
def test_the_approver_sees_name_type_and_size(file: Any, shown: str, folder: Path) -> None:
    seen: list[str] = []

    def approve(call: ToolCall, decision: Decision, context: ToolContext) -> bool:
        seen.append(Asked.of(call, decision, context).with_preview().text)
        return False

    given = upload(encoding={"file": {"contentType": "image/png"}}) if "data" in file else upload()
    options = {"guards": [within("out"), ask_before_changes], "approve": approve}
    result, wire = called(given, {"file": file, "title": "Q3"}, runner=options)
    assert result.status == "denied" and wire.heard == []
    [text] = seen
    lines = [line.removeprefix("  │ ") for line in text.splitlines()]
    [line] = [line for line in lines if line.startswith("file: ")]
    assert shown.replace("\\'", "'").format(folder=os.path.realpath(folder)) in line
    assert 'title: "Q3"' in lines and any(line.startswith("POST /x at http://127.0.0.1:") for line in lines)


@pytest.mark.parametrize(("name", "schema"), [("Idempotency-Key", {}), ("idempotency-key", {"format": "uuid"})])
def test_every_attempt_of_a_call_sends_its_idempotency_key(name: str, schema: Any) -> None:
    header = {"in": "header", "name": name, "required": True, "schema": {"type": "string", **schema}}
    given = one("post", header)
    tools = imported(given)
    assert next(iter(tools)).input_schema["properties"] == {} and "not an argument" in tools.report.tools[0].notes[0]

    async def calls(runner: Runner, wire: Wire) -> list[str]:
        for id in ("a", "b"):
            result = await runner.run(ToolCall(id, "op", {}), ToolContext(session="s"))
            assert result.success, result.text
        return [wire.header("idempotency-key", at) or "" for at in range(4)]

    busy, done = answer("503 Busy"), answer("200 OK")
    options = {"inside": [retry(2, wait=0, safe=["op"])]}
    keys, _ = run(given, calls, busy, done, busy, done, runner=options)
    assert keys[0] == keys[1] != keys[2] == keys[3]
    assert all(uuid.UUID(key).version == 4 and str(uuid.UUID(key)) == key if schema else len(key) == 32 for key in keys)
