"""Nobody but the signed-in person acts, and nothing that a stranger wrote is markup."""

from __future__ import annotations

import html
import logging
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import hostile_desk
import pytest
from desk_tools import PRICES, tools
from hostile_desk import PAYLOADS
from visitors import HOST, Tags, Visitor, mount, visit

from ferrule import DefinitionError, Journal, Runner, Text, approval, tool, web
from ferrule.guards import ask_before_changes
from ferrule.web.live import MOST_STREAMS
from ferrule.web.page_app import VIEWS
from ferrule.web.shown import make_tree
from ferrule.web.sign_in import SignIn

ADDRESSES = {"href", "src", "action", "formaction", "data-live", "data-swap-to", "data-get", "srcset", "xlink:href"}


# -- who may act -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: f"{view.method} {view.path}")
async def test_nobody_sees_a_view_without_a_sign_in(view: Any) -> None:
    async with visit(Runner(tools), "") as [nobody]:
        response = await nobody.client.request(view.method, view.path)
    assert response.status_code == 401 and "stock" not in response.text


async def test_a_sign_in_that_raises_lets_nobody_in(caplog: pytest.LogCaptureFixture) -> None:
    def broken(request: Any) -> str:
        raise RuntimeError("no database")

    visitor = Visitor(web.app(Runner(tools), authenticate=broken))
    with caplog.at_level(logging.CRITICAL):
        response = await visitor.client.get("/tools")
    await visitor.client.aclose()
    assert response.status_code == 401 and "no database" not in response.text


def test_the_page_needs_a_sign_in() -> None:
    with pytest.raises(DefinitionError, match="returns the person's name"):
        web.app(Runner(tools), authenticate=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({"origin": "http://evil.test"}, {}),
        ({"origin": "null"}, {}),
        ({"origin": ""}, {}),
        ({"origin": f"http://{HOST}.evil.test"}, {}),
        ({"origin": f"http://{HOST}:81"}, {}),
        ({"sec-fetch-site": "cross-site"}, {}),
        ({"sec-fetch-site": "same-site"}, {}),
        ({"host": "a b"}, {}),
        ({"cookie": "ferrule_page=other"}, {}),
        ({"cookie": ""}, {}),
        ({}, {"token": ""}),
        ({}, {"token": "0" * 64}),
        ({}, {"token": "é"}),
    ],
)
async def test_a_forged_form_does_nothing(headers: dict[str, str], fields: dict[str, str]) -> None:
    async with visit(Runner(tools, guards=[ask_before_changes])) as ann:
        await ann.call("set_price", article="tea", euros=9)
        shown = await ann.question()
        token = await ann.token()
        data = {"token": token, **shown, "answer": "approve", **fields}
        response = await ann.client.post("/approvals/answer", data=data, headers=headers)
        assert response.status_code in (403, 421) and PRICES["tea"] == 4
        assert "set_price" in await ann.get("/approvals")


@pytest.mark.parametrize("path", [view.path for view in VIEWS if view.changes])
async def test_a_read_only_page_changes_nothing(path: str) -> None:
    runner = Runner(tools, guards=[ask_before_changes], approve=approval.later)
    queue = approval.web(tools=runner.tools)
    await queue.put(await runner.run("set_price", {"article": "tea", "euros": 9}))
    async with visit(runner, read_only=True, queue=queue) as ann:
        fields = {"name": "stock", "mode": "form", "id": (await queue.waiting())[0].id, "answer": "approve"}
        response = await ann.client.post(path, data={"token": await ann.token(), **fields})
        assert response.status_code == 403
        pages = [await ann.get(one) for one in ("/tool?name=stock", "/approvals", "/tools")]
    assert not any(word in page for page in pages for word in ('action="/tool/call"', ">Deny", "Approve<", "Edit…"))
    assert PRICES["tea"] == 4


