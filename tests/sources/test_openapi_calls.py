"""Who is sent what: servers, credentials, redirects; and what becomes of the answers."""

from __future__ import annotations

import asyncio
import gzip
import logging
import socket
import zlib
from contextlib import closing
from typing import Any

import httpx2
import pytest
from hypothesis import given as given_values
from hypothesis import strategies as st
from openapi_wire import Wire, answer, called, document, imported, operation, run, trusting
from pydantic import SecretStr

from ferrule import DefinitionError, Journal, Media, Runner, Sizes, ToolContext, ToolResult
from ferrule.approval import later
from ferrule.guards import ask_before_changes
from ferrule.middleware import retry
from ferrule.security.http import without_http_logs
from ferrule.sources import openapi
from ferrule.values.json_text import SECRET_STARS

TOKEN = "token-0123456789"


def secured(scheme: Any, method: str = "get", **more: Any) -> dict[str, Any]:
    """A document whose one operation needs the scheme, called `key`."""
    given = document({"/x": {method: operation(**more)}}, security=[{"key": []}])
    return {**given, "components": {"securitySchemes": {"key": scheme}}}


def signed(scheme: Any, secret: Any, *answers: bytes, **more: Any) -> tuple[ToolResult, Wire]:
    """The result of a call that needs the scheme, by a server with TLS."""
    return called(secured(scheme, **more), {}, *answers, tls=True, runner={"secrets": {"key": secret}})


# -- servers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("servers", "why"),
    [
        (None, "names no server"),
        ([], "names no server"),
        ([{"url": "/v1"}], "is not a whole URL"),
        ([{"url": "https://{region}.example.com"}], "has variables"),
        ([{"url": "https://a.example.com"}, {"url": "https://b.example.com"}], "names 2 servers"),
        ([{"url": "http://api.example.com"}], "is not public and https"),
        ([{"url": "https://localhost/v1"}], "is not public and https"),
        ([{"url": "https://127.0.0.1:8443"}], "is not public and https"),
        ([{"url": "https://169.254.169.254"}], "is not public and https"),
        ([{"url": "https://intranet"}], "is not public and https"),
        ([{"url": "javascript:alert(1)"}], "is not a whole URL"),
        ([{"url": "file:///etc/passwd"}], "it names no host"),
        ([{"url": "https://user:pass@example.com"}], "credentials"),
        ([{"url": "https://example.com\\@evil.example"}], "clients read in several ways"),
        ([{"url": "https://example.com/a/../b"}], "have '.' or '..'"),
        ([{"url": "https://example.com/?x="}], "has a '?' or '#'"),
    ],
)
def test_a_server_that_is_left_open_or_not_public_has_to_be_named(servers: Any, why: str) -> None:
    given = document({"/x": {"get": operation()}}, servers=servers)
    with pytest.raises(DefinitionError, match="server=") as raised:
        openapi(given)
    assert why in str(raised.value)


@pytest.mark.parametrize(
    "server", ["api.example.com", "ftp://example.com", "https://a.b/?q", "https://a.b/#f", 7, "https://a@b"]
)
def test_a_server_that_is_none_is_an_error_that_quotes_it(server: Any) -> None:
    with pytest.raises(DefinitionError, match=r"server=") as raised:
        openapi(document({"/x": {"get": operation()}}), server=[server])
    assert repr(server) in str(raised.value)


async def test_the_one_public_server_of_a_document_is_called_at_public_addresses_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = document({"/x": {"get": operation()}}, servers=[{"url": "https://api.example.com/v1"}])
    asked: list[object] = []

    def resolved(host: object, *rest: Any, **more: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 443))]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    result = await Runner(openapi(given)).run("op", {})
    assert asked == ["api.example.com"]
    assert (result.status, result.executed) == ("failed", False) and "NotReachableError" in result.text


def test_a_server_of_an_operation_is_used_at_or_below_one_that_is_named_and_else_leaves_it_out() -> None:
    def urls(named: Any, *servers: str) -> list[str]:
        given = document({"/x": {"servers": [{"url": one} for one in servers], "get": operation()}})
        return [tool.handler.__self__.server.url for tool in openapi(given, server=named)]  # type: ignore[attr-defined]

    api, both = "https://api.example.com/v1", ["https://api.example.com/v1", "https://uploads.example.com"]
    assert urls(api, "https://api.example.com/v1/eu") == ["https://api.example.com/v1/eu"]
    assert urls(api, "eu") == ["https://api.example.com/v1/eu"]
    assert urls(both, "https://uploads.example.com/v2") == ["https://uploads.example.com/v2"]
    assert urls(api, "https://{region}.example.com", "/v1") == [api]
    for other in (
        *("https://uploads.example.com/v2", "/admin", "/v1x", "/v1/../admin", "/v1/..;/admin", "/v1/%2e%2e/admin"),
        *("https:/evil.example/x", "//evil.example/v1", "http://api.example.com/v1", "https://api.example.com:8443/v1"),
    ):
        assert urls(api, other) == []
    given = document({"/x": {"get": operation(servers=[{"url": "/admin"}])}})
    assert "it has another server, ['/admin']" in openapi(given, server=api).report.left_out[0].reason
    given = document({"/x": {"get": operation(servers=[{"url": "https://{a}.example.com"}])}})
    assert "has variables" in openapi(given, server=api).report.left_out[0].reason


