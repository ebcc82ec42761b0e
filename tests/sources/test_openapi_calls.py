"""Where calls of an API go: servers, credentials, redirects; and what its answers become."""

from __future__ import annotations

import asyncio
import gzip
import logging
import socket
import zlib
from typing import Any

import httpx2
import pytest
from hypothesis import given as given_values
from hypothesis import strategies as st
from openapi_wire import (
    Wire,
    answer,
    called,
    document,
    imported,
    json_answer,
    one,
    operation,
    properties,
    run,
    text_parameter,
    trusting,
)
from pydantic import SecretStr

from ferrule import DefinitionError, Media, Runner, Sizes, ToolContext, ToolResult
from ferrule.middleware import retry
from ferrule.sources import openapi
from ferrule.values.json_text import SECRET_STARS

TOKEN = "token-0123456789"
BEARER = {"type": "http", "scheme": "bearer"}
BASIC = {"type": "http", "scheme": "basic"}
KEY = {"type": "apiKey", "in": "header", "name": "X-Key"}
QUERY_KEY = {"type": "apiKey", "in": "query", "name": "key"}
PUBLIC = [{"url": "https://api.example.com"}]
READ, CHANGE = one("get"), one("post")


def secured(scheme: Any, method: str = "get", **more: Any) -> dict[str, Any]:
    """A document whose one operation needs the scheme, called `key`."""
    given = {**one(method, **more), "security": [{"key": []}]}
    return {**given, "components": {"securitySchemes": {"key": scheme}}}


def signed(scheme: Any, secret: Any, *answers: bytes, **more: Any) -> tuple[ToolResult, Wire]:
    """The result of a call that needs the scheme, and the server, which has TLS."""
    return called(secured(scheme, **more), {}, *answers, tls=True, runner={"secrets": {"key": secret}})


# -- servers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("servers", "why"),
    [
        (None, "names no server"),
        (["/v1"], "is not a whole URL"),
        (["https://{region}.example.com"], "has variables"),
        (["https://a.example.com", "https://b.example.com"], "names 2 servers"),
        (["http://api.example.com"], "is not public and https"),
        (["https://localhost/v1"], "is not public and https"),
        (["https://user:pass@example.com"], "credentials"),
        (["https://example.com\\@evil.example"], "clients read in several ways"),
        (["https://example.com/?x="], "has a '?' or '#'"),
    ],
)
def test_a_server_that_is_open_or_not_public_must_be_named(servers: Any, why: str) -> None:
    given = {**READ, "servers": servers and [{"url": url} for url in servers]}
    with pytest.raises(DefinitionError, match="server=") as raised:
        openapi(given)
    assert why in str(raised.value)


async def test_the_public_server_of_a_document_is_called_only_at_public_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[object] = []

    def resolve(host: object, *rest: Any, **more: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 443))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    result = await Runner(openapi({**READ, "servers": PUBLIC})).run("op", {})
    assert asked == ["api.example.com"]
    assert (result.status, result.executed) == ("failed", False) and "NotReachableError" in result.text


def test_an_operation_has_a_server_of_its_own_only_at_or_below_a_named_one() -> None:
    def urls(named: Any, *servers: str) -> list[str]:
        given = document({"/x": {"servers": [{"url": url} for url in servers], "get": operation()}})
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
    for url, why in (("/admin", "another server, ['/admin']"), ("https://{a}.example.com", "has variables")):
        [left_out] = openapi(one("get", servers=[{"url": url}]), server=api).report.left_out
        assert why in left_out.reason


