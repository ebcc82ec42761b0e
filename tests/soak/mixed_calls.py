"""A mixture of calls that uses every part of Ferrule at once, with faults, and the resources that it holds meanwhile.

Linux alone shows a process its memory and its descriptors (`/proc/self`).
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import httpx2
from process_tools import elsewhere
from pydantic import BaseModel

from ferrule import (
    Deferred,
    Journal,
    Runner,
    Sizes,
    ToolCall,
    ToolContext,
    ToolError,
    ToolResult,
    Toolset,
    Waits,
    allow,
    approval,
    mcp,
    models,
    serve,
    tool,
)
from ferrule.guards import commands, rules, within
from ferrule.loop import run, run_many
from ferrule.middleware import after, before, breaker, budget, cache, limit_output, rate, redact, retry, untrusted
from ferrule.providers import anthropic, openai_chat
from ferrule.sources import openapi
from ferrule.testing import faults
from ferrule.tools import background

POLICY = 'allow = ["*"]\nask = ["pay(amount>50)"]\ndeny = ["pay(amount>90)", "shell(rm *)"]\n'
FEWEST_SAMPLES = 16
"""A busy machine may need longer than it was given."""
PRINCIPALS = [f"principal {number}" for number in range(20)]
API = {
    "openapi": "3.1.0",
    "info": {"title": "Shop", "version": "1"},
    "paths": {"/orders": {"get": {"operationId": "list_orders", "responses": {"200": {"description": "Orders."}}}}},
}


class Item(BaseModel):
    name: str
    quantity: int
    due: datetime | None = None


@tool
def pay(amount: int, to: str = "ada") -> str:
    """Pay somebody."""
    return f"paid {amount} to {to}"


@tool(read_only=True)
async def order(items: list[Item], note: str | None = None) -> list[Item]:
    """Show an order."""
    return items


@tool(read_only=True, timeout=0.005)
async def sleep(seconds: float) -> str:
    """Sleep."""
    await asyncio.sleep(seconds)
    return "awake"


@tool(read_only=True)
def fail(why: str) -> str:
    """Fail."""
    raise ToolError(why) if why.startswith("told") else RuntimeError(why)


@tool(read_only=True)
def large(characters: int) -> str:
    """Return a long text."""
    return "text " * (characters // 5)


@tool(read_only=True)
async def chunks(count: int) -> AsyncIterator[str]:
    """Count."""
    for number in range(count):
        yield str(number)


@tool(read_only=True)
async def nested(context: ToolContext, depth: int) -> str:
    """Call a tool that calls a tool."""
    if not depth:
        return "bottom"
    context.progress(depth, 5, "going down")
    return (await context.run("nested", {"depth": depth - 1})).text


@tool(resources=lambda arguments: [arguments["key"]])
async def locked(key: str) -> str:
    """Work on one key."""
    await asyncio.sleep(0)
    return key


@tool(background=True)
async def later(pages: int) -> str:
    """Work in the background."""
    await asyncio.sleep(0)
    return f"{pages} pages"


@tool
async def deferred(ticket: str) -> str | Deferred:
    """Have somebody else work."""
    return Deferred(ticket, poll_after=60)


@tool
def write(path: Path, text: str) -> str:
    """Write nothing."""
    return f"wrote {path}"


@tool(read_only=True)
def shell(command: str) -> str:
    """Run nothing."""
    return command


def approve(call: ToolCall, decision: Any, context: ToolContext) -> Any:
    amount = call.arguments.get("amount", 0) % 4
    return approval.later(call, decision, context) if amount == 3 else (True, False, allow({"amount": 52}))[amount]


class Mixture:
    """The runner, its journal and its sources, and the ways to call them."""

    def __init__(self, runner: Runner, journal: Journal, draw: random.Random) -> None:
        self.runner, self.journal, self.draw = runner, journal, draw
        self.ends: Counter[str] = Counter()
        self._numbers = iter(range(10**12))
        self._ways: list[Callable[[], Awaitable[Any]]] = [
            *(self.run_one,) * 12, self.run_wrong, self.run_wrong, self.cancel, self.suspend, self.resolve,
            self.run_batch, self.run_loop, self.run_in_background, self.run_long_batch, self.read_model,
        ]  # fmt: skip

    def options(self) -> dict[str, Any]:
        return {"session": f"session {next(self._numbers)}", "principal": self.draw.choice(PRINCIPALS)}

    def call(self) -> tuple[str, dict[str, Any]]:
        """A right call of any tool, in most cases."""
        number = self.draw.randrange(100)
        items = [{"name": f"thing {number}", "quantity": number, "due": "2026-11-20T10:11:12Z"}] * (number % 9)
        return self.draw.choice(
            [
                ("pay", {"amount": number}),
                ("order", {"items": items, "note": "n" * number * 20}),
                ("sleep", {"seconds": 0.0 if number % 4 else 1.0}),
                ("fail", {"why": f"told {number}" if number % 2 else f"broken {number}"}),
                ("large", {"characters": number * 2_000}),
                ("chunks", {"count": number % 7}),
                ("nested", {"depth": number % 5}),
                ("locked", {"key": f"key {number % 3}"}),
                ("elsewhere", {"number": number, "dies": number == 0}),
                ("shell", {"command": f"git log -{number} | head; rm {number}" if number % 5 == 0 else "git status"}),
                ("write", {"path": f"notes/{number % 2 * '../'}{number}.txt", "text": "text"}),
                ("far__echo", {"text": f"text {number}"}),
                ("list_orders", {}),
            ]
        )

    async def fill(self) -> None:
        """Fill what a runner keeps up to a number, so that it grows no more: the thousand last jobs."""
        for _ in range(1_000):
            await self.run_in_background()

    async def run_round(self, ways: int = 64) -> None:
        """Call in many ways at once."""
        await asyncio.gather(*(self.draw.choice(self._ways)() for _ in range(ways)))

    def count(self, result: ToolResult) -> ToolResult:
        self.ends[result.status] += 1
        return result

    async def run_one(self) -> None:
        name, arguments = self.call()
        self.count(await self.runner.run(ToolCall(f"c{next(self._numbers)}", name, arguments), **self.options()))

    async def run_wrong(self) -> None:
        wrong = [
            ("order", '{"items": [{"name": 5, "quantity": "many"}, 7], "other": 1}'),
            ("order", '{"items": [{"name": "thing", "quantity": "5",}], "note": null'),
            ("pay", "{broken"),
            ("pay", '{"amount": 1e400}'),
            (f"unknown_{next(self._numbers)}", "{}"),
            ("pay", {"amount": [[[["deep"]]]]}),
        ]
        name, arguments = self.draw.choice(wrong)
        self.count(await self.runner.run(ToolCall(f"c{next(self._numbers)}", name, arguments), **self.options()))

    async def cancel(self) -> None:
        name, arguments = self.draw.choice([("sleep", {"seconds": 1.0}), ("locked", {"key": "key 1"}), self.call()])
        task = asyncio.ensure_future(self.runner.run(name, arguments, **self.options()))
        for _ in range(self.draw.randrange(4)):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            self.count(await task)

    async def suspend(self) -> None:
        result = self.count(await self.runner.run("pay", {"amount": 63}, **self.options()))
        if result.status == "suspended" and self.draw.random() < 0.8:
            self.count(await self.runner.resume(result.record(), self.draw.random() < 0.5, by="ann"))

    async def resolve(self) -> None:
        ticket = f"ticket {next(self._numbers)}"
        await self.runner.run("deferred", {"ticket": ticket}, **self.options())
        self.count(await self.runner.resolve(ticket, ToolResult("done")))

    async def run_batch(self) -> None:
        calls = [ToolCall(f"c{next(self._numbers)}", *self.call()) for _ in range(20)]
        batch = self.runner.batch(calls, **self.options())
        async for result in batch:
            self.count(result)
            if self.draw.random() < 0.05:
                batch.cancel(now=self.draw.random() < 0.5)

    async def run_loop(self) -> None:
        model = models.Scripted([[self.call(), self.call()], [("pay", {"amount": 7})], "That is all."])
        await run(model, model.user("Go on."), self.runner, **self.options())

    async def run_in_background(self) -> None:
        options = self.options()
        begun = await self.runner.run("later", {"pages": 3}, **options)
        if begun.success:
            look = {"ticket": begun.output["ticket"], "wait_seconds": 60}
            self.count(await self.runner.run("check_call", look, **options))

    async def run_long_batch(self) -> None:
        def calls() -> Iterator[ToolCall]:
            for _ in range(20):
                yield ToolCall(f"c{next(self._numbers)}", *self.call())

        async for result in run_many(self.runner, calls(), concurrency=8, **self.options()):
            self.count(result)

    async def read_model(self) -> None:
        """Export the tools, and read and answer a message of a model."""
        anthropic.tools(self.runner.tools)
        function = {"name": "nested", "arguments": '{"depth": 2}'}
        wanted = {"id": f"c{next(self._numbers)}", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [wanted]}
        calls = openai_chat.calls({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})
        openai_chat.results([self.count(one) for one in await self.runner.run_all(calls, **self.options())])


async def _answer_request(request: httpx2.Request) -> httpx2.Response:
    return httpx2.Response(200, json={"items": ["tea"]})


@asynccontextmanager
async def mixture(folder: Path, seed: int = 0) -> AsyncIterator[Mixture]:
    """Everything that is set up once: the runner, its journal, an MCP server and an API."""
    (folder / "policy.toml").write_text(POLICY, encoding="utf-8")
    journal = Journal.open(folder / "calls.db", durable="normal")

    @tool(read_only=True)
    async def echo(text: str) -> str:
        """Say it back."""
        return text

    client = httpx2.AsyncClient(transport=httpx2.MockTransport(_answer_request))
    far = mcp.Memory(serve.mcp(Runner([echo])).server, name="far")
    own = Toolset([pay, order, fail, large, chunks, nested, locked, later, write, shell])
    async with client, mcp.connect(far, trusted=True) as remote:
        faulty = [*faults(own, errors=0.02), *faults(sleep, timeouts=0.05)]
        api = openapi(API, client=client, server="https://api.example.com")
        runner = Runner(
            [*faulty, deferred, elsewhere, *background.tools, *remote, *api],
            guards=[rules(folder / "policy.toml"), commands(allow=["git *", "head *"]), within("notes")],
            around=[
                before(lambda arguments: None), untrusted, limit_output(40_000), redact(),
                rate(10**6, seconds=5, by="principal"), budget(calls=10**9, by="principal"),
            ],
            inside=[
                after(lambda result: None), cache(seconds=5, entries=100),
                retry(2, wait=0.001), breaker(10**6),
            ],
            approve=approve,
            journal=journal,
            observers=[lambda event: None],
            concurrency=24,
            per_principal=12,
            timeout=30,
            waits=Waits(grace=0.05, resume=1.0),
            sizes=Sizes(output=50_000),
        )  # fmt: skip
        async with runner:
            calls = Mixture(runner, journal, random.Random(seed))
            await calls.fill()
            yield calls
        journal.close()


@dataclass(frozen=True)
class Sample:
    """The resources that the process holds between two rounds.

    Attributes:
        seconds: Since the beginning.
        memory: Bytes of memory (resident).
        blocks: Blocks of memory that Python has given out.
    """

    seconds: float
    memory: int
    blocks: int
    threads: int
    descriptors: int
    tasks: int


def take_sample(seconds: float) -> Sample:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return Sample(
        seconds,
        pages * os.sysconf("SC_PAGE_SIZE"),
        sys.getallocatedblocks(),
        threading.active_count(),
        len(os.listdir("/proc/self/fd")),
        len(asyncio.all_tasks()),
    )


async def soak(folder: Path, seconds: float, tell: Callable[[Sample, Counter[str]], None]) -> list[Sample]:
    """Make rounds of calls for so many seconds, and take a sample between them, two hundred in all.

    Returns:
        The samples: one before anything is set up, those in between, and one when everything has ended.
    """
    begun = time.monotonic()
    samples = [take_sample(0.0)]
    async with mixture(folder) as calls:
        while (now := time.monotonic() - begun) < seconds or len(samples) <= FEWEST_SAMPLES:
            await calls.run_round()
            if now - samples[-1].seconds >= seconds / 200:
                await calls.journal.flush()
                calls.journal.prune(1 / 86_400)
                samples.append(take_sample(now))
                tell(samples[-1], calls.ends)
    samples.append(take_sample(time.monotonic() - begun))
    return samples


def growth(values: list[int]) -> float:
    """How much the last quarter's median is above that of the quarter after the warm-up: 0.02 is two percent."""
    quarter = len(values) // 4
    return median(values[-quarter:]) / median(values[quarter : 2 * quarter]) - 1