# -- credentials -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "secret", "header", "value"),
    [
        ({"type": "http", "scheme": "bearer"}, TOKEN, "authorization", f"Bearer {TOKEN}"),
        ({"type": "http", "scheme": "Bearer"}, SecretStr(TOKEN), "authorization", f"Bearer {TOKEN}"),
        ({"type": "oauth2", "flows": {}}, TOKEN, "authorization", f"Bearer {TOKEN}"),
        ({"type": "openIdConnect"}, TOKEN, "authorization", f"Bearer {TOKEN}"),
        ({"type": "http", "scheme": "basic"}, "ada:open", "authorization", "Basic YWRhOm9wZW4="),
        ({"type": "http", "scheme": "basic"}, ("ada", "o:p"), "authorization", "Basic YWRhOm86cA=="),
        ({"type": "apiKey", "in": "header", "name": "X-Key"}, TOKEN, "x-key", TOKEN),
        ({"type": "apiKey", "in": "cookie", "name": "sid"}, "a b;c", "cookie", "sid=a%20b%3Bc"),
    ],
)
def test_a_credential_goes_where_its_scheme_says(scheme: Any, secret: Any, header: str, value: str) -> None:
    result, wire = signed(scheme, secret)
    assert result.success, result.text
    assert wire.header(header) == value


def test_a_key_in_the_query_is_sent_and_is_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    result, wire = signed({"type": "apiKey", "in": "query", "name": "key"}, "a&b/0123")
    assert result.success and wire.lines == ["GET /x?key=a%26b%2F0123 HTTP/1.1"]
    assert "a%26b" not in caplog.text and "a&b/" not in caplog.text


@pytest.mark.parametrize("client", [False, True])
def test_a_key_that_a_server_sends_back_in_a_header_is_in_no_log(
    client: bool, caplog: pytest.LogCaptureFixture
) -> None:
    given = secured({"type": "apiKey", "in": "query", "name": "key"}, "get")
    caplog.set_level(logging.DEBUG)

    async def calls(runner: Runner, wire: Wire) -> ToolResult:
        wire.answers[0] = answer("302 Found", location="/y?key=key-0123456789", x_seen="key-0123456789")
        return await runner.run("op", {})

    secrets = {"key": "key-0123456789"}
    result, wire = run(given, calls, b"", answer("204 No"), runner={"secrets": secrets}, tls=client)
    assert result.success and [line.split("?")[0] for line in wire.lines] == ["GET /x", "GET /y"]
    assert "key-0123456789" not in caplog.text


def test_every_logger_of_the_http_stack_is_silent_while_asked() -> None:
    names = [name for name in logging.Logger.manager.loggerDict if name.startswith(("httpx2", "httpcore2"))]
    loggers = [logging.getLogger(name) for name in names if name != "httpcore2"]
    record = logging.LogRecord("httpx2", logging.INFO, "", 0, "?key=1", (), None)
    assert len(loggers) > 3 and all(logger.filter(record) for logger in loggers)
    with without_http_logs():
        assert not any(logger.filter(record) for logger in loggers)


def test_a_key_is_never_an_argument_whoever_declares_it_as_one() -> None:
    parameters = [{"in": "header", "name": "x_KEY", "schema": {"type": "string"}, "required": True}]
    given = secured({"type": "apiKey", "in": "header", "name": "X-Key"}, parameters=parameters)
    tools = imported(given, credentials={"key": "key"})
    assert next(iter(tools)).input_schema["properties"] == {}
    assert tools.report.tools[0].notes == ("the header parameter 'x_KEY' is left out: a credential goes there",)


@pytest.mark.parametrize(
    ("place", "parameter", "arguments"),
    [
        ("query", {"in": "query", "name": "filter", "schema": {"type": "object"}}, {"filter": {"key": "mine"}}),
        ("cookie", {"in": "cookie", "name": "filter", "schema": {"type": "object"}}, {"filter": {"key": "mine"}}),
        (
            "query",
            {"in": "querystring", "name": "all", "content": {"application/x-www-form-urlencoded": {}}},
            {"all": {"key": "mine"}},
        ),
    ],
)
def test_no_object_that_is_spread_brings_a_key_of_its_own(place: str, parameter: Any, arguments: Any) -> None:
    scheme = {"type": "apiKey", "in": place, "name": "key"}
    given = {**secured(scheme, parameters=[parameter]), "openapi": "3.2.0"}
    result, wire = called(given, arguments, tls=True, runner={"secrets": {"key": TOKEN}})
    assert (result.executed, wire.heard) == (False, []) and "which another parameter has" in result.text