# -- credentials -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "secret", "header", "value"),
    [
        (BEARER, TOKEN, "authorization", f"Bearer {TOKEN}"),
        ({"type": "http", "scheme": "Bearer"}, SecretStr(TOKEN), "authorization", f"Bearer {TOKEN}"),
        ({"type": "oauth2", "flows": {}}, TOKEN, "authorization", f"Bearer {TOKEN}"),
        (BASIC, "ada:open", "authorization", "Basic YWRhOm9wZW4="),
        (BASIC, ("ada", "o:p"), "authorization", "Basic YWRhOm86cA=="),
        (KEY, TOKEN, "x-key", TOKEN),
        ({"type": "apiKey", "in": "cookie", "name": "sid"}, "a b;c", "cookie", "sid=a%20b%3Bc"),
    ],
)
def test_a_credential_goes_where_its_scheme_says(scheme: Any, secret: Any, header: str, value: str) -> None:
    result, wire = signed(scheme, secret)
    assert result.success, result.text
    assert wire.header(header) == value


def test_a_key_in_the_query_is_sent_and_is_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    result, wire = signed(QUERY_KEY, "a&b/0123")
    assert result.success and wire.lines == ["GET /x?key=a%26b%2F0123 HTTP/1.1"]
    assert "a%26b" not in caplog.text and "a&b/" not in caplog.text


def test_a_credential_is_never_an_argument() -> None:
    given = secured(KEY, parameters=[text_parameter("x_KEY", "header", required=True)])
    tools = imported(given, credentials={"key": "key"})
    assert next(iter(tools)).input_schema["properties"] == {}
    assert tools.report.tools[0].notes == ("the header parameter 'x_KEY' is left out: a credential goes there",)


@pytest.mark.parametrize("place", ["query", "cookie"])
def test_an_object_that_is_spread_cannot_bring_its_own_key(place: str) -> None:
    scheme = {"type": "apiKey", "in": place, "name": "key"}
    given = secured(scheme, parameters=[{"in": place, "name": "all", "schema": {"type": "object"}}])
    result, wire = called(given, {"all": {"key": "mine"}}, tls=True, runner={"secrets": {"key": TOKEN}})
    assert (result.executed, wire.heard) == (False, []) and "which another parameter has" in result.text


def test_the_developer_names_the_secret_of_each_scheme() -> None:
    given = secured(BEARER)
    with pytest.raises(DefinitionError, match=r"credentials=\{'key': 'NAME'\} and Runner\(…, secrets="):
        imported(given)
    with pytest.raises(DefinitionError, match=r"'other': 'NAME'\}: .* no supported scheme of this.* has \['key'\]"):
        imported(given, credentials={"other": "x"})
    secrets = {"key": "no", "mine": TOKEN}
    result, wire = called(given, {}, tls=True, credentials={"key": "mine"}, runner={"secrets": secrets})
    assert result.success and wire.header("authorization") == f"Bearer {TOKEN}"


async def test_a_credential_of_the_client_does_not_replace_that_of_the_call() -> None:
    given = secured(BEARER)
    given["paths"]["/y"] = {"get": {"operationId": "y", "security": []}}
    async with Wire(tls=True) as wire, trusting() as client:
        client.auth = httpx2.BasicAuth("dev", "password")
        tools = openapi(given, server=wire.url, client=client, credentials={"key": "key"})
        runner = Runner(tools, secrets={"key": TOKEN})
        await runner.run("op", {})
        await runner.run("y", {})
    assert [wire.header("authorization", at) for at in (0, 1)] == [f"Bearer {TOKEN}", "Basic ZGV2OnBhc3N3b3Jk"]
    with pytest.raises(DefinitionError, match=r"client= must be an httpx2\.AsyncClient"):
        imported(READ, client=httpx2.Client())
    with pytest.raises(DefinitionError, match="client= needs server="):
        openapi({**READ, "servers": [{"url": "https://evil.example"}]}, client=trusting())


