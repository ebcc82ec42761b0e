"""The views of the page, for people without a browser: calls, answers, the journal, the policy, an application."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import desk_tools
import httpx
import pytest
from desk_tools import PRICES, tools
from fastapi import FastAPI
from visitors import HOST, Tags, Visitor, mount, visit

from ferrule import Journal, Runner, ToolCall, ToolContext, approval, tool
from ferrule.guards import ask_before_changes, rules
from ferrule.journal import Filter, Reader
from ferrule.values.input import InputRequired
from journal_desk import journaled, look

KEY = b"k" * 32


@pytest.fixture(autouse=True)
def prices() -> Iterator[None]:
    before = dict(PRICES)
    yield
    PRICES.clear()
    PRICES.update(before)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Any]:
    opened = Journal.open(tmp_path / "calls.db")
    yield opened
    opened.close()


def make_runner(**options: Any) -> Runner:
    return Runner(tools, guards=[rules(desk_tools.POLICY, tools=tools)], **options)


async def test_a_nested_form_becomes_a_call_with_its_path() -> None:
    async with visit(Runner(tools)) as ann:
        fields = {
            "name": "order", "mode": "form", "f#on": "1", "f/lines#on": "1", "f/lines#item": ["0", "1"],
            "f/lines/0#on": "1", "f/lines/0/article": '"tea"', "f/lines/1#on": "1", "f/lines/1/article": '"cocoa"',
            "f/lines/1/count": "3", "f/ship": "1", "f/ship#drawn": "1", "f/ship/1#on": "1", "f/ship/1/kind": "1",
            "f/ship/1/address#on": "1", "f/ship/1/address/street": "Main 1", "principal": "bob", "session": "s1",
        }  # fmt: skip
        response = await ann.send("/tool/call", fields)
        page = await ann.get(await ann.end(response.headers["location"]))
    assert "ok" in page and 'class="number">19</span>' in page and "Main 1" in page
    assert "<dd>bob</dd>" in page and "<dd>s1</dd>" in page and "Where the time went" in page


async def test_a_person_approves_edits_and_denies(journal: Any) -> None:
    async with visit(make_runner(journal=journal)) as ann:
        waits = await ann.call("set_price", article="tea", euros=9)
        page = await ann.get(waits)
        assert "-tea: 4 EUR" in page and "+tea: 9 EUR" in page and PRICES["tea"] == 4
        shown = await ann.question()
        edited = await ann.send(
            "/approvals/edit", {**shown, "action": "preview", "f#on": "1", "f/article": "tea", "f/euros": "6"}
        )
        assert "+tea: 6 EUR" in edited.text and "-  &#34;euros&#34;: 9" in edited.text
        fields = dict(re.findall(r'name="(edited_digest|arguments)" value="([^"]*)"', edited.text))
        fields["arguments"] = fields["arguments"].replace("&#34;", '"')
        response = await ann.answer("approve edited", shown, **fields)
        assert "tea costs 6 EUR now" in await ann.get(await ann.end(response.headers["location"]))

        await ann.call("set_price", article="coffee", euros=1)
        response = await ann.answer("deny", await ann.question(), reason="too cheap")
        assert "too cheap" in await ann.get(await ann.end(response.headers["location"]))
        assert "Nothing waits" in await ann.get("/approvals")
    await journal.flush()
    calls = list(Reader(journal.path).calls(Filter(tool="set_price")))
    assert [call.status for call in calls] == ["ok", "denied"] and PRICES["tea"] == 6 and PRICES["coffee"] == 7
    assert calls[0].result["answered_by"] == "ann" and dict(calls[0].input)["euros"] == 6


async def test_an_edit_whose_preview_has_changed_is_shown_again() -> None:
    async with visit(make_runner()) as ann:
        await ann.call("set_price", article="tea", euros=9)
        shown = await ann.question()
        edited = {"arguments": '{"article": "tea", "euros": 6}', "edited_digest": "0" * 64}
        response = await ann.answer("approve edited", shown, **edited)
        assert response.status_code == 409 and "preview has changed" in response.text
        PRICES["tea"] = 5
        response = await ann.answer("approve", shown)
        assert response.status_code == 409 and "The question has changed" in response.text
        assert "set_price" in await ann.get("/approvals")
    assert PRICES["tea"] == 5


async def test_of_two_people_who_answer_the_first_counts() -> None:
    async with visit(make_runner(), "ann", "bob") as (ann, bob):
        await ann.call("set_price", article="tea", euros=9)
        shown = await bob.question()
        responses = await asyncio.gather(ann.answer("approve", shown), bob.answer("deny", shown))
        codes = sorted(response.status_code for response in responses)
        [late] = [response for response in responses if response.status_code == 409]
        # The second answer may come while the first one's call runs, which has changed the preview.
        refusals = ("answered", "does not wait", "has changed")
        assert codes == [303, 409] and any(one in late.text for one in refusals)


async def test_a_tool_that_needs_to_know_more_gets_a_form() -> None:
    @tool
    def book(day: str, context: ToolContext) -> Any:
        """Book a table."""
        if context.answer is None:
            schema = {"type": "object", "properties": {"people": {"type": "integer"}}, "required": ["people"]}
            return InputRequired("How many people?", schema)
        return f"a table for {context.answer.value['people']}"

    async with visit(Runner([book])) as ann:
        await ann.call("book", day="monday")
        page = await ann.get("/approvals")
        assert "How many people?" in page and "Send the answer" in page
        response = await ann.answer("approve", await ann.question(), **{"f#on": "1", "f/people": "4"})
        assert "a table for 4" in await ann.get(await ann.end(response.headers["location"]))


async def test_questions_of_other_programs_with_the_journal_are_answered_here(journal: Any) -> None:
    program = Runner(tools, guards=[ask_before_changes], approve=approval.later, journal=journal, resume_key=KEY)
    queue = approval.web(journal.store, tools=program.tools, name="acme")
    await queue.put(await program.run("set_price", {"article": "tea", "euros": 9}, principal="bob"))
    async with visit(Runner(tools, guards=[ask_before_changes], journal=journal, resume_key=KEY)) as ann:
        response = await ann.answer("approve", await ann.question())
        assert "tea costs 9 EUR now" in await ann.get(await ann.end(response.headers["location"]))


async def test_a_question_without_its_key_is_shown_and_not_answered(journal: Any) -> None:
    program = Runner(tools, guards=[ask_before_changes], approve=approval.later, journal=journal, resume_key=KEY)
    await approval.web(journal.store).put(await program.run("set_price", {"article": "tea", "euros": 9}))
    await program.run("order", {"lines": [], "ship": {"kind": "pickup", "day": "monday"}})
    await journal.flush()
    async with visit(Runner(tools, guards=[ask_before_changes], journal=journal)) as ann:
        page = await ann.get("/approvals")
        assert "its key is not here" in page and "Waits elsewhere" in page
        [waiting] = await approval.web(journal.store).waiting()
        response = await ann.answer("approve", {"id": waiting.id, "digest": waiting.digest})
        assert response.status_code == 409 and PRICES["tea"] == 4


async def test_a_running_call_can_be_stopped_and_reports_progress() -> None:
    inside, reached = asyncio.Event(), asyncio.Event()

    @tool
    async def wait(context: ToolContext) -> str:
        """Wait."""
        context.progress(1, 3, "one of three")
        reached.set()
        await inside.wait()
        return "done"

    async with visit(Runner([wait])) as ann:
        response = await ann.send("/tool/call", {"name": "wait", "mode": "form", "f#on": "1"})
        address = response.headers["location"]
        await reached.wait()
        page = await ann.get(address, **{"x-ferrule-part": "1"})
        assert "1/3 one of three" in page and "/run/stop" in page and "<html" not in page
        await ann.send("/run/stop", {"id": address.partition("=")[2]})
        assert "cancelled" in await ann.get(await ann.end(address))


async def test_the_journal_is_shown_page_by_page_and_filtered(tmp_path: Path) -> None:
    async def many(runner: Runner) -> None:
        await runner.run_all(
            [ToolCall(f"c{n}", "look", {"order": "bad" if n % 40 == 0 else f"o{n}"}) for n in range(120)]
        )

    path = tmp_path / "calls.db"
    await asyncio.to_thread(journaled, path, many)
    seen: list[str] = []
    with_file = Runner([look], journal=Journal.open(path))
    async with visit(with_file) as ann:
        address: str | None = "/calls"
        while address is not None:
            page = await ann.get(address)
            seen += re.findall(r"order=&#34;(\w+)&#34;", page)
            found = re.search(r'rel="next" href="([^"]+)"', page)
            address = found[1].replace("&amp;", "&") if found else None
        assert len(seen) == 120 == len({*seen}) + 2 and seen[0] == "o119"
        failed = await ann.get("/calls?status=failed")
        assert failed.count('name="at"') == 3
        assert "there is no status" in await ann.get("/calls?status=x")
        assert "is not a time" in await ann.get("/calls?since=yesterday")
        assert "None fits" in await ann.get("/calls?tool=refund*")
        first, second = re.findall(r'name="at" value="(\d+)"', failed)[:2]
        compared = await ann.get(f"/compare?at={first}&at={second}")
        assert "Compare two calls" in compared and "The same." in compared
        other = re.findall(r'name="at" value="(\d+)"', await ann.get("/calls"))[0]
        compared = await ann.get(f"/compare?at={first}&at={other}")
        assert "-  &#34;order&#34;: &#34;bad&#34;" in compared and "+  &#34;order&#34;: &#34;o119&#34;" in compared
        assert "there is no such order" in await ann.get(f"/call?at={first}")
        again = await ann.get(f"/tool?name=look&from={first}")
        assert re.search(r"<textarea[^>]*name=\"f/order\"[^>]*>\s*bad</textarea>", again)
    assert with_file.journal is not None
    with_file.journal.close()


async def test_a_past_call_passes_the_guards_again(journal: Any) -> None:
    async with visit(make_runner(journal=journal)) as ann:
        await ann.call("set_price", article="tea", euros=9)
        answered = await ann.answer("approve", await ann.question())
        await ann.end(answered.headers["location"])
        await journal.flush()
        [past] = Reader(journal.path).calls(Filter(tool="set_price"))
        shown = Tags(await ann.get(f"/tool?name=set_price&from={past.events[0].seq}"))
        assert shown.inputs["f/euros"] == "9" and "f/seen" not in shown.inputs
        PRICES["tea"] = 4
        response = await ann.send("/tool/call", {**shown.inputs, "f/article": "tea"})
        assert "Waits for your answer" in await ann.get(await ann.end(response.headers["location"]))
        assert "+tea: 9 EUR" in await ann.get("/approvals") and PRICES["tea"] == 4


async def test_a_result_is_drawn_as_it_is() -> None:
    @tool(read_only=True)
    def compare() -> str:
        """Compare two files."""
        return "--- a\n+++ b\n@@ -1 +1 @@\n-old\n+new\n"

    async with visit(Runner([*tools, compare])) as ann:
        label = await ann.get(await ann.call("label", order_id=1))
        assert "<img src=" in label and "<audio controls" in label and 'download="form.html"' in label
        assert "<td>1001</td>" in await ann.get(await ann.call("list_orders", limit=2))
        assert '<span class="plus">+new' in await ann.get(await ann.call("compare"))


async def test_a_call_can_be_tried_against_the_policy(journal: Any) -> None:
    async with visit(make_runner(journal=journal)) as ann:
        await ann.call("set_price", article="cocoa", euros=9)
        await journal.flush()
        page = await ann.get("/policy?name=set_price")
        row = page.partition("policy.toml:3")[2].partition("</tr>")[0]
        assert '<td class="number">1</td>' in row
        fields = {"name": "set_price", "action": "try", "mode": "form", "f#on": "1"}
        fields |= {"f/article": "cocoa", "f/euros": "9"}
        tried = (await ann.send("/policy/try", fields)).text
        assert "The call would be denied by policy.toml:3." in tried and "fixed by contract" in tried
        fields["f/article"] = "tea"
        assert "would wait for a person by policy.toml:9" in (await ann.send("/policy/try", fields)).text
    assert PRICES == {"tea": 4, "coffee": 7, "cocoa": 5}


async def test_the_page_is_a_part_of_an_application(journal: Any) -> None:
    page = mount(make_runner(journal=journal))
    application = FastAPI()
    application.mount("/ops/ferrule", page)
    ann, nobody = Visitor(application), Visitor(application, "")
    ann.client.base_url = httpx.URL(f"http://{HOST}/ops/ferrule")
    text = await ann.get("/tools")
    assert 'href="/ops/ferrule/tool?name=stock"' in text
    assert (await nobody.client.get("/ops/ferrule/tools")).status_code == 401
    fields = {"name": "stock", "mode": "form", "f#on": "1", "f/article": '"tea"'}
    response = await ann.send("/tool/call", fields)
    assert response.headers["location"].startswith("/ops/ferrule/run?id=")
    await page.drain()
    for visitor in (ann, nobody):
        await visitor.client.aclose()