def test_a_document_names_no_secret() -> None:
    given = secured({"type": "http", "scheme": "bearer"})
    with pytest.raises(DefinitionError, match=r"name your secret for it, credentials=\{'key': '…'\}"):
        imported(given)
    with pytest.raises(DefinitionError, match=r"'other': '…'\}: .* no supported scheme of this name.* has \['key'\]"):
        imported(given, credentials={"other": "x"})

    async def calls(runner: Runner, wire: Wire) -> Any:
        return (await runner.run("op", {})).success, wire.header("authorization")

    found, _ = run(
        given, calls, tls=True, credentials={"key": "mine"}, runner={"secrets": {"key": "no", "mine": TOKEN}}
    )
    assert found == (True, f"Bearer {TOKEN}")


async def test_a_client_that_shows_somebody_else_does_not_where_a_call_shows_who_calls() -> None:
    async def main() -> list[str | None]:
        async with Wire(tls=True) as wire, trusting() as client:
            client.auth = httpx2.BasicAuth("dev", "password")
            given = secured({"type": "http", "scheme": "bearer"})
            given["paths"]["/y"] = {"get": {"operationId": "y", "security": []}}
            tools = openapi(given, server=wire.url, client=client, credentials={"key": "key"})
            runner = Runner(tools, secrets={"key": TOKEN})
            await runner.run("op", {})
            await runner.run("y", {})
            return [wire.header("authorization", one) for one in (0, 1)]

    assert (await main()) == [f"Bearer {TOKEN}", "Basic ZGV2OnBhc3N3b3Jk"]
    with pytest.raises(DefinitionError, match="client= needs server="):
        openapi(document({"/x": {"get": operation()}}, servers=[{"url": "https://evil.example"}]), client=trusting())


def test_the_first_alternative_that_there_are_secrets_for_is_used_and_nobody_is_the_last() -> None:
    schemes = {name: {"type": "apiKey", "in": "header", "name": f"X-{name}"} for name in "abc"}
    given = {
        **document({"/x": {"get": operation(security=[{}, {"a": [], "b": []}, {"c": []}])}}),
        "components": {"securitySchemes": schemes},
    }
    expected: list[tuple[dict[str, Any], list[str | None]]] = [
        ({}, [None, None, None]),
        ({"c": "C"}, [None, None, "C"]),
        ({"a": "A", "c": "C"}, [None, None, "C"]),
        ({"a": "A", "b": "B", "c": "C"}, ["A", "B", None]),
    ]
    for secrets, values in expected:
        _, wire = called(given, {}, tls=True, runner={"secrets": secrets})
        assert [wire.header(f"X-{name}") for name in "abc"] == values


def test_a_call_without_its_credential_is_not_sent_and_the_log_says_which(caplog: pytest.LogCaptureFixture) -> None:
    given = secured({"type": "http", "scheme": "bearer"})
    for secrets in ({}, {"other": TOKEN}, {"key": "two\nlines"}, {"key": 7}):
        result, wire = called(given, {}, tls=True, runner={"secrets": secrets})
        assert (result.status, result.executed, wire.heard) == ("failed", False, [])
        assert "needs a credential" in result.text and "'key'" not in result.text
    assert "its API needs ['key']" in caplog.text and "'key' must be a text in printable ASCII" in caplog.text
    assert "two\nlines" not in caplog.text


def test_each_principal_has_credentials_of_its_own_and_cookies_are_kept_for_nobody() -> None:
    async def calls(runner: Runner, wire: Wire) -> list[str | None]:
        for name in ("ada", "bob"):
            await runner.run("op", {}, ToolContext(principal=name, secrets={"key": f"token-of-{name}"}))
        return [wire.header("authorization", one) for one in (0, 1)] + [wire.header("cookie", one) for one in (0, 1)]

    kept = answer("200 OK", b"", set_cookie="sid=ada")
    found, _ = run(secured({"type": "http", "scheme": "bearer"}), calls, kept, tls=True)
    assert found == ["Bearer token-of-ada", "Bearer token-of-bob", None, None]


