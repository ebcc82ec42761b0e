"""What one call costs, as a ratio to Pydantic's own validate-and-call, and what each promise adds.

Run: python benchmarks/call.py
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from statistics import median
from typing import Any, Literal

from measure import Block, interleaved, ratio
from pydantic import BaseModel, TypeAdapter

from ferrule import Runner, Tool, ToolCall, ToolContext, tool
from ferrule.middleware import after, before

FLOOR, NOTHING, EVERYTHING = "floor: TypeAdapter(fn).validate_json", "nothing configured", "everything"
Times = dict[str, list[float]]


class Currency(Enum):
    EUR = "EUR"
    USD = "USD"


class Item(BaseModel):
    sku: str
    name: str
    quantity: int
    price: float
    kind: Literal["book", "toy", "tool"] = "tool"
    note: str | None = None


class Customer(BaseModel):
    name: str
    email: str
    since: datetime
    vip: bool = False


class Order(BaseModel):
    id: str
    customer: Customer
    items: list[Item]
    placed: datetime
    currency: Currency = Currency.EUR
    due: datetime | None = None
    remarks: str | None = None


async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


async def order(
    id: str,
    customer: Customer,
    items: list[Item],
    placed: datetime,
    currency: Currency = Currency.EUR,
    due: datetime | None = None,
    remarks: str | None = None,
) -> str:
    """Place an order."""
    return id


async def place(order: Order, note: str | None = None) -> str:
    """Place an order, with a note of its own."""
    return order.id


async def keep(text: str) -> int:
    """Keep a text."""
    return len(text)


@tool
async def nested(context: ToolContext, count: int) -> None:
    """Add two integers many times."""
    for _ in range(count):
        await context.run("add", ADD)


ADD = '{"a": 1, "b": 2}'
ORDER = json.dumps(
    {
        "id": "o-20261",
        "customer": {"name": "Ada Byron", "email": "ada@example.org", "since": "2020-02-03T04:05:06Z", "vip": True},
        "placed": "2026-11-20T10:11:12Z",
        "currency": "USD",
        "due": "2026-12-01T00:00:00Z",
        "items": [
            {"sku": f"S{n:04}", "name": f"Thing {n}", "quantity": n + 1, "price": 9.5, "kind": "toy", "note": None}
            for n in range(20)
        ],
    }
)
PLACED = f'{{"order": {ORDER}}}'
LONG = json.dumps({"text": "a, b: c; " * 11_400})


@dataclass(frozen=True)
class Case:
    """One function with one text.

    Attributes:
        reads: What the guard of `everything` reads of the arguments.
        asked: The ratios for everything and for nothing configured.
    """

    title: str
    function: Callable[..., Awaitable[Any]]
    text: str
    reads: Callable[[Mapping[str, Any]], object]
    asked: tuple[float, float]
    calls: int


CASES = (
    Case("two integers", add, ADD, lambda arguments: arguments["a"], (9.5, 4.7), 500),
    Case("order", order, ORDER, lambda arguments: arguments["items"][0]["sku"], (2.3, 1.3), 100),
    Case(
        "order one level down, with a name in its lines that the top level has too",
        place,
        PLACED,
        lambda arguments: arguments["order"]["items"][0]["sku"],
        (2.8, 1.8),
        100,
    ),
    Case("100 KB string", keep, LONG, lambda arguments: arguments["text"], (1.6, 1.4), 50),
)


def observe(event: object) -> None:
    pass


def unchanged(arguments: object) -> None:
    return None


def untouched(result: object) -> None:
    return None


def runs(text: str, subject: Tool, context: ToolContext | None = None, **options: Any) -> Block:
    runner = Runner([subject], **options)
    name = subject.name

    async def block(calls: int) -> None:
        run = runner.run
        if context is None:
            for _ in range(calls):
                await run(ToolCall("call_1", name, text))
        else:
            for _ in range(calls):
                await run(ToolCall("call_1", name, text), context)

    return block


def floor(function: Callable[..., Awaitable[Any]], text: str) -> Block:
    adapter = TypeAdapter(function)

    async def block(calls: int) -> None:
        validate = adapter.validate_json
        for _ in range(calls):
            await validate(text)

    return block


async def _one_task() -> None:
    pass


async def created_tasks(calls: int) -> None:
    for _ in range(calls):
        await asyncio.create_task(_one_task())


def promises(case: Case) -> dict[str, Block]:
    """The floor, nothing configured, each promise by itself, and everything."""
    bare, context = tool(case.function), ToolContext(session="s", principal="p")
    text = case.text

    def guard(call: ToolCall, context: ToolContext) -> None:
        case.reads(call.arguments)

    everything: dict[str, Any] = {
        "observers": [observe],
        "guards": [guard],
        "around": [before(unchanged)],
        "inside": [after(untouched)],
        "timeout": 30,
    }
    return {
        FLOOR: floor(case.function, text),
        NOTHING: runs(text, bare),
        "+ context": runs(text, bare, context),
        "+ concurrency of the tool": runs(text, bare.replace(concurrency=8)),
        "+ deadline": runs(text, bare, timeout=30),
        "+ observer": runs(text, bare, observers=[observe]),
        "+ guard that reads one value": runs(text, bare, guards=[guard]),
        "+ before": runs(text, bare, around=[before(unchanged)]),
        "+ after": runs(text, bare, inside=[after(untouched)]),
        EVERYTHING: runs(text, bare.replace(concurrency=8), context, **everything),
        "(one create_task)": created_tasks,
    }


def calls_from_inside() -> dict[str, Block]:
    """The same call from outside and from inside of a handler."""
    runner = Runner([tool(add), nested])

    async def outside(calls: int) -> None:
        for _ in range(calls):
            await runner.run("add", ADD)

    async def inside(calls: int) -> None:
        await runner.run("nested", {"count": calls})

    return {"runner.run": outside, "context.run": inside}


def unknown_names(count: int) -> dict[str, Block]:
    """Calls of tools that there are not, which look like some that there are."""
    made, base = [], tool(add)
    verbs, nouns = ("get", "set", "list", "find", "drop"), ("order", "user", "invoice", "file", "ticket", "page")
    for number in range(count):
        made.append(base.replace(name=f"{verbs[number % 5]}_{nouns[number % 6]}_{number}_by_id"))
    runner = Runner(made)
    wrong = [item.name.replace("_by", "by") for item in made[:: count // 50]] + ["completely_different"]

    async def block(calls: int) -> None:
        for number in range(calls):
            await runner.run(ToolCall("call_1", wrong[number % len(wrong)], ADD))

    return {"unknown": block}


def report(case: Case, times: Times) -> None:
    base, nothing = median(times[FLOOR]), median(times[NOTHING])
    print(f"\n{case.title} ({len(case.text)} bytes): median, the ratios of the medians and of the least")
    for name, found in times.items():
        least, middle = ratio(found, times[FLOOR])
        extra = f"{median(found) - nothing:+7.2f} µs" if name.startswith("+") else ""
        print(f"  {name:38} {median(found):8.2f} µs {middle:6.2f} x {least:6.2f} x  {extra}")
    everything, bare = case.asked
    print(f"  floor {base:.2f} µs; asked for: nothing configured {bare} x, everything {everything} x", end="")
    print(" (before 3.12 plus one create_task)")


def measure_case(case: Case, rounds: int) -> Times:
    return asyncio.run(interleaved(promises(case), calls=case.calls, rounds=rounds))


def measure_inside(rounds: int) -> Times:
    return asyncio.run(interleaved(calls_from_inside(), calls=500, rounds=rounds))


def measure_unknown(rounds: int, count: int = 10_000) -> list[float]:
    return asyncio.run(interleaved(unknown_names(count), calls=51, rounds=rounds))["unknown"]


def main(rounds: int = 100) -> None:
    print(f"Python {sys.version.split()[0]}")
    for case in CASES:
        report(case, measure_case(case, rounds))
    inside = measure_inside(rounds)
    least, middle = ratio(inside["context.run"], inside["runner.run"])
    print(f"\ncontext.run in a handler, against runner.run: {middle:.2f} x, {least:.2f} x (asked for: 1.4 x)")
    unknown = measure_unknown(5)
    print(f"a name that no tool has, among 10,000: {median(unknown) / 1000:.2f} ms (asked for: 1 ms)")


if __name__ == "__main__":
    main()
