"""Five thousand tools within a budget: what is offered, what is found in other words, and what does not run."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import five_thousand_tools as program
import pytest

import preloaded
from ferrule import Runner, Toolset, models
from ferrule.selection import by_budget, chain, definition_tokens, keyword, list_found_tools, pinned, search_tool

ROOT = Path(__file__).parents[2]
REQUESTS = {
    "which days are people ill in Japan": "osaka_absence_find",
    "is the warehouse in Latvia out of some article": "riga_stock_find",
    "list bills that somebody has to settle in Peru": "lima_invoice_find",
    "update the wages in Canada": "quebec_payslip_change",
    "how many applied for a job in India": "delhi_candidate_count",
    "how many stars did buyers give in Korea": "seoul_review_find",
    "is there a warning of fire in Portugal": "porto_alarm_read",
    "show all that is known of some damage in Egypt, for the insurance": "cairo_claim_read",
    "what is it worth in kroner": "rates__convert",
    "list the memos that there are": "notes__list_notes",
}
"""What somebody asks for, without a word of the tool's name."""


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    """All tools: those of the company, of both servers, and the search tool."""

    async def connected() -> Toolset:
        async with program.connect_servers(tmp_path_factory.mktemp("notes")) as of_servers:
            return program.make_company_runner(of_servers).tools

    return asyncio.run(connected())


def started(*arguments):
    command = [sys.executable, ROOT / "examples/five_thousand_tools.py", *arguments]
    return preloaded.run(command, env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, timeout=120)


def test_the_program_shows_the_whole_way_and_ends():
    shown = started("--yes", "oslo_refund_create", "--yes", "lyon_audit_create")
    assert shown.returncode == 0, shown.stderr
    first, whole = re.findall(
        r"turn 1: offered are \d+ of 5,045 tools, about ([\d,]+) of ([\d,]+) tokens", shown.stdout
    )[0]
    assert int(first.replace(",", "")) <= program.BUDGET < 100 * program.BUDGET < int(whole.replace(",", ""))
    steps = [
        "  → lyon_audit_create {",
        "  ← lyon_audit_create not_found:",
        "  → search_tools {",
        "      - lyon_audit_create: ",
        "  ← rates__convert ok:\n      1020.00 EUR",
        "  ← lyon_audit_create ok:",
        "done: ",
    ]
    places = [shown.stdout.find(step) for step in steps]
    assert -1 not in places and places == sorted(places), shown.stdout
    assert shown.stdout.count("new-1 was created") == 4  # of either call, and again in the answer
    assert shown.stderr == ""


def test_without_a_yes_nothing_is_changed(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["five_thousand_tools.py"])
    program.main()
    shown = capsys.readouterr().out
    assert shown.count("nobody is there to ask") >= 2 and "was created" not in shown


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["Pay."], 2, "write both a task and --model"),
        (["--model", "scripted:steps.py", "--budget", "1"], 2, "No such file"),
        (["Pay.", "--model", "nobody:none"], 2, "'nobody:none' is not PROVIDER:NAME"),
        (["--budget", "50"], "five_thousand_tools: by_budget(50)", "notes__read_note ("),
    ],
)
def test_what_cannot_be_meant_is_one_line(arguments, code, told, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["five_thousand_tools.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert str(ended.value.code).startswith(str(code))
    assert told in f"{capsys.readouterr().err} {ended.value.code}"


@pytest.mark.parametrize("budget", [800, 1_500, 4_000])
async def test_what_is_offered_first_keeps_the_budget_and_has_what_is_pinned(tools, budget):
    selector = by_budget(budget, chain(pinned(*program.PINNED), keyword(100)))
    offered = await selector.select(program.TASK, tools)
    assert sum(map(definition_tokens, offered)) <= budget
    assert {"search_tools", *program.PINNED} <= {tool.name for tool in offered}
    assert "oslo_payment_find" in {tool.name for tool in offered}


@pytest.mark.parametrize(("request_", "name"), REQUESTS.items())
def test_a_request_in_other_words_finds_its_tool(tools, request_, name):
    own = {word for word in re.split("_+", name) if word not in {"list"}}
    assert own.isdisjoint(request_.lower().split())
    result = Runner(tools).run_sync("search_tools", {"query": request_})
    assert name in [tool.name for tool in list_found_tools([result], tools)]


def test_what_was_not_offered_is_not_found_until_it_is_searched_for(tools):
    catalogue = program.runner.tools
    company = Runner([*catalogue, search_tool(catalogue)])
    offered = company.tools.only("search_tools")
    call = ("riga_stock_find", {"article": "7"})
    assert company.run_sync(*call, offered=offered).status == "not_found"
    searched = company.run_sync("search_tools", {"query": "is the warehouse in Latvia out of it"}, offered=offered)
    offered = Toolset([*offered, *list_found_tools([searched], company.tools)])
    assert company.run_sync(*call, offered=offered).output == {}


def test_nothing_is_deleted_whoever_says_yes():
    company = program.make_company_runner([], yes=["oslo_payment_delete"])
    result = company.run_sync("oslo_payment_delete", {"id": "payment-1"})
    assert result.status == "denied" and "nothing is deleted" in result.text
    assert company.run_sync("oslo_payment_read", {"id": "payment-1"}).success


def test_what_is_changed_is_found_again(monkeypatch):
    monkeypatch.setitem(program.RECORDS, ("riga", "stock"), {})
    company = program.make_company_runner([], yes=["riga_stock_create", "riga_stock_change"])
    assert company.run_sync("riga_stock_create", {"article": "7", "count": 2, "building": "works"}).success
    assert company.run_sync("riga_stock_change", {"id": "new-1", "count": 5}).success
    assert company.run_sync("riga_stock_find", {"count": 5}).output["new-1"]["article"] == "7"
    assert company.run_sync("riga_stock_read", {"id": "new-2"}).status == "failed"


async def test_a_run_of_another_model_is_shown_too(tmp_path):
    (tmp_path / "payments.md").write_text("Nothing.", encoding="utf-8")
    lines: list[str] = []
    model = models.Scripted([[("notes__list_notes", {})], "Done."])
    result = await program.work(model, "Which notes are there?", tmp_path, show=lines.append)
    assert result.status == "done" and "      payments" in "\n".join(lines).replace('["', "").replace('"]', "")