def test_credentials_go_only_to_a_server_that_is_named_and_over_https() -> None:
    given = {**secured({"type": "http", "scheme": "bearer"}), "servers": [{"url": "https://api.example.com"}]}
    with pytest.raises(DefinitionError, match="go only to a server that you name"):
        openapi(given)
    with pytest.raises(DefinitionError, match="go over https only"):
        openapi(given, server="http://api.example.com")
    assert len(openapi(given, server="https://api.example.com", credentials={"key": "key"})) == 1
    assert len(openapi(given, server="http://127.0.0.1:8000", credentials={"key": "key"})) == 1, "this very machine"


def test_where_a_credential_is_optional_it_goes_to_no_server_that_nobody_named() -> None:
    given = {**secured({"type": "http", "scheme": "bearer"}), "servers": [{"url": "https://api.example.com"}]}
    given["security"] = [{}, {"key": []}]
    [tool] = openapi(given)
    assert tool.handler.__self__.security == ()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "scheme", [{"type": "http", "scheme": "digest"}, {"type": "apiKey", "in": "header", "name": "Host"}, {"type": "x"}]
)
def test_an_operation_that_needs_what_is_not_known_is_left_out(scheme: Any) -> None:
    tools = imported(secured(scheme))
    assert not tools and "is not supported: apiKey" in tools.report.left_out[0].reason


ODD = "abc/def+ghi==XYZ"


@pytest.mark.parametrize(
    ("scheme", "secret", "said"),
    [
        ({"type": "http", "scheme": "bearer"}, TOKEN, TOKEN),
        ({"type": "http", "scheme": "basic"}, "ada:open-sesame", "YWRhOm9wZW4tc2VzYW1l"),
        ({"type": "http", "scheme": "basic"}, "ada:open-sesame", "open-sesame"),
        ({"type": "apiKey", "in": "query", "name": "key"}, ODD, ODD),
        ({"type": "apiKey", "in": "query", "name": "key"}, ODD, ODD.replace("/", "\\/")),
        ({"type": "apiKey", "in": "query", "name": "key"}, ODD, "abc%2Fdef%2Bghi%3D%3DXYZ"),
        ({"type": "apiKey", "in": "query", "name": "key"}, "abc&def<ghi", "abc&amp;def&lt;ghi"),
        ({"type": "apiKey", "in": "query", "name": "key"}, ODD, "dXNlcjphYmMvZGVmK2doaT09WFla"),
    ],
)
def test_what_a_server_says_back_of_a_credential_is_stars(scheme: Any, secret: str, said: str) -> None:
    for status in ("200 OK", "400 Bad Request"):
        body = f'{{"you": "{said}", "{said}": [1]}}'.encode()
        result, _ = signed(scheme, secret, answer(status, body, content_type="application/json"))
        assert said not in result.text and said not in str(result.output) and secret not in str(result.output)
        assert "****" in result.text
    result, _ = signed(scheme, secret, answer("200 OK", said.encode(), content_type="text/plain"))
    assert said not in result.text
    result, _ = signed(scheme, secret, answer("200 OK", b"\xff\x00" + said.encode(), content_type="application/x-y"))
    [block] = result.content
    assert isinstance(block, Media) and block.data is not None
    assert said.encode() not in block.data and b"****" in block.data and block.data.startswith(b"\xff\x00")
    result, _ = signed(scheme, secret, answer("200 OK", b"", x_echo=said, set_cookie="sid=7"), method="head")
    assert said not in str(result.output) and "set-cookie" not in result.output


# -- redirects ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "status", "location", "expected"),
    [
        ("get", "302 Found", "/y?z=1", ["GET /x", "GET /y?z=1"]),
        ("get", "301 Moved", "y", ["GET /x", "GET /y"]),
        ("post", "303 See Other", "/y", ["POST /x", "GET /y"]),
        ("post", "307 Temporary", "/y", ["POST /x", "POST /y"]),
        ("post", "308 Permanent", "/y", ["POST /x", "POST /y"]),
        ("post", "302 Found", "/y", ["POST /x"]),
        ("post", "301 Moved", "/y", ["POST /x"]),
        ("get", "302 Found", "https://evil.example/", ["GET /x"]),
        ("get", "302 Found", "//evil.example/", ["GET /x"]),
        ("get", "302 Found", "http://localhost:{port}/y", ["GET /x"]),
        ("get", "302 Found", "https://localhost:1/y", ["GET /x"]),
        ("get", "302 Found", "https://user@localhost:{port}/y", ["GET /x"]),
        ("get", "302 Found", "https://localhost:{port}/a/..%2Fb/%2e%2E/c", ["GET /x"]),
    ],
)
def test_a_redirect_is_followed_on_the_same_server_and_as_the_same_request(
    method: str, status: str, location: str, expected: list[str]
) -> None:
    body = {"content": {"application/json": {"schema": {"type": "object", "properties": {"a": {}}}}}}
    given = secured({"type": "http", "scheme": "bearer"}, method, **({"requestBody": body} if method == "post" else {}))

    async def calls(runner: Runner, wire: Wire) -> ToolResult:
        wire.answers[0] = answer(status, location=location.format(port=wire.port))
        return await runner.run("op", {"a": 1} if method == "post" else {})

    result, wire = run(
        given,
        calls,
        b"",
        answer("200 OK", b'{"done":1}', content_type="application/json"),
        tls=True,
        runner={"secrets": {"key": TOKEN}},
    )
    assert [line.removesuffix(" HTTP/1.1") for line in wire.lines] == expected
    assert result.success == (len(expected) == 2)
    if result.success:
        assert wire.header("authorization") == f"Bearer {TOKEN}"
        assert wire.body() == (b'{"a":1}' if expected[1].startswith("POST") else b"")
    else:
        assert result.executed is None and "which Ferrule does not follow" in result.text


