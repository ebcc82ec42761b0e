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
from ferrule import Runner, Toolset
from ferrule.selection import by_budget, chain, definition_tokens, keyword, list_found_tools, pinned

ROOT = Path(__file__).parents[2]
REQUESTS = {
    "is the warehouse in Latvia out of some article": "riga_stock_find",
    "list bills that somebody has to settle in Peru": "lima_invoice_find",
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


def test_the_program_shows_each_step_and_ends():
    shown = started("--yes", "oslo_refund_create", "--yes", "lyon_audit_create")
    assert shown.returncode == 0, shown.stderr
    offer = r"turn 1: offered are \d+ of 5,045 tools, about ([\d,]+) of ([\d,]+) tokens"
    first, whole = re.findall(offer, shown.stdout)[0]
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


@pytest.mark.large
async def test_the_first_offer_keeps_the_budget_and_the_pinned_tools(tools):
    selector = by_budget(800, chain(pinned(*program.PINNED), keyword(100)))
    offered = await selector.select(program.TASK, tools)
    assert sum(map(definition_tokens, offered)) <= 800
    assert {"search_tools", *program.PINNED} <= {tool.name for tool in offered}
    assert "oslo_payment_find" in {tool.name for tool in offered}


@pytest.mark.large
@pytest.mark.parametrize(("request_", "name"), REQUESTS.items())
def test_a_request_in_other_words_finds_its_tool(tools, request_, name):
    own = {word for word in re.split("_+", name) if word not in {"list"}}
    assert own.isdisjoint(request_.lower().split())
    result = Runner(tools).run_sync("search_tools", {"query": request_})
    assert name in [tool.name for tool in list_found_tools([result], tools)]


def test_nothing_is_deleted_whoever_says_yes():
    company = program.make_company_runner([], yes=["oslo_payment_delete"])
    result = company.run_sync("oslo_payment_delete", {"id": "payment-1"})
    assert result.status == "denied" and "nothing is deleted" in result.text
    assert company.run_sync("oslo_payment_read", {"id": "payment-1"}).success
