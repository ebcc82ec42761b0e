"""Operations of two public APIs, as their documents have them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openapi_wire import Wire, answer, run

from ferrule import Runner, ToolResult
from ferrule.sources import openapi

DATA = Path(__file__).parent.parent / "data" / "openapi"
ACCOUNT = "AC" + "0" * 32
CREDENTIALS = {
    "twilio.json": "accountSid_authToken",
    "digitalocean/api.yaml": "bearer_auth",
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


TWILIO: dict[str, Any] = {"runner": {"secrets": {"accountSid_authToken": (ACCOUNT, "auth-token")}}}


def test_twilio_lists_by_dates_that_differ_in_a_sign() -> None:
    tools = openapi(DATA / "twilio.json", server="https://api.twilio.com", credentials={"accountSid_authToken": "t"})
    names = tools.get("ListMessage").input_schema["properties"]
    before, after = (name for name in names if name.startswith("DateSent_"))
    arguments = {"AccountSid": ACCOUNT, "To": "+1555", before: "2026-01-02T00:00:00Z"}
    result, wire = called("twilio.json", "ListMessage", arguments, **TWILIO)
    assert result.success, result.text
    query = "To=%2B1555&DateSent%3C=2026-01-02T00%3A00%3A00Z"
    assert wire.lines == [f"GET /2010-04-01/Accounts/{ACCOUNT}/Messages.json?{query} HTTP/1.1"]
    assert wire.header("authorization") == f"Basic {base64.b64encode(f'{ACCOUNT}:auth-token'.encode()).decode()}"
    result, wire = called("twilio.json", "ListMessage", {"AccountSid": "AC1"}, **TWILIO)
    assert (result.status, wire.heard) == ("invalid", []) and before != after


def test_the_document_of_digitalocean_is_in_several_files() -> None:
    folder = DATA / "digitalocean"
    credentials = {"bearer_auth": "t"}
    tools = openapi(folder / "api.yaml", server="https://api.digitalocean.com", roots=folder, credentials=credentials)
    assert [tool.name for tool in tools] == ["droplets_list", "droplets_create", "droplets_destroy"]
    [left_out] = tools.report.left_out
    assert left_out.item == "GET /v1/models" and "another server, ['https://inference.do-ai.run']" in left_out.reason
    file, options = "digitalocean/api.yaml", {"runner": {"secrets": {"bearer_auth": "token-0123456789"}}}
    for body, status in (
        ({"name": "web.example.com", "size": "s-1", "ssh_keys": None}, "ok"),
        ({"names": ["a", "b"], "size": "s-1", "ssh_keys": [7, "k"]}, "ok"),
        ({"name": "web", "names": ["a"], "size": "s-1"}, "invalid"),
        ({"name": "-", "size": "s-1"}, "invalid"),
        ({"size": "s-1"}, "invalid"),
    ):
        result, wire = called(file, "droplets_create", {"body": body}, roots=folder, **options)
        assert result.status == status, result.text
        assert [json.loads(wire.body(at)) for at in range(len(wire.heard))] == ([body] if status == "ok" else [])
    gone = answer("204 No Content")
    result, wire = called(file, "droplets_destroy", {"droplet_id": 7}, gone, roots=folder, **options)
    assert (wire.lines, result.text) == (["DELETE /v2/droplets/7 HTTP/1.1"], "HTTP 204 No Content")