def test_a_server_that_redirects_without_end_is_left() -> None:
    result, wire = called(document({"/x": {"get": operation()}}), {}, answer("302 Found", location="/x"))
    assert len(wire.heard) == 5 and "more than 4 times" in result.text


# -- answers -----------------------------------------------------------------------------------------------------------

KEY = {"type": "apiKey", "in": "header", "name": "x-key"}
ONE = document({"/x": {"get": operation()}})
CHANGE = document({"/x": {"post": operation()}})


@pytest.mark.parametrize(
    ("given", "output"),
    [
        (answer("200 OK", b'{"a":[1,null]}', content_type="application/json; charset=utf-8"), {"a": [1, None]}),
        (answer("200 OK", b"0", content_type="application/problem+json"), 0),
        (answer("200 OK", b"{", content_type="application/json"), "{"),
        (answer("200 OK", "é".encode("latin-1"), content_type="text/plain; charset=latin-1"), "é"),
        (answer("200 OK", b"<a/>", content_type="application/xml"), "<a/>"),
        (answer("200 OK", b"a\xff", content_type="text/plain; charset=nonsense"), "a\ufffd"),
        (answer("200 OK", gzip.compress(b"{}"), content_type="application/json", content_encoding="gzip"), {}),
    ],
)
def test_an_answer_becomes_its_value(given: bytes, output: Any) -> None:
    result, _ = called(ONE, {}, given)
    assert result.success and result.output == output and result.metadata["status"] == 200


@pytest.mark.parametrize(
    ("kind", "expected"), [("image/png", "image"), ("audio/mpeg", "audio"), ("application/pdf", "file")]
)
def test_an_answer_that_is_no_text_is_media(kind: str, expected: str) -> None:
    result, _ = called(ONE, {}, answer("200 OK", b"\x00\xff", content_type=kind))
    [block] = result.content
    assert (block.kind, block.data, block.mime_type) == (expected, b"\x00\xff", kind)  # type: ignore[union-attr]


def test_an_answer_without_a_body_says_its_status_and_place() -> None:
    result, _ = called(CHANGE, {}, answer("201 Created", location="/x/7"))
    assert result.success and result.text == "HTTP 201 Created, Location: /x/7"
    result, _ = called(CHANGE, {}, answer("204 No Content"))
    assert result.success and result.text == "HTTP 204 No Content"


def test_the_headers_are_the_output_of_head() -> None:
    result, _ = called(document({"/x": {"head": operation()}}), {}, b"HTTP/1.1 200 OK\r\nx-total: 3\r\n\r\n")
    assert result.output["x-total"] == "3"


def test_an_error_of_the_caller_is_for_the_model_to_read() -> None:
    result, _ = called(
        CHANGE, {}, answer("422 Unprocessable", b'{"detail":"no such pet"}', content_type="application/json")
    )
    assert (result.status, result.executed) == ("failed", True)
    assert result.text == 'HTTP 422 Unprocessable: {"detail":"no such pet"}'