@pytest.mark.parametrize(
    ("secrets", "values"),
    [
        ({}, [None, None, None]),
        ({"a": "A", "c": "C"}, [None, None, "C"]),
        ({"a": "A", "b": "B", "c": "C"}, ["A", "B", None]),
    ],
)
def test_the_first_alternative_whose_secrets_exist_is_used(secrets: Any, values: Any) -> None:
    schemes = {name: {"type": "apiKey", "in": "header", "name": f"X-{name}"} for name in "abc"}
    given = one("get", security=[{}, {"a": [], "b": []}, {"c": []}])
    given["components"] = {"securitySchemes": schemes}
    _, wire = called(given, {}, tls=True, runner={"secrets": secrets})
    assert [wire.header(f"X-{name}") for name in "abc"] == values


def test_a_call_without_its_credential_is_not_sent_and_the_log_says_which(caplog: pytest.LogCaptureFixture) -> None:
    for secrets in ({}, {"other": TOKEN}, {"key": "two\nlines"}, {"key": 7}):
        result, wire = called(secured(BEARER), {}, tls=True, runner={"secrets": secrets})
        assert (result.status, result.executed, wire.heard) == ("failed", False, [])
        assert "needs a credential" in result.text and "'key'" not in result.text
        called(secured(BEARER), {}, tls=True, credentials={"key": TOKEN}, runner={"secrets": secrets})
    assert TOKEN not in caplog.text, "a secret in place of its name"
    assert "needs a secret for ['key']" in caplog.text and "'key' must be a text in printable ASCII" in caplog.text
    assert "two\nlines" not in caplog.text


def test_each_principal_has_credentials_of_its_own_and_no_cookie_is_kept() -> None:
    async def calls(runner: Runner, wire: Wire) -> None:
        for name in ("ada", "bob"):
            await runner.run("op", {}, ToolContext(principal=name, secrets={"key": f"token-of-{name}"}))

    _, wire = run(secured(BEARER), calls, answer("200 OK", b"", set_cookie="sid=ada"), tls=True)
    assert [wire.header("authorization", at) for at in (0, 1)] == ["Bearer token-of-ada", "Bearer token-of-bob"]
    assert [wire.header("cookie", at) for at in (0, 1)] == [None, None]


def test_credentials_go_only_to_named_servers() -> None:
    given = {**secured(BEARER), "servers": PUBLIC}
    with pytest.raises(DefinitionError, match="go only to a server that you name"):
        openapi(given)
    with pytest.raises(DefinitionError, match="go over https only"):
        openapi(given, server="http://api.example.com")
    for server in ("https://api.example.com", "http://127.0.0.1:8000"):  # the second is this very machine
        assert len(openapi(given, server=server, credentials={"key": "key"})) == 1
    [tool] = openapi({**given, "security": [{}, {"key": []}]})
    assert tool.handler.__self__.security == ()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "scheme", [{"type": "http", "scheme": "digest"}, {"type": "apiKey", "in": "header", "name": "Host"}, {"type": "x"}]
)
def test_an_operation_with_an_unsupported_scheme_is_left_out(scheme: Any) -> None:
    tools = imported(secured(scheme))
    assert not tools and "is not supported: apiKey" in tools.report.left_out[0].reason


ODD = "abc/def+ghi==XYZ"


@pytest.mark.parametrize(
    ("scheme", "secret", "said"),
    [
        (BEARER, TOKEN, TOKEN),
        (BASIC, "ada:open-sesame", "open-sesame"),
        (QUERY_KEY, ODD, ODD.replace("/", "\\/")),
        (QUERY_KEY, ODD, "abc%2Fdef%2Bghi%3D%3DXYZ"),
        (QUERY_KEY, "abc&def<ghi", "abc&amp;def&lt;ghi"),
    ],
)
def test_a_credential_that_a_server_repeats_is_masked(scheme: Any, secret: str, said: str) -> None:
    for status in ("200 OK", "400 Bad Request"):
        result, _ = signed(scheme, secret, json_answer(f'{{"you": "{said}", "{said}": [1]}}'.encode(), status))
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