@pytest.mark.parametrize("principal", ["", "zed", "Ann"])
async def test_nobody_calls_under_another_name_to_allow_it_themselves(principal: str) -> None:
    runner = Runner(tools, guards=[ask_before_changes], approve=approval.later)
    queue = approval.web(tools=runner.tools, own=False)
    fields = {"name": "set_price", "mode": "json", "json": '{"article": "tea", "euros": 9}'}
    async with visit(runner, queue=queue) as ann:
        refused = await ann.send("/tool/call", {**fields, "principal": principal})
        assert refused.status_code == 403 and "under your own name" in refused.text
        assert await queue.waiting() == []
        assert (await ann.send("/tool/call", {**fields, "principal": "ann"})).status_code == 303


async def test_the_name_of_who_answers_is_never_in_the_form() -> None:
    async with visit(Runner(tools, guards=[ask_before_changes])) as ann:
        address = await ann.call("order", **{"lines#on": "1", "ship": "0", "ship#drawn": "0", "ship/0/day": '"monday"'})
        assert "Waits for your answer" in await ann.get(address)
        await ann.answer("approve", await ann.question(), by="eve", person="eve", answered_by="eve")
        page = await ann.get(await ann.end(address))
    assert "allowed by ann" in page and "eve" not in page


# -- the link of `ferrule inspect` -------------------------------------------------------------------------------------


class Loopback:
    """A page with the sign-in of `ferrule inspect`, at an address without a socket."""

    def __init__(self, key: bytes = b"s" * 32) -> None:
        from ferrule.web.page_app import PageApp
        from ferrule.web.state import Inspector

        self.links: list[str] = []
        self.sign_in = SignIn(key, "ann", self.links.append)
        self.app = PageApp(Inspector(Runner(tools)), self.sign_in.authenticate, sign_in=self.sign_in)
        self.app.serve_only([HOST])
        self.links.append(self.sign_in.open(f"http://{HOST}"))

    def visitor(self) -> Visitor:
        return Visitor(self.app)

    async def open(self, visitor: Visitor, link: str) -> int:
        response = await visitor.client.post("/sign-in", data={"token": link.partition("#")[2]})
        return response.status_code


async def test_a_link_works_once() -> None:
    server = Loopback()
    first, second = server.visitor(), server.visitor()
    assert (await first.client.get("/tools")).status_code == 401
    assert await server.open(first, server.links[0]) == 303 and "stock" in await first.get("/tools")
    assert await server.open(second, server.links[0]) == 401
    assert (await second.client.get("/tools")).status_code == 401
    assert len(server.links) == 2 and await server.open(second, server.links[1]) == 303
    assert "stock" in await second.get("/tools")


async def test_a_session_outlives_a_restart_with_the_same_key_only() -> None:
    server, restarted, other = Loopback(), Loopback(), Loopback(b"t" * 32)
    ann = server.visitor()
    await server.open(ann, server.links[0])
    cookies = dict(ann.client.cookies)
    for app, expected in ((restarted.app, 200), (other.app, 401)):
        visitor = Visitor(app)
        visitor.client.cookies.update(cookies)
        assert (await visitor.client.get("/tools")).status_code == expected
    [name] = [name for name in cookies if name.startswith("ferrule_session")]
    for forged in ("", "..", "a.9999999999.b", cookies[name] + "0", cookies[name].replace(".", ".9", 1)):
        visitor = Visitor(server.app)
        visitor.client.cookies.set(name, forged)
        assert (await visitor.client.get("/tools")).status_code == 401


async def test_the_cookies_are_out_of_reach_of_scripts_and_other_sites() -> None:
    server = Loopback()
    ann = server.visitor()
    response = await ann.client.post("/sign-in", data={"token": server.links[0].partition("#")[2]})
    cookies = [response.headers["set-cookie"], (await ann.client.get("/tools")).headers["set-cookie"]]
    assert all("HttpOnly" in cookie and "SameSite=strict" in cookie for cookie in cookies)
    async with visit(Runner(tools)) as bob:
        assert "Secure" in (await bob.client.get(f"https://{HOST}/tools")).headers["set-cookie"]
    response = await server.visitor().client.post(
        "/sign-in", data={"token": "x"}, headers={"origin": "http://evil.test"}
    )
    assert response.status_code == 403