HEADERS = {name: {"schema": {}} for name in ("X-Total-Count", "Retry-After", "ETag", "Set-Cookie", "X-Missing")}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("200 OK", "application/json"),
        ("206 Partial", "text/plain"),
        ("203 Other", "image/png"),
        ("204 No Content", ""),
        ("404 Not Found", "application/json"),
        ("429 Slow", "text/plain"),
        ("503 Down", "image/png"),
        ("302 Found", ""),
    ],
)
def test_every_answer_has_its_status_and_the_headers_that_the_document_declares(status: str, kind: str) -> None:
    declared = {"200": {"headers": HEADERS}, "default": {"$ref": "#/components/responses/Any"}}
    given = document({"/x": {"get": operation(responses=declared)}}, components={"responses": {"Any": declared["200"]}})
    said = {"x_total_count": "57", "retry_after": "9", "etag": f"W/{TOKEN}", "set_cookie": "sid=1", "x_other": "1"}
    body = b"" if status.startswith("204") else b"[]"
    given |= {"security": [{"key": []}], "components": {**given["components"], "securitySchemes": {"key": KEY}}}
    result, _ = called(
        given, {}, answer(status, body, content_type=kind, **said), tls=True, runner={"secrets": {"key": TOKEN}}
    )
    headers = {"X-Total-Count": "57", "Retry-After": "9", "ETag": f"W/{SECRET_STARS}"}
    assert {**result.metadata, "retry_after": 9.0} == {
        "status": int(status[:3]),
        "headers": headers,
        "retry_after": 9.0,
    }
    assert "There are 57 in all. The server asks to wait 9 s." in result.text
    undeclared, _ = called(ONE, {}, answer(status, body, content_type=kind, **said))
    assert (
        undeclared.metadata["headers"] == {} and "57" not in undeclared.text and "asks to wait" not in undeclared.text
    )


FINAL = [400, 401, 403, 404, 405, 410, 415, 422, 304]
LATER = [408, 425, 429, 500, 502, 503, 504, 599]


@given_values(st.sampled_from([*FINAL, *LATER]), st.sampled_from(["get", "delete", "post"]), st.booleans())
def test_a_final_answer_is_not_asked_for_again(status: int, method: str, is_later: bool) -> None:
    later = status in LATER or is_later
    one = document({"/x": {method: operation()}})
    headers = {"retry_after": "0"} if is_later else {}
    result, wire = called(
        one, {}, answer(f"{status} No", **headers), runner={"inside": [retry(3, wait=0, per_minute=1_000_000)]}
    )
    may = later and (method != "post" or status == 429)
    assert len(wire.heard) == (3 if may else 1)
    assert result.retryable is later and result.record()["retryable"] is later and result.metadata["status"] == status


def test_what_cannot_be_sent_is_not_tried_again() -> None:
    tried: list[float] = []
    options = {"inside": [retry(3, wait=0)], "observers": [lambda event: tried.append(event.kind == "tool:progress")]}
    given = document({"/x/{id}": {"get": operation({"in": "path", "name": "id", "required": True, "schema": {}})}})
    for document_, arguments in ((given, {"id": ".."}), (given, {"id": ""}), (secured(KEY), {})):
        result, wire = called(document_, arguments, tls=True, runner=options)
        assert (result.retryable, result.executed, wire.heard) == (False, False, []) and not any(tried)


def test_of_an_error_of_the_server_nobody_knows_what_it_has_done() -> None:
    result, _ = called(CHANGE, {}, answer("503 Service Unavailable", b"later", retry_after="7"))
    assert (result.status, result.executed, result.metadata["retry_after"]) == ("failed", None, 7.0)
    assert "later" in result.text and "may have been carried out" in result.text


def test_a_request_that_is_limited_may_be_sent_again() -> None:
    limited = answer("429 Too Many Requests", b"slow down", retry_after="0")
    done = answer("200 OK", b'"ok"', content_type="application/json")
    result, wire = called(CHANGE, {}, limited, done, runner={"inside": [retry(2)]})
    assert result.output == "ok" and len(wire.heard) == 2
    result, wire = called(CHANGE, {}, answer("500 Oops"), done, runner={"inside": [retry(2)]})
    assert not result.success and len(wire.heard) == 1, "what may have been carried out is not sent again"


def test_what_was_not_sent_and_what_has_no_answer_are_told_apart() -> None:
    result, _ = called(CHANGE, {}, b"")
    assert (result.status, result.executed) == ("failed", None) and "may have been carried out" in result.text

    async def nobody() -> ToolResult:
        async with Wire() as wire:
            url = wire.url
        return await Runner(openapi(CHANGE, server=url)).run("op", {})

    result = asyncio.run(nobody())
    assert (result.status, result.executed) == ("failed", False) and "Nothing was sent" in result.text


def test_an_answer_is_read_no_further_than_its_bound() -> None:
    class Endless(httpx2.AsyncBaseTransport):
        def __init__(self, kind: str) -> None:
            self.kind, self.given = kind, 0

        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            async def body() -> Any:
                while self.given < 100:
                    self.given += 1
                    yield b"x" * 100_000

            return httpx2.Response(200, headers={"content-type": self.kind}, content=body())

    async def got(kind: str) -> tuple[ToolResult, int]:
        transport = Endless(kind)
        async with httpx2.AsyncClient(transport=transport, trust_env=False) as client:
            tools = openapi(ONE, server="https://api.example.com", client=client)
            return await Runner(tools, sizes=Sizes(output=2_000_000)).run("op", {}), transport.given

    result, given = asyncio.run(got("text/plain"))
    assert given == 11 and result.success and str(result.output).endswith("[cut after 1,000,000 bytes]")
    result, given = asyncio.run(got("image/png"))
    assert given == 11 and not result.success and result.executed is True