@pytest.mark.parametrize(
    "given",
    [
        answer(f"400 {TOKEN}", b"no"),
        answer("400 No", b"x" * 1_995 + TOKEN.encode(), content_type="text/plain"),
        answer("200 OK", b"x" * 999_992 + TOKEN.encode(), content_type="text/plain"),
    ],
    ids=["reason", "cut error", "cut answer"],
)
def test_no_part_of_a_repeated_credential_is_shown(given: bytes) -> None:
    options = {"secrets": {"key": TOKEN}, "sizes": Sizes(output=10**9)}
    result, _ = called(secured(KEY), {}, given, tls=True, runner=options)
    assert TOKEN[:5] not in result.text + str(result.output) + str(result.content)


# -- redirects ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "status", "location", "expected"),
    [
        ("get", "302 Found", "/y?z=1", ["GET /x", "GET /y?z=1"]),
        ("post", "303 See Other", "/y", ["POST /x", "GET /y"]),
        ("post", "307 Temporary", "/y", ["POST /x", "POST /y"]),
        ("post", "302 Found", "/y", ["POST /x"]),
        ("get", "302 Found", "https://evil.example/", ["GET /x"]),
        ("get", "302 Found", "http://localhost:{port}/y", ["GET /x"]),
        ("get", "302 Found", "https://localhost:{port}/a/..%2Fb/%2e%2E/c", ["GET /x"]),
        ("get", "302 Found", "http://[x/", ["GET /x"]),
    ],
)
def test_a_redirect_is_followed_on_the_same_server_and_as_the_same_request(
    method: str, status: str, location: str, expected: list[str]
) -> None:
    body = {"content": {"application/json": {"schema": properties(a={})}}}
    given = secured(BEARER, method, **({"requestBody": body} if method == "post" else {}))

    async def calls(runner: Runner, wire: Wire) -> ToolResult:
        wire.answers[0] = answer(status, location=location.format(port=wire.port))
        return await runner.run("op", {"a": 1} if method == "post" else {})

    result, wire = run(given, calls, b"", json_answer(b'{"done":1}'), tls=True, runner={"secrets": {"key": TOKEN}})
    assert [line.removesuffix(" HTTP/1.1") for line in wire.lines] == expected
    assert result.success == (len(expected) == 2)
    if result.success:
        assert wire.header("authorization") == f"Bearer {TOKEN}"
        assert wire.body() == (b'{"a":1}' if expected[1].startswith("POST") else b"")
    else:
        assert result.executed is None and "redirected" in result.text


def test_a_server_that_redirects_without_end_is_left() -> None:
    result, wire = called(READ, {}, answer("302 Found", location="/x"))
    assert len(wire.heard) == 5 and "more than 4 times" in result.text


@pytest.mark.parametrize("after", [answer("429 Too Many Requests", retry_after="0"), b""])
def test_a_request_that_was_redirected_does_not_count_as_not_sent(after: bytes) -> None:
    seen = answer("303 See Other", location="/done")
    result, wire = called(CHANGE, {}, seen, after, runner={"inside": [retry(2)]})
    assert [line.split()[0] for line in wire.lines] == ["POST", "GET"], "it is not sent again"
    assert not result.success and result.executed is not False and "Nothing was" not in result.text


# -- answers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "output"),
    [
        (answer("200 OK", b'{"a":[1,null]}', content_type="application/json; charset=utf-8"), {"a": [1, None]}),
        (answer("200 OK", b"0", content_type="application/problem+json"), 0),
        (json_answer(b"{"), "{"),
        (json_answer(b'{"a":"\\ud800"}'), {"a": "\ufffd"}),
        (answer("200 OK", "é".encode("latin-1"), content_type="text/plain; charset=latin-1"), "é"),
        (answer("200 OK", b"a\xff", content_type="text/plain; charset=nonsense"), "a\ufffd"),
        (json_answer(gzip.compress(b"{}"), content_encoding="gzip"), {}),
    ],
)
def test_an_answer_becomes_its_value(given: bytes, output: Any) -> None:
    result, _ = called(READ, {}, given)
    assert result.success and result.output == output and result.metadata["status"] == 200


