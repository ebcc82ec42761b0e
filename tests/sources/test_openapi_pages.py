"""Lists in pages: which are followed, how far, and what the model reads of the next page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from itertools import chain
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openapi_wire import Reply, Wire, answer, called, document, json_answer, operation, run

from ferrule import Runner, ToolResult
from ferrule.sources import openapi
from ferrule.testing import ManualClock

TOKEN = "token-0123456789"
INTEGER, TEXT, ITEMS = {"type": "integer"}, {"type": "string"}, {"type": "array", "items": {"type": "integer"}}
LINK = {"Link": {"schema": TEXT}}


def listing(
    parameter: str | None = None, schema: Any = TEXT, *, body: Any = ITEMS, headers: Any = None, **more: Any
) -> dict[str, Any]:
    """A document with one list, which takes this parameter and answers with this body."""
    answered = {"description": "", "headers": headers or {}, "content": {"application/json": {"schema": body}}}
    query = [{"in": "query", "name": parameter, "schema": schema}] if parameter else []
    return document({"/x": {"get": operation(*query, responses={"200": {**answered}})}}, **more)


def fields(**schemas: Any) -> dict[str, Any]:
    """The schema of an object with items and these fields."""
    return {"type": "object", "properties": {"items": ITEMS, **schemas}}


def page(body: Any, **headers: str) -> bytes:
    return json_answer(json.dumps(body).encode(), **headers)


def by_header(at: int, after: int | None, part: list[int], total: int) -> bytes:
    return page(part, link=f'</x>; rel="first", </x?at={after}>; rel="next"' if after else '</x>; rel="first"')


URL, MAYBE = {"type": "string", "format": "uri"}, {"type": ["string", "null"]}
PAGE = {**INTEGER, "default": 1}
Scheme = tuple[dict[str, Any], Callable[[int, int | None, list[int], int], bytes]]
SCHEMES: dict[str, Scheme] = {
    "Link": (listing("at", INTEGER, headers=LINK), by_header),
    "address": (
        listing("at", INTEGER, body=fields(next=URL)),
        lambda at, after, part, total: page({"items": part, "next": f"/x?at={after}" if after else None}),
    ),
    "address below": (
        listing("at", INTEGER, body={**fields(), "allOf": [fields(_links=fields(next=fields(href=TEXT)))]}),
        lambda at, after, part, total: page(
            {"items": part, "_links": {"next": {"href": f"/x?at={after}"}} if after else {}}
        ),
    ),
    "cursor": (
        listing("cursor", body=fields(next_cursor=MAYBE)),
        lambda at, after, part, total: page({"items": part, "next_cursor": after and str(after)}),
    ),
    "token": (
        listing("pageToken", body=fields(meta={"type": "object", "properties": {"nextPageToken": TEXT}})),
        lambda at, after, part, total: page({"items": part, "meta": {"nextPageToken": str(after or "")}}),
    ),
    "number of pages": (
        listing("page", PAGE, body=fields(total_pages=INTEGER)),
        lambda at, after, part, total: page({"items": part, "total_pages": total}),
    ),
    "more": (
        listing("page", INTEGER, body=fields(page=INTEGER, has_more={"type": "boolean"})),
        lambda at, after, part, total: page({"items": part, "page": at + 1, "has_more": after is not None}),
    ),
    "total": (
        listing("page", {**INTEGER, "minimum": 1}, headers={"X-Total-Count": {"schema": INTEGER}}),
        lambda at, after, part, total: page(part, x_total_count="{count}"),
    ),
}


def serve(scheme: str, items: list[int], size: int) -> Reply:
    """A server with these items, so many in a page; by a cursor, an address or a page number."""
    make = SCHEMES[scheme][1]
    total = max(-(-len(items) // size), 1)

    def reply(address: str) -> bytes:
        query = parse_qs(urlsplit(address).query)
        name, *_ = next(iter(query.items()), ("", []))
        at = int(query[name][0]) - (name == "page") if name else 0
        after = at + 1 if at + 1 < total else None
        made = make(at, after, items[at * size :][:size], total)
        return made.replace(b"{count}", str(len(items)).encode())

    return reply


@pytest.mark.large
@pytest.mark.parametrize("scheme", SCHEMES)
@given(items=st.lists(st.integers(0, 9), max_size=12), size=st.integers(1, 4), pages=st.integers(1, 4))
def test_pages_are_read_and_the_next_ones_are_reached_by_the_told_arguments(
    scheme: str, items: list[int], size: int, pages: int
) -> None:
    async def calls(runner: Runner, wire: Wire) -> list[ToolResult]:
        results = [await runner.run("op", {})]
        while (more := results[-1].metadata.get("next_page")) is not None:
            assert json.dumps(dict(more)) in results[-1].text and len(results) < 20
            results.append(await runner.run("op", dict(more)))
        return results

    results, wire = run(SCHEMES[scheme][0], calls, serve(scheme, items, size), pages=pages)
    found = [one.output if isinstance(one.output, list) else one.output["items"] for one in results]
    if scheme != "total" or pages * size >= len(items):  # how many come before a page in the middle, nobody knows
        assert [*chain(*found)] == items
        assert len(wire.heard) == max(-(-len(items) // size), 1)
    assert found[0] == items[: size * pages]
    assert all(len(one) <= size * pages for one in found)


@pytest.mark.parametrize(
    ("given", "first"),
    [
        (listing("cursor", body=fields(next=TEXT)), {"items": [1], "next": "b"}),
        (listing("page", PAGE), [1]),
        (listing("page", INTEGER, body=fields(has_more={"type": "boolean"})), {"items": [1], "has_more": True}),
        (document({"/x": {"post": listing("cursor", body=fields(next_cursor=TEXT))["paths"]["/x"]["get"]}}), {}),
    ],
)
def test_a_page_that_the_document_does_not_declare_is_not_followed(given: Any, first: Any) -> None:
    result, wire = called(given, {}, page(first, link='</x?page=2>; rel="next"'), pages=5)
    assert len(wire.heard) == 1 and result.output == first and "next page" not in result.text


def test_the_model_reads_of_a_next_page_that_no_argument_leads_to() -> None:
    result, wire = called(listing(headers=LINK), {}, page([1], link='</y?after=b>; rel="next"'))
    assert len(wire.heard) == 1 and result.metadata["next_page"] is None
    assert result.text.endswith("There is a next page, to which no argument of op leads.")
    assert result.metadata["headers"] == {"Link": '</y?after=b>; rel="next"'}
    result, wire = called(listing(headers=LINK), {}, page([1], link='</y?after=b>; rel="next"'), page([2]), pages=2)
    assert result.output == [1, 2] and [one.split()[1] for one in wire.lines] == ["/x", "/y?after=b"]


@pytest.mark.parametrize(
    "target", ["{other}/x?at=2", "//127.0.0.1:{port}1/x?at=2", "{url}/../admin?at=2", "/x?at=2", "http://[x/"]
)
async def test_no_page_is_read_except_below_the_named_server(target: str) -> None:
    async with Wire() as other, Wire() as wire:
        where = target.format(other=other.url, url=f"{wire.url}/api", port=wire.port)
        wire.answers = [page([1], link=f'<{where}>; rel="next"'), page([2])]
        runner = Runner(openapi(listing("at", INTEGER, headers=LINK), server=f"{wire.url}/api", pages=5))
        result = await runner.run("op", {})
    assert (len(wire.heard), other.heard, result.output) == (1, [], [1])
    assert result.text.endswith("There is a next page on another server, and it is not read.")


@pytest.mark.parametrize("place", ["header", "query"])
@pytest.mark.parametrize("link", ["/x?at=2", "/y?at=2&key=other", "/y?key=%2A%2A&at=2"])
def test_credentials_and_other_arguments_stay_on_all_pages(place: str, link: str) -> None:
    given = listing("at", INTEGER, headers=LINK, security=[{"key": []}])
    given["components"] = {"securitySchemes": {"key": {"type": "apiKey", "in": place, "name": "key"}}}
    parameters = given["paths"]["/x"]["get"]["parameters"]
    parameters.append({"in": "header", "name": "X-Tenant", "schema": TEXT})
    arguments = {"X-Tenant": "blue"}
    pages = page([1], link=f'<{link}>; rel="next"'), page([2], x_echo=TOKEN)
    result, wire = called(given, arguments, *pages, tls=True, pages=2, runner={"secrets": {"key": TOKEN}})
    assert result.output == [1, 2] and wire.header("x-tenant") == "blue"
    sent = parse_qs(urlsplit(wire.lines[1].split()[1]).query)
    assert sent["at"] == ["2"] and (wire.header("key") if place == "header" else sent["key"]) in (TOKEN, [TOKEN])


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (answer("503 Service Unavailable", b"later"), "HTTP 503"),
        (b"", "gave no answer"),
        (json_answer(b"[2"), ""),
        (page({"problem": 7}), "no list"),
        (page(["x" * 1_000_000]), "over 1,000,000 bytes"),
        (page([2], link='</x?at=2>; rel="next"'), "read before"),
        (answer("302 Found", location="http://elsewhere.invalid/"), "redirected"),
    ],
    ids=["5xx", "silence", "no JSON", "no list", "large", "round", "redirect"],
)
def test_a_page_that_fails_leaves_the_earlier_ones_and_says_so(second: bytes, why: str) -> None:
    given = listing("at", INTEGER, headers=LINK)
    result, wire = called(given, {}, page([1], link='</x?at=2>; rel="next"'), second, pages=5)
    goes_round = why == "read before"
    assert result.success and result.output == ([1, 2] if goes_round else [1]) and len(wire.heard) == 2
    assert "The list is not complete: page" in result.text and why in result.text
    assert result.metadata["pages"] == len(result.output)
    assert result.metadata.get("next_page") == (None if goes_round else {"at": 2})


async def test_a_deadline_ends_the_pages_and_not_the_call() -> None:
    gone = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        wire.heard.append(b"")
        if len(wire.heard) == 1:
            writer.write(page([1], link='</x?at=2>; rel="next"'))
        else:
            await gone.wait()
        writer.close()

    wire = Wire()
    async with await asyncio.start_server(hang, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        tools = openapi(listing("at", INTEGER, headers=LINK), server=url, pages=5)
        try:
            result = await Runner(tools, timeout=0.3, clock=ManualClock()).run("op", {})
        finally:
            gone.set()
    assert (result.status, result.output) == ("ok", [1])
    assert "The list is not complete" in result.text