@pytest.mark.parametrize("packed", ["br", "zstd", "gzip, br", "gzip, gzip", "nonsense"])
def test_an_answer_that_is_packed_without_a_bound_is_not_read(packed: str) -> None:
    result, _ = called(
        ONE, {}, answer("200 OK", zlib.compress(b"x"), content_type="text/plain", content_encoding=packed)
    )
    assert not result.success and "compressed with another method" in result.text and packed not in result.text


@pytest.mark.parametrize("after", [answer("429 Too Many Requests", retry_after="0"), b""])
def test_what_came_before_a_redirect_is_not_told_as_nothing(after: bytes) -> None:
    async def calls(runner: Runner, wire: Wire) -> ToolResult:
        return await runner.run("op", {})

    seen = answer("303 See Other", location="/done")
    result, wire = run(CHANGE, calls, seen, after, runner={"inside": [retry(2)]})
    assert [line.split()[0] for line in wire.lines] == ["POST", "GET"], "it is not sent again"
    assert not result.success and result.executed is not False and "Nothing was" not in result.text


def test_a_request_that_cannot_be_written_is_told_as_not_sent() -> None:
    given = document({"/x": {"get": operation({"in": "query", "name": "q", "schema": {"type": "string"}})}})
    result, wire = called(given, {"q": "x" * 100_000})
    assert (result.status, result.executed, wire.heard) == ("failed", False, []) and "Nothing was sent" in result.text


@pytest.mark.parametrize("charset", ["punycode", "idna", "undefined", "utf-7", "rot13", "hex"])
def test_an_answer_in_a_codec_that_may_take_long_is_read_as_utf_8(charset: str) -> None:
    kind = f"text/plain; charset={charset}"
    result, _ = called(ONE, {}, answer("200 OK", "é-b0".encode(), content_type=kind))
    assert result.output == "é-b0"


@pytest.mark.parametrize("kind", ["weird", "a/b/c", ";", "image/p\xe9"])
def test_an_answer_of_a_type_that_is_none_is_a_file(kind: str) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-type: " + kind.encode("latin-1") + b"\r\n\r\n\x00"
    result, _ = called(ONE, {}, head)
    assert result.success and result.content[0].kind == "file", result.text  # type: ignore[union-attr]