@pytest.mark.parametrize(
    ("kind", "expected"), [("image/png", "image"), ("audio/mpeg", "audio"), ("application/pdf", "file"), ("x", "file")]
)
def test_an_answer_that_is_not_text_is_media(kind: str, expected: str) -> None:
    result, _ = called(READ, {}, answer("200 OK", b"\x00\xff", content_type=kind))
    [block] = result.content
    assert (block.kind, block.data) == (expected, b"\x00\xff")  # type: ignore[union-attr]


def test_an_answer_without_a_body_says_its_status_and_place() -> None:
    result, _ = called(CHANGE, {}, answer("201 Created", location="/x/7"))
    assert result.success and result.text == "HTTP 201 Created, Location: /x/7"
    result, _ = called(CHANGE, {}, answer("204 No Content"))
    assert result.success and result.text == "HTTP 204 No Content"
    result, _ = called(one("head"), {}, b"HTTP/1.1 200 OK\r\nx-total: 3\r\n\r\n")
    assert result.output["x-total"] == "3"


@pytest.mark.parametrize(("status", "kind"), [("200 OK", "application/json"), ("503 Down", "text/plain")])
def test_each_answer_has_its_status_and_the_headers_that_the_document_declares(status: str, kind: str) -> None:
    names = ("X-Total-Count", "Retry-After", "ETag", "Set-Cookie", "X-Missing")
    any_answer = {"headers": {name: {"schema": {}} for name in names}}
    given = secured(KEY, responses={"200": any_answer, "default": {"$ref": "#/components/responses/Any"}})
    given["components"]["responses"] = {"Any": any_answer}
    said = {"x_total_count": "57", "retry_after": "9", "etag": f"W/{TOKEN}", "set_cookie": "sid=1", "x_other": "1"}
    reply = answer(status, b"[]", content_type=kind, **said)
    result, _ = called(given, {}, reply, tls=True, runner={"secrets": {"key": TOKEN}})
    headers = {"X-Total-Count": "57", "Retry-After": "9", "ETag": f"W/{SECRET_STARS}"}
    expected = {"status": int(status[:3]), "headers": headers, "retry_after": 9.0}
    assert {**result.metadata, "retry_after": 9.0} == expected
    assert "There are 57 in all. The server asks to wait 9 s." in result.text
    undeclared, _ = called(READ, {}, reply)
    assert undeclared.metadata["headers"] == {}
    assert "57" not in undeclared.text and "asks to wait" not in undeclared.text


def test_an_answer_is_read_only_to_its_bound() -> None:
    async def call(kind: str) -> ToolResult:
        given: list[bytes] = []

        async def body() -> Any:
            while len(given) < 100:
                given.append(b"x" * 100_000)
                yield given[-1]

        transport = httpx2.MockTransport(
            lambda request: httpx2.Response(200, headers={"content-type": kind}, content=body())
        )
        async with httpx2.AsyncClient(transport=transport, trust_env=False) as client:
            tools = openapi(READ, server="https://api.example.com", client=client)
            result = await Runner(tools, sizes=Sizes(output=2_000_000)).run("op", {})
        assert len(given) == 11
        return result

    result = asyncio.run(call("text/plain"))
    assert result.success and str(result.output).endswith("[cut after 1,000,000 bytes]")
    result = asyncio.run(call("image/png"))
    assert not result.success and result.executed is True


@pytest.mark.parametrize("packed", ["br", "gzip, gzip"])
def test_an_answer_with_an_unbounded_compression_is_not_read(packed: str) -> None:
    given = answer("200 OK", zlib.compress(b"x"), content_type="text/plain", content_encoding=packed)
    result, wire = called(READ, {}, given)
    assert not result.success and "compressed with another method" in result.text and packed not in result.text
    assert wire.header("accept-encoding") == "identity", "none is asked for"


