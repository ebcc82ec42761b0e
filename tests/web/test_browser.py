"""`ferrule inspect` as it is started, in a real browser: every view, with what goes wrong on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import hostile_desk
import pytest
from served import Page, serve

from browser import Browser, driver
from ferrule import Journal, Runner, ToolCall
from ferrule.journal import Filter, Reader
from needed import needed
from waits import wait_until

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
CALLED = "return !document.querySelector('form[action=\"/run/stop\"]') && document.querySelector('.steps') && true"


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Makes browsers with profiles of their own."""
    with driver() as (binary, address), ExitStack() as stack:

        def make() -> Browser:
            window = Browser(binary, address, tmp_path_factory.mktemp("profile"))
            stack.callback(window.close)
            return window

        yield make


@pytest.fixture(scope="module")
def window(windows: Any) -> Browser:
    browser: Browser = windows()
    return browser


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    words = ("desk_tools.py", "--policy", "policy.toml", "--journal", str(tmp_path / "calls.db"))
    with serve(tmp_path, *words) as started:
        yield started


def sign_in(window: Browser, page: Page) -> None:
    window.do("url", url="about:blank")
    window.do("url", url=page.link)
    window.wait("return location.pathname !== '/' && document.readyState === 'complete'")
    assert window.script("return location.hash") == ""


def go(window: Browser, page: Page, path: str) -> None:
    window.do("url", url=f"{page.address}{path}")


def fill(window: Browser, name: str, value: str) -> None:
    """Type into a field as a person does, or choose."""
    script = """const field = document.getElementById(arguments[0]);
    field.value = arguments[1]; field.dispatchEvent(new Event('change', {bubbles: true}))"""
    window.script(script, name.replace("/", "%2F"), value)


def press(window: Browser, id: str, then: str) -> None:
    window.script("document.getElementById(arguments[0]).click()", id.replace("/", "%2F"))
    window.wait(f"return document.getElementById('{then.replace('/', '%2F')}')")


def call(window: Browser, page: Page, name: str, **values: str) -> None:
    go(window, page, f"/tool?name={name}")
    for key, value in values.items():
        fill(window, f"f/{key}", value)
    window.send("form[action='/tool/call'] .actions .primary")
    window.wait(CALLED)


def journaled(folder: Path, tool: str, *statuses: str) -> list[Any]:
    """The calls of a tool in the journal, once they have these statuses. Events are written soon, not at once."""

    def look() -> list[Any] | None:
        calls = list(Reader(folder / "calls.db").calls(Filter(tool=tool)))
        return calls if [call.status for call in calls] == list(statuses) else None

    found: list[Any] = wait_until(look)
    return found


def test_a_nested_form_is_filled_called_approved_and_found_in_the_journal(
    tmp_path: Path, page: Page, window: Browser
) -> None:
    sign_in(window, page)
    window.write("input[type=search]", "customer order")
    assert window.script(
        "return [...document.querySelectorAll('#tools li:not([hidden]) .name')].map(x => x.innerText)"
    ) == ["order"]
    window.send("#tools li:not([hidden]) a")
    press(window, "f/lines-add", "f/lines/0/article")
    press(window, "f/lines-add", "f/lines/1/article")
    fill(window, "f/lines/0/article", '"tea"')
    fill(window, "f/lines/1/article", '"cocoa"')
    window.write("#f\\%2Flines\\%2F1\\%2Fcount", "3")
    fill(window, "f/ship", "1")
    window.wait("return document.getElementById('f%2Fship%2F1%2Faddress%2Fstreet')")
    assert window.script("return document.getElementById('f%2Flines%2F1%2Fcount').value") == "3"
    window.write("#f\\%2Fship\\%2F1\\%2Faddress\\%2Fstreet", "Main 1")
    window.send("form[action='/tool/call'] .actions .primary")
    window.wait("return document.querySelector('.answers')")
    assert "customers see it" in window.text()
    window.click(".answers .primary")
    window.wait("return document.querySelector('.result')")
    assert "19" in window.script("return document.querySelector('.result').innerText")
    window.send(".head a[href^='/call?']")
    assert "allowed by ann" in window.text()
    [done] = journaled(tmp_path, "order", "ok")
    assert done.input["ship"]["address"]["street"] == "Main 1"


def test_an_open_page_follows_the_journal_and_survives_a_dead_server(
    tmp_path: Path, page: Page, window: Browser
) -> None:
    sign_in(window, page)
    go(window, page, "/calls")
    assert "No calls" in window.text()
    window.write("#tool", "typed and not sent")

    async def elsewhere(number: int) -> None:
        from desk_tools import stock

        journal = Journal.open(tmp_path / "calls.db")
        await Runner([stock], journal=journal).run(ToolCall(f"c{number}", "stock", {"article": "tea"}))
        journal.close()

    asyncio.run(elsewhere(1))
    window.wait("return document.querySelectorAll('.calls tbody tr').length === 1")
    page.stop(kill=True)
    window.wait("return !document.getElementById('connection').hidden")
    assert "does not answer" in window.text()
    page.start()
    window.wait("return document.getElementById('connection').hidden")
    asyncio.run(elsewhere(2))
    window.wait("return document.querySelectorAll('.calls tbody tr').length === 2")
    assert window.script("return document.getElementById('tool').value") == "typed and not sent"
    go(window, page, "/tools")
    assert "set_price" in window.text()  # the session holds