def test_half_of_a_surrogate_pair_in_an_answer_is_no_error() -> None:
    content = {"application/json": {"schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
    given = document(
        {"/x": {"get": {"operationId": "op", "responses": {"200": {"description": "", "content": content}}}}}
    )
    result, _ = called(given, {}, answer("200 OK", b'{"a":"\\ud800"}', content_type="application/json"))
    assert result.success


def test_a_redirect_to_nowhere_is_no_success() -> None:
    for status in ("304 Not Modified", "300 Multiple Choices"):
        result, _ = called(ONE, {}, answer(status))
        assert result.status == "failed" and status.split()[0] in result.text


# -- the way of a call -------------------------------------------------------------------------------------------------


def test_nothing_is_sent_before_a_person_approves_and_then_once(tmp_path: Any) -> None:
    async def calls(runner: Runner, wire: Wire) -> tuple[ToolResult, int, ToolResult]:
        waiting = await runner.run("op", {})
        before = len(wire.heard)
        return waiting, before, await runner.resume(waiting.record(), True)

    with closing(Journal.open(tmp_path / "calls.db")) as journal:
        options = {"guards": [ask_before_changes], "approve": later, "journal": journal}
        (waiting, before, done), wire = run(CHANGE, calls, runner=options)
    assert (waiting.status, before, done.success, len(wire.heard)) == ("suspended", 0, True, 1)


async def test_a_client_of_ones_own_sends_its_headers_and_keeps_its_cookies_to_itself() -> None:
    async def main() -> tuple[Wire, int]:
        async with Wire(answer("200 OK", b"", set_cookie="sid=1"), tls=True) as wire, trusting() as client:
            client.headers["x-app"] = "mine"
            client.follow_redirects = True
            client.cookies.set("mine", "1")
            runner = Runner(openapi(ONE, server=wire.url, client=client))
            await runner.run("op", {})
            await runner.run("op", {})
            return wire, len(client.cookies)

    wire, _ = await main()
    assert [wire.header("x-app", one) for one in (0, 1)] == ["mine", "mine"]
    assert [wire.header("cookie", one) for one in (0, 1)] == [None, None]


@pytest.mark.parametrize("client", [httpx2.Client, object])
def test_a_client_that_is_none_is_refused(client: Any) -> None:
    with pytest.raises(DefinitionError, match=r"client= must be an httpx2\.AsyncClient"):
        imported(ONE, client=client())


def test_one_toolset_is_called_on_several_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    async def main(tools: Any, port: int) -> int:
        wire = Wire()
        wire._server = await asyncio.start_server(wire._serve, "127.0.0.1", port)
        assert (await Runner(tools).run("op", {})).success
        wire._server.close()
        await wire._server.wait_closed()
        return len(wire.heard)

    async def free() -> int:
        async with Wire() as wire:
            return int(wire.port)

    port = asyncio.run(free())
    tools = openapi(ONE, server=f"http://127.0.0.1:{port}")
    assert [asyncio.run(main(tools, port)) for _ in range(2)] == [1, 1]


# -- what is told of what was sent -------------------------------------------------------------------------------------


class SendsAgain(httpx2.Auth):
    """An `auth` that sends the request, and then another one, to where nobody is."""

    def __init__(self, port: int) -> None:
        self.port = port

    def auth_flow(self, request: httpx2.Request) -> Any:
        yield request
        yield httpx2.Request("GET", f"https://127.0.0.1:{self.port}/")


async def test_what_an_auth_sent_before_it_failed_is_not_told_as_nothing() -> None:
    async def main() -> tuple[ToolResult, Wire]:
        with socket.create_server(("127.0.0.1", 0)) as gone:
            port = gone.getsockname()[1]
        async with Wire(tls=True) as wire, trusting() as client:
            client.auth = SendsAgain(port)
            return await Runner(openapi(CHANGE, server=wire.url, client=client)).run("op", {}), wire

    result, wire = await main()
    assert len(wire.heard) == 1 and (result.status, result.executed) == ("failed", None)
    assert "may have been carried out" in result.text


async def test_a_client_that_was_closed_fails_the_call_and_nothing_else() -> None:
    async def main() -> ToolResult:
        async with trusting() as client:
            runner = Runner(openapi(CHANGE, server="https://127.0.0.1:9", client=client))
        return await runner.run("op", {})

    result = await main()
    assert (result.status, result.executed) == ("failed", None) and "RuntimeError" in result.text


def test_a_redirect_keeps_the_parts_of_a_form() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    given = document({"/x": {"post": operation(requestBody={"content": {"multipart/form-data": {"schema": schema}}})}})
    result, wire = called(given, {"a": "one"}, answer("307 Temporary Redirect", location="/y"), answer("200 OK"))
    assert result.success and wire.body(0) == wire.body(1) and b"one" in wire.body(1)


def test_a_redirect_to_what_is_no_address_is_refused() -> None:
    result, _ = called(ONE, {}, answer("302 Found", location="http://[x/"))
    assert (result.status, result.executed) == ("failed", None) and "redirected" in result.text


def test_a_codec_that_there_is_not_is_read_as_utf_8() -> None:
    result, _ = called(ONE, {}, answer("200 OK", "é".encode(), content_type="text/plain; charset=iso-8859-12"))
    assert result.output == "é"


@pytest.mark.parametrize(
    "given",
    [
        answer(f"400 {TOKEN}", b"no"),
        answer("400 No", b"x" * 1_995 + TOKEN.encode(), content_type="text/plain"),
        answer("200 OK", b"x" * 999_992 + TOKEN.encode(), content_type="text/plain"),
        answer("200 OK", b"x", content_type="text/plain", content_encoding=TOKEN),
        answer(f"204 {TOKEN}"),
    ],
    ids=["reason", "cut error", "cut answer", "encoding", "empty"],
)
def test_no_part_of_a_credential_that_comes_back_is_shown(given: bytes) -> None:
    async def calls(runner: Runner, wire: Wire) -> ToolResult:
        return await runner.run("op", {})

    result, _ = run(
        secured(KEY), calls, given, tls=True, runner={"secrets": {"key": TOKEN}, "sizes": Sizes(output=10**9)}
    )
    assert TOKEN[:5] not in result.text + str(result.output) + str(result.content)


async def test_a_header_that_the_client_adds_is_no_argument() -> None:
    async def main() -> tuple[Any, Wire]:
        parameters = [{"in": "header", "name": name, "schema": {"type": "string"}} for name in ("X_Key", "X-Other")]
        async with Wire(tls=True) as wire, trusting() as client:
            client.headers["X-Key"] = TOKEN
            tools = openapi(document({"/x": {"get": operation(*parameters)}}), server=wire.url, client=client)
            await Runner(tools).run("op", {"X-Other": "1"})
            return tools, wire

    tools, wire = await main()
    [tool] = tools
    assert [*tool.input_schema["properties"]] == ["X-Other"] and wire.header("x-key") == TOKEN
