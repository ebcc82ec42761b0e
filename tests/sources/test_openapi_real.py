"""Operations of four public APIs, as their documents have them: of several versions, sizes and styles."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from openapi_wire import Wire, answer, run

from ferrule import DefinitionError, Runner, ToolResult
from ferrule.sources import openapi

DATA = Path(__file__).parent.parent / "data" / "openapi"
ACCOUNT = "AC" + "0" * 32
CREDENTIALS = {
    "twilio.json": "accountSid_authToken",
    "digitalocean/api.yaml": "bearer_auth",
    "openai.yaml": "ApiKeyAuth",
}


def called(
    file: str, tool: str, arguments: Mapping[str, Any], *answers: bytes, **options: Any
) -> tuple[ToolResult, Wire]:
    """The result of a call, with the server of the test in place of the API's."""
    given = json.loads((DATA / file).read_text()) if file.endswith(".json") else DATA / file
    if isinstance(given, dict):  # whose paths name their server, which the test's cannot be
        for item in given["paths"].values():
            item.pop("servers", None)

    async def calls(runner: Runner, wire: Wire) -> ToolResult:
        return await runner.run(tool, dict(arguments))

    named = CREDENTIALS.get(file, "")
    return run(given, calls, *answers, tls=True, credentials={named: named} if named else {}, **options)


def test_the_uspto_searches_by_a_form() -> None:
    with pytest.raises(DefinitionError, match="which has variables"):
        openapi(DATA / "uspto.yaml")
    arguments = {"dataset": "oa_citations", "version": "v1", "criteria": "a:[1 TO 2]", "rows": 5}
    body = b'[{"a":{}},{"b":1}]'
    result, wire = called(
        "uspto.yaml", "perform-search", arguments, answer("200 OK", body, content_type="application/json")
    )
    assert result.output == json.loads(body)
    assert wire.lines == ["POST /oa_citations/v1/records HTTP/1.1"]
    assert wire.body() == b"criteria=a%3A%5B1%20TO%202%5D&rows=5"


def test_twilio_lists_by_dates_that_differ_in_a_sign() -> None:
    tools = openapi(DATA / "twilio.json", server="https://api.twilio.com", credentials={"accountSid_authToken": "t"})
    before, after = (
        name for name in tools.get("ListMessage").input_schema["properties"] if name.startswith("DateSent_")
    )
    secrets = {"accountSid_authToken": (ACCOUNT, "auth-token")}
    arguments = {"AccountSid": ACCOUNT, "To": "+1555", before: "2026-01-02T00:00:00Z"}
    result, wire = called("twilio.json", "ListMessage", arguments, runner={"secrets": secrets})
    assert result.success, result.text
    assert wire.lines == [
        f"GET /2010-04-01/Accounts/{ACCOUNT}/Messages.json?To=%2B1555&DateSent%3C=2026-01-02T00%3A00%3A00Z HTTP/1.1"
    ]
    assert wire.header("authorization") == f"Basic {base64.b64encode(f'{ACCOUNT}:auth-token'.encode()).decode()}"
    result, wire = called("twilio.json", "ListMessage", {"AccountSid": "AC1"}, runner={"secrets": secrets})
    assert (result.status, wire.heard) == ("invalid", []) and before != after


def test_twilio_sends_a_message_by_a_form_with_lists() -> None:
    arguments = {
        "AccountSid": ACCOUNT,
        "To": "+1555",
        "Body": "Hi & bye",
        "MediaUrl": ["https://a.example/1", "https://a.example/2"],
    }
    secrets = {"accountSid_authToken": f"{ACCOUNT}:auth-token"}
    result, wire = called(
        "twilio.json",
        "CreateMessage",
        arguments,
        answer("201 Created", b"{}", content_type="application/json"),
        runner={"secrets": secrets},
    )
    assert result.success, result.text
    assert (
        wire.body().decode()
        == "To=%2B1555&Body=Hi%20%26%20bye&MediaUrl=https%3A%2F%2Fa.example%2F1&MediaUrl=https%3A%2F%2Fa.example%2F2"
    )


def test_digitalocean_s_document_is_in_several_files() -> None:
    folder = DATA / "digitalocean"
    tools = openapi(
        folder / "api.yaml", server="https://api.digitalocean.com", roots=folder, credentials={"bearer_auth": "t"}
    )
    assert [tool.name for tool in tools] == ["droplets_list", "droplets_create", "droplets_destroy"]
    [left_out] = tools.report.left_out
    assert left_out.item == "GET /v1/models" and "another server, ['https://inference.do-ai.run']" in left_out.reason
    secrets = {"bearer_auth": "token-0123456789"}
    for body, status in (
        ({"name": "web.example.com", "size": "s-1", "ssh_keys": None}, "ok"),
        ({"names": ["a", "b"], "size": "s-1", "ssh_keys": [7, "k"]}, "ok"),
        ({"name": "web", "names": ["a"], "size": "s-1"}, "invalid"),
        ({"name": "-", "size": "s-1"}, "invalid"),
        ({"size": "s-1"}, "invalid"),
    ):
        result, wire = called(
            "digitalocean/api.yaml", "droplets_create", {"body": body}, runner={"secrets": secrets}, roots=folder
        )
        assert result.status == status, result.text
        assert [json.loads(wire.body(one)) for one in range(len(wire.heard))] == ([body] if status == "ok" else [])
    result, wire = called(
        "digitalocean/api.yaml",
        "droplets_destroy",
        {"droplet_id": 7},
        answer("204 No Content"),
        runner={"secrets": secrets},
        roots=folder,
    )
    assert (wire.lines, result.text) == (["DELETE /v2/droplets/7 HTTP/1.1"], "HTTP 204 No Content")


def test_openai_takes_a_file_in_parts() -> None:
    tools = openapi(DATA / "openai.yaml", server="https://api.openai.com/v1", credentials={"ApiKeyAuth": "t"})
    assert [one.item for one in tools.report.left_out] == ["/responses?beta=true"]
    arguments = {
        "file": {"name": "a.jsonl", "text": "{}\n"},
        "purpose": "batch",
        "filter": {"type": "and", "filters": ["a", {"type": "or"}]},
    }
    body = b'{"id":"file-1","bytes":3,"object":"file"}'
    done = answer("200 OK", body, content_type="application/json")
    result, wire = called(
        "openai.yaml", "createFile", arguments, done, runner={"secrets": {"ApiKeyAuth": "sk-0123456789"}}
    )
    assert result.output == json.loads(body)
    assert b'name="file"; filename="a.jsonl"\r\nContent-Type: text/plain\r\n\r\n{}\n\r\n' in wire.body()
    assert b'name="purpose"\r\n\r\nbatch\r\n' in wire.body()
    result, wire = called("openai.yaml", "createFile", {**arguments, "purpose": "fun"}, done)
    assert (result.status, wire.heard) == ("invalid", [])


def test_openai_s_lists_in_a_query_keep_their_brackets() -> None:
    arguments = {"project_ids": ["p1", "p2"], "effective_at": {"gt": 5}}
    _, wire = called("openai.yaml", "list-audit-logs", arguments, runner={"secrets": {"ApiKeyAuth": "sk-0123456789"}})
    assert wire.lines == ["GET /organization/audit_logs?gt=5&project_ids%5B%5D=p1&project_ids%5B%5D=p2 HTTP/1.1"]