SERIOUS = """
const done = arguments[arguments.length - 1];
axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice']}).then(
  ({violations}) => done(violations.filter((one) => ['serious', 'critical'].includes(one.impact))
    .map((one) => one.id + ': ' + one.nodes.slice(0, 3).map(({html, failureSummary}) => html + failureSummary))))
"""


def find_barriers(window: Browser) -> list[str]:
    """The serious findings of axe on the page that is shown."""
    window.devtools("Page.enable")
    window.devtools("Runtime.evaluate", expression=Path(needed("axe")["axe"]).read_text(encoding="utf-8"))
    found: list[str] = window.do("execute/async", script=SERIOUS, args=[])
    return found


def test_everybody_can_use_every_view_at_every_size(page: Page, window: Browser) -> None:
    needed("axe")
    sign_in(window, page)
    barriers: list[str] = []

    def check(name: str) -> None:
        for width, dark in ((390, True), (1600, False)):
            window.resize(width, 900, dark=dark)
            assert window.script("return document.documentElement.scrollWidth <= innerWidth"), f"{name} at {width}"
            barriers.extend(f"{name} at {width}: {found}" for found in find_barriers(window))

    call(window, page, "label", order_id="1")
    check("run")
    call(window, page, "list_orders", limit="5")
    check("table")
    call(window, page, "set_price", article="tea", euros="9")
    check("asked")
    for path in ("/tools", "/tool?name=order", "/approvals", "/calls", "/call?at=1", "/compare?at=1&at=2", "/policy"):
        go(window, page, path)
        check(path)
    go(window, page, "/approvals")
    window.send("a[href^='/approvals/edit']")
    window.click("#preview")
    window.wait("return document.body.innerText.includes('Your changes')")
    check("edit")
    window.resize(900, 1150)
    assert barriers == []


def test_the_page_works_with_the_keyboard_alone(page: Page, window: Browser) -> None:
    sign_in(window, page)
    go(window, page, "/tool?name=stock")

    def keys(text: str) -> None:
        actions = [{"type": kind, "value": key} for key in text for kind in ("keyDown", "keyUp")]
        window.do("actions", actions=[{"type": "key", "id": "keys", "actions": actions}])

    tab, enter = "\ue004", "\ue007"
    keys(tab)
    assert window.script("return document.activeElement.className") == "skip"
    keys(enter)
    for _ in range(20):
        keys(tab)
        if window.script("return document.activeElement.id") == "f%2Farticle":
            break
    keys("t")  # the choice that begins with it
    assert window.script("return document.activeElement.value") == '"tea"'
    window.script("window.sent = true")
    for _ in range(20):
        keys(tab)
        if window.script("return document.activeElement.innerText") == "Call stock":
            break
    keys(enter)
    window.wait("return location.pathname === '/run' && document.querySelector('.result')")
    assert "3" in window.script("return document.querySelector('.result').innerText")


@pytest.mark.large
def test_no_text_of_a_stranger_runs_or_loads_anything(tmp_path: Path, window: Browser) -> None:
    program = tmp_path / "hostile.py"
    lines = ["import sys", f"sys.path.insert(0, {str(HERE)!r})", "import hostile_desk"]
    lines += ["runner = hostile_desk.make_runner(hostile_desk.PAYLOADS)"]
    program.write_text("\n".join(lines), encoding="utf-8")

    async def work() -> None:
        journal = Journal.open(tmp_path / "calls.db", durable="normal")
        runner = hostile_desk.make_runner(hostile_desk.PAYLOADS, journal=journal)
        for one, context in hostile_desk.list_calls(runner, hostile_desk.PAYLOADS):
            await runner.run(one, context)
        journal.close()

    asyncio.run(work())
    with serve(tmp_path, str(program), "--journal", str(tmp_path / "calls.db")) as page:
        sign_in(window, page)
        watch = "document.addEventListener('securitypolicyviolation', e => (window.owned ??= []).push(e.blockedURI))"
        source = f"window.alert = () => window.owned = ['alert']; {watch}"
        window.devtools("Page.addScriptToEvaluateOnNewDocument", source=source)
        paths = ["/tools", "/approvals", "/calls", "/policy", "/call?at=1", "/compare?at=1&at=9"]
        go(window, page, "/tools")
        names = window.script("return [...document.querySelectorAll('#tools a')].map(one => one.getAttribute('href'))")
        for path in [*paths, *names[::6]]:
            go(window, page, path)
            window.wait("return document.readyState === 'complete'")
            loaded = window.script(
                "return performance.getEntriesByType('resource').map(one => new URL(one.name).origin)"
            )
            assert {*loaded} <= {page.address}, path
            assert window.script("return window.owned ?? null") is None, path
            assert "owned" not in window.read("title")