# -- what was sent -----------------------------------------------------------------------------------------------------

FINAL = [400, 401, 403, 404, 405, 410, 415, 422, 304]
LATER = [408, 425, 429, 500, 502, 503, 504, 599]


@given_values(st.sampled_from([*FINAL, *LATER]), st.sampled_from(["get", "delete", "post"]), st.booleans())
def test_only_a_temporary_refusal_is_asked_for_again(status: int, method: str, is_later: bool) -> None:
    later = status in LATER or is_later
    headers = {"retry_after": "0"} if is_later else {}
    options = {"inside": [retry(3, wait=0, per_minute=1_000_000)]}
    result, wire = called(one(method), {}, answer(f"{status} No", **headers), runner=options)
    may = later and (method != "post" or status == 429)
    assert len(wire.heard) == (3 if may else 1)
    assert result.retryable is later and result.record()["retryable"] is later and result.metadata["status"] == status


def test_a_request_that_cannot_be_sent_is_not_tried_again() -> None:
    tried: list[float] = []
    options = {"inside": [retry(3, wait=0)], "observers": [lambda event: tried.append(event.kind == "tool:progress")]}
    given = one("get", {"in": "path", "name": "id", "required": True, "schema": {}}, path="/x/{id}")
    for document_, arguments in ((given, {"id": ".."}), (given, {"id": ""}), (secured(KEY), {})):
        result, wire = called(document_, arguments, tls=True, runner=options)
        assert (result.retryable, result.executed, wire.heard) == (False, False, []) and not any(tried)


def test_a_request_that_was_not_sent_is_told_from_one_without_an_answer() -> None:
    result, _ = called(CHANGE, {}, answer("503 Service Unavailable", b"later", retry_after="7"))
    assert (result.status, result.executed, result.metadata["retry_after"]) == ("failed", None, 7.0)
    assert "later" in result.text and "may have been carried out" in result.text
    result, _ = called(CHANGE, {}, b"")
    assert (result.status, result.executed) == ("failed", None) and "may have been carried out" in result.text

    for reply in (answer("503 Service Unavailable", b"later"), answer("503 No"), b""):
        result, _ = called(one("get"), {}, reply)
        assert (result.status, result.executed) == ("failed", None) and "carried out" not in result.text

    async def call_nobody() -> ToolResult:
        async with Wire() as wire:
            url = wire.url
        return await Runner(openapi(CHANGE, server=url)).run("op", {})

    result = asyncio.run(call_nobody())
    assert (result.status, result.executed) == ("failed", False)
    assert "Nothing was run" in result.text and "sent" not in result.text
    result, wire = called(one("get", text_parameter("q")), {"q": "x" * 100_000})  # which cannot be written
    assert (result.status, result.executed, wire.heard) == ("failed", False, [])
    assert "Nothing was run" in result.text and "sent" not in result.text


# -- a client of one's own ---------------------------------------------------------------------------------------------


async def test_a_client_sends_its_headers_and_keeps_its_cookies_to_itself() -> None:
    given = one("get", text_parameter("X_App", "header"), text_parameter("X-Other", "header"))
    async with Wire(answer("200 OK", b"", set_cookie="sid=1"), tls=True) as wire, trusting() as client:
        client.headers["x-app"] = "mine"
        client.follow_redirects = True
        client.cookies.set("mine", "1")
        [tool] = tools = openapi(given, server=wire.url, client=client)
        runner = Runner(tools)
        await runner.run("op", {"X-Other": "1"})
        await runner.run("op", {})
    assert [*tool.input_schema["properties"]] == ["X-Other"], "its header is no argument"
    assert [wire.header("x-app", at) for at in (0, 1)] == ["mine", "mine"]
    assert [wire.header("cookie", at) for at in (0, 1)] == [None, None]
