"""Eight small programs, each written from README.md and docs/ alone: what a newcomer tries in the first hour."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from ferrule import (
    Event,
    Field,
    Runner,
    ToolCall,
    ToolContext,
    ToolError,
    ToolHandler,
    Toolset,
    allow,
    ask,
    build_tool,
    deny,
    tool,
)
from ferrule.guards import ask_before_changes
from ferrule.loop import Finished, ModelText, TurnStarted, resume, run
from ferrule.middleware import before, budget, retry
from ferrule.models import Reply, Scripted
from ferrule.providers import anthropic, gemini, openai_responses
from ferrule.testing import ManualClock, Recorder, fake
from waits import BOUND


# A database with approvals.
@tool(read_only=True)
def find_orders(customer: str, context: ToolContext[Path]) -> list[dict[str, int | str]]:
    """Find the orders of a customer."""
    with closing(sqlite3.connect(f"file:{context.deps}?mode=ro", uri=True)) as database:
        rows = database.execute("SELECT id, euros, state FROM orders WHERE customer = ?", (customer,))
        return [{"id": number, "euros": euros, "state": state} for number, euros, state in rows]


@tool(resources=lambda arguments: [f"order-{arguments['order']}"])
def refund(order: int, euros: int, context: ToolContext[Path]) -> str:
    """Pay an order back."""
    with closing(sqlite3.connect(context.deps)) as database, database:
        changed = database.execute(
            "UPDATE orders SET state = 'refunded', euros = euros - ? WHERE id = ? AND state = 'paid'", (euros, order)
        )
        if changed.rowcount != 1:
            raise ToolError(f"order {order} is not paid, or was refunded; nothing was changed")
    return f"refunded {euros} EUR"


def large_refunds(call, context):
    if call.name == "refund" and call.arguments["euros"] > 50:
        return ask(f"refund {call.arguments['euros']} EUR to {context.principal}'s customer?")
    return None


@pytest.fixture
def shop(tmp_path) -> Path:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, euros INTEGER, state TEXT)")
        database.executemany("INSERT INTO orders VALUES (?, 'kim', ?, 'paid')", [(1, 20), (2, 80), (3, 500)])
    return path


async def test_a_database_with_approvals(shop):
    asked = []

    async def a_person(call, decision, context):
        asked.append(decision.reason)
        if call.arguments["euros"] == 500:
            return allow({**call.arguments, "euros": 100})
        return call.arguments["order"] == 2

    async def main():
        async with Runner([find_orders, refund], guards=[large_refunds], approve=a_person, deps=shop) as runner:
            amounts = [(1, 20), (2, 80), (3, 500), (3, 500), (1, 60)]
            calls = [
                ToolCall(str(at), "refund", {"order": order, "euros": euros})
                for at, (order, euros) in enumerate(amounts)
            ]
            results = await runner.run_all(calls, ToolContext(principal="ada"))
            assert [result.status for result in results] == ["ok", "ok", "ok", "failed", "denied"]
            assert results[2].output == "refunded 100 EUR"
            assert "was refunded; nothing was changed" in results[3].error
            found = await runner.run("find_orders", {"customer": "kim"}, principal="ada")
            assert [(order["state"], order["euros"]) for order in found.output] == [
                ("refunded", 0),
                ("refunded", 0),
                ("refunded", 400),
            ]

    await main()
    assert len(asked) == 4 and asked[0] == "refund 80 EUR to ada's customer?"


# Three providers, streamed: the events are what the three APIs send.
@tool(read_only=True)
async def convert(amount: float, currency: str = "EUR") -> str:
    """Convert an amount of dollars."""
    return f"{amount * 0.9:.2f} {currency}"


FROM_ANTHROPIC = [
    {"type": "message_start", "message": {"id": "msg_1", "role": "assistant", "content": []}},
    {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "tool_use", "id": "toolu_1", "name": "convert", "input": {}},
    },
    {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"amount"'}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": ": 2}"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
    {"type": "message_stop"},
]
CALLED = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "convert", "arguments": '{"amount": 2}'}
FROM_OPENAI = [
    {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress", "output": []}},
    {"type": "response.output_item.added", "output_index": 0, "item": {**CALLED, "arguments": ""}},
    {"type": "response.function_call_arguments.delta", "output_index": 0, "item_id": "fc_1", "delta": '{"amount"'},
    {"type": "response.function_call_arguments.delta", "output_index": 0, "item_id": "fc_1", "delta": ": 2}"},
    {"type": "response.output_item.done", "output_index": 0, "item": CALLED},
    {"type": "response.completed", "response": {"id": "resp_1", "status": "completed", "output": [CALLED]}},
]
FROM_GEMINI = [
    {"candidates": [{"content": {"role": "model", "parts": [{"text": "Let me see."}]}}]},
    {"candidates": [{"content": {"parts": [{"functionCall": {"name": "convert", "args": {"amount": 2}}}]}}]},
    {"candidates": [{"content": {"role": "model", "parts": [{"text": ""}]}, "finishReason": "STOP"}]},
]


@pytest.mark.parametrize(
    ("provider", "events"),
    [(anthropic, FROM_ANTHROPIC), (openai_responses, FROM_OPENAI), (gemini, FROM_GEMINI)],
    ids=["anthropic", "openai", "gemini"],
)
async def test_three_providers_streamed(provider, events):

    runner = Runner([convert])
    assert "convert" in json.dumps(provider.tools(runner.tools))

    stream = provider.Stream()
    for event in events[:-1]:
        stream.feed(event)
    assert all(call.problem for call in stream.calls()), "a turn is not whole before its end"
    stream.feed(events[-1])
    assert (stream.stop, stream.reason) == ("calls", None)

    history = [*stream.turn(), *provider.results(await runner.run_all(stream.calls()))]
    assert "1.80 EUR" in json.dumps(history[-1]) and len(history) == 2


# Tools as classes.
class Transfer(ToolHandler):
    """Move money."""

    source: str = Field(pattern="^[a-z]+$")
    target: str = Field(pattern="^[a-z]+$")
    euros: int = Field(gt=0, le=1000)

    async def __call__(self, context: ToolContext[dict[str, int]]) -> int:
        if context.deps.get(self.source, 0) < self.euros:
            raise ToolError(f"{self.source} has not that much; nothing was moved")
        context.deps[self.source] -= self.euros
        context.deps[self.target] = context.deps.get(self.target, 0) + self.euros
        return context.deps[self.source]


class Accounts:
    """Its public methods are tools."""

    def __init__(self, bank: dict[str, int]):
        self.bank = bank

    def balance(self, account: str) -> int:
        """Tell a balance."""
        return self.bank[account]

    def close(self, account: str) -> str:
        """Close an account."""
        del self.bank[account]
        return f"closed {account}"


async def test_tools_as_classes():
    bank = {"ada": 100, "bob": 0}

    def own_money(call, context):
        if call.name == "transfer" and call.arguments["source"] != context.principal:
            return deny("that is somebody else's money")
        return None

    tools = Toolset([Transfer]) + Toolset.of(Accounts(bank), prefix="account_")
    runner = Runner(tools.without("*_close"), guards=[own_money], deps=bank)
    assert [one.name for one in runner.tools] == ["transfer", "account_balance"]

    move = {"source": "ada", "target": "bob", "euros": 30}
    assert (await runner.run("transfer", move, principal="ada")).output == 70
    assert (await runner.run("transfer", move, principal="bob")).status == "denied"
    assert (await runner.run("transfer", {**move, "euros": 0}, principal="ada")).status == "invalid"
    assert "has not that much" in (await runner.run("transfer", {**move, "euros": 99}, principal="ada")).error
    assert (await runner.run("account_balance", {"account": "bob"})).output == 30
    assert (await runner.run("account_close", {"account": "bob"})).status == "not_found"


# A suspended call, which another process takes up.
PAYMENTS = '''
import asyncio, json, os, sys
from ferrule import Journal, Runner, ToolContext, tool

@tool(ask="money leaves the house")
async def pay(to: str, euros: int) -> str:
    """Pay somebody."""
    with open("paid.txt", "a") as file:
        file.write(f"{to} {euros}\\n")
    return f"paid {to} {euros} EUR"

def later(call, decision, context):
    return decision

async def main():
    key = os.environ["RESUME_KEY"].encode()
    runner = Runner([pay], approve=later, resume_key=key, journal=Journal.open("calls.db"))
    if sys.argv[1] == "ask":
        result = await runner.run("pay", {"to": "ada", "euros": 500}, ToolContext(principal="kim"))
        with open("waiting.json", "w") as file:
            json.dump(result.record(), file)
    else:
        with open("waiting.json") as file:
            result = await runner.resume(json.load(file), sys.argv[1] == "yes", by="eve")
    print(json.dumps({"status": result.status, "output": result.output}))

asyncio.run(main())
'''


def test_a_suspended_call_is_taken_up_by_another_process(tmp_path):
    program = tmp_path / "payments.py"
    program.write_text(PAYMENTS)

    def process(word, key="k" * 32):
        done = subprocess.run(
            [sys.executable, program, word],
            cwd=tmp_path,
            env=os.environ | {"RESUME_KEY": key},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return json.loads(done.stdout)["status"]

    assert process("ask") == "suspended"
    pending = json.loads((tmp_path / "waiting.json").read_text())["pending"]
    assert pending["arguments"] == {"to": "ada", "euros": 500} and "money leaves the house" in pending["reason"]
    assert process("yes", key="x" * 32) == "invalid", "another key is not believed"
    assert process("yes") == "ok"
    assert process("yes") == "ok", "who asks again is told what came of it"
    assert (tmp_path / "paid.txt").read_text() == "ada 500\n"


# A long job, with a button to stop it.
@tool(read_only=True)
async def crawl(pages: int, context: ToolContext[threading.Event]) -> AsyncIterator[str]:
    """Read pages, one after the other."""
    for page in range(pages):
        context.progress(page, pages, "reading")
        yield f"page {page}\n"
        if page == 2:
            context.deps.set()
            await asyncio.sleep(3600)


@tool(read_only=True)
def count(pages: int, context: ToolContext[threading.Event]) -> int:
    """Count pages, in a thread, which looks whether it is to end."""
    ticks = threading.Event()
    for page in range(pages):
        if page == 3:
            context.deps.set()
        if context.cancelled:
            return page
        ticks.wait(0.01)
    return pages


@pytest.mark.parametrize("name", ["crawl", "count"])
async def test_a_long_job_with_a_button_to_stop_it(name):
    heard, far_enough = [], threading.Event()

    async def main():
        async with Runner([crawl, count], observers=[heard.append], deps=far_enough, timeout=600) as runner:
            batch = runner.batch([ToolCall("1", name, {"pages": 100_000}), ToolCall("2", "crawl", {"pages": 1})])
            assert await asyncio.to_thread(far_enough.wait, 20)
            batch.cancel(now=True)
            results = await batch
            assert [result.status for result in results] == ["cancelled", "ok"]
            assert results[0].text and results[1].output == "page 0\n"

    await main()
    told = [event.data for event in heard if event.kind == "tool:progress" and event.call.id == "1"]
    assert [data["chunk"] for data in told if "chunk" in data] == ["page 0\n", "page 1\n", "page 2\n"] * (
        name == "crawl"
    )


# Tests of one's own tools.
@tool(read_only=True)
async def rate_of(currency: str) -> float:
    """Ask the bank for a rate."""
    raise ConnectionError("there is no bank on this machine")


@tool
async def order(item: str, count: int = 1) -> str:
    """Order something."""
    raise ConnectionError("there is no shop on this machine")


def few(call, context):
    if call.name == "order" and call.arguments["count"] > 10:
        raise PermissionError("ten at most")


async def test_tests_of_my_own_tools():

    clock, recorder, rates = ManualClock(), Recorder(), iter([ConnectionError("busy"), 0.9])

    def answer():
        given = next(rates)
        if isinstance(given, Exception):
            raise given
        return given

    tools = fake([rate_of, order], answers={"rate_of": answer, "order": lambda item, count: f"{count} {item}"})
    inside = [retry(attempts=2, clock=clock), budget(calls=3, by="all")]
    runner = Runner(tools, guards=[few], inside=inside, observers=[recorder])

    asking = asyncio.create_task(runner.run("rate_of", {"currency": "EUR"}))
    await clock.advance(60)
    assert (await asking).output == 0.9
    assert (await runner.run("order", {"item": "tea", "count": 11})).status == "denied"
    recorder.assert_not_called(order)
    assert (await runner.run("order", '{"item": "tea", "count": "2",}')).output == "2 tea"
    recorder.assert_called(order, item="tea", count=2, times=1)
    assert (await runner.run("order", {"item": "tea"})).status == "limited"
    with pytest.raises(AssertionError, match="was not called"):
        recorder.assert_called(order, item="coffee")


# Tools of others, wrapped.
class OfAnotherLibrary:
    """As many libraries have it: a name, a schema, and a method of their own."""

    name = "search"
    description = "Search the archive."
    args_schema = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}

    def invoke(self, input):
        return f"pages about {input['query']}"


async def test_tools_of_others_wrapped():
    theirs = OfAnotherLibrary()
    openai = {
        "type": "function",
        "function": {"name": theirs.name, "description": theirs.description, "parameters": theirs.args_schema},
    }
    mcp = {"name": "forecast", "description": "Forecast.", "inputSchema": theirs.args_schema}

    def short(arguments):
        return {**arguments, "query": arguments["query"][:10]} if "query" in arguments else arguments

    async def forecast(payload):
        return f"rain, {payload['query']}"

    search = build_tool(openai, theirs.invoke, read_only=True)
    tools = Toolset([search, build_tool(mcp, forecast, read_only=True)]).prefixed("other_")
    tools += Toolset.of(textwrap, prefix="text_", skip=True).only("text_dedent", "text_shorten")
    runner = Runner(tools, guards=[ask_before_changes], around=[before(short)], timeout=BOUND)
    assert (await runner.run("other_search", {"query": "rainforests"})).output == "pages about rainforest"
    assert (await runner.run("other_search", {"question": "rain"})).status == "invalid"
    assert (await runner.run("other_forecast", {"query": "Bern"})).output == "rain, Bern"
    assert (await runner.run("text_dedent", {"text": "  a"})).status == "denied", "it says nothing of itself"


# A whole loop, with a model of one's own.
class Talking:
    """A model that streams its words."""

    def __init__(self):
        self.scripted = Scripted(
            [[("convert", {"amount": 2}), ("order", {"item": "tea"})], lambda messages: messages[-1]["content"]]
        )

    async def __call__(self, messages, toolset, /, *, on_text=None) -> Reply:
        reply = await self.scripted(messages, toolset)
        for word in reply.text.split():
            on_text(word)
        return reply

    def results(self, results):
        return self.scripted.results(results)


async def test_a_whole_loop():
    def later(call, decision, context):
        return decision

    model = Talking()
    tools = fake([convert, order], answers={"convert": "1.80 EUR", "order": lambda item: f"ordered {item}"})
    runner = Runner(tools, guards=[ask_before_changes], approve=later, resume_key=b"k" * 32)
    question = [{"role": "user", "content": "Convert two dollars, and order tea."}]
    kinds, calls = [], []
    async with run(model, question, runner, context=ToolContext(principal="ada"), max_turns=5) as going:
        async for event in going:
            kinds.append(type(event))
            if isinstance(event, Event) and event.kind == "tool:post":
                calls.append(event.call.name)
    assert (going.result.status, calls) == ("suspended", ["convert"])
    assert kinds[0] is TurnStarted and kinds[-1] is Finished

    waiting = json.loads(json.dumps(going.result.suspended))
    [call_id] = waiting["waiting"]
    answered = resume(waiting, {call_id: True}, model, runner, by="eve")
    said = [event.text async for event in answered if isinstance(event, ModelText)]
    assert (answered.result.status, said) == ("done", ["ordered", "tea"])
    assert answered.result.turns == 2 and answered.result.text == "ordered tea"
