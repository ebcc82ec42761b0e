"""examples/support_desk, as it is started: by HTTP, over several processes, and in a real browser."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest

from browser import Browser
from browser import browser as start_browser
from waits import BOUND

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent.parent
PROGRAM = ROOT / "examples" / "support_desk" / "desk.py"
QUESTION = "My order 1002 came broken."
HOSTILE = "1002 <script>document.title = 'owned'</script><img src=x onerror=alert(1)>\" onclick=\"alert(1)"


@contextmanager
def desk(folder: Path) -> Iterator[str]:
    """The program in a process of its own, on a free port; the address of its page."""
    command = [sys.executable, os.fspath(PROGRAM), "--folder", os.fspath(folder), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield address(process)
        finally:
            process.terminate()
            process.communicate(timeout=BOUND)


def address(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if found := re.search(r"running on (http://127\.0\.0\.1:\d+)", line):
            return found[1]
    raise AssertionError(said)


class Forms(HTMLParser):
    """The forms of a page: where each leads, and its hidden fields; and every tag that there is."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.forms: list[tuple[str, dict[str, str]]] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.add(tag)
        if tag == "form":
            self.forms.append((given["action"], {}))
        elif tag == "input":
            self.forms[-1][1][given["name"]] = given["value"]


class Person:
    """Somebody who looks at the page and sends its forms, as a browser without scripts does."""

    def __init__(self, url: str) -> None:
        self.client = httpx.Client(base_url=url, follow_redirects=True, timeout=BOUND, trust_env=False)

    def fields(self, action: str) -> list[dict[str, str]]:
        return [fields for leads_to, fields in Forms(self.client.get("/").text).forms if leads_to == action]

    def ask(self, question: str, customer: str = "ada") -> None:
        [fields] = self.fields("/ask")
        sent = fields | {"customer": customer, "question": question}
        self.client.post("/ask", data=sent).raise_for_status()

    def answer(self, word: str, fields: dict[str, str] | None = None) -> httpx.Response:
        return self.client.post("/answer", data=(fields or self.fields("/answer")[0]) | {"answer": word})


def rows(folder: Path, query: str, file: str = "desk.db") -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(folder / file)) as connection:
        return connection.execute(query).fetchall()


def refunds(folder: Path) -> list[tuple[Any, ...]]:
    return rows(folder, "SELECT order_id, cents FROM refunds")


Visit = Callable[[str], Person]


@pytest.fixture
def visit() -> Iterator[Visit]:
    with ExitStack() as visits:

        def begin(url: str) -> Person:
            person = Person(url)
            visits.enter_context(person.client)
            return person

        yield begin


def test_a_refund_waits_through_a_restart_and_is_paid_after_a_yes(tmp_path: Path, visit: Visit) -> None:
    with desk(tmp_path) as url:
        visit(url).ask(QUESTION)
        page = visit(url).client.get("/").text
        assert "Pay 129.00 EUR back to ada?" in page and QUESTION in page
        assert refunds(tmp_path) == []
    with desk(tmp_path) as url:
        person = visit(url)
        page = person.answer("yes").text
    assert refunds(tmp_path) == [(1002, 12900)]
    assert "Good news: we have paid back 129.00 EUR for order 1002." in page and "Nothing waits." in page
    query = "SELECT data FROM events WHERE kind = 'tool:post' AND tool_name = 'refund'"
    assert [json.loads(data)["answered_by"] for (data,) in rows(tmp_path, query, "calls.db")]
    assert rows(tmp_path, "SELECT tool_name, state FROM calls", "calls.db") == [("refund", "ended")]


@pytest.mark.large
def test_of_two_answers_in_two_processes_one_counts(tmp_path: Path, visit: Visit) -> None:
    with desk(tmp_path) as here, desk(tmp_path) as there:
        visit(here).ask(QUESTION)
        first, second = visit(here), visit(there)
        shown_here, shown_there = first.fields("/answer")[0], second.fields("/answer")[0]
        assert second.answer("yes", shown_there).status_code == 200
        assert first.answer("yes", shown_here).status_code == 409
    assert refunds(tmp_path) == [(1002, 12900)]


def test_refunds_of_others_and_paid_ones_ask_nobody(tmp_path: Path, visit: Visit) -> None:
    with desk(tmp_path) as url:
        person = visit(url)
        person.ask("Pay back order 1002!", customer="bob")
        assert person.fields("/answer") == []
        person.ask(QUESTION)
        page = person.answer("no").text
        assert refunds(tmp_path) == [] and "we cannot pay anything back" in page and "Nothing waits." in page
        person.ask(QUESTION)
        person.answer("yes")
        person.ask(QUESTION)
        assert person.fields("/answer") == []
    assert refunds(tmp_path) == [(1002, 12900)]


def test_a_forged_form_does_nothing_and_texts_are_escaped(tmp_path: Path, visit: Visit) -> None:
    with desk(tmp_path) as url:
        person, stranger = visit(url), visit(url)
        person.ask(HOSTILE)
        response = person.client.get("/")
        assert not Forms(response.text).tags & {"script", "img"} and "&lt;script&gt;" in response.text
        assert "default-src 'none'" in response.headers["content-security-policy"]
        shown = person.fields("/answer")[0]
        assert shown.keys() == {"token", "case", "call", "key", "digest"}
        yes = shown | {"answer": "yes"}
        elsewhere = {"origin": "http://127.0.0.1:1"}
        assert httpx.post(f"{url}/answer", data=yes, trust_env=False).status_code == 403  # no cookie
        stranger.client.get("/")
        assert stranger.answer("yes", shown).status_code == 403  # the token of another session
        assert person.answer("yes", shown | {"token": ""}).status_code == 403
        assert person.client.post("/answer", data=yes, headers=elsewhere).status_code == 403
        assert person.client.post("/answer", data=yes, headers={"host": "example.com"}).status_code == 400
        assert person.client.get("/answer", params=yes).status_code == 405
        assert person.answer("yes", shown | {"key": "x"}).status_code == 409  # not what was shown
        assert person.answer("yes", shown | {"digest": "x"}).status_code == 409
        assert person.answer("perhaps", shown).status_code == 400
        assert person.client.post("/ask", data={"token": shown["token"], "customer": "ada"}).status_code == 400
        cookie = person.client.get("/").headers["set-cookie"].lower()
        assert refunds(tmp_path) == [] and len(person.fields("/answer")) == 1
    assert "httponly" in cookie and "samesite=strict" in cookie
    assert stat.S_IMODE((tmp_path / "desk.key").stat().st_mode) == 0o600


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with start_browser(tmp_path / "profile") as opened:
        yield opened


@pytest.mark.large
def test_a_person_answers_in_a_real_browser(tmp_path: Path, browser: Browser) -> None:
    folder = tmp_path / "desk"
    with desk(folder) as url:
        browser.do("url", url=url)
        for question in (HOSTILE, "My teapot of order 1001 leaks. Please pay it back."):
            browser.write("textarea", question)
            browser.send(".send")
        assert browser.read("title") == "(2) Support desk"
        assert HOSTILE in browser.text()
        (tmp_path / "page.png").write_bytes(browser.picture())
    with desk(folder) as url:
        browser.do("url", url=url)
        browser.send("[data-case='1'] .yes")
        assert "paid back 129.00 EUR for order 1002" in browser.text()
        browser.send("[data-case='2'] .no")
        assert "Nothing waits." in browser.text()
        assert browser.read("title") == "Support desk"
        (tmp_path / "answered.png").write_bytes(browser.picture())
    assert refunds(folder) == [(1002, 12900)]