async def test_a_foreign_host_name_reaches_nothing() -> None:
    server = Loopback()
    ann = server.visitor()
    await server.open(ann, server.links[0])
    for path in ("/tools", "/tools/", "/events?topic=calls", "/static/page.js", "/nothing"):
        response = await ann.client.get(path, headers={"host": "evil.test"})
        assert response.status_code in (404, 421) and "stock" not in response.text
        assert "evil" not in str(response.headers)


# -- what strangers write ----------------------------------------------------------------------------------------------


class Addresses(HTMLParser):
    """The addresses in a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ADDRESSES]


async def draw_everything(texts: list[str], journal: Any) -> dict[str, str]:
    """All pages of a desk where the texts are in every field."""
    runner = hostile_desk.make_runner(texts, journal=journal)
    pages: dict[str, str] = {}
    app = mount(runner)
    visitor = Visitor(app, "ann")
    for call, context in hostile_desk.list_calls(runner, texts):
        run = app.inspector.runs.begin(app.inspector.runner, call, context)  # type: ignore[arg-type]
        assert run.task is not None
        await run.task
        if call.arguments.get("kind") in ("text", "deny"):
            await journal.flush()
            name = f"run-{call.arguments['kind']} {len(pages)}"
            pages[name] = (await visitor.client.get("/run", params={"id": run.id})).text
    await journal.flush()
    token = await visitor.token()
    for number, one in enumerate(runner.tools):
        text = texts[number]
        pages[f"tool {number}"] = (await visitor.client.get("/tool", params={"name": one.name})).text
        fields = {"name": one.name, "mode": "json", "json": text, "principal": text, "action": "try"}
        pages[f"try {number}"] = (
            await visitor.client.post("/policy/try", data={"token": token, **fields}, headers={"x-ferrule-part": "1"})
        ).text
        filters = {"tool": text, "since": text}
        pages[f"filter {number}"] = (await visitor.client.get("/calls", params=filters)).text
        pages[f"missing {number}"] = (await visitor.client.get("/tool", params={"name": f"{text} missing"})).text
    pages["approvals"] = await visitor.get("/approvals")
    found = re.findall(r'name="id" value="([^"]+)"><input type="hidden" name="digest"', pages["approvals"])
    for number, id in enumerate(dict.fromkeys(map(html.unescape, found))):
        pages[f"edit {number}"] = (await visitor.client.get("/approvals/edit", params={"id": id})).text
    for path in ("/tools", "/calls", "/policy"):
        pages[path] = await visitor.get(path)
    for seq in re.findall(r'name="at" value="(\d+)"', pages["/calls"])[::2]:
        pages[f"call {len(pages)}"] = await visitor.get(f"/call?at={seq}")
        pages[f"compare {len(pages)}"] = await visitor.get(f"/compare?at={seq}&at=1")
    await app.drain()
    await visitor.client.aclose()
    return pages


def find_shape(page: str) -> list[Any]:
    """The tags of a page. The linter has more to say about a hostile text, and not all statuses can be filtered."""
    without_lint = re.sub(r'(?s)<ul class="findings">.*?</ul>|<span class="meta">.*?</span></span>', "", page)
    return [shape for shape in Tags(without_lint).shape if shape[0] not in ("option", "p")]


@pytest.mark.time_limit(600)  # it draws four hundred pages
async def test_no_text_changes_a_page(tmp_path: Path) -> None:
    assert len(PAYLOADS) >= 60
    pages = []
    for name, texts in {"plain": ["one word", "two words"], "hostile": PAYLOADS}.items():
        journal = Journal.open(tmp_path / f"{name}.db", durable="normal")
        pages.append(await draw_everything(texts, journal))
        journal.close()
    before, after = pages
    assert len(after) > 400
    known = {shape for page in before.values() for shape in Tags(page).shape} | {("a", ("class", "rel", "href"))}
    shapes = {name.partition(" ")[0]: find_shape(page) for name, page in before.items()}
    for name, page in after.items():
        assert {*Tags(page).shape} <= known, name
        kind = name.partition(" ")[0]
        if kind in ("run-text", "run-deny", "tool", "try", "filter", "missing", "edit"):
            assert find_shape(page) == shapes[kind], name
        wrong = [address for address in Addresses(page).found if address and not re.match(r"[/#](?!/)", address)]
        assert wrong == [], name


async def test_every_answer_forbids_inline_scripts_and_other_hosts() -> None:
    async with visit(Runner(tools)) as ann:
        await ann.call("label", order_id=1)
        for path in ("/tools", "/tools/", "/nothing", "/static/page.css", "/events"):
            if path == "/events":
                ann_app = ann.client._transport.app
                ann_app.inspector.topics.close()
            headers = (await ann.client.get(path)).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
            assert "frame-ancestors 'none'" in policy and headers["x-content-type-options"] == "nosniff"


async def test_a_file_of_a_tool_is_downloaded_and_never_shown() -> None:
    async with visit(Runner(tools)) as ann:
        address = await ann.call("label", order_id=1)
        page = await ann.get(address)
        kinds = {}
        for number in range(5):
            response = await ann.client.get(
                "/run/block", params={"id": address.partition("=")[2], "number": str(number)}
            )
            kinds[number] = response.headers["content-type"], response.headers.get("content-disposition")
            assert "sandbox" in response.headers["content-security-policy"] or response.status_code == 404
        many = {"id": address.partition("=")[2], "number": "9" * 5000}
        assert (await ann.client.get("/run/block", params=many)).status_code == 404
        assert "(not loaded)" in page and "elsewhere.png" in page and "127.0.0.1:9" not in str(Addresses(page).found)
    assert kinds[1] == ("image/png", None) and kinds[2] == ("audio/wav", None)
    assert kinds[3] == ("application/octet-stream", "attachment")
    assert kinds[0][0].startswith("text/html") and kinds[4][0].startswith("text/html")


async def test_no_result_is_too_deep_or_too_long_for_its_page() -> None:
    @tool
    def answer(kind: str) -> Any:
        """Answer with something that is hard to draw."""
        return {
            "deep": "[" * 900 + "]" * 900,
            "long": ["\u202e" * 50_000] * 40,
            "rows": [{"text": "x" * 9_000, "number": number} for number in range(200)],
            "parts": [Text("x" * 9_000)] * 300,
        }[kind]

    async with visit(Runner([answer])) as ann:
        for kind in ("deep", "long", "rows", "parts"):
            page = await ann.get(await ann.call("answer", kind=kind))
            assert len(page) < 1_500_000 and Tags(page).shape, kind


def test_a_long_argument_hides_no_other_one_from_an_approver() -> None:
    tree = make_tree({"note": "x" * 200_000, "other": "y" * 200_000, "path": "/etc/passwd"})
    assert [child.text[-3:] for child in tree.children] == ["xx…", "yy…", 'wd"']


async def test_the_number_of_open_streams_is_bounded() -> None:
    async with visit(Runner(tools)) as ann:
        topics = ann.client._transport.app.inspector.topics
        streams = [topics.stream([]) for _ in range(MOST_STREAMS)]
        for stream in streams:
            await anext(stream)
        assert (await ann.client.get("/events")).status_code == 503
        for stream in streams:
            await stream.aclose()
        assert topics.streams == 0


async def test_secrets_are_stars_on_every_page(tmp_path: Path) -> None:
    secret = "sesame-open-now-12345"

    @tool(private=["pin"])
    def unlock(door: str, pin: str = secret, context: Any = None) -> str:
        """Unlock a door."""
        raise ValueError(f"the pin {secret} is wrong")

    journal = Journal.open(tmp_path / "calls.db")
    bound = unlock.bind(pin=secret)
    async with visit(Runner([bound], journal=journal, secrets={"pin": secret}, expose=(ValueError,))) as ann:
        address = await ann.call("unlock", door="front")
        await journal.flush()
        page = await ann.get(address)
        calls = await ann.get("/calls")
        seq = re.search(r'name="at" value="(\d+)"', calls)
        assert seq is not None
        texts = [page, calls, await ann.get(f"/call?at={seq[1]}"), await ann.get("/tool?name=unlock")]
    journal.close()
    assert "**********" in page and all(secret not in text for text in texts)
